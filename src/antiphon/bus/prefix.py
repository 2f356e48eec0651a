"""Prefix: the committed entries that have been heard, without a gap.

Where it sits
    COMMIT, FETCH_ID_REPLY  ->  PREFIX  ->  member, producer

What it promises
    P1  Entries come out once each, in order, none missing.
    P2  Two messages that name different entries for one number stop the node: that an entry is
        committed is true for ever, whichever epoch says so.

What it leaves to others
    Asking for what is missing is its owner's business; `has_gap` tells when.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.bus.messages import Entry

AHEAD_MAX = 4_096
"""Entries kept beyond a gap. More of them are dropped, and fetched when their turn comes."""


class Prefix:
    """How far the order is known, and what is known beyond the first gap."""

    __slots__ = ("_ahead", "told_upto", "upto")

    def __init__(self, upto: int = 0) -> None:
        self.upto = upto
        # The highest number that anybody said is committed.
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
            # As a rule they come in order.
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
        """The order through `upto` is known by other means; returns those that follow it without a gap."""
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
            # Whatever the prefix has passed over can only have been another cut of the same numbers.
            assert all(first > self.upto for first in ahead), "two entries are committed at one number"
        return found
