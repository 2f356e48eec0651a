"""The quick disk keeps the journal's contract: what a sync covers stays, what it does not may go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.bus import effects as bus
from antiphon.bus.effects import Append, DataRecord, OrderRecord, SuperblockRecord
from antiphon.bus.ports import JournalCounter
from antiphon.ids import Mid
from antiphon.sim.bus.disks import RecordDisk, RecordStorage
from antiphon.sim.bus.tally import Tally
from antiphon.sim.checkers.watch import Watch
from antiphon.sim.disk import DiskHabits
from antiphon.sim.world import MILLISECOND_NS, World


class Stage:
    """One node's disk, and what it was told."""

    def __init__(self, *styles: str, seed: int = 1) -> None:
        self.world = World(seed)
        habits = DiskHabits(sync_ns=MILLISECOND_NS, styles=styles or ("nothing",))
        self.disk = RecordDisk(self.world, 1, Watch([]), habits, bytes(16))
        self.told: list[bus.Event] = []
        self.index = self.life = 0
        self.storage = self.open()

    def open(self) -> RecordStorage:
        self.index = 0
        self.opened = self.disk.open()

        self.life += 1
        life = self.life

        def later(delay_ns: int, action: Callable[[], None]) -> None:
            self.world.after(delay_ns, lambda: action() if life == self.life else None)

        return self.opened.serve(JournalCounter(), Tally(1), self.told.append, later, lambda _: None)

    def write(self, *records: DataRecord | OrderRecord | SuperblockRecord) -> None:
        for record in records:
            self.index += 1
            self.storage.carry_out(Append(self.index, record))

    def wait(self, ms: int = 10) -> None:
        self.world.run(self.world.now_ns + ms * MILLISECOND_NS)

    def crash(self) -> None:
        self.disk.lose_power()
        self.storage = self.open()


def order(number: int) -> OrderRecord:
    return OrderRecord(b"%d" % number, number)


def data(number: int) -> DataRecord:
    return DataRecord(Mid(1, 1, number), 0, 1, bytes(16), b"payload %d" % number)


def test_a_sync_covers_what_was_written_before_it_began() -> None:
    stage = Stage()
    stage.write(order(1))
    stage.storage.flush()
    stage.write(order(2))
    stage.crash()
    assert stage.opened.found.order == []

    stage.write(order(1))
    stage.storage.flush()
    stage.write(order(2))
    stage.wait()
    assert stage.told == [bus.Synced(1), bus.Synced(2)]


def test_what_was_synced_is_found_again() -> None:
    stage = Stage()
    stage.write(order(1), data(1), SuperblockRecord(5, 6))
    stage.storage.flush()
    stage.wait()
    stage.write(order(2), data(2), SuperblockRecord(7, 7))
    stage.crash()

    found = stage.opened.found
    assert (found.order, found.promised, found.epoch_claimed) == ([b"1"], 5, 6)
    assert [bytes(stage.opened.payloads.read(one.location)) for one in found.data] == [b"payload 1"]


@pytest.mark.parametrize("seed", range(20))
def test_of_unsynced_order_records_a_prefix_is_kept(seed: int) -> None:
    stage = Stage("some", seed=seed)
    stage.write(*[order(number) for number in range(1, 6)])
    stage.crash()

    kept = [int(body) for body in stage.opened.found.order]
    assert kept == list(range(1, len(kept) + 1))


def test_of_unsynced_envelopes_any_may_be_kept() -> None:
    kept = set()
    for seed in range(30):
        stage = Stage("some", seed=seed)
        stage.write(data(1), data(2))
        stage.crash()
        kept.add(tuple([one.mid.pseq for one in stage.opened.found.data]))

    assert kept == {(), (1,), (2,), (1, 2)}


def test_order_records_go_from_the_front_and_only_below_the_base() -> None:
    stage = Stage()
    # The second record replaced what the first had said: if it went alone, that would be true again.
    stage.write(order(9), order(4), order(5), order(11))
    stage.storage.flush()
    stage.wait()
    stage.storage.carry_out(bus.ReleaseSpace(8))
    stage.crash()
    assert stage.opened.found.order == [b"9", b"4", b"5", b"11"]

    stage.storage.carry_out(bus.ReleaseSpace(9))
    stage.crash()
    assert stage.opened.found.order == [b"11"]


def test_a_checkpoint_is_reported_when_it_and_what_it_stands_on_are_durable() -> None:
    stage = Stage()
    stage.write(order(1))
    stage.storage.carry_out(bus.WriteCheckpoint(1, bytes(16), b"state", ()))
    stage.storage.flush()
    stage.wait()
    stage.storage.carry_out(bus.ReadCheckpoint(1, 2, 2, 7))
    stage.storage.carry_out(bus.ReadCheckpoint(9, 0, 2, 7))
    stage.wait()

    assert bus.CheckpointWritten(1) in stage.told
    assert stage.told[-2:] == [bus.CheckpointRead(1, 2, b"at", 7), bus.CheckpointRead(9, 0, None, 7)] or (
        stage.told[-2:] == [bus.CheckpointRead(9, 0, None, 7), bus.CheckpointRead(1, 2, b"at", 7)]
    )
