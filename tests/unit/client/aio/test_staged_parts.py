"""A part that is written batch by batch: columns that are there already, for several destinations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import antiphon
from antiphon.batch import Batch
from antiphon.wire import frames
from antiphon.wire.commands import OutcomeCode, Publish
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import (
    STAGED_BYTES_MAX,
    STAGED_MESSAGES_MAX,
    TRANSACTED_NUMBER,
    DropStaged,
    StagedPublish,
)
from tests.unit.client.aio.test_staging import staging_at
from tests.unit.client.aio.test_transactions import SOON_S, refusing, wishes
from tests.unit.client.fake_server import SESSION, asynchronous, serving


def columns(*bodies: bytes) -> Batch:
    """As somebody makes them who knows nothing of sessions and numbers."""
    return Batch.of_bodies(bodies, 0, 0, 5)


@asynchronous
async def test_batches_go_to_several_destinations_and_channels_under_one_part() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.places["queue:b"] = "b"
        async with staging.writer(time_limit=60) as writer:
            await writer.write("queue:a", columns(b"1", b"2"))
            await writer.write("queue:other", columns(b"3"))
            await writer.write("queue:b", columns(b"4"))
            await writer.write("queue:a", columns(b"5"))
            part = await writer.seal()
        staged = wishes(server, StagedPublish)
        assert {(wish.part, wish.application, wish.seconds) for wish in staged} == {(part.id, "report", 60)}
        assert [(wish.index, wish.rows) for wish in staged] == [(0, 2), (1, 1), (0, 1), (2, 1)]
        sent = [Batch.decode(wish.batch) for wish in staged]
        assert {batch.producer for batch in sent} == {SESSION}
        numbers = [batch.first_number - TRANSACTED_NUMBER for batch in sent]
        assert numbers == [1, 3, 1, 4], "counted on in each channel"
        assert [batch.bodies() for batch in sent] == [[b"1", b"2"], [b"3"], [b"4"], [b"5"]]
        assert [tuple(piece) for piece in part.pieces] == [("a", "queue:a", 3, 4), ("b", "queue:b", 1, 1)]
        server.decide = lambda wish: (TransactionFate.COMMITTED, "")
        assert await staging.commit(7, [part]) == "committed"
        assert not wishes(server, DropStaged), "what is sealed is not dropped where the block ends"


@asynchronous
async def test_what_is_not_sealed_is_dropped_where_its_block_ends() -> None:
    async with serving() as server, staging_at(server) as staging:
        with pytest.raises(RuntimeError, match="the source broke"):
            async with staging.writer() as writer:
                await writer.write("queue:a", columns(b"1"))
                await server.until(lambda: bool(wishes(server, StagedPublish)))
                raise RuntimeError("the source broke")
        await server.until(lambda: bool(wishes(server, DropStaged)))
        assert wishes(server, DropStaged) == [DropStaged(parts=(writer._part.id,))]


@asynchronous
async def test_nothing_is_dropped_where_nothing_was_written() -> None:
    async with serving() as server, staging_at(server) as staging:
        async with staging.writer():
            pass
        async with staging.writer() as writer:
            assert (await writer.seal()).pieces == ()
        assert not wishes(server, DropStaged)


@asynchronous
async def test_sealing_waits_until_everything_is_stored() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.hold()
        async with staging.writer() as writer:
            await writer.write("queue:a", columns(b"1"))
            sealing = asyncio.create_task(writer.seal())
            done, _ = await asyncio.wait((sealing,), timeout=SOON_S)
            assert not done
            server.release()
            assert (await sealing).messages == 1
            with pytest.raises(antiphon.LocalError, match="the part is sealed"):
                await writer.write("queue:b", columns(b"2"))


@asynchronous
async def test_writing_waits_while_there_is_no_room() -> None:
    async with serving(window_bytes=4_000) as server, staging_at(server) as staging:
        server.hold()
        async with staging.writer() as writer:
            await writer.write("queue:a", columns(bytes(3_000)))
            writing = asyncio.create_task(writer.write("queue:a", columns(bytes(3_000))))
            done, _ = await asyncio.wait((writing,), timeout=SOON_S)
            assert not done
            server.release()
            await writing
            assert (await writer.seal()).messages == 2


@asynchronous
async def test_what_is_refused_says_why_and_leaves_nothing_staged() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.judge = refusing(StagedPublish, OutcomeCode.REFUSED, "report has staged 1 of 1 bytes")
        with pytest.raises(antiphon.PublishRefused, match="report has staged 1 of 1 bytes"):
            async with staging.writer() as writer:
                await writer.write("queue:a", columns(b"1"))
                await writer.seal()
        await server.until(lambda: bool(wishes(server, DropStaged)))


@asynchronous
async def test_a_part_has_room_for_what_a_spark_batch_brings() -> None:
    async with serving() as server, staging_at(server) as staging, staging.writer() as writer:
        sending = await writer._open("queue:a")
        core = sending._part
        assert core.has_room(STAGED_MESSAGES_MAX, STAGED_BYTES_MAX)
        core.rows = STAGED_MESSAGES_MAX
        with pytest.raises(antiphon.TransactionTooLarge, match="16,777,216 messages"):
            await writer.write("queue:a", columns(b"1"))
        assert not wishes(server, StagedPublish)


@asynchronous
async def test_a_reserved_name_and_a_time_that_cannot_be_are_refused() -> None:
    async with serving() as server, staging_at(server) as staging:
        with pytest.raises(antiphon.LocalError, match="time_limit is 1 to"):
            staging.writer(time_limit=0)
        async with staging.writer() as writer:
            with pytest.raises(antiphon.InvalidName, match="the system's own"):
                await writer.write("queue:_DMQ", columns(b"1"))


@asynchronous
async def test_a_producer_sends_batches_as_they_come() -> None:
    async def some() -> AsyncIterator[Batch]:
        yield columns(b"1", b"2")
        yield columns(b"3")

    async with (
        serving() as server,
        antiphon.connect(server.url) as connection,
        connection.session() as session,
    ):
        producer = session.producer("queue:a")
        receipts = await producer.send_batches(some())
        assert len(receipts) == 3 and receipts[2].sequence == receipts[0].sequence + 2
        sent = [Batch.decode(wish.batch) for wish in wishes(server, Publish)]
        assert [batch.bodies() for batch in sent] == [[b"1", b"2"], [b"3"]]
        assert [batch.first_number for batch in sent] == [1, 3]
        assert {batch.producer for batch in sent} == {SESSION}


@asynchronous
async def test_batches_are_not_sent_in_a_transaction() -> None:
    async def none() -> AsyncIterator[Batch]:
        yield columns(b"1")

    async with (
        serving() as server,
        antiphon.connect(server.url) as connection,
        connection.session(transacted=True) as session,
    ):
        with pytest.raises(antiphon.LocalError, match="outside of transactions"):
            await session.producer("queue:a").send_batches(none())
        assert not server.heard_of(frames.TransactionCommit)
