"""What the message manager asks for, besides the effects all machines of a node share."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.bus import effects as bus


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Have a command of the node itself ordered, through this node's own producer.

    Only the primary says this. The proposal names its term or is harmless without one: what is
    ordered after the term has passed does nothing.
    """

    command: bytes
    count: int


Effect = bus.Effect | Propose
