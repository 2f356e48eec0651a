"""Candidacy: from a claimed epoch to a log that enough commit servers hold in it.

Where it sits
    sequencer  ->  CANDIDACY  ->  reign

What it promises
    P1  SEAL is sent only when the claim is durable: an epoch is never used twice, also not by a node
        that crashed in between.
    P2  The log that is adopted is that of the answer with the greatest (epoch of the log, last number),
        not the longest: the longest may be a leftover that was never committed.
    P3  Of our own log nothing above the number we knew to be committed is kept unasked.
    P4  The reign begins when commit_quantity commit servers hold the adopted log in the new epoch. Only
        then are its entries committed, whichever epoch first numbered them.

What it leaves to others
    Whether to stand at all is the sequencer's decision.
"""

from __future__ import annotations

from antiphon.bus import messages as m
from antiphon.bus.commit_server import CommitServer
from antiphon.bus.effects import RoleEffect, Send
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import Entry


class Candidacy:
    """One attempt to lead, in one epoch."""

    def __init__(
        self, config: GroupConfig, node: int, epoch: int, claim_index: int, own: CommitServer, now_ns: int
    ) -> None:
        self._config = config
        self._node = node
        self.epoch = epoch
        self.claim_index = claim_index
        # Read only. Whoever stands is a commit server itself.
        self._own = own
        self.started_at = now_ns
        self._resend_at = now_ns + config.retransmit_ms * MS
        self.has_claimed = False
        # What we said in SEAL; it stays what it was then.
        self._committed = own.committed_upto
        self._replies: dict[int, m.SealOk] = {}
        self._best: tuple[int, m.SealOk] | None = None
        self._fetched: list[Entry] = []
        self._low = 0
        self.log: CommitLog | None = None
        self.ledger: Ledger | None = None
        self.match: dict[int, int] = {}

    @property
    def is_starting(self) -> bool:
        return self.log is not None

    @property
    def is_won(self) -> bool:
        """Do enough commit servers hold the adopted log?"""
        if self.log is None:
            return False
        held = [last for last in self.match.values() if last >= self.log.last]
        return len(held) >= self._config.commit_quantity

    @property
    def newly_committed(self) -> tuple[Entry, ...]:
        """The adopted entries that nobody is sure to have heard of as committed."""
        assert self.log is not None, "nothing is adopted yet"
        return self.log.between(self._low, self.log.last)

    def next_deadline_ns(self) -> int:
        return self._resend_at

    def on_claim_durable(self, now_ns: int, out: list[RoleEffect]) -> None:
        """The claim is on disk: now others may hear of the epoch (P1)."""
        self.has_claimed = True
        self._committed = self._own.committed_upto
        self.resend(now_ns, out)

    def resend(self, now_ns: int, out: list[RoleEffect]) -> None:
        """Say again what has not been answered."""
        self._resend_at = now_ns + self._config.retransmit_ms * MS
        if not self.has_claimed:
            return
        for server in self._config.commit_servers:
            if self.log is not None:
                if server in self._replies and self.match.get(server, -1) < self.log.last:
                    self._start(server, self._replies[server].committed_upto, out)
            elif server not in self._replies:
                out.append(Send(server, m.Seal(self.epoch, self._committed)))
        if self._best is not None and self.log is None:
            self._fetch(out)

    # -- sealing -----------------------------------------------------------------------------------

    def on_seal_ok(self, server: int, reply: m.SealOk, out: list[RoleEffect]) -> bool:
        """A commit server promised. False if this node is not fit to lead."""
        if self._best is not None or not self.has_claimed:
            if self.log is not None and server not in self._replies:
                # It promised late; it gets the adopted log like the others.
                self._replies[server] = reply
                self._start(server, reply.committed_upto, out)
            return True
        self._replies[server] = reply
        if len(self._replies) < self._config.seal_quantity or self._node not in self._replies:
            return True
        return self._choose(out)

    def _choose(self, out: list[RoleEffect]) -> bool:
        replies = self._replies
        # On a tie our own log, which needs no fetching; then the order of the configuration.
        servers = [self._node, *(s for s in self._config.commit_servers if s in replies and s != self._node)]
        best = max(servers, key=lambda server: (replies[server].log_epoch, replies[server].last))
        self._best = (best, replies[best])
        self._low = max(reply.committed_upto for reply in replies.values())
        last, base = replies[best].last, replies[best].base
        assert last >= self._low, f"the best log ends at {last}, before the committed {self._low}"
        if base > self._committed:
            # What lies between is committed and gone from the logs. Whoever lacks it must first load a
            # checkpoint; a node that knows more will stand meanwhile.
            return False
        self._fetch(out)
        return True

    def _fetch(self, out: list[RoleEffect]) -> None:
        assert self._best is not None, "nothing to fetch from"
        server, reply = self._best
        have = self._fetched[-1].last if self._fetched else self._committed
        if have < reply.last:
            out.append(Send(server, m.FetchLog(self.epoch, have + 1)))
        else:
            self._adopt(out)

    def on_log_page(self, server: int, page: m.FetchLogReply, out: list[RoleEffect]) -> None:
        """A piece of the log to be adopted."""
        if self._best is None or server != self._best[0] or self.log is not None:
            return
        have = self._fetched[-1].last if self._fetched else self._committed
        if page.entries and page.entries[0].first == have + 1:
            self._fetched.extend(page.entries)
            self._fetch(out)

    def _adopt(self, out: list[RoleEffect]) -> None:
        own = self._own
        base = own.log.base
        # R8: our own entries count only as far as we knew them committed when we asked (P3).
        log = CommitLog(base, own.log.between(base, self._committed))
        log.extend([entry for entry in self._fetched if entry.first > base])
        self.ledger = Ledger.decode(own.base_ledger)
        self.ledger.fold(log.between(log.base, log.last))
        self.log = log
        self._fetched = []
        for server, reply in self._replies.items():
            self._start(server, reply.committed_upto, out)

    # -- starting ----------------------------------------------------------------------------------

    def _start(self, server: int, committed_upto: int, out: list[RoleEffect]) -> None:
        assert self.log is not None, "nothing is adopted yet"
        if self.log.base <= committed_upto <= self.log.last:
            entries = self.log.between(committed_upto, self.log.last)
            out.append(Send(server, m.EpochStart(self.epoch, committed_upto + 1, entries, self._low)))

    def on_start_need(self, server: int, need: m.StartNeed, out: list[RoleEffect]) -> None:
        """A commit server can keep less of its log than we thought."""
        if self.log is not None:
            self._start(server, need.committed_upto, out)

    def on_acknowledge(self, server: int, last: int) -> None:
        """A commit server holds the adopted log through `last`."""
        if self.log is not None:
            self.match[server] = max(self.match.get(server, 0), last)
