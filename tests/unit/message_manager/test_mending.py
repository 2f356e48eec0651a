"""Damaged records come back from another replica; meanwhile nothing wrong is read, and nothing is skipped."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import Alarm, CopyRecord, Mend, Send
from antiphon.bus.messages import BatchGet, BatchReply, Data, digest_of
from antiphon.bus.ports import Location, Record
from antiphon.errors import Damaged
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.mending import ASK_AGAIN_NS
from antiphon.message_manager.state.acknowledgements import ACKNOWLEDGEMENTS
from tests.browsing import browse, numbered, shown
from tests.unit.message_manager.channel import AT_ONCE, Channel, Client, MemoryPayloads

MID = MemoryPayloads.HEAD[0]


class Rotting(MemoryPayloads):
    """Payloads of which some cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.rotten: set[Location] = set()

    def read(self, location: Location) -> memoryview:
        if location in self.rotten:
            raise Damaged(f"segment-{location.segment:08}", location.offset, "it does not verify")
        return super().read(location)

    def record(self, location: Location) -> Record:
        payload = self.read(location)
        return Record(*self.HEAD, digest_of(*self.HEAD, payload), payload)

    def copied(self, index: int) -> Location | None:
        raise AssertionError("the message manager copies nothing")

    def location_of(self, first: int) -> Location | None:
        raise AssertionError("the message manager knows places of its own")

    def forget_copies(self, upto: int) -> None:
        raise AssertionError("the message manager copies nothing")


class Stage:
    """A queue with three batches on replica 1, which has the replicas 2 and 3 to ask."""

    def __init__(self, peers: tuple[int, ...] = (1, 2, 3)) -> None:
        self.channel = Channel()
        self.payloads = Rotting()
        self.manager = MessageManager("a", 1, self.payloads, AT_ONCE, peers)
        self.client = client = Client()
        self.channel.order(client.open())
        self.queue = self.channel.create("orders")
        for number in range(3):
            self.channel.order(client.publish(self.queue, [b"body %d" % number]))
        self.follow()
        queue = self.manager.state.directory.get(self.queue)
        assert queue is not None
        self.index, self.live = queue.index, queue.live
        self.firsts = [number for start, stop in queue.live for number in range(start, stop)]
        self.places = [self.index.find(first).location for first in self.firsts]
        self.manager.flush(0, 0)

    def follow(self) -> None:
        for entry, payload in self.channel.log:
            if entry.first > self.manager.applied:
                place = self.payloads.keep(payload) if payload is not None else None
                self.manager.apply(0, 0, entry, memoryview(payload) if payload is not None else None, place)

    def browse(self, now_ns: int = 0) -> list[object]:
        self.manager.receive(now_ns, 9, browse(self.queue))
        return list(self.manager.flush(now_ns, 0))

    def envelope(self, number: int) -> Data:
        payload = bytes(MemoryPayloads.read(self.payloads, self.places[number]))
        return Data(MID, 3, 1, digest_of(MID, 3, 1, payload), payload)


def pages(effects: list[object]) -> list[list[bytes]]:
    replies = [one.message for one in effects if isinstance(one, Send)]
    return [
        [body for _, body in numbered(shown(reply))] for reply in replies if isinstance(reply, m.RangeReply)
    ]


def asked(effects: list[object]) -> list[Send]:
    return [one for one in effects if isinstance(one, Send) and isinstance(one.message, BatchGet)]


def test_a_damaged_record_is_asked_for_by_its_destination_and_its_first_number() -> None:
    stage = Stage()
    stage.payloads.rotten.add(stage.places[1])
    said = stage.browse()
    assert pages(said) == [[b"body 0"]], "the page ends before it"
    assert [type(one) for one in said if not isinstance(one, Send)] == [Alarm]
    (question,) = asked(said)
    assert question.message == BatchGet((stage.queue,), (stage.firsts[1],))
    assert question.to in (2, 3)


def test_it_is_asked_of_one_replica_after_the_other_until_it_comes() -> None:
    stage = Stage()
    stage.payloads.rotten.add(stage.places[1])
    (first,) = asked(stage.browse())
    assert stage.manager.next_deadline_ns() == ASK_AGAIN_NS
    (second,) = asked(list(stage.manager.flush(ASK_AGAIN_NS, 0)))
    assert {first.to, second.to} == {2, 3}


def test_what_comes_is_written_anew_and_whoever_waited_goes_on() -> None:
    stage = Stage()
    stage.payloads.rotten.add(stage.places[0])
    said = stage.browse()
    assert pages(said) == [], "a page that would begin with it waits"
    data = stage.envelope(0)
    stage.manager.receive(0, 2, BatchReply((stage.queue,), (stage.firsts[0],), (data,)))
    (mend,) = stage.manager.flush(0, 0)
    assert mend == Mend(stage.places[0], CopyRecord(MID, 3, 1, data.digest, bytes(data.payload)))
    stage.manager.relocated(stage.places[0], stage.payloads.keep(bytes(data.payload)))
    assert stage.manager.next_deadline_ns() == 0, "there is something to say"
    assert pages(list(stage.manager.flush(0, 0))) == [[b"body 0", b"body 1", b"body 2"]]


@pytest.mark.parametrize("change", ["payload", "length", "batch", "name"])
def test_what_is_not_the_envelope_it_was_is_not_taken(change: str) -> None:
    stage = Stage()
    stage.payloads.rotten.add(stage.places[0])
    stage.browse()
    data, first = stage.envelope(0), stage.firsts[0]
    payload = bytes(data.payload)
    if change == "payload":
        data = Data(MID, 3, 1, data.digest, payload[:-1] + b"!")
    elif change == "length":
        payload += b"!"
        data = Data(MID, 3, 1, digest_of(MID, 3, 1, payload), payload)
    elif change == "batch":
        payload = bytes(len(payload))
        data = Data(MID, 3, 1, digest_of(MID, 3, 1, payload), payload)
    else:
        first += 1
    stage.manager.receive(0, 2, BatchReply((stage.queue,), (first,), (data,)))
    assert list(stage.manager.flush(0, 0)) == []


def test_what_nobody_needs_any_more_is_not_asked_for() -> None:
    stage = Stage()
    stage.payloads.rotten.add(stage.places[0])
    stage.browse()
    stage.channel.order(stage.client.ack(stage.queue, (stage.firsts[0], stage.firsts[0] + 1)))
    stage.follow()
    said = list(stage.manager.flush(ASK_AGAIN_NS, 0))
    assert asked(said) == []
    assert pages(said) == [[b"body 1", b"body 2"]], "the page that waited for it"
    assert asked(list(stage.manager.flush(2 * ASK_AGAIN_NS, 0))) == []


def test_a_replica_answers_with_what_it_can_read_and_mends_what_it_cannot() -> None:
    stage = Stage()
    stage.payloads.rotten.add(stage.places[1])
    stage.manager.receive(0, 3, BatchGet((stage.queue,) * 4, (*stage.firsts, 999)))
    said = list(stage.manager.flush(0, 0))
    (answer,) = [one for one in said if isinstance(one, Send) and isinstance(one.message, BatchReply)]
    assert answer.to == 3
    assert answer.message.firsts == (stage.firsts[0], stage.firsts[2]), "never: it does not exist"
    assert answer.message.items[0].payload == stage.envelope(0).payload
    assert asked(said), "its own it asks for"


def test_a_node_that_is_alone_has_nobody_to_ask_and_stops() -> None:
    stage = Stage(peers=(1,))
    stage.payloads.rotten.add(stage.places[0])
    with pytest.raises(Damaged, match="is damaged at byte"):
        stage.browse()


def test_what_is_not_committed_is_asked_for_under_destination_0_and_written_anew() -> None:
    stage = Stage()
    number = stage.channel.order(stage.client.tx_publish(stage.queue, [b"a", b"b", b"c"]))
    stage.follow()
    place = stage.manager.state.transactions.uncommitted.index.find(number).location
    payload = bytes(stage.payloads.read(place))
    stage.payloads.rotten.add(place)
    stage.manager.damaged(place, Damaged("segment-00000001", place.offset, "it does not verify"))
    (question,) = asked(list(stage.manager.flush(0, 0)))
    assert question.message == BatchGet((0,), (number,))

    data = Data(MID, 3, 1, digest_of(MID, 3, 1, payload), payload)
    stage.manager.receive(0, question.to, BatchReply((0,), (number,), (data,)))
    (mend,) = [one for one in stage.manager.flush(0, 0) if isinstance(one, Mend)]
    assert mend.place == place
    copy = stage.payloads.keep(payload)
    stage.manager.relocated(place, copy)
    assert stage.manager.state.transactions.uncommitted.index.find(number).location == copy
    stage.channel.order(stage.client.tx_commit(1, 3))
    stage.follow()
    assert pages(stage.browse())[-1][-3:] == [b"a", b"b", b"c"]


def test_another_replica_is_given_what_is_not_committed() -> None:
    stage = Stage()
    number = stage.channel.order(stage.client.tx_publish(stage.queue, [b"a", b"b"]))
    stage.follow()
    stage.manager.receive(0, 2, BatchGet((0, 0), (number, number + 1)))
    (reply,) = [one.message for one in stage.manager.flush(0, 0) if isinstance(one, Send)]
    assert isinstance(reply, BatchReply) and (reply.destinations, reply.firsts) == ((0,), (number,))


def test_what_is_acknowledged_and_held_is_mended_like_the_rest() -> None:
    stage = Stage()
    first = stage.firsts[0]
    stage.channel.order(stage.client.hold("reader", first, stage.queue))
    stage.channel.order(stage.client.ack(stage.queue, (first, first + 1)))
    stage.follow()
    data = stage.envelope(0)
    stage.payloads.rotten.add(stage.places[0])
    stage.manager.damaged(stage.places[0], Damaged("segment-00000001", 0, "it does not verify"))
    (question,) = asked(list(stage.manager.flush(0, 0)))
    assert question.message == BatchGet((stage.queue,), (first,))
    stage.manager.receive(0, question.to, BatchReply((stage.queue,), (first,), (data,)))
    (mend,) = [one for one in stage.manager.flush(0, 0) if isinstance(one, Mend)]
    copy = stage.payloads.keep(bytes(data.payload))
    stage.manager.relocated(mend.place, copy)
    assert stage.index.find(first).location == copy


def test_an_acknowledgement_that_is_kept_is_mended_if_it_is_one() -> None:
    stage = Stage()
    first = stage.firsts[0]
    stage.channel.order(stage.client.hold("auditor", first, acks=True))
    number = stage.channel.order(stage.client.ack(stage.queue, (first, first + 1)))
    stage.follow()
    log = stage.manager.state.holds.acknowledgements
    place = log.index.find(number).location
    payload = bytes(stage.payloads.read(place))
    stage.payloads.rotten.add(place)
    stage.manager.damaged(place, Damaged("segment-00000001", place.offset, "it does not verify"))
    (question,) = asked(list(stage.manager.flush(0, 0)))
    assert question.message == BatchGet((ACKNOWLEDGEMENTS,), (number,))

    for wrong in (bytes(len(payload)), payload):
        data = Data(MID, 3, 1, digest_of(MID, 3, 1, wrong), wrong)
        stage.manager.receive(0, question.to, BatchReply((ACKNOWLEDGEMENTS,), (number,), (data,)))
        mends = [one for one in stage.manager.flush(0, 0) if isinstance(one, Mend)]
        assert [mend.place for mend in mends] == ([place] if wrong == payload else [])
    stage.manager.relocated(place, stage.payloads.keep(payload))
    assert log.index.find(number).location != place


def test_another_replica_is_given_what_is_kept_for_a_holder() -> None:
    stage = Stage()
    first = stage.firsts[0]
    stage.channel.order(stage.client.hold("auditor", first, acks=True))
    number = stage.channel.order(stage.client.ack(stage.queue, (first, first + 1)))
    stage.follow()
    names = (stage.queue, ACKNOWLEDGEMENTS), (first, number)
    stage.manager.receive(0, 2, BatchGet(*names))
    (reply,) = [one.message for one in stage.manager.flush(0, 0) if isinstance(one, Send)]
    assert isinstance(reply, BatchReply) and (reply.destinations, reply.firsts) == names
