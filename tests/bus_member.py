"""A member of one channel in a process of its own: the bus with real sockets and a real disk, no clients.

    python -m tests.bus_member CONFIG.json

For tests and the bench. Prints a JSON line when its disk and its sockets are open, takes commands on
standard input (see `bus_load.py`), and stops in order on SIGTERM or when its input ends. A member without
`data` is no server of the channel: it only produces. The configuration:

    node            our number
    group           `group`, `nodes` and whatever else of `GroupConfig` is not the default; `disk_ids` in hex
    transport       udp or tcp
    network         `cluster_id` in hex, `peers` {node: [host, port]}, `groups` {lane: [host, port]}, and
                    whatever else of `TransportSettings` is not the default
    key_file        the group key
    data            the data directory, or null. If it is ruined and `disk_ids` lists the disks, its files
                    are put aside, and the member begins anew and learns from the others
    disk_id         in hex: of the disk that an empty directory becomes, if it is not to be drawn
    journal         `segment_bytes`, …
    fault_file      fault rules, see `transport/faults.py`
    history         a file: one line for each envelope that is applied
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import secrets
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from antiphon import clock
from antiphon.bus import effects as bus
from antiphon.bus.checkpoint_server import CheckpointState
from antiphon.bus.codec import Header
from antiphon.bus.group import NO_DISK, GroupConfig
from antiphon.bus.keeper import Keeper
from antiphon.bus.messages import EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.bus.producer import BusProducer
from antiphon.bus.recovery import RecoveredReplica, recover
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.errors import AntiphonError, Damaged, Unreadable
from antiphon.journal.format import Settings as JournalSettings
from antiphon.journal.journal import Journal
from antiphon.journal.recovery import Recovered
from antiphon.node import InChannel
from antiphon.runtime.bus_port import BusPort, CarryOut
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.loops import loop_factory, stop_signal
from antiphon.runtime.memory import collect_seldom
from antiphon.runtime.node_runner import NodeRunner
from antiphon.runtime.storage import ChannelStorage
from antiphon.sim.bus.station import Station
from antiphon.sim.bus.tally import Tally
from antiphon.startup import Identity, can_do_without_disk, open_disk
from antiphon.transport.interface import Peer, Transport, TransportSettings
from antiphon.transport.key_file import read_key_file
from antiphon.transport.kinds import make_transport
from antiphon.wire.commands import iterate_commands
from antiphon.wire.lanes import Lane
from tests.bus_load import BusDesk

log = logging.getLogger("antiphon.member")

_DATA = EntryKind.DATA

_FOR_DESK = frozenset((bus.EnvelopeConfirmed, bus.EnvelopeUncertain))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """What the configuration says, and who this life of the process is."""

    node: int
    run_id: bytes
    group: GroupConfig
    transport: str
    network: TransportSettings
    data: Path | None
    disk_id: bytes
    journal: JournalSettings
    fault_file: Path | None
    history: Path | None

    @classmethod
    def read(cls, path: Path) -> MemberSettings:
        """From a file of JSON."""
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        node, run_id = given["node"], secrets.token_bytes(16)
        group: dict[str, Any] = {
            name: tuple(one) if isinstance(one, list) else one for name, one in given["group"].items()
        }
        group["disk_ids"] = tuple([bytes.fromhex(one) for one in group.get("disk_ids", ())])
        network: dict[str, Any] = given["network"]
        peers = {int(number): Peer(*address) for number, address in network.pop("peers").items()}
        groups = {Lane[name]: tuple(address) for name, address in network.pop("groups", {}).items()}
        return cls(
            node=node,
            run_id=run_id,
            group=GroupConfig.of(group.pop("group"), group.pop("nodes"), **group),
            transport=given["transport"],
            network=TransportSettings(
                node=node,
                run_id=run_id,
                cluster_id=bytes.fromhex(network.pop("cluster_id")),
                peers=peers,
                groups=groups,
                keys=read_key_file(Path(given["key_file"])),
                **network,
            ),
            data=Path(given["data"]) if given.get("data") else None,
            disk_id=bytes.fromhex(given.get("disk_id", "")) or secrets.token_bytes(16),
            journal=JournalSettings(**given.get("journal", {})),
            fault_file=Path(given["fault_file"]) if given.get("fault_file") else None,
            history=Path(given["history"]) if given.get("history") else None,
        )


class _Opened(NamedTuple):
    """What a disk held, and what it comes to."""

    journal: Journal
    found: Recovered
    recovered: RecoveredReplica
    tally: Tally


def _open_or_begin_anew(disk: FileDisk, settings: MemberSettings) -> _Opened:
    """Open the journal; if it is ruined and the others have the same, put it aside and begin with nothing."""
    group, node = settings.group, settings.node
    # Half a journal is put aside below.
    with contextlib.suppress(Damaged):
        if not Journal.is_formatted(disk):
            Journal.format(disk, settings.journal, settings.disk_id, node, group.group)
    # Should the disk be put aside, the next one has another id.
    identity = Identity(disk_id=secrets.token_bytes(16), run_id=settings.run_id, start_s=0)
    opened = open_disk(
        disk,
        settings.journal,
        identity,
        group=group,
        node_id=node,
        cluster=group.group,
        distrusted=disk.distrusted,
    )
    tally = opened.choose(lambda checkpoint: _read_tally(node, checkpoint)) or Tally(node)
    journal, found = opened.opening.begin(settings.journal), opened.opening.found
    if opened.alarm:
        log.error(opened.alarm)
        disk.trust()
    for note in (*found.repairs, *found.truncated, *found.checkpoint_problems, *found.lost):
        log.info(note)
    recovered = recover(found, journal.payloads, group=group, order=opened.order)
    return _Opened(journal, found, recovered, tally)


def _read_tally(node: int, checkpoint: CheckpointState) -> Tally:
    tally = Tally(node)
    tally.restore(checkpoint.manager_state)
    if tally.digest != checkpoint.manager_digest:
        raise Unreadable("the state it gives is not the one that was reported")
    return tally


class _Machines:
    """A station as the runner of nodes drives it."""

    is_serving = True

    def __init__(self, station: Station, channel: str) -> None:
        self.station = station
        self.desk: BusDesk
        self._channel = channel

    def next_deadline_ns(self) -> int | None:
        return self.station.next_deadline_ns()

    def step(self, now_ns: int, wall_ms: int, events: Iterable[InChannel]) -> list[Any]:
        effects = self.station.step(now_ns, [event.what for event in events])
        self.desk.look()
        # All of a step at once: there is one channel, and one who carries out whatever it wants.
        return [InChannel(self._channel, effects)]


class BusMember:
    """The machines of one life, with what drives them."""

    def __init__(self, settings: MemberSettings, transport: Transport) -> None:
        self.settings = settings
        self._transport = transport
        self._history: IO[str] | None = settings.history.open("w") if settings.history else None
        self._disk_id = NO_DISK
        self._disk: FileDisk | None = None
        self.storage: ChannelStorage | None = None
        self.station = self._compose()
        machines = _Machines(self.station, settings.group.group)
        self.runner = NodeRunner(machines)
        self.desk = machines.desk = BusDesk(
            settings.node, self._submit, self.status, self._figures, lambda line: print(line, flush=True)
        )

    def _compose(self) -> Station:
        settings = self.settings
        group, node, run_id = settings.group, settings.node, settings.run_id
        producer = BusProducer(group, node, run_id)
        if settings.data is None:
            return Station(group, node, producer)
        self._disk = disk = FileDisk(settings.data, has_peers=can_do_without_disk(group, node))
        opened = self._opened = _open_or_begin_anew(disk, settings)
        self._counter = JournalCounter()
        self._disk_id = disk_id = opened.found.disk_id
        replica = Replica(
            group, node, run_id, opened.journal.payloads, self._counter, opened.recovered, disk_id=disk_id
        )
        station = Station(group, node, producer, replica, opened.tally, disk_id=disk_id)
        if self._history is not None:
            station.on_applied = self._write_history
        return station

    def begin(self) -> None:
        """The sockets are open: take the first step."""
        settings, runner = self.settings, self.runner
        channel = settings.group.group
        otherwise: CarryOut = _no_disk
        if self._disk is not None:
            opened = self._opened
            keeper = Keeper(opened.journal, opened.found, self._counter, opened.tally, clock.now_ns())
            self.storage = ChannelStorage(
                self._disk, keeper, tell=lambda event: runner.tell(channel, event), fail=runner.fail
            )
            otherwise = self.storage.carry_out
        self.station.producer.window_bytes_max = self._transport.window_bytes
        group = settings.group
        header = Header(channel, group.config_id, settings.node, settings.run_id, self._disk_id)
        self.port = BusPort(self._transport, header, runner.take, otherwise)
        carry_out = self.port.carry_out
        desk = self.desk

        def carry_out_all(effects: Any) -> None:
            for effect in effects:
                kind = type(effect)
                if kind in _FOR_DESK:
                    desk.carry_out(effect)
                # Of no interest: committed but not confirmed yet, and a fence, which the next run gets over.
                elif kind is not bus.EnvelopeCommitted and kind is not bus.RunOver:
                    carry_out(effect)

        # First the network, then the disk: they work at the same time.
        flushes = [self.port.flush, *([self.storage.flush] if self.storage else [])]
        runner.begin_in({channel: carry_out_all}, flushes, desk)

    def end(self, *, in_order: bool) -> None:
        """Take no further step; in order, everything written is synced."""
        self.runner.end()
        if self.storage is not None:
            if in_order:
                self.storage.close()
            else:
                self.storage.abandon()
        if self._disk is not None:
            self._disk.close()
        if self._history is not None:
            self._history.close()

    def _submit(self, events: list[bus.Submitted]) -> None:
        channel, new = self.settings.group.group, tuple.__new__
        self.runner.take([new(InChannel, (channel, event)) for event in events])

    def _write_history(self, apply: bus.Apply) -> None:
        entry = apply.entry
        if entry.kind is _DATA and apply.payload is not None:
            header = next(iterate_commands(apply.payload))[0]
            words = (entry.first, entry.count, header.session, header.number, *entry.mid)
            print(*words, file=self._history)

    # -- what can be asked -------------------------------------------------------------------------

    def _figures(self) -> dict[str, int]:
        """What can be waited for."""
        station, replica, application = self.station, self.station.replica, self.station.application
        figures = {"opened": station.producer.pe, "idle": int(not station.producer.unconfirmed)}
        if replica is not None and application is not None:
            figures |= {
                "applied": replica.applied,
                "epoch": replica.epoch,
                "term": replica.term,
                "leading": int(replica.state is State.LEADING),
                "serving": int(replica.is_serving),
                "following": int(replica.state is State.FOLLOWER),
                "synchronized": int(replica.is_synchronized),
                "voting": int(not replica.is_amnesiac),
                "checkpoint": replica.stable_checkpoint,
                "envelopes": application.envelopes,
            }
        return figures

    def status(self) -> dict[str, Any]:
        """Everything that a test or the bench wants to know."""
        station = self.station
        used = resource.getrusage(resource.RUSAGE_SELF)
        if self._history is not None:
            self._history.flush()
        status: dict[str, Any] = {
            "node": self.settings.node,
            **self._figures(),
            "messages": station.application.messages if station.application is not None else 0,
            "session": self.desk.session,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "rss_bytes": used.ru_maxrss * 1024,
            "refused": self.port.refused,
            "resent": station.producer.resent,
            "window_bytes": station.producer.window_bytes,
            "counters": {str(node): asdict(one) for node, one in self._transport.counters().items()},
        }
        if station.replica is not None and station.application is not None:
            status |= {
                "digest": station.application.digest.hex(),
                "primary": station.replica.primary,
                "rereported": station.replica.rereported,
            }
        return status


def _no_disk(effect: bus.Effect) -> None:
    raise AssertionError(f"{type(effect).__name__} on a member without a disk")


async def _run(settings: MemberSettings) -> int:
    transport = make_transport(settings.transport, settings.network, fault_file=settings.fault_file)
    member = BusMember(settings, transport)
    member.runner.own_loop()
    stop = stop_signal()
    await transport.start()
    try:
        member.begin()
        collect_seldom()
        print(json.dumps({"ready": True, "node": settings.node, "pid": os.getpid()}), flush=True)
        asking = asyncio.ensure_future(_take_lines(member.desk))
        await asyncio.wait((stop, asking, member.runner.failed), return_when=asyncio.FIRST_COMPLETED)
        asking.cancel()
        if member.runner.failed.done():
            member.runner.failed.result()
    except Exception as error:
        member.end(in_order=False)
        log.critical("member %d stops: %s", settings.node, error, exc_info=error)
        return 1
    await transport.close()
    member.end(in_order=True)
    return 0


async def _take_lines(desk: BusDesk) -> None:
    """Until standard input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        if not line.isspace():
            desk.take_line(line.decode())


def main(arguments: list[str]) -> int:
    """Run until told to stop; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if len(arguments) != 1:
        print("usage: python -m tests.bus_member CONFIG.json", file=sys.stderr)
        return 2
    try:
        settings = MemberSettings.read(Path(arguments[0]))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_run(settings))
    except AntiphonError as error:
        print(f"bus member: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
