"""A producer behind a bad line: whatever it hears twice, late or never, each envelope is confirmed once.

`Order` is the other side, written down as plainly as possible: it numbers what reaches it, one run after the
other, makes up outcomes, forgets the beginning of its log, and answers questions. Everything the producer
says and hears passes through a line that loses, repeats and reorders.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Effect,
    EnvelopeConfirmed,
    EnvelopeUncertain,
    Multicast,
    Received,
    Send,
    Submitted,
)
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason
from antiphon.bus.producer import BusProducer
from antiphon.ids import Mid, make_epoch
from antiphon.wire.commands import Outcome, OutcomeCode

NODE = 7
EPOCH = make_epoch(1, 1)
SERVERS = (1, 2)
CONFIG = GroupConfig.of(
    "main",
    (1, 2, NODE),
    commit_servers=SERVERS,
    data_servers=SERVERS,
    checkpoint_servers=SERVERS,
    candidates=SERVERS,
    fetch_entries_max=3,
    lifetime=30,
)


class Order:
    """The order, and what became of its numbers."""

    def __init__(self, random: Random, *, forgets: bool) -> None:
        self._random = random
        self._forgets = forgets
        self.entries: list[Entry] = []
        self.payloads: dict[int, bytes] = {}
        self.exceptions: list[Outcome] = []
        self.ledger = Ledger()
        self.last = 0
        self.base = 0
        self.floor = 0
        self.announced = 0
        self.number(EntryKind.PRIMARY_CLAIM)

    def number(self, kind: EntryKind, detail: bytes = b"", mid: Mid | None = None, count: int = 1) -> Entry:
        entry = Entry(self.last + 1, count, kind, mid or Mid(1, EPOCH, self.last + 1), 0, NO_DIGEST, detail)
        self.entries.append(entry)
        self.ledger.fold((entry,))
        self.last = entry.last
        return entry

    def happen(self) -> list[m.BusMessage]:
        """Something that is none of the producer's doing; what everybody hears of it."""
        match self._random.randrange(12):
            case 0:
                self.number(EntryKind.TICK)
            case 1 if (row := self.ledger.rows.get(NODE)) is not None:
                term = self._random.choice([EPOCH, EPOCH - 1])
                self.number(EntryKind.PRODUCER_FENCE, FenceDetail(NODE, row.pe, term).encode())
            case 2 if self._random.random() < 0.3:
                self.number(EntryKind.PRODUCER_OPEN, OpenDetail(NODE, self._random.randbytes(16)).encode())
            case 3 if self._forgets:
                self.base = self._random.choice(self.entries).last
            case 4 if self._forgets and self._random.random() < 0.3:
                self.floor = max(self.floor, self._random.choice(self.entries).last)
            case 5:
                return [self.applied(self.announced)]
        since = self._random.choice([self.announced, self.last])
        return [
            m.Heartbeat(EPOCH, self.last, 0, 1, self.last, True),
            m.Commit(EPOCH, tuple(entry for entry in self.entries if entry.first > since), self.last),
        ]

    def applied(self, after: int) -> m.Applied:
        after = max(after, self.floor)
        exceptions = tuple(one for one in self.exceptions if one.first > after)
        self.announced = self.last
        return m.Applied(EPOCH, self.last, exceptions, after, self.floor)

    def answer(self, message: m.BusMessage) -> list[m.BusMessage]:
        match message:
            case m.ProducerOpen(pid, run_id):
                row = self.ledger.rows.get(pid)
                if row is not None and row.run_id == run_id:
                    return [m.ProducerOpened(pid, run_id, row.pe)]
                return self._told(self.number(EntryKind.PRODUCER_OPEN, OpenDetail(pid, run_id).encode()))
            case m.Data():
                return self._take(message)
            case m.FetchId(first, most):
                if first <= self.base:
                    return [m.FetchIdReply((), self.last, self.base)]
                found = tuple(entry for entry in self.entries if entry.last >= first)[:most]
                return [m.FetchIdReply(found, self.last, self.base)]
            case m.AppliedGet(after):
                return [self.applied(after)] if after < self.last else []
            case m.ProducerStateGet(pid):
                row = self.ledger.rows.get(pid)
                if row is None:
                    return []
                numbers = (row.pe, row.last_pseq, row.last_seq, row.previous_pe, row.previous_last_pseq)
                return [m.ProducerState(pid, self.last, *numbers, row.run_id)]
        raise AssertionError(f"a producer says {message}")

    def _take(self, data: m.Data) -> list[m.BusMessage]:
        row = self.ledger.rows[NODE]
        if data.mid.pe != row.pe:
            return [m.ReportNack(EPOCH, data.mid, NackReason.FENCED, row.pe)]
        if data.mid.pseq <= row.last_pseq:
            return [m.ReportNack(EPOCH, data.mid, NackReason.DUPLICATE, row.last_seq)]
        if data.ts + CONFIG.lifetime < self.last + 1:
            return [m.ReportNack(EPOCH, data.mid, NackReason.EXPIRED)]
        if data.mid.pseq > row.last_pseq + 1:
            return []
        entry = self.number(EntryKind.DATA, mid=data.mid, count=data.count)
        self.payloads[entry.first] = bytes(data.payload)
        for number in range(entry.first, entry.last + 1):
            if self._random.random() < 0.2:
                self.exceptions.append(Outcome(number, 1, OutcomeCode.REFUSED, 0, f"number {number}"))
        return self._told(entry)

    def _told(self, entry: Entry) -> list[m.BusMessage]:
        told: list[m.BusMessage] = [m.Commit(EPOCH, (entry,), entry.last)]
        if self._random.random() < 0.7:
            told.append(self.applied(self.announced))
        return told


class Line:
    """A producer, the order, and what is on its way between them."""

    def __init__(self, seed: int, *, loss: float, forgets: bool) -> None:
        self.random = Random(seed)
        self.loss = loss
        self.order = Order(self.random, forgets=forgets)
        self.producer = BusProducer(CONFIG, NODE, self.random.randbytes(16))
        self.now_ns = 0
        self.submitted: dict[int, bytes] = {}
        self.confirmed: list[EnvelopeConfirmed] = []
        self.uncertain: list[int] = []
        self._to_order: list[m.BusMessage] = []
        self._to_producer: list[m.BusMessage] = []

    def submit(self) -> None:
        tag = len(self.submitted) + 1
        self.submitted[tag] = b"envelope %d" % tag
        self._perform(self.step(Submitted(tag, self.submitted[tag], self.random.randint(1, 3))))

    def step(self, *events: Submitted | Received) -> list[Effect]:
        return self.producer.step(self.now_ns, list(events))

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.now_ns += self.random.randrange(20 * MS)
            if self.random.random() < 0.3:
                self._put(self._to_producer, self.order.happen())
            for message in self._draw(self._to_order):
                self._put(self._to_producer, self.order.answer(message))
            heard = [Received(1, message) for message in self._draw(self._to_producer)]
            deadline = self.producer.next_deadline_ns()
            if heard or (deadline is not None and self.now_ns >= deadline):
                self._perform(self.step(*heard))

    def _put(self, line: list[m.BusMessage], messages: Sequence[m.BusMessage]) -> None:
        for message in messages:
            if self.random.random() >= self.loss:
                line += [message] * self.random.choice([1, 1, 2])

    def _draw(self, line: list[m.BusMessage]) -> list[m.BusMessage]:
        """Some of what is on its way, in any order if the line is bad."""
        if self.loss:
            self.random.shuffle(line)
        count = self.random.randint(0, len(line)) if self.loss else len(line)
        drawn = line[:count]
        del line[:count]
        return drawn

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Multicast(message) | Send(_, message):
                    self._put(self._to_order, [message])
                case EnvelopeConfirmed():
                    self._check(effect)
                case EnvelopeUncertain(tag):
                    self.uncertain.append(tag)

    def _check(self, confirmed: EnvelopeConfirmed) -> None:
        tag, first, count, exceptions = confirmed.tag, confirmed.first, confirmed.count, confirmed.exceptions
        assert self.order.payloads[first] == self.submitted[tag], "the numbers are another's"
        expected = [one for one in self.order.exceptions if first <= one.first < first + count]
        assert list(exceptions) == expected, f"envelope {tag} at {first}: another outcome"
        self.confirmed.append(confirmed)


@given(st.integers(0, 1 << 32), st.sampled_from([0.0, 0.1, 0.4]), st.booleans())
def test_each_envelope_is_confirmed_once_in_order_with_its_numbers_and_outcomes(
    seed: int, loss: float, forgets: bool
) -> None:
    line = Line(seed, loss=loss, forgets=forgets)
    for _ in range(line.random.randint(1, 12)):
        line.submit()
        line.run(line.random.randint(0, 30))
    line.loss, line.order._forgets = 0.0, False
    line.order._random = Random(1)
    for _ in range(60):
        line.run(20)
        if not line.producer.unconfirmed:
            break
    assert [one.tag for one in line.confirmed] == list(line.submitted), f"seed {seed}"
    twice = [tag for tag, payload in line.submitted.items() if _places(line.order, payload) > 1]
    assert set(twice) <= set(line.uncertain), "ordered twice, and nobody was told"
    if not forgets:
        assert not line.uncertain, "while everything can still be told, nothing is in doubt"


def _places(order: Order, payload: bytes) -> int:
    return sum(one == payload for one in order.payloads.values())
