"""Checkpoint server: makes the state after an agreed number durable, and reports it.

Where it sits
    member  ->  CHECKPOINT SERVER  ->  a file;   CHECKPOINT SERVER  ->  sequencer

What it promises
    CHK1  A checkpoint at n is the fold of 1 … n: the ledger of the order and the message manager's state,
          taken at the same moment.
    CHK2  A checkpoint is reported only when it is durable, and again to every new sequencer and with every
          Nth heartbeat, until a checkpoint that covers it is stable.
    CHK3  The digest is over logical state only, so that servers with different disks can be compared.
    CHK4  A checkpoint for which there is no room is written as soon as there is: checkpoints free room.

What it leaves to others
    The sequencer says when to take one (the mark); an entry of the order says which is stable;
    `ReleaseSpace` tells which files may go: those below the base, which stands at the stable checkpoint
    before the newest, so that a damaged file leaves one to fall back on. The holder gives a checkpoint to
    another node, the joiner takes one from another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Alarm,
    CheckpointFailed,
    CheckpointWritten,
    Learned,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    StateCaptured,
    WriteCheckpoint,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import EntryKind
from antiphon.bus.schema import Machine, not_for
from antiphon.errors import ProtocolError
from antiphon.events import STATES_DIFFER
from antiphon.ids import epoch_node
from antiphon.wire.primitives import Buffer, Reader, Writer

_MAGIC: Final = 0x504B4341
_HEAD = Struct("<IQ")
DIGEST_BYTES: Final = 16

WRITE_AGAIN_MS: Final = 1_000
"""How long a checkpoint for which there was no room waits for the next attempt."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The contents of a checkpoint: the ledger at n, and the message manager's state after 1 … n."""

    n: int
    ledger: bytes
    manager_digest: bytes
    manager_state: Buffer

    @property
    def digest(self) -> bytes:
        """The digest that servers compare (CHK3)."""
        head = _HEAD.pack(_MAGIC, self.n)
        return blake2b(head + self.ledger + self.manager_digest, digest_size=DIGEST_BYTES).digest()

    def encode(self) -> bytes:
        writer = Writer()
        writer.raw(_HEAD.pack(_MAGIC, self.n))
        writer.bytes_(self.ledger)
        writer.bytes_(self.manager_digest)
        writer.bytes_(self.manager_state)
        return writer.join()

    @classmethod
    def decode(cls, data: Buffer) -> CheckpointState:
        """The message manager's state comes out as a view."""
        reader = Reader(data)
        magic, n = _HEAD.unpack(reader.raw(_HEAD.size))
        if magic != _MAGIC:
            raise ProtocolError("these bytes are no checkpoint")
        state = cls(n, bytes(reader.bytes_()), bytes(reader.bytes_()), reader.bytes_())
        reader.finish()
        return state


class KeptCheckpoint(NamedTuple):
    n: int
    digest: bytes
    size: int


class CheckpointServer:
    """The checkpoint server of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        found: Sequence[KeptCheckpoint] = (),
        stable_n: int = 0,
        base_n: int = 0,
    ) -> None:
        self._config = config
        self._node = node
        self._epoch = 0
        self._beats = 0
        # The number at which the log of this node begins.
        self._base_n = base_n
        # The checkpoints of this node, the oldest first; none older than the base and the newest stable one.
        self._kept: dict[int, KeptCheckpoint] = {kept.n: kept for kept in found}
        # The newest of them that is known to be stable, if any.
        self.stable: KeptCheckpoint | None = None
        # The newest durable checkpoint that is not known to be stable.
        self._written: KeptCheckpoint | None = found[-1] if found else None
        # The number of the newest durable checkpoint, stable or not; 0 for none.
        self.newest_n = found[-1].n if found else 0
        # The number of the newest durable checkpoint but one: this node can still fall back on it.
        self.fallback_n = found[-2].n if len(found) > 1 else 0
        # The oldest that another node is fetching, 0 for none: the log is kept from there on.
        self.held_n = 0
        # From which number on this node needs a checkpoint for its log to begin at, 0 if it needs none; and
        # from which number on all others were asked in vain.
        self.needed_n = 0
        self.vain_n = 0
        self._under_way: tuple[int, bytes] | None = None
        # Digests of those that the order calls stable before they are written here.
        self._told_early: dict[int, bytes] = {}
        self._writing: WriteCheckpoint | None = None
        self._write_at: int | None = None
        # How long the last file took.
        self._took_ms = 0
        if stable_n in self._kept:
            self._stand_at(self._kept[stable_n])

    def reconfigure(self, config: GroupConfig) -> None:
        self._config = config
        # The commit server says again whether its log lacks a checkpoint.
        self.need(0)

    def next_deadline_ns(self) -> int | None:
        return self._write_at

    def begin(self, n: int, ledger: bytes) -> bool:
        """Whether to take a checkpoint at a mark that the member has applied; not while one is written."""
        if self._under_way is not None or n <= self.newest_n:
            return False
        self._under_way = (n, ledger)
        return True

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        out: list[RoleEffect] = []
        for event in events:
            match event:
                case Received(_, m.Heartbeat(epoch=epoch)):
                    self._beats += 1
                    is_due = self._beats % self._config.checkpoint_report_beats == 0
                    self._on_epoch(epoch, is_due, out)
                case Received(_, m.Commit(epoch=epoch)):
                    self._on_epoch(epoch, False, out)
                case StateCaptured():
                    self._on_captured(event, out)
                case CheckpointWritten(n, took_ms):
                    self._on_written(n, took_ms, out)
                case CheckpointFailed(n):
                    self._check_writing(n)
                    self._write_at = now_ns + WRITE_AGAIN_MS * MS
                case Learned():
                    self._on_learned(event, out)
                case Received(_, message):
                    not_for(Machine.CHECKPOINT_SERVER, message)
                case _:
                    pass
        if self._write_at is not None and now_ns >= self._write_at and self._writing is not None:
            self._write_at = None
            out.append(self._writing)
        return out

    def _on_epoch(self, epoch: int, is_due: bool, out: list[RoleEffect]) -> None:
        if epoch > self._epoch:
            self._epoch = epoch
            is_due = True
        if is_due:
            self._report(out)

    def _on_captured(self, captured: StateCaptured, out: list[RoleEffect]) -> None:
        assert self._under_way is not None and self._under_way[0] == captured.n, (
            f"the state after {captured.n} was captured, and nobody asked for it"
        )
        state = CheckpointState(captured.n, self._under_way[1], captured.digest, captured.state)
        self._writing = WriteCheckpoint(captured.n, state.digest, state.encode(), captured.segments)
        out.append(self._writing)

    def _check_writing(self, n: int) -> WriteCheckpoint:
        assert self._writing is not None and self._writing.n == n, f"checkpoint {n} was not being written"
        return self._writing

    def _on_written(self, n: int, took_ms: int, out: list[RoleEffect]) -> None:
        writing = self._check_writing(n)
        self._took_ms = took_ms
        self._kept[n] = self._written = KeptCheckpoint(n, writing.digest, len(writing.state))
        self._writing = self._under_way = self._write_at = None
        self.fallback_n = self.newest_n
        self.newest_n = n
        told = self._told_early.get(n)
        self._told_early = {at: digest for at, digest in self._told_early.items() if at > n}
        if told is not None:
            self._compare(n, told, out)
        self._report(out)

    # -- what is stable ----------------------------------------------------------------------------

    def _on_learned(self, learned: Learned, out: list[RoleEffect]) -> None:
        for entry in learned.notable:
            if entry.kind is EntryKind.CHECKPOINT_STABLE:
                stable = StableDetail.decode(entry.detail)
                if not self._compare(stable.n, stable.digest, out):
                    # The report makes the sequencer keep everything.
                    self._report(out)

    def _compare(self, n: int, digest: bytes, out: list[RoleEffect]) -> bool:
        is_same = self.note_stable(n, digest)
        if not is_same:
            # Our own fold differs from the others'.
            out.append(Alarm(STATES_DIFFER(problem=f"this node's checkpoint at {n} is not the stable one")))
        return is_same

    def note_stable(self, n: int, digest: bytes) -> bool:
        """Note that the checkpoint at n is stable; False if the digest of ours differs."""
        kept = self._kept.get(n)
        if kept is not None and kept.digest != digest:
            return False
        if n > self.newest_n:
            # Other servers were quicker. The order says so once, so remember it until ours is written.
            self._told_early[n] = digest
        if self._written is not None and n >= self._written.n:
            self._written = None
        if kept is not None and (self.stable is None or n > self.stable.n):
            self._stand_at(kept)
        return True

    def note_base(self, n: int) -> None:
        """The log of this node begins at n, and only a stable checkpoint is a base."""
        self._base_n = n
        kept = self._kept.get(n)
        if kept is not None and (self.stable is None or n > self.stable.n):
            self._stand_at(kept)
        elif self.stable is not None:
            self._stand_at(self.stable)

    @property
    def at_base(self) -> KeptCheckpoint | None:
        """The checkpoint with which the log of this node begins, if the node has it."""
        return self._kept.get(self._base_n)

    def beginnings(self, base: int, stable_n: int) -> tuple[int, ...]:
        """The numbers at which this node's log may begin, if others' logs begin at `base`; the best first.

        The order may be known here through a stable mark that no checkpoint of ours reaches: passing several
        marks at once we take the first. A log that began there would leave this node without a state after a
        crash. That is better than nothing only when no node gave us one.
        """
        durable_n = stable_n if 0 < self.vain_n <= base else self.newest_n
        numbers = (self.newest_n, self.fallback_n, stable_n, base)
        return tuple([n for n in numbers if base <= n <= durable_n])

    def need(self, n: int) -> None:
        """Note that a checkpoint from n on is needed, of our own or of another node; 0: not any more."""
        self.needed_n = n
        if not n:
            self.vain_n = 0

    def _stand_at(self, stable: KeptCheckpoint) -> None:
        self.stable = stable
        oldest = min(self._base_n or stable.n, stable.n)
        self._kept = {n: kept for n, kept in self._kept.items() if n >= oldest}

    def _report(self, out: list[RoleEffect]) -> None:
        if self._written is not None and self._epoch:
            report = m.CheckpointReport(self._written.n, self._written.digest, self._took_ms)
            out.append(Send(epoch_node(self._epoch), report))
