"""The order of a channel in memory: `CommitLog` from the base on, and `Prefix`, the known committed part.

LOG1  The entries of a log are contiguous: each begins where the one before ends, the first after `base`.
LOG2  `base` and `last` are always the last number of an entry, or 0.
LOG3  The entries of a prefix come out once each, in order, none missing.
LOG4  Two messages that name different entries for one committed number stop the node: a committed entry is
      committed for ever, whichever epoch says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from antiphon.bus.messages import Entry

AHEAD_MAX = 4_096
"""Entries kept beyond a gap. Further ones are dropped, and fetched later."""


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
        assert entry.first == self.last + 1, f"an entry at {entry.first} was put behind {self.last}"
        assert entry.count >= 1, f"the entry at {entry.first} takes no number"
        self._entries.append(entry)
        self._firsts.append(entry.first)
        self.last = entry.first + entry.count - 1

    def extend(self, entries: Iterable[Entry]) -> None:
        new = list(entries)
        firsts, counts = [entry.first for entry in new], [entry.count for entry in new]
        # The first number that each entry must have, and the number behind the last.
        *expected, following = accumulate(counts, initial=self.last + 1)
        assert firsts == expected, f"entries at {firsts} were put behind {self.last}"
        assert min(counts, default=1) >= 1, f"among the entries at {firsts} one takes no number"
        self._entries += new
        self._firsts += firsts
        self.last = following - 1

    def is_end(self, number: int) -> bool:
        """Whether this is the base or the last number of an entry."""
        if number in (self.base, self.last):
            return True
        return self.base < number < self.last and self._entries[self._index(number)].last == number

    def covering(self, number: int) -> Entry | None:
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
        """The entry that covers `number` and those behind it, through `through`, at most `most`."""
        if not self.base < number <= through:
            return ()
        start = self._index(number)
        return tuple(self._entries[start : min(self._index(through) + 1, start + most)])

    def common_through(self, after: int, entries: Sequence[Entry]) -> int:
        """The number through which the log agrees with these entries, which follow number `after`."""
        assert self.base <= after, f"asked what agrees behind {after}, the log begins after {self.base}"
        through = after
        start = self._index(after + 1) if after < self.last else len(self._entries)
        for ours, theirs in zip(self._entries[start:], entries, strict=False):
            if ours != theirs:
                break
            through = theirs.last
        return through

    def truncate(self, through: int) -> None:
        assert self.base <= through and self.is_end(through), f"the log cannot be cut at {through}"
        keep = bisect_right(self._firsts, through)
        del self._entries[keep:]
        del self._firsts[keep:]
        self.last = through

    def forget(self, through: int) -> None:
        """Begin behind this number: a stable checkpoint covers everything through it."""
        assert self.is_end(through), f"{through} is no end of an entry"
        assert self.base <= through <= self.last, f"the base cannot move from {self.base} to {through}"
        drop = bisect_right(self._firsts, through)
        del self._entries[:drop]
        del self._firsts[:drop]
        self.base = through

    def reset(self, base: int) -> None:
        """Begin anew behind this number: the state through it came from another node."""
        assert base >= self.base, f"the base cannot move from {self.base} to {base}"
        self._entries.clear()
        self._firsts.clear()
        self.base = self.last = base

    def _index(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1


class Prefix:
    """The known committed order without a gap, and the entries known beyond the first gap (LOG3, LOG4)."""

    __slots__ = ("_ahead", "told_upto", "upto")

    def __init__(self, upto: int = 0) -> None:
        self.upto = upto
        # The highest number that any node called committed.
        self.told_upto = upto
        self._ahead: dict[int, Entry] = {}

    @property
    def has_gap(self) -> bool:
        return self.upto < self.told_upto

    def learn(self, entries: Sequence[Entry], committed_upto: int) -> Sequence[Entry]:
        """Committed entries arrived; returns those that now follow without a gap."""
        if committed_upto > self.told_upto:
            self.told_upto = committed_upto
        if not entries:
            return ()
        if entries[0].first == self.upto + 1 and not self._ahead:
            # The usual case: entries come in order.
            self.upto = entries[-1].last
            self.told_upto = max(self.told_upto, self.upto)
            return entries
        return self._sort_in(entries)

    def _sort_in(self, entries: Sequence[Entry]) -> list[Entry]:
        ahead = self._ahead
        for entry in entries:
            if entry.first <= self.upto:
                assert entry.last <= self.upto, f"the entry at {entry.first} cuts the prefix {self.upto}"
            elif len(ahead) < AHEAD_MAX or entry.first == self.upto + 1:
                assert ahead.setdefault(entry.first, entry) == entry, (
                    f"two entries are committed at {entry.first}"
                )
        self.told_upto = max(self.told_upto, entries[-1].last)
        return self._follow()

    def skip(self, upto: int) -> list[Entry]:
        """Skip to a state after `upto`; returns the entries that follow without a gap."""
        assert upto >= self.upto, f"the prefix cannot go back from {self.upto} to {upto}"
        self.upto = upto
        self.told_upto = max(self.told_upto, upto)
        self._ahead = {first: entry for first, entry in self._ahead.items() if first > upto}
        return self._follow()

    def _follow(self) -> list[Entry]:
        ahead = self._ahead
        found: list[Entry] = []
        while (entry := ahead.pop(self.upto + 1, None)) is not None:
            found.append(entry)
            self.upto = entry.last
        if ahead and found:
            # An entry that the prefix has passed over can only be another cut of the same numbers.
            assert all(first > self.upto for first in ahead), "two entries are committed at one number"
        return found
