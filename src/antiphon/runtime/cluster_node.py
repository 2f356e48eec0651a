"""ClusterNode: one node of a cluster as a process: reads the cluster's file, composes the node, and runs.

CND1  A node whose file differs from that of a running node does not start (`cluster/agreement.py`).
CND2  An empty data directory is a new disk. It gets its listed id only with the token of its first start, and
      if every other voter has said that it is new, too; if one is not heard, the node does not start. Else
      the disk gets a fresh id, learns from the others, and has no vote until they have listed it. If no other
      node has the same data, the node does not start.
CND3  A client manager lets clients in when it knows the primaries of its channels, or has waited long enough:
      one channel that is away does not keep clients from the others.

`embedded.py` is the process that has every role.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.bus.group import GroupConfig
from antiphon.cluster.agreement import Agreement, ConfigCard
from antiphon.cluster.config_file import digest, essential_keys
from antiphon.cluster.topology import ClusterSpec, NodeSpec
from antiphon.errors import AntiphonError, NodeError
from antiphon.event_log import EventLogSettings
from antiphon.events import CHANNEL_AWAY, DISK_NOTE, NODE_FAILED
from antiphon.inquiries import NodeRef
from antiphon.names import PLAIN, SECURE
from antiphon.node import Node
from antiphon.runtime.asking import Line, ask_members
from antiphon.runtime.bus_port import BusPort
from antiphon.runtime.cluster_data import (
    data_path,
    event_path,
    has_token,
    is_new_disk,
    journal_settings,
    key_path,
    load_cluster,
    prepare_disk,
    tls_files,
)
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.event_file import EventFile
from antiphon.runtime.loops import loop_factory, stop_signal
from antiphon.runtime.memory import collect_seldom
from antiphon.runtime.network import ClientPort
from antiphon.runtime.node_runner import NodeRunner
from antiphon.runtime.storage import ChannelStorage
from antiphon.standing import Agreed
from antiphon.startup import (
    ClientManagerStart,
    Identity,
    StartedNode,
    StartSettings,
    can_do_without_disk,
    start,
    start_client_manager,
)
from antiphon.tls import TlsContext
from antiphon.transport.interface import TransportSettings
from antiphon.transport.key_file import read_key_file
from antiphon.transport.keys import GroupKeys
from antiphon.transport.kinds import make_transport

log = logging.getLogger("antiphon.node")

Announce = Callable[[dict[str, Any]], None]

AGREE_SECONDS: Final = 0.3
FORMAT_SECONDS: Final = 60.0
"""How long a node that is to format its disk waits for the other voters: giving a new disk the id of a lost
one can cost messages, so that no voter may be unheard."""
CHANNELS_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    name: str
    config: Path
    is_formatting: bool = False
    faults: Path | None = None
    accept_possible_loss: bool = False


@dataclass(slots=True)
class _Life:
    settings: NodeSettings
    spec: ClusterSpec
    node: NodeSpec
    stop: asyncio.Future[None]
    announce: Announce
    identity: Identity
    tls: TlsContext | None = None
    lines: list[Line] = field(default_factory=list)

    @property
    def agreed(self) -> Agreed:
        return Agreed(digest=digest(self.spec), keys=essential_keys(self.spec))


def run_node(settings: NodeSettings, announce: Announce) -> int:
    """Run until a signal says stop; returns the exit code. `announce` gets the ready line as an object."""
    # Several nodes may log to one place.
    words = f"%(asctime)s {settings.name} %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=words)
    spec = load_cluster(settings.config)
    node = spec.node(settings.name)
    keys = read_key_file(key_path(settings.config, spec))
    files = tls_files(settings.config, spec, node)
    tls = files.context() if files is not None else None
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(settings, spec, node, keys, tls, announce))


async def _run(
    settings: NodeSettings,
    spec: ClusterSpec,
    node: NodeSpec,
    keys: GroupKeys,
    tls: TlsContext | None,
    announce: Announce,
) -> int:
    identity = Identity(
        disk_id=secrets.token_bytes(16), run_id=secrets.token_bytes(16), start_s=int(time.time())
    )
    life = _Life(settings, spec, node, stop_signal(), announce, identity, tls)
    interface = await _interface(node)
    for channel in spec.channels_of(node):
        line = _line(life, channel.name, keys, interface)
        await line.transport.start()
        life.lines.append(line)
    agreement = await _agree(life)
    code = 0
    if not life.stop.done():
        code = await (_keep(life, agreement) if node.has_disk else _serve_clients(life))
    if code == 0:
        # After a failure nothing is sent: the waiting frames may be of the step that failed.
        for line in life.lines:
            await line.transport.close()
    return code


async def _interface(node: NodeSpec) -> str:
    wanted = node.interface or node.host
    try:
        found = await asyncio.get_running_loop().getaddrinfo(wanted, None, family=socket.AF_INET)
    except OSError as error:
        raise NodeError(f"cannot find the host {wanted}: {error.strerror}") from None
    return str(found[0][4][0])


def _line(life: _Life, channel: str, keys: GroupKeys, interface: str) -> Line:
    spec, node = life.spec, life.node
    # A run id for each line: the key that numbers its frames comes from it.
    run_id = secrets.token_bytes(16)
    settings = TransportSettings(
        node=node.number,
        cluster_id=spec.bus_id(channel),
        run_id=run_id,
        peers=spec.peers(channel),
        keys=keys,
        groups=spec.channel(channel).multicast,
        interface=interface,
        hops=spec.hops,
        datagram_bytes=spec.datagram_bytes,
    )
    return Line(
        group=spec.group_config(channel),
        run_id=run_id,
        transport=make_transport(spec.transport, settings, fault_file=life.settings.faults),
        others={one.number: one.name for one in spec.members(channel) if one.number != node.number},
    )


async def _agree(life: _Life) -> Agreement:
    """Ask the others for their files (CND1), and for their history if the disk is to be formatted."""
    agreed, node = life.agreed, life.node
    config = life.settings.config
    card = ConfigCard(
        name=node.name,
        number=node.number,
        digest=agreed.digest,
        keys=agreed.keys,
        is_new=node.has_disk and is_new_disk(config, node),
    )
    others = {number: name for line in life.lines for number, name in line.others.items()}
    is_first_start = life.settings.is_formatting and card.is_new and has_token(config, node)
    voters = [one for line in life.lines for one in line.group.commit_servers if one != node.number]
    agreement = Agreement(card, others, voters if is_first_start else ())
    await ask_members(agreement, life.lines, AGREE_SECONDS, voters_s=FORMAT_SECONDS)
    if refusal := agreement.refusal():
        raise NodeError(refusal)
    return agreement


# --- message managers and witnesses ----------------------------------------------------------------


async def _keep(life: _Life, agreement: Agreement) -> int:
    (line,) = life.lines
    group, node = line.group, life.node
    path = data_path(life.settings.config, node)
    has_peers = can_do_without_disk(group, node.number)
    disk = FileDisk(path, accept_possible_loss=life.settings.accept_possible_loss, has_peers=has_peers)
    try:
        note = prepare_disk(
            disk,
            life.settings.config,
            life.spec,
            node,
            life.identity.disk_id,
            is_formatting=life.settings.is_formatting,
            has_history=agreement.has_history,
            unsettled=[line.others[number] for number in agreement.unsettled],
            has_peers=has_peers,
        )
        # In a thread: the others may ask this node meanwhile.
        started = await asyncio.to_thread(_start, disk, life, group)
        for one in (note, *disk.notes) if note else disk.notes:
            started.node.say(DISK_NOTE(note=one))
        started.node.standing.is_new = agreement.card.is_new
        return await _run_keeper(life, line, disk, started)
    finally:
        disk.close()


def _start(disk: FileDisk, life: _Life, group: GroupConfig) -> StartedNode:
    settings = StartSettings(
        name=life.node.name,
        cluster=life.spec.name,
        role=str(life.node.role),
        group=group,
        client_manager=None,
        agreed=life.agreed,
        names=_names(life),
        events=EventLogSettings(is_published=True),
    )
    distrusted = disk.distrusted
    started = start(
        disk, journal_settings(life.spec), life.identity, settings, life.node.number, distrusted=distrusted
    )
    if distrusted:
        disk.trust()
    return started


async def _run_keeper(life: _Life, line: Line, disk: FileDisk, started: StartedNode) -> int:
    events = EventFile(data_path(life.settings.config, life.node))
    runner = NodeRunner(started.node, events.record)
    runner.own_loop()
    channel = started.channel
    keeper = started.make_keeper(clock.now_ns())
    storage = ChannelStorage(disk, keeper, tell=partial(runner.tell, channel), fail=runner.fail)
    port = BusPort(
        line.transport,
        line.header(life.node.number, started.found.disk_id),
        runner.take,
        storage.carry_out,
        peers=life.spec.peers(channel),
        is_spare=started.replica.is_spare,
        note=runner.note,
    )
    started.node.channels[channel].producer.window_bytes_max = line.transport.window_bytes
    with _until_failure(runner, started.node, events, storage.abandon):
        # First the network, then the disk: they work at the same time.
        flushes = [port.flush, storage.flush]
        runner.begin_in({channel: port.carry_out}, flushes, _NoClients(), [line.transport.look])
        started.node.standing.is_established = True
        collect_seldom()
        life.announce(_ready(life, {}))
        await _until_stop(life, runner)
        runner.leave()
    if _has_failed(runner):
        return 1
    runner.end()
    storage.close()
    return 0


def _names(life: _Life) -> dict[int, str]:
    return {one.number: one.name for one in life.spec.nodes}


class _NoClients:
    def carry_out(self, effect: Any) -> None:
        raise AssertionError(f"{type(effect).__name__} on a node without clients")


# --- client managers -------------------------------------------------------------------------------


async def _serve_clients(life: _Life) -> int:
    node = start_client_manager(
        life.identity,
        ClientManagerStart(
            node_id=life.node.number,
            name=life.node.name,
            cluster=life.spec.name,
            agreed=life.agreed,
            groups=tuple([line.group for line in life.lines]),
            servers=tuple(life.spec.servers),
            members=tuple(
                NodeRef(one.name, one.number, one.role, one.channel, one.rank) for one in life.spec.nodes
            ),
            cluster_id=life.spec.cluster_id.hex(),
            events=EventLogSettings(is_published=True),
        ),
    )
    events = EventFile(event_path(life.settings.config, life.node))
    runner = NodeRunner(node, events.record)
    runner.own_loop()
    client_port = ClientPort(runner.take, note=runner.note)
    carry_out: dict[str, Callable[[bus.Effect], None]] = {}
    flushes: list[Callable[[], None]] = []
    for line in life.lines:
        header = line.header(life.node.number)
        port = BusPort(line.transport, header, runner.take, _no_disk, note=runner.note)
        carry_out[line.group.group] = port.carry_out
        node.channels[line.group.group].producer.window_bytes_max = line.transport.window_bytes
        flushes.append(port.flush)
    with _until_failure(runner, node, events, lambda: None):
        runner.begin_in(carry_out, flushes, client_port)
        node.standing.is_established = True
        await _wait_for_channels(life, runner, node)
        if not life.stop.done():
            await _listen(life, client_port)
            collect_seldom()
            scheme = PLAIN if life.tls is None else SECURE
            life.announce(_ready(life, {scheme: "{}:{}".format(*client_port.addresses[0])}))
            await _until_stop(life, runner)
        runner.leave()
        await client_port.stop()
    if _has_failed(runner):
        return 1
    runner.end()
    return 0


def _no_disk(effect: bus.Effect) -> None:
    raise AssertionError(f"{type(effect).__name__} on a node without a disk")


async def _wait_for_channels(life: _Life, runner: NodeRunner, node: Node) -> None:
    """Wait until all channels are served, or for a while (CND3)."""
    await asyncio.wait(
        (life.stop, runner.failed, runner.serving),
        timeout=CHANNELS_SECONDS,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if runner.failed.done():
        runner.failed.result()
    away = [name for name, parts in node.channels.items() if not parts.is_ready]
    if away and not life.stop.done():
        for name in away:
            runner.note(CHANNEL_AWAY(away=name))


async def _listen(life: _Life, port: ClientPort) -> None:
    assert life.node.listen is not None, "a client manager listens"
    await port.start(*life.node.listen, life.tls)


# --- the end ---------------------------------------------------------------------------------------


async def _until_stop(life: _Life, runner: NodeRunner) -> None:
    await asyncio.wait((life.stop, runner.failed), return_when=asyncio.FIRST_COMPLETED)
    if runner.failed.done():
        runner.failed.result()


@contextlib.contextmanager
def _until_failure(
    runner: NodeRunner, node: Node, events: EventFile, abandon: Callable[[], None]
) -> Iterator[None]:
    """End the node on any error. Antiphon's own errors are for the operator; others are bugs, and logged."""
    try:
        yield
    except BaseException as error:
        runner.end()
        abandon()
        if isinstance(error, Exception):
            now_ms = time.time_ns() // 1_000_000
            events.append(node.last_words(now_ms, NODE_FAILED(problem=str(error))))
        if isinstance(error, AntiphonError) or not isinstance(error, Exception):
            raise
        runner.fail(error)
        log.critical("the node stops: %s", error, exc_info=error)
    finally:
        events.close()


def _has_failed(runner: NodeRunner) -> bool:
    return runner.failed.done()


def _ready(life: _Life, listen: dict[str, str]) -> dict[str, Any]:
    node = life.node
    return {
        "ready": True,
        "name": node.name,
        "role": str(node.role),
        "channel": node.channel,
        "rank": node.rank,
        "pid": os.getpid(),
        "listen": listen,
    }
