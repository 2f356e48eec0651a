"""Messages whose fate was not known, sent again under the ids they have."""

from __future__ import annotations

import asyncio
import json
import pickle

import pytest

import antiphon
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem, OutcomeCode, Publish
from tests.unit.client.fake_server import SESSION, FakeServer, asynchronous, serving

QUEUE = "queue:a"
ID = f"ID:{SESSION:032x}-1@a"


async def uncertain_send(server: FakeServer, producer: antiphon.Producer) -> antiphon.PublishUncertain:
    """A message that the server has, and of which its producer does not know."""
    server.hold()
    with pytest.raises(antiphon.PublishUncertain) as uncertain:
        await producer.send(b"x", timeout=0.05)
    return uncertain.value


@asynchronous
async def test_a_message_on_its_way_is_only_waited_for() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        error = await uncertain_send(server, await session.producer(QUEUE))
        again = asyncio.create_task(error.resend(timeout=60))
        await asyncio.sleep(0)
        server.release()
        receipt = await again
        assert (receipt.message_id, receipt.sequence) == (ID, 1)
        assert len(server.commands) == 1


@asynchronous
async def test_an_outcome_that_came_late_is_told_at_once() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        error = await uncertain_send(server, producer)
        server.release()
        await producer.send(b"y")
        assert (await error.resend(timeout=60)).sequence == 1
        assert (await error.resend(timeout=60)).sequence == 1


@asynchronous
async def test_a_message_that_stays_uncertain_may_be_sent_again_once_more() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        error = await uncertain_send(server, await session.producer(QUEUE))
        with pytest.raises(antiphon.PublishUncertain, match=r"not known within 0\.05 s") as still:
            await error.resend()
        assert still.value.message_ids == (ID,)
        server.release()
        assert (await still.value.resend(timeout=60)).message_id == ID


@asynchronous
async def test_a_refused_message_is_refused_again() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        server.judge = lambda header, payload: ConfirmItem(
            header.number, header.count, OutcomeCode.REFUSED, 0, "full"
        )
        error = await uncertain_send(server, await session.producer(QUEUE))
        server.release()
        with pytest.raises(antiphon.PublishRefused, match="full"):
            await error.resend(timeout=60)


@asynchronous
async def test_a_connection_that_is_over_is_replaced_and_the_session_adopted() -> None:
    async with serving() as server:
        async with antiphon.connect(server.url, reconnect=0) as connection:
            session = await connection.session()
            error = await uncertain_send(server, await session.producer(QUEUE))
            server.drop()
            await server.until(lambda: server.peers[0].is_gone)
        assert connection.closed
        server.release()
        server.answers = {"session": json.dumps({"generation": 4, "last": 1})}
        receipt = await error.resend(timeout=60)
        assert (receipt.message_id, receipt.sequence) == (ID, 1)
        adopted = server.heard_of(frames.SessionOpen)[-1]
        assert (adopted.session, adopted.generation, adopted.channels) == (SESSION, 5, ("a",))
        assert adopted.known == (1,), "a row that was made since then is not the session that sent it"
        header, _ = server.commands[-1]
        assert (header.number, header.generation, header.confirmed_through) == (1, 5, 0)
        await server.until(lambda: server.peers[-1].is_gone)


@asynchronous
async def test_a_message_of_a_session_that_expired_stays_uncertain() -> None:
    async with serving() as server:
        async with antiphon.connect(server.url, reconnect=0) as connection:
            session = await connection.session()
            error = await uncertain_send(server, await session.producer(QUEUE))
            server.drop()
            await server.until(lambda: server.peers[0].is_gone)
        server.answers = {"session": "{}"}
        with pytest.raises(antiphon.PublishUncertain, match="expired") as still:
            await error.resend(timeout=60)
        assert still.value.message_ids == (ID,)


@asynchronous
async def test_many_messages_are_sent_again_together() -> None:
    async with serving(window_bytes=4_000) as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        await producer.send(b"first")
        server.hold()
        with pytest.raises(antiphon.PublishUncertain) as uncertain:
            await producer.send_many([bytes(500)] * 50, timeout=0.05)
        error = uncertain.value
        left = len(error.message_ids)
        assert error.confirmed == 0 and 1 < left < 50
        server.release()
        receipts = await error.resend(timeout=60)
        assert [receipt.message_id for receipt in receipts] == list(error.message_ids)
        assert [receipt.sequence for receipt in receipts] == list(range(2, left + 2))


def test_an_error_from_another_process_does_not_know_the_message() -> None:
    error = pickle.loads(pickle.dumps(antiphon.PublishUncertain("why", message_ids=[ID])))
    assert error.message_id == ID
    with pytest.raises(antiphon.LocalError, match="message_id="):
        asyncio.run(error.resend())


@asynchronous
async def test_an_error_that_is_carried_elsewhere_leaves_behind_what_is_of_this_process() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        error = await uncertain_send(server, await session.producer(QUEUE))
        assert error._again is not None
        copy = pickle.loads(pickle.dumps(error))
        assert (copy.message_ids, copy._again) == ((ID,), None)
        server.release()


# -- under an id -----------------------------------------------------------------------


@asynchronous
async def test_another_process_sends_under_the_same_id() -> None:
    id = "ID:000000000000000000000000000000a7-12@a"
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.answers = {"session": json.dumps({"generation": 2, "last": 11})}
        receipt = await producer.send("again", properties={"n": 1}, message_id=id)
        assert (receipt.message_id, receipt.sequence) == (id, 1)
        header, payload = server.commands[-1]
        assert (header.session, header.number, header.generation) == (0xA7, 12, 3)
        assert isinstance(payload, Publish)
        # And once more, on the same connection.
        receipt = await producer.send("again", properties={"n": 1}, message_id=id)
        assert (receipt.message_id, receipt.sequence) == (id, 1)
        # Its own session is not disturbed.
        await producer.send(b"mine")


@asynchronous
async def test_an_id_of_a_session_that_expired_leaves_it_uncertain() -> None:
    id = "ID:000000000000000000000000000000a7-12@a"
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        server.answers = {"session": "{}"}
        with pytest.raises(antiphon.PublishUncertain, match="expired") as uncertain:
            await session.producer(QUEUE).send(b"x", message_id=id)
        assert uncertain.value.message_id == id


@asynchronous
async def test_an_id_whose_outcome_does_not_come_leaves_it_uncertain() -> None:
    id = "ID:000000000000000000000000000000a7-12@a"
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        producer = await session.producer(QUEUE)
        server.answers = {"session": json.dumps({"generation": 2, "last": 11})}
        server.hold()
        with pytest.raises(antiphon.PublishUncertain, match=r"within 0\.05 s") as uncertain:
            await producer.send(b"x", message_id=id, timeout=0.05)
        assert uncertain.value.message_id == id


@pytest.mark.parametrize(
    ("id", "error", "words"),
    [
        ("nonsense", antiphon.InvalidName, "not a message id"),
        (f"ID:{7:032x}-0@a", antiphon.InvalidName, "numbered from 1"),
        (f"ID:{7:032x}-1@b", antiphon.LocalError, "channel 'b'"),
        (ID, antiphon.LocalError, "open here"),
    ],
)
@asynchronous
async def test_an_id_that_cannot_be_sent_under_is_refused(
    id: str, error: type[Exception], words: str
) -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session()
        with pytest.raises(error, match=words):
            await session.producer(QUEUE).send(b"x", message_id=id)
        assert server.commands == []
