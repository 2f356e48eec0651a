"""Interface: what a transport offers to a node, and what it has to be told.

Where it sits
    roles of the bus  ->  codec  ->  TRANSPORT  ->  the network  ->  TRANSPORT  ->  codec  ->  roles

What it promises
    P1  Frames arrive whole, from the member that they say, in the run that they say, at most once for
        each time they were sent. They may be lost, and may overtake each other.
    P2  `deliver` is called once per wake-up, with all that was drained.
    P3  Whatever arrives that is not from a member of this cluster has no effect but on a counter.
    P4  Memory is bounded on both sides, whatever the others do or do not do.

What it leaves to others
    What a frame says. Flow control between nodes: the roles keep what is under way below
    `window_bytes`; the transport only spreads bursts, and drops and counts what exceeds its queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from antiphon.transport.keys import GroupKeys
from antiphon.wire.lanes import ALL_LANES, Lane
from antiphon.wire.primitives import Buffer

Address: TypeAlias = tuple[str, int]


class Arrived(NamedTuple):
    """A whole frame. The view stays valid; whoever keeps a small one for long should copy it."""

    sender: int
    run_id: bytes
    frame: bytes | memoryview


Deliver: TypeAlias = Callable[[list[Arrived]], None]


def drop_all(arrived: list[Arrived]) -> None:
    """Where a transport delivers until it is told where to."""


class Peer(NamedTuple):
    """Where a member is reached, and which lanes it listens to."""

    host: str
    port: int
    lanes: frozenset[Lane] = ALL_LANES
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """Who we are, who the others are, and how much of everything there may be."""

    node: int
    cluster_id: bytes
    run_id: bytes
    """16 random bytes of this process; a run id used twice would use AEAD nonces twice."""
    peers: Mapping[int, Peer]
    """All members, this one among them."""
    keys: GroupKeys = field(default_factory=GroupKeys.none)
    groups: Mapping[Lane, Address] = field(default_factory=dict)
    """The multicast group and port of each lane; `udp` only."""
    interface: str = "127.0.0.1"
    """The address of the network card that multicasts go out by and come in on."""
    hops: int = 1
    """How many routers a multicast may cross, and one more."""

    datagram_bytes: int = 1400
    """What a datagram may hold without being cut on its way: 1400 where packets have 1500 bytes, up to
    60,000 on a loopback, between 8,000 and 8,900 where all cards and switches do jumbo frames."""
    frame_bytes_max: int = 16 * 1024 * 1024
    receive_buffer_bytes: int = 4 * 1024 * 1024
    """What each socket asks of the kernel, which may grant less (`net.core.rmem_max`)."""
    pace_bytes_per_second: int = 1_000_000_000
    """What all sockets of this node send in the long run; a burst may be half a receive buffer. On a
    network of 1 Gbit/s 100,000,000 are right."""
    queue_bytes_max: int = 32 * 1024 * 1024
    """What may wait for the network (`udp`), or for one peer (`tcp`); frames beyond are dropped."""
    repair_bytes_max: int = 8 * 1024 * 1024
    """What is kept of each stream in case somebody asks for it again."""
    partial_bytes_max: int = 32 * 1024 * 1024
    """What is kept of one member's frames that have not come together yet."""
    give_up_ms: int = 3_000
    """How long a lost datagram is asked for."""

    def __post_init__(self) -> None:
        if self.node not in self.peers:
            raise ValueError(f"node {self.node} is not among the members {sorted(self.peers)}")
        if len(self.cluster_id) != 16 or len(self.run_id) != 16:
            raise ValueError("a cluster id and a run id have 16 bytes each")
        if not 576 <= self.datagram_bytes <= 65_000:
            raise ValueError(f"datagrams of {self.datagram_bytes} bytes; possible are 576 to 65,000")

    @property
    def others(self) -> list[int]:
        """The members but this one."""
        return [node for node in sorted(self.peers) if node != self.node]

    @property
    def names(self) -> dict[int, str]:
        """What the members are called, for those who read the log."""
        return {node: peer.name or f"member {node}" for node, peer in self.peers.items()}


@dataclass(slots=True)
class Counters:
    """What went to and came from one member. What is said to all is counted for the member that says it."""

    datagrams_sent: int = 0
    bytes_sent: int = 0
    frames_sent: int = 0
    datagrams: int = 0
    """Received and found genuine, as are the bytes, frames and fragments below."""
    bytes: int = 0
    frames: int = 0
    fragments: int = 0
    repairs_asked: int = 0
    """Datagrams that we lacked and asked for; one that was asked for twice counts twice."""
    repairs_given: int = 0
    """Datagrams that were sent again because somebody lacked them."""
    gave_up: int = 0
    """Datagrams that never came, and frames for whose parts there was no room."""
    dropped: int = 0
    """Frames and datagrams that we did not send, since too much was waiting or the kernel refused."""
    replays: int = 0
    """Datagrams that we have had, or that are too old to tell; repairs that others needed are among them."""
    unproven: int = 0
    """Runs that were let go before they had proved to be alive."""
    wrong_key: int = 0
    other_cluster: int = 0
    garbage: int = 0
    socket_drops: int = 0
    """Datagrams for which the kernel had no room; counted for this member itself."""


NOBODY: Final = None
"""In `counters()`, whom that is counted for which comes from no member."""


class Transport(Protocol):
    """Frames to and from the other members."""

    deliver: Deliver
    flushes_itself: bool
    """Does what was said leave at the end of the round without a `flush`? Who flushes after every step, and
    so would be woken for nothing, says no. What is said while frames are delivered leaves after that."""
    gather_seconds: float
    """For so long what arrives may be left lying, so that more of it is taken at once. A transport that
    cannot do so takes it as it comes."""

    async def start(self) -> None:
        """Open sockets; `NodeError` when that is impossible. Members need not be there yet."""

    async def close(self) -> None:
        """Send what waits, as far as the sockets take it, and close them."""

    def send(self, to: int, buffers: Sequence[Buffer]) -> None:
        """A frame for one other member. It leaves with the next `flush`, or at the end of this round."""

    def multicast(self, lane: Lane, buffers: Sequence[Buffer]) -> None:
        """A frame for all other members that listen to this lane."""

    def flush(self) -> None:
        """The step is over: what it wanted sent goes out. Its buffers may change afterwards."""

    def look(self) -> None:
        """Deliver now what has arrived, if the transport can; else it comes with the next wake-up."""

    def counters(self) -> Mapping[int | None, Counters]:
        """What happened so far, by member."""

    @property
    def whole_bytes(self) -> int:
        """Up to so many bytes a frame travels in one piece. Whoever gathers had better not gather more."""

    @property
    def window_bytes(self) -> int:
        """What a member may have under way to another before losses are likely.

        Counted as the kernel does, each datagram as `kernel_bytes`.
        """


KERNEL_BYTES_MIN: Final = 1280


def kernel_bytes(size: int) -> int:
    """What a datagram takes of a receive buffer: however small, a block of kernel memory."""
    return size if size > KERNEL_BYTES_MIN else KERNEL_BYTES_MIN
