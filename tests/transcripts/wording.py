"""Words for what nodes say and write, for readers who do not know the code.

Nodes are letters: node 1 is A. An epoch is `2.B`, the second counted, led by B. An envelope goes by the name
that the story gave it. What differs from run to run and says nothing (nonces, digests, sizes) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon.bus import messages as m
from antiphon.bus.effects import CopyRecord, DataRecord, OrderRecord, SuperblockRecord
from antiphon.bus.entries import FenceDetail, OpenDetail, QuantityDetail, StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import Entry, EntryKind, ServerStatus
from antiphon.bus.records import BaseMoved, EntriesAppended, EntriesStaged, EpochStarted, decode_order
from antiphon.bus.sequencer import EPOCHS_PER_CONFIG
from antiphon.ids import Mid, epoch_counter, epoch_node

ENTRIES_SHOWN = 5
Record = DataRecord | OrderRecord | SuperblockRecord | CopyRecord


def letter(node: int) -> str:
    return chr(ord("A") + node - 1)


def letters(nodes: Sequence[int], group: Sequence[int] = ()) -> str:
    return "all" if len(group) > 1 and len(nodes) == len(group) else ", ".join(letter(node) for node in nodes)


def epoch_name(epoch: int) -> str:
    """The third epoch of configuration 1, claimed by A, is 3.A; that of configuration 2 is 2/3.A."""
    if not epoch:
        return "no epoch"
    former, number = divmod(epoch_counter(epoch), EPOCHS_PER_CONFIG)
    config = f"{former + 1}/" if former else ""
    return f"{config}{number}.{letter(epoch_node(epoch))}"


def kind_name(message: m.BusMessage) -> str:
    """CommitSubmit is COMMIT_SUBMIT, as the design notes have it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(message).__name__).upper()


class Wording:
    """Knows the envelopes by name."""

    def __init__(self) -> None:
        self.names: dict[Mid, str] = {}

    def envelope(self, mid: Mid) -> str:
        return f'"{self.names[mid]}"' if mid in self.names else f"{letter(mid.pid)}'s envelope {mid.pseq}"

    def envelopes(self, mids: Sequence[Mid]) -> str:
        return ", ".join(self.envelope(mid) for mid in mids) or "nothing"

    def entry(self, entry: Entry) -> str:
        numbers = str(entry.first) if entry.count == 1 else f"{entry.first}-{entry.last}"
        return f"{numbers} {self._what(entry)}"

    def _what(self, entry: Entry) -> str:
        match entry.kind:
            case EntryKind.DATA:
                return self.envelope(entry.mid)
            case EntryKind.PRIMARY_CLAIM:
                return f"{letter(entry.mid.pid)} is primary"
            case EntryKind.PRODUCER_OPEN:
                return f"{letter(OpenDetail.decode(entry.detail).pid)} may produce"
            case EntryKind.PRODUCER_FENCE:
                fence = FenceDetail.decode(entry.detail)
                return f"run {fence.pe} of {letter(fence.pid)} is over"
            case EntryKind.CHECKPOINT_STABLE:
                stable = StableDetail.decode(entry.detail)
                return f"checkpoint {stable.n} is stable"
            case EntryKind.CONFIG:
                return f"configuration {GroupConfig.decode(entry.detail).config_id}"
            case EntryKind.QUANTITY:
                return f"copies wanted: {QuantityDetail.decode(entry.detail).data_quantity}"
            case EntryKind.CHECKPOINT_MARK:
                return "take a checkpoint"
            case _:
                return entry.kind.name.lower().replace("_", " ")

    def entries(self, entries: Sequence[Entry]) -> str:
        words = [self.entry(entry) for entry in entries]
        if len(words) > ENTRIES_SHOWN:
            words[2:-1] = ["..."]
        return ", ".join(words) or "nothing"

    # -- messages ----------------------------------------------------------------------------------

    def message(self, message: m.BusMessage) -> str:
        """The name of a message, and what it says."""
        return f"{kind_name(message):<18} {self._of_data(message)}".rstrip()

    def _of_data(self, message: m.BusMessage) -> str:
        match message:
            case m.Data(mid, ts):
                return (
                    f"{self.envelope(mid)}, envelope {mid.pseq} of {letter(mid.pid)}'s run {mid.pe}, ts {ts}"
                )
            case m.DataReport(items=items):
                return f"durable here: {self.envelopes([item.mid for item in items])}"
            case m.ReportNack(mid=mid, reason=reason):
                return f"{self.envelope(mid)}: {reason.name}"
            case m.Published(mid):
                return f"{self.envelope(mid)} is committed already"
            case m.ProducerOpen(pid):
                return f"{letter(pid)} wants to produce"
            case m.ProducerOpened(pid, _, pe):
                return f"{letter(pid)}'s run is {pe}"
            case m.FetchData(mids):
                return self.envelopes(mids)
            case m.FetchDataReply(items, unknown):
                found = f"here is {self.envelopes([item.mid for item in items])}" if items else ""
                lacking = f"unknown here: {self.envelopes(unknown)}" if unknown else ""
                return "; ".join(part for part in (found, lacking) if part)
            case m.Applied(upto=upto):
                return f"through {upto}"
            case _:
                return self._of_order(message)

    def _of_order(self, message: m.BusMessage) -> str:
        match message:
            case m.CommitSubmit(epoch, prev, entries):
                return f"epoch {epoch_name(epoch)}, after {prev}: {self.entries(entries)}"
            case m.CommitAcknowledge(epoch, last, status):
                if status is not ServerStatus.OK:
                    return f"epoch {epoch_name(epoch)}: {status.name}"
                return f"epoch {epoch_name(epoch)}, durable through {last}"
            case m.Commit(epoch, entries, committed_upto):
                return (
                    f"epoch {epoch_name(epoch)}: {self.entries(entries)}; committed through {committed_upto}"
                )
            case m.Heartbeat(epoch, committed_upto):
                return f"epoch {epoch_name(epoch)}, committed through {committed_upto}"
            case m.FetchId(first):
                return f"what is committed from {first} on?"
            case m.FetchIdReply(entries, committed_upto, base):
                begins = f"; my log begins after {base}" if base and not entries else ""
                return f"{self.entries(entries)}; committed through {committed_upto}{begins}"
            case m.CheckpointReport(seq):
                return f"the state after {seq} is durable here"
            case _:
                return self._of_change(message)

    def _of_change(self, message: m.BusMessage) -> str:
        match message:
            case m.PreSeal():
                return "does anybody hear a sequencer?"
            case m.PreSealOk():
                return "I do not"
            case m.Seal(epoch):
                return f"promise epoch {epoch_name(epoch)}"
            case m.SealOk():
                return f"epoch {epoch_name(message.epoch)} is promised; {_standing(message)}"
            case m.SealNack(promised, status, config):
                next_one = f": configuration {GroupConfig.decode(config).config_id}" if config else ""
                return f"{status.name}{next_one}" if status else f"promised {epoch_name(promised)}"
            case m.FetchLog(start=start):
                return f"your log from {start} on"
            case m.FetchLogReply(entries=entries):
                return self.entries(entries)
            case m.EpochStart(epoch, from_seq, entries):
                return (
                    f"epoch {epoch_name(epoch)}: your log is ..{from_seq - 1}, then {self.entries(entries)}"
                )
            case m.StartNeed():
                return f"epoch {epoch_name(message.epoch)} has not begun here; {_standing(message)}"
            case _:
                return self._of_joining(message)

    def _of_joining(self, message: m.BusMessage) -> str:
        match message:
            case m.CheckpointGet(n):
                return f"the checkpoint at {n}" if n else "the newest checkpoint"
            case m.CheckpointChunk(n):
                return f"of the checkpoint at {n}" if n else "there is none"
            case m.FetchRange(first):
                return f"from {first} on, with payloads"
            case m.FetchRangeReply(entries, items):
                return f"{self.entries(entries)}; with {self.envelopes([item.mid for item in items])}"
            case m.StoredGet(n, places):
                return f"{len(places)} envelopes that the checkpoint at {n} refers to"
            case m.StoredReply(items=items):
                return self.envelopes([item.mid for item in items])
            case m.ProducerStateGet(pid):
                return f"what became of {letter(pid)}?"
            case _:
                return ""

    # -- records -----------------------------------------------------------------------------------

    def records(self, records: Sequence[Record], before: SuperblockRecord) -> str:
        """What was written; of a superblock, what is new in it."""
        mids = [record.mid for record in records if isinstance(record, DataRecord)]
        copies = [record.mid for record in records if isinstance(record, CopyRecord)]
        words = [f"envelope {self.envelopes(mids)}"] if mids else []
        words += [f"copy of {self.envelopes(copies)}"] if copies else []
        for record in records:
            if isinstance(record, SuperblockRecord):
                words.append(_superblock(record, before))
                before = record
            elif isinstance(record, OrderRecord):
                words.append(self._order(record))
        return "; ".join(words)

    def _order(self, record: OrderRecord) -> str:
        match decode_order(record.body):
            case EntriesAppended(log_epoch, _, entries):
                return f"log of {epoch_name(log_epoch)}, {self.entries(entries)}"
            case EpochStarted(epoch, keep_through, entries):
                behind = f", then {self.entries(entries)}" if entries else ""
                return f"the log is of {epoch_name(epoch)}: ..{keep_through}{behind}"
            case EntriesStaged(epoch, entries=entries):
                return f"for the log of {epoch_name(epoch)} to be, {self.entries(entries)}"
            case BaseMoved(base):
                return f"the log begins after {base}"
            case other:
                return type(other).__name__


def _standing(server: m.SealOk | m.StartNeed) -> str:
    epoch = epoch_name(server.log_epoch) if server.log_epoch else "no epoch of this configuration"
    return f"my log is of {epoch}, through {server.last}, known committed {server.committed_upto}"


def _superblock(record: SuperblockRecord, before: SuperblockRecord) -> str:
    claim = f"claim of {epoch_name(record.epoch_claimed)}"
    promise = f"promise of {epoch_name(record.promised)}"
    news = [
        *([claim] if record.epoch_claimed != before.epoch_claimed else []),
        *([promise] if record.promised != before.promised else []),
    ]
    return " and ".join(news) or "superblock"
