"""What clients did and were told, and whether a message system may have behaved like that.

A history is a list of events in the order in which they were noted, in one process and one thread: so an
event that comes later in the list happened later, or at least was seen later. Bodies are unique, they say who
sent them and as which of his messages: `producer/17`.

A history proves something only if, at its end, everything was drained.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise


class Operation(Enum):
    """What a client does."""

    PUBLISH = "publish"
    RECEIVE = "receive"
    ACKNOWLEDGE = "acknowledge"


class Phase(Enum):
    """How far it is: begun; done; certainly not done; nobody knows."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One client said or heard something about some messages of one destination."""

    process: str
    operation: Operation
    phase: Phase
    destination: str
    bodies: tuple[str, ...]
    # Of those that are stored or received: the channel, and their numbers in its order.
    channel: str = ""
    sequences: tuple[int, ...] = ()
    # Of those that are received: were they said to be redelivered?
    redelivered: tuple[bool, ...] = ()
    at: float = 0.0


Claim = tuple[str, str]
"""A message: its destination and its body."""


@dataclass(slots=True)
class History:
    """All that happened so far."""

    events: list[Event] = field(default_factory=list)

    def note(
        self,
        process: str,
        operation: Operation,
        phase: Phase,
        destination: str,
        bodies: Iterable[str],
        *,
        channel: str = "",
        sequences: Iterable[int] = (),
        redelivered: Iterable[bool] = (),
    ) -> None:
        self.events.append(
            Event(
                process=process,
                operation=operation,
                phase=phase,
                destination=destination,
                bodies=tuple(bodies),
                channel=channel,
                sequences=tuple(sequences),
                redelivered=tuple(redelivered),
                at=time.monotonic(),
            )
        )


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What is wrong with a history; and some figures that are neither right nor wrong."""

    complaints: list[str] = field(default_factory=list)
    confirmed: int = 0
    received: int = 0
    # Messages of which nobody knew whether they are stored, and that came.
    recovered: int = 0
    # Deliveries beyond the first of a message.
    duplicates: int = 0
    # Where several share a destination: messages that came to one of them after later ones of their producer.
    overtaken: int = 0
    # The longest time in which nothing was confirmed.
    pause_seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.confirmed} confirmed, {self.received} received, {self.recovered} recovered, "
            f"{self.duplicates} delivered again, {self.overtaken} overtaken where several share, nothing "
            f"confirmed for {self.pause_seconds:.1f} s at most"
        )

    # What was said and heard of the first message of each complaint.
    stories: list[str] = field(default_factory=list)

    def complain(self, what: str, found: Sequence[object]) -> None:
        """The first few are enough to look for the cause."""
        if found:
            self.complaints.append(f"{what}: {len(found)}, first {list(found[:5])}")

    def complain_of(self, what: str, claims: Sequence[Claim], events: Sequence[Event]) -> None:
        self.complain(what, claims)
        self.stories += [_story(claim, events) for claim in claims[:1]]


@dataclass(slots=True)
class _Reading:
    """A history, walked through once."""

    attempted: set[Claim] = field(default_factory=set)
    confirmed: set[Claim] = field(default_factory=set)
    confirmed_at: list[float] = field(default_factory=list)
    refused: set[Claim] = field(default_factory=set)
    deliveries: Counter[Claim] = field(default_factory=Counter)
    # Under which numbers of which channel anybody saw a message.
    numbers: dict[Claim, set[tuple[str, int]]] = field(default_factory=dict)
    # When an acknowledgement was confirmed, and what came after that.
    acknowledged: Counter[Claim] = field(default_factory=Counter)
    after_acknowledgement: list[Claim] = field(default_factory=list)
    unmarked: list[Claim] = field(default_factory=list)
    # Who received what, in his order, and whether it was the first delivery to anybody.
    received_by: dict[tuple[str, str], list[tuple[str, bool]]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        claims = [(event.destination, body) for body in event.bodies]
        match event.operation, event.phase:
            case Operation.PUBLISH, Phase.INVOKE:
                self.attempted.update(claims)
            case Operation.PUBLISH, Phase.OK:
                self.confirmed.update(claims)
                self.confirmed_at.append(event.at)
                self._place(claims, event)
            case Operation.PUBLISH, Phase.FAIL:
                self.refused.update(claims)
            case Operation.RECEIVE, Phase.OK:
                self._place(claims, event)
                self._receive(event, claims)
            case Operation.ACKNOWLEDGE, Phase.OK:
                self.acknowledged.update(claims)

    def _place(self, claims: list[Claim], event: Event) -> None:
        if not event.sequences:
            # Confirmed by an error that says how many are; it does not say where.
            return
        for claim, number in zip(claims, event.sequences, strict=True):
            self.numbers.setdefault(claim, set()).add((event.channel, number))

    def _receive(self, event: Event, claims: list[Claim]) -> None:
        rows = self.received_by.setdefault((event.process, event.destination), [])
        for claim, is_marked in zip(claims, event.redelivered, strict=True):
            if claim in self.acknowledged:
                self.after_acknowledgement.append(claim)
            is_first = claim not in self.deliveries
            if not is_first and not is_marked:
                self.unmarked.append(claim)
            self.deliveries[claim] += 1
            rows.append((claim[1], is_first))


def judge(events: Iterable[Event], *, alone: Iterable[str] = ()) -> Verdict:
    """Is there anything that a message system must not do?

    `alone` are the destinations that one lasting consumer had for itself: there what is received for the
    first time is in order, whatever happened. Where several share, what was on its way to one of them when
    its client manager ended goes to another, after later ones: that is counted, and nobody's fault.
    """
    events = list(events)
    reading = _Reading()
    for event in events:
        reading.take(event)
    verdict = Verdict(
        confirmed=len(reading.confirmed),
        received=len(reading.deliveries),
        recovered=len(reading.deliveries.keys() - reading.confirmed),
        duplicates=reading.deliveries.total() - len(reading.deliveries),
    )
    pauses = [after - before for before, after in pairwise(reading.confirmed_at)]
    verdict.pause_seconds = max(pauses, default=0.0)
    received = reading.deliveries.keys()
    verdict.complain_of("confirmed and lost", sorted(reading.confirmed - received), events)
    verdict.complain_of("received and never sent", sorted(received - reading.attempted), events)
    verdict.complain_of("received and refused", sorted(received & reading.refused), events)
    late = reading.after_acknowledgement
    verdict.complain_of("delivered after its confirmed acknowledgement", late, events)
    verdict.complain_of("delivered again without saying so", reading.unmarked, events)
    twice = sorted(claim for claim, count in reading.acknowledged.items() if count > 1)
    verdict.complain_of("acknowledged twice", twice, events)
    _judge_numbers(verdict, reading)
    for (process, destination), rows in reading.received_by.items():
        disorder = _disorder(body for body, is_first in rows if is_first)
        if destination in alone:
            verdict.complain(f"out of order at {process}, {destination}", disorder)
        else:
            verdict.overtaken += len(disorder)
    return verdict


def _judge_numbers(verdict: Verdict, reading: _Reading) -> None:
    """A message has one number, a number one message, and the numbers of a producer rise with his count."""
    stored_twice = sorted((claim, numbers) for claim, numbers in reading.numbers.items() if len(numbers) > 1)
    verdict.complain("stored twice", stored_twice)
    holders: dict[tuple[str, int], list[Claim]] = {}
    by_producer: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for claim, numbers in reading.numbers.items():
        destination, body = claim
        producer, count = _parse(body)
        for number in numbers:
            holders.setdefault(number, []).append(claim)
            by_producer.setdefault((destination, producer), []).append((count, number[1]))
    shared = sorted((number, claims) for number, claims in holders.items() if len(claims) > 1)
    verdict.complain("two messages under one number", shared)
    for (destination, producer), places in by_producer.items():
        in_order = sorted(places)
        wrong = [(before, after) for before, after in pairwise(in_order) if before[1] >= after[1]]
        verdict.complain(f"stored out of order, {producer} to {destination}", wrong)


def _disorder(bodies: Iterable[str]) -> list[tuple[str, str]]:
    """Where a producer's message comes after a later one of his."""
    last: dict[str, tuple[int, str]] = {}
    found: list[tuple[str, str]] = []
    for body in bodies:
        producer, count = _parse(body)
        before = last.get(producer)
        if before is not None and before[0] >= count:
            found.append((before[1], body))
        else:
            last[producer] = (count, body)
    return found


def _parse(body: str) -> tuple[str, int]:
    producer, _, count = body.rpartition("/")
    return producer, int(count)


def _story(claim: Claim, events: Iterable[Event]) -> str:
    """All that anybody said or heard of a message."""
    destination, body = claim
    lines = []
    for event in events:
        if event.destination == destination and body in event.bodies:
            place = event.bodies.index(body)
            more = f" {event.sequences[place]}" if event.sequences else ""
            more += " redelivered" if event.redelivered and event.redelivered[place] else ""
            what = f"{event.operation.value} {event.phase.value}"
            lines.append(f"{event.at:.3f} {event.process}: {what}{more}")
    return f"{destination} {body}:\n  " + "\n  ".join(lines)
