"""Members: the other members and their runs, and whether a run is alive.

Where it sits
    sealing  ->  MEMBERS  ->  link

What it promises
    TMB1  Nothing is taken from a run before it has proved to be alive: it must echo a number that it can only
          know from us. A recording of an earlier run cannot.
    TMB2  A member has one run that counts. When a newer one has proved itself, the older is over for good.
    TMB3  What is kept of unproven runs is bounded.

The number is a keyed hash of sender and run under a secret of this process, so that a challenge needs no
memory: a flood of recordings cannot push out the challenge that matters.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from antiphon.transport.interface import ArrivedFrame
from antiphon.transport.packing import NONCE_BYTES, Assembler
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
"""For so long after its end datagrams of a run may still be on their way, or in a socket."""


class Incoming:
    """One stream of a run. Without `gaps`, a lost datagram stays lost."""

    __slots__ = ("gaps", "window")

    def __init__(self, window: ReplayWindow[Lack], gaps: Gaps | None) -> None:
        self.window = window
        self.gaps = gaps


class PeerRun:
    """One run of another member, as far as we have heard of it."""

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
        self.held: list[ArrivedFrame] = []
        self.held_bytes = 0
        self.heard_ns = 0
        self.met_beside: PeerRun | None = None
        """The run that counted when this one was met."""
        self.challenge_at_ns = 0
        self.challenge_interval_ns = CHALLENGE_NS

    @property
    def is_full(self) -> bool:
        """Has an unproven run sent as much as is kept of one (TMB3)?"""
        return self.held_bytes + self.assembler.bytes > HELD_BYTES_MAX

    @property
    def given_up(self) -> int:
        """How many datagrams and frames of this run will not come any more."""
        lost = sum(stream.window.given_up for stream in self.streams.values() if stream.gaps is not None)
        return lost + self.assembler.given_up

    def challenged(self, now_ns: int) -> None:
        """A challenge was sent; the next one later, less and less often."""
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
        """How much of its former runs was given up."""
        # The runs that are over, and since when.
        self._retired: dict[bytes, int] = {}

    def runs(self) -> list[PeerRun]:
        return [*([self.current] if self.current else []), *self.unproven.values()]

    def is_retired(self, run_id: bytes) -> bool:
        return run_id in self._retired

    def may_be_late(self, now_ns: int, run_id: bytes) -> bool:
        """Did this run end so short a time ago that its datagrams are only late?"""
        return now_ns - self._retired[run_id] < LATE_NS

    def met(self, run: PeerRun) -> PeerRun | None:
        """An unknown run has sealed a datagram; returns the unproven run that had to go for it, if any."""
        self.unproven[run.run_id] = run
        run.met_beside = self.current
        if len(self.unproven) <= UNPROVEN_MAX:
            return None
        return self.unproven.pop(next(iter(self.unproven)))

    def proved(self, now_ns: int, run: PeerRun) -> None:
        """This run is alive, and the only one (TMB2)."""
        self.unproven.pop(run.run_id, None)
        if self.current is not None:
            self.gave_up_before += self.current.given_up
            self._retired[self.current.run_id] = now_ns
            if len(self._retired) > RETIRED_MAX:
                del self._retired[next(iter(self._retired))]
        self.current = run
        run.is_proven = True

    def forget_silent(self, now_ns: int) -> list[PeerRun]:
        """Drop silent unproven runs; returns them."""
        silent = [run for run in self.unproven.values() if now_ns - run.heard_ns >= UNPROVEN_NS_MAX]
        for run in silent:
            del self.unproven[run.run_id]
        return silent

    def was_life(self, run: PeerRun) -> bool:
        """Can this unproven run have been a former run of the member?

        Not if the run that counted when it came has lived on: a member has one process at a time.
        """
        current = self.current
        return current is None or current is not run.met_beside or current.heard_ns <= run.heard_ns


def challenge_for(secret: bytes, sender: int, run_id: bytes) -> bytes:
    """The number that this run of the sender has to echo."""
    return blake2b(sender.to_bytes(2, "little") + run_id, key=secret, digest_size=NONCE_BYTES).digest()
