"""BatchReader: cuts pieces of stored batches, by numbers, without copying.

A few decoded batches are kept, because the rows of a batch are usually read one after the other, by one
consumer or by several in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from antiphon.batch import Batch
from antiphon.batch.layout import BATCH_BYTES_MAX, HEADER, VERSION, ColumnId
from antiphon.bus.messages import Piece, offsets_of
from antiphon.bus.ports import Location, Payloads
from antiphon.errors import Damaged
from antiphon.message_manager.state.destinations.index import StoredBatch
from antiphon.message_manager.state.destinations.source import Indexed, Stored
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Buffer


def looks_like_batch(data: Buffer, count: int) -> bool:
    if len(data) < HEADER.size:
        return False
    header = HEADER.unpack_from(data)
    return bool(header[0] == VERSION and header[4] == count and header[5] == len(data))


_NONE: Final = Ranges()


_TAKEN_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
"""Of rows taken here and there, which have offsets besides: they are to fit a batch with all their bits."""


class Cut(NamedTuple):
    """A piece, the number behind its last row, and the bytes that count against a consumer's credit.

    `numbers` are those of rows that were taken here and there; None: they are consecutive.
    """

    piece: Piece
    stop: int
    body_bytes: int
    numbers: Ranges | None = None


def _refuse(place: Location, error: Damaged) -> None:
    raise error


class BatchReader:
    """Reads stored batches through the journal's port.

    `note` hears of damaged records, and raises the error unless they can be mended.
    """

    __slots__ = ("_batches", "_batches_max", "_last", "_note", "_payloads")

    def __init__(
        self,
        payloads: Payloads,
        batches_max: int,
        note: Callable[[Location, Damaged], None] = _refuse,
    ) -> None:
        self._payloads = payloads
        self._batches_max = batches_max
        self._note = note
        # In the order of their last use, the latest last.
        self._batches: dict[tuple[int, int, int, int], Batch] = {}
        # The record applied or read last: the next batch usually lies in the same record.
        self._last: tuple[Location, memoryview] | None = None

    def applied(self, location: Location, payload: memoryview) -> None:
        """Keep a record that was just verified: its messages are delivered without another read."""
        self._last = (location, payload)

    def cut(
        self,
        store: Stored,
        start: int,
        stop: int,
        bytes_max: int,
        given_before: Ranges = _NONE,
        given_through: int = 0,
        among: Ranges | None = None,
    ) -> Cut | None:
        """A piece of the messages from `start` on, before `stop`, of up to `bytes_max`; at least one message.

        All rows of a piece are of one batch and have the same redelivery count. Rows in `given_before`, and
        all through `given_through`, count as redelivered at least once. Where there are some `among` which to
        choose, only these are cut; `start` is one of them. None: damaged, and will be mended.
        """
        stored = store.index.find(start)
        stop = min(stop, stored.stop)
        redelivery_count = 0
        if among is not None:
            among = among.clip(start, stop)
        if store.counts or given_before or start <= given_through:
            runs = [(start, stop)] if among is None else list(among)
            redelivery_count, stop = _alike(store, runs, given_before, given_through)
        batch = self.batch(stored)
        if batch is None:
            return None
        if among is not None:
            numbers = among.clip(start, stop)
            if len(numbers) > 1:
                return _take(batch, stored.first, numbers, redelivery_count, bytes_max)
            stop = numbers.last + 1
        row = start - stored.first
        count = min(stop - start, max(1, batch.rows_within(row, bytes_max)))
        bodies = batch.column(ColumnId.BODY)
        assert bodies is not None and bodies.offsets is not None, "a batch has a column of bodies"
        body_bytes = bodies.offsets[row + count] - bodies.offsets[row]
        buffers = batch.slice(row, row + count).buffers()
        return Cut(Piece(start, count, redelivery_count, buffers), start + count, body_bytes)

    def row(self, store: Indexed, number: int) -> tuple[Batch, int] | None:
        """The batch of a message, and its row there. None: damaged, and will be mended."""
        stored = store.index.find(number)
        batch = self.batch(stored)
        return None if batch is None else (batch, number - stored.first)

    def pass_on(self, store: Indexed, start: int, stop: int) -> tuple[int, list[bytes | memoryview]] | None:
        """The messages from `start` on of one batch, before `stop`: the number behind them, and their bytes.

        All of these numbers must be stored. A whole batch is not decoded. None: damaged, and will be mended.
        """
        stored = store.index.find(start)
        stop = min(stop, stored.stop)
        if stop - start != stored.count:
            batch = self.batch(stored)
            if batch is None:
                return None
            row = start - stored.first
            return stop, batch.slice(row, row + stop - start).buffers()
        found = self._bytes(stored)
        return None if found is None else (stop, [found])

    def batch(self, stored: StoredBatch) -> Batch | None:
        """A stored batch; None: damaged, and will be mended."""
        segment, record_offset, _, identity = stored.location
        key = (segment, record_offset, stored.offset, identity)
        batch = self._batches.pop(key, None)
        if batch is None:
            found = self._bytes(stored)
            if found is None:
                return None
            # The client manager checked the texts when the batch came in.
            batch = Batch.decode(found, trusted=True)
            if len(self._batches) >= self._batches_max:
                del self._batches[next(iter(self._batches))]
        self._batches[key] = batch
        return batch

    def _bytes(self, stored: StoredBatch) -> memoryview | None:
        """None: damaged, which is noted."""
        try:
            payload = self._payload(stored.location)
        except Damaged as error:
            self._note(stored.location, error)
            return None
        return payload[stored.offset : stored.offset + stored.length]

    def _payload(self, location: Location) -> memoryview:
        if self._last is None or self._last[0] != location:
            self._last = (location, self._payloads.read(location))
        return self._last[1]

    def let_go(self) -> None:
        self._batches.clear()
        self._last = None


def _alike(
    store: Stored, runs: list[tuple[int, int]], given_before: Ranges, given_through: int
) -> tuple[int, int]:
    """The redelivery count of the first of these messages, and the number before which all have the same."""
    count, upto = -1, 0
    for start, stop in runs:
        redelivery_count, end = store.counts.run(start, stop) if store.counts else (0, stop)
        if start <= given_through:
            redelivery_count = max(1, redelivery_count)
            end = min(end, given_through + 1)
        elif part := given_before.clip(start, end):
            is_before = part.first == start
            redelivery_count = max(is_before, redelivery_count)
            end = next(iter(part))[1] if is_before else part.first
        if count not in (-1, redelivery_count):
            break
        count, upto = redelivery_count, end
        if end < stop:
            break
    return count, upto


def _take(batch: Batch, first: int, numbers: Ranges, redelivery_count: int, bytes_max: int) -> Cut:
    """A piece of rows that lie here and there in a batch, whose row 0 is number `first`."""
    sequences = list(numbers.numbers())
    rows = [number - first for number in sequences]
    count = max(1, batch.fitting(rows, min(bytes_max, _TAKEN_BYTES_MAX)))
    if count < len(rows):
        rows, sequences, numbers = rows[:count], sequences[:count], numbers.take(count)
    taken = batch.take(rows)
    offsets = offsets_of(sequences) if taken.has_gaps else b""
    bodies = taken.column(ColumnId.BODY)
    assert bodies is not None and bodies.offsets is not None, "a batch has a column of bodies"
    body_bytes = bodies.offsets[count] - bodies.offsets[0]
    piece = Piece(numbers.first, count, redelivery_count, taken.buffers(), offsets)
    return Cut(piece, numbers.last + 1, body_bytes, numbers)
