"""Source: what messages are given out of. A queue is one, and so is every subscription of a topic."""

from __future__ import annotations

from typing import Protocol

from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.index import BatchIndex
from antiphon.ranges import Ranges


class Indexed(Protocol):
    """Something whose parts lie in the journal."""

    @property
    def index(self) -> BatchIndex:
        """Where they lie."""


class Stored(Indexed, Protocol):
    """Messages that can be read: those of a queue, of a topic, or of a subscription."""

    @property
    def counts(self) -> DeliveryCounts:
        """How often each was given back."""


class Source(Stored, Protocol):
    """Messages that can be given to consumers, and are gone from here once acknowledged."""

    @property
    def id(self) -> int:
        """The number of the command that made it; no two sources of a channel have the same."""

    @property
    def destination(self) -> int:
        """The id of its queue or topic."""

    @property
    def name(self) -> str:
        """What an operator calls it."""

    @property
    def is_exclusive(self) -> bool:
        """Has it one consumer at a time?"""

    @property
    def floor(self) -> int:
        """Nothing up to this number is to be given out."""

    @property
    def last(self) -> int:
        """Above this number there is nothing yet."""

    def pending(self, after: int, ranges_max: int) -> tuple[Ranges, int | None]:
        """What is to be given out above number `after`, as far as so many stored ranges reach.

        With it the number through which was looked; None when that was all there is.
        """

    def still(self, numbers: Ranges) -> Ranges:
        """What of these is still to be had."""

    def acknowledge(self, numbers: Ranges) -> Ranges:
        """Somebody is done with these; what of them was still to be had."""

    def return_(self, numbers: Ranges, *, is_counted: bool) -> Ranges:
        """Somebody gives these back; what of them is still to be had."""
