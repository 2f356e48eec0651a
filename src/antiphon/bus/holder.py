"""Holder: gives the newest stable checkpoint of its node to a node that needs it.

Where it sits
    joiner  ->  HOLDER  ->  checkpoint file, journal  ->  HOLDER  ->  joiner

What it promises
    HLD1  Only a stable checkpoint is given: a committed entry names its digest. A joiner that finds no other
          proof gets the checkpoint with which the holder's own log begins, which is stable in any case.
    HLD2  While a joiner asks for a checkpoint, and for `checkpoint_hold_ms` after it last did, the file, the
          records it refers to and the log behind it stay, whatever becomes stable meanwhile.
    HLD3  A record that cannot be read is left out; the joiner is not told that it does not exist.

What it leaves to others
    The driver reads a piece (`ReadCheckpoint`) and keeps the files (`HoldCheckpoints`). The joiner chooses a
    holder, and verifies the pieces.

A state names its records by places in the journal of its node. So a checkpoint and its records come from one
holder; those of another are other bytes with the same meaning.
"""

from __future__ import annotations

from xxhash import xxh3_128_digest

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer, KeptCheckpoint
from antiphon.bus.effects import (
    Alarm,
    CheckpointRead,
    HoldCheckpoints,
    ReadCheckpoint,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    SpaceChanged,
    Spoilt,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import NO_DIGEST
from antiphon.bus.ports import Location, Payloads
from antiphon.bus.schema import Machine, not_for
from antiphon.errors import Damaged
from antiphon.events import CHECKPOINT_UNREADABLE


class Holder:
    """The holder of one node for one channel."""

    def __init__(
        self, config: GroupConfig, node: int, payloads: Payloads, checkpoint_server: CheckpointServer
    ) -> None:
        self._config = config
        self._node = node
        self._payloads = payloads
        # The checkpoint server learns which checkpoints are held, so that the base stays behind them.
        self._checkpoint_server = checkpoint_server
        # The checkpoints that joiners are fetching, and until when each is held.
        self._held: dict[int, KeptCheckpoint] = {}
        self._until: dict[int, int] = {}
        # Files that turned out not to be readable.
        self._spoilt: list[int] = []

    def reconfigure(self, config: GroupConfig) -> None:
        self._config = config

    def next_deadline_ns(self) -> int | None:
        return min(self._until.values(), default=None)

    def step(self, now_ns: int, events: list[RoleEvent]) -> list[RoleEffect]:
        out: list[RoleEffect] = []
        held_before = min(self._held, default=0)
        for event in events:
            match event:
                case Received(sender, m.CheckpointGet() as asked):
                    if sender in self._config.nodes:
                        self._on_get(now_ns, sender, asked, out)
                case Received(sender, m.StoredGet() as asked):
                    if sender in self._config.nodes:
                        self._on_stored_get(now_ns, sender, asked, out)
                case CheckpointRead():
                    self._on_read(event, out)
                case SpaceChanged(is_tight=True):
                    # Checkpoints held for other nodes go first; the joiners can begin again.
                    self._held.clear()
                    self._until.clear()
                case Received(_, message):
                    not_for(Machine.HOLDER, message)
                case _:
                    pass
        for n in [n for n, until in self._until.items() if now_ns >= until]:
            del self._held[n], self._until[n]
        held = min(self._held, default=0)
        if held != held_before:
            self._checkpoint_server.held_n = held
            # Before the reading: the file must still be there then.
            out.insert(0, HoldCheckpoints(held))
        return out

    # -- the checkpoint ----------------------------------------------------------------------------

    def _offer(self) -> KeptCheckpoint | None:
        stable = self._checkpoint_server.stable
        return stable if stable is not None and stable.n not in self._spoilt else None

    def _find(self, now_ns: int, n: int) -> KeptCheckpoint | None:
        """The checkpoint at n, held from now on; None if it is not here any more."""
        kept = self._held.get(n)
        if kept is None:
            given = (self._offer(), self._checkpoint_server.at_base)
            kept = next((one for one in given if one is not None and one.n == n), None)
            if kept is None or n in self._spoilt:
                return None
            self._held[n] = kept
        self._until[n] = now_ns + self._config.checkpoint_hold_ms * MS
        return kept

    def _on_get(self, now_ns: int, sender: int, asked: m.CheckpointGet, out: list[RoleEffect]) -> None:
        kept = self._find(now_ns, asked.n) if asked.n else None
        if kept is None or asked.offset >= kept.size:
            self._describe(sender, kept or self._offer(), out)
            return
        length = min(self._config.checkpoint_piece_bytes, kept.size - asked.offset)
        out.append(ReadCheckpoint(kept.n, asked.offset, length, sender))

    def _describe(self, to: int, kept: KeptCheckpoint | None, out: list[RoleEffect]) -> None:
        if kept is None:
            out.append(Send(to, m.CheckpointChunk(0, NO_DIGEST, 0, 0, b"")))
        else:
            out.append(Send(to, m.CheckpointChunk(kept.n, kept.digest, kept.size, 0, b"")))

    def _on_read(self, read: CheckpointRead, out: list[RoleEffect]) -> None:
        kept = self._held.get(read.n)
        if kept is None:
            # The reading took longer than the hold.
            return
        if read.data is None:
            problem = f"the checkpoint at {read.n} cannot be read, and is given to nobody"
            out.append(Alarm(CHECKPOINT_UNREADABLE(problem=problem)))
            self._spoilt.append(read.n)
            del self._held[read.n], self._until[read.n]
            self._describe(read.to, self._offer(), out)
            return
        checksum = xxh3_128_digest(read.data)
        chunk = m.CheckpointChunk(kept.n, kept.digest, kept.size, read.offset, read.data, checksum)
        out.append(Send(read.to, chunk))

    # -- the records it refers to ------------------------------------------------------------------

    def _on_stored_get(self, now_ns: int, sender: int, asked: m.StoredGet, out: list[RoleEffect]) -> None:
        if self._find(now_ns, asked.n) is None:
            out.append(Send(sender, m.StoredReply(asked.n, (), (), is_gone=True)))
            return
        places: list[m.Place] = []
        items: list[m.Data] = []
        size = 0
        for place in asked.places:
            if items and size + place.length > self._config.stored_bytes_max:
                break
            try:
                record = self._payloads.record(Location(*place))
            except Damaged as error:
                problem = f"a record of the checkpoint at {asked.n} cannot be read: {error}"
                out.append(Alarm(CHECKPOINT_UNREADABLE(problem=problem)))
                out.append(Spoilt(Location(*place), error))
                continue
            places.append(place)
            items.append(m.Data(*record))
            size += place.length
        out.append(Send(sender, m.StoredReply(asked.n, tuple(places), tuple(items))))
