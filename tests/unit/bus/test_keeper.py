"""A keeper, step by step: what is written when, what is synced where, and what is told of room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.bus import effects as bus
from antiphon.bus.keeper import (
    CheckpointFile,
    Do,
    Keeper,
    KeeperEffect,
    KeeperSettings,
    Sync,
    Tell,
    Work,
)
from antiphon.bus.ports import JournalCounter
from antiphon.errors import Damaged, NoSpace, StorageFailed
from antiphon.ids import Mid
from antiphon.journal.format import (
    PAGE,
    Settings,
    checkpoint_name,
    checkpoint_numbers,
    payload_digest,
    segment_name,
)
from antiphon.journal.journal import REST_SEGMENTS, Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location

MS = 1_000_000
SEGMENT = 64 * PAGE
SMALL = Settings(segment_bytes=SEGMENT, order_blocks=16)
DEFAULTS = KeeperSettings()
QUICK = DEFAULTS.quick_ns - 1


class SmallDisk(MemoryDisk):
    """Has room for a segment, or for a checkpoint, only while the test says so."""

    has_room = True

    def create(self, name: str, size: int) -> None:
        if not self.has_room:
            raise NoSpace(f"there is no room for {name}")
        super().create(name, size)


class Records:
    """Refers to the records that a test names."""

    def __init__(self) -> None:
        self.live: dict[int, list[Location]] = {}
        self.moved: list[tuple[Location, Location]] = []
        self.spoilt: list[Location] = []

    def live_bytes_by_segment(self) -> dict[int, int]:
        return {segment: sum(place.length for place in places) for segment, places in self.live.items()}

    def records_in(self, segment: int) -> list[Location]:
        return self.live.get(segment, [])

    def relocated(self, old: Location, new: Location) -> None:
        self.moved.append((old, new))

    def damaged(self, place: Location, error: Damaged) -> None:
        self.spoilt.append(place)


class Cellar:
    """A keeper, the threads it believes to have, and everything it told. Syncs and work wait for the test."""

    def __init__(self, **settings: int) -> None:
        self.disk = SmallDisk()
        Journal.format(self.disk, SMALL, b"d" * 16, 1, "test")
        self.journal, found = Journal.open(self.disk, SMALL)
        self.journal.prepare_spare()
        self.now_ns = 0
        self.counter = JournalCounter()
        self.records = Records()
        self.keeper = Keeper(
            self.journal, found, self.counter, self.records, self.now_ns, KeeperSettings(**settings)
        )
        self.told: list[bus.Event] = []
        self.logged: list[str] = []
        self.syncs: list[Sync] = []
        self.works: list[Work] = []

    def do(self, effects: list[KeeperEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell(bus.Alarm(event)):
                    self.logged.append(event.text)
                case Tell(event):
                    self.told.append(event)
                case Sync():
                    self.syncs.append(effect)
                case Do(work):
                    self.works.append(work)

    def append(self, *records: Any) -> int:
        for record in records:
            self.keeper.take(bus.Append(self.counter.next(), record))
        return self.counter.last

    def write(self, *records: Any) -> int:
        """A step that appends these; the index of the last."""
        index = self.append(*records)
        self.flush()
        return index

    def ask(self, *effects: bus.Effect) -> None:
        """A step that asks for these."""
        for effect in effects:
            self.keeper.take(effect)
        self.flush()

    def flush(self) -> None:
        self.do(self.keeper.flush(self.now_ns))

    def sync(self, took_ns: int = QUICK) -> bool:
        """The oldest sync ends; whether it was in place."""
        ticket, is_in_place = self.syncs.pop(0)
        self.disk.sync(ticket.files)
        self.do(self.keeper.synced(self.now_ns, ticket, took_ns))
        return is_in_place

    def work(self) -> Work:
        """The worker does the oldest of its work."""
        work = self.works.pop(0)
        work.run()
        self.do(self.keeper.done(self.now_ns, work))
        return work

    def settle(self) -> None:
        """Everything that is under way ends."""
        while self.syncs or self.works:
            self.sync() if self.syncs else self.work()

    def wait(self, ns: int) -> None:
        """Time passes, and everything that becomes due ends."""
        end = self.now_ns + ns
        while (due := self.keeper.next_deadline_ns()) <= end:
            self.now_ns = max(self.now_ns, due)
            self.do(self.keeper.tick(self.now_ns))
            self.settle()
        self.now_ns = end

    def all_of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def synced(self) -> int:
        return max((event.index for event in self.all_of(bus.Synced)), default=0)

    @property
    def spaces(self) -> list[tuple[bool, bool, bool]]:
        return [(one.is_low, one.is_tight, one.is_full) for one in self.all_of(bus.SpaceChanged)]

    @property
    def segments(self) -> int:
        return len([name for name in self.disk.list_files() if name.startswith(("segment-", "spare-"))])

    def placed(self) -> list[int]:
        return [mid.pseq for mid, _ in self.journal.payloads.unplaced()]


def data(number: int, size: int = 10) -> bus.DataRecord:
    mid, payload = Mid(1, 1, number), bytes(size)
    return bus.DataRecord(mid, 0, 1, payload_digest(mid, 0, 1, payload), payload)


def order(number: int) -> bus.OrderRecord:
    return bus.OrderRecord(b"order", number)


def checkpoint(n: int, *segments: int) -> bus.WriteCheckpoint:
    return bus.WriteCheckpoint(n, b"d" * 16, b"the state", segments)


# --- syncs -------------------------------------------------------------------------------------------


def test_a_disk_of_which_nothing_is_known_is_synced_beside_the_loop_and_a_quick_one_in_place() -> None:
    cellar = Cellar()
    cellar.write(order(1))
    assert cellar.sync() is False
    cellar.settle()
    index = cellar.write(order(2))
    assert cellar.synced < index, "it is not durable before the sync has ended"
    assert cellar.sync() is True
    assert cellar.synced == index


def test_nothing_is_synced_in_place_while_another_sync_is_under_way() -> None:
    cellar = Cellar(in_place_bytes_max=PAGE)
    cellar.write(order(1))
    cellar.settle()
    large = cellar.write(data(1, 2 * PAGE))
    behind = cellar.write(order(2))
    assert [one.is_in_place for one in cellar.syncs] == [False, False]
    merged = cellar.syncs[0].ticket.merge(cellar.syncs[1].ticket)
    cellar.syncs.clear()
    cellar.do(cellar.keeper.synced(0, merged, QUICK))
    assert (cellar.synced, large) == (behind, behind - 1)
    cellar.settle()
    cellar.write(order(3))
    assert cellar.sync() is True, "one sync has served both"


def test_a_disk_is_quick_when_its_last_syncs_were() -> None:
    cellar = Cellar()
    slow, most = DEFAULTS.quick_ns, DEFAULTS.slow_syncs_max

    def is_quick_after(*times_ns: int) -> list[bool]:
        """Was the sync in place that followed one which took so long?"""
        found = []
        for took_ns in times_ns:
            cellar.sync(took_ns)
            cellar.write(bus.SuperblockRecord(1, 1))
            found.append(cellar.syncs[0].is_in_place)
        return found

    cellar.write(bus.SuperblockRecord(1, 1))
    assert is_quick_after(slow) == [False]
    assert is_quick_after(QUICK) == [True]
    assert is_quick_after(*[slow] * most) == [True] * (most - 1) + [False]
    assert is_quick_after(QUICK) == [True]
    # Whoever waited in the loop stood still for so long; once is enough.
    assert is_quick_after(DEFAULTS.stall_ns) == [False]
    assert is_quick_after(QUICK) == [True]


def waiting_for_entries() -> Cellar:
    """A keeper with a quick disk, whose envelopes are to wait for their entries."""
    cellar = Cellar()
    for number in range(1, 20):
        cellar.write(order(number))
        cellar.settle()
    cellar.ask(bus.DataWaits(True))
    return cellar


def test_envelopes_wait_for_their_entries_as_long_as_a_sync_takes() -> None:
    cellar = waiting_for_entries()
    began = cellar.now_ns
    cellar.write(data(1))
    assert not cellar.syncs
    due = cellar.keeper.next_deadline_ns()
    assert QUICK * 3 // 4 < due - began <= QUICK
    cellar.now_ns = due - 1
    last = cellar.write(data(2))
    assert cellar.keeper.next_deadline_ns() == due, "the first does not wait longer for the second"
    cellar.do(cellar.keeper.tick(due - 1))
    assert not cellar.syncs
    cellar.do(cellar.keeper.tick(due))
    assert [one.ticket.upto_index for one in cellar.syncs] == [last]


@pytest.mark.parametrize("is_together", [False, True])
def test_an_entry_takes_the_envelopes_that_wait_into_its_sync(is_together: bool) -> None:
    cellar = waiting_for_entries()
    if is_together:
        last = cellar.write(data(1), order(20))
    else:
        cellar.write(data(1))
        last = cellar.write(order(20))
    assert [one.ticket.upto_index for one in cellar.syncs] == [last]
    cellar.settle()
    cellar.now_ns += QUICK // 2
    cellar.write(data(2))
    assert not cellar.syncs
    assert cellar.keeper.next_deadline_ns() > cellar.now_ns + QUICK * 3 // 4, "the next one waits anew"


def test_envelopes_do_not_wait_unless_they_are_to() -> None:
    cellar = waiting_for_entries()
    cellar.ask(bus.DataWaits(False))
    last = cellar.write(data(1))
    assert [one.ticket.upto_index for one in cellar.syncs] == [last]


def test_on_a_slow_disk_too_an_entry_takes_its_envelope_into_its_sync() -> None:
    cellar = waiting_for_entries()
    cellar.write(order(20))
    cellar.sync(DEFAULTS.stall_ns)
    cellar.settle()
    cellar.write(data(1))
    assert not cellar.syncs
    last = cellar.write(order(21))
    assert [one.ticket.upto_index for one in cellar.syncs] == [last]


@pytest.mark.parametrize("too_many", [0, 1])
def test_many_bytes_of_envelopes_do_not_wait(too_many: int) -> None:
    cellar = waiting_for_entries()
    cellar.write(data(1, DEFAULTS.in_place_bytes_max + too_many))
    assert len(cellar.syncs) == too_many


def test_the_end_of_a_sync_takes_the_envelopes_that_came_meanwhile_into_the_next() -> None:
    cellar = waiting_for_entries()
    cellar.write(order(20))
    last = cellar.write(data(1))
    assert len(cellar.syncs) == 1
    cellar.sync()
    assert [one.ticket.upto_index for one in cellar.syncs] == [last]


def test_a_flush_that_nobody_asked_anything_of_does_nothing() -> None:
    cellar = Cellar()
    cellar.write(order(1))
    cellar.settle()
    assert not cellar.keeper.is_asked
    assert cellar.keeper.flush(0) == []


def test_when_nothing_more_is_written_the_journal_notes_how_far_it_was_synced() -> None:
    cellar = Cellar()
    cellar.write(data(1), order(1))
    cellar.settle()
    cellar.wait(DEFAULTS.idle_ns - 1)
    cellar.write(order(2))
    cellar.settle()
    writes = cellar.disk.writes
    cellar.wait(1)
    assert cellar.disk.writes == writes, "something was written meanwhile"
    cellar.wait(DEFAULTS.idle_ns)
    assert cellar.disk.writes > writes
    writes = cellar.disk.writes
    cellar.wait(DEFAULTS.pulse_ns // 2)
    assert cellar.disk.writes == writes, "once is enough"


def test_after_a_failure_nothing_is_told_and_nothing_accepted() -> None:
    cellar = Cellar()
    cellar.write(order(1))
    cellar.ask(checkpoint(7))
    ((ticket, _),) = cellar.syncs
    cellar.keeper.fail("the disk is gone")
    assert cellar.keeper.is_over
    assert cellar.keeper.synced(0, ticket, QUICK) == []
    assert cellar.keeper.tick(10 * DEFAULTS.pulse_ns) == []
    assert all(cellar.keeper.done(0, work) == [] for work in cellar.works)
    with pytest.raises(StorageFailed, match="the disk is gone"):
        cellar.write(order(2))


# --- room --------------------------------------------------------------------------------------------


def use_the_spare(cellar: Cellar, less: int = 0) -> None:
    """Fill the first segment and go on in the second, the last one there is room for."""
    room = SEGMENT - cellar.journal.geometry.data_start - less
    cellar.write(data(1, room - 2 * PAGE))
    cellar.settle()
    cellar.disk.has_room = False
    cellar.write(data(2, 2 * PAGE))
    cellar.settle()
    cellar.wait(DEFAULTS.low_flush_ns)
    assert cellar.synced == cellar.counter.last


def test_room_is_told_to_be_low_then_tight_then_records_wait() -> None:
    cellar = Cellar()
    use_the_spare(cellar)
    assert cellar.spaces == [(True, False, False)] and "no room for" in cellar.logged[0]
    # Half of the last segment: publishing stops altogether.
    half = (SEGMENT - cellar.journal.geometry.data_start) // 2
    last = cellar.write(data(3, half))
    cellar.wait(DEFAULTS.low_flush_ns)
    # A little more; whoever is told sees it at the end of a step.
    last = cellar.write(order(1))
    assert cellar.spaces[-1] == (True, True, False)
    cellar.wait(DEFAULTS.low_flush_ns)
    assert cellar.synced == last
    # And then records wait, in their order.
    late = [cellar.write(data(4, half)), cellar.write(data(5)), cellar.write(order(2))]
    assert cellar.keeper.is_full and cellar.spaces[-1] == (True, True, True)
    cellar.wait(DEFAULTS.no_space_retry_ns)
    assert cellar.synced == last
    cellar.disk.has_room = True
    cellar.wait(2 * DEFAULTS.no_space_retry_ns)
    assert cellar.synced == late[-1] and cellar.placed()[-2:] == [4, 5]
    assert cellar.spaces[-1] == (False, False, False) and not cellar.keeper.is_full


def test_of_several_at_once_those_for_which_there_is_no_room_wait() -> None:
    cellar = Cellar()
    use_the_spare(cellar)
    third = (SEGMENT - cellar.journal.geometry.data_start) // 3
    # The first two fit into what is left; the rest waits, and what is said later waits behind it.
    first = cellar.counter.last + 1
    cellar.write(data(3, third), data(4, third), data(5, third), data(6), order(1))
    assert cellar.keeper.is_full
    later = cellar.write(data(7), data(8), order(2))
    cellar.wait(DEFAULTS.low_flush_ns)
    assert cellar.synced == first + 1
    cellar.disk.has_room = True
    cellar.wait(2 * DEFAULTS.no_space_retry_ns)
    assert cellar.synced == later
    assert cellar.placed() == [1, 2, 3, 4, 5, 6, 7, 8], "each once, in their order"


def test_while_room_is_low_that_is_said_again_and_everything_is_still_written_though_less_often() -> None:
    cellar = Cellar()
    use_the_spare(cellar)
    cellar.wait(3 * DEFAULTS.no_space_retry_ns)
    assert set(cellar.spaces) == {(True, False, False)} and len(cellar.spaces) >= 4
    indexes = [cellar.write(data(3)), cellar.write(data(4))]
    assert not cellar.syncs
    cellar.do(cellar.keeper.tick(cellar.now_ns + DEFAULTS.low_flush_ns))
    assert [one.ticket.upto_index for one in cellar.syncs] == indexes[-1:], "one page of the order for both"


def test_a_journal_that_is_too_long_is_told_and_comes_to_rest_when_checkpoints_are_there() -> None:
    cellar = Cellar()
    for number in range(1, 60):
        cellar.write(order(number))
        cellar.settle()
    cellar.wait(DEFAULTS.pulse_ns)
    assert cellar.all_of(bus.SpaceHeld) == [bus.SpaceHeld(cellar.journal.segments_in_use)]
    assert cellar.segments > REST_SEGMENTS
    cellar.ask(checkpoint(59), checkpoint(60))
    cellar.settle()
    assert bus.CheckpointWritten(60) in cellar.told
    assert len(cellar.all_of(bus.SpaceHeld)) == 1, "the log still begins where it did"
    cellar.ask(bus.ReleaseSpace(59))
    assert cellar.all_of(bus.SpaceHeld)[-1] == bus.SpaceHeld(0)
    cellar.wait(5 * DEFAULTS.pulse_ns)
    assert cellar.segments <= REST_SEGMENTS


def test_a_journal_that_checkpoints_help_tells_that_it_has_fewer_segments() -> None:
    """Else the sequencer, which takes a few checkpoints in vain, would give up before all is freed."""
    cellar = Cellar()
    for number in range(1, 60):
        cellar.write(order(number))
        cellar.settle()
    cellar.wait(DEFAULTS.pulse_ns)
    before = cellar.journal.segments_in_use
    cellar.ask(checkpoint(20), checkpoint(21))
    cellar.settle()
    cellar.ask(bus.ReleaseSpace(20))
    after = cellar.journal.segments_in_use
    assert 2 < after < before
    assert cellar.all_of(bus.SpaceHeld) == [bus.SpaceHeld(before), bus.SpaceHeld(after)]


def test_while_room_is_low_a_segment_that_is_kept_for_a_few_records_calls_for_checkpoints() -> None:
    """A topic keeps some messages for days. Else they would hold their segment, and publishers, as long."""
    cellar = Cellar()
    cellar.write(data(9))
    cellar.settle()
    use_the_spare(cellar, less=PAGE)
    places = [
        cellar.journal.payloads.place(Mid(1, 1, number), first, 1)
        for first, number in enumerate((9, 1, 2), 1)
    ]
    assert places[0].segment == 1
    cellar.records.live[1] = places[:1]
    cellar.ask(checkpoint(10, 1), checkpoint(11, 1))
    cellar.settle()
    cellar.ask(bus.ReleaseSpace(11))
    cellar.wait(DEFAULTS.pulse_ns)
    assert cellar.records.moved, "the record is copied"
    assert cellar.all_of(bus.SpaceHeld)[-1] == bus.SpaceHeld(cellar.journal.segments_in_use)
    cellar.disk.has_room = True
    cellar.wait(2 * DEFAULTS.no_space_retry_ns)
    assert cellar.spaces[-1] == (False, False, False)
    assert cellar.all_of(bus.SpaceHeld)[-1] == bus.SpaceHeld(0), "with room a few records may hold a segment"


def test_a_checkpoint_frees_what_only_older_files_need_though_the_base_stays() -> None:
    """A node that joined begins at a base behind the files that it had; no base moves for the next one."""
    cellar = Cellar()
    cellar.write(data(1), order(1))
    cellar.settle()
    cellar.journal.payloads.place(Mid(1, 1, 1), 1, 1)
    while cellar.journal.end_position.segment == 1:
        cellar.write(order(2))
        cellar.settle()
    cellar.ask(checkpoint(3, 1), checkpoint(9))
    cellar.settle()
    cellar.ask(bus.ReleaseSpace(9))
    cellar.settle()
    assert segment_name(1) in cellar.disk.list_files(), "checkpoint 3 refers to it"
    cellar.ask(checkpoint(12))
    cellar.settle()
    # The node is told that the checkpoint is written, and takes a step.
    cellar.flush()
    cellar.wait(5 * DEFAULTS.pulse_ns)
    assert checkpoint_numbers(cellar.disk.list_files()) == [9, 12]
    assert segment_name(1) not in cellar.disk.list_files()


def test_what_an_envelope_kept_goes_when_the_envelope_is_given_up_though_the_base_stays() -> None:
    """It may be given up long after the base has passed its segment, as when its time is over."""
    cellar = Cellar()
    cellar.write(data(1), order(1))
    cellar.settle()
    for number in range(2, 60):
        cellar.write(order(number))
        cellar.settle()
    cellar.ask(checkpoint(59), checkpoint(60))
    cellar.settle()
    cellar.ask(bus.ReleaseSpace(59))
    cellar.wait(5 * DEFAULTS.pulse_ns)
    assert segment_name(1) in cellar.disk.list_files() and cellar.segments > REST_SEGMENTS
    cellar.journal.payloads.discard(Mid(1, 1, 1))
    cellar.wait(5 * DEFAULTS.pulse_ns)
    assert cellar.segments <= REST_SEGMENTS
    assert not cellar.all_of(bus.SpaceHeld), "no checkpoint is needed for that"


# --- checkpoints ---------------------------------------------------------------------------------------


def test_the_file_of_a_checkpoint_is_begun_when_what_was_written_before_it_is_durable() -> None:
    cellar = Cellar()
    cellar.append(order(1))
    cellar.ask(checkpoint(7, 1))
    cellar.work()
    assert not cellar.works, "its state may refer to what is not durable"
    cellar.sync()
    assert isinstance(cellar.works[0], CheckpointFile)
    assert not cellar.all_of(bus.CheckpointWritten)
    cellar.work()
    assert cellar.all_of(bus.CheckpointWritten) == [bus.CheckpointWritten(7)]
    assert checkpoint_numbers(cellar.disk.list_files()) == [7]


def test_how_long_a_checkpoint_took_is_told_without_its_wait_for_the_records_before_it() -> None:
    cellar = Cellar()
    cellar.now_ns = 5 * MS
    cellar.append(order(1))
    cellar.ask(checkpoint(7, 1))
    cellar.now_ns += 3_600_000 * MS
    cellar.sync()
    cellar.now_ns += 20 * MS
    cellar.settle()
    cellar.now_ns += 1_000 * MS
    cellar.ask(checkpoint(8, 1))
    cellar.now_ns += 30 * MS
    cellar.settle()
    assert cellar.all_of(bus.CheckpointWritten) == [
        bus.CheckpointWritten(7, 20),
        bus.CheckpointWritten(8, 30),
    ]


def test_a_checkpoint_for_which_there_is_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cellar = Cellar()

    def refuse(*_: object) -> None:
        raise NoSpace("there is no room for a checkpoint")

    monkeypatch.setattr(cellar.journal, "write_checkpoint", refuse)
    cellar.ask(checkpoint(7))
    cellar.work()
    assert cellar.told == [bus.CheckpointFailed(7)]


def test_a_checkpoint_that_is_fetched_is_read_once_and_stays_until_it_is_not_held() -> None:
    cellar = Cellar()
    cellar.write(order(1))
    for n in (5, 6, 7):
        cellar.ask(checkpoint(n))
    cellar.settle()
    cellar.ask(bus.HoldCheckpoints(5), bus.ReleaseSpace(7))
    cellar.settle()
    assert checkpoint_numbers(cellar.disk.list_files()) == [5, 6, 7]
    reads: list[int] = []
    read: Callable[[int], Any] = cellar.journal.read_checkpoint
    cellar.journal.read_checkpoint = lambda n: (reads.append(n), read(n))[1]  # type: ignore[method-assign]
    cellar.ask(bus.ReadCheckpoint(5, 0, 3, 2), bus.ReadCheckpoint(5, 4, 99, 2))
    cellar.settle()
    assert [bytes(one.data) for one in cellar.all_of(bus.CheckpointRead)] == [b"the", b"state"]
    assert reads == [5]
    cellar.ask(bus.HoldCheckpoints(0))
    cellar.settle()
    assert checkpoint_numbers(cellar.disk.list_files()) == [6, 7], "the two newest always stay"
    cellar.ask(bus.ReadCheckpoint(5, 0, 3, 2))
    cellar.settle()
    assert cellar.told[-1] == bus.CheckpointRead(5, 0, None, 2) and cellar.logged, "it is gone"


def test_a_rotten_checkpoint_and_one_that_is_not_there_are_told() -> None:
    cellar = Cellar()
    cellar.ask(checkpoint(7))
    cellar.settle()
    name = checkpoint_name(7)
    cellar.disk.write(name, cellar.disk.size(name) - 1, [b"?"])
    cellar.ask(bus.ReadCheckpoint(7, 0, 24, 3), bus.ReadCheckpoint(8, 0, 24, 3))
    cellar.settle()
    answers = [(one.n, one.data, one.to) for one in cellar.all_of(bus.CheckpointRead)]
    assert answers == [(7, None, 3), (8, None, 3)] and len(cellar.logged) == 2


def test_a_copy_is_written_and_can_be_read_where_it_lies() -> None:
    cellar = Cellar()
    index = cellar.write(bus.CopyRecord(*data(6)))
    cellar.settle()
    place = cellar.journal.payloads.copied(index)
    assert cellar.synced == index and place is not None
    assert cellar.journal.payloads.record(place)[:-1] == data(6)[:-1]


# --- records that are moved ----------------------------------------------------------------------------


def kept_for_one_record(cellar: Cellar) -> Location:
    """Segment 1 is kept for one record; the place of it."""
    cellar.write(data(1), order(1))
    cellar.settle()
    place = cellar.journal.payloads.place(Mid(1, 1, 1), 1, 1)
    cellar.records.live[place.segment] = [place]
    while cellar.journal.end_position.segment == place.segment:
        cellar.write(order(2))
        cellar.settle()
    cellar.ask(checkpoint(1, place.segment), checkpoint(2, place.segment))
    cellar.settle()
    return place


def test_a_segment_that_is_kept_for_little_is_emptied_behind_all_records_of_the_step() -> None:
    cellar = Cellar()
    place = kept_for_one_record(cellar)
    cellar.keeper.take(bus.ReleaseSpace(2))
    last = cellar.append(order(3))
    cellar.flush()
    ((old, new),) = cellar.records.moved
    assert old == place and new.segment > old.segment
    assert cellar.counter.last == last + 1
    cellar.settle()
    assert cellar.synced == last + 1


def test_at_most_so_much_is_moved_at_once() -> None:
    cellar = Cellar(relocated_bytes_max=5)
    kept_for_one_record(cellar)
    cellar.ask(bus.ReleaseSpace(2))
    assert not cellar.records.moved


def test_a_record_that_could_not_be_moved_takes_no_index() -> None:
    """A checkpoint waits for all indexes that were given: one without a record would never be durable."""
    cellar = Cellar()
    place = kept_for_one_record(cellar)
    cellar.records.live[place.segment] = [place._replace(offset=place.offset + PAGE)]
    last = cellar.counter.last
    cellar.ask(bus.ReleaseSpace(2))
    assert cellar.records.spoilt and cellar.counter.last == last
    cellar.ask(checkpoint(3))
    cellar.settle()
    assert cellar.told[-1] == bus.CheckpointWritten(3)


def test_a_record_that_came_from_another_node_takes_the_place_of_the_damaged_one() -> None:
    cellar = Cellar()
    place = kept_for_one_record(cellar)
    mended = bus.CopyRecord(*data(1))
    cellar.keeper.take(bus.Mend(place, mended))
    last = cellar.append(order(3))
    cellar.flush()
    ((old, new),) = cellar.records.moved
    assert old == place and bytes(cellar.journal.read(new)) == bytes(10)
    assert cellar.counter.last == last + 1


def test_very_slow_syncs_are_told_once_in_a_while_and_counted() -> None:
    cellar = waiting_for_entries()

    def slow_sync(number: int, after_ns: int) -> list[str]:
        cellar.now_ns += after_ns
        before = len(cellar.logged)
        cellar.write(order(number))
        cellar.sync(DEFAULTS.stall_ns)
        return cellar.logged[before:]

    assert slow_sync(20, 0) == ["slow syncs of the disk: 1, of up to 100 ms"]
    assert slow_sync(21, 1) == slow_sync(22, 1) == [], "to publish the event takes a sync, too"
    assert slow_sync(23, DEFAULTS.stall_told_ns) == ["slow syncs of the disk: 3, of up to 100 ms"]
