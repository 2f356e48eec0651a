"""Producer: gets the envelopes of one node into the order, each exactly once, in the order of submission.

Where it sits
    client manager, message manager  ->  PRODUCER  ->  data servers;  COMMIT, APPLIED  ->  PRODUCER  ->  back

What it promises
    P1  Envelopes are committed in the order in which they were submitted, and confirmed in that order.
    P2  An envelope keeps its id, its ts and its payload however often it is sent. Its ts is the largest
        committed number known when it was first sent: refreshed, it would outlive its lifetime.
    P3  When another run of this node was opened behind ours, everything of ours that is in the order
        stands before that fence and everything else never will. So what is sent again, under a new run,
        is exactly what the order does not hold.
    P4  At most W_p bytes are on the way, or one envelope.

What it leaves to others
    What is inside an envelope. Whether clients see a message twice is decided by sessions, in the fold.

A run begins with its PRODUCER_OPEN entry, whose number is the `pe` of its ids; nothing is stored here.
"""

from __future__ import annotations

from collections import deque

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.data_server import WEIGHT_MIN
from antiphon.bus.effects import (
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    Event,
    Multicast,
    Received,
    Send,
    Submitted,
)
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Entry, EntryKind, NackReason, digest_of
from antiphon.bus.prefix import Prefix
from antiphon.ids import Mid
from antiphon.wire.commands import Outcome

_OPEN_BYTES = 4


class _Sent:
    """An envelope on its way."""

    __slots__ = ("data", "envelope", "sent_at", "weight")

    def __init__(self, envelope: Submitted, data: m.Data, weight: int, sent_at: int) -> None:
        self.envelope = envelope
        self.data = data
        self.weight = weight
        self.sent_at = sent_at


class Producer:
    """The sending end of one node for one channel."""

    def __init__(self, config: GroupConfig, node: int, run_id: bytes) -> None:
        self._config = config
        self._node = node
        self._run_id = run_id
        self._chance = Chance.of(b"producer", config.group.encode(), run_id)
        # None until the first word about the order is heard: where we came in, we begin.
        self._known: Prefix | None = None
        self._waiting: deque[Submitted] = deque()
        # Our run: 0 while it is not open.
        self._pe = 0
        self._openings = 0
        self._is_opening = False
        self._epoch = 0
        self._open_at: int | None = None
        self._next_pseq = 1
        self._sent: dict[int, _Sent] = {}
        self._sent_bytes = 0
        self._retry_at: int | None = None
        self._fetch_at: int | None = None
        # Committed, not yet known to be applied: tag and the entry's numbers.
        self._committed: deque[tuple[int, int, int]] = deque()
        self._applied_upto = 0
        self._exceptions: list[Outcome] = []

    @property
    def pe(self) -> int:
        """The number of our PRODUCER_OPEN, 0 while it is not known to be committed."""
        return self._pe

    @property
    def unconfirmed(self) -> int:
        """How many envelopes have been submitted and not confirmed."""
        return len(self._waiting) + len(self._sent) + len(self._committed)

    def next_deadline_ns(self) -> int | None:
        deadlines = [at for at in (self._open_at, self._retry_at, self._fetch_at) if at is not None]
        return min(deadlines, default=None)

    def step(self, now_ns: int, events: list[Event]) -> list[Effect]:
        """Take what happened, return what must happen next."""
        out: list[Effect] = []
        has_heard_applied = False
        for event in events:
            if type(event) is Submitted:
                self._waiting.append(event)
            elif type(event) is Received:
                message = event.message
                if type(message) is m.Applied:
                    self._on_applied(message)
                    has_heard_applied = True
                else:
                    self._on_received(now_ns, message, out)
        if has_heard_applied or self._committed:
            self._confirm(out)
        if self._waiting:
            self._send(now_ns, out)
        self._keep_time(now_ns, out)
        return out

    def _on_received(self, now_ns: int, message: m.BusMessage, out: list[Effect]) -> None:
        match message:
            case m.Commit():
                self._learn(message.entries, message.committed_upto, out)
                self._on_epoch(now_ns, message.epoch, out)
            case m.FetchIdReply():
                self._learn(message.entries, message.committed_upto, out)
            case m.Heartbeat():
                self._learn((), message.committed_upto, out)
                self._on_epoch(now_ns, message.epoch, out)
            case m.ProducerOpened(pid, run_id, pe):
                if pid == self._node and run_id == self._open_id() and self._is_opening:
                    self._on_told_open(pe)
            case m.ReportNack(mid=mid, reason=NackReason.EXPIRED):
                if mid.pid == self._node and mid.pe == self._pe and self._pe and not self._is_opening:
                    # It will never be numbered, nor anything of this run behind it. A fence of our own makes
                    # sure which ones are in the order; the rest starts again in a new run (P3).
                    self._openings += 1
                    self._start_opening(now_ns, out)
            case _:
                pass

    def _on_epoch(self, now_ns: int, epoch: int, out: list[Effect]) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            if self._is_opening:
                # Whoever led before may never have heard us, or taken our OPEN along.
                self._start_opening(now_ns, out)

    # -- opening -----------------------------------------------------------------------------------

    def _open_id(self) -> bytes:
        """The run id, varied when this run had to fence itself: an OPEN counts once per id."""
        tail = int.from_bytes(self._run_id[-_OPEN_BYTES:], "little") ^ self._openings
        return self._run_id[:-_OPEN_BYTES] + tail.to_bytes(_OPEN_BYTES, "little")

    def _start_opening(self, now_ns: int, out: list[Effect]) -> None:
        self._is_opening = True
        self._open_at = now_ns + self._config.rereport_ms * MS
        out.append(Multicast(m.ProducerOpen(self._node, self._open_id())))

    def _on_told_open(self, pe: int) -> None:
        """The answer to a repeated OPEN: its COMMIT passed us by."""
        if self._sent and self._known is not None and self._known.upto < pe:
            # What is on the way may be in the order before the fence: first learn everything up to there.
            self._known.learn((), pe)
        else:
            self._begin(pe)

    def _begin(self, pe: int) -> None:
        """Our run is open: from now on its number is our `pe`."""
        self._give_back()
        self._pe = pe
        self._is_opening = False
        self._open_at = None

    def _give_back(self) -> None:
        """A fence stands behind our run: what is not in the order by now never will be (P3)."""
        self._pe = 0
        self._waiting.extendleft(one.envelope for one in reversed(self._sent.values()))
        self._sent.clear()
        self._sent_bytes = 0
        self._next_pseq = 1
        self._retry_at = None

    # -- sending -----------------------------------------------------------------------------------

    def _send(self, now_ns: int, out: list[Effect]) -> None:
        if not self._pe:
            if not self._is_opening:
                self._start_opening(now_ns, out)
            return
        if self._is_opening:
            # We are about to fence ourselves; what is sent now would only be sent again.
            return
        waiting, sent = self._waiting, self._sent
        window = self._config.producer_window_bytes
        ts = self._known.upto if self._known is not None else 0
        while waiting:
            envelope = waiting[0]
            weight = max(len(envelope.payload), WEIGHT_MIN)
            if sent and self._sent_bytes + weight > window:
                break
            waiting.popleft()
            pseq = self._next_pseq
            self._next_pseq = pseq + 1
            mid = Mid(self._node, self._pe, pseq)
            digest = digest_of(mid, ts, envelope.count, envelope.payload)
            data = m.Data(mid, ts, envelope.count, digest, envelope.payload)
            sent[pseq] = _Sent(envelope, data, weight, now_ns)
            self._sent_bytes += weight
            out.append(Multicast(data))
        if self._retry_at is None and sent:
            self._retry_at = now_ns + 2 * self._config.rereport_ms * MS

    def _keep_time(self, now_ns: int, out: list[Effect]) -> None:
        if self._open_at is not None and now_ns >= self._open_at:
            self._start_opening(now_ns, out)
        if self._retry_at is not None and now_ns >= self._retry_at:
            self._retry(now_ns, out)
        known = self._known
        if known is None or not known.has_gap:
            self._fetch_at = None
        elif self._fetch_at is None:
            delay = self._config.fetch_delay_ms * MS
            self._fetch_at = now_ns + delay + self._chance.below(delay)
        elif now_ns >= self._fetch_at:
            self._fetch_at = now_ns + self._config.rereport_ms * MS
            server = self._chance.one_of(self._config.commit_servers)
            out.append(Send(server, m.FetchId(known.upto + 1, self._config.fetch_entries_max)))

    def _retry(self, now_ns: int, out: list[Effect]) -> None:
        """The same envelopes again: a loss, a change of sequencer or a slow disk look alike from here."""
        interval = 2 * self._config.rereport_ms * MS
        self._retry_at = None
        for one in self._sent.values():
            if one.sent_at + interval <= now_ns:
                one.sent_at = now_ns
                out.append(Multicast(one.data))
            due = one.sent_at + interval
            self._retry_at = due if self._retry_at is None else min(self._retry_at, due)

    # -- what became of it -------------------------------------------------------------------------

    def _learn(self, entries: tuple[Entry, ...], committed_upto: int, out: list[Effect]) -> None:
        if self._known is None:
            self._known = Prefix(entries[0].first - 1 if entries else committed_upto)
        node = self._node
        for entry in self._known.learn(entries, committed_upto):
            if entry.kind is EntryKind.DATA:
                mid = entry.mid
                if mid.pid == node and mid.pe == self._pe:
                    self._on_committed(entry, out)
            elif entry.kind is EntryKind.PRODUCER_OPEN:
                opened = OpenDetail.decode(entry.detail)
                if opened.pid == node:
                    self._on_opened(opened.run_id, entry.first)
            elif entry.kind is EntryKind.PRODUCER_FENCE:
                fence = FenceDetail.decode(entry.detail)
                if fence.pid == node and fence.pe == self._pe:
                    self._give_back()

    def _on_opened(self, run_id: bytes, pe: int) -> None:
        if run_id == self._open_id() and self._is_opening:
            self._begin(pe)
        elif pe > self._pe and self._pe:
            # A stale OPEN of an earlier run was numbered late and fences us. We open again when there is
            # something to send; the row names that other run now, so it counts.
            self._give_back()

    def _on_committed(self, entry: Entry, out: list[Effect]) -> None:
        sent = self._sent.pop(entry.mid.pseq, None)
        if sent is None:
            return
        self._sent_bytes -= sent.weight
        if not self._sent:
            self._retry_at = None
        tag = sent.envelope.tag
        out.append(EnvelopeCommitted(tag, entry.first, entry.count))
        self._committed.append((tag, entry.first, entry.count))

    def _on_applied(self, applied: m.Applied) -> None:
        self._applied_upto = max(self._applied_upto, applied.upto)
        if applied.exceptions:
            self._exceptions.extend(applied.exceptions)

    def _confirm(self, out: list[Effect]) -> None:
        committed = self._committed
        while committed:
            tag, first, count = committed[0]
            last = first + count - 1
            if last > self._applied_upto:
                break
            committed.popleft()
            exceptions: tuple[Outcome, ...] = ()
            if self._exceptions:
                exceptions = tuple([one for one in self._exceptions if first <= one.first <= last])
            out.append(EnvelopeConfirmed(tag, first, count, exceptions))
        if self._exceptions:
            # What lies below everything we still wait for concerns others, or has been told.
            upto = committed[0][1] if committed else self._known_upto() + 1
            self._exceptions = [one for one in self._exceptions if one.first >= upto]

    def _known_upto(self) -> int:
        return self._known.upto if self._known is not None else 0
