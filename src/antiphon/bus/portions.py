"""Portions: what a sequencer submitted and has not called committed yet, cut as it was submitted.

Where it sits
    reign  ->  PORTIONS  ->  CommitSubmit, and later Commit

What it promises
    P1  What is committed is told whole, once and in order, in portions of bounded length.
    P2  As a rule they are those in which it was submitted: then everybody has read their bytes already
        (`entries.read_entries`), and nobody encodes them twice. Cuts that are many and small are made one:
        what a message costs it costs however little it says.

What it leaves to others
    Which entries are committed is the reign's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from antiphon.bus.messages import Entries, Entry

_PORTION_MIN: Final = 16


class Portions:
    """What is on its way between the two messages."""

    def __init__(self, most: int) -> None:
        """So many entries a message may have."""
        self._most = most
        self._portions: deque[Entries] = deque()

    def cut(self, entries: Sequence[Entry]) -> list[Entries]:
        """Portions of what is to be submitted."""
        most = self._most
        cut = [Entries.of(entries[start : start + most]) for start in range(0, len(entries), most)]
        self._portions += cut
        return cut

    def take(self, entries: tuple[Entry, ...]) -> Sequence[tuple[Entry, ...]]:
        """Portions of what is committed: the next entries of all, whether they were submitted here or not."""
        taken: list[Entries] = []
        while entries and self._portions and self._portions[0][-1].first <= entries[-1].first:
            taken.append(self._portions.popleft())
        are_these = bool(taken) and taken[0][0].first == entries[0].first
        are_these = are_these and sum(map(len, taken)) == len(entries)
        if are_these and (len(taken) == 1 or len(entries) >= len(taken) * _PORTION_MIN):
            return taken
        return [entries[start : start + self._most] for start in range(0, len(entries), self._most)]
