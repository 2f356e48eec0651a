"""Producer: gets the envelopes of one node into the order, each exactly once, in the order of submission.

Where it sits
    client manager, message manager  ->  PRODUCER  ->  data servers;  COMMIT, APPLIED  ->  PRODUCER  ->  back

What it promises
    PRO1  Envelopes are committed in the order in which they were submitted, and confirmed in that order.
    PRO2  An envelope keeps its id, its ts and its payload however often it is sent. Its ts is the largest
          committed number known when it was first sent: a refreshed ts would let it outlive its lifetime.
    PRO3  When another run of this node was opened behind ours, everything of ours that is in the order stands
          before that fence and everything else never will. So a new run sends again exactly what the order
          does not hold. Every run opens under an id of its own.
    PRO4  At most W_p bytes are on the way, or one envelope.
    PRO5  An envelope is confirmed when the outcomes of all of its numbers are known. The producer asks for
          outcomes in lost messages; the heartbeat tells that there are some.
    PRO6  When no node can tell any more which numbers an envelope took, or their outcomes, the envelope is
          ordered once more, and its submitter is told so (`EnvelopeUncertain`). Only such an envelope may
          stand in the order twice, the second time in the words of `again`.
    PRO7  The outcomes kept here are bounded by what is under way, and by EARLY_MAX.

What it leaves to others
    The contents of envelopes. The sessions, in the fold, decide whether clients see a message twice: they
    answer a PRO6 repetition as a duplicate, with the numbers of the first.

A run begins with its PRODUCER_OPEN entry, whose number is the `pe` of its ids; nothing is stored here. A
producer needs no replica on its node: it hears or asks for everything it must know.
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
    RunOver,
    Send,
    Submitted,
)
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.log import Prefix
from antiphon.bus.messages import Entry, EntryKind, NackReason, digest_of_parts
from antiphon.bus.repair import Repair
from antiphon.bus.schema import Machine, not_for
from antiphon.ids import Mid, epoch_node
from antiphon.wire.commands import Outcome

OF_PRODUCER: Final = (m.Data, m.ProducerOpen, m.ProducerStateGet, m.FetchId)
"""The messages that a producer sends to the roles of a replica."""

EARLY_MAX: Final = 4_096
"""Outcomes kept of numbers beyond the known order. The producer asks for the rest later."""

_OPEN_BYTES: Final = 4
_DOUBLINGS_MAX: Final = 3
# For every envelope: a named tuple without the Python call of its constructor.
_new: Final = tuple.__new__
_ANSWERS: Final = (m.FetchIdReply, m.ProducerState)
_first_of: Final = itemgetter(0)

Again = Callable[[bytes], bytes]
"""Makes the payload of an envelope that may be in the order already: as many numbers, perhaps other bytes."""


def in_the_same_words(payload: bytes) -> bytes:
    """The `Again` for payloads that may be ordered twice unchanged."""
    return payload


class _Envelope:
    __slots__ = ("data", "first", "pause", "sent_at", "submitted", "weight")

    def __init__(self, submitted: Submitted) -> None:
        self.submitted = submitted
        size = len(submitted.payload)
        self.weight = size if size > WEIGHT_MIN else WEIGHT_MIN
        # The envelope as it was sent in this run, and when; None while it waits to be sent.
        self.data: m.Data | None = None
        self.sent_at = 0
        # How often the time until the next repetition has doubled.
        self.pause = 0
        # The first number, 0 until it is known to be committed.
        self.first = 0

    @property
    def last(self) -> int:
        return self.first + self.submitted.count - 1


class BusProducer:
    """The producer of one node for one channel."""

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
        # None until the first message about the order is received: the producer begins there.
        self._known: Prefix | None = None
        self._epoch = 0
        # All unconfirmed envelopes in the order of submission, and those of them that are to be sent.
        self._unconfirmed: deque[_Envelope] = deque()
        self._waiting: deque[_Envelope] = deque()
        # The number of our run, 0 while the run is not open.
        self._pe = 0
        self._openings = 0
        # Is there another fence, of which nobody was told?
        self._is_run_over = False
        # Our run is the fence behind a former run. A client manager opens it at once: until then the
        # consumers of its former run hold messages that other consumers could have.
        self._is_opening = opens_at_once
        self._open_at: int | None = 0 if opens_at_once else None
        self._next_pseq = 1
        self._sent: dict[int, _Envelope] = {}
        self._sent_bytes = 0
        self._retry_at: int | None = None
        self._fetching = Repair(config, chance)
        # The logs begin behind this number, as far as we know.
        self._base = 0
        # Through which number we know the outcomes of our envelopes, and through which they can be known.
        self._applied_upto = 0
        self._applied_told = 0
        # Outcomes of our own numbers, and of numbers whose owner is not known yet; by number.
        self._exceptions: list[Outcome] = []
        self._asking = Repair(config, chance)
        self.resent = 0
        # A limit of the network, if that is less than the configured window; set by the driver.
        self.window_bytes_max = 1 << 62

    @property
    def pe(self) -> int:
        """The number of our PRODUCER_OPEN, 0 while it is not known to be committed."""
        return self._pe

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    @property
    def window_bytes(self) -> int:
        """How many bytes may be under way: sent, and not known to be committed."""
        return min(self._config.producer_window_bytes, self.window_bytes_max)

    @property
    def config(self) -> GroupConfig:
        return self._config

    def reconfigure(self, config: GroupConfig) -> None:
        """Go by another configuration, from a replica of this node, or read in the order."""
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
        if self._is_run_over:
            self._is_run_over = False
            out.append(RunOver())
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
                # Only the order tells the fate of an envelope.
                pass
            case _:
                not_for(Machine.PRODUCER, message)

    def _on_nack(self, nack: m.ReportNack) -> None:
        """Receive a refusal by one server. Only the order tells the fate of an envelope."""
        if nack.mid.pe != self._pe:
            if nack.reason is NackReason.GAP and nack.mid.pe > self._pe and not self._is_opening:
                # The refusal concerns a former run: what is missing there is lost. Opening a run, even with
                # nothing to send, fences the former one: until then the servers keep and report the rest of
                # it.
                self._start_opening()
        elif nack.reason is NackReason.EXPIRED and nack.mid.pseq in self._sent:
            # Neither this envelope nor any behind it in this run will be numbered. A fence of our own settles
            # which envelopes are in the order; the rest starts again in a new run (PRO3).
            self._fence_ourselves()
        elif nack.reason is NackReason.DUPLICATE and self._known is not None:
            # The envelope is committed, and we missed the COMMIT.
            self._known.learn((), nack.argument)

    def _on_epoch(self, epoch: int) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            if self._is_opening:
                # The sequencer before may never have received our OPEN, or its log with the OPEN is given up.
                self._start_opening()
            if self._config.numbers_on_arrival:
                # The sequencer before may have been the only node that an envelope reached.
                for one in self._sent.values():
                    one.sent_at = one.pause = 0
                self._retry_at = 0 if self._sent else None

    # -- opening -----------------------------------------------------------------------------------

    def _open_id(self) -> bytes:
        """The run id, varied for each run that this node's run opens: an OPEN counts once per id."""
        tail = int.from_bytes(self._run_id[-_OPEN_BYTES:], "little") ^ self._openings
        return self._run_id[:-_OPEN_BYTES] + tail.to_bytes(_OPEN_BYTES, "little")

    def _start_opening(self) -> None:
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
        """Take the answer to a repeated OPEN, whose COMMIT we missed."""
        if self._known is None:
            self._known = Prefix(pe)
        if self._sent and self._known.upto < pe:
            # Envelopes on the way may be in the order before the fence: first learn everything up to there.
            self._known.learn((), pe)
        else:
            self._begin(pe)

    def _begin(self, pe: int) -> None:
        self._give_back()
        self._pe = pe
        self._is_opening = False
        self._open_at = None

    def _give_back(self) -> None:
        """Take back the envelopes that are not in the order: a fence stands behind our run (PRO3)."""
        self._is_run_over = self._is_run_over or self._pe > 0
        self._pe = 0
        self._wait_again(list(self._sent.values()))
        self._sent.clear()
        self._sent_bytes = 0
        self._next_pseq = 1
        self._retry_at = None

    def _wait_again(self, envelopes: list[_Envelope]) -> None:
        """Put these envelopes before all that wait, to be sent again under new ids."""
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
            # This run is about to be fenced; an envelope sent now would only be sent again.
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
        """Send the same envelopes again: a loss, a change of sequencer and a slow disk look alike from here.

        The pauses grow: if the network or the servers cannot keep up, more messages would not help.
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
                    # The fence may be void, proposed by a former primary; an OPEN of our own is a fence in
                    # any case.
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
        """Learn our state in the order through `state.upto`, without the order itself."""
        known = self._known
        if known is None or state.upto <= known.upto or self._base <= known.upto:
            return
        if state.upto < self._pe:
            # The answering node has not come to the beginning of our run.
            return
        following = known.skip(state.upto)
        if self._pe and state.pe == self._pe:
            # Our run goes on. No node can tell the numbers of its committed envelopes any more.
            self._order_again([pseq for pseq in self._sent if pseq <= state.last_pseq], out)
        elif self._pe:
            is_previous = state.previous_pe == self._pe
            in_doubt = [
                envelope
                for pseq, envelope in self._sent.items()
                if not is_previous or pseq <= state.previous_last_pseq
            ]
            self._say_doubt(in_doubt, out)
            # The rest is not in the order and never will be (PRO3).
            self._give_back()
            if not self._is_opening:
                self._openings += 1
        if self._is_opening and state.run_id == self._open_id():
            self._begin(state.pe)
        self._follow(following, out)

    def _order_again(self, pseqs: list[int], out: list[Effect]) -> None:
        """Order these committed envelopes of our run again: their numbers cannot be known any more (PRO6)."""
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
        """The number through which no outcome is missing: we received it, or no number there is ours."""
        firsts = [envelope.first for envelope in self._unconfirmed if envelope.first]
        return max(self._applied_upto, min(firsts) - 1 if firsts else self._known_upto())

    def _on_applied(self, applied: m.Applied, out: list[Effect]) -> None:
        self._applied_told = max(self._applied_told, applied.upto)
        heard = self._applied_upto
        if applied.after > heard or applied.floor > heard:
            heard = self._heard_upto()
        if applied.floor > heard:
            self._doubt(self._forgotten(heard, applied.floor), out)
            # A number beyond the known order may turn out to belong to an envelope we have sent.
            passed = min(applied.floor, self._known_upto()) if self._sent else applied.floor
            heard = max(self._heard_upto(), passed)
        if applied.after <= heard < applied.upto:
            self._applied_upto = applied.upto
            if applied.exceptions:
                self._keep([one for one in applied.exceptions if one.first > heard])

    def _forgotten(self, heard: int, floor: int) -> list[_Envelope]:
        """The envelopes with missing outcomes that no node keeps any more.

        A received outcome counts even after the table has forgotten it: an envelope that is ordered again
        makes an outcome of each of its commands, and pushes as many others out of the table.
        """
        return [one for one in self._unconfirmed if 0 < one.first <= floor and one.last > heard]

    def _keep(self, exceptions: list[Outcome]) -> None:
        """Keep the outcomes of new numbers, as far as the numbers may be ours."""
        kept = self._that_may_be_ours(exceptions)
        known = self._known_upto()
        is_early = bisect_right(kept, known, key=_first_of)
        room = EARLY_MAX - sum(1 for one in self._exceptions if one.first > known)
        if len(kept) - is_early > room:
            # The order is not known so far; we ask for the outcomes that do not fit when it is.
            del kept[is_early + max(room, 0) + 1 :]
            self._applied_upto = kept.pop().first - 1
        self._exceptions += kept

    def _that_may_be_ours(self, exceptions: list[Outcome]) -> list[Outcome]:
        """The outcomes of our own numbers, and of numbers that may turn out to be ours."""
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
        """Ask for outcomes that we missed, by the heartbeat or a later message."""
        told, heard, asking = self._applied_told, self._applied_upto, self._asking
        if not any(heard < one.last <= told for one in self._unconfirmed if one.first):
            asking.rest()
        elif asking.is_due(now_ns, has_moved=has_moved):
            # First the primary, which surely knows; then any replica.
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
            # The other outcomes were reported, or belong to other producers.
            self._exceptions = self._that_may_be_ours(self._exceptions)
