"""Topology: the nodes of a cluster, their addresses, and their roles on each channel.

    TOP1  A channel's group lists its message managers by rank, then its witnesses, then all client managers
          of the cluster; those have no disk and no vote.
    TOP2  At most five message managers vote, those of the lowest ranks, and the votes of a channel are odd.
          The one exception is two message managers without a witness: nothing is lost with one disk, and
          nothing is ordered while one of them is away.
    TOP3  A voter is listed with the disk it votes with.

Random ids and free ports come in as data (`Sources`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from antiphon.bus.group import NO_DISK, GroupConfig
from antiphon.errors import NodeError
from antiphon.names import PLAIN, SECURE
from antiphon.transport.interface import Address, Peer
from antiphon.wire.lanes import Lane

LOOPBACK: Final = "127.0.0.1"
VOTERS_MAX: Final = 5
CHANNELS_MAX: Final = 52
NODES_MAX: Final = 0xFFFF

TLS_CLIENT_CA: Final = "tls/ca.pem"

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"

# A loopback takes large datagrams whole; between machines they have to fit into packets.
_DATAGRAM_BYTES_LOOPBACK: Final = 60_000
_DATAGRAM_BYTES: Final = 1_400


class TlsMode(StrEnum):
    """How clients connect."""

    OFF = "off"
    ON = "on"
    # Clients, too, show a certificate.
    MUTUAL = "mutual"


class Role(StrEnum):
    """The kinds of nodes."""

    CLIENT_MANAGER = "client-manager"
    MESSAGE_MANAGER = "message-manager"
    WITNESS = "witness"


LANES: Final[dict[Role, frozenset[Lane]]] = {
    Role.CLIENT_MANAGER: frozenset({Lane.CONTROL, Lane.DELIVERIES}),
    Role.MESSAGE_MANAGER: frozenset({Lane.DATA, Lane.CONTROL}),
    Role.WITNESS: frozenset({Lane.CONTROL}),
}
"""The lanes that each kind of node listens to; other traffic does not wake it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node and its addresses."""

    name: str
    number: int
    role: Role
    # Of message managers and witnesses.
    channel: str | None = None
    # Of message managers: the lowest stands first for sequencer.
    rank: int | None = None
    host: str = LOOPBACK
    # The address of the network card for multicasts; empty: that of the host.
    interface: str = ""
    # A port for each channel that the node takes part in.
    bus: Mapping[str, int]
    # Of client managers: where clients connect.
    listen: Address | None = None
    # Of client managers: the files of their certificate and its key, relative to the file that says so.
    tls_certificate: str = ""
    tls_key: str = ""
    # Of message managers and witnesses: the disk that the cluster was created with.
    disk_id: bytes = NO_DISK
    # Of message managers and witnesses: where the data lies, relative to the file that says so.
    data: str = ""

    @property
    def has_disk(self) -> bool:
        return self.role is not Role.CLIENT_MANAGER


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """The common settings of the nodes of a channel."""

    name: str
    # The multicast group of each lane; `udp` only.
    multicast: Mapping[Lane, Address] = field(default_factory=dict)
    # Down to how many copies the channel goes on while message managers are silent; 0: never fewer than two.
    min_copies: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A whole cluster, as its file describes it."""

    name: str = "antiphon"
    cluster_id: bytes
    transport: str
    key_file: str = "cluster.key"
    tls: TlsMode = TlsMode.OFF
    # The file of the CA of the clients' certificates, where they need one.
    tls_client_ca: str = TLS_CLIENT_CA
    datagram_bytes: int = _DATAGRAM_BYTES
    hops: int = 1
    # Settings that are not the default of `GroupConfig` and of the journal's `Settings`.
    bus: Mapping[str, int] = field(default_factory=dict)
    journal: Mapping[str, int] = field(default_factory=dict)
    channels: tuple[ChannelSpec, ...]
    nodes: tuple[NodeSpec, ...]

    def node(self, name: str) -> NodeSpec:
        """The node of this name; `NodeError` that tells which there are."""
        for one in self.nodes:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.nodes)
        raise NodeError(f"the cluster has no node {name!r}; there are {known}")

    def channel(self, name: str) -> ChannelSpec:
        return next(one for one in self.channels if one.name == name)

    def message_managers(self, channel: str) -> list[NodeSpec]:
        """Those of a channel, the lowest rank first."""
        found = [one for one in self.nodes if one.role is Role.MESSAGE_MANAGER and one.channel == channel]
        return sorted(found, key=lambda one: one.rank or 0)

    def witnesses(self, channel: str) -> list[NodeSpec]:
        return [one for one in self.nodes if one.role is Role.WITNESS and one.channel == channel]

    @property
    def client_managers(self) -> list[NodeSpec]:
        """All of them: each takes part in every channel."""
        return [one for one in self.nodes if one.role is Role.CLIENT_MANAGER]

    def members(self, channel: str) -> list[NodeSpec]:
        """The nodes that take part in a channel (TOP1)."""
        return [*self.message_managers(channel), *self.witnesses(channel), *self.client_managers]

    def channels_of(self, node: NodeSpec) -> list[ChannelSpec]:
        return [one for one in self.channels if node.channel in (None, one.name)]

    @property
    def servers(self) -> list[str]:
        """The addresses for clients, in the order in which they are to be tried."""
        return [f"{host}:{port}" for host, port in (one.listen for one in self.nodes if one.listen)]

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"{PLAIN if self.tls is TlsMode.OFF else SECURE}://{','.join(self.servers)}"

    def peers(self, channel: str) -> dict[int, Peer]:
        """The members of a channel with their addresses and lanes."""
        return {
            one.number: Peer(one.host, one.bus[channel], LANES[one.role], one.name)
            for one in self.members(channel)
        }

    def bus_id(self, channel: str) -> bytes:
        """The id under which the members of a channel know each other; other channels have other ids."""
        return blake2b(self.cluster_id + channel.encode(), digest_size=16).digest()

    def group_config(self, channel: str) -> GroupConfig:
        """The configuration of a channel when the cluster is created."""
        members = self.members(channel)
        managers = [one.number for one in self.message_managers(channel)]
        witnesses = [one.number for one in self.witnesses(channel)]
        voters = managers[: voting_managers(len(managers), len(witnesses))]
        quorum = (len(voters) + len(witnesses)) // 2 + 1
        copies = min(len(managers), 2)
        return GroupConfig(
            group=channel,
            nodes=tuple([one.number for one in members]),
            disk_ids=tuple([one.disk_id for one in members]),
            commit_servers=(*voters, *witnesses),
            data_servers=tuple(managers),
            checkpoint_servers=tuple(managers),
            # A sequencer must be a voter.
            candidates=tuple(voters),
            data_quantity=copies,
            commit_quantity=quorum,
            seal_quantity=quorum,
            checkpoint_quantity=copies,
            min_copies=self.channel(channel).min_copies,
            **self.bus,
        )


def tls_files_of(name: str) -> dict[str, str]:
    """Where the certificate of a client manager and its key are, if nothing else is said."""
    return {"tls_certificate": f"tls/{name}.pem", "tls_key": f"tls/{name}.key"}


def voting_managers(managers: int, witnesses: int) -> int:
    """How many message managers of a channel vote (TOP2)."""
    voters = min(managers, VOTERS_MAX)
    is_even = (voters + witnesses) % 2 == 0
    # A fourth vote would only make three of four necessary where two of three were enough.
    return voters - 1 if is_even and not witnesses and voters > 2 else voters


def complaint_about_votes(managers: int, witnesses: int) -> str:
    """Why so many witnesses make no sense; empty if they do."""
    votes = voting_managers(managers, witnesses) + witnesses
    if not witnesses or votes % 2 == 1:
        return ""
    return (
        f"{managers} message managers with {witnesses} witnesses give a channel {votes} votes, and an odd "
        f"number is needed: have {witnesses - 1} or {witnesses + 1} witnesses"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The size of a new cluster."""

    client_managers: int = 1
    # Of each channel.
    message_managers: int = 1
    channels: int = 1
    # Of each channel; None: one if there are two message managers, else none.
    witnesses: int | None = None
    transport: str = "udp"
    tls: TlsMode = TlsMode.OFF

    @property
    def witnesses_of_channel(self) -> int:
        if self.witnesses is not None:
            return self.witnesses
        return 1 if self.message_managers == 2 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The random ids, ports and hosts of a new cluster."""

    # Sixteen bytes that were never drawn before.
    draw_id: Callable[[], bytes]
    # A free port of a host that was not given out before.
    bus_port: Callable[[str], int]
    # A port for the multicast groups of a channel, the same on all hosts.
    multicast_port: Callable[[], int]
    # The port of the n-th client manager, counted from 0.
    client_port: Callable[[str, int], int]
    # The host of a node of this name.
    host_of: Callable[[str], str] = lambda name: LOOPBACK


def channel_names(count: int) -> list[str]:
    """a, b, … z, za, zb, …: the first is the lowest, and so the system channel.

    >>> channel_names(3)
    ['a', 'b', 'c']
    """
    names = [*_LETTERS, *("z" + letter for letter in _LETTERS)]
    return names[:count]


def lay_out(counts: Counts, sources: Sources) -> ClusterSpec:
    """A new cluster of this size; `NodeError` if there can be none."""
    _check(counts)
    channels = channel_names(counts.channels)
    witnesses = counts.witnesses_of_channel
    nodes: list[NodeSpec] = []

    def add(name: str, role: Role, channel: str | None = None, **rest: Any) -> None:
        host = sources.host_of(name)
        ports = {one: sources.bus_port(host) for one in channels if channel in (None, one)}
        if role is not Role.CLIENT_MANAGER:
            rest |= {"disk_id": sources.draw_id(), "data": f"nodes/{name}"}
        nodes.append(
            NodeSpec(
                name=name, number=len(nodes) + 1, role=role, channel=channel, host=host, bus=ports, **rest
            )
        )

    for at in range(counts.client_managers):
        name = f"cm-{at + 1}"
        host = sources.host_of(name)
        listen = (host, sources.client_port(host, at))
        add(name, Role.CLIENT_MANAGER, listen=listen, **tls_files_of(name))
    for channel in channels:
        for rank in range(1, counts.message_managers + 1):
            add(f"mm-{channel}-{rank}", Role.MESSAGE_MANAGER, channel, rank=rank)
        for at in range(1, witnesses + 1):
            add(f"w-{channel}-{at}", Role.WITNESS, channel)
    is_local = all(one.host == LOOPBACK for one in nodes)
    return ClusterSpec(
        cluster_id=sources.draw_id(),
        transport=counts.transport,
        tls=counts.tls,
        datagram_bytes=_DATAGRAM_BYTES_LOOPBACK if is_local else _DATAGRAM_BYTES,
        channels=tuple([_channel(one, counts, sources) for one in channels]),
        nodes=tuple(nodes),
    )


def _check(counts: Counts) -> None:
    for what, number, least in (
        ("client managers", counts.client_managers, 1),
        ("message managers", counts.message_managers, 1),
        ("channels", counts.channels, 1),
        ("witnesses", counts.witnesses_of_channel, 0),
    ):
        if number < least:
            raise NodeError(f"a cluster cannot have {number} {what}")
    if counts.channels > CHANNELS_MAX:
        raise NodeError(f"{counts.channels} channels; a cluster has at most {CHANNELS_MAX}")
    if complaint := complaint_about_votes(counts.message_managers, counts.witnesses_of_channel):
        raise NodeError(complaint)
    servers = counts.message_managers + counts.witnesses_of_channel
    total = counts.client_managers + counts.channels * servers
    if total > NODES_MAX:
        raise NodeError(f"{total} nodes; a cluster has at most {NODES_MAX:,}")


def _channel(name: str, counts: Counts, sources: Sources) -> ChannelSpec:
    multicast: dict[Lane, Address] = {}
    if counts.transport == "udp":
        # Any address of the range that organizations may use for themselves (RFC 2365); the last byte tells
        # the lanes apart. Two clusters that draw the same address do not understand each other.
        drawn = sources.draw_id()
        port = sources.multicast_port()
        for lane in Lane:
            multicast[lane] = (f"239.{192 + drawn[0] % 56}.{drawn[1]}.{1 + 4 * (drawn[2] % 60) + lane}", port)
    min_copies = 1 if counts.message_managers == 2 else 0
    return ChannelSpec(name=name, multicast=multicast, min_copies=min_copies)
