"""Sends of non-persistent messages: they return when the server has the messages, and errors come later."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import antiphon
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from tests.unit.client.fake_server import CHANNEL, FakeServer, asynchronous, serving


def take(server: FakeServer, number: int, count: int = 1) -> None:
    """Say that these messages of the last session are taken."""
    (session,) = {header.session for header, _ in server.commands}
    item = ConfirmItem(number, count, OutcomeCode.TAKEN)
    server.say(frames.Confirm(session=session, channel=CHANNEL, items=(item,)))


async def sent(server: FakeServer, count: int) -> None:
    await server.until(lambda: len(server.published()) == count)


@asynchronous
async def test_a_send_returns_when_the_message_is_taken_and_closing_waits_for_its_outcome() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        server.hold()
        sending = asyncio.ensure_future(session.producer("queue:a").send(b"x", persistent=False))
        await sent(server, 1)
        assert not sending.done()
        take(server, 1)
        receipt = await sending
        assert (receipt.sequence, receipt.duplicate) == (None, False)
        assert "not stored yet" in repr(receipt)
        closing = asyncio.ensure_future(session.close())
        # A question and its answer later, it still waits.
        server.answers["status"] = "{}"
        await connection.admin().status()
        assert not closing.done()
        server.release()
        await closing
        assert session.unstored == 0


@asynchronous
async def test_messages_sent_together_travel_apart_by_their_kind_and_in_their_order() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        producer = await (await connection.session()).producer("queue:a")
        modes = [True, True, False, False, True, False]
        await asyncio.gather(
            *(producer.send(b"%d" % at, persistent=persistent) for at, persistent in enumerate(modes))
        )
        batches = [(batch.bodies(), batch.is_transient) for _, batch in server.published()]
        assert batches == [([b"0", b"1"], False), ([b"2", b"3"], True), ([b"4"], False), ([b"5"], True)]


@asynchronous
async def test_many_non_persistent_messages_return_when_all_are_taken() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        server.hold()
        rows = [antiphon.Row(b"x", persistent=False) for _ in range(10)]
        sending = asyncio.ensure_future(session.producer("queue:a").send_many(rows))
        await sent(server, 1)
        take(server, 1, 10)
        receipts = await sending
        assert [receipt.sequence for receipt in receipts] == [None] * 10
        server.release()
        await session.close()


@asynchronous
async def test_a_refusal_after_the_send_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(header: Any, payload: Any) -> ConfirmItem:
        return ConfirmItem(header.number, header.count, OutcomeCode.NO_DESTINATION)

    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        server.hold()
        server.judge = refuse
        with caplog.at_level(logging.WARNING, "antiphon"):
            sending = asyncio.ensure_future(session.producer("queue:a").send(b"x", persistent=False))
            await sent(server, 1)
            take(server, 1)
            await sending
            server.release()
            await session.close()
        assert session.unstored == 1
        assert "1 non-persistent message for channel a: the message was not stored" in caplog.text


@asynchronous
async def test_a_refusal_before_the_message_is_taken_is_raised() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.judge = lambda header, payload: ConfirmItem(header.number, header.count, OutcomeCode.REFUSED)
        session = await connection.session()
        with pytest.raises(antiphon.PublishRefused):
            await session.producer("queue:a").send(b"x", persistent=False)
        assert session.unstored == 0


@asynchronous
async def test_taken_messages_are_counted_when_the_connection_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url, reconnect=0)
        session = await connection.session()
        server.hold()
        sending = asyncio.ensure_future(session.producer("queue:a").send(b"x", persistent=False))
        await sent(server, 1)
        take(server, 1)
        await sending
        over = asyncio.Event()
        connection.on_lost = over.set
        with caplog.at_level(logging.WARNING, "antiphon"):
            server.drop()
            await over.wait()
        assert session.unstored == 1
        assert "may or may not be stored" in caplog.text


@asynchronous
async def test_taken_messages_are_sent_again_on_another_connection() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        server.hold()
        sending = asyncio.ensure_future(session.producer("queue:a").send(b"x", persistent=False))
        await sent(server, 1)
        take(server, 1)
        await sending
        server._held = None
        server.drop()
        await sent(server, 2)
        await session.close()
        assert [header.number for header, _ in server.published()] == [1, 1]
        assert session.unstored == 0


@asynchronous
async def test_a_taken_message_outlives_the_time_limit_of_its_send() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        session = await connection.session()
        producer = await session.producer("queue:a")
        server.hold()
        sending = asyncio.ensure_future(producer.send(b"x", persistent=False, timeout=0.2))
        await sent(server, 1)
        take(server, 1)
        await sending
        # A persistent message behind it, whose time is over too: nothing is told of the first.
        with pytest.raises(antiphon.PublishUncertain):
            await producer.send(b"y", timeout=0.4)
        server.release()
        await session.close()
        assert session.unstored == 0
