"""Interface: the transport as a node sees it, with its settings and counters.

Where it sits
    roles of the bus  ->  codec  ->  TRANSPORT  ->  the network  ->  TRANSPORT  ->  codec  ->  roles

What it promises
    TRA1  Frames arrive whole, from the member and the run that they name, at most once for each time they
          were sent. They may be lost, and may overtake each other.
    TRA2  `deliver` is called once per wake-up, with all that was drained.
    TRA3  A datagram that is not from a member of this cluster has no effect but on a counter.
    TRA4  Memory is bounded on both sides, whatever the others do or do not do.

What it leaves to others
    The contents of a frame. Flow control between nodes: the roles keep what is under way below
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


class ArrivedFrame(NamedTuple):
    """A whole frame. The view stays valid; copy a small view that is kept for long."""

    sender: int
    run_id: bytes
    frame: bytes | memoryview


Deliver: TypeAlias = Callable[[list[ArrivedFrame]], None]


def drop_all(arrived: list[ArrivedFrame]) -> None:
    """The receiver of a transport that was not given one."""


class Peer(NamedTuple):
    """The address of a member, and the lanes it listens to."""

    host: str
    port: int
    lanes: frozenset[Lane] = ALL_LANES
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportSettings:
    """This member, the other members, and the limits."""

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
    """The address of the network card for multicasts."""
    hops: int = 1
    """How many routers a multicast may cross, plus one."""

    datagram_bytes: int = 1400
    """The size of a datagram that is not cut on its way: 1400 where packets have 1500 bytes, up to 60,000 on
    a loopback, between 8,000 and 8,900 where all cards and switches do jumbo frames."""
    frame_bytes_max: int = 16 * 1024 * 1024
    receive_buffer_bytes: int = 4 * 1024 * 1024
    """The receive buffer that each socket asks of the kernel, which may grant less (`net.core.rmem_max`)."""
    pace_bytes_per_second: int = 1_000_000_000
    """How much all sockets of this node send in the long run; a burst may be half a receive buffer. On a
    network of 1 Gbit/s 100,000,000 are right."""
    queue_bytes_max: int = 32 * 1024 * 1024
    """How much may wait for the network (`udp`), or for one peer (`tcp`); frames beyond are dropped."""
    repair_bytes_max: int = 8 * 1024 * 1024
    """How much of each stream is kept to be sent again."""
    partial_bytes_max: int = 32 * 1024 * 1024
    """How much is kept of one member's incomplete frames."""
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
        return [node for node in sorted(self.peers) if node != self.node]

    @property
    def names(self) -> dict[int, str]:
        """The names of the members, for the log."""
        return {node: peer.name or f"member {node}" for node, peer in self.peers.items()}


@dataclass(slots=True)
class Counters:
    """The traffic to and from one member. Multicasts count for their sender."""

    datagrams_sent: int = 0
    bytes_sent: int = 0
    frames_sent: int = 0
    datagrams: int = 0
    """Received and found genuine, as are the bytes, frames and fragments below."""
    bytes: int = 0
    frames: int = 0
    fragments: int = 0
    repairs_asked: int = 0
    """Missing datagrams that were asked for, counted for each question."""
    repairs_given: int = 0
    """Datagrams that were sent again for a member that lacked them."""
    gave_up: int = 0
    """Datagrams that never came, and frames for whose parts there was no room."""
    dropped: int = 0
    """Frames and datagrams that were not sent, since too much was waiting or the kernel refused."""
    replays: int = 0
    """Datagrams that came before, or are too old to tell; repairs for other members are among them."""
    unproven: int = 0
    """Runs that were let go before they had proved to be alive."""
    wrong_key: int = 0
    other_cluster: int = 0
    garbage: int = 0
    socket_drops: int = 0
    """Datagrams for which the kernel had no room; counted for this member itself."""


NOBODY: Final = None
"""The key in `counters()` for datagrams that come from no member."""


class Transport(Protocol):
    deliver: Deliver
    flushes_itself: bool
    """Do frames leave at the end of the round without a `flush`? An owner that flushes after every step sets
    this to False, to save a wake-up. Frames sent while frames are delivered leave after that."""
    gather_seconds: float
    """How long arrivals may wait, so that more of them are taken at once. A transport that cannot wait takes
    them as they come."""

    async def start(self) -> None:
        """Open sockets; `NodeError` when that is impossible. Members need not be there yet."""

    async def close(self) -> None:
        """Send what waits, as far as the sockets take it, and close them."""

    def send(self, to: int, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        """Send a frame to one other member, with the next `flush` or at the end of this round. For a periodic
        frame the next one makes up: the transport need not see to it that its loss is noticed."""

    def multicast(self, lane: Lane, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        """Send a frame to all other members that listen to this lane."""

    def flush(self) -> None:
        """Send the frames of this step. Their buffers may change afterwards."""

    def look(self) -> None:
        """Deliver now what has arrived, if the transport can; else it comes with the next wake-up."""

    def counters(self) -> Mapping[int | None, Counters]:
        """The traffic so far, by member."""

    @property
    def whole_bytes(self) -> int:
        """The largest frame that travels in one piece; gathering more than that does not pay."""

    @property
    def window_bytes(self) -> int:
        """How much a member may have under way to another before losses are likely.

        Counted as the kernel does, each datagram as `kernel_bytes`.
        """


KERNEL_BYTES_MIN: Final = 1280


def kernel_bytes(size: int) -> int:
    """The share of a receive buffer that a datagram takes: however small, a block of kernel memory."""
    return size if size > KERNEL_BYTES_MIN else KERNEL_BYTES_MIN
