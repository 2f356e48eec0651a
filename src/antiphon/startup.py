"""Start-up: from a disk to a node that is ready for its first step.

Where it sits
    disk  ->  journal/recovery  ->  bus/recovery  ->  START-UP  ->  node

What it promises
    S1  An empty directory is formatted, with the disk id that was drawn; one that holds anything is read,
        and damage is an error that names file and offset, before anything was changed.
    S2  The message manager begins with the state of a checkpoint whose digest was verified. What was
        ordered behind it comes again through the bus, under a new epoch.
    S3  The payloads that the state refers to are verified before the node serves, up to a limit of time;
        the rest when they are read.
    S4  A node of a group that lists its disks does not need its own: if its order or its superblock is
        damaged or a sync has failed, all files are put aside (`lost+found`), and it begins anew under
        another disk id. So it has no vote until the group has listed that one: what the old disk promised
        and held may have been counted. If only its checkpoints cannot be used, it keeps its order and its
        vote, and gets a state from the others.
    S5  A payload that is damaged costs such a node nothing but asking the others for it.
    S6  A node that only listens to channels has no disk: it begins with nothing, under ids of its own.

What it leaves to others
    Chance and time come in as data (`Identity`): `runtime` draws them, `sim` invents them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b

from antiphon.bus.group import GroupConfig
from antiphon.bus.listener import ROLE as CLIENT_MANAGER_ROLE
from antiphon.bus.listener import Listener
from antiphon.bus.planted import NONE
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import Producer
from antiphon.bus.recovery import RecoveredReplica, recover
from antiphon.bus.replica import Replica
from antiphon.channel_parts import ChannelParts
from antiphon.client_manager.manager import ClientManager, ClientManagerSettings
from antiphon.client_manager.repetition import said_again
from antiphon.errors import Damaged, FormatMismatch, StorageFailed
from antiphon.ids import IdSource
from antiphon.inquiries import Member
from antiphon.journal import quarantine
from antiphon.journal.format import Settings as JournalSettings
from antiphon.journal.format import checkpoint_name
from antiphon.journal.journal import Journal
from antiphon.journal.no_records import NoRecords
from antiphon.journal.ports import Disk, RecordKeeper
from antiphon.journal.recovery import Recovered
from antiphon.message_manager.manager import MessageManager, MessageManagerSettings
from antiphon.node import EMBEDDED_ROLE, Node
from antiphon.standing import Agreed

CHANNEL = "a"
EMBEDDED_NODE_ID = 1
CLUSTER = "antiphon"

VERIFIED_BYTES_MAX = 1 << 30
"""Payloads verified before serving: a gigabyte takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this life of the node is; drawn by the driver."""

    disk_id: bytes
    run_id: bytes
    start_s: int

    def ids(self, node_id: int, run: int) -> IdSource:
        """Ids that no other life of any node gives.

        The journal's run number is durable and goes up with every life, which a clock's seconds do not:
        two lives may begin within one of them, and a clock may be set back. So it stands where the start
        time belongs; the time and two random bytes stand for the address, so that a copied data
        directory does not give the same ids twice.
        """
        return IdSource(node_id, self.start_s, int.from_bytes(self.run_id[:2], "little"), run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """How the machines of the node are set up."""

    name: str = "node-1"
    cluster: str = CLUSTER
    role: str = EMBEDDED_ROLE
    group: GroupConfig = field(default_factory=lambda: GroupConfig.of(CHANNEL, (EMBEDDED_NODE_ID,)))
    # None: clients connect elsewhere.
    client_manager: ClientManagerSettings | None = field(default_factory=ClientManagerSettings)
    message_manager: MessageManagerSettings = field(default_factory=MessageManagerSettings)
    agreed: Agreed | None = None
    planted: frozenset[str] = NONE

    def agreement(self) -> Agreed:
        """Two nodes whose digests differ were set up differently."""
        if self.agreed is not None:
            return self.agreed
        essential = {"cluster": self.cluster, "group": self.group.digest.hex()}
        text = json.dumps(essential, sort_keys=True, separators=(",", ":"))
        return Agreed(digest=blake2b(text.encode(), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedNode:
    """A node before its first step, with what its driver must attend to."""

    node: Node
    channel: str
    journal: Journal
    found: Recovered
    counter: JournalCounter
    # Who refers to records of the journal.
    keeper: RecordKeeper
    # For the operator: what was repaired, cut off or passed over.
    notes: list[str]
    # What was lost here, and must come from other nodes.
    alarms: list[str] = field(default_factory=list)

    @property
    def manager(self) -> MessageManager:
        """The message manager of a node that has one."""
        return self.node.channels[self.channel].kept

    @property
    def replica(self) -> Replica:
        """The replica of a node that has one, as all do that were started from a disk."""
        replica = self.node.channels[self.channel].replica
        assert replica is not None, "a node with a disk has a replica"
        return replica


def start(
    disk: Disk,
    journal: JournalSettings,
    identity: Identity,
    settings: StartSettings,
    node_id: int = EMBEDDED_NODE_ID,
    *,
    distrusted: str = "",
) -> StartedNode:
    """Open the data directory of a node and compose its machines.

    `distrusted` says why the files that are there must not be used, though they look well; a sync failed.
    """
    group = settings.group
    if not can_do_without_disk(group, node_id):
        if distrusted:
            raise StorageFailed(distrusted)
        return _start(disk, journal, identity, settings, node_id)
    try:
        if distrusted:
            raise Damaged("data directory", 0, distrusted)
        return _start(disk, journal, identity, settings, node_id)
    except Damaged as damage:
        alarm = put_aside(disk, identity, group, node_id, damage)
    started = _start(disk, journal, identity, settings, node_id)
    started.alarms.insert(0, alarm)
    return started


def can_do_without_disk(group: GroupConfig, node_id: int) -> bool:
    """Do others have all that is here, and would they know a new disk for a new one?"""
    return len(group.data_servers) > 1 and bool(group.disk_of(node_id))


def put_aside(disk: Disk, identity: Identity, group: GroupConfig, node_id: int, damage: Damaged) -> str:
    """Take a disk out of use that the node can do without; returns what is to be said about it."""
    assert identity.disk_id != group.disk_of(node_id), "a new disk is given the id of the one that is lost"
    mark = identity.disk_id.hex()[:12]
    moved = quarantine.put_aside(disk, mark, damage.text)
    return (
        f"{damage.text}. Its {len(moved)} files were moved to lost+found/{mark}-*; the node begins anew, as "
        f"disk {identity.disk_id.hex()}, learns from the others, and has no vote until they have listed it"
    )


def _start(
    disk: Disk, journal: JournalSettings, identity: Identity, settings: StartSettings, node_id: int
) -> StartedNode:
    has_peers = can_do_without_disk(settings.group, node_id)
    opened, found = open_journal(
        disk, journal, identity, node_id=node_id, cluster=settings.cluster, has_peers=has_peers
    )
    return start_node(opened, found, identity, settings)


def open_journal(
    disk: Disk,
    settings: JournalSettings,
    identity: Identity,
    *,
    node_id: int = EMBEDDED_NODE_ID,
    cluster: str = CLUSTER,
    has_peers: bool = False,
) -> tuple[Journal, Recovered]:
    """Open the journal of a data directory, making one if there is none."""
    if not Journal.is_formatted(disk):
        Journal.format(disk, settings, identity.disk_id, node_id, cluster)
    journal, found = Journal.open(disk, settings, has_peers=has_peers)
    if (found.node_id, found.cluster) != (node_id, cluster):
        raise FormatMismatch(
            f"the data directory belongs to node {found.node_id} of {found.cluster!r}, and this is node "
            f"{node_id} of {cluster!r}: nothing was lost; give each node its own directory"
        )
    return journal, found


def start_node(
    journal: Journal, found: Recovered, identity: Identity, settings: StartSettings
) -> StartedNode:
    """Compose the machines of a node from what the journal found."""
    group, payloads = settings.group, journal.payloads
    node_id = found.node_id
    recovered = recover(
        found,
        payloads,
        keeps_state=node_id in group.checkpoint_servers,
        # Who is alone must have a state of its own: nobody can give it one.
        group=group if len(group.data_servers) > 1 else None,
    )
    manager = (
        _message_manager(journal, node_id, recovered, settings) if node_id in group.data_servers else None
    )
    counter = JournalCounter()
    parts = ChannelParts(
        name=group.group,
        replica=Replica(
            group,
            node_id,
            identity.run_id,
            payloads,
            counter,
            recovered,
            name=settings.name,
            disk_id=found.disk_id,
            planted=settings.planted,
        ),
        producer=Producer(group, node_id, identity.run_id, again=said_again),
        manager=manager,
    )
    client_manager: ClientManager | None = None
    if settings.client_manager is not None:
        assert manager is not None, "an embedded node keeps its messages"
        client_manager = ClientManager(
            node_id=node_id,
            node_name=settings.name,
            cluster=settings.cluster,
            servers=(),
            ids=identity.ids(node_id, found.run),
            channels=(group.group,),
            settings=settings.client_manager,
            planted=settings.planted,
        )
    node = Node(
        node_id=node_id,
        name=settings.name,
        cluster=settings.cluster,
        agreed=settings.agreement(),
        client_manager=client_manager,
        channels=(parts,),
        role=settings.role,
    )
    notes = [*found.repairs, *found.truncated, *found.checkpoint_problems]
    return StartedNode(
        node=node,
        channel=group.group,
        journal=journal,
        found=found,
        counter=counter,
        keeper=manager or NoRecords(),
        notes=notes,
        alarms=list(found.lost),
    )


def _message_manager(
    journal: Journal, node_id: int, recovered: RecoveredReplica, settings: StartSettings
) -> MessageManager:
    group = settings.group
    manager = MessageManager(
        group.group,
        node_id,
        journal.payloads,
        settings.message_manager,
        group.data_servers,
        planted=settings.planted,
    )
    if recovered.manager_state is not None:
        _restore(manager, recovered)
        _verify(journal, manager)
    return manager


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientManagerStart:
    """How the node of a client manager is set up."""

    node_id: int
    name: str
    cluster: str
    agreed: Agreed
    groups: tuple[GroupConfig, ...]
    # Where clients find this and the other client managers, as `host:port`.
    servers: tuple[str, ...]
    # All nodes of the cluster: questions about it are put to each of them.
    members: tuple[Member, ...] = ()
    settings: ClientManagerSettings = field(default_factory=ClientManagerSettings)
    planted: frozenset[str] = NONE


def start_client_manager(identity: Identity, start: ClientManagerStart) -> Node:
    """Compose the machines of a node that keeps nothing. Each channel has its own run of its producer.

    Without a disk there is no number of this life: the random bytes of its run id stand in for it.
    """
    run = int.from_bytes(identity.run_id[2:6], "little")
    client_manager = ClientManager(
        node_id=start.node_id,
        node_name=start.name,
        cluster=start.cluster,
        servers=start.servers,
        ids=identity.ids(start.node_id, run),
        channels=tuple([group.group for group in start.groups]),
        settings=start.settings,
        planted=start.planted,
    )
    return Node(
        node_id=start.node_id,
        name=start.name,
        cluster=start.cluster,
        agreed=start.agreed,
        client_manager=client_manager,
        channels=[
            ChannelParts(
                name=group.group,
                producer=Producer(
                    group, start.node_id, identity.run_id, opens_at_once=True, again=said_again
                ),
                listener=Listener(group, start.node_id, start.name),
            )
            for group in start.groups
        ],
        role=CLIENT_MANAGER_ROLE,
        members=start.members,
    )


def _restore(manager: MessageManager, recovered: RecoveredReplica) -> None:
    assert recovered.manager_state is not None, "there is nothing to restore"
    manager.restore(bytes(recovered.manager_state))
    if manager.state.digest() != recovered.manager_digest:
        raise Damaged(
            checkpoint_name(recovered.applied), 0, "the state it gives is not the one that was reported"
        )


def _verify(journal: Journal, manager: MessageManager) -> None:
    """Read what the checkpoint refers to, newest segment first; the tail was verified by the journal.

    What is damaged is for the message manager to get from another replica, or to refuse.
    """
    budget = VERIFIED_BYTES_MAX
    for segment in sorted(manager.live_bytes_by_segment(), reverse=True):
        for location in manager.records_in(segment):
            if budget <= 0:
                return
            try:
                journal.verify(location)
            except Damaged as error:
                manager.damaged(location, error)
            budget -= location.length
