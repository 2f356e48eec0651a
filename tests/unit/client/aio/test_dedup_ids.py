"""The application's own ids on their way out, and what the receipts say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import antiphon
from antiphon.batch.layout import IDENTIFIED_ROWS_MAX
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from tests.unit.client.fake_server import asynchronous, serving


def known(sequence: int) -> Any:
    return lambda header, payload: ConfirmItem(header.number, header.count, OutcomeCode.KNOWN, sequence)


@asynchronous
async def test_a_receipt_says_that_the_message_was_there_and_where() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        producer = (await connection.session()).producer("queue:a")
        first = await producer.send(b"x", dedup_id="order 1")
        assert (first.duplicate, first.sequence) == (False, 1)
        server.judge = known(1)
        again = await producer.send(b"x", dedup_id=b"order 1")
        assert (again.duplicate, again.sequence) == (True, 1)
        assert again != first and "a duplicate" in repr(again)
        assert [batch.dedup_id(0) for _, batch in server.published()] == [b"order 1", b"order 1"]


@asynchronous
async def test_receipts_of_many_tell_the_duplicates_apart() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        producer = (await connection.session()).producer("queue:a")
        server.judge = known(40)
        receipts = await producer.send_many([antiphon.Row(b"x", dedup_id=str(at)) for at in range(3)])
        assert [(one.sequence, one.duplicate) for one in receipts] == [(40, True), (41, True), (42, True)]
        assert receipts.duplicates == 3
        server.judge = lambda header, payload: None
        assert (await producer.send_many([b"a", b"b"])).duplicates == 0


@pytest.mark.parametrize("id", ["", b"", "x" * 256, 5, "\ud800"])
@asynchronous
async def test_an_id_that_cannot_be_is_refused_before_anything_is_sent(id: Any) -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        producer = (await connection.session()).producer("queue:a")
        with pytest.raises(antiphon.InvalidMessage, match="dedup_id"):
            await producer.send(b"x", dedup_id=id)
        with pytest.raises(antiphon.InvalidMessage, match="dedup_id"):
            await producer.send_many([antiphon.Row(b"x", dedup_id=id)])
        assert not server.published()


@asynchronous
async def test_batches_with_ids_have_no_more_rows_than_they_may() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        producer = await (await connection.session()).producer("queue:a")
        many = 2 * IDENTIFIED_ROWS_MAX + 10
        rows: list[Any] = ["plain"] * many + [antiphon.Row(b"", dedup_id=str(at)) for at in range(many)]
        rows += ["plain"] * many
        assert len(await producer.send_many(rows)) == 3 * many
        counts = [(batch.count, batch.has_ids) for _, batch in server.published()]
        assert sum(count for count, _ in counts) == 3 * many
        assert all(count <= IDENTIFIED_ROWS_MAX for count, has_ids in counts if has_ids)
        server.commands.clear()
        sends = [producer.send("plain" * 3) for _ in range(IDENTIFIED_ROWS_MAX + 5)]
        sends += [producer.send(b"", dedup_id=str(at)) for at in range(many)]
        await asyncio.gather(*sends)
        counts = [(batch.count, batch.has_ids) for _, batch in server.published()]
        assert sum(count for count, _ in counts) == len(sends)
        assert all(count <= IDENTIFIED_ROWS_MAX for count, has_ids in counts if has_ids)


@asynchronous
async def test_a_transaction_takes_ids_and_its_receipts_know_nothing_yet() -> None:
    async with (
        serving() as server,
        antiphon.connect(server.url, reconnect=0) as connection,
        connection.session(transacted=True) as session,
    ):
        producer = session.producer("queue:a")
        receipt = await producer.send(b"x", dedup_id="a")
        assert (receipt.sequence, receipt.duplicate) == (None, False)
        plain = [producer.send(b"y") for _ in range(IDENTIFIED_ROWS_MAX + 5)]
        await asyncio.gather(producer.send(b"z", dedup_id="b"), *plain)
        await session.commit()


@asynchronous
async def test_a_staged_message_has_no_id() -> None:
    async with (
        serving() as server,
        antiphon.connect(server.url, reconnect=0) as connection,
        connection.staging("report") as staging,
    ):
        with pytest.raises(antiphon.InvalidMessage, match="a staged message has no dedup_id"):
            await staging.stage("queue:a", [antiphon.Row(b"x", dedup_id="a")])
