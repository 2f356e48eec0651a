"""Links of a few members and the network between them, all in one place and without a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from antiphon.transport.interface import ArrivedFrame, Peer, TransportSettings
from antiphon.transport.keys import GroupKeys
from antiphon.transport.link import NodeLink
from antiphon.transport.sealing import LANE, UNICAST
from antiphon.wire.lanes import ALL_LANES, Lane

MS = 1_000_000
CLUSTER = b"our own cluster."
KEYS = GroupKeys.of([(1, b"k" * 32)])


def run_id(node: int, life: int = 1) -> bytes:
    return bytes([node, life]) * 8


def settings_of(
    node: int,
    *,
    members: int = 3,
    life: int = 1,
    keys: GroupKeys = KEYS,
    cluster_id: bytes = CLUSTER,
    lanes: dict[int, frozenset[Lane]] | None = None,
    **others: int,
) -> TransportSettings:
    peers = {
        number: Peer("127.0.0.1", 7000 + number, (lanes or {}).get(number, ALL_LANES))
        for number in range(1, members + 1)
    }
    return TransportSettings(
        node=node, cluster_id=cluster_id, run_id=run_id(node, life), peers=peers, keys=keys, **others
    )


class Network:
    """Carries datagrams at once, except those that `loses` names; time passes only when told."""

    def __init__(self, *settings: TransportSettings, is_repairing: bool = True) -> None:
        self.now_ns = 1_000 * MS
        self.is_repairing = is_repairing
        self.log: list[str] = []
        self.links: dict[int, NodeLink] = {}
        self.frames: dict[int, list[ArrivedFrame]] = {}
        self.carried: list[tuple[int, int, bytes]] = []
        """(sender, destination, datagram) of everything that was sent."""
        self.loses: Callable[[int, int, bytes], bool] = lambda sender, receiver, datagram: False
        for one in settings:
            self.join(one)

    def join(self, settings: TransportSettings) -> NodeLink:
        """A member starts, perhaps for the second time."""
        node = settings.node
        link = NodeLink(
            settings,
            secret=settings.run_id * 2,
            is_repairing=self.is_repairing,
            datagram_bytes=settings.datagram_bytes,
            log=self.log.append,
        )
        self.links[node] = link
        self.frames[node] = []
        link.start(self.now_ns)
        return link

    def settle(self) -> None:
        """Carry what is there, and the answers, until nobody has anything to say."""
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for node, link in list(self.links.items()):
                for destination, datagram in link.flush(self.now_ns):
                    is_quiet = False
                    self._carry(node, destination, datagram.head + datagram.rest)
        self._collect()

    def _carry(self, sender: int, destination: int, datagram: bytes) -> None:
        self.carried.append((sender, destination, datagram))
        for receiver in self._receivers(sender, destination):
            if not self.loses(sender, receiver, datagram):
                self.links[receiver].receive(self.now_ns, datagram)

    def _receivers(self, sender: int, destination: int) -> Iterable[int]:
        if destination >= UNICAST:
            return [destination - UNICAST] if destination - UNICAST in self.links else []
        lane = Lane(destination - LANE)
        return [
            node
            for node, link in self.links.items()
            if node != sender and lane in link.settings.peers[node].lanes
        ]

    def _collect(self) -> None:
        for node, link in self.links.items():
            self.frames[node] += link.arrived
            link.arrived = []

    def passes(self, ms: int) -> None:
        """So much time goes by, and everybody wakes when they want to."""
        end_ns = self.now_ns + ms * MS
        while True:
            self.settle()
            due = [link.deadline_ns for link in self.links.values() if link.deadline_ns is not None]
            if not due or min(due) > end_ns:
                break
            self.now_ns = max(self.now_ns, min(due))
            for link in self.links.values():
                if link.deadline_ns is not None and link.deadline_ns <= self.now_ns:
                    link.on_timer(self.now_ns)
        self.now_ns = end_ns

    def say(self, node: int, stream: int, frame: bytes, *, is_periodic: bool = False) -> None:
        self.links[node].send(stream, [frame], is_periodic=is_periodic)

    def heard(self, node: int) -> list[bytes]:
        """The frames that came out at a member so far."""
        return [bytes(arrived.frame) for arrived in self.frames[node]]


def two(**others: int) -> Network:
    """Two members that know each other."""
    network = Network(*(settings_of(node, members=2, **others) for node in (1, 2)))
    network.settle()
    return network


def three(**others: int) -> Network:
    network = Network(*(settings_of(node, **others) for node in (1, 2, 3)))
    network.settle()
    return network
