"""Producer: gets the envelopes of one node into the order, each exactly once, in the order of submission.

Where it sits
    client manager, message manager  ->  PRODUCER  ->  data servers;  COMMIT, APPLIED  ->  PRODUCER  ->  back

What it promises
    P1  Envelopes are committed in the order in which they were submitted, and confirmed in that order.
    P2  An envelope keeps its id, its ts and its payload however often it is sent. Its ts is the largest
        committed number known when it was first sent: refreshed, it would outlive its lifetime.
    P3  When another run of this node was opened behind ours, everything of ours that is in the order
        stands before that fence and everything else never will. So what is sent again, under a new run,
        is exactly what the order does not hold. Every run opens under an id of its own.
    P4  At most W_p bytes are on the way, or one envelope.
    P5  An envelope is confirmed when what was said about all of its numbers has been heard. What a lost
        message said is asked for; the heartbeat tells that there was something to hear.
    P6  When nobody can tell any more which numbers an envelope took, or what became of them, it is ordered
        once more, and whoever submitted it is told so (`EnvelopeUncertain`). It is the only thing that may
        stand in the order twice; and it says what `again` makes of it.
    P7  What is kept of outcomes is bounded by what is under way here, and by EARLY_MAX.

What it leaves to others
    What is inside an envelope. Whether clients see a message twice is decided by sessions, in the fold:
    what P6 orders again is told there as a duplicate, with the numbers of the first. How to say a thing
    that may have been heard, `again` knows.

A run begins with its PRODUCER_OPEN entry, whose number is the `pe` of its ids; nothing is stored here. A
producer needs no replica on its node: what it must know it hears, or asks for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.data_server import WEIGHT_MIN
from antiphon.bus.effects import (
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    EnvelopeUncertain,
    Event,
    Multicast,
    Received,
    Send,
    Submitted,
)
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import Entry, EntryKind, NackReason, digest_of_parts
from antiphon.bus.prefix import Prefix
from antiphon.bus.repair import Repair
from antiphon.bus.schema import Machine, not_for
from antiphon.ids import Mid, epoch_node
from antiphon.wire.commands import Outcome

OF_PRODUCER: Final = (m.Data, m.ProducerOpen, m.ProducerStateGet, m.FetchId)
"""What a producer says to the roles of a replica."""

EARLY_MAX: Final = 4_096
"""Outcomes kept of numbers beyond what is known of the order. The rest is asked for when it is known."""

_OPEN_BYTES: Final = 4
_DOUBLINGS_MAX: Final = 3
# What is made for every envelope is made without the Python call of a tuple with names.
_new: Final = tuple.__new__
_ANSWERS: Final = (m.FetchIdReply, m.ProducerState)
_first_of: Final = itemgetter(0)

Again = Callable[[bytes], bytes]
"""What an envelope says when it may be in the order already: as many numbers, and perhaps other words."""


def in_the_same_words(payload: bytes) -> bytes:
    """For payloads that may be said twice as they are."""
    return payload


class _Envelope:
    """An envelope from its first sending until it is confirmed."""

    __slots__ = ("data", "first", "pause", "sent_at", "submitted", "weight")

    def __init__(self, submitted: Submitted) -> None:
        self.submitted = submitted
        size = len(submitted.payload)
        self.weight = size if size > WEIGHT_MIN else WEIGHT_MIN
        # As it was sent in this run, and when; None while it waits to be sent.
        self.data: m.Data | None = None
        self.sent_at = 0
        # How often the time until it is sent again has doubled.
        self.pause = 0
        # Its first number, 0 until it is known to be committed.
        self.first = 0

    @property
    def last(self) -> int:
        return self.first + self.submitted.count - 1


class Producer:
    """The sending end of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        run_id: bytes,
        *,
        opens_at_once: bool = False,
        again: Again = in_the_same_words,
    ) -> None:
        self._config = config
        self._again = again
        self._node = node
        self._run_id = run_id
        self._chance = chance = Chance.of(b"producer", config.group.encode(), run_id)
        # None until the first word about the order is heard: where we came in, we begin.
        self._known: Prefix | None = None
        self._epoch = 0
        # Everything not confirmed, in the order of submission; of it, what is to be sent.
        self._unconfirmed: deque[_Envelope] = deque()
        self._waiting: deque[_Envelope] = deque()
        # Our run: 0 while it is not open.
        self._pe = 0
        self._openings = 0
        # Our run is the fence behind what a former life left. Who serves clients must not wait with it until
        # there is something to send: until then its former consumers hold what others could have.
        self._is_opening = opens_at_once
        self._open_at: int | None = 0 if opens_at_once else None
        self._next_pseq = 1
        self._sent: dict[int, _Envelope] = {}
        self._sent_bytes = 0
        self._retry_at: int | None = None
        self._fetching = Repair(config, chance)
        # The logs begin behind this number, as far as we were told.
        self._base = 0
        # Through which number we know what became of our envelopes, and through which it can be known.
        self._applied_upto = 0
        self._applied_told = 0
        # Of our own numbers, and of those of which we cannot tell yet whose they are; by number.
        self._exceptions: list[Outcome] = []
        self._asking = Repair(config, chance)
        self.resent = 0
        # What the network takes at once, if that is less than the configured window; whoever drives us knows.
        self.window_bytes_max = 1 << 62

    @property
    def pe(self) -> int:
        """The number of our PRODUCER_OPEN, 0 while it is not known to be committed."""
        return self._pe

    @property
    def unconfirmed(self) -> int:
        """How many envelopes have been submitted and not confirmed."""
        return len(self._unconfirmed)

    @property
    def window_bytes(self) -> int:
        """How much may be under way: sent, and not known to be committed."""
        return min(self._config.producer_window_bytes, self.window_bytes_max)

    @property
    def config(self) -> GroupConfig:
        """The configuration we go by."""
        return self._config

    def reconfigure(self, config: GroupConfig) -> None:
        """The channel has another configuration: told by a replica of this node, or read in the order."""
        ours = self._config
        if (config.generation, config.config_id) > (ours.generation, ours.config_id):
            self._config = config

    def next_deadline_ns(self) -> int | None:
        earliest = self._retry_at
        for at in (self._open_at, self._fetching.at, self._asking.at):
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def step(self, now_ns: int, events: list[Event]) -> list[Effect]:
        """Take what happened, return what must happen next."""
        out: list[Effect] = []
        known = self._known
        known_before, applied_before = known.upto if known is not None else 0, self._applied_upto
        is_answered = False
        for event in events:
            if type(event) is Submitted:
                envelope = _Envelope(event)
                self._unconfirmed.append(envelope)
                self._waiting.append(envelope)
            elif type(event) is Received:
                message = event.message
                if type(message) is m.Applied:
                    self._on_applied(message, out)
                else:
                    self._on_received(message, out)
                    is_answered = is_answered or type(message) in _ANSWERS
        if self._unconfirmed and (0 < self._unconfirmed[0].first <= self._applied_upto or self._exceptions):
            self._confirm(out)
        if self._waiting:
            self._send(now_ns, out)
        if self._open_at is not None or self._retry_at is not None:
            self._keep_time(now_ns, out)
        known = self._known
        if known is not None and (known.upto < known.told_upto or self._fetching.at is not None):
            has_moved = known.upto > known_before
            self._fetch_order(now_ns, known, has_moved, is_answered and has_moved, out)
        if self._applied_told > self._applied_upto or self._asking.at is not None:
            self._fetch_applied(now_ns, self._applied_upto > applied_before, out)
        return out

    def _on_received(self, message: m.BusMessage, out: list[Effect]) -> None:
        match message:
            case m.Commit():
                self._learn(message.entries, message.committed_upto, out)
                self._on_epoch(message.epoch)
            case m.FetchIdReply():
                self._base = max(self._base, message.base)
                self._learn(message.entries, message.committed_upto, out)
            case m.Heartbeat():
                self._learn((), message.committed_upto, out)
                self._applied_told = max(self._applied_told, message.applied)
                self._on_epoch(message.epoch)
            case m.ProducerOpened(pid, run_id, pe):
                if pid == self._node and run_id == self._open_id() and self._is_opening:
                    self._on_told_open(pe)
            case m.ProducerState():
                if message.pid == self._node:
                    self._on_state(message, out)
            case m.ReportNack():
                if message.mid.pid == self._node:
                    self._on_nack(message)
            case m.Published():
                # What became of an envelope, only the order tells.
                pass
            case _:
                not_for(Machine.PRODUCER, message)

    def _on_nack(self, nack: m.ReportNack) -> None:
        """A refusal is the word of one server; what became of an envelope, only the order tells."""
        if nack.mid.pe != self._pe:
            if nack.reason is NackReason.GAP and nack.mid.pe > self._pe and not self._is_opening:
                # Of a former life: what is missing there is lost. A run of ours, though we have nothing to
                # send, is the fence behind it: until then servers keep the rest, and report it.
                self._start_opening()
        elif nack.reason is NackReason.EXPIRED and nack.mid.pseq in self._sent:
            # It will never be numbered, nor anything of this run behind it. A fence of our own makes
            # sure which ones are in the order; the rest starts again in a new run (P3).
            self._fence_ourselves()
        elif nack.reason is NackReason.DUPLICATE and self._known is not None:
            # It is committed, and the COMMIT passed us by.
            self._known.learn((), nack.argument)

    def _on_epoch(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            if self._is_opening:
                # Whoever led before may never have heard us, or taken our OPEN along.
                self._start_opening()

    # -- opening -----------------------------------------------------------------------------------

    def _open_id(self) -> bytes:
        """The run id, varied for each run that this life opens: an OPEN counts once per id."""
        tail = int.from_bytes(self._run_id[-_OPEN_BYTES:], "little") ^ self._openings
        return self._run_id[:-_OPEN_BYTES] + tail.to_bytes(_OPEN_BYTES, "little")

    def _start_opening(self) -> None:
        """Say it at the end of this step, and again until it is heard to be committed."""
        self._is_opening = True
        self._open_at = 0

    def _fence_ourselves(self) -> None:
        """Open another run behind this one. Until that is committed, this one may still be numbered."""
        if self._is_opening:
            return
        self._openings += 1
        if self._sent or self._waiting:
            self._start_opening()
        else:
            self._give_back()

    def _on_told_open(self, pe: int) -> None:
        """The answer to a repeated OPEN: its COMMIT passed us by."""
        if self._known is None:
            self._known = Prefix(pe)
        if self._sent and self._known.upto < pe:
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
        self._wait_again(list(self._sent.values()))
        self._sent.clear()
        self._sent_bytes = 0
        self._next_pseq = 1
        self._retry_at = None

    def _wait_again(self, envelopes: list[_Envelope]) -> None:
        """These are to be sent again, under new ids, before everything that waits."""
        for envelope in envelopes:
            envelope.data = None
            envelope.first = 0
        self._waiting.extendleft(reversed(envelopes))

    # -- sending -----------------------------------------------------------------------------------

    def _send(self, now_ns: int, out: list[Effect]) -> None:
        if not self._pe:
            if not self._is_opening:
                self._start_opening()
            return
        if self._is_opening:
            # We are about to fence ourselves; what is sent now would only be sent again.
            return
        waiting, sent = self._waiting, self._sent
        room = self.window_bytes - self._sent_bytes
        ts, pseq = self._known_upto(), self._next_pseq
        while waiting:
            envelope = waiting[0]
            if envelope.weight > room and sent:
                break
            waiting.popleft()
            envelope.data = data = self._data(envelope.submitted, pseq, ts)
            envelope.sent_at = now_ns
            envelope.pause = 0
            sent[pseq] = envelope
            pseq += 1
            room -= envelope.weight
            out.append(_new(Multicast, (data,)))
        self._next_pseq = pseq
        self._sent_bytes = self.window_bytes - room
        if self._retry_at is None and sent:
            self._retry_at = now_ns + 2 * self._config.rereport_ms * MS

    def _data(self, submitted: Submitted, pseq: int, ts: int) -> m.Data:
        _, payload, count = submitted
        pid, pe = self._node, self._pe
        digest = digest_of_parts(pid, pe, pseq, ts, count, payload)
        return _new(m.Data, (_new(Mid, (pid, pe, pseq)), ts, count, digest, payload))

    def _keep_time(self, now_ns: int, out: list[Effect]) -> None:
        if self._open_at is not None and now_ns >= self._open_at:
            self._open_at = now_ns + self._config.rereport_ms * MS
            out.append(Multicast(m.ProducerOpen(self._node, self._open_id())))
        if self._retry_at is not None and now_ns >= self._retry_at:
            self._retry(now_ns, out)

    def _retry(self, now_ns: int, out: list[Effect]) -> None:
        """The same envelopes again: a loss, a change of sequencer or a slow disk look alike from here.

        Less and less often: if it is the network or the others that cannot keep up, more would not help.
        """
        interval = 2 * self._config.rereport_ms * MS
        self._retry_at = None
        for pseq, one in self._sent.items():
            if one.sent_at + (interval << one.pause) <= now_ns:
                one.sent_at = now_ns
                one.pause = min(one.pause + 1, _DOUBLINGS_MAX)
                assert one.data is not None, f"envelope {pseq} was sent without an id"
                self.resent += 1
                out.append(Multicast(one.data))
            due = one.sent_at + (interval << one.pause)
            self._retry_at = due if self._retry_at is None else min(self._retry_at, due)

    # -- what became of it: the order ----------------------------------------------------------------

    def _known_upto(self) -> int:
        return self._known.upto if self._known is not None else 0

    def _learn(self, entries: tuple[Entry, ...], committed_upto: int, out: list[Effect]) -> None:
        if self._known is None:
            self._known = Prefix(entries[0].first - 1 if entries else committed_upto)
        self._follow(self._known.learn(entries, committed_upto), out)

    def _follow(self, entries: Sequence[Entry], out: list[Effect]) -> None:
        node = self._node
        data = EntryKind.DATA
        for entry in entries:
            if entry.kind is data:
                pid, pe, pseq = entry.mid
                if pid == node and pe == self._pe and pseq in self._sent:
                    self._on_committed(pseq, entry, out)
            elif entry.kind is EntryKind.PRODUCER_OPEN:
                opened = OpenDetail.decode(entry.detail)
                if opened.pid == node:
                    self._on_opened(opened.run_id, entry.first)
            elif entry.kind is EntryKind.CONFIG:
                self.reconfigure(GroupConfig.decode(entry.detail))
            elif entry.kind is EntryKind.PRODUCER_FENCE:
                fence = FenceDetail.decode(entry.detail)
                if fence.pid == node and fence.pe == self._pe:
                    # It may be void, proposed by who was primary no longer: we need not know. An OPEN of
                    # our own is a fence in any case.
                    self._fence_ourselves()

    def _on_opened(self, run_id: bytes, pe: int) -> None:
        if run_id == self._open_id() and self._is_opening:
            self._begin(pe)
        elif pe > self._pe and self._pe:
            # A stale OPEN of an earlier run was numbered late and fences us. We open again when there is
            # something to send, or go on with the OPEN that is on its way.
            self._give_back()
            if not self._is_opening:
                self._openings += 1

    def _on_committed(self, pseq: int, entry: Entry, out: list[Effect]) -> None:
        envelope = self._sent.pop(pseq)
        self._sent_bytes -= envelope.weight
        if not self._sent:
            self._retry_at = None
        envelope.first = first = entry.first
        out.append(_new(EnvelopeCommitted, (envelope.submitted.tag, first, entry.count)))

    def _fetch_order(
        self, now_ns: int, known: Prefix, has_moved: bool, is_answered: bool, out: list[Effect]
    ) -> None:
        fetching, config = self._fetching, self._config
        if not known.has_gap:
            fetching.rest()
        elif fetching.is_due(now_ns, has_moved=has_moved, is_answered=is_answered):
            if self._base > known.upto:
                # We were away for longer than the logs reach back.
                server = self._chance.one_of(config.data_servers)
                out.append(Send(server, m.ProducerStateGet(self._node)))
            else:
                server = self._chance.one_of(config.commit_servers)
                out.append(Send(server, m.FetchId(known.upto + 1, config.fetch_entries_max)))

    def _on_state(self, state: m.ProducerState, out: list[Effect]) -> None:
        """What the order through `state.upto` made of us, without the order itself."""
        known = self._known
        if known is None or state.upto <= known.upto or self._base <= known.upto:
            return
        if state.upto < self._pe:
            # Told by one who has not come to the beginning of our run: that says nothing about it.
            return
        following = known.skip(state.upto)
        if self._pe and state.pe == self._pe:
            # Our run goes on. What of it is committed has numbers that nobody can tell any more.
            self._order_again([pseq for pseq in self._sent if pseq <= state.last_pseq], out)
        elif self._pe:
            is_previous = state.previous_pe == self._pe
            in_doubt = [
                envelope
                for pseq, envelope in self._sent.items()
                if not is_previous or pseq <= state.previous_last_pseq
            ]
            self._say_doubt(in_doubt, out)
            # The rest is not in the order and never will be (P3).
            self._give_back()
            if not self._is_opening:
                self._openings += 1
        if self._is_opening and state.run_id == self._open_id():
            self._begin(state.pe)
        self._follow(following, out)

    def _order_again(self, pseqs: list[int], out: list[Effect]) -> None:
        """These of our run are committed, and that is all that can be known (P6)."""
        envelopes = [self._sent.pop(pseq) for pseq in pseqs]
        self._sent_bytes -= sum(envelope.weight for envelope in envelopes)
        if not self._sent:
            self._retry_at = None
        self._doubt(envelopes, out)

    def _doubt(self, envelopes: list[_Envelope], out: list[Effect]) -> None:
        self._say_doubt(envelopes, out)
        self._wait_again(envelopes)

    def _say_doubt(self, envelopes: list[_Envelope], out: list[Effect]) -> None:
        for envelope in envelopes:
            tag, payload, count = envelope.submitted
            envelope.submitted = Submitted(tag, self._again(payload), count)
            out.append(EnvelopeUncertain(tag))

    # -- what became of it: the outcomes ---------------------------------------------------------------

    def _heard_upto(self) -> int:
        """Through which number nothing is left to hear: we heard it, or nothing there is of ours."""
        firsts = [envelope.first for envelope in self._unconfirmed if envelope.first]
        return max(self._applied_upto, min(firsts) - 1 if firsts else self._known_upto())

    def _on_applied(self, applied: m.Applied, out: list[Effect]) -> None:
        self._applied_told = max(self._applied_told, applied.upto)
        heard = self._applied_upto
        if applied.after > heard or applied.floor > heard:
            heard = self._heard_upto()
        if applied.floor > heard:
            self._doubt(self._forgotten(heard, applied.floor), out)
            # Beyond the order that is known, a number may turn out to be of what we have sent.
            passed = min(applied.floor, self._known_upto()) if self._sent else applied.floor
            heard = max(self._heard_upto(), passed)
        if applied.after <= heard < applied.upto:
            self._applied_upto = applied.upto
            if applied.exceptions:
                self._keep([one for one in applied.exceptions if one.first > heard])

    def _forgotten(self, heard: int, floor: int) -> list[_Envelope]:
        """Those of which we have not heard everything, and whose outcomes are kept nowhere any more.

        What was heard of an envelope counts, whatever the table forgets later: each that is ordered again
        makes an outcome of each of its commands, and pushes as many others out of the table.
        """
        return [one for one in self._unconfirmed if 0 < one.first <= floor and one.last > heard]

    def _keep(self, exceptions: list[Outcome]) -> None:
        """Take what was said of numbers above all that was heard before, as far as it may be ours."""
        kept = self._that_may_be_ours(exceptions)
        known = self._known_upto()
        is_early = bisect_right(kept, known, key=_first_of)
        room = EARLY_MAX - sum(1 for one in self._exceptions if one.first > known)
        if len(kept) - is_early > room:
            # The order is not known so far. What does not fit we ask for when it is.
            del kept[is_early + max(room, 0) + 1 :]
            self._applied_upto = kept.pop().first - 1
        self._exceptions += kept

    def _that_may_be_ours(self, exceptions: list[Outcome]) -> list[Outcome]:
        """Those of our own numbers, and of numbers that what we have sent may turn out to have."""
        unknown = self._known_upto() + 1 if self._sent else 1 << 64
        ours = sorted([(one.first, one.last) for one in self._unconfirmed if one.first])
        kept: list[Outcome] = []
        for one in exceptions:
            if one.first >= unknown:
                kept.append(one)
                continue
            at = bisect_right(ours, one.first, key=_first_of)
            if at and one.first <= ours[at - 1][1]:
                kept.append(one)
        return kept

    def _fetch_applied(self, now_ns: int, has_moved: bool, out: list[Effect]) -> None:
        """The heartbeat, or a later word, tells that we missed what became of something."""
        told, heard, asking = self._applied_told, self._applied_upto, self._asking
        if not any(heard < one.last <= told for one in self._unconfirmed if one.first):
            asking.rest()
        elif asking.is_due(now_ns, has_moved=has_moved):
            # First the primary, who surely knows; then anybody.
            to = epoch_node(self._epoch)
            if asking.attempts > 1 or not to:
                to = self._chance.one_of(self._config.data_servers)
            out.append(Send(to, m.AppliedGet(self._heard_upto())))

    def _confirm(self, out: list[Effect]) -> None:
        unconfirmed = self._unconfirmed
        while unconfirmed:
            envelope = unconfirmed[0]
            first, (tag, _, count) = envelope.first, envelope.submitted
            last = first + count - 1
            if not first or last > self._applied_upto:
                break
            unconfirmed.popleft()
            exceptions: tuple[Outcome, ...] = ()
            if kept := self._exceptions:
                at = bisect_left(kept, first, key=_first_of)
                exceptions = tuple(kept[at : bisect_right(kept, last, key=_first_of)])
            out.append(_new(EnvelopeConfirmed, (tag, first, count, exceptions)))
        if self._exceptions:
            # The rest has been told, or turned out to concern others.
            self._exceptions = self._that_may_be_ours(self._exceptions)
