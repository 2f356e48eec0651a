"""The bus over real sockets, with real disks, in real processes, while network and processes misbehave.

Figures are printed: `pytest -rP tests/faults/test_bus_processes.py` shows them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.transport.interface import Lane
from antiphon.transport.key_file import read_key_file
from antiphon.transport.keys import GroupKeys
from antiphon.transport.sealing import Sealer
from antiphon.transport.sockets import open_multicast
from tests.bus_members import LOOPBACK, BusCluster, has_multicast, totals

KINDS = {
    "udp-large": {"kind": "udp", "datagram_bytes": 60_000},
    "udp": {"kind": "udp", "datagram_bytes": 1_400},
    "tcp": {"kind": "tcp"},
}
FAILOVER_SECONDS = 2.0


@pytest.fixture(autouse=True)
def needs_multicast() -> None:
    if not has_multicast():
        pytest.skip("THIS MACHINE HAS NO MULTICAST ON ITS LOOPBACK: the bus was not tested over real sockets")


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


# -- the network --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_loss_duplicates_and_disorder_change_nothing_but_the_time(kind: str, tmp_path: Path) -> None:
    with cluster(tmp_path, kind) as members:
        members.faults("seed=7; drop=0.3 duplicate=0.1 reorder=0.1")
        members.start()
        members.leader()
        asked = {
            node: members.members[node].say(f"load envelopes=80 messages={count} size=256 list=1")
            for node, count in ((1, 1), (2, 20), (3, 220))
        }
        loads = finish(members, asked)
        members.faults("")
        statuses = members.settle()
        assert [one["envelopes"] for one in statuses] == [240] * 3
        check_order(members, loads)
        sums = totals(statuses)
        print("what faults cost", kind, sums)
        # Of ten that were sent seven came: so many more were lost. What is lost again is asked for again.
        lost = (sums["datagrams"] + sums["replays"]) * 3 // 7
        assert sums["repairs_given"] <= 2 * lost + 100, sums
        assert sums["repairs_asked"] <= 3 * lost + 100, sums
        assert (sums["repairs_given"] > 0) == (kind != "tcp"), sums


def test_at_half_load_almost_nothing_is_said_twice(tmp_path: Path) -> None:
    with cluster(tmp_path, producers=1) as members:
        members.start()
        members.leader()
        producer = members.members[4]
        full = producer.ask("load seconds=1 messages=220 size=256")
        rate = int(full["rate"] / 220 / 2)
        spent: dict[str, int] = {}
        # What others do with this machine meanwhile may make members late: then half of it is something else.
        for _ in range(4):
            members.settle()
            before = said(members)
            half = producer.ask(f"load seconds=3 messages=220 size=256 rate={rate}")
            members.settle()
            after = said(members)
            spent = {name: after[name] - before[name] for name in after}
            print("half load", rate, spent, half["latency_ms"])
            again = max(spent["repairs_given"], spent["rereported"] + spent["resent"])
            if again * 1_000 <= spent["datagrams"] and not spent["socket_drops"]:
                return
            rate = max(10, rate // 2)
        pytest.fail(f"at half load, {rate} envelopes/s: {spent}")


def said(members: BusCluster) -> dict[str, int]:
    """What all members said and heard so far, and how much of it again."""
    statuses = [member.status() for member in members.members.values()]
    again = {name: sum(one.get(name, 0) for one in statuses) for name in ("rereported", "resent")}
    return totals(statuses) | again


# -- processes ----------------------------------------------------------------------------------------


def others_than(members: BusCluster, leader: int) -> list[int]:
    return [node for node in members.servers if node != leader]


def test_a_killed_sequencer_is_replaced_within_two_seconds_and_nothing_confirmed_is_lost(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, producers=1) as members:
        members.start()
        leader = members.leader()
        survivors = others_than(members, leader)
        term = members.members[leader].status()["term"]
        asked = {
            node: members.members[node].say("load envelopes=600 messages=20 size=256 rate=150 list=1")
            for node in (*survivors, 4)
        }
        doomed = members.members[leader].say("load envelopes=1000000 messages=20 size=256")
        members.members[leader].wait(envelopes=50)
        members.members[leader].kill()
        killed_at = time.monotonic()
        for node in survivors:
            members.members[node].wait(term=term + 1)
        print("failover seconds", time.monotonic() - killed_at)
        assert time.monotonic() - killed_at <= FAILOVER_SECONDS
        assert doomed
        loads = finish(members, asked)
        members.launch(leader).wait_ready()
        members.settle()
        check_order(members, loads)


def test_a_sequencer_that_slept_is_fenced_and_follows(tmp_path: Path) -> None:
    with cluster(tmp_path) as members:
        members.start()
        leader = members.leader()
        sleeper = members.members[leader]
        survivors = others_than(members, leader)
        term = sleeper.status()["term"]
        asked = {leader: sleeper.say("load envelopes=300 messages=20 size=256 rate=300 list=1")}
        sleeper.wait(envelopes=50)
        sleeper.signal(signal.SIGSTOP)
        for node in survivors:
            members.members[node].wait(term=term + 1)
        slept = members.members[survivors[0]].ask("load seconds=5 messages=20 size=256 rate=100 list=1")
        asleep = {members.members[survivors[0]].status()["session"]: slept}
        sleeper.signal(signal.SIGCONT)
        sleeper.wait(term=term + 1, following=1)
        loads = finish(members, asked)
        statuses = members.settle()
        assert [one["serving"] for one in statuses].count(1) == 1
        assert not statuses[members.servers.index(leader)]["serving"]
        check_order(members, loads | asleep)


def test_an_orderly_stop_of_all_loses_nothing_and_the_same_order_goes_on(tmp_path: Path) -> None:
    with cluster(tmp_path, "tcp") as members:
        members.start()
        members.leader()
        loads = finish(members, {1: members.members[1].say("load envelopes=100 messages=20 list=1")})
        before = members.settle()[0]
        assert [members.members[node].stop() for node in members.nodes] == [0, 0, 0]
        members.start()
        members.leader()
        loads |= finish(members, {2: members.members[2].say("load envelopes=100 messages=20 list=1")})
        after = members.settle()[0]
        assert after["applied"] > before["applied"] and after["term"] > before["term"]
        check_order(members, loads)


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_member_that_was_away_for_long_goes_on_from_a_checkpoint_of_another(
    kind: str, tmp_path: Path
) -> None:
    with cluster(tmp_path, kind, group={"checkpoint_entries": 40}) as members:
        members.start()
        members.leader()
        away = members.servers[-1]
        first = finish(members, {1: members.members[1].say("load envelopes=20 messages=20 list=1")})
        members.settle()
        members.members[away].kill()
        present = [node for node in members.servers if node != away]
        members.leader(present)
        load = "load envelopes=300 messages=20 rate=150 list=1"
        second = finish(members, {2: members.members[2].say(load)})
        gone = members.settle(present)[0]
        for node in present:
            members.members[node].wait(checkpoint=gone["applied"] // 2)
        members.launch(away).wait_ready()
        statuses = members.settle()
        check_order(members, first | second)
        # What the checkpoint covers it never saw.
        assert statuses[-1]["envelopes"] < statuses[0]["envelopes"]


# -- strangers ----------------------------------------------------------------------------------------


class Stranger:
    """Somebody on the same network who has no part in the cluster."""

    def __init__(self, members: BusCluster) -> None:
        self._chance = random.Random(5)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        groups = {lane: tuple(members.network["groups"][lane.name]) for lane in Lane}
        self._places = [*groups.values(), *(tuple(place) for place in members.network["peers"].values())]
        self._ear = open_multicast(groups[Lane.DATA], interface=LOOPBACK, buffer_bytes=1 << 20)
        self._ear.setblocking(True)
        self._ear.settimeout(10.0)
        cluster_id = bytes.fromhex(members.network["cluster_id"])
        keys = read_key_file(members.key_file)
        wrong = GroupKeys.of([(keys.current, secrets.token_bytes(32))])
        run_id = secrets.token_bytes(16)
        self._wrong_key = Sealer(wrong, cluster_id, 1, run_id).stream(Lane.DATA)
        self._other_cluster = Sealer(wrong, secrets.token_bytes(16), 2, run_id).stream(Lane.DATA)

    def pester(self, times: int) -> None:
        """Everything a stranger can send, a few of each, to everybody."""
        for _ in range(times):
            heard = self._ear.recv(1 << 16)
            for words in (
                heard,
                heard[:-1] + bytes([heard[-1] ^ 1]),
                self._chance.randbytes(self._chance.randrange(1, 1_400)),
                b"".join(self._wrong_key.seal(b"\1\4\0\0\0evil")),
                b"".join(self._other_cluster.seal(b"\1\4\0\0\0evil")),
            ):
                for place in self._places:
                    self._socket.sendto(words, place)

    def close(self) -> None:
        self._socket.close()
        self._ear.close()


def test_strangers_recordings_and_noise_have_no_effect_but_on_counters(tmp_path: Path) -> None:
    with cluster(tmp_path, group={"suspicion_ms": 2_000}) as members:
        members.start()
        members.leader()
        epoch = members.settle()[0]["epoch"]
        asked = {
            node: members.members[node].say("load envelopes=300 messages=20 size=256 rate=100 list=1")
            for node in members.nodes
        }
        with contextlib.closing(Stranger(members)) as stranger:
            stranger.pester(100)
            loads = finish(members, asked)
        statuses = members.settle()
        check_order(members, loads)
        assert {one["epoch"] for one in statuses} == {epoch}
        assert [one["refused"] for one in statuses] == [0, 0, 0]
        sums = totals(statuses)
        assert sums["replays"] > 0 and sums["wrong_key"] > 0, sums
        assert sums["other_cluster"] > 0 and sums["garbage"] > 0, sums


def test_noise_on_tcp_ports_has_no_effect(tmp_path: Path) -> None:
    with cluster(tmp_path, "tcp", group={"suspicion_ms": 2_000}) as members:
        members.start()
        members.leader()
        chance = random.Random(6)
        asked = {1: members.members[1].say("load envelopes=300 messages=20 size=256 rate=150 list=1")}
        for _ in range(30):
            for place in members.network["peers"].values():
                with contextlib.suppress(OSError), socket.create_connection(tuple(place), 5) as noise:
                    noise.sendall(chance.randbytes(chance.randrange(1, 4_000)))
        loads = finish(members, asked)
        members.settle()
        check_order(members, loads)


# -- namespaces ---------------------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Segment:
    """A network segment of its own: a bridge, and a namespace per member with packets of 1500 bytes."""

    def __init__(self, count: int) -> None:
        self.tag = f"ap{os.getpid() % 100_000}"
        self.nodes = range(1, count + 1)
        self.hosts = {node: f"10.213.77.{node}" for node in self.nodes}
        self.wrappers = {node: ["ip", "netns", "exec", f"{self.tag}n{node}"] for node in self.nodes}

    def build(self) -> None:
        ip("link", "add", self.tag, "type", "bridge")
        ip("link", "set", self.tag, "up")
        for node in self.nodes:
            space, port = f"{self.tag}n{node}", f"{self.tag}v{node}"
            ip("netns", "add", space)
            ip("link", "add", port, "mtu", "1500", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", port, "master", self.tag, "up")
            for words in (
                ("addr", "add", f"{self.hosts[node]}/24", "dev", "eth0"),
                ("link", "set", "lo", "up"),
                ("link", "set", "eth0", "up"),
                ("route", "add", "239.255.0.0/16", "dev", "eth0"),
            ):
                ip("-n", space, *words)

    def link(self, node: int, state: str) -> None:
        ip("link", "set", f"{self.tag}v{node}", state)

    def remove(self) -> None:
        for node in self.nodes:
            for words in (("link", "del", f"{self.tag}v{node}"), ("netns", "del", f"{self.tag}n{node}")):
                with contextlib.suppress(subprocess.CalledProcessError):
                    ip(*words)
        with contextlib.suppress(subprocess.CalledProcessError):
            ip("link", "del", self.tag)


@pytest.fixture
def segment() -> Iterator[Segment]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("NETWORK NAMESPACES NEED ROOT AND ip: the bus was not tested over a network of its own")
    made = Segment(3)
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(
                f"NO NETWORK NAMESPACES HERE ({error.stderr.strip()}): the bus was not tested over one"
            )
        yield made
    finally:
        made.remove()


def test_a_link_goes_down_and_comes_back_between_real_interfaces(segment: Segment, tmp_path: Path) -> None:
    with BusCluster(
        tmp_path, kind="udp", datagram_bytes=1_400, hosts=segment.hosts, wrappers=segment.wrappers
    ) as members:
        for node in members.nodes:
            members.launch(node, network={"interface": segment.hosts[node]})
        for member in members.members.values():
            member.wait_ready()
        leader = members.leader()
        term = members.members[leader].status()["term"]
        survivors = others_than(members, leader)
        asked = {
            node: members.members[node].say("load envelopes=400 messages=20 size=256 rate=100 list=1")
            for node in members.nodes
        }
        members.members[leader].wait(envelopes=50)
        segment.link(leader, "down")
        for node in survivors:
            members.members[node].wait(term=term + 1)
        # The one that is cut off notices that nobody listens to it.
        members.members[leader].wait(following=1)
        segment.link(leader, "up")
        loads = finish(members, asked)
        statuses = members.settle()
        check_order(members, loads)
        assert [one["envelopes"] for one in statuses] == [1_200] * 3
