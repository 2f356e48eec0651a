"""Pages: the log with which an epoch starts, from a sequencer to a commit server, piece by piece.

Where it sits
    candidacy, reign  ->  PAGES  ->  commit_server

What it promises
    P1  A server is sent only what it lacks: everything behind what it knows to be committed; or, if its log
        is of the epoch of the adopted one, behind the end of the shorter of the two, for one of them is a
        prefix of the other.
    P2  Only what is committed is kept unseen, or what the adopted log must have, too.
    P3  A page holds at most `fetch_entries_max` entries, and so does a record that is made of them. All of
        them together are what the server lacks: at most the log behind the sequencer's base.

What it leaves to others
    When to send one, and when all of them may take the place of the server's log.
"""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.group import GroupConfig
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import Entry


def kept_through(adopted_last: int, adopted_epoch: int, server: m.SealOk | m.StartNeed) -> int:
    """How much of its own log a server may keep when one of `adopted_epoch` takes its place (P1)."""
    if server.log_epoch != adopted_epoch or not adopted_epoch:
        return server.committed_upto
    return max(server.committed_upto, min(server.last, adopted_last))


def start_page(
    config: GroupConfig, log: CommitLog, log_epoch: int, epoch: int, kept: int, committed_upto: int
) -> m.EpochStart | None:
    """The next page behind what a server has; None if our log begins later."""
    if not log.base <= kept <= log.last:
        return None
    entries = log.between(kept, log.last, config.fetch_entries_max)
    through = log.last if entries and entries[-1].last < log.last else 0
    return m.EpochStart(epoch, kept + 1, entries, committed_upto, log_epoch, config.config_id, through)


class Pages:
    """What has come of a start: entries behind number `after`, which is not below the server's base."""

    __slots__ = ("after", "entries", "epoch", "last")

    def __init__(self, epoch: int, after: int) -> None:
        self.epoch = epoch
        self.after = after
        self.last = after
        self.entries: list[Entry] = []

    def add(self, page: tuple[Entry, ...]) -> None:
        """A page; what it repeats is the same, for an epoch has one log."""
        for entry in page:
            if entry.first == self.last + 1:
                self.entries.append(entry)
                self.last = entry.last

    def forget(self, base: int) -> None:
        """The server's base has moved: what lies before it is committed, and is not compared any more."""
        if base > self.after:
            self.entries = [entry for entry in self.entries if entry.first > base]
            self.after, self.last = base, max(self.last, base)


def gather(
    pages: Pages | None, start: m.EpochStart, log: CommitLog, committed_upto: int, told_epoch: int
) -> Pages | None:
    """A page with those before it; None if it does not follow what the server has or may keep (P2)."""
    after = start.from_seq - 1
    if pages is None or pages.epoch != start.epoch or not pages.after <= after <= pages.last:
        is_one_log = 0 < start.log_epoch == told_epoch and after <= log.last
        # Below the base there is nothing to compare.
        if after < log.base or not (after <= committed_upto or is_one_log) or not log.is_end(after):
            return None
        pages = Pages(start.epoch, after)
    pages.add(start.entries)
    return pages
