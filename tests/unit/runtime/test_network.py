"""The client port with real sockets on the loopback, on asyncio's loop and on uvloop's."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from antiphon.client_manager.effects import (
    AdmitConnection,
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    FramesReceived,
    PauseReading,
    ResumeReading,
    SendFrames,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.errors import ProtocolError, VersionMismatch
from antiphon.runtime.network import ClientPort
from antiphon.wire.frames import Ask, Command, Goodbye, Ping, Pong, encode_frame
from tests.certificates import certificates
from tests.unit.runtime.hall import HELLO, LOOPS, Play, open_scene, run


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: run(scene, request.param)


def test_frames_arrive_in_order_and_those_of_one_round_together(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            command = Command(channel="a", command=b"x" * 300_000)
            peer.send(*(Ping(nonce=nonce) for nonce in range(50)), command, Ping(nonce=50))
            await stage.hall.until(lambda: len(stage.hall.frames()) == 53)
            pings = [frame.nonce for frame in stage.hall.frames() if isinstance(frame, Ping)]
            assert pings == list(range(51))
            assert stage.hall.frames()[51].command == command.command
            opened = stage.hall.of_kind(ConnectionOpened)
            assert opened[0].conn == 1 and opened[0].peer.startswith("127.0.0.1:")
            # Fifty small frames were one piece, and one event.
            sizes = [len(event.frames) for event in stage.hall.of_kind(FramesReceived)]
            assert max(sizes) >= 50

    play(scene())


def test_frames_of_several_peers_are_handed_over_in_one_round(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peers = [await stage.connect() for _ in range(5)]
            before = len(stage.hall.rounds)
            for peer in peers:
                peer.send(Ping(nonce=1))
            await stage.hall.until(lambda: len(stage.hall.of_kind(FramesReceived)) == 10)
            assert len(stage.hall.rounds) - before < 5

    play(scene())


def test_buffers_are_sent_as_one_stream(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            data = encode_frame(Ask(request=1, question="x" * 1000))
            view = memoryview(data)
            stage.port.carry_out(SendFrames(1, [view[:3], view[3:500], bytes(view[500:])]))
            assert await peer.receive() == Ask(request=1, question="x" * 1000)

    play(scene())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00\x00", "a frame of 0 bytes"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (struct.pack("<IB", 1, 250), "type 250 is not known"),
        (struct.pack("<IB", 3, 4) + b"ab", ""),
        (encode_frame(Ping(nonce=1))[:4] + b"\x06" + bytes(8), "not for a client"),
        (b"GET / HTTP/1.1\r\n\r\n", "a frame of"),
    ],
)
def test_bytes_that_are_no_frame_end_their_own_connection_only(play: Play, data: bytes, text: str) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer, other = await stage.connect(), await stage.connect()
            peer.send_bytes(encode_frame(Ping(nonce=5)) + data)
            goodbye = await peer.goodbye()
            assert goodbye.code == ProtocolError.code and text in goodbye.text
            lost = await stage.hall.heard(ConnectionLost)
            assert (lost.conn, lost.code) == (1, ProtocolError.code)
            # What was whole before it was handed over before the loss.
            assert stage.hall.frames()[-1] == Ping(nonce=5)
            other.send(Ping(nonce=6))
            await stage.hall.until(lambda: stage.hall.frames(2)[-1] == Ping(nonce=6))

    play(scene())


def test_a_peer_of_another_version_is_told_so(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect(is_admitted=False)
            hello = bytearray(encode_frame(HELLO))
            hello[9:11] = b"\x63\x00"
            peer.send_bytes(bytes(hello))
            assert (await peer.goodbye()).code == VersionMismatch.code

    play(scene())


def test_a_large_frame_is_refused_before_the_peer_is_admitted(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect(is_admitted=False)
            peer.send_bytes(struct.pack("<IB", 70_000, 1))
            assert "a frame of 70000 bytes" in (await peer.goodbye()).text

    play(scene())


def test_a_goodbye_is_heard_although_the_peer_goes_on_sending(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            peer.send_bytes(b"\xff" * 4_000_000)
            assert (await peer.goodbye()).code == ProtocolError.code

    play(scene())


def test_who_does_not_greet_in_time_is_sent_away(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(handshake_s=0.05) as stage:
            peer = await stage.connect(is_admitted=False)
            peer.send_bytes(b"\x10\x00")
            assert (await peer.goodbye()).code == "connection.handshake"
            assert (await stage.hall.heard(ConnectionLost)).code == "connection.handshake"

    play(scene())


def test_who_has_greeted_may_take_its_time(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(handshake_s=0.2) as stage:
            late = await stage.connect(is_admitted=False)
            peer = await stage.connect()
            await late.goodbye()
            peer.send(Ping(nonce=1))
            await stage.hall.until(lambda: stage.hall.frames(2)[-1] == Ping(nonce=1))

    play(scene())


def test_the_manager_closes_with_a_reason(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            stage.port.carry_out(SendFrames(1, [encode_frame(Pong(nonce=9))]))
            stage.port.carry_out(CloseConnection(1, "some.code", "because"))
            stage.port.carry_out(SendFrames(1, [encode_frame(Pong(nonce=10))]))
            assert await peer.receive() == Pong(nonce=9)
            assert await peer.receive() == Goodbye(code="some.code", text="because")
            assert await peer.receive() is None
            # It knows already.
            assert stage.hall.of_kind(ConnectionLost) == []

    play(scene())


def test_a_peer_that_leaves_is_reported(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            peer.writer.close()
            assert (await stage.hall.heard(ConnectionLost)).conn == 1
            assert stage.port.connection_count == 0
            # What was meant for it means nothing now.
            stage.port.carry_out(SendFrames(1, [b"x"]))
            stage.port.carry_out(PauseReading(1))
            stage.port.carry_out(ResumeReading(1))
            stage.port.carry_out(AdmitConnection(1, 10))
            stage.port.carry_out(CloseConnection(1, "", ""))

    play(scene())


def test_a_paused_peer_is_not_read_from(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer, other = await stage.connect(), await stage.connect()
            stage.port.carry_out(PauseReading(1))
            peer.send(Ping(nonce=1))
            await peer.writer.drain()
            other.send(Ping(nonce=2))
            await stage.hall.until(lambda: stage.hall.frames(2)[-1] == Ping(nonce=2))
            assert stage.hall.frames(1) == [HELLO]
            stage.port.carry_out(ResumeReading(1))
            await stage.hall.until(lambda: stage.hall.frames(1)[-1] == Ping(nonce=1))

    play(scene())


def test_a_paused_peer_that_is_closed_hears_why(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            stage.port.carry_out(PauseReading(1))
            peer.send(Ping(nonce=1))
            stage.port.carry_out(CloseConnection(1, "some.code", "because"))
            assert (await peer.goodbye()).code == "some.code"

    play(scene())


def test_a_peer_that_does_not_read_blocks_and_unblocks_when_it_does(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(write_high_bytes=100_000, write_low_bytes=10_000) as stage:
            peer = await stage.connect()
            question = encode_frame(Ask(request=1, question="x" * 1_000_000))
            while not stage.hall.of_kind(WriteBlocked):
                stage.port.carry_out(SendFrames(1, [question]))
                await asyncio.sleep(0)
            assert stage.hall.of_kind(WriteUnblocked) == []
            reading = asyncio.ensure_future(peer.goodbye())
            assert await stage.hall.heard(WriteUnblocked) == WriteUnblocked(1)
            stage.port.carry_out(CloseConnection(1, "some.code", ""))
            await reading

    play(scene())


def test_a_peer_that_leaves_too_much_unread_is_cut_off_and_nobody_else(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(write_bytes_max=20_000_000) as stage:
            await stage.connect(receive_buffer=4096)
            other = await stage.connect()
            question = encode_frame(Ask(request=1, question="x" * 1_000_000))
            for _ in range(60):
                stage.port.carry_out(SendFrames(1, [question]))
            lost = await stage.hall.heard(ConnectionLost)
            assert (lost.conn, lost.code) == (1, "connection.slow")
            stage.port.carry_out(SendFrames(2, [encode_frame(Pong(nonce=3))]))
            assert await other.receive() == Pong(nonce=3)
            assert stage.port.connection_count == 1

    play(scene())


def test_one_connection_too_many_is_sent_away(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(connections_max=1) as stage:
            first = await stage.connect()
            await stage.turned_away()
            assert len(stage.hall.of_kind(ConnectionOpened)) == 1
            first.send(Ping(nonce=1))
            await stage.hall.until(lambda: stage.hall.frames(1)[-1] == Ping(nonce=1))

    play(scene())


def test_a_silent_peer_is_asked_and_then_sent_away(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            # The first look sees the Hello, six more see nothing: three heartbeats.
            for _ in range(6):
                stage.port.look_at_everybody()
            assert stage.hall.of_kind(ConnectionLost) == []
            stage.port.look_at_everybody()
            assert await peer.receive() == Ping(nonce=0)
            assert (await peer.goodbye()).code == "connection.silent"
            assert (await stage.hall.heard(ConnectionLost)).code == "connection.silent"

    play(scene())


def test_a_peer_that_answers_stays(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            for answers in range(1, 11):
                stage.port.look_at_everybody()
                stage.port.look_at_everybody()
                stage.port.look_at_everybody()
                assert await peer.receive() == Ping(nonce=0)
                peer.send(Pong(nonce=0))
                await stage.hall.heard(FramesReceived, count=1 + answers)
            assert stage.hall.of_kind(ConnectionLost) == []

    play(scene())


def test_a_peer_we_do_not_listen_to_is_not_called_silent(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            await stage.connect()
            stage.port.carry_out(PauseReading(1))
            for _ in range(20):
                stage.port.look_at_everybody()
            assert stage.hall.of_kind(ConnectionLost) == []

    play(scene())


def test_peers_are_looked_at_by_themselves(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(heartbeat_s=0.01) as stage:
            peer = await stage.connect()
            assert (await peer.goodbye()).code == "connection.silent"

    play(scene())


def test_a_frame_that_crawls_is_not_waited_for(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            crawling, steady = await stage.connect(), await stage.connect()
            connections = [stage.port._connections[conn] for conn in (1, 2)]
            sent = [len(encode_frame(HELLO))] * 2
            beginning = struct.pack("<IB", 1_000_000, 48)
            for at in range(5):
                for who, (peer, progress) in enumerate([(crawling, b"x"), (steady, b"x" * 10_000)]):
                    data = progress if at else beginning
                    peer.send_bytes(data)
                    sent[who] += len(data)
                    connection = connections[who]
                    while connection.received_bytes < sent[who] and not connection.is_over:  # noqa: ASYNC110
                        await asyncio.sleep(0)
                stage.port.look_at_everybody()
            assert (await crawling.goodbye()).code == "connection.slow"
            assert [lost.conn for lost in stage.hall.of_kind(ConnectionLost)] == [1]

    play(scene())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_plain_port_for_other_machines_is_warned_of(host: str) -> None:
    noted: list[str] = []

    async def scene() -> None:
        for tls in (None, certificates().server().context()):
            port = ClientPort(lambda events: None, note=lambda event: noted.append(event.text))
            await port.start(host, 0, tls)
            await port.stop()

    asyncio.run(scene())
    assert len(noted) == (host == "0.0.0.0")
    assert all("0.0.0.0 without TLS" in text for text in noted)


def test_stopping_says_goodbye_to_everybody(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peers = [await stage.connect() for _ in range(3)]
            address = stage.port.addresses[0]
            stopping = asyncio.ensure_future(stage.port.stop())
            for peer in peers:
                assert (await peer.goodbye()).code == "connection.stopping"
                peer.writer.close()
            await stopping
            assert stage.port.connection_count == 0
            with pytest.raises(ConnectionError):
                socket.create_connection(address)

    play(scene())


def test_stopping_does_not_wait_for_a_peer_that_does_not_listen(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(linger_s=0.01) as stage:
            await stage.connect(receive_buffer=4096)
            for _ in range(10):
                stage.port.carry_out(SendFrames(1, [encode_frame(Ask(request=1, question="x" * 1_000_000))]))
            await stage.port.stop()
            assert stage.port.connection_count == 0

    play(scene())
