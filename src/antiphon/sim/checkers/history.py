"""The history of queues and topics as clients saw it: nothing lost, nothing invented, nothing twice.

    lost         a confirmed message that reached no application
    unexpected   a body that reached an application and was never published, or was definitely refused
    twice        one body under two numbers: a message was stored two times
    known        a body that reached an application, though its client was told that its id is known
    again        a second copy of a message without `redelivered`
    order        a message of a session behind one that the session sent later

A message whose producer never learned its outcome may appear, at most under one number. All bodies of a run
are unique. Losses are known only after the queues were drained. Each subscription is judged as a queue is.

The first copy need not arrive first: it may lie in the buffer of a client that lost its connection, while
another application gets the second copy, with `redelivered`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from antiphon.sim.checkers.model import Topics
from antiphon.sim.checkers.watch import Checker, PortConsumer
from antiphon.sim.world import World
from antiphon.wire.commands import OutcomeCode

_STORED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)
# The fold answers these without storing anything, and the number can never be used again.
_DEFINITE = (OutcomeCode.NO_DESTINATION, OutcomeCode.REFUSED)


class TotalQueue(Checker):
    """Compares published with received messages."""

    promise = "total queue"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._body_of: dict[tuple[int, int], bytes] = {}
        self._confirmed: dict[bytes, int] = {}
        self._refused: set[bytes] = set()
        # Bodies of messages that are not stored, because another had the same id.
        self._known: set[bytes] = set()
        self._attempted: set[bytes] = set()
        self._number_of: dict[bytes, int] = {}
        self._body_at: dict[int, bytes] = {}
        self._times: dict[int, int] = {}
        # Numbers of which a copy without `redelivered` arrived.
        self._first_copies: set[int] = set()
        # Messages that need not be delivered: their time was over, or they were lost on each way, until they
        # had come back too often.
        self.expired: Container[int] = ()
        self.worn_out: Container[int] = ()

    @property
    def figures(self) -> dict[str, int]:
        return {
            "attempted": len(self._attempted),
            "confirmed": len(self._confirmed),
            "refused": len(self._refused),
            "known": len(self._known),
            "recovered": sum(1 for body in self._number_of if body not in self._confirmed),
            "received": sum(self._times.values()),
            "redelivered": sum(times - 1 for times in self._times.values()),
        }

    def on_published(self, session: int, number: int, bodies: Sequence[bytes]) -> None:
        for row, body in enumerate(bodies):
            assert body not in self._attempted, "the workload used a body twice"
            self._attempted.add(body)
            self._body_of[session, number + row] = body

    def on_confirmed(self, session: int, number: int, count: int, code: int, sequence: int) -> None:
        for row in range(count):
            body = self._body_of.get((session, number + row))
            if body is None:
                continue
            if code in _STORED:
                at = self._confirmed.setdefault(body, sequence + row)
                if at != sequence + row:
                    self.fail(f"{body!r} was confirmed at {at} and then at {sequence + row}")
                if self._number_of.get(body, at) != at:
                    self.fail(f"{body!r} was confirmed at {at} and delivered as {self._number_of[body]}")
            elif code in _DEFINITE:
                self._refused.add(body)
            elif code == OutcomeCode.KNOWN:
                self._known.add(body)
                if body in self._number_of:
                    self.fail(f"{body!r} arrived as {self._number_of[body]}, and its id is called known")

    def on_consumed(self, sequence: int, body: bytes) -> None:
        self._note_arrival(sequence, body)

    def _note_arrival(self, sequence: int, body: bytes) -> None:
        if body not in self._attempted:
            self.fail(f"{body!r} was never published and arrived as {sequence}")
        if body in self._refused:
            self.fail(f"{body!r} was refused and arrived as {sequence}")
        if body in self._known:
            self.fail(f"{body!r} has a known id, and arrived as {sequence}")
        if self._number_of.setdefault(body, sequence) != sequence:
            self.fail(f"{body!r} is stored twice, as {self._number_of[body]} and as {sequence}")
        if self._body_at.setdefault(sequence, body) != body:
            self.fail(f"number {sequence} was {self._body_at[sequence]!r} and is now {body!r}")
        if self._confirmed.get(body, sequence) != sequence:
            self.fail(f"{body!r} was confirmed at {self._confirmed[body]} and arrived as {sequence}")

    def on_received(self, holder: PortConsumer, sequence: int, body: bytes, redelivered: int) -> None:
        self._note_arrival(sequence, body)
        if not redelivered:
            if sequence in self._first_copies:
                self.fail(f"{sequence} was delivered before and comes again without saying so")
            self._first_copies.add(sequence)
        self._times[sequence] = self._times.get(sequence, 0) + 1

    def at_quiet(self, facts: dict[int, int]) -> None:
        self._check_order()
        lost = sorted(
            place
            for body, place in self._confirmed.items()
            if body not in self._number_of and place not in self.expired and place not in self.worn_out
        )
        if lost:
            self.fail(f"{len(lost)} confirmed messages were never delivered, the first is {lost[0]}")

    def _check_order(self) -> None:
        """Received messages of a session are in the order of their numbers in the session."""
        places: dict[int, int] = {}
        for (session, number), body in sorted(self._body_of.items()):
            place = self._number_of.get(body)
            if place is None:
                continue
            if place <= places.get(session, 0):
                self.fail(f"number {number} of session {session:#x} is {place}, behind {places[session]}")
            places[session] = place


class TotalTopic(TotalQueue):
    """Compares published with received messages, for each subscription."""

    promise = "total topic"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.topics: Topics | None = None
        self._times_of: dict[int, dict[int, int]] = {}
        self._first_copies_of: dict[int, set[int]] = {}

    def on_received(self, holder: PortConsumer, sequence: int, body: bytes, redelivered: int) -> None:
        assert self.topics is not None, "the model of the topics watches, too"
        # 0 for the consumer of a queue.
        subscription = self.topics.subscription_of[holder.session, holder.consumer]
        # The base class counts over all consumers; here the counts are the subscription's.
        self._times = self._times_of.setdefault(subscription, {})
        self._first_copies = self._first_copies_of.setdefault(subscription, set())
        super().on_received(holder, sequence, body, redelivered)

    @property
    def figures(self) -> dict[str, int]:
        received = [times for of_one in self._times_of.values() for times in of_one.values()]
        return super().figures | {
            "received": sum(received),
            "redelivered": sum(times - 1 for times in received),
            "subscriptions": len(self._times_of),
        }

    def at_quiet(self, facts: dict[int, int]) -> None:
        assert self.topics is not None, "the model of the topics watches, too"
        self._check_order()
        for id, subscription in self.topics.subscriptions.items():
            lost = sorted(subscription.wanted.difference(self._times_of.get(id, ()), self.topics.expired))
            if lost:
                self.fail(f"{len(lost)} messages never reached subscription {id}, the first is {lost[0]}")


class TotalDestinations(TotalTopic):
    """The history of queues and topics together."""

    promise = "total history"

    def at_quiet(self, facts: dict[int, int]) -> None:
        super().at_quiet(facts)
        assert self.topics is not None, "the model watches, too"
        for queue in self.topics.queues.values():
            places = queue.live.union(queue.acknowledged, queue.dead) - self.topics.worn_out
            lost = sorted(
                place
                for body, place in self._confirmed.items()
                if place in places and body not in self._number_of
            )
            if lost:
                self.fail(f"{len(lost)} confirmed messages were never delivered, the first is {lost[0]}")
