"""Bus members in processes of their own, for tests and the bench: started, asked, hit, ended."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from antiphon.bus.group import NO_DISK
from antiphon.errors import NodeError
from antiphon.runtime.cluster_data import free_ports
from antiphon.transport.key_file import generate_key_file
from antiphon.transport.sockets import open_multicast
from antiphon.wire.lanes import Lane
from tests.processes import ROOT

READY_SECONDS = 60.0
ANSWER_SECONDS = 60.0
LOOPBACK = "127.0.0.1"
ROLES = ("commit_servers", "data_servers", "checkpoint_servers", "candidates")
SMALL_SEGMENTS = {"segment_bytes": 8 << 20, "spares_max": 2}
NO_MULTICAST = "THIS MACHINE HAS NO MULTICAST ON ITS LOOPBACK: the bus was not tested over real sockets"
KINDS = {
    "udp-large": {"kind": "udp", "datagram_bytes": 60_000},
    "udp": {"kind": "udp", "datagram_bytes": 1_400},
    "tcp": {"kind": "tcp"},
}


def ports_for(count: int) -> list[int]:
    with free_ports() as next_port:
        return [next_port() for _ in range(count)]


class MemberProcess:
    """One life of one member. Commands go in by lines, answers come out by lines."""

    def __init__(self, config: Path, errors: Path, wrapper: Sequence[str] = ()) -> None:
        self.config = config
        self.errors = errors
        with errors.open("a") as stderr:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", "tests.bus_member", str(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                cwd=ROOT,
            )
        self._lines = 0
        self._unread = b""
        self._answers: dict[int, Any] = {}
        self.pid = 0

    def wait_ready(self) -> MemberProcess:
        line = self._read_line(time.monotonic() + READY_SECONDS)
        self.pid = int(json.loads(line)["pid"])
        return self

    def say(self, command: str) -> int:
        """Say a command; the answer will be for the number returned."""
        assert self.process.stdin is not None
        self._lines += 1
        self.process.stdin.write(command.encode() + b"\n")
        return self._lines

    def answer(self, to: int, seconds: float = ANSWER_SECONDS) -> Any:
        """Wait for an answer."""
        deadline = time.monotonic() + seconds
        while to not in self._answers:
            answer = json.loads(self._read_line(deadline))
            assert "error" not in answer, answer["error"]
            number = answer.pop("to")
            (self._answers[number],) = answer.values()
        return self._answers.pop(to)

    def ask(self, command: str, seconds: float = ANSWER_SECONDS) -> Any:
        return self.answer(self.say(command), seconds)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ask("status")
        return status

    def wait(self, seconds: float = ANSWER_SECONDS, **wanted: int) -> dict[str, int]:
        """Wait until these figures are at least so high."""
        words = " ".join(f"{name}={least}" for name, least in wanted.items())
        reached: dict[str, int] = self.ask(f"wait {words}", seconds)
        return reached

    def _read_line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"no answer in time; stderr: {self.errors.read_text()[-4000:]}")
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            if not read:
                raise AssertionError(f"the member ended; stderr: {self.errors.read_text()[-4000:]}")
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid or self.process.pid, number)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def stop(self) -> int:
        """Ask it to stop in order; returns its exit code."""
        self.signal(signal.SIGTERM)
        code = self.process.wait(timeout=ANSWER_SECONDS)
        self.kill()
        return code


class BusCluster:
    """Members of one channel on this machine. Servers have a disk; the others only produce."""

    def __init__(
        self,
        folder: Path,
        *,
        kind: str = "udp",
        servers: int = 3,
        producers: int = 0,
        datagram_bytes: int = 60_000,
        group: dict[str, Any] | None = None,
        journal: dict[str, int] | None = None,
        network: dict[str, Any] | None = None,
        hosts: dict[int, str] | None = None,
        wrappers: dict[int, Sequence[str]] | None = None,
        lists_disks: bool = False,
        is_for_bench: bool = False,
    ) -> None:
        """For the bench there are no faults and no histories, which would cost something.

        In a group that lists its disks, one that was wiped or ruined comes back as another.
        """
        self.folder = folder
        self.kind = kind
        self.servers = list(range(1, servers + 1))
        self.nodes = list(range(1, servers + producers + 1))
        self.fault_file = folder / "faults"
        self.key_file = folder / "key"
        generate_key_file(self.key_file)
        self._wrappers = wrappers or {}
        ports = ports_for(len(self.nodes))
        group_ports = ports_for(len(Lane))
        self.network = {
            "cluster_id": secrets.token_hex(16),
            "peers": {
                str(node): [(hosts or {}).get(node, LOOPBACK), port]
                for node, port in zip(self.nodes, ports, strict=True)
            },
            "groups": {lane.name: [f"239.255.71.{lane + 1}", group_ports[lane]] for lane in Lane},
            "datagram_bytes": datagram_bytes,
            **(network or {}),
        }
        self.group = {
            "group": "a",
            "nodes": self.nodes,
            **dict.fromkeys(
                ("commit_servers", "data_servers", "checkpoint_servers", "candidates"), self.servers
            ),
            "data_quantity": min(2, servers),
            "commit_quantity": servers // 2 + 1,
            "seal_quantity": servers // 2 + 1,
            "checkpoint_quantity": min(2, servers),
            **(group or {}),
        }
        self.disk_ids = {node: secrets.token_hex(16) for node in self.servers} if lists_disks else {}
        if lists_disks:
            self.group["disk_ids"] = [self.disk_ids.get(node, NO_DISK.hex()) for node in self.nodes]
        self.journal = journal if journal is not None else SMALL_SEGMENTS
        self._is_for_bench = is_for_bench
        self.members: dict[int, MemberProcess] = {}
        self._lives = itertools.count(1)
        self._histories: list[Path] = []

    def launch(self, node: int, **changes: Any) -> MemberProcess:
        """Start a life of a member, without waiting for it."""
        life = next(self._lives)
        history = self.folder / f"history-{node}-{life}"
        network = {**self.network, **changes.pop("network", {})}
        # A disk has the listed id because it was made with it, not because it lies where that one lay.
        disk_id = {"disk_id": self.disk_ids.pop(node)} if node in self.disk_ids else {}
        config = {
            "node": node,
            "group": self.group,
            "transport": self.kind,
            "network": network,
            "key_file": str(self.key_file),
            "data": str(self.folder / f"data-{node}") if node in self.servers else None,
            **disk_id,
            "journal": self.journal,
            "fault_file": None if self._is_for_bench else str(self.fault_file),
            "history": str(history) if node in self.servers and not self._is_for_bench else None,
            **changes,
        }
        path = self.folder / f"config-{node}-{life}.json"
        path.write_text(json.dumps(config))
        member = MemberProcess(path, self.folder / f"stderr-{node}", self._wrappers.get(node, ()))
        self.members[node] = member
        if config["history"]:
            self._histories.append(history)
        return member

    def start(self, nodes: Iterable[int] = ()) -> None:
        for node in list(nodes) or self.nodes:
            self.launch(node)
        for member in self.members.values():
            if not member.pid:
                member.wait_ready()

    def leader(self, among: Iterable[int] = ()) -> int:
        """Who serves, once all of these agree that somebody does."""
        nodes = list(among) or self.servers
        asked = {node: self.members[node].say("wait synchronized=1") for node in nodes}
        deadline = time.monotonic() + READY_SECONDS
        while True:
            for node, to in asked.items():
                self.members[node].answer(to, deadline - time.monotonic())
            found = [node for node in nodes if self.members[node].status()["serving"]]
            if len(found) == 1:
                return found[0]
            asked = {node: self.members[node].say("wait synchronized=1") for node in nodes}

    def settle(self, nodes: Iterable[int] = ()) -> list[dict[str, Any]]:
        """Wait until these have applied the same, and return how they stand."""
        nodes = list(nodes) or self.servers
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            statuses = [self.members[node].status() for node in nodes]
            if len({(one["applied"], one["digest"]) for one in statuses}) == 1:
                return statuses
            assert time.monotonic() < deadline, [(s["node"], s["applied"], s["digest"]) for s in statuses]
            highest = max(one["applied"] for one in statuses)
            for node in nodes:
                self.members[node].wait(deadline - time.monotonic(), applied=highest)

    def histories(self) -> list[list[tuple[int, ...]]]:
        """What each life has applied: first, count, session, number, and the envelope's id."""
        return [
            [tuple(map(int, line.split())) for line in path.read_text().splitlines() if line.count(" ") == 6]
            for path in self._histories
            if path.exists()
        ]

    def faults(self, rules: str) -> None:
        """Rules for all members, in force within a moment."""
        fresh = self.fault_file.with_suffix(".new")
        fresh.write_text(rules)
        fresh.rename(self.fault_file)

    def __enter__(self) -> BusCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members.values():
            member.kill()


def totals(statuses: Iterable[dict[str, Any]]) -> dict[str, int]:
    """The counters of all members, summed up."""
    sums: dict[str, int] = {}
    for status in statuses:
        for row in status["counters"].values():
            for name, value in row.items():
                sums[name] = sums.get(name, 0) + value
    return sums


@functools.cache
def has_multicast() -> bool:
    """Does this machine carry a multicast from the loopback to the loopback?"""
    group = ("239.255.71.77", ports_for(1)[0])
    try:
        with open_multicast(group, interface=LOOPBACK, buffer_bytes=4096) as receiver:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
                sender.sendto(b"is anybody there?", group)
            return bool(select.select([receiver], [], [], 2.0)[0])
    except (OSError, NodeError):
        return False


def cluster(folder: Path, kind: str = "udp-large", **others: Any) -> BusCluster:
    options: dict[str, Any] = {**KINDS[kind], **others}
    return BusCluster(folder, **options)


def check_order(members: BusCluster, loads: dict[int, dict[str, Any]]) -> None:
    """One order, everything in it once, and what was confirmed where it was confirmed.

    `loads` are results of loads with their places, by the session that submitted them.
    """
    histories = members.histories()
    one_order: dict[int, tuple[int, ...]] = {}
    for history in histories:
        for row in history:
            assert one_order.setdefault(row[0], row) == row, "two members disagree about a number"
        assert all(before[0] < after[0] for before, after in itertools.pairwise(history))
    times = Counter((row[2], row[3]) for row in one_order.values())
    assert set(times.values()) <= {1}, [envelope for envelope, count in times.items() if count > 1]
    for session, load in loads.items():
        assert load["uncertain"] == 0
        for number, first, count in load["places"]:
            assert one_order[first][1:4] == (count, session, number), "what was confirmed is not there"


def finish(members: BusCluster, asked: dict[int, int], seconds: float = 40.0) -> dict[int, dict[str, Any]]:
    """Wait for loads; their results by session."""
    results = {}
    for node, to in asked.items():
        member = members.members[node]
        result = member.answer(to, seconds)
        results[member.status()["session"]] = result
    return results
