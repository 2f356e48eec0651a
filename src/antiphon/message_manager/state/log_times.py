"""LogTimes: the log time at numbers of the log, for range reads that begin or end at a time.

LTM1  Marks are a part of the state: the same on every replica. Their numbers and times ascend.
LTM2  There are at most `MARKS_MAX` marks. Beyond that, every second mark of the older half goes.
LTM3  `at_time` never begins too late. It may begin too early, by the spacing of the marks there.
"""

from __future__ import annotations

import operator
import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Reader, Writer

MARKS_MAX: Final = 4_096


class LogTimes:
    __slots__ = ("_numbers", "_times")

    def __init__(self) -> None:
        self._numbers = array("Q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def mark(self, number: int, time_ms: int) -> None:
        """Note that command `number` moved log time; an equal or earlier time is ignored."""
        if self._times and time_ms <= self._times[-1]:
            return
        self._numbers.append(number)
        self._times.append(time_ms)
        if len(self._numbers) > MARKS_MAX:
            for column in (self._numbers, self._times):
                # The last mark of the older half stays, and the very first goes.
                column[: MARKS_MAX // 2] = column[1 : MARKS_MAX // 2 : 2]

    def at_time(self, time_ms: int) -> int:
        """The number behind all messages from before this time, by the marks (LTM3)."""
        at = bisect_left(self._times, time_ms)
        return self._numbers[at - 1] + 1 if at else 1

    def time_of(self, number: int) -> int:
        """The log time at this number, by the marks; 0 before the first mark."""
        at = bisect_right(self._numbers, number)
        return self._times[at - 1] if at else 0

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        count = len(self._numbers)
        writer.count(count)
        writer.raw(struct.pack(f"<{count}Q", *self._numbers))
        writer.raw(struct.pack(f"<{count}q", *self._times))

    @classmethod
    def read(cls, reader: Reader) -> LogTimes:
        marks = cls()
        count = reader.count(8 + 8)
        numbers = struct.unpack(f"<{count}Q", reader.raw(8 * count))
        times = struct.unpack(f"<{count}q", reader.raw(8 * count))
        for column in (numbers, times):
            if not all(map(operator.lt, column, column[1:])):
                raise ProtocolError("the marks of the log's time do not ascend")
        marks._numbers.extend(numbers)
        marks._times.extend(times)
        return marks
