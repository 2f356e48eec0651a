"""Recovery: from what the journal found to the roles as they were before the crash.

Where it sits
    journal  ->  RECOVERY  ->  replica, and the message manager

What it promises
    P1  The log, its epoch and the base are those of the last durable record; the promise is at least
        the epoch of the log.
    P2  What is known to be committed is only the checkpoint, and the base. Everything behind it is
        committed again under the next epoch before it is applied again.
    P3  An envelope comes back as waiting unless the checkpoint's ledger decides about it: then it is
        committed and covered, or of a run that is over, and its space may go.

What it leaves to others
    Telling what is whole on the disk from what is not is the journal's.

Records may be missing at the front: segments go when a base covers the numbers in them. So a record that
does not follow the one before it is no damage as long as the gap lies at or below the base.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog
from antiphon.bus.messages import Entry, EntryKind
from antiphon.bus.ports import Payloads
from antiphon.bus.records import BaseMoved, EntriesAppended, decode_order
from antiphon.errors import Damaged, ProtocolError
from antiphon.journal.checkpoints import Checkpoint
from antiphon.journal.format import checkpoint_name
from antiphon.journal.recovery import Recovered, Stored
from antiphon.wire.primitives import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredReplica:
    """What the roles of a node begin with.

    `manager_state` is for the message manager: its state after number `applied`, or None for an empty
    one. After `restore` its own digest must equal `manager_digest`.
    """

    promised: int
    epoch_claimed: int
    log: CommitLog
    log_epoch: int
    base_ledger: bytes
    applied: int
    ledger: Ledger
    manager_state: Buffer | None
    manager_digest: bytes
    # n, digest and size of the checkpoint, to be reported until it is stable.
    checkpoint: tuple[int, bytes, int] | None
    older_checkpoint_n: int
    # Envelopes without a number, or with one that the checkpoint does not cover.
    envelopes: tuple[Stored, ...]

    @property
    def base(self) -> int:
        return self.log.base

    @classmethod
    def empty(cls) -> RecoveredReplica:
        """What the roles of a node begin with that was never there."""
        return cls(
            promised=0,
            epoch_claimed=0,
            log=CommitLog(),
            log_epoch=0,
            base_ledger=Ledger().encode(),
            applied=0,
            ledger=Ledger(),
            manager_state=None,
            manager_digest=b"",
            checkpoint=None,
            older_checkpoint_n=0,
            envelopes=(),
        )


class _Replay:
    """The order records, one after the other."""

    def __init__(self) -> None:
        self.base = 0
        self.base_ledger = Ledger().encode()
        self.log_epoch = 0
        self._start = 0
        self._entries: list[Entry] = []
        self._gaps: list[int] = []

    def take(self, record: bytes) -> None:
        body = decode_order(record)
        if isinstance(body, BaseMoved):
            if body.base >= self.base:
                self.base, self.base_ledger = body.base, body.ledger
            self.log_epoch = max(self.log_epoch, body.log_epoch)
            return
        if isinstance(body, EntriesAppended):
            prev, epoch = body.prev, body.log_epoch
        else:
            prev, epoch = body.keep_through, body.epoch
        assert epoch >= self.log_epoch, f"epoch {epoch:#x} wrote behind epoch {self.log_epoch:#x}"
        self.log_epoch = epoch
        while self._entries and self._entries[-1].last > prev:
            self._entries.pop()
        if prev != (self._entries[-1].last if self._entries else self._start):
            # What stood between has been released, and what stood before it may be anything.
            self._entries.clear()
            self._start = prev
            self._gaps.append(prev)
        self._entries.extend(body.entries)

    def log(self) -> CommitLog:
        """What is left behind the base."""
        for gap in self._gaps:
            if gap > self.base:
                raise Damaged(
                    "order", 0, f"records before number {gap + 1} are missing, the base is {self.base}"
                )
        return CommitLog(self.base, [entry for entry in self._entries if entry.last > self.base])


def recover(found: Recovered, payloads: Payloads) -> RecoveredReplica:
    """Turn what the journal found into what the roles begin with; raises `Damaged`.

    Also tells `payloads` which of the envelopes it found are numbered and covered by the checkpoint.
    """
    replay = _Replay()
    for record in found.order:
        try:
            replay.take(record)
        except ProtocolError as error:
            raise Damaged("order", 0, f"a record that verifies cannot be read: {error}") from None
    log = replay.log()
    state = _read_checkpoint(found.checkpoint, log.base)
    if state is None:
        ledger, applied = Ledger(), 0
    else:
        ledger, applied = Ledger.decode(state.ledger), state.n
        if log.base < applied <= log.last:
            assert log.is_end(applied), f"the checkpoint at {applied} cuts an entry"
    checkpoint, older = found.checkpoint, found.older_checkpoint
    return RecoveredReplica(
        promised=max(found.promised, replay.log_epoch),
        epoch_claimed=found.epoch_claimed,
        log=log,
        log_epoch=replay.log_epoch,
        base_ledger=replay.base_ledger,
        applied=applied,
        ledger=ledger,
        manager_state=None if state is None else state.manager_state,
        manager_digest=b"" if state is None else state.manager_digest,
        checkpoint=None if checkpoint is None else (checkpoint.n, checkpoint.digest, len(checkpoint.state)),
        older_checkpoint_n=0 if older is None else older.n,
        envelopes=_sort_envelopes(found.data, payloads, log, applied, ledger),
    )


def _read_checkpoint(checkpoint: Checkpoint | None, base: int) -> CheckpointState | None:
    if checkpoint is None:
        if base:
            raise Damaged(
                "checkpoint", 0, f"the order begins after {base}, and no checkpoint covers what was before"
            )
        return None
    name = checkpoint_name(checkpoint.n)
    if checkpoint.n < base:
        raise Damaged(name, 0, f"the order begins after {base}, and this is the newest checkpoint")
    try:
        state = CheckpointState.decode(checkpoint.state)
        Ledger.decode(state.ledger)
    except ProtocolError as error:
        raise Damaged(name, 0, str(error)) from None
    if state.n != checkpoint.n or state.digest != checkpoint.digest:
        raise Damaged(name, 0, "its state is not the one that was reported")
    return state


def _sort_envelopes(
    data: Iterable[Stored], payloads: Payloads, log: CommitLog, applied: int, ledger: Ledger
) -> tuple[Stored, ...]:
    stored = {one.mid: one for one in data}
    # What the checkpoint covers and the log still names keeps its place: should the checkpoint's file be
    # damaged one day, the older one begins at the base and needs these payloads.
    for entry in log.between(log.base, min(applied, log.last)):
        if entry.kind is EntryKind.DATA and payloads.has(entry.mid):
            payloads.place(entry.mid, entry.first, entry.count)
            stored.pop(entry.mid, None)
    waiting: list[Stored] = []
    for mid, one in stored.items():
        row = ledger.rows.get(mid.pid)
        is_decided = row is not None and (mid.pe < row.pe or ledger.is_committed(mid))
        if is_decided:
            payloads.discard(mid)
        else:
            waiting.append(one)
    return tuple(waiting)
