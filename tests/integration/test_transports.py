"""One suite over all transports: real sockets on the loopback, real multicast, real processes.

Run as a program, this file is one member in a process of its own (see `main`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from antiphon.bus.codec import Header, decode, encode_parts
from antiphon.bus.messages import Data
from antiphon.errors import NodeError
from antiphon.ids import Mid
from antiphon.transport.faults import FaultLayer, FaultRules
from antiphon.transport.interface import NOBODY, Arrived, Lane, Peer, Transport, TransportSettings
from antiphon.transport.keys import GroupKeys
from antiphon.transport.memory import MemoryNetwork, MemoryTransport
from antiphon.transport.sealing import Sealer
from antiphon.transport.sockets import open_multicast
from antiphon.transport.tcp import TcpTransport
from antiphon.transport.udp import UdpTransport

DEADLINE_SECONDS = 30.0
CLUSTER = b"the real cluster"
KEYS = GroupKeys.of([(1, b"k" * 32)])
LOOPBACK = "127.0.0.1"
MIB = 1024 * 1024

# `udp` cuts frames as on a network of 1500 bytes, `udp-large` sends 60,000 at once.
KINDS = ["memory", "udp", "udp-large", "tcp"]
UDP = ["udp", "udp-large"]
SOCKETS = [*UDP, "tcp"]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await coroutine

    asyncio.run(in_time())


@functools.cache
def multicast_works() -> bool:
    """Does this machine carry a multicast from the loopback to the loopback?"""
    group = ("239.255.77.77", free_ports(1)[0])
    try:
        with open_multicast(group, interface=LOOPBACK, buffer_bytes=4096) as receiver:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
                sender.sendto(b"is anybody there?", group)
            return bool(select.select([receiver], [], [], 2.0)[0])
    except (OSError, NodeError):
        return False


@pytest.fixture(autouse=True)
def needs_multicast(request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params.get("kind", "") if hasattr(request.node, "callspec") else ""
    if kind in UDP and not multicast_works():
        pytest.skip("THIS MACHINE HAS NO MULTICAST ON ITS LOOPBACK: the udp transport was not tested")


def free_ports(count: int, kind: int = socket.SOCK_DGRAM) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, kind)) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def settings_for(kind: str, members: int, **others: Any) -> list[TransportSettings]:
    """One per member, on ports that nobody has."""
    ports = free_ports(members, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM)
    peers = {number: Peer(LOOPBACK, port) for number, port in enumerate(ports, start=1)}
    group_ports = free_ports(len(Lane))
    groups = {lane: (f"239.255.{os.getpid() % 250}.{lane + 1}", group_ports[lane]) for lane in Lane}
    return [
        TransportSettings(
            node=node,
            cluster_id=CLUSTER,
            run_id=os.urandom(16),
            peers=peers,
            keys=KEYS,
            groups=groups,
            datagram_bytes=60_000 if kind == "udp-large" else 1_400,
            **others,
        )
        for node in peers
    ]


class Hall:
    """A few members in one event loop, and what each has heard."""

    def __init__(self, kind: str, members: int = 3, **others: Any) -> None:
        self.kind = kind
        self.settings = {one.node: one for one in settings_for(kind, members, **others)}
        self.members: dict[int, Transport] = {}
        self.layers = {node: FaultLayer(node) for node in self.settings}
        self.heard: dict[int, list[Arrived]] = {node: [] for node in self.settings}
        self.calls: dict[int, list[int]] = {node: [] for node in self.settings}
        """How many frames each call brought."""
        self._network = MemoryNetwork()
        self._news = asyncio.Event()

    async def start(self, node: int, **options: Any) -> Transport:
        def deliver(arrived: list[Arrived]) -> None:
            # Views are kept for long here.
            self.heard[node] += [one._replace(frame=bytes(one.frame)) for one in arrived]
            self.calls[node].append(len(arrived))
            self._news.set()

        settings, layer = self.settings[node], self.layers[node]
        member: Transport
        if self.kind == "memory":
            member = MemoryTransport(self._network, settings, deliver, faults=layer, **options)
        elif self.kind == "tcp":
            member = TcpTransport(settings, deliver, faults=layer, **options)
        else:
            member = UdpTransport(settings, deliver, faults=layer, **options)
        await member.start()
        self.members[node] = member
        return member

    async def restart(self, node: int) -> Transport:
        """A new life at the same place."""
        await self.members[node].close()
        self.settings[node] = replace(self.settings[node], run_id=os.urandom(16))
        return await self.start(node)

    async def until(self, is_true: Callable[[], object]) -> None:
        """Wait for something that a delivery makes true; the deadline is the test's."""
        while not is_true():
            self._news.clear()
            await self._news.wait()

    async def acquainted(self) -> None:
        """Return when every member has heard every other.

        Over TCP what is said before there is a connection is lost, so say it until it arrives.
        """
        pairs = [(one, other) for one in self.members for other in self.members if one != other]
        said = 0
        while missing := [(one, other) for one, other in pairs if not self.from_(other, one)]:
            for one, other in missing if self.kind == "tcp" or not said else []:
                self.members[one].send(other, [b"how do you do"])
            said += 1
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._news.wait()
        self.forget()

    def forget(self) -> None:
        for node in self.heard:
            self.heard[node] = []
            self.calls[node] = []

    def from_(self, receiver: int, sender: int) -> list[bytes]:
        """What the receiver has heard of the sender, greetings not counted."""
        return [bytes(one.frame) for one in self.heard[receiver] if one.sender == sender]

    def frames(self, receiver: int, sender: int) -> list[bytes]:
        return [frame for frame in self.from_(receiver, sender) if frame != b"how do you do"]

    def rules(self, text: str) -> None:
        for layer in self.layers.values():
            layer.rules = FaultRules.parse(text)

    async def close(self) -> None:
        for member in self.members.values():
            await member.close()


@contextlib.asynccontextmanager
async def hall(kind: str, members: int = 3, **others: Any) -> AsyncIterator[Hall]:
    """Members that know each other."""
    opened = Hall(kind, members, **others)
    try:
        for node in opened.settings:
            await opened.start(node)
        await opened.acquainted()
        yield opened
    finally:
        await opened.close()


def body(number: int, size: int) -> bytes:
    """A frame that is unlike all others."""
    pattern = hashlib.sha256(b"%d" % number).digest()
    return (pattern * (size // len(pattern) + 1))[:size]


SIZES = [1, 299, 1_335, 1_336, 59_000, 61_000, MIB, 3 * MIB]


# -- frames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_all_sizes_arrive_whole(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            said = [body(number, size) for number, size in enumerate(SIZES)]
            for frame in said:
                members.members[1].send(2, [frame[:100], memoryview(frame)[100:]])
                members.members[3].multicast(Lane.DATA, [frame])
            await members.until(lambda: len(members.frames(2, 1)) == len(said))
            await members.until(lambda: len(members.frames(2, 3)) == len(said))
            await members.until(lambda: len(members.frames(1, 3)) == len(said))
            assert sorted(members.frames(2, 1)) == sorted(said)
            assert sorted(members.frames(2, 3)) == sorted(members.frames(1, 3)) == sorted(said)

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_the_messages_of_the_bus_pass_as_their_codec_writes_them(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            data = Data(Mid(1, 2, 3), ts=4, count=1, digest=b"d" * 16, payload=body(1, 100_000))
            one = members.settings[1]
            parts = encode_parts(data, "a", 7, one.node, one.run_id, b"disk id" + bytes(9))
            assert len(parts) > 1
            members.members[1].multicast(Lane.DATA, parts)
            await members.until(lambda: members.frames(2, 1))
            header, message = decode(members.frames(2, 1)[0])
            assert header == Header("a", 7, one.node, one.run_id, b"disk id" + bytes(9))
            assert message == data

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_to_all_reaches_all_others_on_every_lane(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            for lane in Lane:
                members.members[2].multicast(lane, [lane.name.encode()])
            members.members[2].flush()
            names = sorted(lane.name.encode() for lane in Lane)
            for node in (1, 3):
                await members.until(lambda node=node: len(members.frames(node, 2)) == 3)
                assert sorted(members.frames(node, 2)) == names
                assert {one.run_id for one in members.heard[node] if one.sender == 2} == {
                    members.settings[2].run_id
                }
            assert members.frames(2, 2) == []

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_what_came_together_is_delivered_in_one_call(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            for number in range(40):
                members.members[1].send(2, [b"%d" % number])
            await members.until(lambda: len(members.frames(2, 1)) == 40)
            assert max(members.calls[2]) == 40
            if kind != "memory":
                # They also travelled together.
                assert members.members[1].counters()[2].frames_sent >= 40
                assert members.members[1].counters()[2].datagrams_sent < 40

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_a_uvloop_serves_as_well(kind: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def story() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), hall(kind) as members:
            said = [body(number, size) for number, size in enumerate(SIZES)]
            for frame in said:
                members.members[1].multicast(Lane.CONTROL, [frame])
            await members.until(lambda: len(members.frames(3, 1)) == len(said))
            assert sorted(members.frames(3, 1)) == sorted(said)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", UDP)
def test_what_the_network_loses_is_repaired(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("seed=5; drop=0.3 duplicate=0.3 reorder=0.3")
            said = [body(number, 1 + (number * 7_919) % 20_000) for number in range(60)] + [body(99, 3 * MIB)]
            for frame in said:
                members.members[1].multicast(Lane.DATA, [frame])
                members.members[1].flush()
                members.members[3].send(2, [frame])
            for receiver, sender in ((2, 1), (3, 1), (2, 3)):
                await members.until(
                    lambda receiver=receiver, sender=sender: (
                        len(members.frames(receiver, sender)) >= len(said)
                    )
                )
                assert Counter(members.frames(receiver, sender)) == Counter(said)
            counters = members.members[2].counters()
            assert counters[1].gave_up == counters[3].gave_up == 0
            assert counters[1].repairs_asked > 0
            assert counters[1].replays > 0
            assert members.members[3].counters()[2].repairs_given > 0

    run(story())


@pytest.mark.parametrize("kind", ["memory", "tcp"])
def test_where_nothing_is_repaired_what_arrives_is_whole(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("seed=5; drop=0.3 reorder=0.3")
            said = [body(number, 1 + (number * 7_919) % 20_000) for number in range(60)]
            for frame in said:
                members.members[1].send(2, [frame])
                members.members[1].flush()
            members.rules("")
            members.members[1].send(2, [b"the end"])
            await members.until(lambda: b"the end" in members.frames(2, 1))
            heard = Counter(members.frames(2, 1))
            assert not heard - Counter([*said, b"the end"])
            assert len(heard) > 1

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_what_is_given_up_is_counted_and_life_goes_on(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, give_up_ms=300) as members:
            members.rules("1>2 cut")
            for number in range(5):
                members.members[1].multicast(Lane.DATA, [b"lost %d" % number])
                members.members[1].flush()
            await members.until(lambda: len(members.frames(3, 1)) == 5)
            # Member 3 goes on talking, and time passes for member 1, until it keeps nothing any more.
            store = members.members[1]._link._streams[Lane.DATA].store  # type: ignore[attr-defined]
            while store:
                members.members[3].send(2, [b"tick"])
                ticks = len(members.frames(2, 3))
                await members.until(lambda ticks=ticks: len(members.frames(2, 3)) > ticks)
            members.rules("")
            members.members[1].multicast(Lane.DATA, [b"found"])
            await members.until(lambda: b"found" in members.frames(2, 1))
            while not members.members[2].counters()[1].gave_up:
                members.members[1].send(2, [b"tick"])
                ticks = len(members.frames(2, 1))
                await members.until(lambda ticks=ticks: len(members.frames(2, 1)) > ticks)
            assert members.members[2].counters()[1].gave_up == 5
            assert b"lost 0" not in members.frames(2, 1)

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_cuts_and_heals(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("1-2 cut")
            members.members[1].multicast(Lane.CONTROL, [b"during"])
            members.members[2].send(1, [b"during"])
            await members.until(lambda: members.frames(3, 1) == [b"during"])
            members.members[3].send(2, [b"after that"])
            await members.until(lambda: members.frames(2, 3) == [b"after that"])
            assert members.frames(2, 1) == members.frames(1, 2) == []
            members.rules("")
            members.members[1].send(2, [b"healed"])
            members.members[2].send(1, [b"healed"])
            await members.until(lambda: b"healed" in members.frames(2, 1))
            await members.until(lambda: b"healed" in members.frames(1, 2))
            if kind in UDP:
                await members.until(lambda: b"during" in members.frames(2, 1))
                await members.until(lambda: b"during" in members.frames(1, 2))

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_can_be_cut_one_way(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            members.rules("1>2 cut")
            members.members[1].send(2, [b"not heard"])
            members.members[2].send(1, [b"heard"])
            await members.until(lambda: members.frames(1, 2) == [b"heard"])
            assert members.frames(2, 1) == []

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_the_fault_file_is_obeyed_while_a_member_runs(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "faults"

    async def story() -> None:
        opened = Hall(kind, 2)
        try:
            await opened.start(1)
            await opened.start(2, fault_file=path)
            await opened.acquainted()
            path.write_text("1>2 cut")
            while not opened.layers[2].rules.rules:  # noqa: ASYNC110
                await asyncio.sleep(0)
            opened.members[1].send(2, [b"cut"])
            opened.members[2].send(1, [b"barrier"])
            await opened.until(lambda: opened.frames(1, 2) == [b"barrier"])
            assert opened.frames(2, 1) == []
            path.unlink()
            while opened.layers[2].rules.rules:  # noqa: ASYNC110
                await asyncio.sleep(0)
            opened.members[1].send(2, [b"healed"])
            await opened.until(lambda: b"healed" in opened.frames(2, 1))
        finally:
            await opened.close()

    run(story())


# -- members come and go ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_comes_back_in_a_new_run(kind: str) -> None:
    async def story() -> None:
        async with hall(kind) as members:
            former = members.settings[2].run_id
            await members.restart(2)
            await members.acquainted()
            members.members[1].send(2, [b"welcome back"])
            members.members[2].multicast(Lane.DATA, [b"here I am"])
            await members.until(lambda: members.frames(2, 1) == [b"welcome back"])
            for node in (1, 3):
                await members.until(lambda node=node: members.frames(node, 2) == [b"here I am"])
                runs = {one.run_id for one in members.heard[node] if one.frame == b"here I am"}
                assert runs == {members.settings[2].run_id} != {former}

    run(story())


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_is_not_there_holds_up_nobody(kind: str) -> None:
    async def story() -> None:
        opened = Hall(kind, 3)
        try:
            await opened.start(1)
            await opened.start(2)
            await opened.acquainted()
            for number in range(100):
                opened.members[1].multicast(Lane.DATA, [b"%d" % number])
                opened.members[1].send(3, [b"to nobody"])
            await opened.until(lambda: len(opened.frames(2, 1)) == 100)
            await opened.start(3)
            await opened.acquainted()
            opened.members[1].multicast(Lane.DATA, [b"for the late one, too"])
            await opened.until(lambda: b"for the late one, too" in opened.frames(3, 1))
        finally:
            await opened.close()

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_a_place_that_is_taken_is_said_to_be(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            cls = TcpTransport if kind == "tcp" else UdpTransport
            with pytest.raises(NodeError, match="cannot listen"):
                await cls(replace(members.settings[1], run_id=os.urandom(16))).start()

    run(story())


def test_a_tcp_connection_that_breaks_is_made_again() -> None:
    async def story() -> None:
        async with hall("tcp", 2) as members:
            one = members.members[1]
            assert isinstance(one, TcpTransport)
            one._bound[2].transport.abort()
            await members.acquainted()
            members.members[1].send(2, [b"there"])
            members.members[2].send(1, [b"and back"])
            await members.until(lambda: members.frames(2, 1) and members.frames(1, 2))

    run(story())


def test_a_tcp_member_that_does_not_read_loses_what_is_too_much() -> None:
    async def story() -> None:
        async with hall("tcp", queue_bytes_max=MIB) as members:
            two = members.members[2]
            assert isinstance(two, TcpTransport)
            two._bound[1].transport.pause_reading()
            before = members.members[1].counters()[3].dropped
            for number in range(40):
                members.members[1].multicast(Lane.DATA, [body(number, MIB)])
                members.members[1].flush()
                await members.until(lambda number=number: len(members.frames(3, 1)) == number + 1)
            assert members.members[1].counters()[2].dropped > 0
            assert members.members[1].counters()[3].dropped == before
            two._bound[1].transport.resume_reading()
            while b"at last" not in members.frames(2, 1):
                members.members[1].send(2, [b"at last"])
                heard = len(members.heard[2]) + len(members.heard[3])
                members.members[1].send(3, [b"tick"])
                await members.until(lambda heard=heard: len(members.heard[2]) + len(members.heard[3]) > heard)

    run(story())


# -- strangers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", UDP)
def test_hostile_datagrams_change_nothing_but_counters(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            caplog.clear()
            settings = members.settings[2]
            places = [(settings.peers[2].host, settings.peers[2].port), *settings.groups.values()]
            group = settings.groups[Lane.DATA]
            with (
                socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mallory,
                open_multicast(group, interface=LOOPBACK, buffer_bytes=MIB) as tap,
            ):
                mallory.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
                members.members[1].multicast(Lane.DATA, [b"once"])
                await members.until(lambda: members.frames(2, 1) == [b"once"])
                recorded = tap.recv(65_536)
                one = members.settings[1].run_id
                strangers = {
                    "garbage": [b"", b"x", os.urandom(1_000), recorded[:40]],
                    "other_cluster": [sealed(KEYS, b"some other group", 1, one, 50_000)],
                    "wrong_key": [
                        sealed(GroupKeys.of([(1, b"?" * 32)]), CLUSTER, 1, one, 50_000),
                        recorded[:-1] + bytes([recorded[-1] ^ 1]),
                    ],
                    "replays": [recorded],
                }
                # A spoilt recording is refused as a replay before anybody looks at its seal.
                spoilt = bytearray(strangers["wrong_key"].pop())
                spoilt[42:50] = (1 << 40).to_bytes(8, "little")
                strangers["wrong_key"].append(bytes(spoilt))
                for datagrams in strangers.values():
                    for datagram in datagrams * 3:
                        for place in places:
                            mallory.sendto(datagram, place)
                members.members[1].multicast(Lane.DATA, [b"twice"])
                await members.until(lambda: b"twice" in members.frames(2, 1))
                members.members[1].send(2, [b"alone"])
                await members.until(lambda: b"alone" in members.frames(2, 1))
                # What mallory sent to the other lanes may still lie in their sockets.
                for lane in Lane:
                    members.members[1].multicast(lane, [lane.name.encode()])
                    await members.until(lambda lane=lane: lane.name.encode() in members.frames(2, 1))
            assert Counter(members.frames(2, 1)).most_common(1)[0][1] == 1
            counters = members.members[2].counters()
            assert counters[NOBODY].garbage == 4 * 3 * 4
            assert counters[NOBODY].other_cluster == 3 * 4
            assert counters[1].wrong_key == 2 * 3 * 4
            assert counters[1].replays >= 3 * 4
            assert len([1 for record in caplog.records if "said once" in record.message]) <= 2 * 3

    run(story())


def sealed(keys: GroupKeys, cluster_id: bytes, sender: int, run_id: bytes, counter: int) -> bytes:
    stream = Sealer(keys, cluster_id, sender, run_id).stream(Lane.DATA)
    stream.next = counter
    return b"".join(stream.seal(b"\1\4\0\0\0evil"))


def test_a_hostile_connection_is_closed_and_changes_nothing() -> None:
    async def story() -> None:
        async with hall("tcp", 2) as members:
            place = members.settings[1].peers[1]
            for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\0" * 100):
                reader, writer = await asyncio.open_connection(place.host, place.port)
                writer.write(words)
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
            # Well-formed records of somebody without the key.
            stranger = sealed(GroupKeys.of([(1, b"?" * 32)]), CLUSTER, 2, os.urandom(16), 0)
            reader, writer = await asyncio.open_connection(place.host, place.port)
            writer.write((1 + len(stranger)).to_bytes(4, "little") + b"\0" + stranger)
            members.members[2].send(1, [b"still here"])
            await members.until(lambda: members.frames(1, 2) == [b"still here"])
            while not members.members[1].counters()[2].wrong_key:  # noqa: ASYNC110
                await asyncio.sleep(0)
            writer.close()
            assert members.members[1].counters()[NOBODY].garbage == 3

    run(story())


def test_connections_of_whom_nobody_knows_who_they_are_do_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.transport.tcp.UNKNOWN_MAX", 2)

    async def story() -> None:
        async with hall("tcp", 2) as members:
            one = members.members[1]
            assert isinstance(one, TcpTransport)
            place = members.settings[1].peers[1]
            opened = [await asyncio.open_connection(place.host, place.port) for _ in range(3)]
            with contextlib.suppress(ConnectionResetError):
                assert await opened[0][0].read() == b"", "there are too many; the first has to go"
            for connection in one._unknown:
                connection.heard_s -= 3_600
            one._look()
            for reader, writer in opened[1:]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b"", "it has said nothing for an hour"
                writer.close()
            opened[0][1].close()
            members.members[2].send(1, [b"still here"])
            await members.until(lambda: members.frames(1, 2) == [b"still here"])

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_members_with_another_key_or_cluster_hear_nothing_of_us(kind: str) -> None:
    async def story() -> None:
        opened = Hall(kind, 3)
        opened.settings[3] = replace(opened.settings[3], keys=GroupKeys.of([(1, b"?" * 32)]))
        try:
            await opened.start(3)
            await opened.start(1)
            await opened.start(2)
            stranger = opened.members.pop(3)
            await opened.acquainted()
            opened.members[1].multicast(Lane.DATA, [b"secret"])
            await opened.until(lambda: b"secret" in opened.frames(2, 1))
            # Where there is no multicast, it is we who hear the stranger and do not answer.
            hears = stranger.counters()[1], opened.members[1].counters()[3]
            while not (hears[0].wrong_key or hears[1].wrong_key):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert opened.heard[3] == []
            await stranger.close()
        finally:
            await opened.close()

    run(story())


@pytest.mark.parametrize("kind", SOCKETS)
def test_the_group_key_is_changed_under_way(kind: str) -> None:
    old, new = (1, KEYS.by_id[1]), (2, b"n" * 32)

    async def story() -> None:
        async with hall(kind) as members:
            said: list[bytes] = []
            for keys in ([old, new], [new, old], [new]):
                for member in members.members.values():
                    assert isinstance(member, UdpTransport | TcpTransport)
                    member.use_keys(GroupKeys.of(keys))
                    said.append(b"%d" % len(said))
                    members.members[1].multicast(Lane.CONTROL, [said[-1]])
                    for node in (2, 3):
                        await members.until(lambda node=node: sorted(members.frames(node, 1)) == said)
            assert members.members[2].counters()[1].wrong_key == 0

    run(story())


# -- the kernel ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["udp"])
def test_the_window_is_what_the_kernel_granted(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with hall(kind, 2, receive_buffer_bytes=100_000) as members:
            assert members.members[1].window_bytes == 100_000
        async with hall(kind, 2, receive_buffer_bytes=1 << 30) as members:
            assert members.members[1].window_bytes < 1 << 30
            assert "net.core.rmem_max" in caplog.text

    run(story())


@pytest.mark.parametrize("kind", ["udp"])
def test_datagrams_for_which_the_kernel_had_no_room_are_counted(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2, receive_buffer_bytes=20_000) as members:
            place = members.settings[2].peers[2]
            for _ in range(50):
                members.members[2].multicast(Lane.DATA, [b"our own echo is no loss"])
                members.members[2].flush()
            assert members.members[2].counters()[2].socket_drops == 0
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mallory:
                for _ in range(200):
                    mallory.sendto(b"x" * 1_000, (place.host, place.port))
            assert members.members[2].counters()[2].socket_drops > 0

    run(story())


class Stubborn:
    """A socket that refuses to send for a while."""

    def __init__(self, sock: socket.socket, *errors: OSError) -> None:
        self._sock = sock
        self._errors = list(errors)

    def sendmsg(self, *words: Any) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return self._sock.sendmsg(*words)

    def close(self) -> None:
        self._sock.close()


def make_stubborn(member: Transport, *errors: OSError) -> UdpTransport:
    assert isinstance(member, UdpTransport)
    member._sender = Stubborn(member._sender, *errors)  # type: ignore[assignment]
    return member


@pytest.mark.parametrize("kind", UDP)
def test_what_the_kernel_has_no_room_for_is_sent_a_moment_later(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            one = make_stubborn(members.members[1], *[BlockingIOError()] * 5)
            one.multicast(Lane.DATA, [body(1, 200_000)])
            await members.until(lambda: members.frames(2, 1) == [body(1, 200_000)])
            assert one.counters()[1].dropped == 0
            assert members.members[2].counters()[1].repairs_asked == 0

    run(story())


@pytest.mark.parametrize("kind", ["udp"])
def test_where_datagrams_cannot_go_together_they_go_one_by_one(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            one = make_stubborn(members.members[1], OSError(errno.EINVAL, "no such offload"))
            one.multicast(Lane.DATA, [body(1, 200_000)])
            await members.until(lambda: members.frames(2, 1) == [body(1, 200_000)])
            assert one.counters()[1].dropped == 0
            assert not one._is_segmenting

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_what_the_kernel_refuses_is_counted_and_repaired(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            one = make_stubborn(members.members[1], OSError(errno.EMSGSIZE, "too long"))
            one.multicast(Lane.DATA, [b"refused"])
            await members.until(lambda: members.frames(2, 1) == [b"refused"])
            assert one.counters()[1].dropped == 1
            assert one.counters()[2].repairs_given == 1

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_what_waits_for_the_network_is_bounded(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2, queue_bytes_max=MIB) as members:
            one = make_stubborn(members.members[1], *[BlockingIOError()] * 100)
            for number in range(30):
                one.multicast(Lane.DATA, [body(number, 100_000)])
                one.flush()
            dropped = one.counters()[1].dropped
            assert 15 < dropped < 25
            await members.until(lambda: len(members.frames(2, 1)) == 30 - dropped)

    run(story())


# -- processes -------------------------------------------------------------------------------------

FRAMES_EACH = 40


class Process:
    """A member in a process of its own."""

    def __init__(self, kind: str, settings: TransportSettings, faults: Path) -> None:
        told = {
            "kind": kind,
            "node": settings.node,
            "peers": {str(node): [peer.host, peer.port] for node, peer in settings.peers.items()},
            "groups": [list(settings.groups[lane]) for lane in Lane],
            "datagram_bytes": settings.datagram_bytes,
            "faults": str(faults),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def hears(self) -> dict[str, Any]:
        """The next line it prints."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        ready, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
        assert ready, "a member said nothing in time"
        line = self._process.stdout.readline()
        assert line, f"a member ended: {self._process.wait()}"
        told: dict[str, Any] = json.loads(line)
        return told

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=DEADLINE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.mark.parametrize("kind", SOCKETS)
def test_processes_hear_each_other_through_losses_and_a_kill(kind: str, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    if kind in UDP:
        faults.write_text("seed=11; drop=0.1 duplicate=0.1 reorder=0.1")
    settings = settings_for(kind, 3)
    with contextlib.ExitStack() as stack:
        processes = {}
        for one in settings:
            processes[one.node] = Process(kind, one, faults)
            stack.callback(lambda node=one.node: processes[node].end())
        for process in processes.values():
            assert process.hears() == {"acquainted": True}
        processes[3].kill()
        processes[3] = Process(kind, settings[2], faults)
        assert processes[3].hears() == {"acquainted": True}
        for process in processes.values():
            process.say("speak")
        for node, process in processes.items():
            assert process.hears() == {"heard": {str(n): FRAMES_EACH for n in processes if n != node}}


async def member(told: dict[str, Any]) -> None:
    """One member: get acquainted, speak when told to, say when everything was heard, end with stdin."""
    peers = {int(node): Peer(*place) for node, place in told["peers"].items()}
    node = told["node"]
    settings = TransportSettings(
        node=node,
        cluster_id=CLUSTER,
        run_id=os.urandom(16),
        peers=peers,
        keys=KEYS,
        groups={lane: (told["groups"][lane][0], told["groups"][lane][1]) for lane in Lane},
        datagram_bytes=told["datagram_bytes"],
    )
    others = settings.others
    greeted: set[int] = set()
    heard: dict[int, set[bytes]] = {other: set() for other in others}
    news = asyncio.Event()

    def deliver(arrived: list[Arrived]) -> None:
        for one in arrived:
            if one.frame == b"hello":
                greeted.add(one.sender)
            else:
                heard[one.sender].add(hashlib.sha256(one.frame).digest())
        news.set()

    cls = TcpTransport if told["kind"] == "tcp" else UdpTransport
    transport = cls(settings, deliver, fault_file=Path(told["faults"]))
    await transport.start()
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    spoken = asyncio.create_task(stdin.readline())
    is_acquainted = False
    while not spoken.done():
        # Whoever has been restarted needs greeting again; so everybody greets until it is time to speak.
        for other in others:
            transport.send(other, [b"hello"])
        if greeted == set(others) and not is_acquainted:
            is_acquainted = True
            print(json.dumps({"acquainted": True}), flush=True)
        await asyncio.wait([spoken], timeout=0.02)
    frames = [body(node * 1_000 + number, 1 + (number * 7_919) % 100_000) for number in range(FRAMES_EACH)]
    wanted = {
        other: {
            hashlib.sha256(body(other * 1_000 + number, 1 + (number * 7_919) % 100_000)).digest()
            for number in range(FRAMES_EACH)
        }
        for other in others
    }
    for frame in frames:
        transport.multicast(Lane.DATA, [frame])
    while heard != wanted:
        news.clear()
        await news.wait()
    print(json.dumps({"heard": {other: len(found) for other, found in heard.items()}}), flush=True)
    await stdin.read()
    await transport.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(asyncio.wait_for(member(json.loads(sys.argv[1])), 2 * DEADLINE_SECONDS))
