"""A client that speaks TLS: what it accepts, and what it says when it does not."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import antiphon
from antiphon.client.aio.link import ClientLink
from antiphon.client.core.route import parse_url
from antiphon.tls import ClientTls
from tests.certificates import certificates
from tests.unit.client.aio.test_connection import free_port
from tests.unit.client.fake_server import serving
from tests.unit.runtime.hall import TLS, Scene, open_scene

MADE = certificates()
CA = MADE.client()

Play = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Play:
    factory = pytest.importorskip("uvloop").new_event_loop if request.param == "uvloop" else None

    def run(scene: Coroutine[Any, Any, None]) -> None:
        unseen: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.get_loop().set_exception_handler(lambda loop, context: unseen.append(context))
            runner.run(asyncio.wait_for(scene, 20))
        assert unseen == []

    return run


def context_of(name: str = "server") -> ssl.SSLContext:
    return MADE.server(name).context().current


def test_messages_go_both_ways(play: Play) -> None:
    async def scene() -> None:
        async with serving(context_of()) as server, antiphon.connect(server.url, tls=CA) as connection:
            session = await connection.session()
            receipt = await session.producer("queue:a").send(b"x" * 300_000)
            assert receipt.sequence == 1
            message = await session.consumer("queue:a").receive(timeout=5)
            assert message is not None and message.body == b"x" * 300_000

    play(scene())


def test_the_name_of_the_certificate_can_be_given(play: Play) -> None:
    async def scene() -> None:
        named = antiphon.Tls(ca=MADE.pem("ca"), server_name="elsewhere.example")
        async with serving(context_of("elsewhere")) as server:
            async with antiphon.connect(server.url, tls=named):
                pass
            async with antiphon.connect(server.url, tls={"ca": str(MADE.pem("ca")), "check_hostname": False}):
                pass

    play(scene())


@pytest.mark.parametrize(
    ("name", "ca", "said"),
    [
        ("expired", "ca", "the server's certificate has expired"),
        ("elsewhere", "ca", "the server's certificate is not for 127.0.0.1"),
        ("server", "stranger", "is of a CA that is not trusted here"),
    ],
)
def test_connect_says_what_is_wrong_with_the_server(play: Play, name: str, ca: str, said: str) -> None:
    async def scene() -> None:
        async with serving(context_of(name)) as server:
            with pytest.raises(antiphon.TlsFailed) as refused:
                await antiphon.connect(server.url, tls=MADE.pem(ca))
            assert said in refused.value.text and "\n" not in refused.value.text
            assert refused.value.code == "local.connection_failed.tls"
            assert len(refused.value.tried) == 1
            assert server.heard == []

    play(scene())


def at_the_port(stage: Scene, scheme: str) -> str:
    """The url of a real client port; FakeServer has asyncio's TLS, which hangs up without an alert."""
    host, port = stage.port.addresses[0]
    return f"{scheme}://{host}:{port}"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "asks? for a certificate of the client"),
        ("strange-client", "does not know the CA of the client's certificate"),
        ("server", "does not accept the client's certificate"),
    ],
)
def test_connect_says_what_the_server_wants_of_the_client(
    play: Play, version: ssl.TLSVersion, name: str, said: str
) -> None:
    async def scene() -> None:
        context = MADE.server(is_mutual=True).context()
        context.current.maximum_version = version
        TLS.set((context, ClientTls(CA)))
        async with open_scene() as stage:
            with pytest.raises(antiphon.TlsFailed, match=said):
                await antiphon.connect(at_the_port(stage, "antiphons"), tls=MADE.client(name))

    play(scene())


def test_a_server_without_tls_is_told_apart(play: Play) -> None:
    async def scene() -> None:
        async with open_scene() as stage:
            with pytest.raises(antiphon.TlsFailed, match="the server does not speak TLS here"):
                await antiphon.connect(at_the_port(stage, "antiphons"), tls=CA)

    play(scene())


def test_a_client_without_tls_is_told_what_is_missing(play: Play) -> None:
    async def scene() -> None:
        TLS.set(MADE.both())
        async with open_scene() as stage:
            with pytest.raises(antiphon.TlsFailed, match="its url must begin with antiphons://"):
                await antiphon.connect(at_the_port(stage, "antiphon"))

    play(scene())


def test_a_server_that_says_nothing_in_the_handshake_costs_no_more_than_the_time_out(play: Play) -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as mute:
            host, port = mute.getsockname()
            with pytest.raises(antiphon.ConnectionFailed, match=r"no answer within 0\."):
                await antiphon.connect(f"antiphons://{host}:{port}", tls=CA, timeout=0.2)

    play(scene())


def test_a_server_that_hangs_up_in_the_handshake_is_no_failure_of_tls(play: Play) -> None:
    async def scene() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            await writer.wait_closed()

        rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        host, port = rude.sockets[0].getsockname()
        with pytest.raises(antiphon.ConnectionFailed) as refused:
            await antiphon.connect(f"antiphons://{host}:{port}", tls=CA, timeout=5)
        assert type(refused.value) is antiphon.ConnectionFailed
        assert "closed the connection" in refused.value.text or "reset" in refused.value.text
        rude.close()

    play(scene())


def test_the_next_server_is_tried_after_one_that_does_not_pass(play: Play) -> None:
    async def scene() -> None:
        async with serving(context_of("expired")) as bad, serving(context_of()) as good:
            url = f"{bad.url},{good.url.removeprefix('antiphons://')}"
            async with antiphon.connect(url, tls=CA, spread=False):
                assert len(good.peers) == 1

    play(scene())


def test_a_mixture_of_reasons_is_told_as_a_whole(play: Play) -> None:
    async def scene() -> None:
        async with serving(context_of("expired")) as bad:
            url = f"{bad.url},127.0.0.1:{free_port()}"
            with pytest.raises(antiphon.ConnectionFailed) as refused:
                await antiphon.connect(url, tls=CA, spread=False)
            # The second one may be back soon.
            assert type(refused.value) is antiphon.ConnectionFailed
            assert "has expired" in refused.value.text and "refused" in refused.value.text

    play(scene())


def test_a_lost_connection_is_made_again_with_tls(play: Play) -> None:
    async def scene() -> None:
        async with serving(context_of()) as server, antiphon.connect(server.url, tls=CA) as connection:
            producer = await connection.session().producer("queue:a")
            await producer.send(b"1")
            server.drop()
            assert (await producer.send(b"2")).sequence == 2

    play(scene())


def test_a_lost_connection_is_given_up_when_no_server_passes_although_a_consumer_waits(play: Play) -> None:
    async def scene() -> None:
        context = context_of()
        async with (
            serving(context) as server,
            antiphon.connect(server.url, tls=CA, reconnect=0.3) as connection,
        ):
            told: list[antiphon.AntiphonError] = []
            connection.on_error = told.append
            consumer = await connection.session().consumer("queue:a")
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            # The operator has put the wrong files in place.
            context.load_cert_chain(MADE.pem("expired"), MADE.key("expired"))
            server.drop()
            with pytest.raises(antiphon.NotConnected, match="has expired"):
                await waiting
            assert connection.state == "closed"
            assert isinstance(told[0].__cause__, antiphon.TlsFailed)

    play(scene())


def test_a_mistake_with_certificates_that_is_soon_mended_only_costs_time(play: Play) -> None:
    async def scene() -> None:
        context = context_of()
        async with serving(context) as server, antiphon.connect(server.url, tls=CA) as connection:
            producer = await connection.session().producer("queue:a")
            context.load_cert_chain(MADE.pem("expired"), MADE.key("expired"))
            server.drop()
            sending = asyncio.create_task(producer.send(b"1"))
            while connection.state != "lost":  # noqa: ASYNC110
                await asyncio.sleep(0)
            context.load_cert_chain(MADE.pem("renewed"), MADE.key("renewed"))
            assert (await sending).sequence == 1

    play(scene())


def test_a_link_that_looks_for_a_server_ends_when_none_will_ever_do(play: Play) -> None:
    async def scene() -> None:
        async with serving(context_of("expired")) as server:
            link = ClientLink(
                parse_url(server.url), user="", password="", client_id="", reconnect_s=60, tls=ClientTls(CA)
            ).sibling()
            with pytest.raises(antiphon.TlsFailed, match="has expired"):
                await link.find()

    play(scene())


def test_the_scheme_is_checked() -> None:
    for url in ("antiphon+tls://h", "antiphonss://h", "h:1", "https://h"):
        with pytest.raises(
            antiphon.ConnectionFailed, match="does not begin with antiphon:// or antiphons://"
        ):
            antiphon.connect(url)
    assert parse_url("antiphons://a:1,b") == parse_url("antiphon://a:1,b")
