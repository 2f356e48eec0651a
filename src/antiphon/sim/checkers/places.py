"""Places: the envelopes that checkpoints refer to are durable and present; and no sound record is mended.

I22  at every checkpoint that is written, every segment that is used again or removed, and every start:
     each place that one of the two newest checkpoint files refers to is durable and holds that envelope
I23  a node asks others for a record only if something was damaged on its disk

I22 is looked for on the disk itself, past the journal.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.bus.messages import BatchGet, BusMessage
from antiphon.errors import Damaged
from antiphon.journal import checkpoints
from antiphon.journal.format import (
    PAGE,
    SEAL_BYTES,
    checkpoint_name,
    checkpoint_numbers,
    record_size,
    seed_of,
    segment_name,
)
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.ports import Location
from antiphon.journal.records import RecordReader
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import World


class Places(Checker):
    """Reads the two newest checkpoints of a disk, and the places they refer to."""

    promise = "I22 places"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # By node and number, with the file's checksum: each file is read once. A node that began with an
        # older file writes the later ones again, perhaps with other places.
        self._places: dict[tuple[int, int], tuple[bytes, tuple[Location, ...]]] = {}
        # Nodes whose present disk was damaged: unreadable places do not count there.
        self._damaged: set[int] = set()

    def on_files(self, node: int, disk: MemoryDisk, disk_id: bytes) -> None:
        newest = checkpoint_numbers(disk.list_files())[-checkpoints.KEPT_ALWAYS :]
        reader = RecordReader(disk, seed_of(disk_id))
        for n in newest:
            for place in self._places_of(node, disk, disk_id, n):
                for text in _what_is_wrong(disk, reader, place, is_damaged=node in self._damaged):
                    self.fail(f"{checkpoint_name(n)} of node {node} refers to {place}: {text}")

    def _places_of(self, node: int, disk: MemoryDisk, disk_id: bytes, n: int) -> tuple[Location, ...]:
        seal = disk.read(checkpoint_name(n), 0, SEAL_BYTES)
        known = self._places.get((node, n))
        if known is not None and known[0] == seal:
            return known[1]
        try:
            checkpoint = checkpoints.load(disk, disk_id, n)
        except Damaged:
            if node in self._damaged:
                return ()
            raise
        state = CheckpointState.decode(checkpoint.state)
        found = ChannelState.restore(state.manager_state).records()
        self._places[node, n] = (seal, found)
        return found

    def on_replaced(self, node: int) -> None:
        self._places = {key: places for key, places in self._places.items() if key[0] != node}
        self._damaged.discard(node)

    def on_damaged(self, node: int) -> None:
        self.on_replaced(node)
        self._damaged.add(node)


def _what_is_wrong(
    disk: MemoryDisk, reader: RecordReader, place: Location, *, is_damaged: bool
) -> Iterator[str]:
    name = segment_name(place.segment)
    if name not in disk.list_files():
        yield f"there is no {name}"
        return
    end = place.offset + record_size(place.length)
    pages = range(place.offset // PAGE, -(-end // PAGE))
    if unsynced := [page for page in disk.unsynced_pages(name) if page in pages]:
        yield f"its pages {unsynced} are not durable"
    try:
        reader.verify(place)
    except Damaged as error:
        if not is_damaged:
            yield error.text


class Mending(Checker):
    """No sound record is asked for."""

    promise = "I23 mending"
    hears = (BatchGet,)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._damaged: set[int] = set()

    def on_damaged(self, node: int) -> None:
        self._damaged.add(node)

    def on_sent(self, node: int, message: BusMessage) -> None:
        assert isinstance(message, BatchGet), "a message that was not asked for"
        if node not in self._damaged:
            names = list(zip(message.destinations, message.firsts, strict=True))[:3]
            self.fail(f"node {node} cannot read {names}, and nothing was damaged")
