"""A connection that is lost and made again: the application only waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from tests.unit.client.aio.test_connection import free_port
from tests.unit.client.fake_server import SESSION, FakeServer, Peer, asynchronous, serving

QUEUE = "queue:a"


async def second_peer(server: FakeServer) -> Peer:
    """The next connection that a client makes after it has lost this one."""
    count = len(server.peers)
    server.drop()
    await server.until(lambda: len(server.heard_of(frames.Hello)) > count)
    return server.peers[count]


@asynchronous
async def test_a_send_is_stored_once_though_its_confirmation_was_lost() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.hold()
        sending = asyncio.create_task(producer.send(b"once"))
        await server.until(lambda: len(server.commands) == 1)
        server.drop()
        await server.until(lambda: len(server.commands) == 2)
        server.release()
        receipt = await sending
        assert (receipt.sequence, receipt.message_id) == (1, f"ID:{SESSION:032x}-1@a")
        first, second = (header for header, _ in server.published())
        assert (first.number, first.generation) == (1, 1)
        assert (second.number, second.generation) == (1, 2)
        assert server.sequence == 1
        assert not connection.closed


@asynchronous
async def test_sends_wait_for_a_connection_and_keep_their_order() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        await producer.send(b"0")
        server.greet = lambda hello: None
        await second_peer(server)
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(1, 6)]
        await asyncio.sleep(0)
        assert producer.is_blocked
        server.greet = None
        server.peers[-1].say(server.welcome())
        receipts = await asyncio.gather(*sends)
        assert [receipt.sequence for receipt in receipts] == [2, 3, 4, 5, 6]
        assert not producer.is_blocked


@asynchronous
async def test_a_send_that_never_left_says_so_when_its_time_is_over() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.greet = lambda hello: None
        await second_peer(server)
        with pytest.raises(antiphon.PublishRefused, match="never sent"):
            await producer.send(b"x", timeout=0.05)
        assert await producer.try_send(b"x") is None


@asynchronous
async def test_a_consumer_goes_on_with_what_it_holds() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"%d" % number for number in range(1, 7)])
        session = await connection.session(ack="individual")
        consumer = await session.consumer(QUEUE, prefetch=4)
        first, second = await consumer.receive_many(2)
        await first.ack()
        await second_peer(server)
        await server.until(lambda: bool(server.heard_of(frames.ConsumerResume)))
        (wish,) = server.heard_of(frames.ConsumerResume)
        assert wish.held.first == 2
        await second.ack()
        rest = await consumer.receive_many(4)
        assert [message.body for message in rest] == [b"3", b"4", b"5", b"6"]
        assert not any(message.redelivered for message in rest)
        assert server.acknowledged == Ranges([(1, 3)])


@asynchronous
async def test_whoever_waits_for_a_message_only_waits_longer() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        consumer = await session.consumer(QUEUE)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await second_peer(server)
        await server.until(lambda: bool(server.heard_of(frames.ConsumerResume)))
        server.fill(QUEUE, [b"late"])
        message = await waiting
        assert message is not None and message.body == b"late"


@asynchronous
async def test_an_acknowledgement_is_sent_again_and_waited_for() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session(ack="individual")
        consumer = await session.consumer(QUEUE)
        message = await consumer.receive()
        assert message is not None
        server.hold()
        acknowledging = asyncio.create_task(message.ack())
        await server.until(lambda: len(server.acks()) == 1)
        server.drop()
        await server.until(lambda: len(server.acks()) == 2)
        server.release()
        await acknowledging
        numbers = [header.number for header, _ in server.commands]
        assert numbers == [1, 1]


@asynchronous
async def test_opening_and_asking_are_repeated() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.answers = {"status": "{}"}
        server.peers[0].transport.pause_reading()
        asking = asyncio.create_task(connection.admin().status())
        opening = asyncio.create_task(connection.session().producer(QUEUE)._opened())
        await asyncio.sleep(0)
        await second_peer(server)
        assert await asking == {}
        assert isinstance(await opening, antiphon.Producer)


@asynchronous
async def test_another_server_takes_over() -> None:
    async with serving() as first, serving() as second:
        url = f"{first.url},{second.url.removeprefix('antiphon://')}"
        async with antiphon.connect(url, spread=False) as connection:
            session = await connection.session()
            producer = await session.producer(QUEUE)
            first.greet = lambda hello: frames.Goodbye(code="connection.stopping", text="stopping")
            first.drop()
            await producer.send(b"x")
            assert [type(frame) for frame in second.heard[:2]] == [frames.Hello, frames.SessionOpen]
            assert len(second.commands) == 1
            assert second.url.removeprefix("antiphon://") in repr(connection)


@asynchronous
async def test_a_server_that_the_system_told_of_takes_over() -> None:
    async with serving() as first, serving() as second:
        address = second.url.removeprefix("antiphon://")
        first.greet = lambda hello: frames.Welcome(
            node=1, cluster="", servers=(address,), connection=1, frame_limit=1 << 21, heartbeat_ms=0
        )
        async with antiphon.connect(first.url) as connection:
            session = await connection.session()
            first.greet = lambda hello: frames.Goodbye(code="connection.stopping", text="stopping")
            first.drop()
            await session.producer(QUEUE).send(b"x")
            assert len(second.commands) == 1


@asynchronous
async def test_the_list_of_servers_is_the_one_that_was_told_last() -> None:
    async with serving() as first, serving() as second, serving() as third:

        def telling(server: FakeServer, *others: FakeServer) -> None:
            addresses = tuple(other.url.removeprefix("antiphon://") for other in others)
            server.greet = lambda hello: replace(server.welcome(), servers=addresses)

        telling(first, second)
        telling(second, third)
        async with antiphon.connect(first.url) as connection:
            session = await connection.session()
            producer = await session.producer(QUEUE)
            for server in (first, second):
                server.greet = lambda hello: frames.Goodbye(code="connection.stopping", text="stopping")
                server.drop()
                await producer.send(b"x")
            assert (len(second.commands), len(third.commands)) == (1, 1)
            assert third.url.removeprefix("antiphon://") in repr(connection)


@asynchronous
async def test_a_server_that_falls_silent_is_left_for_another_at_once() -> None:
    async with serving() as first, serving() as second:
        url = f"{first.url},{second.url.removeprefix('antiphon://')}"
        first.greet = lambda hello: replace(first.welcome(), heartbeat_ms=10)
        async with antiphon.connect(url, spread=False) as connection:
            session = await connection.session()
            producer = await session.producer(QUEUE)
            first.is_mute = True
            await producer.send(b"x")
            assert len(second.commands) == 1
            assert len(first.heard_of(frames.Hello)) == 1


@asynchronous
async def test_a_connection_nobody_needs_is_given_up_after_a_while_and_says_who_was_tried() -> None:
    nobody = f"127.0.0.1:{free_port()}"
    async with serving() as server:
        url = f"{server.url},{nobody}"
        async with antiphon.connect(url, reconnect=0.1) as connection:
            session = await connection.session()
            producer = await session.producer(QUEUE)
            server.greet = lambda hello: frames.Goodbye(code="connection.limit", text="too many")
            server.drop()
            while not connection.closed:  # noqa: ASYNC110  # whoever waited for it would keep it alive
                await asyncio.sleep(0)
            with pytest.raises(antiphon.NotConnected, match="no server could be reached") as over:
                await connection.admin().status()
            text = str(over.value)
            assert f"{nobody}: Connection refused" in text
            assert "too many" in text
            with pytest.raises(antiphon.NotConnected):
                await producer.send(b"x")


@asynchronous
async def test_a_lost_connection_is_tried_for_as_long_as_somebody_waits() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0.01) as connection:
        session = await connection.session()
        consumer = await session.consumer(QUEUE)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        server.greet = lambda hello: frames.Goodbye(code="connection.limit", text="too many")
        server.drop()
        # Long after it would have been given up if nobody waited.
        await server.until(lambda: len(server.heard_of(frames.Hello)) >= 6)
        server.greet = None
        server.fill(QUEUE, [b"late"])
        assert await waiting is not None


@asynchronous
async def test_whoever_may_not_come_back_hears_that_and_is_not_tried_again() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.greet = lambda hello: frames.Goodbye(code="local.access_denied", text="gone from the list")
        server.drop()
        with pytest.raises(antiphon.PublishError, match="gone from the list"):
            await producer.send(b"x")
        assert len(server.heard_of(frames.Hello)) == 2


@asynchronous
async def test_a_server_that_says_we_broke_the_protocol_is_not_tried_again() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.say(frames.Goodbye(code="remote.protocol", text="what was that?"))
        await server.until(lambda: server.peers[0].is_gone)
        with pytest.raises(antiphon.NotConnected, match="what was that"):
            await connection.session()
        assert len(server.peers) == 1


@asynchronous
async def test_a_request_that_finds_no_connection_in_time_says_so() -> None:
    async with serving() as server, antiphon.connect(server.url, timeout=0.2) as connection:
        server.greet = lambda hello: frames.Goodbye(code="connection.limit", text="too many")
        await second_peer(server)
        with pytest.raises(antiphon.Timeout, match=r"no connection for 0\.2 s.*too many"):
            await connection.admin().status()
        assert not connection.closed


# -- sessions that cannot go on ------------------------------------------------------


@asynchronous
async def test_a_session_that_has_expired_is_closed_and_the_connection_is_not() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session(ack="individual")
        producer = await session.producer("queue:b")
        consumer = await session.consumer(QUEUE)
        message = await consumer.receive()
        assert message is not None
        server.hold()
        sending = asyncio.create_task(producer.send(b"uncertain"))
        await server.until(lambda: len(server.commands) == 1)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        server.refusals = {frames.SessionOpen: ("local.session_closed", "it has expired")}
        server.drop()
        with pytest.raises(antiphon.PublishUncertain, match="expired") as uncertain:
            await sending
        assert uncertain.value.message_ids == (f"ID:{SESSION:032x}-1@a",)
        for refused in (waiting, producer.send(b"x"), message.ack(), session.producer("queue:c")._opened()):
            with pytest.raises(antiphon.SessionClosed, match="expired"):
                await refused
        assert session.closed and consumer.closed
        await session.close()

        server.refusals = {}
        server.release()
        other = await connection.session()
        await other.producer(QUEUE).send(b"x")


@asynchronous
async def test_a_session_that_goes_on_elsewhere_is_closed_here() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        await producer.send(b"x")
        server.say(frames.SessionGone(session=SESSION, code="session.stale", text="resumed elsewhere"))
        await server.until(lambda: True)
        with pytest.raises((antiphon.SessionClosed, antiphon.PublishUncertain), match="elsewhere"):
            await producer.send(b"y")
        assert not connection.closed


@asynchronous
async def test_closing_without_a_connection_does_not_wait_for_one() -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url)
        session = await connection.session()
        consumer = await session.consumer(QUEUE)
        server.greet = lambda hello: None
        await second_peer(server)
        await asyncio.wait_for(consumer.close(), 1)
        await asyncio.wait_for(session.close(), 1)
        await asyncio.wait_for(connection.close(), 1)
        assert connection.closed


@asynchronous
async def test_closing_waits_until_acknowledgements_are_confirmed_on_another_connection() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.fill(QUEUE, [b"x"])
        session = await connection.session()
        consumer = await session.consumer(QUEUE)
        server.hold()
        await consumer.receive()
        await server.until(lambda: len(server.acks()) == 1)
        server.drop()
        closing = asyncio.create_task(session.close())
        await server.until(lambda: len(server.acks()) == 2)
        assert not closing.done()
        server.release()
        await closing
        assert isinstance(server.heard[-1], frames.SessionClose)


@asynchronous
async def test_outcomes_that_are_repeated_are_ordinary_receipts() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.judge = lambda header, payload: ConfirmItem(
            header.number, header.count, OutcomeCode.DUPLICATE, 40
        )
        receipts = await producer.send_many([b"a", b"b"])
        assert [receipt.sequence for receipt in receipts] == [40, 41]


# -- an application that wants to know ------------------------------------------------------


@contextmanager
def impatient(session: antiphon.Session) -> Iterator[None]:
    """As if connect had been given so little time, which a busy machine may need to connect."""
    before, session._scope.timeout = session._scope.timeout, 0.2
    yield
    session._scope.timeout = before


@asynchronous
async def test_an_empty_queue_and_a_server_that_is_gone_differ() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0.01) as connection:
        session = await connection.session()
        consumer = await session.consumer(QUEUE)
        assert await consumer.receive(timeout=0) is None
        server.greet = lambda hello: frames.Goodbye(code="connection.limit", text="too many")
        await second_peer(server)
        began = asyncio.get_running_loop().time()
        with impatient(session):
            with pytest.raises(antiphon.NotConnected, match=r"no connection .* too many"):
                while True:
                    assert await consumer.receive(timeout=0.01) is None
            assert asyncio.get_running_loop().time() - began < 5
            with pytest.raises(antiphon.NotConnected):
                await consumer.receive_many(5, timeout=0)
        # Nobody waits now, and reconnect's time has been over for long; but there is a consumer.
        count = len(server.heard_of(frames.Hello))
        await server.until(lambda: len(server.heard_of(frames.Hello)) > count + 1)
        assert connection.state == "lost"
        server.greet = None
        server.fill(QUEUE, [b"late"])
        message = await consumer.receive()
        assert message is not None and message.body == b"late"
        assert await consumer.receive(timeout=0) is None
        assert connection.state == "connected"
    assert connection.state == "closed"


@asynchronous
async def test_a_consumer_that_finds_no_server_at_its_first_use_says_so_too() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        server.greet = lambda hello: frames.Goodbye(code="connection.limit", text="too many")
        await second_peer(server)
        with impatient(session), pytest.raises(antiphon.NotConnected, match="too many"):
            await session.consumer(QUEUE).receive(timeout=0.01)
        server.greet = None


@asynchronous
async def test_what_was_received_is_given_though_the_server_is_gone() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session(ack="client")
        consumer = await session.consumer(QUEUE)
        server.fill(QUEUE, [b"a", b"b"])
        await server.until(lambda: len(server.consumers[SESSION, 1].holds) == 2)
        assert len(await consumer.receive_many(1)) == 1
        server.greet = lambda hello: None
        await second_peer(server)
        with impatient(session):
            assert [message.body for message in await consumer.receive_many(5, timeout=0.3)] == [b"b"]
            with pytest.raises(antiphon.NotConnected):
                await consumer.receive_many(5, timeout=0)
        server.greet = None
        server.say(server.welcome())


@asynchronous
async def test_the_application_is_told_of_a_lost_connection_and_of_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="antiphon")
    told: list[str] = []

    async def resumed() -> None:
        told.append("resumed")

    async with serving() as server:
        connection = antiphon.connect(server.url)
        assert connection.state == "lost"
        connection.on_lost = lambda: told.append(f"lost, and {connection.state}")
        connection.on_resumed = resumed
        async with connection:
            assert (connection.state, told, caplog.messages) == ("connected", [], [])
            await second_peer(server)
            while connection.state != "connected" or len(told) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert told == ["lost, and lost", "resumed"]
        lost, again = caplog.records
        assert (lost.levelname, lost.name) == ("WARNING", "antiphon")
        address = server.url.removeprefix("antiphon://")
        assert lost.message.startswith(f"the connection to {address} is lost: ")
        assert (again.levelname, again.name) == ("INFO", "antiphon")
        assert again.message.startswith(f"connected to {address} again after ")


@asynchronous
async def test_a_callback_that_raises_does_not_end_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:

        def raising() -> None:
            raise ZeroDivisionError

        connection.on_lost = raising
        consumer = await (await connection.session()).consumer(QUEUE)
        await second_peer(server)
        server.fill(QUEUE, [b"x"])
        assert await consumer.receive() is not None
        assert "on_lost" in caplog.text and "ZeroDivisionError" in caplog.text


@asynchronous
async def test_a_connection_that_is_given_up_is_told_as_lost_once(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        connection.on_lost = lambda: told.append(connection.state)
        server.drop()
        while connection.state != "closed":  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert told == ["closed"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
