"""Outcomes: which numbers of the log did not do what they asked, so that it can be told again.

Where it sits
    fold  ->  OUTCOMES  ->  manager  ->  APPLIED, to whoever produced what has these numbers

What it promises
    O1  They are part of the state: the same on every replica, in its digest and in its checkpoints. So
        any replica can answer for any other, also one that has just begun with a checkpoint.
    O2  Everything above `floor` is here; what is below has been forgotten, the oldest first, and no
        replica can vouch for it any more.
    O3  They are bounded by OUTCOMES_MAX, not by history.

What it leaves to others
    What became of a client's command under the numbers of its session is the session's row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from antiphon.wire.commands import Outcome, read_outcomes, write_outcomes
from antiphon.wire.primitives import Reader, Writer

OUTCOMES_MAX: Final = 16_384
"""Outcomes kept: more than those that the windows of many producers hold on their way. A producer that
asks for older ones orders its envelope again, and the sessions in it recognise what they have seen."""

PAGE_MAX: Final = 1_024
"""Outcomes in one message."""


class Outcomes:
    """The exceptions of the log above `floor`, by number."""

    __slots__ = ("_firsts", "_rows", "floor")

    def __init__(self) -> None:
        self.floor = 0
        self._rows: list[Outcome] = []
        # The first number of each, for bisection.
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last(self) -> int:
        """The first number of the newest, 0 while there is none."""
        return self._firsts[-1] if self._firsts else 0

    def note(self, outcome: Outcome) -> None:
        """The next number that did not do what it asked."""
        assert outcome.first > self.last, f"an outcome of {outcome.first} behind that of {self.last}"
        rows, firsts = self._rows, self._firsts
        if len(rows) == OUTCOMES_MAX:
            # A function of the rows alone, so all replicas forget the same.
            gone = rows[OUTCOMES_MAX // 2 - 1]
            self.floor = gone.first + gone.count - 1
            del rows[: OUTCOMES_MAX // 2]
            del firsts[: OUTCOMES_MAX // 2]
        rows.append(outcome)
        firsts.append(outcome.first)

    def page(self, after: int, upto: int) -> tuple[int, int, tuple[Outcome, ...]]:
        """What there is to tell of the numbers behind `after`: from where, how far, and the exceptions.

        It begins later where it has been forgotten, and ends before `upto` where it is too much at once.
        """
        after = max(after, self.floor)
        if after >= self.last:
            return after, upto, ()
        start = bisect_right(self._firsts, after)
        rows = self._rows[start : start + PAGE_MAX]
        if start + PAGE_MAX < len(self._rows):
            upto = rows[-1].first + rows[-1].count - 1
        return after, upto, tuple(rows)

    def within(self, first: int, last: int) -> list[Outcome]:
        """All that is known of these numbers."""
        return self._rows[bisect_left(self._firsts, first) : bisect_right(self._firsts, last)]

    def must_be_said(self, after: int) -> bool:
        """Is it time to tell what there is behind `after`, before any of it is forgotten?

        A quarter of the table: the next envelope may bring another quarter, and a half goes at once.
        """
        return (len(self._firsts) - bisect_right(self._firsts, after)) * 4 > OUTCOMES_MAX

    def newest(self, most: int) -> int:
        """Behind which number there are at most so many."""
        if len(self._rows) <= most:
            return self.floor
        before = self._rows[-most - 1]
        return before.first + before.count - 1

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.u64(self.floor)
        write_outcomes(writer, self._rows)

    @classmethod
    def read(cls, reader: Reader) -> Outcomes:
        outcomes = cls()
        outcomes.floor = reader.u64()
        outcomes._rows = list(read_outcomes(reader, Outcome))
        outcomes._firsts = [row.first for row in outcomes._rows]
        return outcomes
