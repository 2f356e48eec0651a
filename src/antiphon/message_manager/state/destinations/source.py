"""Source: a queue or a subscription, from which messages are given to consumers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.index import StoredBatch
from antiphon.message_manager.state.destinations.rules import DeliveryRules
from antiphon.message_manager.state.destinations.settings import ReturnRules
from antiphon.ranges import Ranges


class BatchFinder(Protocol):
    """The places of rows in the journal."""

    def find(self, sequence: int) -> StoredBatch:
        """The batch of a stored message."""


class Indexed(Protocol):
    """A part of the state whose rows lie in the journal."""

    @property
    def index(self) -> BatchFinder:
        """The places of the rows."""


class Stored(Indexed, Protocol):
    """Messages that can be read: of a queue, a topic or a subscription."""

    @property
    def counts(self) -> DeliveryCounts:
        """The redelivery counts."""


class Source(Stored, Protocol):
    """Messages that can be given to consumers, until they are acknowledged."""

    @property
    def id(self) -> int:
        """The number of the command that made the source, unique in the channel."""

    @property
    def destination(self) -> int:
        """The id of the queue or topic."""

    @property
    def name(self) -> str:
        """The name for an operator."""

    @property
    def rules(self) -> DeliveryRules:
        """The delivery rules of the queue's or topic's messages."""

    @property
    def is_exclusive(self) -> bool:
        """Whether the source has one consumer at a time."""

    @property
    def is_one_by_one(self) -> bool:
        """Whether of several consumers only the first receives, until it leaves."""

    @property
    def floor(self) -> int:
        """Messages up to this number are not given out."""

    @property
    def last(self) -> int:
        """The last message so far."""

    def pending(self, after: int, ranges_max: int) -> tuple[Ranges, int | None]:
        """The messages to give out above `after` in so many ranges; and the number they reach, None at the
        end.
        """

    def still(self, numbers: Ranges) -> Ranges:
        """The part of these that is not acknowledged."""

    def acknowledge(self, numbers: Ranges) -> Ranges:
        """Acknowledge these; returns those that were not acknowledged yet."""

    def drop(self, numbers: Ranges) -> Ranges:
        """Remove those of these that are non-persistent; returns those that were not acknowledged yet."""

    def return_(self, numbers: Ranges, *, is_counted: bool) -> Ranges:
        """Return these; returns those that are not acknowledged."""

    def reject(self, numbers: Ranges) -> Ranges:
        """Mark these as rejected for good; returns those that are not acknowledged."""

    def bury(self, numbers: Ranges) -> None:
        """Remove these: they are dead."""

    def doomed(self) -> Ranges:
        """The messages that are dead, and still here: no consumer gets them."""

    @property
    def may_delay(self) -> bool:
        """May a message that came back have to wait?"""

    def by_returns(self, numbers: Ranges) -> Iterable[tuple[ReturnRules, Ranges]]:
        """These messages, by what becomes of messages that come back."""
