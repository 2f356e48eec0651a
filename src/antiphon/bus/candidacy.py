"""Candidacy: from a claimed epoch to a log that enough commit servers hold in it.

Where it sits
    sequencer  ->  CANDIDACY  ->  reign

What it promises
    CAN1  SEAL is sent only when the claim is durable: an epoch is never used twice, also not by a node that
          crashed in between.
    CAN2  The adopted log is that of the answer with the greatest (epoch of the log, last number), not the
          longest: the longest may be a leftover that was never committed.
    CAN3  Of our own log nothing above the number we knew to be committed is kept unasked.
    CAN4  The reign begins when commit_quantity commit servers hold the adopted log in the new epoch. Only
          then are its entries committed, whichever epoch first numbered them.
    CAN5  A commit server is sent, in pages, everything behind its committed entries; or, if its log is of the
          epoch of the adopted one, behind the end of the shorter of the two.

What it leaves to others
    The sequencer decides whether to stand.
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
        self,
        config: GroupConfig,
        node: int,
        epoch: int,
        claim_index: int,
        own: CommitServer,
        now_ns: int,
    ) -> None:
        self._config = config
        self._node = node
        self.epoch = epoch
        self.claim_index = claim_index
        # Read only. A candidate is a commit server itself.
        self._own = own
        self.started_at = now_ns
        self._resend_at = now_ns + config.retransmit_ms * MS
        self.has_claimed = False
        # The number that our SEAL named; it stays the same for all answers.
        self._committed = own.committed_upto
        self._replies: dict[int, m.SealOk] = {}
        self._best: tuple[int, m.SealOk] | None = None
        self._fetched: list[Entry] = []
        self._asked = 0
        self._low = 0
        # Behind which number each server must be sent the adopted log.
        self._needs: dict[int, int] = {}
        # The pages sent since the last timer: (server, behind which number).
        self._paged: set[tuple[int, int]] = set()
        # The base of the best log, if our log does not reach it.
        self.base_out_of_reach = 0
        # A term in the adopted log that is not below our epoch, if there is one.
        self.outranked_by = 0
        self.log_epoch = 0
        self.log: CommitLog | None = None
        self.ledger: Ledger | None = None
        self.match: dict[int, int] = {}

    @property
    def is_starting(self) -> bool:
        return self.log is not None

    @property
    def is_won(self) -> bool:
        if self.log is None:
            return False
        held = [server for server, last in self.match.items() if last >= self.log.last]
        has_own = self._node in held or not self._config.numbers_on_arrival
        return has_own and len(held) >= self._config.commit_quantity

    @property
    def newly_committed(self) -> tuple[Entry, ...]:
        """The adopted entries that some node may not know as committed.

        Those before our base, which may have moved since, are in a stable checkpoint.
        """
        assert self.log is not None, "nothing is adopted yet"
        return self.log.between(max(self._low, self.log.base), self.log.last)

    def next_deadline_ns(self) -> int:
        return self._resend_at

    def on_claim_durable(self, now_ns: int, out: list[RoleEffect]) -> None:
        """The claim is on disk: now other nodes may hear of the epoch (CAN1)."""
        self.has_claimed = True
        self._committed = self._own.committed_upto
        self.resend(now_ns, out)

    def resend(self, now_ns: int, out: list[RoleEffect]) -> None:
        self._paged.clear()
        self._resend_at = now_ns + self._config.retransmit_ms * MS
        if not self.has_claimed:
            return
        for server in self._config.commit_servers:
            if self.log is not None:
                if server in self._needs and self.match.get(server, -1) < self.log.last:
                    self._start(server, out)
            elif server not in self._replies:
                out.append(Send(server, m.Seal(self.epoch, self._committed, self._config.config_id)))
        if self._best is not None and self.log is None and not self.outranked_by:
            self._fetch(out)

    # -- sealing -----------------------------------------------------------------------------------

    def on_seal_ok(self, server: int, reply: m.SealOk, out: list[RoleEffect]) -> bool:
        """A commit server promised. False if this node is not fit to lead."""
        if self._best is not None or not self.has_claimed:
            if self.log is not None and server not in self._replies:
                # The server promised late; it gets the adopted log like the others.
                self._replies[server] = reply
                self._needs[server] = self._kept(reply)
                self._start(server, out)
            return True
        self._replies[server] = reply
        if len(self._replies) < self._config.seal_quantity or self._node not in self._replies:
            return True
        return self._choose(out)

    def _choose(self, out: list[RoleEffect]) -> bool:
        replies = self._replies
        # On a tie our own log, which needs no fetching; then the order of the configuration.
        servers = [self._node, *(s for s in self._config.commit_servers if s in replies and s != self._node)]
        best = max(servers, key=lambda server: _rank(replies[server]))
        self._best = (best, replies[best])
        self.log_epoch = replies[best].log_epoch
        self._low = max(reply.committed_upto for reply in replies.values())
        last, base = replies[best].last, replies[best].base
        assert last >= self._low, f"the best log ends at {last}, before the committed {self._low}"
        if base > self._committed:
            # The entries in between are committed and gone from the logs. A node that lacks them must first
            # load a checkpoint; a node that knows more will stand meanwhile.
            self.base_out_of_reach = base
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
        if self._best is None or server != self._best[0] or self.log is not None:
            return
        have = self._fetched[-1].last if self._fetched else self._committed
        if page.entries and page.entries[0].first == have + 1:
            self._fetched.extend(page.entries)
            self._fetch(out)

    def _lacks_envelopes(self, out: list[RoleEffect]) -> bool:
        """Ask for envelopes of the adopted log that nobody called committed: nobody else may have them.

        The server whose log is adopted has those that were never committed; the others are held by as many
        data servers as copies are wanted.
        """
        if self._best is None:
            return False
        question = self._own.question_for([one for one in self._fetched if one.last > self._low])
        servers = [one for one in (self._best[0], *self._config.data_servers) if one != self._node]
        if question is None or not servers:
            return False
        out.append(Send(servers[self._asked % len(servers)], question))
        self._asked += 1
        return True

    def _adopt(self, out: list[RoleEffect]) -> None:
        if self._lacks_envelopes(out):
            return
        own = self._own
        base = own.log.base
        # R8: our own entries count only as far as we knew them committed when we asked (CAN3).
        log = CommitLog(base, own.log.between(base, self._committed))
        log.extend([entry for entry in self._fetched if entry.first > base])
        self.ledger = Ledger.decode(own.base_ledger)
        self.ledger.fold(log.between(log.base, log.last))
        self._fetched = []
        if self.ledger.term >= self.epoch:
            # The servers of the former configuration knew higher epochs than those of ours had heard of.
            self.outranked_by = self.ledger.term
            return
        self.log = log
        for server, reply in self._replies.items():
            self._needs[server] = self._kept(reply)
            self._start(server, out)

    # -- starting ----------------------------------------------------------------------------------

    def _kept(self, server: m.SealOk | m.StartNeed) -> int:
        """The part of its log that a server may keep (CAN5)."""
        assert self.log is not None, "nothing is adopted yet"
        return kept_through(self.log.last, self.log_epoch, server)

    def _start(self, server: int, out: list[RoleEffect]) -> None:
        assert self.log is not None, "nothing is adopted yet"
        self._paged.add((server, self._needs[server]))
        adopted = self.log.last, self.log_epoch
        start = start_page(self._config, self.log, adopted, self.epoch, self._needs[server], self._low)
        if start is not None:
            out.append(Send(server, start))
        elif self._needs[server] < self.log.base:
            # Our log does not reach back to the server's. If the server can begin at our base, the next
            # attempt succeeds.
            out.append(Send(server, m.FetchIdReply((), self._low, self.log.base)))

    def on_start_need(self, server: int, need: m.StartNeed, out: list[RoleEffect]) -> None:
        """A commit server can keep less of its log than we thought, or wants the next page."""
        if self.log is None:
            return
        kept = self._kept(need)
        if (server, kept) in self._paged:
            # Sent already since the last timer. A network that doubles messages would double every question
            # and every answer: a log of ten pages became a hundred thousand of them.
            return
        self._needs[server] = kept
        self._start(server, out)

    def on_acknowledge(self, server: int, last: int) -> None:
        """A commit server holds the adopted log through `last`."""
        if self.log is not None:
            self.match[server] = max(self.match.get(server, 0), last)


def _rank(promise: m.SealOk) -> tuple[int, int]:
    """The log of the newest epoch is the best, and of several of one epoch the longest."""
    return promise.log_epoch, promise.last


def kept_through(adopted_last: int, adopted_epoch: int, server: m.SealOk | m.StartNeed) -> int:
    """The part of its log that a server may keep when a log of `adopted_epoch` takes its place (CAN5)."""
    if server.log_epoch != adopted_epoch or not adopted_epoch:
        return server.committed_upto
    return max(server.committed_upto, min(server.last, adopted_last))


def start_page(
    config: GroupConfig,
    log: CommitLog,
    adopted: tuple[int, int],
    epoch: int,
    kept: int,
    committed_upto: int,
) -> m.EpochStart | None:
    """The next page for a server that has the log through `kept`; None if our log begins later.

    `adopted` are the last number and the epoch of the adopted log. The server may keep entries of its own
    log before the page if both logs are of that epoch, but none behind the end of the adopted log: a page
    that begins there names no epoch. Else a server that forgot the pages before would keep its own entries
    in their place (CAN5).
    """
    if not log.base <= kept <= log.last:
        return None
    adopted_last, log_epoch = adopted
    if kept > adopted_last:
        log_epoch = 0
    entries = log.between(kept, log.last, config.fetch_entries_max)
    through = log.last if entries and entries[-1].last < log.last else 0
    return m.EpochStart(epoch, kept + 1, entries, committed_upto, log_epoch, config.config_id, through)
