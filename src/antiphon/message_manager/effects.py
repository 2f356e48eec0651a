"""The effects of the message manager beside those that all machines of a node share."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.bus import effects as bus


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Have a command of the node itself ordered; only the primary emits this.

    A command that names its term does nothing after that term; any other is harmless.
    """

    command: bytes
    count: int


Effect = bus.Effect | Propose
