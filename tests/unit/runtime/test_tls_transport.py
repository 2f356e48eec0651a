"""TLS at the client port: handshakes that fail, dawdle or come all at once. The rest of the port's tests run
with TLS, too."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.client_manager.effects import CloseConnection, ConnectionLost, ConnectionOpened, FramesReceived
from antiphon.errors import TlsFailed
from antiphon.runtime.tls_transport import RECORDS_PER_STEP, STEPS_PER_ROUND, TlsTurns
from antiphon.tls import ClientTls, ServerFiles
from antiphon.wire.frames import Ping, encode_frame
from tests.certificates import certificates
from tests.unit.runtime.hall import HELLO, TLS, Peer, Play, Scene, TlsPeer, open_scene, run

MADE = certificates()
NO_TLS = "this port speaks TLS and the client does not: its url must begin with antiphons://"


@pytest.fixture(params=["asyncio+tls", "uvloop+tls"])
def play(request: pytest.FixtureRequest) -> Play:
    return lambda scene: run(scene, request.param)


async def raw_peer(stage: Scene) -> Peer:
    """A peer that has not said a byte yet."""
    raw = socket.create_connection(stage.port.addresses[0])
    peer = Peer(*await asyncio.open_connection(sock=raw))
    stage.peers.append(peer)
    return peer


def hello_of(client: ClientTls) -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    tls = client.context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize(
    "data", [encode_frame(HELLO), b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\x16\x03\x63"], ids=repr
)
def test_a_peer_without_tls_hears_so_in_its_own_tongue(play: Play, data: bytes) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await raw_peer(stage)
            peer.send_bytes(data)
            goodbye = await peer.goodbye()
            assert (goodbye.code, goodbye.text) == (TlsFailed.code, NO_TLS)
            lost = await stage.hall.heard(ConnectionLost)
            assert (lost.conn, lost.code) == (1, TlsFailed.code)

    play(scene())


def test_a_peer_with_tls_at_a_plain_port_is_sent_away_at_once() -> None:
    noted: list[str] = []

    async def scene() -> None:
        async with open_scene(note=lambda event: noted.append(event.text)) as stage:
            peer = await raw_peer(stage)
            peer.send_bytes(hello_of(ClientTls(MADE.client())))
            await peer.goodbye()

    run(scene(), "asyncio")
    (told,) = noted
    assert "the client speaks TLS and this port does not" in told


def test_bytes_that_only_begin_like_a_handshake_end_their_connection(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer, other = await raw_peer(stage), await stage.connect()
            peer.send_bytes(b"\x16\x03\x01\x00\x05hello" + bytes(70_000))
            while await peer.reader.read(1 << 16):
                pass
            lost = await stage.hall.heard(ConnectionLost)
            assert (lost.conn, lost.code) == (1, TlsFailed.code)
            other.send(Ping(nonce=1))
            await stage.hall.until(lambda: stage.hall.frames(2)[-1:] == [Ping(nonce=1)])

    play(scene())


def test_a_broken_record_ends_its_connection(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            peer.writer.write(b"\x17\x03\x03\x00\x20" + bytes(32))
            lost = await stage.hall.heard(ConnectionLost)
            assert (lost.conn, lost.code) == (1, TlsFailed.code)
            with pytest.raises(ssl.SSLError, match="alert bad record mac"):
                await peer.read()

    play(scene())


def test_a_peer_is_known_before_its_handshake_and_has_no_more_time_than_others(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(handshake_s=0.3) as stage:
            silent, half = await raw_peer(stage), await raw_peer(stage)
            half.send_bytes(hello_of(ClientTls(MADE.client()))[:100])
            done = await stage.connect(is_admitted=False)
            await stage.hall.heard(ConnectionOpened, 3)
            await stage.hall.heard(ConnectionLost, 3)
            lost = stage.hall.of_kind(ConnectionLost)
            assert [(one.conn, one.code) for one in lost] == [
                (conn, "connection.handshake") for conn in (1, 2, 3)
            ]
            # Nothing was agreed with the first two, so they hear only the end.
            assert await silent.reader.read() == b""
            assert await half.reader.read() == b""
            assert (await done.goodbye()).code == "connection.handshake"

    play(scene())


def test_handshakes_that_are_not_finished_count_as_greetings_that_are_not(play: Play) -> None:
    async def scene() -> None:
        async with open_scene(greeting_max=5) as stage:
            polite = await stage.connect()
            halves = [await raw_peer(stage) for _ in range(9)]
            for half in halves:
                half.send_bytes(hello_of(ClientTls(MADE.client())))
            await stage.hall.heard(ConnectionLost, 4)
            assert [one.conn for one in stage.hall.of_kind(ConnectionLost)] == [2, 3, 4, 5]
            late = await stage.connect()
            for peer in (polite, late):
                peer.send(Ping(nonce=1))
            await stage.hall.until(lambda: stage.hall.frames(1)[-1:] == [Ping(nonce=1)])
            await stage.hall.until(lambda: stage.hall.frames(11)[-1:] == [Ping(nonce=1)])

    play(scene())


def test_a_handshake_may_come_byte_by_byte_and_with_the_greeting_behind_it(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            raw = socket.create_connection(stage.port.addresses[0])
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert stage.tls is not None
            peer = TlsPeer(*await asyncio.open_connection(sock=raw), stage.tls.context())
            stage.peers.append(peer)
            write = peer.writer.write

            def bit_by_bit(data: bytes) -> None:
                for at in range(len(data)):
                    write(data[at : at + 1])

            peer.writer.write = bit_by_bit  # type: ignore[method-assign]
            await peer.shake_hands()
            peer.send(HELLO)
            await stage.hall.until(lambda: stage.hall.frames(1) == [HELLO])

    play(scene())


def test_what_is_sent_and_received_is_not_changed(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            sizes = [1, 16_383, 16_384, 16_385, 300_000]
            for nonce, size in enumerate(sizes):
                peer.send_bytes(b"".join(encode_frame(Ping(nonce=nonce)) for _ in range(size // 100 + 1)))
            count = sum(size // 100 + 1 for size in sizes)
            await stage.hall.until(lambda: len(stage.hall.frames()) == count + 1)

    play(scene())


def test_many_tiny_records_are_taken_in_turns_and_none_is_lost(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer, other = await stage.connect(), await stage.connect()
            data = b"".join(encode_frame(Ping(nonce=nonce)) for nonce in range(400))
            for at in range(len(data)):
                # A record for each byte.
                peer.send_bytes(data[at : at + 1])
            await peer.writer.drain()
            other.send(Ping(nonce=7))
            await stage.hall.until(lambda: len(stage.hall.frames(1)) == 401)
            assert [frame.nonce for frame in stage.hall.frames(1)[1:]] == list(range(400))
            sizes = [len(event.frames) for event in stage.hall.of_kind(FramesReceived)]
            assert max(sizes) <= RECORDS_PER_STEP // len(encode_frame(Ping(nonce=0))) + 1
            await stage.hall.until(lambda: stage.hall.frames(2)[-1:] == [Ping(nonce=7)])
            # The end behind them is seen, too.
            for _ in range(3 * RECORDS_PER_STEP):
                peer.send_bytes(encode_frame(Ping(nonce=9)))
            assert isinstance(peer, TlsPeer)
            peer.end()
            await stage.hall.heard(ConnectionLost)
            assert len(stage.hall.frames(1)) == 401 + 3 * RECORDS_PER_STEP

    play(scene())


def test_the_end_is_said_in_tls_so_that_nobody_can_feign_it(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            stage.port.carry_out(CloseConnection(1, "", ""))
            assert await peer.read() == b""

    play(scene())


def test_a_peer_that_says_the_end_is_gone(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer = await stage.connect()
            assert isinstance(peer, TlsPeer)
            peer.send(Ping(nonce=3))
            peer.end()
            assert (await stage.hall.heard(ConnectionLost)).conn == 1
            assert stage.hall.frames()[-1] == Ping(nonce=3)

    play(scene())


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ("", "peer did not return a certificate"),
        ("strange-client", "the client's certificate is refused: unable to get local issuer certificate"),
        # A server's certificate is not one of a client.
        ("server", "the client's certificate is refused: unsuitable certificate purpose"),
    ],
)
def test_a_client_without_the_right_certificate_is_refused_by_an_alert(client: str, said: str) -> None:
    async def scene() -> None:
        TLS.set((MADE.server(is_mutual=True).context(), ClientTls(MADE.client(client))))
        async with open_scene() as stage:
            # In TLS 1.3 the client is done before the server has looked at its certificate.
            peer = await stage.connect(is_admitted=False)
            peer.send(HELLO)
            with pytest.raises(ssl.SSLError, match="alert"):
                await peer.read()
            lost = await stage.hall.heard(ConnectionLost)
            assert lost.code == TlsFailed.code and said in lost.text
            assert stage.hall.frames() == []

    run(scene(), "asyncio+tls")


def test_a_client_with_the_right_certificate_is_let_in() -> None:
    async def scene() -> None:
        TLS.set((MADE.server(is_mutual=True).context(), ClientTls(MADE.client("client"))))
        async with open_scene() as stage:
            await stage.connect()

    run(scene(), "asyncio+tls")


def test_new_certificates_are_for_new_connections_and_the_old_ones_go_on(tmp_path: Path) -> None:
    files = ServerFiles(certificate=tmp_path / "own.pem", key=tmp_path / "own.key")

    def install(name: str) -> None:
        shutil.copy(MADE.pem(name), files.certificate)
        shutil.copy(MADE.key(name), files.key)

    async def scene() -> None:
        install("server")
        TLS.set((files.context(), ClientTls(MADE.client())))
        async with open_scene(heartbeat_s=0.02) as stage:
            before = await stage.connect()
            first = certificate_of(before)
            assert certificate_of(await stage.connect()) == first
            install("renewed")
            while certificate_of(await stage.connect()) == first:
                pass
            before.send(Ping(nonce=8))
            await stage.hall.until(lambda: Ping(nonce=8) in stage.hall.frames(1))

    run(scene(), "asyncio+tls")


def certificate_of(peer: Peer) -> bytes:
    assert isinstance(peer, TlsPeer)
    found = peer.tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_connection_that_is_gone_leaves_nothing_behind_for_the_collector(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            peer, half = await stage.connect(), await raw_peer(stage)
            half.send_bytes(hello_of(ClientTls(MADE.client())))
            await half.reader.read(1)
            left = [weakref.ref(stage.port._connections[conn].transport) for conn in (1, 2)]
            gc.disable()
            try:
                for one in (peer, half):
                    one.writer.close()
                await stage.hall.heard(ConnectionLost, 2)
                while stage.port.connection_count:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert [one() for one in left] == [None, None]
            finally:
                gc.enable()

    play(scene())


def test_steps_of_handshakes_are_done_in_turn_and_a_few_in_a_round() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        turns, done, rounds = TlsTurns(loop), [], []

        def step(number: int) -> Callable[[], None]:
            return lambda: done.append(number)

        for number in range(3 * STEPS_PER_ROUND + 1):
            turns.enter(step(number))
        while len(done) <= 3 * STEPS_PER_ROUND:
            rounds.append(len(done))
            await asyncio.sleep(0)
        assert done == list(range(3 * STEPS_PER_ROUND + 1))
        assert rounds == [0, *range(STEPS_PER_ROUND, 3 * STEPS_PER_ROUND + 1, STEPS_PER_ROUND)]

    asyncio.run(scene())
