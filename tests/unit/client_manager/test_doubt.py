"""From client to fold and back, when nobody can tell any more what became of an envelope.

Client manager, producer and message manager are the real ones. Between them stands an order that commits
what it is sent, and of which the producer hears only what the test wants.
"""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    EnvelopeUncertain,
    Multicast,
    Received,
    Submitted,
)
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.producer import BusProducer
from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.client_manager.repetition import said_again
from antiphon.ids import make_epoch
from antiphon.wire import frames
from antiphon.wire.commands import CreateDestination, OutcomeCode
from tests.unit.client_manager.stage import KNOWN, Stage, publish
from tests.unit.message_manager.channel import Channel, Client, of_node, show

EPOCH = make_epoch(1, 1)
DOOR = 1


class Road:
    """One client, one door, one channel with the queue that the door knows."""

    def __init__(self) -> None:
        self.channel = Channel()
        while self.channel.next < KNOWN:
            self.channel.mark()
        made = self.channel.order(of_node(CreateDestination(kind=1, name="known", settings="{}")))
        assert made == KNOWN
        self.stage = Stage()
        self.producer = BusProducer(GroupConfig.of("a", (DOOR,)), DOOR, b"run of the door.", again=said_again)
        self.said: list[m.Data] = []
        self.doubted: list[int] = []
        self.hear(m.Heartbeat(EPOCH, self.last, 0, 1, self.last, True))
        self.stage.connect()
        self.session = self.stage.open_session()

    @property
    def opened(self) -> Entry:
        """The OPEN of the door."""
        return self.channel.log[-1][0]

    @property
    def last(self) -> int:
        return self.channel.next - 1

    def send(self, number: int, bodies: list[bytes]) -> None:
        effects = self.stage.say(1, publish(self.session, number, bodies))
        envelopes = [effect for effect in effects if isinstance(effect, SubmitEnvelope)]
        self._perform(
            self.producer.step(0, [Submitted(one.tag, one.payload, one.count) for one in envelopes])
        )

    def hear(self, *messages: m.BusMessage) -> None:
        self._perform(self.producer.step(0, [Received(1, message) for message in messages]))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Multicast(m.Data() as data):
                    self.said.append(data)
                case Multicast(m.ProducerOpen(pid, run_id)):
                    self.channel.open_producer(pid)
                    self.hear(m.ProducerOpened(pid, run_id, self.last))
                case EnvelopeCommitted() | EnvelopeConfirmed() | EnvelopeUncertain():
                    if isinstance(effect, EnvelopeUncertain):
                        self.doubted.append(effect.tag)
                    self.stage.tell(effect)
                case _:
                    pass

    def order(self) -> Entry:
        """What was said first gets its numbers and is applied; nobody hears of it yet."""
        data = self.said.pop(0)
        entry = Entry(self.channel.next, data.count, EntryKind.DATA, data.mid, data.ts, NO_DIGEST)
        self.channel.next += data.count
        show(self.channel.manager, self.channel.payloads, entry, bytes(data.payload))
        return entry

    def applied(self, after: int, floor: int = 0) -> m.Applied:
        exceptions = self.channel.manager.state.outcomes.page(after, self.last)[2]
        return m.Applied(EPOCH, self.last, exceptions, after, floor)

    def fall_asleep_and_wake(self) -> None:
        """The logs begin behind all of it: the producer learns that it is committed, and not as what."""
        row = m.ProducerState(DOOR, self.last, self.producer.pe, 1, self.last, 0, 0, bytes(16))
        self.hear(m.FetchIdReply((), self.last, self.last), row)

    def tell_all(self, after: int, *entries: Entry) -> None:
        self.hear(m.Commit(EPOCH, entries, entries[-1].last), self.applied(after, floor=after))

    @property
    def items(self) -> list[tuple[int, int, int, int]]:
        """What the client was told: number, count, code, sequence number."""
        confirms = self.stage.heard_of(frames.Confirm)
        return [item[:4] for confirm in confirms for item in confirm.items]

    @property
    def stored(self) -> int:
        return self.channel.manager.destinations()[0]["messages"]


@pytest.mark.parametrize("is_gone_from_the_logs", [False, True])
def test_a_doubtful_envelope_is_stored_once_and_confirmed_with_its_first_numbers(
    is_gone_from_the_logs: bool,
) -> None:
    road = Road()
    road.send(1, [b"a", b"b"])
    first = road.order()
    assert road.stored == 2
    if is_gone_from_the_logs:
        road.fall_asleep_and_wake()
    else:
        road.hear(m.Commit(EPOCH, (road.opened, first), first.last))
        road.hear(road.applied(first.last, floor=first.last))
    assert road.doubted == [1] and road.items == []
    again = road.order()
    road.hear(m.Commit(EPOCH, (again,), again.last), road.applied(first.last, floor=first.last))
    assert road.stored == 2, "the fold knows the session's numbers"
    assert road.items == [(1, 2, OutcomeCode.DUPLICATE, first.first + 1)], "behind the session's opening"
    road.send(3, [b"c"])
    last = road.order()
    road.hear(m.Commit(EPOCH, (last,), last.last), road.applied(again.last, floor=first.last))
    assert road.stored == 3
    assert road.items[1:] == [(3, 1, OutcomeCode.APPLIED, last.first)]


def test_what_is_ordered_once_more_opens_no_session_that_has_ended() -> None:
    """Its client went elsewhere, and was away for too long. The numbers of the session are forgotten."""
    road = Road()
    road.send(1, [b"a", b"b"])
    first = road.order()
    assert road.stored == 2
    road.channel.order(road.channel.expiry(road.session))
    assert road.channel.manager.state.sessions.get(road.session) is None
    road.fall_asleep_and_wake()
    assert road.doubted == [1]
    again = road.order()
    road.tell_all(again.first - 1, again)
    assert again.count == first.count
    assert road.stored == 2, "stored twice"
    assert [item[:3] for item in road.items] == [(1, 2, OutcomeCode.SESSION_UNKNOWN)], "it is uncertain"
    assert road.channel.manager.state.sessions.get(road.session) is None


def test_what_is_ordered_once_more_leaves_a_session_that_went_elsewhere_alone() -> None:
    road = Road()
    road.send(1, [b"a", b"b"])
    road.order()
    elsewhere = Client(session=road.session)
    road.channel.order(elsewhere.resume(2, known=1), pid=7)
    road.fall_asleep_and_wake()
    again = road.order()
    road.tell_all(again.first - 1, again)
    assert road.stored == 2
    assert [item[:3] for item in road.items] == [(1, 2, OutcomeCode.STALE)]
    row = road.channel.manager.state.sessions.get(road.session)
    assert row is not None and (row.generation, row.owner.pid, row.last) == (2, 7, 2)
