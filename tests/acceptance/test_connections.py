"""Connections as Jakarta Messaging 3.1 has them (6.1): stopping, closing, and what no call raises."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import antiphon
from tests.acceptance.scenes import WAIT_S, Broker, bodies, browsed, in_session, row_of, taken
from tests.client_scenes import numbered, run

# -- stopped and started ---------------------------------------------------------------------------


def test_a_stopped_connection_gives_nothing_and_sends_all_the_same(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            one, other = await connection.session(), await connection.session("client")
            queue, topic = await one.consumer("queue:stopped"), await other.consumer("topic:stopped")
            waiting = [asyncio.create_task(consumer.receive()) for consumer in (queue, topic)]
            await connection.stop()
            for name in ("queue:stopped", "topic:stopped"):
                await one.producer(name).send_many(numbered(10))
            await row_of(broker, "queue:stopped", lambda row: bool(row["in_flight"] == 10))
            for timeout in (0, 0.05):
                assert await queue.receive(timeout=timeout) is None, "its time runs on"
                assert await topic.receive_many(5, timeout=timeout) == []
            assert not any(task.done() for task in waiting)
            assert await browsed(one, "queue:stopped") == numbered(10)
            await connection.start()
            for task, consumer in zip(waiting, (queue, topic), strict=True):
                first = await task
                assert first is not None and first.body == numbered(1)[0] and not first.redelivered
                assert await bodies(consumer, 9) == numbered(9, 1)

    run(test())


def test_what_is_worked_on_while_the_connection_stops_is_done_as_usual(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            session = await connection.session(transacted=True)
            async with in_session(broker) as other:
                await other.producer("queue:halfway").send_many(numbered(2))
                consumer = await session.consumer("queue:halfway", prefetch=0)
                assert await bodies(consumer, 1) == numbered(1)
                await connection.stop()
                await session.producer("queue:halfway.out").send(b"done")
                await session.commit()
                assert await bodies(other.consumer("queue:halfway.out"), 1) == [b"done"]
                assert await bodies(other.consumer("queue:halfway"), 1) == numbered(1, 1), "nobody holds it"

    run(test())


def test_a_connection_that_begins_stopped_gives_nothing_before_it_is_started(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S, started=False) as connection:
            session = await connection.session()
            await session.producer("queue:unstarted").send(b"x")
            consumer = await session.consumer("queue:unstarted")
            assert await consumer.receive(timeout=0.05) is None
            await connection.start()
            assert await bodies(consumer, 1) == [b"x"]

    run(test())


def test_the_blocking_client_stops_and_starts(broker: Broker) -> None:
    with antiphon.blocking.connect(broker.url, timeout=WAIT_S) as connection:
        session = connection.session()
        session.producer("queue:halted").send_many(numbered(20))
        consumer = session.consumer("queue:halted")
        first = consumer.receive(timeout=WAIT_S)
        assert first is not None and first.body == numbered(1)[0]
        connection.stop()
        assert not connection.is_started
        assert consumer.receive(timeout=0.05) is None and consumer.receive_many(5, timeout=0) == []
        connection.start()
        rest = [message.body for message in consumer.receive_many(19, timeout=WAIT_S)]
        assert rest == numbered(19, 1)


# -- closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["session", "connection"])
def test_closing_rolls_back_what_is_not_committed(broker: Broker, what: str) -> None:
    async def test() -> None:
        into, out = f"queue:rolled.{what}.in", f"queue:rolled.{what}.out"
        async with in_session(broker) as other, antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            await other.producer(into).send_many(numbered(3))
            session = await connection.session(transacted=True)
            assert await bodies(await session.consumer(into), 3) == numbered(3)
            await session.producer(out).send_many(numbered(3))
            await (session if what == "session" else connection).close()
            again = await taken(other.consumer(into), 3)
            assert [(message.body, message.delivery_count) for message in again] == [
                (body, 2) for body in numbered(3)
            ]
            assert await other.consumer(out).receive(timeout=0) is None

    run(test())


def test_closing_a_connection_acknowledges_nothing_that_the_client_did_not(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as other:
            connection = await antiphon.connect(broker.url, timeout=WAIT_S)
            session = await connection.session("client")
            await session.producer("queue:unacked").send_many(numbered(3))
            await taken(await session.consumer("queue:unacked"), 3)
            await connection.close()
            again = await taken(other.consumer("queue:unacked"), 3)
            assert [(m.body, m.redelivered, m.delivery_count) for m in again] == [
                (body, True, 2) for body in numbered(3)
            ]

    run(test())


@pytest.mark.parametrize("what", ["consumer", "session", "connection"])
def test_closing_ends_the_calls_that_wait_and_may_be_repeated(broker: Broker, what: str) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            session = await connection.session()
            consumer = await session.consumer(f"queue:ended.{what}")

            async def loop() -> None:
                async for _ in consumer:
                    pass

            waiting = [
                asyncio.create_task(consumer.receive()),
                asyncio.create_task(consumer.receive_many(5, timeout=WAIT_S)),
            ]
            looping = asyncio.create_task(loop())
            await asyncio.sleep(0)
            closed: dict[str, Any] = {"consumer": consumer, "session": session, "connection": connection}
            await asyncio.gather(closed[what].close(), closed[what].close())
            await closed[what].close()
            for task in waiting:
                with pytest.raises(antiphon.ConsumerClosed):
                    await task
            await looping

    run(test())


@pytest.mark.parametrize("what", ["session", "connection"])
def test_what_is_being_sent_when_its_session_is_closed_is_stored(broker: Broker, what: str) -> None:
    async def test() -> None:
        name = f"queue:sending.{what}"
        async with in_session(broker) as other, antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            session = await connection.session()
            producer = await session.producer(name)
            sends = [asyncio.create_task(producer.send(body)) for body in numbered(50)]
            await asyncio.sleep(0)
            await (session if what == "session" else connection).close()
            assert all(task.done() for task in sends)
            places = [(await task).sequence for task in sends]
            assert places == sorted(places)
            assert await bodies(other.consumer(name), 50) == numbered(50)

    run(test())


@pytest.mark.parametrize("what", ["session", "connection"])
def test_what_was_closed_says_so_to_later_calls(broker: Broker, what: str) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            session, transacted = (
                await connection.session("client"),
                await connection.session(transacted=True),
            )
            producer, consumer = await session.producer("queue:later"), await session.consumer("queue:later")
            await producer.send_many(numbered(2))
            (message,) = await taken(consumer, 1)
            for one in (session, transacted) if what == "session" else (connection,):
                await one.close()
            later: list[Callable[[], Awaitable[object]]] = [
                lambda: producer.send(b"x"),
                lambda: producer.try_send(b"x"),
                lambda: producer.send_many([b"x"]),
                lambda: session.producer("queue:later").send(b"x"),
                lambda: consumer.receive(timeout=0),
                lambda: session.consumer("queue:later").receive(timeout=0),
                lambda: anext(session.browse("queue:later")),
                message.ack,
                message.reject,
                session.recover,
                session.temporary_queue,
                lambda: session.request("queue:later", b"?"),
                lambda: session.unsubscribe("s"),
                transacted.commit,
                transacted.rollback,
                lambda: transacted.producer("queue:later").send(b"x"),
            ]
            if what == "connection":
                later += [
                    connection.stop,
                    connection.start,
                    lambda: connection.session().producer("queue:later").send(b"x"),
                    lambda: connection.admin().status(),
                ]
            for call in later:
                with pytest.raises(
                    (antiphon.SessionClosed, antiphon.ConsumerClosed, antiphon.NotConnected), match="clos"
                ):
                    async with asyncio.timeout(5):
                        await call()
            assert session.closed and transacted.closed and consumer.closed
            assert connection.closed == (what == "connection")

    run(test())


# -- what no call raises ---------------------------------------------------------------------------


def test_an_automatic_acknowledgement_that_came_too_late_is_told(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            told: asyncio.Queue[antiphon.AntiphonError] = asyncio.Queue()
            connection.on_error = told.put
            session = await connection.session()
            await session.producer("queue:late").send(b"x")
            async for message in await session.consumer("queue:late"):
                assert message.body == b"x"
                await connection.admin().purge("queue:late")
                break
            else:
                raise AssertionError("the loop ended by itself")
            await session.close()
            assert told.empty(), "the message at which a loop is left is not acknowledged"
            session = await connection.session()
            consumer = await session.consumer("queue:late")
            loop = aiter(consumer)
            await session.producer("queue:late").send(b"y")
            await anext(loop)
            await connection.admin().purge("queue:late")
            assert await consumer.receive(timeout=0) is None
            error = await asyncio.wait_for(told.get(), WAIT_S)
            assert isinstance(error, antiphon.AcknowledgeRefused)

    run(test())


def test_a_non_persistent_message_that_was_refused_later_is_told(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            told: asyncio.Queue[antiphon.AntiphonError] = asyncio.Queue()
            connection.on_error = told.put
            session = await connection.session()
            producer = await session.producer("queue:untold")
            await producer.send(b"x")
            await connection.admin().delete("queue:untold")
            try:
                await producer.send(b"y", persistent=False)
            except antiphon.PublishRefused:
                # The refusal overtook the word that the message was taken: both are told in one step.
                return
            error = await asyncio.wait_for(told.get(), WAIT_S)
            assert isinstance(error, antiphon.PublishRefused) and session.unstored == 1

    run(test())
