"""Ledger: the state of producers, primary and configuration after a prefix of the order.

    LED1  The same entries give the same bytes on every node.
    LED2  The envelopes of a producer's run are 1, 2, 3 … without a gap. The sequencer numbers them so; a
          ledger that sees a gap stops the node.
    LED3  Rows are never trimmed: one for each node that ever produced.

A row answers the question of a producer after a failure: pseq <= last_pseq of that pe is committed; anything
else of a pe that is over is definitely not. Client sessions live inside envelopes and are the message
manager's.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from antiphon.bus.entries import FenceDetail, OpenDetail, QuantityDetail
from antiphon.bus.messages import Entry, EntryKind
from antiphon.errors import ProtocolError
from antiphon.ids import Mid
from antiphon.wire.primitives import Buffer, Reader

_VERSION: Final = 2
# version, term, primary, data quantity, length of the configuration, number of rows
_HEAD = Struct("<BQHHII")
_ROW = Struct("<HQQQQQ16s")
_NO_RUN: Final = bytes(16)


class ProducerRow:
    """A producer: its current run, and how far the run before it came."""

    __slots__ = ("last_pseq", "last_seq", "pe", "previous_last_pseq", "previous_pe", "run_id")

    def __init__(
        self,
        pe: int,
        last_pseq: int = 0,
        last_seq: int = 0,
        previous_pe: int = 0,
        previous_last_pseq: int = 0,
        run_id: bytes = _NO_RUN,
    ) -> None:
        self.pe = pe
        self.last_pseq = last_pseq
        self.last_seq = last_seq
        self.previous_pe = previous_pe
        self.previous_last_pseq = previous_last_pseq
        self.run_id = run_id


class Ledger:
    __slots__ = ("config", "data_quantity", "primary", "rows", "term")

    def __init__(self) -> None:
        self.rows: dict[int, ProducerRow] = {}
        self.term = 0
        self.primary = 0
        # The configuration of the last CONFIG entry, encoded, and the quantity of the last QUANTITY behind
        # it; empty and 0 while the first configuration holds.
        self.config = b""
        self.data_quantity = 0

    def fold(self, entries: Iterable[Entry]) -> None:
        """Fold the next entries of the order."""
        rows = self.rows
        data = EntryKind.DATA
        for entry in entries:
            if entry.kind is data:
                pid, pe, pseq = entry.mid
                row = rows.get(pid)
                assert row is not None, f"envelope {entry.mid} of a producer that never opened"
                assert row.pe == pe, f"envelope {entry.mid} is not of the open run {row.pe}"
                assert row.last_pseq + 1 == pseq, f"envelope {entry.mid} follows {row.last_pseq}"
                row.last_pseq = pseq
                row.last_seq = entry.first + entry.count - 1
            else:
                self._fold_other(entry)

    def _fold_other(self, entry: Entry) -> None:
        match entry.kind:
            case EntryKind.PRODUCER_OPEN:
                pid, run_id = OpenDetail.decode(entry.detail)
                self._begin(pid, entry.first, run_id)
            case EntryKind.PRODUCER_FENCE:
                pid, pe, term = FenceDetail.decode(entry.detail)
                row = self.rows.get(pid)
                # A fence that a former primary proposed, or that came too late, is void.
                if term == self.term and row is not None and row.pe == pe:
                    self._begin(pid, entry.first, _NO_RUN)
            case EntryKind.PRIMARY_CLAIM:
                assert entry.mid.pe > self.term, f"term {entry.mid.pe} is claimed after term {self.term}"
                self.term = entry.mid.pe
                self.primary = entry.mid.pid
            case EntryKind.CONFIG:
                # A configuration brings quantities of its own.
                self.config, self.data_quantity = entry.detail, 0
            case EntryKind.QUANTITY:
                self.data_quantity = QuantityDetail.decode(entry.detail).data_quantity
            case _:
                # Ticks and checkpoints are about the log. An entry that a VOID names keeps its numbers.
                pass

    def _begin(self, pid: int, pe: int, run_id: bytes) -> None:
        before = self.rows.get(pid) or ProducerRow(0)
        self.rows[pid] = ProducerRow(pe, 0, before.last_seq, before.pe, before.last_pseq, run_id)

    def is_committed(self, mid: Mid) -> bool:
        """Whether this envelope is among the folded entries; only for the last two runs of a producer."""
        row = self.rows.get(mid.pid)
        if row is None:
            return False
        if mid.pe == row.pe:
            return mid.pseq <= row.last_pseq
        return mid.pe == row.previous_pe and mid.pseq <= row.previous_last_pseq

    def become(self, other: Ledger) -> None:
        """Take over the contents of another ledger; machines that refer to this object see them."""
        self.rows = other.rows
        self.term, self.primary = other.term, other.primary
        self.config, self.data_quantity = other.config, other.data_quantity

    def copy(self) -> Ledger:
        return Ledger.decode(self.encode())

    def encode(self) -> bytes:
        """Canonical: rows by producer, integers of fixed width."""
        rows = sorted(self.rows.items())
        config = self.config
        head = _HEAD.pack(_VERSION, self.term, self.primary, self.data_quantity, len(config), len(rows))
        packed = [
            _ROW.pack(
                pid,
                row.pe,
                row.last_pseq,
                row.last_seq,
                row.previous_pe,
                row.previous_last_pseq,
                row.run_id,
            )
            for pid, row in rows
        ]
        return b"".join([head, config, *packed])

    @classmethod
    def decode(cls, data: Buffer) -> Ledger:
        reader = Reader(data)
        version, term, primary, data_quantity, config_length, count = _HEAD.unpack(reader.raw(_HEAD.size))
        if version != _VERSION:
            raise ProtocolError(f"a ledger of version {version}")
        ledger = cls()
        ledger.term, ledger.primary, ledger.data_quantity = term, primary, data_quantity
        ledger.config = bytes(reader.raw(config_length))
        before = -1
        for _ in range(count):
            pid, pe, last_pseq, last_seq, previous_pe, previous_last, run_id = _ROW.unpack(
                reader.raw(_ROW.size)
            )
            if pid <= before:
                raise ProtocolError(f"the row of producer {pid} stands behind that of {before}")
            before = pid
            ledger.rows[pid] = ProducerRow(pe, last_pseq, last_seq, previous_pe, previous_last, run_id)
        reader.finish()
        return ledger


def folded(encoded: bytes, entries: Iterable[Entry]) -> bytes:
    """An encoded ledger after the entries that follow it."""
    ledger = Ledger.decode(encoded)
    ledger.fold(entries)
    return ledger.encode()
