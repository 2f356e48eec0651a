"""Message: a light view of one row."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.batch import Batch, BatchBuilder
from antiphon.errors import LocalError
from antiphon.ids import parse_message_id
from antiphon.message import Handover, Message, messages_of

DELIVERY = Handover(channel="main", destination="queue:orders", first_sequence=100)


def two_messages() -> Batch:
    builder = BatchBuilder()
    builder.add(b"plain", timestamp_ms=1_700_000_000_250)
    builder.add(
        {"total": 12.5},
        {"region": "EU"},
        timestamp_ms=1_700_000_000_500,
        priority=9,
        expires_ms=1_700_000_060_000,
        deliver_at_ms=1_700_000_001_000,
        key="k",
        correlation_id="c",
        reply_to="queue:answers",
        type="order",
        persistent=False,
    )
    return builder.build(producer=0xA1, first_number=7)


def test_a_message_shows_what_was_sent() -> None:
    message = Message(two_messages(), 1, DELIVERY)
    assert message.body == {"total": 12.5}
    assert message.properties == {"region": "EU"}
    assert message.timestamp == 1_700_000_000.5
    assert (message.expires, message.deliver_at) == (1_700_000_060.0, 1_700_000_001.0)
    assert (message.priority, message.persistent) == (9, False)
    assert (message.key, message.correlation_id) == ("k", "c")
    assert (message.reply_to, message.type) == ("queue:answers", "order")


def test_what_was_not_said_has_its_default() -> None:
    message = Message(two_messages(), 0, DELIVERY)
    assert (message.body, message.properties) == (b"plain", {})
    assert (message.priority, message.persistent) == (4, True)
    assert message.expires is message.deliver_at is None
    assert message.key is message.correlation_id is message.reply_to is message.type is None


def test_rows_count_on_from_the_first_number_and_the_first_sequence() -> None:
    first, second = messages_of(two_messages(), DELIVERY)
    assert (first.sequence, second.sequence) == (100, 101)
    assert parse_message_id(first.message_id) == (0xA1, "main", 7)
    assert parse_message_id(second.message_id) == (0xA1, "main", 8)
    assert (second.channel, second.destination) == ("main", "queue:orders")


def test_a_slice_shows_the_same_messages() -> None:
    batch = two_messages()
    whole = Message(batch, 1, DELIVERY)
    part = Message(batch.slice(1, 2), 0, DELIVERY._replace(first_sequence=101))
    assert (part.message_id, part.sequence, part.body) == (whole.message_id, whole.sequence, whole.body)


@pytest.mark.parametrize(("redelivery_count", "redelivered"), [(0, False), (1, True), (5, True)])
def test_a_second_delivery_says_so(redelivery_count: int, redelivered: bool) -> None:
    message = Message(two_messages(), 0, DELIVERY._replace(redelivery_count=redelivery_count))
    assert message.redelivered is redelivered
    assert message.delivery_count == redelivery_count + 1


def test_acknowledging_is_handed_to_whoever_delivered() -> None:
    acknowledged: list[Message] = []

    async def acknowledge(message: Message) -> None:
        acknowledged.append(message)

    message = Message(two_messages(), 0, DELIVERY._replace(acknowledge=acknowledge))
    asyncio.run(message.ack())
    assert acknowledged == [message]


def test_a_message_from_nowhere_cannot_be_acknowledged() -> None:
    message = Message(two_messages(), 0, DELIVERY)
    with pytest.raises(LocalError, match="nothing to acknowledge"):
        asyncio.run(message.ack())
