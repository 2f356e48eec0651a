"""Recovery: from the journal of a node to the beginning of its roles.

    REC1  The log, its epoch and the base are those of the last durable record; the promise is at least the
          epoch of the log.
    REC2  Only the checkpoint and the base are known to be committed. Everything behind them is committed
          again under the next epoch before it is applied again.
    REC3  An envelope comes back as waiting unless the checkpoint's ledger decides about it: then it is
          committed and covered, or of a run that is over, and its space may go.
    REC4  In a group the order tells the roles of a node, which may be others than in its last run. A node
          that is to keep state and has none that reaches its log begins with an empty one, and joins.
    REC5  A record that verifies and cannot be read is a fault of the software, and not damage: of checkpoints
          the next older one is tried, and of the order nothing is given up. A node refuses to start rather
          than lose its disk to a fault that all others have too.
    REC6  A whole checkpoint counts, also one that came from another node and whose base is not on record yet:
          everything it refers to was durable before it was. The log below it may then be an old one, of an
          epoch that others have overruled; nothing is concluded from it.

The journal tells what is whole on the disk. Records may be missing at the front: segments are freed when a
base covers the numbers in them. So a record that does not follow the one before it is no damage as long as
the gap lies at or below the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from antiphon.bus.checkpoint_server import CheckpointState, KeptCheckpoint
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger, folded
from antiphon.bus.log import CommitLog
from antiphon.bus.membership import in_force
from antiphon.bus.messages import Data, Entry, EntryKind
from antiphon.bus.ports import Payloads
from antiphon.bus.records import LEARNED, BaseMoved, EntriesAppended, EntriesStaged, decode_order
from antiphon.errors import Damaged, ProtocolError, Unreadable
from antiphon.ids import Mid
from antiphon.journal.checkpoints import Checkpoint
from antiphon.journal.recovery import DataAt, Recovered
from antiphon.wire.primitives import Buffer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredReplica:
    """The beginning of the roles of a node.

    `manager_state` is the message manager's state after number `applied`, or None for an empty one; restored,
    its digest must equal `manager_digest`.
    """

    promised: int
    epoch_claimed: int
    log: CommitLog
    log_epoch: int
    # The configuration under which the epoch of the log wrote it; a learned log is of no epoch.
    log_config: int = LEARNED
    base_ledger: bytes
    applied: int
    ledger: Ledger
    manager_state: Buffer | None
    manager_digest: bytes
    # The checkpoints on disk, the newest last, and the number of the newest stable one, or 0.
    checkpoints: tuple[KeptCheckpoint, ...]
    stable_n: int
    # The ledgers after the numbers at which the log may begin: those of the checkpoints.
    marks: Mapping[int, bytes]
    # Envelopes without a number, or with one that the checkpoint does not cover.
    envelopes: tuple[DataAt, ...]
    # Envelopes of entries that only the order records have kept.
    embedded: tuple[Data, ...] = ()

    @property
    def base(self) -> int:
        return self.log.base

    @classmethod
    def empty(cls) -> RecoveredReplica:
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
            checkpoints=(),
            stable_n=0,
            marks={0: Ledger().encode()},
            envelopes=(),
        )


class OrderReplay:
    """The order records, one after the other; raises `Unreadable` if they make no log (REC5)."""

    def __init__(self, records: Iterable[bytes]) -> None:
        self.base = 0
        self.base_ledger = Ledger().encode()
        # The highest epoch of any record; it wrote the log unless that was learned.
        self.log_epoch = 0
        self.log_config = LEARNED
        self._start = 0
        self._entries: list[Entry] = []
        self._staged: tuple[int, list[Entry]] = (0, [])
        self._gaps: list[int] = []
        self.envelopes: dict[Mid, bytes] = {}
        for record in records:
            try:
                self._take(record)
            except ProtocolError as error:
                raise _unreadable_order(f"a record that verifies cannot be read: {error.text}") from None
        for gap in self._gaps:
            if gap > self.base:
                raise _unreadable_order(
                    f"records before number {gap + 1} are missing, and the base is {self.base}"
                )

    def _take(self, record: bytes) -> None:
        body = decode_order(record)
        if isinstance(body, BaseMoved):
            if body.base >= self.base:
                self.base, self.base_ledger = body.base, body.ledger
            if body.log_epoch >= self.log_epoch:
                self.log_epoch, self.log_config = body.log_epoch, body.config_id
            self._begin_at(body.base)
            return
        if isinstance(body, EntriesStaged):
            self._stage(body)
            return
        entries = body.entries
        if isinstance(body, EntriesAppended):
            prev, epoch = body.prev, body.log_epoch
            for at, payload in body.envelopes:
                self.envelopes[entries[at].mid] = bytes(payload)
        else:
            prev, epoch = body.keep_through, body.epoch
            self.log_config = body.config_id
            if entries and entries[0].first > prev + 1:
                entries = (*self._staged_before(epoch, entries[0].first), *entries)
        assert epoch >= self.log_epoch, f"epoch {epoch:#x} wrote behind epoch {self.log_epoch:#x}"
        self.log_epoch = epoch
        while self._entries and self._entries[-1].last > prev:
            self._entries.pop()
        prev = entries[0].first - 1 if entries else prev
        if prev != (self._entries[-1].last if self._entries else self._start):
            # The records in between were freed, and nothing is known of those before them.
            self._entries.clear()
            self._start = prev
            self._gaps.append(prev)
        self._entries.extend(entries)

    def _begin_at(self, base: int) -> None:
        """A base at which no entry of ours ends came from another node: our log was not the committed one."""
        if base > self._start and not any(entry.last == base for entry in self._entries):
            self._entries.clear()
            self._start = base

    def _stage(self, body: EntriesStaged) -> None:
        epoch, staged = self._staged
        if epoch != body.epoch or not staged or staged[-1].last != body.prev:
            # An attempt before this one came to nothing.
            self._staged = (body.epoch, [])
        self._staged[1].extend(body.entries)

    def _staged_before(self, epoch: int, first: int) -> list[Entry]:
        staged_epoch, staged = self._staged
        is_whole = staged_epoch == epoch and bool(staged) and staged[-1].last + 1 == first
        return staged if is_whole else []

    def log(self) -> CommitLog:
        return CommitLog(self.base, [entry for entry in self._entries if entry.last > self.base])


def _unreadable_order(why: str) -> Unreadable:
    return Unreadable(
        f"the order of the log verifies and makes no sense: {why}; nothing was changed: start the version of "
        "Antiphon that wrote it"
    )


def _not_covered(base: int) -> Damaged:
    return Damaged("checkpoint", 0, f"the log begins after {base}, and no checkpoint covers what was before")


class CheckpointSource(Protocol):
    """The checkpoints of a disk to which nothing has been written yet."""

    @property
    def found(self) -> Recovered: ...

    def pass_over(self, n: int, why: str) -> None:
        """Go on with the checkpoints before n, which cannot be used."""


def choose(
    source: CheckpointSource, base: int, read: Callable[[CheckpointState], T], *, has_peers: bool
) -> T | None:
    """The result of `read` for the newest usable checkpoint, None if there is none (REC5).

    `read` raises `Unreadable` or `Damaged` for a checkpoint that it cannot use. Without any, a node begins
    with the log if that reaches back to the beginning, or gets a state from its peers; else it is refused.
    """
    first: Damaged | Unreadable | None = None
    while (checkpoint := source.found.checkpoint) is not None and checkpoint.n >= base:
        try:
            return read(_read_checkpoint(checkpoint))
        except (Damaged, Unreadable) as error:
            first = first or error
            source.pass_over(checkpoint.n, error.text)
    if not base or has_peers:
        return None
    problems = "; ".join(source.found.checkpoint_problems)
    if isinstance(first, Unreadable):
        raise Unreadable(
            f"no checkpoint can be used, and the log alone does not reach back to the beginning; nothing was "
            f"changed: start the version of Antiphon that wrote them, or restore a backup ({problems})"
        )
    if first is not None:
        raise Damaged(first.file, first.offset, f"{first.what}; no checkpoint can be used ({problems})")
    if not problems:
        raise _not_covered(base)
    raise Damaged(problems.partition(" ")[0], 0, f"no checkpoint can be used ({problems})")


def recover(
    found: Recovered,
    payloads: Payloads,
    *,
    keeps_state: bool = True,
    group: GroupConfig | None = None,
    order: OrderReplay | None = None,
) -> RecoveredReplica:
    """From the findings of the journal to the beginning of the roles; raises `Damaged`.

    `group` is the first configuration of a node that is not alone: the order then tells whether the node
    keeps state, and other nodes can give it one. `order` is the replay of `found.order`, if the caller has
    it. `payloads` learns which of the found envelopes are numbered and covered by the checkpoint. A witness
    keeps the order and no state: it begins at its base.
    """
    replay = order or OrderReplay(found.order)
    log = replay.log()
    applied, ledger, state = _begin(found, log, replay, keeps_state, group)
    covered = _covered(log, replay.base_ledger, applied, ledger)
    kept = _kept(found, log.base) if applied else ()
    is_named = bool(covered) or applied == log.base
    return RecoveredReplica(
        promised=max(found.promised, replay.log_epoch),
        epoch_claimed=found.epoch_claimed,
        log=log,
        log_epoch=replay.log_epoch if replay.log_config != LEARNED else 0,
        log_config=replay.log_config,
        base_ledger=replay.base_ledger,
        applied=applied,
        ledger=ledger,
        manager_state=None if state is None else state.manager_state,
        manager_digest=b"" if state is None else state.manager_digest,
        checkpoints=kept,
        stable_n=_stable_n(kept, log.base, covered),
        marks={**_older_mark(found.older_checkpoint), applied: ledger.encode()},
        envelopes=_sort_envelopes(found.data, payloads, covered, ledger, is_named),
        embedded=_embedded(replay, log, applied, payloads),
    )


class _Beginning(NamedTuple):
    """The number behind which the member begins, with its ledger and the state of its application."""

    applied: int
    ledger: Ledger
    state: CheckpointState | None


def _begin(
    found: Recovered, log: CommitLog, replay: OrderReplay, keeps_state: bool, group: GroupConfig | None
) -> _Beginning:
    checkpoint, base = found.checkpoint, log.base
    if group is not None and checkpoint is not None and checkpoint.n < base:
        # The checkpoint dates from when this node last kept state.
        checkpoint = None
    at_base = _Beginning(base, Ledger.decode(replay.base_ledger), None)
    begins = at_base
    if checkpoint is not None or (keeps_state and group is None):
        if base and (checkpoint is None or checkpoint.n < base):
            raise _not_covered(base)
        if checkpoint is not None:
            state = _read_checkpoint(checkpoint)
            begins = _Beginning(state.n, Ledger.decode(state.ledger), state)
    if group is not None:
        ledger, applied = begins.ledger, begins.applied
        config = in_force(group, replay.base_ledger, log, ledger, applied, replay.log_config).config
        keeps_state = found.node_id in config.checkpoint_servers
    if not keeps_state:
        return at_base
    if begins.state is None and base:
        # A ledger at the base is no state to go on from (REC4).
        return _Beginning(0, Ledger(), None)
    return begins


def _covered(log: CommitLog, base_ledger: bytes, applied: int, ledger: Ledger) -> tuple[Entry, ...]:
    """The entries of the log that the checkpoint covers, if these entries led to its ledger (REC6)."""
    if not log.base < applied <= log.last or not log.is_end(applied):
        return ()
    entries = log.between(log.base, applied)
    return entries if folded(base_ledger, entries) == ledger.encode() else ()


def _embedded(replay: OrderReplay, log: CommitLog, applied: int, payloads: Payloads) -> tuple[Data, ...]:
    """Envelopes of entries behind the checkpoint that only a record of the order has kept.

    The checkpoint of another node may end inside one of our entries, which then was never committed.
    """
    entries = log.between(log.base, log.last) if replay.envelopes else ()
    return tuple(
        [
            Data(entry.mid, entry.ts, entry.count, entry.digest, replay.envelopes[entry.mid])
            for entry in entries
            if entry.last > applied and entry.mid in replay.envelopes and not payloads.has(entry.mid)
        ]
    )


def _kept(found: Recovered, base: int) -> tuple[KeptCheckpoint, ...]:
    """The checkpoints on disk, the oldest first.

    This node does not need those before the last two, but the newest stable one, the latest that a joiner can
    be given, may be among them.
    """
    earlier = [
        KeptCheckpoint(one.n, one.digest, one.size) for one in found.earlier_checkpoints if one.n >= base
    ]
    two = [one for one in (found.older_checkpoint, found.checkpoint) if one is not None]
    return (*earlier, *[KeptCheckpoint(one.n, one.digest, len(one.state)) for one in two])


def _stable_n(kept: Iterable[KeptCheckpoint], base: int, covered: Iterable[Entry]) -> int:
    stables = [entry for entry in covered if entry.kind is EntryKind.CHECKPOINT_STABLE]
    known = {base, *[StableDetail.decode(entry.detail).n for entry in stables]}
    return max([one.n for one in kept if one.n in known], default=0)


def _older_mark(checkpoint: Checkpoint | None) -> dict[int, bytes]:
    """The ledger of the older checkpoint, where the logs of other nodes may begin.

    A node starts with the newer checkpoint even if the older one cannot be read.
    """
    if checkpoint is None:
        return {}
    try:
        state = _read_checkpoint(checkpoint)
    except Unreadable:
        return {}
    return {state.n: state.ledger}


def _read_checkpoint(checkpoint: Checkpoint) -> CheckpointState:
    """The file verifies: a failure now is not the disk's fault."""
    try:
        state = CheckpointState.decode(checkpoint.state)
        Ledger.decode(state.ledger)
    except ProtocolError as error:
        raise Unreadable(error.text) from None
    if state.n != checkpoint.n or state.digest != checkpoint.digest:
        raise Unreadable("its state is not the one that was reported")
    return state


def _sort_envelopes(
    data: Iterable[DataAt], payloads: Payloads, covered: Iterable[Entry], ledger: Ledger, is_named: bool
) -> tuple[DataAt, ...]:
    stored = {one.mid: one for one in data}
    # Envelopes that the checkpoint covers and the log still names keep their places: if the checkpoint's file
    # is damaged one day, the older one begins at the base and needs these payloads.
    for entry in covered:
        if entry.kind is EntryKind.DATA and payloads.has(entry.mid):
            payloads.place(entry.mid, entry.first, entry.count)
            stored.pop(entry.mid, None)
    waiting: list[DataAt] = []
    for mid, one in stored.items():
        row = ledger.rows.get(mid.pid)
        is_committed = ledger.is_committed(mid)
        is_past = row is not None and (mid.pe < row.pe or is_committed)
        # An envelope that our log does not name may lie behind the last stable checkpoint, and other nodes
        # may lack it: the data server keeps it for them. Of runs before the last two no node knows what was
        # committed.
        is_hopeless = row is not None and not is_committed and mid.pe >= row.previous_pe
        if is_past and (is_named or is_hopeless):
            payloads.discard(mid)
        else:
            waiting.append(one)
    return tuple(waiting)
