"""Whoever has no part in the cluster changes counters and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from antiphon.transport.interface import NOBODY, Peer
from antiphon.transport.keys import GroupKeys
from antiphon.transport.sealing import Sealer
from antiphon.transport.sockets import open_multicast
from antiphon.transport.tcp import TcpTransport
from antiphon.transport.udp import UdpTransport
from antiphon.wire.lanes import Lane
from tests.bus_members import LOOPBACK
from tests.integration.transports.stage import CLUSTER, KEYS, MIB, SOCKETS, UDP, Hall, hall, run

GARBAGE = "something arrived that is no datagram of ours"
OTHER_CLUSTER = "a datagram of another cluster arrived; do the two share a multicast group?"
WRONG_KEY = "a datagram was not sealed with a key of this group"
AGAIN = "a datagram came again, or of a run that is over: perhaps somebody plays back a recording"
UNPROVEN = "a second run beside one that is alive proved nothing: perhaps somebody plays back a recording"
SAID_ONCE = "said once, counted from now on"


def complaint(words: str, member: int | None = None) -> str:
    who = "from nobody we know" if member is None else f"in the name of member {member}"
    return f"{words} ({who}; {SAID_ONCE})"


@pytest.mark.parametrize("kind", UDP)
def test_hostile_datagrams_change_nothing_but_counters(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "antiphon.transport")

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
            said = complaints(caplog)
            assert said[complaint(WRONG_KEY, 1)] == 1
            assert not said[complaint(AGAIN, 1)], "what is repaired for others comes again, too"
            # Member 1 listens to the groups too; what is said in its own name it takes for its echo.
            assert said[complaint(GARBAGE)] in (1, 2) and said[complaint(OTHER_CLUSTER)] in (1, 2)

    run(story())


def sealed(keys: GroupKeys, cluster_id: bytes, sender: int, run_id: bytes, counter: int) -> bytes:
    stream = Sealer(keys, cluster_id, sender, run_id).stream(Lane.DATA)
    stream.next = counter
    return b"".join(stream.seal(b"\1\4\0\0\0evil"))


def complaints(caplog: pytest.LogCaptureFixture) -> Counter[str]:
    """What the transports of this process have said, with how often."""
    return Counter(record.message for record in caplog.records if SAID_ONCE in record.message)


def record_of(datagram: bytes) -> bytes:
    """As it goes over a stream."""
    return (1 + len(datagram)).to_bytes(4, "little") + b"\0" + datagram


def whole_records(recorded: bytes) -> list[bytes]:
    """The records of a stream that was listened to, but for one that was not over yet."""
    records = []
    while len(recorded) >= 4 and len(recorded) >= (end := 4 + int.from_bytes(recorded[:4], "little")):
        records.append(recorded[:end])
        recorded = recorded[end:]
    return records


async def play(place: Peer, words: bytes, *, is_cut_off: bool) -> None:
    """Say something over a connection of one's own, and wait for its end if there is to be one."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(words)
    await writer.drain()
    if is_cut_off:
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def until(is_true: Callable[[], object]) -> None:
    """Wait for something that nobody is told of; the deadline is the test's."""
    while not is_true():  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_strangers_over_tcp_change_nothing_but_counters(caplog: pytest.LogCaptureFixture) -> None:
    times = 3
    chance = random.Random(7)

    async def story() -> None:
        async with hall("tcp", 2) as members:
            caplog.clear()
            one = members.members[1]
            assert isinstance(one, TcpTransport)
            place, bound = members.settings[1].peers[1], one._bound[2]
            no_records = [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, b"\0" * 100, chance.randbytes(1_000)]
            run_id = members.settings[2].run_id
            records = [
                record_of(chance.randbytes(1_000)),
                record_of(sealed(GroupKeys.of([(1, b"?" * 32)]), CLUSTER, 2, run_id, 50_000)),
                record_of(sealed(GroupKeys.of([(1, b"?" * 32)]), CLUSTER, 2, os.urandom(16), 0)),
                record_of(sealed(KEYS, b"some other group", 2, run_id, 50_000)),
            ]
            for number in range(times):
                for words in no_records:
                    await play(place, words, is_cut_off=True)
                for words in records:
                    await play(place, words, is_cut_off=False)
                members.members[2].send(1, [b"%d" % number])
                members.members[1].send(2, [b"%d" % number])
                await members.until(lambda n=number: len(members.frames(1, 2)) == n + 1)
                await members.until(lambda n=number: len(members.frames(2, 1)) == n + 1)
            counters = one.counters()
            await until(lambda: counters[NOBODY].other_cluster == times)
            await until(lambda: counters[NOBODY].garbage == times * (len(no_records) + 1))
            await until(lambda: counters[2].wrong_key == 2 * times)
            assert counters[2].garbage == counters[2].replays == 0
            assert one._bound[2] is bound, "the connection with the member is the one it was"
            said = [complaint(GARBAGE), complaint(OTHER_CLUSTER), complaint(WRONG_KEY, 2)]
            assert complaints(caplog) == Counter(said)

    run(story())


class Recorder:
    """Stands between two members and keeps what the one that calls says."""

    def __init__(self, target: Peer) -> None:
        self.recorded = b""
        self._target = target
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Peer:
        """Returns where it is to be called instead."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        return Peer(*self._server.sockets[0].getsockname())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            writer.close()
            return
        answering = asyncio.create_task(self._pass_on(there, writer))
        self._tasks.append(answering)
        await self._pass_on(reader, back, is_kept=True)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_kept: bool = False
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while words := await reader.read(1 << 16):
                if is_kept:
                    self.recorded += words
                writer.write(words)
        writer.close()

    async def close(self) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks)


def test_a_recorded_connection_played_back_changes_nothing_but_counters(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.transport.members.UNPROVEN_NS_MAX", 100_000_000)
    caplog.set_level(logging.INFO, "antiphon.transport")

    async def story() -> None:
        opened = Hall("tcp", 2)
        place = opened.settings[1].peers[1]
        recorder = Recorder(place)
        peers = {**opened.settings[2].peers, 1: await recorder.start()}
        opened.settings[2] = replace(opened.settings[2], peers=peers)
        try:
            await opened.start(1)
            await opened.start(2)
            await opened.acquainted()
            opened.members[2].send(1, [b"once"])
            await opened.until(lambda: opened.frames(1, 2) == [b"once"])
            caplog.clear()

            async def play_back() -> None:
                await play(place, b"".join(recording), is_cut_off=False)

            # While the member lives that said it …
            recording = whole_records(recorder.recorded)
            counters = opened.members[1].counters()
            await play_back()
            await until(lambda: counters[2].replays == len(recording))
            # … when it lives again …
            await opened.restart(2)
            await opened.acquainted()
            await play_back()
            await until(lambda: counters[2].replays == 2 * len(recording))
            assert complaints(caplog) == Counter([complaint(AGAIN, 2)])
            # … and to one that lives again itself and has never heard of it.
            await opened.restart(1)
            await opened.acquainted()
            counters = opened.members[1].counters()
            await play_back()
            await until(lambda: counters[2].unproven)
            assert counters[2].replays == 0
            assert complaints(caplog)[complaint(UNPROVEN, 2)] == 1
            opened.members[2].send(1, [b"twice"])
            await opened.until(lambda: opened.frames(1, 2) == [b"twice"])
        finally:
            await opened.close()
            await recorder.close()

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
                connection.heard_ns -= 3_600_000_000_000
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
