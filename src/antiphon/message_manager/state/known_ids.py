"""KnownIds: the applications' own ids of messages, as far as the destinations of a channel remember them.

KNI1  A message with an id that its destination remembers is not stored, whichever session sends it.
KNI2  An id is remembered from its message on. Its age counts from the next mark of log time; the first mark
      at which the age has reached the destination's window forgets it. Of more than `IDS_MAX` ids of a
      destination the oldest are forgotten.
KNI3  Ids are a part of the state: the same on every replica, in its digest and its checkpoints.
KNI4  A destination without ids costs nothing here.

An id is kept as its digest of 16 bytes, whatever its length.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from hashlib import blake2b
from typing import Final

from antiphon.batch import Batch, BatchRule, ColumnId
from antiphon.batch.layout import RULES_AT
from antiphon.errors import ProtocolError
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.settings import dedup_window_of
from antiphon.wire.commands import Outcome, OutcomeCode
from antiphon.wire.primitives import Buffer, Reader, Writer

IDS_MAX: Final = 262_144
"""Ids that one destination remembers: some 40 MB."""

ID_BYTES: Final = 16
_NO_ID: Final = bytes(ID_BYTES)
_DEDUP: Final = int(BatchRule.DEDUP)
_KNOWN: Final = int(OutcomeCode.KNOWN)


def row_ids(batch: Buffer) -> bytes:
    """The digests of the ids of a batch's rows, end to end, zeros for a row without one.

    Empty if no row has an id. Raises ProtocolError if the batch does not decode.
    """
    if not batch[RULES_AT] & _DEDUP:
        return b""
    # The client manager checked the contents when the batch came in.
    columns = Batch.decode(batch, trusted=True)
    column = columns.column(ColumnId.DEDUP_ID)
    assert column is not None, "a batch with the rule has the column"
    return b"".join(
        [
            blake2b(column.item(row), digest_size=ID_BYTES).digest() if column.is_present(row) else _NO_ID
            for row in range(columns.count)
        ]
    )


class _DestinationIds:
    """The ids that one destination remembers, with the numbers of their messages, in the order of these."""

    __slots__ = ("_last", "_marks", "_numbers", "window_ms")

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        # (through, time): all ids of messages up to this number were there at this log time.
        self._marks: deque[tuple[int, int]] = deque()
        self._last = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def note(self, id: bytes, number: int) -> int:
        """Remember the id of this message; returns the number of the first message with the id."""
        first = self._numbers.setdefault(id, number)
        if first == number:
            self._last = number
            if len(self._numbers) > IDS_MAX:
                self._numbers.popitem(last=False)
        return first

    def time_passed(self, now_ms: int) -> None:
        if self._is_unmarked:
            self._marks.append((self._last, now_ms))
        through = 0
        while self._marks and now_ms - self._marks[0][1] >= self.window_ms:
            through, _ = self._marks.popleft()
        numbers = self._numbers
        while numbers and next(iter(numbers.values())) <= through:
            numbers.popitem(last=False)
        oldest = next(iter(numbers.values()), 0)
        while self._marks and self._marks[0][0] < oldest:
            # Too many came, and its ids are forgotten.
            self._marks.popleft()

    @property
    def _is_unmarked(self) -> bool:
        """Did ids come since the last mark of log time?"""
        return not self._marks or self._marks[-1][0] < self._last

    def due_ms(self) -> int:
        """The log time at which an id is forgotten; 0 if log time must be marked first."""
        return 0 if self._is_unmarked else self._marks[0][1] + self.window_ms

    def write(self, writer: Writer) -> None:
        writer.i64(self.window_ms)
        writer.u64(self._last)
        count = len(self._numbers)
        writer.count(count)
        writer.raw(b"".join(self._numbers))
        writer.raw(struct.pack(f"<{count}Q", *self._numbers.values()))
        writer.count(len(self._marks))
        for through, time_ms in self._marks:
            writer.u64(through)
            writer.i64(time_ms)

    @classmethod
    def read(cls, reader: Reader) -> _DestinationIds:
        known = cls(reader.i64())
        known._last = reader.u64()
        count = reader.count(ID_BYTES + 8)
        digests = bytes(reader.raw(count * ID_BYTES))
        numbers = struct.unpack(f"<{count}Q", reader.raw(8 * count))
        for row, number in enumerate(numbers):
            known._numbers[digests[row * ID_BYTES : (row + 1) * ID_BYTES]] = number
        if len(known._numbers) != count or any(map(int.__ge__, numbers, numbers[1:])):
            raise ProtocolError("the ids of messages are out of order, or one is there twice")
        for _ in range(reader.count(8 + 8)):
            known._marks.append((reader.u64(), reader.i64()))
        return known


class KnownIds:
    __slots__ = ("_of",)

    def __init__(self) -> None:
        # By destination; only those that remember any.
        self._of: dict[int, _DestinationIds] = {}

    def count(self, destination: int) -> int:
        return len(self._of.get(destination, ()))

    def sift(self, store: Destination, ids: bytes, first: int, skip: int) -> tuple[Outcome, ...]:
        """Remember the ids of rows that have the numbers from `first` on; returns the outcomes of those rows
        whose id is known (KNI1).

        The first `skip` rows are left out: they are stored already, under other numbers.
        """
        known = self._of.get(store.id)
        if known is None:
            window_ms = dedup_window_of(store.settings)
            if not window_ms:
                return ()
            known = self._of[store.id] = _DestinationIds(window_ms)
        outcomes: list[Outcome] = []
        for row in range(skip, len(ids) // ID_BYTES):
            id, number = ids[row * ID_BYTES : (row + 1) * ID_BYTES], first + row
            if id == _NO_ID:
                continue
            original = known.note(id, number)
            if original == number:
                continue
            before = outcomes[-1] if outcomes else None
            if (
                before
                and before.first + before.count == number
                and before.original + before.count == original
            ):
                outcomes[-1] = before._replace(count=before.count + 1)
            else:
                outcomes.append(Outcome(number, 1, _KNOWN, original))
        if not known:
            del self._of[store.id]
        return tuple(outcomes)

    def altered(self, store: Destination) -> None:
        """Take over a changed window."""
        known = self._of.get(store.id)
        if known is not None:
            known.window_ms = dedup_window_of(store.settings)
            if not known.window_ms:
                self.deleted(store.id)

    def deleted(self, destination: int) -> None:
        self._of.pop(destination, None)

    def time_passed(self, now_ms: int) -> None:
        """Forget the ids that have become too old by log time (KNI2)."""
        for destination, known in list(self._of.items()):
            known.time_passed(now_ms)
            if not known:
                del self._of[destination]

    def due_ms(self) -> int | None:
        return min([known.due_ms() for known in self._of.values()], default=None)

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.count(len(self._of))
        for destination, known in sorted(self._of.items()):
            writer.u64(destination)
            known.write(writer)

    @classmethod
    def read(cls, reader: Reader) -> KnownIds:
        ids = cls()
        for _ in range(reader.count(8 + 8 + 8 + 4 + 4)):
            destination = reader.u64()
            ids._of[destination] = _DestinationIds.read(reader)
        return ids
