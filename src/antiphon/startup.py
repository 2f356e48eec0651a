"""Start-up: from a disk to a node that is ready for its first step.

SUP1  An empty directory is formatted, with the disk id that was drawn; any other is read, and if it is
      refused, then before anything was changed.
SUP2  The message manager begins with the state of the newest usable checkpoint: its file and its digest
      verify, its state reads. The order behind it comes again through the bus, under a new epoch. A
      checkpoint of another version of Antiphon is refused.
SUP3  The payloads that the state refers to are verified before the node serves, up to a limit, the rest
      later.
SUP4  A node of a group that lists its disks can lose its own: if its order or its superblock is damaged or a
      sync has failed, all files are put aside (`lost+found`), and the node begins anew under another disk id.
      So it has no vote until the group has listed that disk: the old disk's promises and records may have
      been counted. If only its checkpoints cannot be used, the node keeps its order and its vote, and gets a
      state from the others. A record that verifies and cannot be read puts no disk aside: a fault of the
      software is the same on all nodes.
SUP5  For a damaged payload such a node only asks the others.
SUP6  A node that only listens to channels has no disk: it begins with nothing, under ids of its own.

Random numbers and the time come in as data (`Identity`): `runtime` draws them, `sim` invents them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import TypeVar

from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.bus.group import GroupConfig
from antiphon.bus.keeper import Keeper, KeeperSettings
from antiphon.bus.listener import ROLE as CLIENT_MANAGER_ROLE
from antiphon.bus.listener import Listener
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import BusProducer
from antiphon.bus.recovery import OrderReplay, choose, recover
from antiphon.bus.replica import Replica
from antiphon.channel_parts import ChannelParts
from antiphon.client_manager.manager import ClientManager, ClientManagerSettings
from antiphon.client_manager.repetition import said_again
from antiphon.errors import Damaged, FormatMismatch, StorageFailed, Unreadable
from antiphon.event_log import EventLog, EventLogSettings
from antiphon.events import DISK_ALARM, DISK_NOTE
from antiphon.ids import U32_MAX, IdSource
from antiphon.inquiries import NodeRef
from antiphon.journal import quarantine
from antiphon.journal.format import Settings as JournalSettings
from antiphon.journal.format import checkpoint_name
from antiphon.journal.journal import Journal
from antiphon.journal.no_records import NoRecords
from antiphon.journal.opening import Opening
from antiphon.journal.ports import Disk, Location, Referrer
from antiphon.journal.recovery import Recovered
from antiphon.message_manager.manager import MessageManager, MessageManagerSettings
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.node import EMBEDDED_ROLE, Node
from antiphon.standing import Agreed

T = TypeVar("T")

CHANNEL = "a"
EMBEDDED_NODE_ID = 1
CLUSTER = "antiphon"

VERIFIED_BYTES_MAX = 1 << 30
"""Payloads verified before serving: a gigabyte takes about a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    disk_id: bytes
    run_id: bytes
    start_s: int

    def ids(self, node_id: int, run: int) -> IdSource:
        """Ids that no other run of any node gives.

        The journal's run number stands where the start time belongs: it is durable and rises with every run,
        while two runs may begin within one second, and a clock may be set back. The time and two random bytes
        stand for the address, so that a copied data directory does not give the same ids twice.
        """
        return IdSource(node_id, self.start_s & U32_MAX, int.from_bytes(self.run_id[:2], "little"), run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    name: str = "node-1"
    cluster: str = CLUSTER
    role: str = EMBEDDED_ROLE
    group: GroupConfig = field(default_factory=lambda: GroupConfig.of(CHANNEL, (EMBEDDED_NODE_ID,)))
    # None: clients connect to other nodes.
    client_manager: ClientManagerSettings | None = field(default_factory=ClientManagerSettings)
    message_manager: MessageManagerSettings = field(default_factory=MessageManagerSettings)
    agreed: Agreed | None = None
    # The names of all nodes, by number, for the events of this one.
    names: Mapping[int, str] = field(default_factory=dict)
    events: EventLogSettings = field(default_factory=EventLogSettings)
    # Reads a state from the bytes of a checkpoint; the simulator has readers that fail.
    read_state: Callable[..., ChannelState] = ChannelState.restore

    def agreement(self) -> Agreed:
        if self.agreed is not None:
            return self.agreed
        essential = {"cluster": self.cluster, "group": self.group.digest.hex()}
        text = json.dumps(essential, sort_keys=True, separators=(",", ":"))
        return Agreed(digest=blake2b(text.encode(), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedNode:
    """A node before its first step, with the parts that its driver needs."""

    node: Node
    channel: str
    journal: Journal
    found: Recovered
    counter: JournalCounter
    referrer: Referrer
    # For the operator: repairs, cut-off writes and passed-over checkpoints.
    notes: list[str]
    # Damage that other nodes must repair.
    alarms: list[str] = field(default_factory=list)

    def make_keeper(self, now_ns: int, settings: KeeperSettings | None = None) -> Keeper:
        """The keeper of the journal, for the one storage of this life."""
        return Keeper(self.journal, self.found, self.counter, self.referrer, now_ns, settings)

    @property
    def manager(self) -> MessageManager:
        return self.node.channels[self.channel].kept

    @property
    def replica(self) -> Replica:
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

    `distrusted` says why the present files must not be used, though they verify: a sync failed.
    """

    opened = open_disk(
        disk,
        journal,
        identity,
        group=settings.group,
        node_id=node_id,
        cluster=settings.cluster,
        distrusted=distrusted,
    )
    return _start(opened, journal, identity, settings)


def can_do_without_disk(group: GroupConfig, node_id: int) -> bool:
    """Whether other nodes have the same data, and would recognise a new disk as new."""
    return len(group.data_servers) > 1 and bool(group.disk_of(node_id))


def put_aside(disk: Disk, identity: Identity, group: GroupConfig, node_id: int, damage: Damaged) -> str:
    """Put aside the files of a disk that the node can do without; returns a text for the operator."""
    assert identity.disk_id != group.disk_of(node_id), "a new disk is given the id of the one that is lost"
    mark = identity.disk_id.hex()[:12]
    moved = quarantine.put_aside(disk, mark, damage.text)
    return (
        f"{damage.text}. Its {len(moved)} files were moved to lost+found/{mark}-*; the node begins anew, as "
        f"disk {identity.disk_id.hex()}, learns from the others, and has no vote until they have listed it"
    )


@dataclass(frozen=True, slots=True)
class OpenedDisk:
    """The contents of a disk, unchanged since it was read."""

    opening: Opening
    order: OrderReplay
    # Whether other nodes have the same messages.
    has_peers: bool
    # A text for the operator about files that were put aside.
    alarm: str = ""

    def choose(self, read: Callable[[CheckpointState], T]) -> T | None:
        """The result of `read` for the newest usable checkpoint (SUP2)."""
        return choose(self.opening, self.order.base, read, has_peers=self.has_peers)


def open_disk(
    disk: Disk,
    settings: JournalSettings,
    identity: Identity,
    *,
    group: GroupConfig,
    node_id: int,
    cluster: str,
    distrusted: str = "",
) -> OpenedDisk:
    """Read a data directory, or make a journal if there is none; put a ruined one aside (SUP4)."""
    can_begin_anew = can_do_without_disk(group, node_id)
    if distrusted and not can_begin_anew:
        raise StorageFailed(distrusted)

    def read() -> OpenedDisk:
        if not Journal.is_formatted(disk):
            Journal.format(disk, settings, identity.disk_id, node_id, cluster)
        opening = Opening(disk, has_peers=can_begin_anew)
        found = opening.found
        if (found.node_id, found.cluster) != (node_id, cluster):
            raise FormatMismatch(
                f"the data directory belongs to node {found.node_id} of {found.cluster!r}, and this is node "
                f"{node_id} of {cluster!r}: nothing was lost; give each node its own directory"
            )
        return OpenedDisk(opening, OrderReplay(found.order), has_peers=len(group.data_servers) > 1)

    try:
        if distrusted:
            raise Damaged("data directory", 0, distrusted)
        return read()
    except Damaged as damage:
        if not can_begin_anew:
            raise
        alarm = put_aside(disk, identity, group, node_id, damage)
    return replace(read(), alarm=alarm)


def _start(
    opened: OpenedDisk, journal_settings: JournalSettings, identity: Identity, settings: StartSettings
) -> StartedNode:
    group, opening = settings.group, opened.opening
    state: ChannelState | None = None
    damage: list[tuple[Location, Damaged]] = []
    if opening.found.node_id in group.data_servers:
        state, damage = opened.choose(partial(_read_state, opened, settings)) or (None, [])
    notes, alarms = _about_checkpoints(opened, state)
    journal, found = opening.begin(journal_settings), opening.found
    payloads = journal.payloads
    node_id = found.node_id
    recovered = recover(
        found,
        payloads,
        keeps_state=node_id in group.checkpoint_servers,
        # A lone node must have a state of its own: no other can give it one.
        group=group if opened.has_peers else None,
        order=opened.order,
    )
    manager: MessageManager | None = None
    if node_id in group.data_servers:
        manager = _message_manager(journal, node_id, settings)
        if recovered.manager_state is not None:
            assert state is not None, "a checkpoint counts that nobody has chosen"
            manager.begin(state)
            for place, error in damage:
                manager.damaged(place, error)
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
        ),
        producer=BusProducer(group, node_id, identity.run_id, again=said_again),
        manager=manager,
    )
    node = Node(
        node_id=node_id,
        name=settings.name,
        cluster=settings.cluster,
        agreed=settings.agreement(),
        client_manager=_client_manager(found, identity, settings),
        channels=(parts,),
        role=settings.role,
        names=settings.names,
        events=_event_log(identity, settings.name, (group.group,), settings.events, settings.names),
    )
    notes = [*found.repairs, *found.truncated, *notes]
    alarms = [*([opened.alarm] if opened.alarm else []), *found.lost, *alarms]
    for event in (*[DISK_NOTE(note=note) for note in notes], *[DISK_ALARM(problem=one) for one in alarms]):
        node.say(event)
    return StartedNode(
        node=node,
        channel=group.group,
        journal=journal,
        found=found,
        counter=counter,
        referrer=manager or NoRecords(),
        notes=notes,
        alarms=alarms,
    )


def _event_log(
    identity: Identity,
    name: str,
    channels: Sequence[str],
    settings: EventLogSettings,
    names: Mapping[int, str],
) -> EventLog:
    # The id of this life numbers its events.
    return EventLog(name, channels, int.from_bytes(identity.run_id, "little"), settings, names)


def _client_manager(found: Recovered, identity: Identity, settings: StartSettings) -> ClientManager | None:
    if settings.client_manager is None:
        return None
    return ClientManager(
        node_id=found.node_id,
        node_name=settings.name,
        cluster=settings.cluster,
        servers=(),
        ids=identity.ids(found.node_id, found.run),
        channels=(settings.group.group,),
        settings=settings.client_manager,
        # An embedded system is its one disk, which was given its id when it was formatted.
        cluster_id=found.disk_id.hex(),
    )


def _message_manager(journal: Journal, node_id: int, settings: StartSettings) -> MessageManager:
    group = settings.group
    return MessageManager(
        group.group,
        node_id,
        journal.payloads,
        settings.message_manager,
        group.data_servers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientManagerStart:
    node_id: int
    name: str
    cluster: str
    agreed: Agreed
    groups: tuple[GroupConfig, ...]
    # The addresses of all client managers, as `host:port`.
    servers: tuple[str, ...]
    # All nodes of the cluster, for questions about it.
    members: tuple[NodeRef, ...] = ()
    settings: ClientManagerSettings = field(default_factory=ClientManagerSettings)
    # In hex: clients tell clusters of the same name apart by it.
    cluster_id: str = ""
    events: EventLogSettings = field(default_factory=EventLogSettings)


def start_client_manager(identity: Identity, start: ClientManagerStart) -> Node:
    """Compose the machines of a node without a disk. Each channel has its own run of its producer.

    Without a disk there is no run number: the random bytes of the run id stand in for it.
    """
    run = int.from_bytes(identity.run_id[2:6], "little")
    names = {member.number: member.name for member in start.members}
    sure_ms = min([group.sure_ms for group in start.groups])
    client_manager = ClientManager(
        node_id=start.node_id,
        node_name=start.name,
        cluster=start.cluster,
        servers=start.servers,
        ids=identity.ids(start.node_id, run),
        channels=tuple([group.group for group in start.groups]),
        settings=replace(start.settings, sure_ms=sure_ms, client_sure_ms=max(1, sure_ms // 2)),
        cluster_id=start.cluster_id,
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
                producer=BusProducer(
                    group, start.node_id, identity.run_id, opens_at_once=True, again=said_again
                ),
                listener=Listener(group, start.node_id, start.name),
            )
            for group in start.groups
        ],
        role=CLIENT_MANAGER_ROLE,
        members=start.members,
        names=names,
        events=_event_log(identity, start.name, [one.group for one in start.groups], start.events, names),
    )


def _read_state(
    opened: OpenedDisk, settings: StartSettings, checkpoint: CheckpointState
) -> tuple[ChannelState, list[tuple[Location, Damaged]]]:
    """The state of a checkpoint, and those of its records that are damaged and can be mended."""
    state = settings.read_state(bytes(checkpoint.manager_state))
    if state.digest() != checkpoint.manager_digest:
        raise Unreadable("the state it gives is not the one that was reported")
    return state, _verify(opened, state)


def _verify(opened: OpenedDisk, state: ChannelState) -> list[tuple[Location, Damaged]]:
    """Verify the records that the state refers to, newest segment first (SUP3).

    The message manager gets damaged records from another replica. A lone node does not use a checkpoint that
    refers to one: the older checkpoint may know the record at another place.
    """
    budget = VERIFIED_BYTES_MAX
    damage: list[tuple[Location, Damaged]] = []
    for location in sorted(state.records(), key=lambda one: (-one.segment, one.offset)):
        if budget <= 0:
            break
        try:
            opened.opening.verify(location)
        except Damaged as error:
            if not opened.has_peers:
                raise
            damage.append((location, error))
        budget -= location.length
    return damage


def _about_checkpoints(opened: OpenedDisk, state: ChannelState | None) -> tuple[list[str], list[str]]:
    """Notes and alarms for the operator about checkpoints that were passed over, a line each."""
    problems = opened.opening.found.checkpoint_problems
    if not problems:
        return [], []
    if state is not None:
        instead = f"the node begins with {checkpoint_name(state.applied)}, and applies the log from there on"
        return [f"{problem}; {instead}" for problem in problems], []
    if not opened.order.base:
        instead = "the node applies the log from its beginning"
        return [f"{problem}; {instead}" for problem in problems], []
    alarm = (
        "no checkpoint can be used: the node keeps its disk and its vote, begins without a state, and asks "
        "the other nodes for one"
    )
    return problems, [alarm]
