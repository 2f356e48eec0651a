"""Members: who speaks to us, in which run, and whether that run is alive.

Where it sits
    sealing  ->  MEMBERS  ->  link

What it promises
    P1  Nothing is taken from a run before it has proved to be alive: it must echo a number that it can
        only know from us. A recording of an earlier run cannot.
    P2  A member has one run that counts. When a newer one has proved itself, the older is over for good.
    P3  What is kept of runs that have proved nothing is bounded.

The number is a keyed hash of sender and run under a secret of this process, so that asking for the proof
needs no memory: whoever floods us with recordings cannot push out the question that matters.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from antiphon.transport.interface import Arrived
from antiphon.transport.packing import NONCE_BYTES
from antiphon.transport.reassembly import Assembler
from antiphon.transport.repair import MS, Gaps, Lack
from antiphon.transport.replay import ReplayWindow
from antiphon.transport.sealing import Opener

CHALLENGE_NS: Final = 20 * MS
CHALLENGE_NS_MAX: Final = 1_000 * MS
UNPROVEN_NS_MAX: Final = 5_000 * MS
UNPROVEN_MAX: Final = 2
HELD_BYTES_MAX: Final = 8 * 1024 * 1024
RETIRED_MAX: Final = 1_024
LATE_NS: Final = 10_000 * MS
"""So long after its end a datagram of a run may still have been on its way, or in a socket of ours."""


class Incoming:
    """One stream of a run. Without `gaps`, what is lost stays lost."""

    __slots__ = ("gaps", "window")

    def __init__(self, window: ReplayWindow[Lack], gaps: Gaps | None) -> None:
        self.window = window
        self.gaps = gaps


class PeerRun:
    """One life of another member, as far as we have heard of it."""

    __slots__ = (
        *("assembler", "challenge_at_ns", "challenge_interval_ns", "heard_ns", "held", "held_bytes"),
        *("is_proven", "met_beside", "opener", "run_id", "sender", "streams"),
    )

    def __init__(self, sender: int, run_id: bytes, opener: Opener, assembler: Assembler) -> None:
        self.sender = sender
        self.run_id = run_id
        self.opener = opener
        self.assembler = assembler
        self.streams: dict[int, Incoming] = {}
        self.is_proven = False
        self.held: list[Arrived] = []
        self.held_bytes = 0
        self.heard_ns = 0
        self.met_beside: PeerRun | None = None
        """The run that counted when this one was met."""
        self.challenge_at_ns = 0
        self.challenge_interval_ns = CHALLENGE_NS

    @property
    def is_full(self) -> bool:
        """Has it said as much as is kept of one that has proved nothing yet (P3)?"""
        return self.held_bytes + self.assembler.bytes > HELD_BYTES_MAX

    @property
    def given_up(self) -> int:
        """Datagrams and frames of this run that will not come any more."""
        lost = sum(stream.window.given_up for stream in self.streams.values() if stream.gaps is not None)
        return lost + self.assembler.given_up

    def challenged(self, now_ns: int) -> None:
        """It was asked for its proof; ask again later, less and less often."""
        self.challenge_at_ns = now_ns + self.challenge_interval_ns
        self.challenge_interval_ns = min(2 * self.challenge_interval_ns, CHALLENGE_NS_MAX)


class PeerMember:
    """Another member and its runs."""

    __slots__ = ("_retired", "current", "gave_up_before", "node", "unproven")

    def __init__(self, node: int) -> None:
        self.node = node
        self.current: PeerRun | None = None
        self.unproven: dict[bytes, PeerRun] = {}
        self.gave_up_before = 0
        """What its runs that are over never got through."""
        # The runs that are over, and when they were found to be.
        self._retired: dict[bytes, int] = {}

    def runs(self) -> list[PeerRun]:
        return [*([self.current] if self.current else []), *self.unproven.values()]

    def is_retired(self, run_id: bytes) -> bool:
        return run_id in self._retired

    def may_be_late(self, now_ns: int, run_id: bytes) -> bool:
        """Was this run, which is over, alive so short a time ago that what comes of it is only late?"""
        return now_ns - self._retired[run_id] < LATE_NS

    def met(self, run: PeerRun) -> PeerRun | None:
        """A run of which nothing was known has sealed a datagram; the one that had to go for it, if any."""
        self.unproven[run.run_id] = run
        run.met_beside = self.current
        if len(self.unproven) <= UNPROVEN_MAX:
            return None
        return self.unproven.pop(next(iter(self.unproven)))

    def proved(self, now_ns: int, run: PeerRun) -> None:
        """This run is alive; there is no other (P2)."""
        self.unproven.pop(run.run_id, None)
        if self.current is not None:
            self.gave_up_before += self.current.given_up
            self._retired[self.current.run_id] = now_ns
            if len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]
        self.current = run
        run.is_proven = True

    def forget_silent(self, now_ns: int) -> list[PeerRun]:
        """Let go of runs that never proved anything and say nothing any more; says which."""
        silent = [run for run in self.unproven.values() if now_ns - run.heard_ns >= UNPROVEN_NS_MAX]
        for run in silent:
            del self.unproven[run.run_id]
        return silent

    def was_life(self, run: PeerRun) -> bool:
        """Can a run that proved nothing have been a life of this member that has ended?

        Not if the run that counted when it came has lived on: a member has one process at a time.
        """
        current = self.current
        return current is None or current is not run.met_beside or current.heard_ns <= run.heard_ns


def challenge_for(secret: bytes, sender: int, run_id: bytes) -> bytes:
    """The number that this run of the sender has to echo."""
    return blake2b(sender.to_bytes(2, "little") + run_id, key=secret, digest_size=NONCE_BYTES).digest()
