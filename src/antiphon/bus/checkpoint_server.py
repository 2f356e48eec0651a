"""Checkpoint server: makes the state after an agreed number durable, and says so.

Where it sits
    member  ->  CHECKPOINT SERVER  ->  a file;   CHECKPOINT SERVER  ->  sequencer

What it promises
    P1  A checkpoint at n is the fold of 1 … n: the ledger of the order and the message manager's state,
        taken at the same moment.
    P2  It is reported only when it is durable, and again to every new sequencer and with every Nth
        heartbeat, until one is stable that covers it.
    P3  Its digest is over logical state only, so that servers with different disks can be compared.

What it leaves to others
    When to take one is the sequencer's (the mark); what counts as stable is an entry of the order; which
    files may go is told by `ReleaseSpace`: a checkpoint below the base is no longer needed. The base
    stands at the stable checkpoint before the newest one, so a damaged file leaves one to fall back on.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Alarm,
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
from antiphon.bus.group import GroupConfig
from antiphon.bus.messages import EntryKind
from antiphon.errors import ProtocolError
from antiphon.ids import epoch_node
from antiphon.wire.primitives import Buffer, Reader, Writer

_MAGIC: Final = 0x504B4341
_HEAD = Struct("<IQ")
DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What a checkpoint holds: the ledger at n, and what the message manager made of 1 … n."""

    n: int
    ledger: bytes
    manager_digest: bytes
    manager_state: Buffer

    @property
    def digest(self) -> bytes:
        """What the servers compare (P3)."""
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


class CheckpointServer:
    """The checkpoint server of one node for one channel."""

    def __init__(
        self,
        config: GroupConfig,
        node: int,
        written: tuple[int, bytes, int] | None = None,
        older_n: int = 0,
    ) -> None:
        self._config = config
        self._node = node
        self._epoch = 0
        self._beats = 0
        # The newest durable checkpoint that is not known to be stable: n, digest, size.
        self._written = written
        self._last_n = written[0] if written else 0
        # The newest durable checkpoint but one: what this node can still fall back on.
        self.fallback_n = older_n
        self._under_way: tuple[int, bytes] | None = None
        self._writing: tuple[int, bytes, int] | None = None

    def next_deadline_ns(self) -> int | None:
        return None

    def begin(self, n: int, ledger: bytes) -> bool:
        """The member has applied a mark: is a checkpoint wanted? Not while one is being written."""
        if self._under_way is not None or n <= self._last_n:
            return False
        self._under_way = (n, ledger)
        return True

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        """Take what happened, return what must happen next."""
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
                case CheckpointWritten(n):
                    self._on_written(n, out)
                case Learned():
                    self._on_learned(event, out)
                case _:
                    pass
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
        encoded, digest = state.encode(), state.digest
        self._writing = (captured.n, digest, len(encoded))
        out.append(WriteCheckpoint(captured.n, digest, encoded, captured.segments))

    def _on_written(self, n: int, out: list[RoleEffect]) -> None:
        assert self._writing is not None and self._writing[0] == n, f"checkpoint {n} was not being written"
        self._written, self._writing, self._under_way = self._writing, None, None
        self.fallback_n = self._last_n
        self._last_n = n
        self._report(out)

    def _on_learned(self, learned: Learned, out: list[RoleEffect]) -> None:
        for entry in learned.notable:
            if entry.kind is not EntryKind.CHECKPOINT_STABLE or self._written is None:
                continue
            stable = StableDetail.decode(entry.detail)
            if stable.n == self._written[0] and stable.digest != self._written[1]:
                # Our own fold differs from the others'. The report makes the sequencer keep everything.
                out.append(Alarm(f"DIVERGENCE: this node's checkpoint at {stable.n} is not the stable one"))
                self._report(out)
            elif stable.n >= self._written[0]:
                self._written = None

    def _report(self, out: list[RoleEffect]) -> None:
        if self._written is not None and self._epoch:
            n, digest, size = self._written
            out.append(Send(epoch_node(self._epoch), m.CheckpointReport(n, digest, size)))
