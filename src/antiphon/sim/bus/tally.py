"""Tally: the smallest application of a channel, where only the bus is of interest.

Where it sits
    member  ->  TALLY  ->  producers, which hear how far it has applied

The tally stands in for the message manager in the simulator, in tests of real processes and in the bench.
Every entry is folded into a running digest, so that two nodes are equal exactly if they applied the same
order. Like the message manager the tally has checkpoints, and the primary tells how far it has applied.
"""

from __future__ import annotations

from struct import Struct

from xxhash import xxh3_128_digest

from antiphon.bus.effects import Multicast, Send
from antiphon.bus.messages import Applied, AppliedGet, Entry, EntryKind
from antiphon.journal.no_records import NoRecords
from antiphon.journal.ports import Buffer, Location

_STATE = Struct("<QQH16s")
STATE_BYTES = _STATE.size
_ENTRY = Struct("<QIBHQQ16s")


class Tally(NoRecords):
    """The state of one replica: how far it applied, and a digest. No payload is needed twice."""

    def __init__(self, node: int) -> None:
        self._node = node
        self.applied = 0
        self.term = 0
        self.primary = 0
        self.digest = bytes(16)
        self.is_primary = False
        # Counts of this life.
        self.envelopes = self.messages = 0
        self._announced = 0
        self._asked: dict[int, int] = {}
        self._opened = b""

    def apply(self, entry: Entry, payload: memoryview | None) -> None:
        first, count, kind, mid, _, digest, detail = entry
        assert first == self.applied + 1, f"number {first} follows {self.applied}"
        pid, pe, pseq = mid
        head = _ENTRY.pack(first, count, kind, pid, pe, pseq, digest)
        self.digest = xxh3_128_digest(self.digest + head + detail + xxh3_128_digest(payload or b""))
        if kind is EntryKind.DATA:
            self.envelopes += 1
            self.messages += count
        elif kind is EntryKind.PRIMARY_CLAIM and pe > self.term:
            self.term, self.primary = pe, pid
            self.is_primary = self.primary == self._node
        self.applied = first + count - 1

    def ask(self, sender: int, asked: AppliedGet) -> None:
        """A producer missed an announcement. Outcomes are a function of the order: any replica may tell
        them."""
        self._asked[sender] = asked.after

    def flush(self) -> list[Multicast | Send]:
        """The primary's announcements since the last time, and answers to those who missed one."""
        asked, self._asked = self._asked, {}
        effects: list[Multicast | Send] = [
            Send(sender, self._applied_after(after))
            for sender, after in asked.items()
            if after < self.applied
        ]
        while self.is_primary and self._announced < self.applied:
            applied = self._applied_after(self._announced)
            self._announced = applied.upto
            effects.append(Multicast(applied))
        return effects

    def _applied_after(self, after: int) -> Applied:
        return Applied(self.term, self.applied, (), after)

    def capture(self, n: int) -> tuple[bytes, bytes]:
        """Digest and bytes of the state after number n."""
        assert n == self.applied, f"a checkpoint at {n}, but {self.applied} is applied"
        return self.digest, _STATE.pack(self.applied, self.term, self.primary, self.digest)

    def restore(self, state: Buffer) -> None:
        self.applied, self.term, self.primary, self.digest = _STATE.unpack_from(state)

    def open_state(self, state: Buffer) -> tuple[bytes, tuple[Location, ...]]:
        """Look at the state of another node: its digest, and the records it refers to."""
        self._opened = bytes(state)
        digest: bytes = _STATE.unpack_from(self._opened)[3]
        return digest, ()

    def move_state(self) -> tuple[bytes, bytes]:
        """Digest and bytes of the opened state, as from `capture`."""
        digest: bytes = _STATE.unpack_from(self._opened)[3]
        return digest, self._opened

    def install_state(self, n: int, term_served: int) -> None:
        """The opened state becomes the tally's."""
        assert n > self.applied, f"a state after {n} takes the place of one after {self.applied}"
        self.restore(self._opened)
        assert self.applied == n, f"the state after {n} is not the one that is open"
        self.is_primary = term_served == self.term
        self._opened = b""
