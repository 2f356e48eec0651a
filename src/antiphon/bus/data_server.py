"""Data server: keeps every envelope from its arrival until the fold has it, and reports what is durable.

Where it sits
    producer  ->  DATA SERVER  ->  sequencer;   DATA SERVER  ->  member, once an envelope has its numbers

What it promises
    DAT1  An envelope is reported only after a sync that began after it was written.
    DAT2  An envelope, also one found after a restart, is reported again, every R and to every new sequencer,
          until it is committed. It is forgotten on commit and never on submit: a submit can be lost with its
          sequencer.
    DAT3  An envelope without a number is given up only when it can never get one: its producer's run is over,
          or the order has passed ts + L. Both are facts of the committed order, not of a clock. An envelope
          with a number that no member takes here is given up when the base has passed the number.
    DAT4  An envelope is stored only if its size, its digest and its count of numbers are right.
    DAT5  An envelope that our own sequencer does not number for long is passed on to another data server: the
          envelope may lack copies, and its producer may be dead.
    DAT6  A committed envelope that never arrived is wanted until it does, or until the order says that it is
          lost for good.

What it leaves to others
    The sequencer orders. The sequencer and the fold judge whether a producer may still send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    DataRecord,
    EnvelopesArrived,
    Installed,
    Learned,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    Spoilt,
    Synced,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import Prefix
from antiphon.bus.messages import COUNT_MAX, Entry, EntryKind, NackReason, ReportItem, digest_of_parts
from antiphon.bus.ports import CommittedOrder, CopyState, JournalCounter, Payloads
from antiphon.bus.schema import Machine, not_for
from antiphon.errors import Damaged, ProtocolError
from antiphon.events import ENVELOPE_DIFFERS, ENVELOPE_UNREADABLE
from antiphon.ids import Mid, epoch_node
from antiphon.journal.recovery import DataAt
from antiphon.wire.commands import count_of

WEIGHT_MIN = 1_280
"""What a small envelope counts in windows and quotas: a socket buffer charges no less."""


_COPIED_BYTES = 16_384

# For every envelope: a named tuple without the Python call of its constructor.
_new = tuple.__new__

# After so many rounds of reports an envelope is passed on. Until then a living producer sends it again.
_ROUNDS = 3
_ROUNDS_BETWEEN = 8

_FENCES = (EntryKind.PRODUCER_OPEN, EntryKind.PRODUCER_FENCE)


def _turn(rounds: int) -> int | None:
    """Which other data server, counted round, gets an unnumbered envelope in this round; None for none.

    Three times in a row, then seldom: passing on burdens a network that is already bad.
    """
    if rounds < 2 * _ROUNDS:
        return rounds if rounds >= _ROUNDS else None
    return rounds // _ROUNDS_BETWEEN if rounds % _ROUNDS_BETWEEN == 0 else None


def _kept(payload: bytes | memoryview) -> bytes | memoryview | None:
    """The payload as it may be kept in memory, None if it may not.

    A view may lie in a buffer that is used again. A small view of bytes is copied, since it would keep alive
    all the bytes that were received with it.
    """
    if type(payload) is bytes:
        return payload
    if type(payload.obj) is not bytes:  # type: ignore[union-attr]
        return None
    return payload if len(payload) > _COPIED_BYTES else bytes(payload)


def _counts(payload: bytes | memoryview, count: int) -> bool:
    """Do the commands in the payload take so many numbers?"""
    try:
        return count_of(payload) == count
    except ProtocolError:
        return False


# When an envelope counts as reported that need not be: if its number comes to nothing, it is reported again.
_LONG_AGO = 1


class _HeldEnvelope:
    """An envelope between its arrival and its delivery to the fold."""

    __slots__ = ("is_durable", "is_settled", "item", "payload", "reported_at")

    # No `__init__`: its call would cost more than the assignments (see `_on_data`).
    item: ReportItem
    payload: bytes | memoryview | None
    is_durable: bool
    is_settled: bool
    reported_at: int


class DataServer:
    """The data server of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        payloads: Payloads,
        counter: JournalCounter,
        known: Prefix,
        ledger: Ledger,
        order: CommittedOrder,
        *,
        recovered: Sequence[DataAt] = (),
        embedded: Sequence[m.Data] = (),
    ) -> None:
        self._config = config
        self._node = node
        self._payloads = payloads
        self._counter = counter
        # The order and the ledger as the member of this node knows them; read only.
        self._known = known
        self._ledger = ledger
        self._order = order
        self._epoch = 0
        self._held: dict[Mid, _HeldEnvelope] = {}
        # Committed, but never arrived here, or arrived and cannot be read; in the order of their numbers.
        self._wanted: dict[Mid, Entry] = {}
        # Arrived, and not durable yet.
        self.writing: deque[tuple[int, _HeldEnvelope]] = deque()
        self._unsettled = 0
        self._weights: dict[int, int] = {}
        self._cached_bytes = 0
        self._due: list[_HeldEnvelope] = []
        # Envelopes that only a record of the order has kept: the first step writes them.
        self._embedded = embedded
        # How many rounds of reports each envelope without a number has seen.
        self._rounds: dict[Mid, int] = {}
        # For each producer, through which envelope of which run a sequencer called it committed.
        self._told: dict[int, Mid] = {}
        self._is_new_epoch = False
        self._rereport_at: int | None = None
        self.dropped = 0
        self.rereported = 0
        for stored in recovered:
            mid = stored.mid
            item = ReportItem(mid, stored.ts, stored.count, stored.digest, stored.location.length)
            held = self._hold(item, None)
            held.is_durable = True
            row = ledger.rows.get(mid.pid)
            if row is not None and (mid.pe < row.pe or ledger.is_committed(mid)):
                # Our log does not name it. It is kept for nodes that may lack it, until the base has passed
                # its number.
                self._settle(held)

    @property
    def unsettled(self) -> int:
        """How many envelopes here have no committed number yet."""
        return self._unsettled

    @property
    def wanted(self) -> Mapping[Mid, Entry]:
        """The committed envelopes that never arrived here."""
        return self._wanted

    def reconfigure(self, config: GroupConfig) -> None:
        self._config = config

    def next_deadline_ns(self) -> int | None:
        return self._rereport_at if self._unsettled else None

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        out: list[RoleEffect] = []
        if self._embedded:
            self._write_embedded(out)
        for event in events:
            if type(event) is Received:
                self._on_received(event.sender, event.message, out)
            elif type(event) is Synced:
                self._on_synced(event.index)
            elif type(event) is Learned:
                self._on_learned(event)
            elif type(event) is Installed:
                self._on_installed(event)
        if self._rereport_at is None:
            self._rereport_at = now_ns + self._config.rereport_ms * MS
        if now_ns >= self._rereport_at or self._is_new_epoch:
            self._rereport(now_ns, out)
        if self._due:
            self._report(now_ns, out)
        return out

    # -- arrival -----------------------------------------------------------------------------------

    def _on_received(self, sender: int, message: m.BusMessage, out: list[RoleEffect]) -> None:
        match message:
            case m.Envelopes():
                self._on_data(message.items, out, is_first_hand=True)
            case m.Data():
                self._on_data((message,), out, is_first_hand=True)
            case m.Commit() | m.Heartbeat():
                self._on_epoch(message.epoch)
            case m.CommitSubmit():
                self._on_submit(sender, message)
            case m.ReportNack():
                self._on_nack(sender, message, out)
            case m.FetchData():
                self._on_fetch_data(sender, message, out)
            case m.FetchRange():
                self._on_fetch_range(sender, message, out)
            case m.FetchDataReply() | m.FetchRangeReply():
                self._on_data(message.items, out, is_first_hand=False)
            case _:
                not_for(Machine.DATA_SERVER, message)

    def _on_data(self, datas: Sequence[m.Data], out: list[RoleEffect], *, is_first_hand: bool) -> None:
        # The loop runs once for each envelope, so look up before it what can be.
        config, counter, writing = self._config, self._counter, self.writing
        quota, lifetime, cached_max = config.producer_quota_bytes, config.lifetime, config.cached_bytes_max
        bytes_max = config.envelope_bytes_max
        held_by_mid, rows, weights, upto = self._held, self._ledger.rows, self._weights, self._known.upto
        is_numbered_here = config.numbers_on_arrival and epoch_node(self._epoch) == self._node
        arrived: list[ReportItem] = []
        for data in datas:
            mid, ts, count, digest, payload = data
            held = held_by_mid.get(mid)
            if held is not None:
                self._on_held(held, digest, out, is_first_hand=is_first_hand)
                continue
            pid, pe, pseq = mid
            wanted = self._wanted.get(mid) if self._wanted else None
            row = rows.get(pid)
            if wanted is not None:
                if wanted.digest != digest:
                    self.dropped += 1
                    continue
            elif ts + lifetime < upto or (
                row is not None and pe <= row.pe and (pe < row.pe or pseq <= row.last_pseq)
            ):
                verdict = self._verdict(mid, ts)
                if verdict is not None:
                    if is_first_hand:
                        out.append(Send(pid, verdict))
                    continue
            size = len(payload)
            weight = weights.get(pid, 0) + (size if size > WEIGHT_MIN else WEIGHT_MIN)
            is_sound = size <= bytes_max and 1 <= count <= COUNT_MAX
            is_sound = is_sound and digest_of_parts(pid, pe, pseq, ts, count, payload) == digest
            if (weight > quota and wanted is None) or not is_sound or not _counts(payload, count):
                # A living producer will send the envelope again.
                self.dropped += 1
                continue
            kept = _kept(payload) if self._cached_bytes + size <= cached_max else None
            if kept is not None:
                self._cached_bytes += size
            held_by_mid[mid] = held = _HeldEnvelope()
            held.item = _new(ReportItem, (mid, ts, count, digest, size))
            held.payload = kept
            held.is_durable = held.is_settled = False
            held.reported_at = 0
            self._unsettled += 1
            weights[pid] = weight
            if wanted is not None:
                # The envelope came after its numbers. It needs no report, but the member waits for it.
                del self._wanted[mid]
                self._settle(held)
            elif is_numbered_here:
                arrived.append(held.item)
                held.reported_at = _LONG_AGO
            index = counter.last = counter.last + 1
            # Not made of `data` itself: taking apart a named tuple costs more than making a new one.
            out.append(_new(Append, (index, _new(DataRecord, (mid, ts, count, digest, payload)))))
            writing.append((index, held))
        if arrived:
            out.append(EnvelopesArrived(tuple(arrived)))

    def _write_embedded(self, out: list[RoleEffect]) -> None:
        embedded, self._embedded = self._embedded, ()
        for mid, ts, count, digest, payload in embedded:
            held = self._hold(_new(ReportItem, (mid, ts, count, digest, len(payload))), None)
            index = self._counter.next()
            out.append(Append(index, DataRecord(mid, ts, count, digest, payload)))
            self.writing.append((index, held))

    def stored(self, entry: Entry) -> CopyState:
        """Whether the envelope of an entry is here (`Stock`)."""
        held = self._held.get(entry.mid)
        if held is None:
            is_past = entry.last <= self._known.upto or self._payloads.location_of(entry.first) is not None
            return CopyState.DURABLE if is_past else CopyState.MISSING
        if held.item.digest != entry.digest:
            return CopyState.MISSING
        return CopyState.DURABLE if held.is_durable else CopyState.WRITTEN

    def in_hand(self, mid: Mid) -> bytes | memoryview | None:
        """The payload of an envelope that is being written, if it is in memory (`Stock`)."""
        return self._held[mid].payload

    def _on_held(
        self, held: _HeldEnvelope, digest: bytes, out: list[RoleEffect], *, is_first_hand: bool
    ) -> None:
        """An envelope has come again."""
        if held.item.digest != digest:
            out.append(_differs(held.item.mid, "came with two contents; the second is dropped"))
        elif is_first_hand and held.is_durable and not held.is_settled:
            # The producer misses an answer; perhaps our report was lost.
            self.rereported += 1
            self._due.append(held)

    def _verdict(self, mid: Mid, ts: int) -> m.Published | m.ReportNack | None:
        """The decision of the committed order about an envelope, if there is one."""
        row = self._ledger.rows.get(mid.pid)
        if row is not None and (mid.pe < row.pe or (mid.pe == row.pe and mid.pseq <= row.last_pseq)):
            if self._ledger.is_committed(mid):
                return m.Published(mid)
            return m.ReportNack(self._epoch, mid, NackReason.FENCED, row.pe)
        if ts + self._config.lifetime < self._known.upto:
            return m.ReportNack(self._epoch, mid, NackReason.EXPIRED)
        return None

    def _hold(self, item: ReportItem, payload: bytes | memoryview | None) -> _HeldEnvelope:
        mid, _, _, _, size = item
        self._held[mid] = held = _HeldEnvelope()
        held.item = item
        held.payload = payload
        held.is_durable = held.is_settled = False
        held.reported_at = 0
        self._unsettled += 1
        weights, pid = self._weights, mid.pid
        weights[pid] = weights.get(pid, 0) + (size if size > WEIGHT_MIN else WEIGHT_MIN)
        return held

    # -- durability and reports --------------------------------------------------------------------

    def _on_synced(self, index: int) -> None:
        writing = self.writing
        while writing:
            written, held = writing[0]
            if written > index:
                break
            writing.popleft()
            held.is_durable = True
            if not held.is_settled and not held.reported_at:
                self._due.append(held)

    def _on_epoch(self, epoch: int) -> None:
        if epoch > self._epoch:
            # A new sequencer knows of no report to its predecessor (DAT2).
            self._epoch = epoch
            self._is_new_epoch = True
            for _, held in self.writing:
                held.reported_at = 0

    def _on_submit(self, sender: int, submit: m.CommitSubmit) -> None:
        """The sequencer has numbered these from other nodes' reports, and does not need ours.

        If a number comes to nothing, its envelope is reported like all that have none (DAT2).
        """
        if submit.epoch != self._epoch or sender != epoch_node(submit.epoch):
            return
        for entry in submit.entries:
            if entry.kind is EntryKind.DATA:
                held = self._held.get(entry.mid)
                if held is not None and not held.is_durable:
                    held.reported_at = _LONG_AGO

    def _rereport(self, now_ns: int, out: list[RoleEffect]) -> None:
        interval = self._config.rereport_ms * MS
        self._rereport_at = now_ns + interval
        is_all, self._is_new_epoch = self._is_new_epoch, False
        rounds: dict[Mid, int] = {}
        over: list[m.ReportNack] = []
        covered: list[Mid] = []
        for held in self._held.values():
            if not held.is_durable or held.is_settled:
                continue
            mid = held.item.mid
            verdict = self._verdict(mid, held.item.ts)
            told = self._told.get(mid.pid)
            if verdict is None and told is not None and mid.pe == told.pe and mid.pseq <= told.pseq:
                # The envelope is committed, and its number is on its way to us.
                continue
            rounds[mid] = self._rounds.get(mid, 0) + 1
            if type(verdict) is m.ReportNack:
                over.append(verdict)
            elif verdict is not None:
                # The envelope was being written when a checkpoint was installed that covers it.
                covered.append(verdict.mid)
            elif is_all or held.reported_at + interval <= now_ns:
                self.rereported += held.reported_at > 0
                self._due.append(held)
        for mid in covered:
            self._give_up(mid)
        for nack in over:
            # The run is over, or rule X: no sequencer may number the envelope, and it has no number (DAT3).
            self._give_up(nack.mid)
            out.append(Send(nack.mid.pid, nack))
        self._rounds = rounds
        self._pass_on(out)

    def _pass_on(self, out: list[RoleEffect]) -> None:
        """Pass on the next unnumbered envelope of each run, each time to another data server (DAT5)."""
        config, rows = self._config, self._ledger.rows
        others = [server for server in config.data_servers if server != self._node]
        quantity = self._ledger.data_quantity or config.data_quantity
        if epoch_node(self._epoch) != self._node or quantity == 1 or not others:
            return
        expected: dict[int, tuple[int, int]] = {pid: (row.pe, row.last_pseq + 1) for pid, row in rows.items()}
        room = config.fetch_bytes_max
        for mid in sorted([mid for mid, rounds in self._rounds.items() if _turn(rounds) is not None]):
            if expected.get(mid.pid) != (mid.pe, mid.pseq) or mid not in self._held or room <= 0:
                continue
            expected[mid.pid] = (mid.pe, mid.pseq + 1)
            found = self._find(mid, 0, out)
            if found is not None:
                room -= len(found.payload)
                out.append(Send(others[(_turn(self._rounds[mid]) or 0) % len(others)], found))

    def _report(self, now_ns: int, out: list[RoleEffect]) -> None:
        if not self._epoch:
            # No sequencer to report to yet. The first message of one makes everything due again.
            self._due.clear()
            return
        # Once each, however often the envelope fell due.
        due = [held for held in dict.fromkeys(self._due) if not held.is_settled]
        self._due.clear()
        for held in due:
            held.reported_at = now_ns
        items = tuple([held.item for held in due])
        to = epoch_node(self._epoch)
        page = self._config.report_items_max
        for start in range(0, len(items), page):
            out.append(Send(to, m.DataReport(self._epoch, items[start : start + page])))

    def _on_nack(self, sender: int, nack: m.ReportNack, out: list[RoleEffect]) -> None:
        if sender != epoch_node(nack.epoch):
            return
        held = self._held.get(nack.mid)
        if held is None or held.is_settled:
            return
        if nack.reason is NackReason.DUPLICATE:
            # A committed envelope stays committed, and so does everything before it in its run.
            self._told[nack.mid.pid] = max(nack.mid, self._told.get(nack.mid.pid, nack.mid))
        # A refusal is the word of one sequencer, whose log may yet be given up. The envelope stays here until
        # the committed order has decided; only the producer is told.
        out.append(Send(nack.mid.pid, nack))

    # -- commit and delivery -----------------------------------------------------------------------

    def _on_learned(self, learned: Learned) -> None:
        held_by_mid = self._held
        for entry in learned.entries:
            if entry.kind is EntryKind.DATA:
                held = held_by_mid.get(entry.mid)
                if held is not None:
                    self._settle(held)
                else:
                    self._wanted[entry.mid] = entry
        if any(entry.kind in _FENCES for entry in learned.notable):
            self._give_up_former_runs()

    def _give_up_former_runs(self) -> None:
        """Give up the unnumbered envelopes of runs that are over: none of them can get a number."""
        rows = self._ledger.rows
        over = [
            mid
            for mid, held in self._held.items()
            if held.is_durable and not held.is_settled and mid.pid in rows and mid.pe < rows[mid.pid].pe
        ]
        for mid in over:
            self._give_up(mid)

    def _on_installed(self, installed: Installed) -> None:
        """A checkpoint covers everything through n: the envelopes up to there are not needed any more."""
        self._wanted = {mid: entry for mid, entry in self._wanted.items() if entry.first > installed.n}
        self._give_up_decided(Ledger.decode(installed.ledger))

    def release(self, base_ledger: bytes) -> None:
        """The base moved, and this node has applied everything through it: give up what was decided there."""
        if self._held:
            self._give_up_decided(Ledger.decode(base_ledger))

    def rest(self, synced: int) -> None:
        """On a node where this role is not stepped: give up what can get no number any more."""
        self._on_synced(synced)
        # Nobody asks this node for reports.
        self._due.clear()
        self._rounds.clear()
        waiting = [held.item for held in self._held.values() if held.is_durable and not held.is_settled]
        for item in waiting:
            if type(self._verdict(item.mid, item.ts)) is m.ReportNack:
                self._give_up(item.mid)

    def _give_up_decided(self, ledger: Ledger) -> None:
        """Give up the envelopes that are committed by this ledger, or whose runs are over by it."""
        decided = [
            mid
            for mid, held in self._held.items()
            if held.is_durable
            and (ledger.is_committed(mid) or (mid.pid in ledger.rows and mid.pe < ledger.rows[mid.pid].pe))
        ]
        for mid in decided:
            self._give_up(mid)

    def _settle(self, held: _HeldEnvelope) -> None:
        if not held.is_settled:
            held.is_settled = True
            self._unsettled -= 1
            mid, _, _, _, size = held.item
            self._weights[mid.pid] -= size if size > WEIGHT_MIN else WEIGHT_MIN

    def _give_up(self, mid: Mid) -> None:
        held = self._held.pop(mid)
        self._settle(held)
        self._drop_cached(held)
        self._payloads.discard(mid)

    def _drop_cached(self, held: _HeldEnvelope) -> None:
        if held.payload is not None:
            self._cached_bytes -= held.item.size
            held.payload = None

    def take(self, entry: Entry, out: list[RoleEffect]) -> Apply | None:
        """A committed envelope with its payload, for the member; None while it is not durable here."""
        first, count, _, mid, _, digest, _ = entry
        held = self._held.get(mid)
        if held is None or not held.is_durable:
            return None
        item = held.item
        if item.digest != digest:
            out.append(_differs(mid, "is committed with another content than is stored here"))
            self._miss(entry)
            return None
        size = item.size
        if held.payload is not None:
            payload = memoryview(held.payload)
            self._cached_bytes -= size
        else:
            try:
                payload = self._read(mid)
            except Damaged as error:
                out.append(_unreadable(mid, error))
                self._miss(entry)
                return None
        if not held.is_settled:
            self._unsettled -= 1
            self._weights[mid.pid] -= size if size > WEIGHT_MIN else WEIGHT_MIN
        del self._held[mid]
        return _new(Apply, (entry, payload, self._payloads.place(mid, first, count)))

    def pass_over(self, entry: Entry) -> None:
        """The member takes no payloads. With its number the envelope goes when the base has passed that."""
        mid = entry.mid
        held = self._held.get(mid)
        if held is None:
            return
        self._settle(held)
        if held.item.digest == entry.digest and self._payloads.has(mid):
            self._drop_cached(held)
            del self._held[mid]
            self._payloads.place(mid, entry.first, entry.count)

    def _miss(self, entry: Entry) -> None:
        """The envelope here is not the committed one: another holder has it, and the member will ask."""
        self._give_up(entry.mid)
        self._wanted[entry.mid] = entry

    def void(self, entry: Entry) -> None:
        """The order says that this payload is lost for good. If it turns up, it is not used."""
        self._wanted.pop(entry.mid, None)
        held = self._held.get(entry.mid)
        if held is not None and held.is_durable:
            self._give_up(entry.mid)

    def _read(self, mid: Mid) -> memoryview:
        location = self._payloads.locate(mid)
        assert location is not None, f"{mid} is held and cannot be found"
        return self._payloads.read(location)

    # -- what others lack --------------------------------------------------------------------------

    def _on_fetch_data(self, sender: int, fetch: m.FetchData, out: list[RoleEffect]) -> None:
        """Envelopes that do not fit into one answer are left out, and asked for again."""
        items: list[m.Data] = []
        unknown: list[Mid] = []
        size = 0
        for mid, first in zip(fetch.mids[: self._config.fetch_mids_max], fetch.firsts, strict=False):
            found = self._find(mid, first, out)
            if found is None:
                unknown.append(mid)
                continue
            size += len(found.payload)
            if items and size > self._config.fetch_bytes_max:
                break
            items.append(found)
        out.append(Send(sender, m.FetchDataReply(tuple(items), tuple(unknown))))

    def _on_fetch_range(self, sender: int, fetch: m.FetchRange, out: list[RoleEffect]) -> None:
        """Order and payloads in one answer, as far as our commit server knows the order to be committed."""
        known = self._order.committed_from(fetch.first, self._config.fetch_entries_max)
        if known is None:
            return
        entries = known.entries
        room = min(fetch.bytes_max, self._config.fetch_bytes_max)
        items: list[m.Data] = []
        taken = 0
        for entry in entries:
            found = self._find(entry.mid, entry.first, out) if entry.kind is EntryKind.DATA else None
            if found is not None:
                room -= len(found.payload)
                if taken and room < 0:
                    break
                items.append(found)
            taken += 1
        answer = m.FetchRangeReply(entries[:taken], tuple(items), known.committed_upto, known.base)
        out.append(Send(sender, answer))

    def _find(self, mid: Mid, first: int, out: list[RoleEffect]) -> m.Data | None:
        try:
            return self._found_waiting(mid) or self._found_placed(mid, first)
        except Damaged as error:
            # An answer without this envelope makes the asker try another node; it does exist.
            out.append(_unreadable(mid, error))
            location = self._payloads.location_of(first)
            if location is not None:
                out.append(Spoilt(location, error))
            return None

    def _found_waiting(self, mid: Mid) -> m.Data | None:
        held = self._held.get(mid)
        if held is None or not self._payloads.has(mid):
            return None
        payload = self._read(mid) if held.payload is None else held.payload
        return m.Data(mid, held.item.ts, held.item.count, held.item.digest, payload)

    def _found_placed(self, mid: Mid, first: int) -> m.Data | None:
        entry = self._order.log.covering(first)
        if entry is None or entry.mid != mid:
            return None
        location = self._payloads.location_of(entry.first)
        if location is None:
            return None
        return m.Data(mid, entry.ts, entry.count, entry.digest, self._payloads.read(location))


def _differs(mid: Mid, problem: str) -> Alarm:
    return Alarm(ENVELOPE_DIFFERS(envelope=str(mid), problem=problem))


def _unreadable(mid: Mid, error: Damaged) -> Alarm:
    return Alarm(ENVELOPE_UNREADABLE(envelope=str(mid), problem=str(error)))
