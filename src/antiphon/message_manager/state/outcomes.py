"""Outcomes: the numbers of the log that did not do what they asked, so that any replica can tell.

OCM1  Outcomes are a part of the state: the same on every replica, in its digest and its checkpoints.
OCM2  All outcomes above `floor` are here; those below are forgotten, and no replica can vouch for them.
OCM3  The number of outcomes is bounded by OUTCOMES_MAX, not by history.

Outcomes under the numbers of a session are in the session's row.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from antiphon.wire.commands import Outcome, read_outcomes, write_outcomes
from antiphon.wire.primitives import Reader, Writer

OUTCOMES_MAX: Final = 16_384
"""More than the windows of many producers hold on their way. A producer that asks for older outcomes orders
its envelope again, and the sessions in it recognise repeated commands."""

PAGE_MAX: Final = 1_024
"""Outcomes in one message."""


class Outcomes:
    __slots__ = ("_firsts", "_rows", "floor")

    def __init__(self) -> None:
        self.floor = 0
        self._rows: list[Outcome] = []
        # For bisection.
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def last(self) -> int:
        """The first number of the newest outcome, 0 while there is none."""
        return self._firsts[-1] if self._firsts else 0

    def note(self, outcome: Outcome) -> None:
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
        """The outcomes behind `after`: from which number, through which number, and the rows.

        The page begins later where outcomes are forgotten, and ends before `upto` where there are too many.
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
        return self._rows[bisect_left(self._firsts, first) : bisect_right(self._firsts, last)]

    def must_be_said(self, after: int) -> bool:
        """Whether the outcomes behind `after` must be announced before they are forgotten.

        A quarter of the table: the next envelope may bring another quarter, and a half goes at once.
        """
        return (len(self._firsts) - bisect_right(self._firsts, after)) * 4 > OUTCOMES_MAX

    def newest(self, most: int) -> int:
        """The number behind which there are at most so many outcomes."""
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
