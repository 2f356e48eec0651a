"""The checkers of what checkpoints refer to: a broken promise is seen, and a sound disk is not blamed."""

from __future__ import annotations

import pytest

from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.bus.messages import BatchGet
from antiphon.journal.format import payload_digest, record_size, segment_name
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location
from antiphon.message_manager.manager import MessageManager
from antiphon.sim.checkers.places import Mending, Places
from antiphon.sim.trace import Trace
from antiphon.sim.world import Violation, World
from tests.journals import DISK_ID, Desk
from tests.unit.message_manager.channel import Channel, Client


class Scene:
    """A disk with a queue of three messages and the checkpoint of it, as a checker sees it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.desk = Desk.new(self.disk)
        self.checker = Places(World(1, Trace()))
        self.manager = MessageManager("main", 1, self.desk.journal.payloads)
        channel, client = Channel(), Client()
        channel.order(client.open())
        queue = channel.create("orders")
        for number in range(3):
            channel.order(client.publish(queue, [b"body %d" % number]))
        for entry, payload in channel.log:
            location = None
            if payload is not None:
                self.desk.index += 1
                facts = (entry.mid, entry.ts, entry.count)
                digest = payload_digest(*facts, payload)
                location = self.desk.journal.append_data(self.desk.index, *facts, digest, payload)
            self.manager.apply(0, 0, entry, memoryview(payload) if payload is not None else None, location)
        self.ticket = self.desk.flush()

    def write_checkpoint(self) -> None:
        n = self.manager.applied
        digest, state, segments = self.manager.capture(n)
        whole = CheckpointState(n, b"the ledger", digest, state)
        self.desk.journal.write_checkpoint(n, whole.digest, whole.encode(), segments)

    def move_records(self) -> tuple[Location, ...]:
        """Copy all records to the end of the journal; where they lay before."""
        before = tuple(self.manager.state.records())
        for place in before:
            self.desk.index += 1
            self.manager.relocated(place, self.desk.journal.relocate(self.desk.index, place))
        self.desk.sync(self.desk.flush())
        return before

    def wipe(self, place: Location) -> None:
        self.disk.write(segment_name(place.segment), place.offset, [bytes(record_size(place.length))])
        self.disk.sync([segment_name(place.segment)])

    def look(self) -> None:
        self.checker.on_files(1, self.disk, DISK_ID)


def test_a_checkpoint_whose_records_are_durable_passes() -> None:
    scene = Scene()
    scene.desk.sync(scene.ticket)
    scene.write_checkpoint()
    scene.look()


def test_a_record_that_was_damaged_is_not_missed_and_one_that_is_not_durable_is() -> None:
    scene = Scene()
    scene.desk.sync(scene.ticket)
    scene.write_checkpoint()
    scene.wipe(scene.manager.state.records()[0])
    scene.checker.on_damaged(1)
    scene.look()

    scene.checker.on_replaced(1)
    with pytest.raises(Violation, match="refers to"):
        scene.look()


def test_a_checkpoint_that_is_durable_before_its_records_is_seen() -> None:
    scene = Scene()
    scene.write_checkpoint()
    with pytest.raises(Violation, match=r"I22 places: .* are not durable"):
        scene.look()


def test_a_segment_that_is_gone_or_was_used_again_is_seen() -> None:
    scene = Scene()
    scene.desk.sync(scene.ticket)
    scene.write_checkpoint()
    gone = scene.disk.copy()
    gone.remove(segment_name(1))
    with pytest.raises(Violation, match="there is no segment-00000001"):
        scene.checker.on_files(1, gone, DISK_ID)
    (place, *_) = scene.manager.state.records()
    scene.disk.write(segment_name(1), place.offset, [bytes(200)])
    scene.disk.sync([segment_name(1)])
    with pytest.raises(Violation, match="does not verify"):
        scene.look()


def test_a_checkpoint_that_is_written_again_is_judged_by_what_it_refers_to_now() -> None:
    scene = Scene()
    scene.desk.sync(scene.ticket)
    scene.write_checkpoint()
    scene.look()
    before = scene.move_records()
    scene.write_checkpoint()
    for place in before:
        scene.wipe(place)
    scene.look()
    scene.wipe(scene.manager.state.records()[0])
    with pytest.raises(Violation, match="does not verify"):
        scene.look()


def test_a_record_is_asked_for_only_where_something_was_damaged() -> None:
    checker = Mending(World(1, Trace()))
    checker.on_damaged(2)
    checker.on_sent(2, BatchGet((1,), (7,)))
    with pytest.raises(Violation, match=r"I23 mending: node 1 cannot read \[\(1, 7\)\]"):
        checker.on_sent(1, BatchGet((1,), (7,)))
