"""The client port in a crowd: floods, peers that do not read, and peers that leave at the worst moment."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from antiphon.client_manager.effects import (
    CloseConnection,
    ConnectionLost,
    FramesReceived,
    PauseReading,
    ResumeReading,
    SendFrames,
    WriteBlocked,
    WriteUnblocked,
)
from antiphon.errors import ProtocolError
from antiphon.wire.frames import Ask, Ping, Pong, encode_frame
from tests.unit.runtime.hall import HELLO, LOOPS, Play, Scene, open_scene, run

LARGE = encode_frame(Ask(request=1, question="x" * 1_000_000))


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: run(scene, request.param)


def pings(count: int) -> bytes:
    return b"".join(encode_frame(Ping(nonce=nonce)) for nonce in range(count))


def nonces(stage: Scene, conn: int) -> list[int]:
    return [frame.nonce for frame in stage.hall.frames(conn) if isinstance(frame, Ping)]


def test_a_flood_of_frames_is_taken_in_shares_and_in_order(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(round_frames_max=10) as stage:
            peer = await stage.connect()
            peer.send_bytes(pings(1_000))
            await stage.hall.until(lambda: len(stage.hall.frames()) == 1_001)
            assert nonces(stage, 1) == list(range(1_000))
            for events in stage.hall.rounds:
                assert sum(len(e.frames) for e in events if isinstance(e, FramesReceived)) <= 10

    play(scene())


def test_while_one_peer_floods_another_has_its_turn(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(round_frames_max=10) as stage:
            flooding, other = await stage.connect(), await stage.connect()
            flooding.send_bytes(pings(5_000))
            await stage.hall.until(lambda: nonces(stage, 1))
            other.send(Ping(nonce=7))
            await stage.hall.until(lambda: nonces(stage, 2))
            assert len(nonces(stage, 1)) < 5_000
            await stage.hall.until(lambda: len(nonces(stage, 1)) == 5_000)

    play(scene())


def test_a_large_transfer_pauses_between_rounds_and_arrives_whole(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(round_bytes_max=1_000) as stage:
            peer = await stage.connect()
            peer.send_bytes(LARGE + pings(3))
            await stage.hall.until(lambda: len(stage.hall.frames()) == 5)
            assert nonces(stage, 1) == [0, 1, 2]

    play(scene())


def test_what_is_left_of_a_flood_waits_while_the_manager_says_so(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(round_frames_max=10) as stage:
            peer, other = await stage.connect(), await stage.connect()
            peer.send_bytes(pings(100))
            await stage.hall.until(lambda: nonces(stage, 1))
            stage.port.carry_out(PauseReading(1))
            other.send(Ping(nonce=1))
            await stage.hall.until(lambda: nonces(stage, 2))
            taken = len(nonces(stage, 1))
            assert taken < 100
            other.send(Ping(nonce=2))
            await stage.hall.until(lambda: len(nonces(stage, 2)) == 2)
            assert len(nonces(stage, 1)) == taken
            stage.port.carry_out(ResumeReading(1))
            await stage.hall.until(lambda: nonces(stage, 1) == list(range(100)))

    play(scene())


def test_bytes_that_are_no_frame_behind_a_flood_are_seen_when_it_is_their_turn(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(round_frames_max=10) as stage:
            peer = await stage.connect()
            peer.send_bytes(pings(100) + b"\xff" * 9)
            assert (await peer.goodbye()).code == ProtocolError.code
            assert nonces(stage, 1) == list(range(100))

    play(scene())


@pytest.mark.parametrize("who", ["port", "manager"])
def test_a_peer_that_breaks_the_protocol_and_leaves_at_once_ends_nothing_but_itself(
    play: Play, who: str
) -> None:
    """Our Goodbye makes its kernel say that nobody is there, before we have finished saying it."""

    async def scene() -> None:
        async with open_scene() as stage:
            other = await stage.connect()
            stage.hall.does = lambda event: (
                stage.port.carry_out(CloseConnection(event.conn, "some.code", "because"))
                if isinstance(event, FramesReceived) and event.frames == [HELLO]
                else None
            )
            data = b"\xff" * 9 if who == "port" else encode_frame(HELLO)
            for _ in range(50):
                raw = socket.create_connection(stage.port.addresses[0])
                raw.sendall(data)
                raw.close()
            other.send(Ping(nonce=1))
            await stage.hall.until(lambda: nonces(stage, 1) == [1])
            while stage.port.connection_count > 1:  # noqa: ASYNC110
                await asyncio.sleep(0)

    play(scene())


def test_a_peer_that_does_not_read_is_not_read_from(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(write_high_bytes=100_000, write_low_bytes=10_000) as stage:
            peer, other = await stage.connect(), await stage.connect()
            while not stage.hall.of_kind(WriteBlocked):
                stage.port.carry_out(SendFrames(1, [LARGE]))
                await asyncio.sleep(0)
            peer.send(Ping(nonce=1))
            await peer.writer.drain()
            other.send(Ping(nonce=2))
            await stage.hall.until(lambda: nonces(stage, 2) == [2])
            assert nonces(stage, 1) == []
            reading = asyncio.ensure_future(peer.goodbye())
            await stage.hall.heard(WriteUnblocked)
            await stage.hall.until(lambda: nonces(stage, 1) == [1])
            stage.port.carry_out(CloseConnection(1, "some.code", ""))
            await reading

    play(scene())


def test_a_peer_that_never_reads_is_cut_off_after_three_heartbeats(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(write_high_bytes=100_000, write_low_bytes=10_000) as stage:
            await stage.connect(receive_buffer=4096)
            while not stage.hall.of_kind(WriteBlocked):
                stage.port.carry_out(SendFrames(1, [LARGE]))
                await asyncio.sleep(0)
            for _ in range(6):
                assert stage.hall.of_kind(ConnectionLost) == []
                stage.port.look_at_everybody()
            stage.port.look_at_everybody()
            lost = await stage.hall.heard(ConnectionLost)
            assert (lost.conn, lost.code) == (1, "connection.slow")

    play(scene())


def test_when_all_together_leave_too_much_unread_the_one_with_the_most_is_cut_off(play: Play) -> None:
    async def scene() -> None:
        limits = {"write_bytes_max": 40_000_000, "unread_bytes_max": 60_000_000}
        async with open_scene(**limits) as stage:
            for _ in range(3):
                await stage.connect(receive_buffer=4096)
            for conn, count in ((1, 20), (2, 38), (3, 20)):
                for _ in range(count):
                    stage.port.carry_out(SendFrames(conn, [LARGE]))
            await stage.hall.heard(ConnectionLost)
            assert [(e.conn, e.code) for e in stage.hall.of_kind(ConnectionLost)] == [(2, "connection.slow")]
            assert stage.port.connection_count == 2

    play(scene())


def test_when_too_many_do_not_greet_the_oldest_goes_and_those_who_greet_stay(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(greeting_max=3) as stage:
            polite = await stage.connect()
            silent = [await stage.connect(is_admitted=False) for _ in range(5)]
            for peer in silent[:2]:
                assert (await peer.goodbye()).code == "connection.handshake"
            late = await stage.connect()
            for peer in (polite, late):
                peer.send(Ping(nonce=1))
            await stage.hall.until(lambda: nonces(stage, 1) == nonces(stage, 7) == [1])
            lost = [event.conn for event in stage.hall.of_kind(ConnectionLost)]
            assert lost == [2, 3, 4]

    play(scene())


def test_when_too_many_frames_are_unfinished_the_one_that_began_first_goes(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(partial_bytes_max=3_000_000) as stage:
            half = struct.pack("<IB", 2_000_000, 48) + bytes(1_000_000)
            peers = [await stage.connect() for _ in range(3)]
            for conn, peer in enumerate(peers, start=1):
                peer.send_bytes(half)
                while conn < 3 and stage.port._connections[conn].buffer.buffered_bytes < len(half):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            goodbye = await peers[0].goodbye()
            assert (goodbye.code, goodbye.text) == (
                "connection.limit",
                "too many unfinished frames wait here",
            )
            assert stage.port._partial.total <= 3_000_000
            assert [event.conn for event in stage.hall.of_kind(ConnectionLost)] == [1]

    play(scene())


def test_when_too_many_linger_the_oldest_is_cut_off(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(lingering_max=2, linger_s=20) as stage:
            peers = [await stage.connect() for _ in range(4)]
            for peer in peers:
                peer.send_bytes(b"\xff" * 9)
            # Nobody closes; each hears why, and only two of them are waited for.
            for peer in peers:
                assert (await peer.goodbye()).code == ProtocolError.code
            while stage.port.connection_count > 2:  # noqa: ASYNC110
                await asyncio.sleep(0)

    play(scene())


def test_a_full_port_turns_away_without_waiting(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(connections_max=2, linger_s=20) as stage:
            peers = [await stage.connect() for _ in range(2)]
            for _ in range(20):
                await stage.turned_away()
            while stage.port.connection_count > 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            stage.port.carry_out(SendFrames(1, [encode_frame(Pong(nonce=1))]))
            assert await peers[0].receive() == Pong(nonce=1)

    play(scene())


def test_who_is_sent_away_is_logged(play: Play) -> None:
    noted: list[str] = []

    async def scene() -> None:
        async with open_scene(note=lambda event: noted.append(event.text)) as stage:
            broken, closed, leaving = [await stage.connect() for _ in range(3)]
            broken.send_bytes(b"\xff" * 9)
            await broken.goodbye()
            stage.port.carry_out(CloseConnection(2, "some.code", "two\nlines, 100 %s"))
            await closed.goodbye()
            stage.port.carry_out(CloseConnection(3, "", ""))
            assert await leaving.receive() is None

    play(scene())
    first, second = noted
    assert first.startswith("connection of 127.0.0.1:")
    assert first.endswith(
        f"closed: {ProtocolError.code}: a frame of 4294967295 bytes; allowed are 1 to 2162688"
    )
    assert second.endswith(r"closed: some.code: two\nlines, 100 %s")
