"""`on_error` hears of what no call raises, and of nothing else."""

from __future__ import annotations

import asyncio

import pytest

import antiphon
from antiphon.wire import frames
from antiphon.wire.commands import Acknowledge, ConfirmItem, OutcomeCode
from tests.unit.client.fake_server import SESSION, FakeServer, asynchronous, serving

QUEUE = "queue:a"


def lose_acknowledgements(server: FakeServer) -> None:
    def judge(header: object, payload: object) -> ConfirmItem | None:
        number = getattr(header, "number", 0)
        return ConfirmItem(number, 1, OutcomeCode.ACK_LOST, 1) if isinstance(payload, Acknowledge) else None

    server.judge = judge


class Told:
    """The errors that `on_error` was called with."""

    def __init__(self, connection: antiphon.Connection) -> None:
        self.errors: list[antiphon.AntiphonError] = []
        self._heard = asyncio.Event()
        connection.on_error = self._hear

    def _hear(self, error: antiphon.AntiphonError) -> None:
        self.errors.append(error)
        self._heard.set()

    async def one(self) -> antiphon.AntiphonError:
        await self._heard.wait()
        (error,) = self.errors
        return error


@asynchronous
async def test_a_refused_acknowledgement_of_the_library_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        told = Told(connection)
        lose_acknowledgements(server)
        server.fill(QUEUE, [b"x"])
        await (await connection.session()).consumer(QUEUE).receive()
        error = await told.one()
        assert isinstance(error, antiphon.AcknowledgeRefused) and "message 1 was given to another" in str(
            error
        )
        assert str(error) in caplog.text


@pytest.mark.parametrize("ack", ["client", "individual"])
@asynchronous
async def test_a_refusal_that_a_call_raises_is_not_told(ack: str) -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        told = Told(connection)
        lose_acknowledgements(server)
        server.fill(QUEUE, [b"x"])
        session = await connection.session(ack=ack)  # type: ignore[arg-type]
        message = await session.consumer(QUEUE).receive()
        assert message is not None
        with pytest.raises(antiphon.AcknowledgeRefused):
            await message.ack()
        assert told.errors == []


@asynchronous
async def test_a_connection_that_is_over_is_told_once_and_a_closed_one_is_not() -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url, reconnect=0)
        told = Told(connection)
        server.drop()
        error = await told.one()
        assert isinstance(error, antiphon.NotConnected) and error.__cause__ is not None
        await connection.close()
        async with antiphon.connect(server.url, reconnect=0) as other:
            told_of_other = Told(other)
        assert told_of_other.errors == [] and len(told.errors) == 1


@asynchronous
async def test_a_connection_that_is_given_up_is_told_with_its_cause() -> None:
    def refuse(hello: frames.Hello) -> frames.ServerFrame:
        return frames.Goodbye(code="local.client_id_in_use", text="another has it")

    async with serving() as server, antiphon.connect(server.url, client_id="mine") as connection:
        told = Told(connection)
        server.greet = refuse
        server.drop()
        error = await told.one()
        assert isinstance(error, antiphon.NotConnected)
        assert isinstance(error.__cause__, antiphon.ClientIdInUse)


@asynchronous
async def test_a_session_that_cannot_go_on_is_told() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        told = Told(connection)
        session = await connection.session()
        server.say(frames.SessionGone(session=SESSION, code="session.stale", text="it goes on elsewhere"))
        error = await told.one()
        assert isinstance(error, antiphon.SessionClosed) and "it goes on elsewhere" in str(error)
        assert session.closed


@asynchronous
async def test_a_non_persistent_message_that_is_refused_is_told() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        told = Told(connection)
        session = await connection.session()
        server.hold()
        server.judge = lambda header, payload: ConfirmItem(header.number, 1, OutcomeCode.NO_DESTINATION)
        sending = asyncio.ensure_future(session.producer(QUEUE).send(b"x", persistent=False))
        await server.until(lambda: len(server.published()) == 1)
        taken = ConfirmItem(server.published()[0][0].number, 1, OutcomeCode.TAKEN)
        server.say(frames.Confirm(session=SESSION, channel="a", items=(taken,)))
        await sending
        server.release()
        error = await told.one()
        assert isinstance(error, antiphon.PublishRefused)
        assert str(error).startswith("1 non-persistent message for channel a: the message was not stored")
        assert session.unstored == 1


@asynchronous
async def test_a_non_persistent_message_that_may_be_lost_is_told_with_its_id() -> None:
    async with serving() as server:
        connection = await antiphon.connect(server.url, reconnect=0)
        told = Told(connection)
        session = await connection.session()
        server.hold()
        sending = asyncio.ensure_future(session.producer(QUEUE).send(b"x", persistent=False))
        await server.until(lambda: len(server.published()) == 1)
        taken = ConfirmItem(server.published()[0][0].number, 1, OutcomeCode.TAKEN)
        server.say(frames.Confirm(session=SESSION, channel="a", items=(taken,)))
        receipt = await sending
        lost = asyncio.Event()
        connection.on_lost = lost.set
        server.drop()
        await lost.wait()
        uncertain, over = told.errors
        assert isinstance(uncertain, antiphon.PublishUncertain)
        assert uncertain.message_ids == (receipt.message_id,)
        assert isinstance(over, antiphon.NotConnected)
