"""Connecting, being refused, being cut off, and leaving in order."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

import antiphon
from antiphon.client.aio import link
from antiphon.client.aio.connection import PASSWORD_BYTES_MAX, USER_BYTES_MAX
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem
from tests.unit.client.fake_server import SESSION, asynchronous, serving


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynchronous
async def test_connecting_introduces_the_application_and_leaving_says_goodbye() -> None:
    async with serving() as server:
        async with antiphon.connect(server.url, user="u", password="p", client_id="c") as connection:
            assert not connection.closed
            assert server.heard == [frames.Hello(user="u", password="p", client_id="c")]
        assert connection.closed
        await server.until(lambda: server.peers[0].is_gone)
        assert server.heard[-1] == frames.Goodbye(code="", text="")


@asynchronous
async def test_a_connection_can_be_awaited() -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url)
        assert isinstance(connection, antiphon.Connection)
        assert server.url.removeprefix("antiphon://") in repr(connection)
        await connection.close()
        await connection.close()
        assert "closed" in repr(connection)


@asynchronous
async def test_servers_are_tried_in_order() -> None:
    async with serving() as server:
        nobody = f"127.0.0.1:{free_port()}"
        url = f"antiphon://{nobody},{server.url.removeprefix('antiphon://')}"
        async with antiphon.connect(url, spread=False):
            assert len(server.heard_of(frames.Hello)) == 1


@asynchronous
async def test_clients_spread_over_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as one, serving() as two:
        url = f"{one.url},{two.url.removeprefix('antiphon://')}"
        for drawn, server in ((0.1, one), (0.9, two), (0.4, one)):
            monkeypatch.setattr("antiphon.client.aio.connection.random.random", lambda drawn=drawn: drawn)
            async with antiphon.connect(url) as connection:
                assert server.url.removeprefix("antiphon://") in repr(connection)


@asynchronous
async def test_a_failure_tells_who_was_tried_and_why() -> None:
    async with serving() as silent, serving() as foreign:
        silent.greet = lambda hello: None
        foreign.greet = lambda hello: frames.Goodbye(code="remote.version_mismatch", text="we speak 2")
        nobody = f"127.0.0.1:{free_port()}"
        servers = [nobody, *(url.removeprefix("antiphon://") for url in (silent.url, foreign.url))]
        with pytest.raises(antiphon.ConnectionFailed) as failed:
            await antiphon.connect(f"antiphon://{','.join(servers)}", timeout=0.2, spread=False)
        assert failed.value.tried == tuple(servers)
        assert isinstance(failed.value.__cause__, TimeoutError), "one of them might have answered later"
        text = str(failed.value)
        assert f"{nobody}: Connection refused" in text
        assert f"{servers[1]}: no answer within" in text
        assert f"{servers[2]}: we speak 2" in text


@asynchronous
async def test_a_connection_without_time_is_late_and_no_time_is_negative() -> None:
    async with serving() as server:
        with pytest.raises(antiphon.ConnectionFailed, match=r"no answer within 0 s$") as failed:
            await antiphon.connect(server.url, timeout=0)
        assert isinstance(failed.value.__cause__, TimeoutError)
        with pytest.raises(antiphon.ConnectionFailed, match="refused") as failed:
            await antiphon.connect(f"antiphon://127.0.0.1:{free_port()}")
        assert failed.value.__cause__ is None


@asynchronous
async def test_whoever_is_refused_by_one_server_does_not_ask_the_next() -> None:
    async with serving() as strict, serving() as other:
        strict.greet = lambda hello: frames.Goodbye(code="local.access_denied", text="wrong password")
        with pytest.raises(antiphon.AccessDenied, match="wrong password"):
            await antiphon.connect(f"{strict.url},{other.url.removeprefix('antiphon://')}", spread=False)
        assert other.heard == []


@asynchronous
async def test_a_server_of_another_kind_is_not_a_server() -> None:
    async with serving() as server:
        server.greet = lambda hello: frames.Pong(nonce=1)
        with pytest.raises(antiphon.ConnectionFailed, match="first word was Pong"):
            await antiphon.connect(server.url)


@asynchronous
async def test_nothing_works_before_connecting() -> None:
    connection = antiphon.connect("antiphon://127.0.0.1:1")
    with pytest.raises(antiphon.NotConnected, match="neither awaited"):
        await connection.session()
    with pytest.raises(antiphon.NotConnected):
        await connection.admin().status()


def test_a_url_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(antiphon.ConnectionFailed, match="antiphon://"):
        antiphon.connect("http://127.0.0.1")
    for url in (5, None):
        with pytest.raises(antiphon.LocalError, match="a url is a text"):
            antiphon.connect(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["user", "password", "client_id"])
def test_credentials_that_are_none_are_refused_at_once_and_not_repeated(what: str) -> None:
    for value in (5, b"secret", "secret" * 1_000):
        with pytest.raises(antiphon.LocalError, match=what) as refused:
            antiphon.connect("antiphon://127.0.0.1", **{what: value})  # type: ignore[arg-type]
        assert "secretsecret" not in str(refused.value)


@pytest.mark.parametrize(
    ("what", "bytes_max"),
    [("user", USER_BYTES_MAX), ("password", PASSWORD_BYTES_MAX), ("client_id", USER_BYTES_MAX)],
)
def test_credentials_are_counted_in_bytes_as_client_managers_count_them(what: str, bytes_max: int) -> None:
    assert ClientManagerSettings().user_bytes_max == USER_BYTES_MAX
    antiphon.connect("antiphon://127.0.0.1", **{what: "x" * bytes_max})  # type: ignore[arg-type]
    for value in ("x" * (bytes_max + 1), "ü" * (bytes_max // 2 + 1), "\ud800"):
        with pytest.raises(antiphon.LocalError, match=f"{what} is a text of at most {bytes_max:,} bytes"):
            antiphon.connect("antiphon://127.0.0.1", **{what: value})  # type: ignore[arg-type]


def test_an_acknowledge_mode_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(antiphon.LocalError, match="'auto', 'client', 'individual', 'dups_ok'"):
        antiphon.connect("antiphon://127.0.0.1").session(ack="never")  # type: ignore[arg-type]


@asynchronous
async def test_a_channel_is_named_only_of_a_destination_that_every_channel_has() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session, admin = connection.session(), connection.admin()
        told = (
            "queue:x has no parts: only of queue:_DMQ, topic:_LOG and a pattern a channel is named, not 'zz'"
        )
        with pytest.raises(antiphon.LocalError, match=told):
            session.consumer("queue:x", channel="zz")
        with pytest.raises(antiphon.LocalError, match=told):
            session.browse("queue:x", channel="zz")
        with pytest.raises(antiphon.LocalError, match=told):
            await admin.purge("queue:x", channel="zz")
        with pytest.raises(antiphon.LocalError, match=told):
            await admin.move("queue:x", "queue:y", channel="zz")
        session.consumer("queue:_DMQ", channel="a")
        session.browse("queue:_DMQ", channel="a")


@asynchronous
async def test_the_system_answers_questions() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        pages = [
            json.dumps({"rows": [{"name": "q"}], "next": {"channel": "a", "after": 7}}),
            json.dumps({"rows": [{"name": "r"}], "next": None}),
        ]
        server.answers = {"status": json.dumps({"cluster": "c"}), "destinations": pages}
        admin = connection.admin()
        assert await admin.status() == {"cluster": "c"}
        assert await admin.destinations() == [{"name": "q"}, {"name": "r"}]
        *_, last = server.heard_of(frames.Ask)
        assert json.loads(last.question) == {"question": "destinations", "channel": "a", "after": 7}


@pytest.mark.parametrize("answer", ["no json", "[]", "7"])
@asynchronous
async def test_an_answer_that_is_none_is_an_error(answer: str) -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.answers = {"status": answer}
        with pytest.raises(antiphon.ProtocolError, match="status"):
            await connection.admin().status()


@asynchronous
async def test_a_request_has_only_so_much_time() -> None:
    async with serving() as server, antiphon.connect(server.url, timeout=0.1) as connection:
        server.peers[0].transport.pause_reading()
        with pytest.raises(antiphon.Timeout, match=r"did not answer within 0\.1 s"):
            await connection.admin().status()


@asynchronous
async def test_requests_learn_that_the_connection_is_over() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.peers[0].transport.pause_reading()
        asking = asyncio.create_task(connection.admin().status())
        await asyncio.sleep(0)
        server.drop()
        with pytest.raises(antiphon.NotConnected, match="is over"):
            await asking
        assert connection.closed
        with pytest.raises(antiphon.NotConnected):
            await connection.session()


MISBEHAVIOUR: dict[str, bytes] = {
    "an unknown frame": b"\x01\x00\x00\x00\xff",
    "a frame too large": b"\xff\xff\xff\x7f\x04",
    "an empty frame": b"\x00\x00\x00\x00",
    "a client's frame": frames.encode_frame(frames.Hello(user="", password="", client_id="")),
    "an answer to nothing": frames.encode_frame(frames.Done(request=99)),
    "a cut frame": frames.encode_frame(frames.Ping(nonce=1))[:-1].replace(b"\x09\x00", b"\x08\x00", 1),
    "a second welcome": frames.encode_frame(
        frames.Welcome(node=1, cluster="", servers=(), connection=1, frame_limit=1, heartbeat_ms=0)
    ),
    "a confirmation of nothing": frames.encode_frame(
        frames.Confirm(session=SESSION, channel="a", items=(ConfirmItem(1, 1, 0, 1),))
    ),
}


@pytest.mark.parametrize("data", MISBEHAVIOUR.values(), ids=MISBEHAVIOUR.keys())
@asynchronous
async def test_a_server_that_breaks_the_protocol_is_left(data: bytes) -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        async with connection.session() as session:
            consumer = await session.consumer("queue:a")
            waiting = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)
            server.say_bytes(data)
            with pytest.raises(antiphon.NotConnected):
                await waiting
        await server.until(lambda: server.peers[0].is_gone)
        (goodbye,) = server.heard_of(frames.Goodbye)
        assert goodbye.code == "remote.protocol"
        with pytest.raises(antiphon.NotConnected) as lost:
            await connection.admin().status()
        assert isinstance(lost.value.__cause__, antiphon.ProtocolError)


@asynchronous
async def test_a_server_that_leaves_says_why() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.say(frames.Goodbye(code="node", text="going down"))
        await server.until(lambda: server.peers[0].is_gone)
        with pytest.raises(antiphon.NotConnected, match="going down"):
            await connection.session()


@asynchronous
async def test_a_silent_server_is_left_after_three_heartbeats() -> None:
    async with serving(heartbeat_ms=20) as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        consumer = await session.consumer("queue:a")
        server.peers[0].transport.pause_reading()
        with pytest.raises(antiphon.NotConnected, match="silent for 60 ms"):
            await consumer.receive(timeout=60)


@asynchronous
async def test_heartbeats_keep_an_idle_connection() -> None:
    async with serving(heartbeat_ms=10) as server, antiphon.connect(server.url) as connection:
        await server.until(lambda: len(server.heard_of(frames.Ping)) >= 9)
        assert not connection.closed


@asynchronous
async def test_closing_the_connection_closes_its_sessions() -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url)
        session = await connection.session()
        connection.session()  # never opened, so there is nothing to close
        await connection.close()
        assert session.closed
        await server.until(lambda: isinstance(server.heard[-1], frames.Goodbye))
        kinds = [type(frame) for frame in server.heard]
        assert kinds == [frames.Hello, frames.SessionOpen, frames.SessionClose, frames.Goodbye]


def test_the_version_is_known() -> None:
    assert antiphon.__version__.count(".") == 2


@asynchronous
async def test_cancelling_connect_leaves_no_socket() -> None:
    async with serving() as server:
        before = asyncio.all_tasks()
        for turns in range(1, 100):  # at every moment
            connection = antiphon.connect(server.url)
            connecting = asyncio.ensure_future(_opened(connection))
            for _ in range(turns):
                await asyncio.sleep(0)
            if connecting.done():
                await connection.close()
                break
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
        assert turns > 3
        await server.until(lambda: all(peer.is_gone for peer in server.peers))
        # Another client comes after them: by then they have come too, if they were to come at all.
        async with antiphon.connect(server.url):
            await server.until(lambda: all(peer.is_gone for peer in server.peers[:-1]))
        assert asyncio.all_tasks() == before


async def _opened(connection: antiphon.Connection) -> antiphon.Connection:
    return await connection


@asynchronous
async def test_a_connect_that_takes_too_long_leaves_no_socket_and_may_be_tried_again() -> None:
    async with serving() as server:
        server.greet = lambda hello: None
        connection = antiphon.connect(server.url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_opened(connection), 0.05)
        with pytest.raises(antiphon.ConnectionFailed):
            await antiphon.connect(server.url, timeout=0.05)
        await server.until(lambda: len(server.peers) == 2 and all(peer.is_gone for peer in server.peers))
        server.greet = None
        async with connection:
            assert not connection.closed
            assert len(server.peers) == 3


@asynchronous
async def test_whoever_waits_for_a_connection_with_others_does_not_take_it_from_them() -> None:
    async with serving() as server:
        server.greet = lambda hello: None
        connection = antiphon.connect(server.url)
        first, second = (asyncio.ensure_future(_opened(connection)) for _ in range(2))
        await server.until(lambda: len(server.heard_of(frames.Hello)) == 1)
        first.cancel()
        await asyncio.wait([first])
        server.say(server.welcome())
        assert await second is connection
        await connection.close()


@asynchronous
async def test_closing_a_connection_with_a_client_id_waits_until_the_server_has_let_it_go() -> None:
    async with serving(lets_go=False) as server:
        connection = await antiphon.connect(server.url, client_id="desk")
        closing = asyncio.create_task(connection.close())
        await server.until(lambda: bool(server.heard_of(frames.Goodbye)))
        assert not closing.done()
        assert connection.state == "closed"
        server.drop()
        await closing
        async with antiphon.connect(server.url):
            pass


@asynchronous
async def test_a_server_that_never_lets_go_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FAREWELL_S", 0.05)
    async with serving(lets_go=False) as server, antiphon.connect(server.url, client_id="desk"):
        pass
