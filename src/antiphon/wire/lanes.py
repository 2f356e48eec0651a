"""Lanes: the multicast groups of a channel, so that a node receives only what it needs."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Lane(IntEnum):
    """A kind of messages to all nodes."""

    DATA = 0
    """Envelopes, for the data servers."""
    CONTROL = 1
    """The order and the heartbeats, for all nodes."""
    DELIVERIES = 2
    """Messages that several client managers need at once."""


ALL_LANES: Final = frozenset(Lane)
