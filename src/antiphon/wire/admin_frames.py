"""Frames of administration: questions to the nodes and their answers."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.wire.layout import U32, Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question to the node, in JSON."""

    request: U32
    question: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Its answer, in JSON."""

    request: U32
    answer: Document
