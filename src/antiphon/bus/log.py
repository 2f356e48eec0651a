"""CommitLog: the order of a channel in memory, from the base on.

Where it sits
    sequencer, commit_server  ->  LOG

What it promises
    P1  Entries are contiguous: each begins where the one before ends, the first after `base`.
    P2  `base` and `last` are always the last number of an entry, or 0.
    P3  Finding the entry that covers a number takes a bisection.

What it leaves to others
    Durability, epochs and what is committed are the commit server's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from antiphon.bus.messages import Entry


class CommitLog:
    """Entries base+1 … last."""

    __slots__ = ("_entries", "_firsts", "base", "last")

    def __init__(self, base: int = 0, entries: Iterable[Entry] = ()) -> None:
        self.base = base
        self.last = base
        self._entries: list[Entry] = []
        # Parallel to the entries, so that a bisection stays within C.
        self._firsts: list[int] = []
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entry: Entry) -> None:
        """The next entry."""
        assert entry.first == self.last + 1, f"an entry at {entry.first} was put behind {self.last}"
        assert entry.count >= 1, f"the entry at {entry.first} takes no number"
        self._entries.append(entry)
        self._firsts.append(entry.first)
        self.last = entry.first + entry.count - 1

    def extend(self, entries: Iterable[Entry]) -> None:
        """The next entries."""
        new = list(entries)
        firsts, counts = [entry.first for entry in new], [entry.count for entry in new]
        # Where each has to begin, and behind them where the next one does.
        *expected, following = accumulate(counts, initial=self.last + 1)
        assert firsts == expected, f"entries at {firsts} were put behind {self.last}"
        assert min(counts, default=1) >= 1, f"among the entries at {firsts} one takes no number"
        self._entries += new
        self._firsts += firsts
        self.last = following - 1

    def is_end(self, number: int) -> bool:
        """Is this the base or the last number of an entry?"""
        if number in (self.base, self.last):
            return True
        return self.base < number < self.last and self._entries[self._index(number)].last == number

    def covering(self, number: int) -> Entry | None:
        """The entry that the number belongs to."""
        return self._entries[self._index(number)] if self.base < number <= self.last else None

    def between(self, after: int, through: int, most: int | None = None) -> tuple[Entry, ...]:
        """The entries behind number `after` up to the one that ends at `through`, or the first `most`."""
        if after >= through:
            return ()
        assert self.base <= after, f"asked for what follows {after}, the log begins after {self.base}"
        assert self.is_end(after), f"{after} is inside an entry"
        assert through <= self.last and self.is_end(through), f"{through} is no end of an entry"
        start = self._index(after + 1)
        stop = len(self._entries) if through == self.last else self._index(through) + 1
        if most is not None:
            stop = min(stop, start + most)
        return tuple(self._entries[start:stop])

    def from_number(self, number: int, through: int, most: int) -> tuple[Entry, ...]:
        """The entry that covers `number` and those behind it, through `through`, at most so many."""
        if not self.base < number <= through:
            return ()
        start = self._index(number)
        return tuple(self._entries[start : min(self._index(through) + 1, start + most)])

    def common_through(self, after: int, entries: Sequence[Entry]) -> int:
        """Through which number the log agrees with these entries, which follow number `after`."""
        assert self.base <= after, f"asked what agrees behind {after}, the log begins after {self.base}"
        through = after
        start = self._index(after + 1) if after < self.last else len(self._entries)
        for ours, theirs in zip(self._entries[start:], entries, strict=False):
            if ours != theirs:
                break
            through = theirs.last
        return through

    def truncate(self, through: int) -> None:
        """Give up everything behind `through`."""
        assert self.base <= through and self.is_end(through), f"the log cannot be cut at {through}"
        keep = bisect_right(self._firsts, through)
        del self._entries[keep:]
        del self._firsts[keep:]
        self.last = through

    def forget(self, through: int) -> None:
        """A stable checkpoint covers everything through this number: the log begins behind it."""
        assert self.is_end(through), f"{through} is no end of an entry"
        assert self.base <= through <= self.last, f"the base cannot move from {self.base} to {through}"
        drop = bisect_right(self._firsts, through)
        del self._entries[:drop]
        del self._firsts[:drop]
        self.base = through

    def reset(self, base: int) -> None:
        """Everything through this number is known by other means, and what we have is not: begin anew."""
        assert base >= self.base, f"the base cannot move from {self.base} to {base}"
        self._entries.clear()
        self._firsts.clear()
        self.base = self.last = base

    def _index(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1
