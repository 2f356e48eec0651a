"""Steps of a holder: what a joiner is given, and how long it is kept for it."""

from __future__ import annotations

from xxhash import xxh3_128_digest

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer, KeptCheckpoint
from antiphon.bus.effects import (
    Alarm,
    CheckpointRead,
    DataRecord,
    HoldCheckpoints,
    ReadCheckpoint,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    SpaceChanged,
    Spoilt,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.holder import Holder
from antiphon.bus.messages import NO_DIGEST, Place
from antiphon.bus.ports import Location, Record
from antiphon.errors import Damaged
from antiphon.ids import U64_MAX, Mid
from tests.stage import MemoryPayloads, data_of

CONFIG = GroupConfig.of(
    "main", (1, 2, 3), checkpoint_piece_bytes=100, stored_bytes_max=150, checkpoint_hold_ms=1_000
)
OLD, NEW = KeptCheckpoint(8, b"d" * 16, 250), KeptCheckpoint(16, b"e" * 16, 90)
GET, STORED_GET = m.CheckpointGet, m.StoredGet


class Spotty(MemoryPayloads):
    """Payloads of which some have rotted."""

    def __init__(self) -> None:
        super().__init__()
        self.rotten: list[int] = []

    def record(self, location: Location) -> Record:
        if location.offset in self.rotten:
            raise Damaged("segment-00000001", location.offset, "rotten")
        return super().record(location)


class Counter:
    """A holder that stands at a stable checkpoint."""

    def __init__(self, *found: KeptCheckpoint, stable_n: int = 8, base_n: int = 0) -> None:
        self.payloads = Spotty()
        self.server = CheckpointServer(CONFIG, 2, found, stable_n, base_n)
        self.holder = Holder(CONFIG, 2, self.payloads, self.server)

    def step(self, *events: RoleEvent | m.BusMessage, at_ms: int = 0) -> list[RoleEffect]:
        told = [event if not isinstance(event, GET | STORED_GET) else Received(3, event) for event in events]
        return self.holder.step(at_ms * MS, told)  # type: ignore[arg-type]

    def keep(self, pseq: int) -> tuple[Place, m.Data]:
        data = data_of(Mid(1, 1, pseq))
        self.payloads.write(DataRecord(data.mid, data.ts, data.count, data.digest, data.payload))
        return Place(*self.payloads.unplaced[data.mid]), data


def told(kept: KeptCheckpoint) -> Send:
    return Send(3, m.CheckpointChunk(kept.n, kept.digest, kept.size, 0, b""))


NOTHING = Send(3, m.CheckpointChunk(0, NO_DIGEST, 0, 0, b""))


def test_it_tells_what_it_has_and_only_what_is_stable() -> None:
    assert Counter(OLD, NEW).step(GET(0, 0)) == [told(OLD)], "the newer one is not known to be stable"
    assert Counter(OLD, stable_n=0).step(GET(0, 0)) == [NOTHING]


def test_a_piece_is_read_by_the_driver_and_given_with_its_checksum() -> None:
    counter = Counter(OLD)
    assert counter.step(GET(8, 200)) == [HoldCheckpoints(8), ReadCheckpoint(8, 200, 50, 3)]
    piece = b"p" * 50
    chunk = m.CheckpointChunk(8, OLD.digest, 250, 200, piece, xxh3_128_digest(piece))
    assert counter.step(CheckpointRead(8, 200, piece, 3)) == [Send(3, chunk)]
    assert counter.step(GET(8, 250)) == [told(OLD)], "there is nothing behind the end"


def test_what_is_fetched_stays_although_a_newer_one_is_stable_by_now() -> None:
    counter = Counter(OLD, NEW)
    counter.step(GET(8, 0))
    assert counter.server.held_n == 8, "the log is kept, too"
    counter.server.note_stable(16, NEW.digest)
    assert counter.step(GET(8, 100)) == [ReadCheckpoint(8, 100, 100, 3)]
    assert counter.step(GET(0, 0)) == [told(NEW)], "whoever begins now gets the newer one"


def test_the_checkpoint_with_which_its_own_log_begins_is_given_to_a_joiner_that_asks_for_it() -> None:
    counter = Counter(OLD, NEW, stable_n=16, base_n=8)
    assert counter.step(GET(0, 0)) == [told(NEW)]
    assert counter.step(GET(8, U64_MAX)) == [HoldCheckpoints(8), told(OLD)]
    assert counter.step(GET(8, 200)) == [ReadCheckpoint(8, 200, 50, 3)]
    counter.server.note_base(16)
    assert counter.server.at_base == NEW
    assert Counter(OLD, NEW, stable_n=16, base_n=16).step(GET(8, U64_MAX)) == [told(NEW)]


def test_it_stays_for_a_while_after_the_last_question_and_then_goes() -> None:
    counter = Counter(OLD, NEW)
    counter.step(GET(8, 0), at_ms=0)
    counter.step(GET(8, 0), at_ms=900)
    assert counter.holder.next_deadline_ns() == 1_900 * MS
    assert counter.step(at_ms=1_899) == []
    counter.server.note_stable(16, NEW.digest)
    assert counter.step(at_ms=1_900) == [HoldCheckpoints(0)]
    assert counter.server.held_n == 0
    assert counter.step(GET(8, 100), at_ms=1_901) == [told(NEW)], "it says what it has instead"
    gone = m.StoredReply(8, (), (), is_gone=True)
    assert counter.step(STORED_GET(8, ()), at_ms=1_901) == [Send(3, gone)]


def test_the_oldest_that_somebody_fetches_decides_what_is_held() -> None:
    counter = Counter(OLD, NEW)
    counter.step(GET(8, 0), at_ms=0)
    counter.server.note_stable(16, NEW.digest)
    assert counter.step(GET(16, 0), at_ms=500) == [ReadCheckpoint(16, 0, 90, 3)]
    assert counter.step(at_ms=1_000) == [HoldCheckpoints(16)]


def test_a_file_that_cannot_be_read_is_given_to_nobody_any_more() -> None:
    counter = Counter(OLD)
    counter.step(GET(8, 0))
    alarm_first = counter.step(CheckpointRead(8, 0, None, 3))
    assert [type(effect) for effect in alarm_first] == [HoldCheckpoints, Alarm, Send]
    assert alarm_first[2] == NOTHING
    assert counter.step(GET(0, 0)) == [NOTHING]


def test_the_records_it_refers_to_are_given_whole_as_many_as_fit() -> None:
    counter = Counter(OLD)
    kept = [counter.keep(pseq) for pseq in (1, 2, 3, 4)]
    size = kept[0][0].length
    assert 2 * size <= CONFIG.stored_bytes_max < 4 * size, "two or three fit"
    places = tuple(place for place, _ in kept)
    _, reply = counter.step(STORED_GET(8, places))
    assert isinstance(reply, Send) and isinstance(reply.message, m.StoredReply)
    fit = CONFIG.stored_bytes_max // size
    assert reply.message.places == places[:fit]
    assert reply.message.items == tuple(data for _, data in kept[:fit])


def test_a_record_that_cannot_be_read_is_passed_over() -> None:
    counter = Counter(OLD)
    (rotten, _), (place, data) = counter.keep(1), counter.keep(2)
    counter.payloads.rotten.append(rotten.offset)
    _, alarm, spoilt, reply = counter.step(STORED_GET(8, (rotten, place)))
    assert isinstance(alarm, Alarm)
    assert isinstance(spoilt, Spoilt) and spoilt.place == Location(*rotten), "the state may refer to it"
    assert reply == Send(3, m.StoredReply(8, (place,), (data,)))


def test_when_room_is_tight_nothing_is_kept_for_others() -> None:
    counter = Counter(OLD)
    counter.step(GET(8, 0))
    assert counter.step(SpaceChanged(True, True)) == [HoldCheckpoints(0)]


def test_whoever_is_no_node_of_the_channel_gets_nothing() -> None:
    assert Counter(OLD).holder.step(0, [Received(9, GET(0, 0)), Received(9, STORED_GET(8, ()))]) == []
