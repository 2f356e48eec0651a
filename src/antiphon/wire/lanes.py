"""Lanes: the multicast groups of a cluster, so that a node receives what it needs."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Lane(IntEnum):
    """What is sent to all nodes, by kind."""

    DATA = 0
    """Envelopes, for the data servers."""
    CONTROL = 1
    """The order and who is there, for everybody."""
    DELIVERIES = 2
    """Messages that several client managers need at once."""


ALL_LANES: Final = frozenset(Lane)
