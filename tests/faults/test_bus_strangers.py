"""Strangers, recordings and noise on the ports of real members: ignored, counted, logged once."""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.transport.key_file import read_key_file
from antiphon.transport.keys import GroupKeys
from antiphon.transport.sealing import Sealer
from antiphon.transport.sockets import open_multicast
from antiphon.wire.lanes import Lane
from tests.bus_members import (
    LOOPBACK,
    NO_MULTICAST,
    BusCluster,
    check_order,
    cluster,
    finish,
    has_multicast,
    totals,
)

LOAD = "load envelopes=300 messages=20 size=256 rate=100 list=1"
ROUNDS = 100
SAID_ONCE = "said once, counted from now on"


class Forger:
    """Seals what looks like the cluster's own, without its key."""

    def __init__(self, members: BusCluster) -> None:
        cluster_id = bytes.fromhex(members.network["cluster_id"])
        keys = read_key_file(members.key_file)
        wrong = GroupKeys.of([(keys.current, secrets.token_bytes(32))])
        run_id = secrets.token_bytes(16)
        self._wrong_key = Sealer(wrong, cluster_id, 1, run_id).stream(Lane.DATA)
        self._other_cluster = Sealer(wrong, secrets.token_bytes(16), 2, run_id).stream(Lane.DATA)

    def forged(self) -> list[bytes]:
        """One with another key, and one of another cluster."""
        return [b"".join(one.seal(b"\1\4\0\0\0evil")) for one in (self._wrong_key, self._other_cluster)]


class UdpStranger(Forger):
    """Somebody on the same network who has no part in the cluster."""

    def __init__(self, members: BusCluster) -> None:
        super().__init__(members)
        self._chance = random.Random(5)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        groups = {lane: tuple(members.network["groups"][lane.name]) for lane in Lane}
        self._places = [*groups.values(), *(tuple(place) for place in members.network["peers"].values())]
        self._ear = open_multicast(groups[Lane.DATA], interface=LOOPBACK, buffer_bytes=1 << 20)
        self._ear.setblocking(True)
        self._ear.settimeout(10.0)

    def pester(self) -> None:
        """Everything a stranger can send, one of each, to everybody."""
        heard = self._ear.recv(1 << 16)
        for words in (
            heard,
            heard[:-1] + bytes([heard[-1] ^ 1]),
            self._chance.randbytes(self._chance.randrange(1, 1_400)),
            *self.forged(),
        ):
            for place in self._places:
                self._socket.sendto(words, place)

    def close(self) -> None:
        self._socket.close()
        self._ear.close()


class TcpStranger(Forger):
    """Somebody who can connect to the members, and has listened to what one of them says to another."""

    def __init__(self, members: BusCluster, recorder: Recorder) -> None:
        super().__init__(members)
        self._chance = random.Random(6)
        self._recorder = recorder
        self._places = {int(node): tuple(place) for node, place in members.network["peers"].items()}

    def pester(self) -> None:
        """Noise, forgeries and a recording, each over a connection of its own."""
        for place in self._places.values():
            for words in (
                self._chance.randbytes(self._chance.randrange(100, 4_000)),
                b"".join(map(record_of, self.forged())),
            ):
                self._say(place, words)
        self._say(self._recorder.target, bytes(self._recorder.recorded[: 1 << 20]))

    def _say(self, place: tuple[str, int], words: bytes) -> None:
        # A member may hang up before everything is said.
        with contextlib.suppress(OSError), socket.create_connection(place, 5.0) as connection:
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

    def close(self) -> None:
        """It keeps nothing open."""


def record_of(datagram: bytes) -> bytes:
    """As it goes over a stream."""
    return (1 + len(datagram)).to_bytes(4, "little") + b"\0" + datagram


class Recorder:
    """Stands between a member and the one that calls it, and keeps what the caller says."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.recorded = bytearray()
        self._listening = socket.create_server((LOOPBACK, 0))
        self.place: tuple[str, int] = self._listening.getsockname()
        self._open: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._run(self._serve)

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                try:
                    called = socket.create_connection(self.target)
                except OSError:
                    caller.close()
                    continue
                self._open += [caller, called]
                self._run(lambda caller=caller, called=called: self._carry(caller, called, is_kept=True))
                self._run(lambda caller=caller, called=called: self._carry(called, caller, is_kept=False))

    def _carry(self, source: socket.socket, target: socket.socket, *, is_kept: bool) -> None:
        with contextlib.suppress(OSError):
            while words := source.recv(1 << 16):
                if is_kept:
                    self.recorded += words
                target.sendall(words)
        hang_up(target)

    def close(self) -> None:
        for one in self._open:
            hang_up(one)
        for thread in self._threads:
            thread.join()
        for one in self._open:
            one.close()


def hang_up(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def check_complaints(members: BusCluster, wanted: dict[int, set[str]]) -> None:
    """Each member has said what is wanted of it, and nothing twice."""
    for node, words in wanted.items():
        lines = members.members[node].errors.read_text().splitlines()
        # Behind date, time, level and name.
        said = Counter(line.split(maxsplit=4)[-1] for line in lines if SAID_ONCE in line)
        assert set(said.values()) == {1}, said
        for one in words:
            assert any(one in line for line in said), f"{one!r} is not among {sorted(said)}"


def pester_under_load(members: BusCluster, stranger: UdpStranger | TcpStranger) -> dict[str, int]:
    """Everybody submits while the stranger does what it can; nothing changes but the counters, returned."""
    members.leader()
    epoch = members.settle()[0]["epoch"]
    asked = {node: members.members[node].say(LOAD) for node in members.nodes}
    members.members[1].wait(envelopes=10)
    for _ in range(ROUNDS):
        stranger.pester()
    loads = finish(members, asked)
    statuses = members.settle()
    check_order(members, loads)
    assert {one["epoch"] for one in statuses} == {epoch}
    assert [one["refused"] for one in statuses] == [0, 0, 0]
    return totals(statuses)


NOISE = "no datagram of ours"
AGAIN = "came again"
OTHER_CLUSTER = "of another cluster"
# The one with the wrong key says that it is member 1.
FORGED = {1: {"are there two of us?"}, 2: {"not sealed with a key"}, 3: {"not sealed with a key"}}


def test_strangers_recordings_and_noise_have_no_effect_but_on_counters(tmp_path: Path) -> None:
    if not has_multicast():
        pytest.skip(NO_MULTICAST)
    with cluster(tmp_path, group={"suspicion_ms": 2_000}) as members:
        members.start()
        with contextlib.closing(UdpStranger(members)) as stranger:
            sums = pester_under_load(members, stranger)
        assert sums["replays"] > 0 and sums["wrong_key"] > 0, sums
        assert sums["other_cluster"] > 0 and sums["garbage"] > 0, sums
        check_complaints(members, {node: {NOISE, OTHER_CLUSTER} | FORGED[node] for node in FORGED})


def test_strangers_recordings_and_noise_on_tcp_ports_have_no_effect_but_on_counters(tmp_path: Path) -> None:
    with cluster(tmp_path, "tcp", group={"suspicion_ms": 2_000}) as members:
        peers = members.network["peers"]
        with contextlib.closing(Recorder(tuple(peers["1"]))) as recorder:
            # The member with the higher number calls.
            members.launch(2, network={"peers": {**peers, "1": list(recorder.place)}})
            members.start([1, 3])
            with contextlib.closing(TcpStranger(members, recorder)) as stranger:
                sums = pester_under_load(members, stranger)
            assert recorder.recorded
        print("what strangers cost", sums)
        assert sums["replays"] > ROUNDS and sums["wrong_key"] >= 2 * ROUNDS, sums
        assert sums["other_cluster"] == 3 * ROUNDS and sums["garbage"] >= 3 * ROUNDS, sums
        check_complaints(members, {node: {NOISE, OTHER_CLUSTER} | FORGED[node] for node in FORGED})
        check_complaints(members, {1: {AGAIN}})
