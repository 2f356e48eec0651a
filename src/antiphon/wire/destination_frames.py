"""Frames of bulk creation: many destinations with the same settings, in one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from antiphon.wire.layout import U32, Layout, SomeRanges, Text, Texts, list_of

NAMES_MAX: Final = 500
"""Names in one request, some 130 KB at most: the channel makes them in a step or two, and other clients'
commands wait no longer than for a large batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationsCreate:
    """Make destinations with these settings, a JSON object. DestinationsCreated answers, name by name.

    An existing destination is fine if it has the given settings, so that a request may be repeated.
    """

    request: U32
    names: Texts
    settings: Text


class RefusedName(NamedTuple):
    """A destination that was not made; `at` counts the names of the request from 0."""

    at: U32
    code: Text
    text: Text


RefusedNames = Annotated[tuple[RefusedName, ...], list_of(Layout(RefusedName), element_bytes_min=4 + 2 + 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationsCreated:
    """The names of the request that were made now, counted from 0, and those that were refused.

    The others existed, and are set as wanted.
    """

    request: U32
    made: SomeRanges
    refused: RefusedNames
