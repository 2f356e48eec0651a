"""Headers, properties, selectors and bodies, as Jakarta Messaging 3.1 has them (3.4, 3.5, 3.8 to 3.12)."""

from __future__ import annotations

import time
from typing import Any

import pytest

import antiphon
from tests.acceptance.scenes import WAIT_S, Broker, bodies, browsed, in_session, row_of, taken
from tests.client_scenes import run

# -- headers ---------------------------------------------------------------------------------------


def test_the_whole_header_arrives_as_it_was_sent(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            began = time.time()
            receipt = await session.producer("queue:header").send(
                b"x",
                priority=7,
                ttl=600,
                correlation_id="an order",
                reply_to="queue:answers",
                type="order",
                key="k",
                persistent=False,
            )
            (message,) = await taken(session.consumer("queue:header"), 1)
            assert message.destination == "queue:header"
            assert message.message_id == receipt.message_id and message.message_id.startswith("ID:")
            assert (message.priority, message.persistent, message.key) == (7, False, "k")
            assert (message.correlation_id, message.reply_to, message.type) == (
                "an order",
                "queue:answers",
                "order",
            )
            assert abs(message.timestamp - began) < WAIT_S
            assert message.expires == pytest.approx(message.timestamp + 600)

    run(test())


def test_a_correlation_id_may_be_the_id_of_a_message_and_a_reply_goes_to_a_temporary_queue(
    broker: Broker,
) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            replies = await session.temporary_queue()
            producer = session.producer("queue:correlated")
            first = await producer.send(b"x", reply_to=replies, type="über-type")
            await producer.send(b"y", correlation_id=first.message_id, reply_to="topic:answers")
            one, other = await taken(session.consumer("queue:correlated"), 2)
            assert (one.reply_to, one.type, one.correlation_id) == (replies, "über-type", None)
            assert (other.reply_to, other.type, other.correlation_id) == (
                "topic:answers",
                None,
                first.message_id,
            )

    run(test())


def test_a_redelivered_message_says_so_and_counts_its_deliveries(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            await session.producer("queue:again").send(b"x")
            consumer = await session.consumer("queue:again")
            for count in (1, 2, 3):
                (message,) = await taken(consumer, 1)
                assert (message.redelivered, message.delivery_count) == (count > 1, count)
                await session.recover()

    run(test())


def test_the_defaults_are_priority_4_persistent_no_expiry_and_no_delay(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            await session.producer("queue:defaults").send(b"x")
            (message,) = await taken(session.consumer("queue:defaults"), 1)
            assert (message.priority, message.persistent) == (4, True)
            assert message.expires is message.deliver_at is None

    run(test())


def test_expiry_counts_from_the_send_and_not_from_the_commit(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, transacted=True) as session, in_session(broker) as other:
            producer = session.producer("queue:expiry")
            await producer.send(b"short", ttl=0.03)
            await producer.send(b"long", ttl=600)
            sent_by = time.time()
            await row_of(broker, "queue:expiry", lambda row: time.time() > sent_by + 0.03)
            await session.commit()
            (message,) = await taken(other.consumer("queue:expiry"), 1)
            assert message.body == b"long"
            assert message.timestamp <= sent_by and message.expires == pytest.approx(message.timestamp + 600)
            await row_of(broker, "queue:expiry", lambda row: bool(row["expired"] == 1))

    run(test())


def test_a_delivery_time_counts_from_the_send_and_not_from_the_commit(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, transacted=True) as session, in_session(broker) as other:
            await session.producer("queue:delayed.commit").send(b"soon", delay=0.2)
            sent_by = time.time()
            await row_of(broker, "queue:delayed.commit", lambda row: time.time() > sent_by + 0.3)
            await session.commit()
            (message,) = await taken(other.consumer("queue:delayed.commit"), 1)
            assert message.timestamp <= sent_by
            assert message.deliver_at == pytest.approx(message.timestamp + 0.2)

    run(test())


@pytest.mark.parametrize("destination", ["queue:expired", "topic:expired"])
def test_an_expired_message_is_destroyed_and_not_received(broker: Broker, destination: str) -> None:
    async def test() -> None:
        durable = "kept" if destination.startswith("topic:") else None
        async with in_session(broker, client_id="expiry") as session:
            async with session.consumer(destination, durable=durable):
                pass
            producer = session.producer(destination)
            await producer.send(b"short", ttl=0.03)
            await producer.send(b"for ever")
            await row_of(broker, destination, lambda row: bool(row["expired"] == 1))
            consumer = await session.consumer(destination, durable=durable)
            assert await bodies(consumer, 1) == [b"for ever"]
            assert await consumer.receive(timeout=0) is None

    run(test())


@pytest.mark.parametrize("destination", ["queue:priority", "topic:priority"])
def test_expedited_messages_go_before_normal_ones_and_equal_ones_in_their_order(
    broker: Broker, destination: str
) -> None:
    async def test() -> None:
        durable = "kept" if destination.startswith("topic:") else None
        async with in_session(broker, client_id="priority") as session:
            async with session.consumer(destination, durable=durable):
                pass
            producer = session.producer(destination)
            for first in (0, 30):
                # Both delivery modes, and several sends.
                rows = [
                    antiphon.Row(str(at), priority=at % 10, persistent=at % 3 != 0)
                    for at in range(first, first + 30)
                ]
                await producer.send_many(rows)
            await row_of(broker, destination, lambda row: bool(row["messages"] == 60))
            wanted = sorted(range(60), key=lambda at: (-(at % 10), at))
            consumer = session.consumer(destination, durable=durable, prefetch=1)
            assert [int(body) for body in await bodies(consumer, 60)] == wanted

    run(test())


def test_an_urgent_message_comes_next_and_what_came_back_keeps_its_place(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            producer = session.producer("queue:urgent")
            await producer.send_many([b"1", b"2", b"3"])
            consumer = await session.consumer("queue:urgent", prefetch=0)
            assert await bodies(consumer, 1) == [b"1"]
            await producer.send(b"urgent", priority=9)
            assert await bodies(consumer, 1) == [b"urgent"]
            await session.recover()
            assert await bodies(consumer, 4) == [b"urgent", b"1", b"2", b"3"]

    run(test())


def test_a_message_is_neither_delivered_nor_browsed_before_its_delivery_time(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            consumer = await session.consumer("queue:delayed")
            producer = session.producer("queue:delayed")
            await producer.send(b"in an hour", delay=3_600)
            await producer.send(b"soon", delay=0.05)
            await producer.send(b"now")
            messages = await taken(consumer, 2)
            assert {message.body for message in messages} == {b"now", b"soon"}
            soon = next(message for message in messages if message.body == b"soon")
            assert soon.deliver_at == pytest.approx(soon.timestamp + 0.05)
            assert time.time() >= soon.timestamp + 0.04
            assert await consumer.receive(timeout=0) is None
            assert b"in an hour" not in await browsed(session, "queue:delayed")

    run(test())


def test_a_delayed_message_of_a_topic_goes_to_the_subscriptions_of_the_time_of_its_send(
    broker: Broker,
) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            before = await session.consumer("topic:delayed")
            await session.producer("topic:delayed").send(b"later", delay=0.1)
            after = await session.consumer("topic:delayed")
            assert await bodies(before, 1) == [b"later"]
            assert await after.receive(timeout=0) is None

    run(test())


# -- properties ------------------------------------------------------------------------------------


def test_properties_keep_their_types_exactly(broker: Broker) -> None:
    sent: dict[str, Any] = {
        "truth": True,
        "byte_": antiphon.Int8(-128),
        "short_": antiphon.Int16(32_767),
        "int_": antiphon.Int32(-(1 << 31)),
        "long_": (1 << 63) - 1,
        "float_": antiphon.Float32(0.1),
        "double_": 0.1,
        "text": "grüße",
        "empty": "",
        "raw": b"\0\xff",
        "nothing": None,
        "JMSXGroupID": "g",
        "JMSXGroupSeq": antiphon.Int32(3),
    }

    async def test() -> None:
        async with in_session(broker) as session:
            await session.producer("queue:properties").send(b"x", properties=sent)
            (message,) = await taken(session.consumer("queue:properties"), 1)
            got = message.properties
            assert got == sent
            assert {name: type(value) for name, value in got.items()} == {
                name: type(value) for name, value in sent.items()
            }

    run(test())


# -- selectors -------------------------------------------------------------------------------------

SELECTED = [
    ("  ", True),
    ("region = 'it''s'", True),
    ("region <> 'US' AND n = 7", True),
    ("N = 7", False),  # identifiers are case-sensitive
    ("n / 2 = 3", True),  # division of whole numbers
    ("n = 7.0 and price > 1.4E0", True),
    ("n = '7'", False),  # unlike types
    ("n <> '7'", False),
    ("n BETWEEN 7 AND 8 AND n NOT BETWEEN 8 AND 9", True),
    ("region IN ('a', 'it''s')", True),
    ("region NOT IN ('a', 'b')", True),
    ("rate LIKE '1_\\%' ESCAPE '\\'", True),
    ("missing IS NULL AND n IS NOT NULL", True),
    ("missing = 1", False),
    ("NOT (missing = 1)", False),  # not unknown is unknown
    ("missing = 1 OR urgent", True),
    ("missing = 1 AND NOT urgent", False),
    ("NOT urgent OR n = 7 AND price < 2", True),
    ("-n + 2 * 5 = 3", True),
    ("JMSPriority > 6 AND JMSType = 'order' AND JMSCorrelationID = 'c'", True),
    ("JMSDeliveryMode = 'PERSISTENT' AND JMSTimestamp > 0 AND JMSMessageID LIKE 'ID:%'", True),
    ("JMSDeliveryMode = 'NON_PERSISTENT'", False),
    # literals
    ("n = 0x7 AND n = 07 AND n = 7L", True),
    ("n = 7. AND price = 15E-1 AND price = +1.5 AND -57.9E2 < -95.7", True),
    ("n = 9223372036854775807", False),
    ("URGENT = true", False),
    ("urgent = TRUE and Urgent is null", True),
    # precedence, from the left, and unary signs
    ("NOT urgent = FALSE AND n = 7", True),
    ("TRUE OR FALSE AND FALSE", True),
    ("(TRUE OR FALSE) AND FALSE", False),
    ("n - 2 - 1 = 4 AND 2 + n * 2 = 16 AND n / 2 * 2 = 6", True),
    ("- -n = 7 AND +n > -n", True),
    # unlike types
    ("urgent = 'TRUE' OR urgent <> 'TRUE'", False),
    ("digits = 7 OR digits <> 7", False),
    ("n > price AND price < n", True),
    # null
    ("missing IN ('a') OR missing NOT IN ('a')", False),
    ("missing LIKE '%' OR missing NOT LIKE '%'", False),
    ("missing BETWEEN 1 AND 2 OR NOT (missing BETWEEN 1 AND 2)", False),
    ("NOT (missing = 1 AND NOT urgent)", True),
    ("NOT (missing = 1 OR urgent)", False),
    ("missing IS NOT NULL OR nothing IS NOT NULL", False),
    # patterns
    ("region LIKE 'i_''s' AND region LIKE '%s' AND region NOT LIKE '_' AND region LIKE '%''%'", True),
    ("region LIKE 'I%'", False),
    # whitespace, and names
    ("\tn\n=\r7\f", True),
    ("$cost_1 = 3 AND _x = 4 AND grüße = 'ß'", True),
    ("JMSXGroupID = 'g' AND JMSXGroupSeq = 2", True),
]


def test_a_selector_says_which_messages_come(broker: Broker) -> None:
    properties: dict[str, Any] = {
        "region": "it's", "n": 7, "price": 1.5, "urgent": True, "rate": "15%", "digits": "7", "nothing": None,
        "$cost_1": 3, "_x": 4, "grüße": "ß", "JMSXGroupSeq": antiphon.Int32(2),
    }  # fmt: skip

    async def test() -> None:
        async with antiphon.connect(broker.url) as connection:
            # The message comes back more often than a queue's limit allows.
            await connection.admin().create("queue:selected", redelivery_limit=0)
        async with in_session(broker, "individual") as session:
            await session.producer("queue:selected").send(
                b"x", properties=properties, priority=7, type="order", correlation_id="c", key="g"
            )
            for selector, matches in SELECTED:
                seen = await browsed(session, "queue:selected", selector)
                assert seen == ([b"x"] if matches else []), f"browsing: {selector}"
                async with session.consumer("queue:selected", selector=selector) as consumer:
                    message = await consumer.receive(timeout=WAIT_S if matches else 0)
                    assert (message is not None) == matches, selector

    run(test())


@pytest.mark.parametrize(
    "selector",
    [
        "n =",
        "n LIKE 5",
        "n > 'a'' AND",
        "(n = 1",
        "n != 1",
        "n IN (1, 2)",
        "n LIKE 'a' ESCAPE 'ab'",
        "region > 'a'",
        "n + 1 IS NULL",
        "NULL = 1",
        "n = 9223372036854775808",
        "n = 1 /* a comment */",
        # headers that selectors do not know
        "JMSExpiration > 0",
        "JMSReplyTo = 'queue:a'",
        "JMSDestination = 'queue:a'",
        "JMSRedelivered",
    ],
)
def test_what_is_no_selector_is_refused_when_it_is_presented(broker: Broker, selector: str) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            with pytest.raises(antiphon.InvalidSelector):
                await session.consumer("queue:refused", selector=selector)
            with pytest.raises(antiphon.InvalidSelector):
                session.browse("queue:refused", selector=selector)

    run(test())


def test_messages_of_a_queue_that_do_not_match_stay_for_others(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            rows = [antiphon.Row(str(at), {"odd": at % 2 == 1}) for at in range(20)]
            await session.producer("queue:odd").send_many(rows)
            odd = await session.consumer("queue:odd", selector="odd")
            assert [int(body) for body in await bodies(odd, 10)] == list(range(1, 20, 2))
            assert await odd.receive(timeout=0) is None
            rest = await bodies(session.consumer("queue:odd"), 10)
            assert [int(body) for body in rest] == list(range(0, 20, 2))

    run(test())


def test_messages_that_are_picked_from_many_are_those_that_were_sent(broker: Broker) -> None:
    """Each with its own place in the order and its own id; what is given back comes again in its place."""

    async def test() -> None:
        async with in_session(broker, "individual") as session:
            rows = [antiphon.Row(str(at), {"part": at % 7}) for at in range(700)]
            receipts = await session.producer("queue:picked").send_many(rows)
            async with session.consumer("queue:picked", selector="part = 3") as consumer:
                first = await taken(consumer, 100)
                assert [int(message.body) for message in first] == list(range(3, 700, 7))
                for message in first:
                    receipt = receipts[int(message.body)]
                    assert (message.sequence, message.message_id) == (receipt.sequence, receipt.message_id)
                    assert message.properties == {"part": 3}
                for message in first[::2]:
                    await message.ack()
            again = await taken(session.consumer("queue:picked", selector="part = 3"), 50)
            assert [message.sequence for message in again] == [one.sequence for one in first[1::2]]
            assert all(message.redelivered for message in again)
            rest = await taken(session.consumer("queue:picked", prefetch=1_000), 600)
            assert [int(message.body) for message in rest] == [at for at in range(700) if at % 7 != 3]

    run(test())


def test_messages_of_a_topic_that_do_not_match_never_enter_the_subscription(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="choosy") as session:
            async with session.consumer("topic:odd", durable="odd", selector="odd"):
                pass
            rows = [antiphon.Row(str(at), {"odd": at % 2 == 1}) for at in range(20)]
            await session.producer("topic:odd").send_many(rows)
            await row_of(broker, "topic:odd", lambda row: row["subscriptions"][0]["backlog"] == 10)
            consumer = session.consumer("topic:odd", durable="odd", selector="odd")
            assert [int(body) for body in await bodies(consumer, 10)] == list(range(1, 20, 2))

    run(test())


# -- bodies ----------------------------------------------------------------------------------------

BODIES: list[Any] = [
    "",
    "grüße",
    None,
    b"",
    b"\0\xff",
    {},
    {"a": antiphon.Int8(1), "b": [1.5, None], "c": b"x"},
    [],
    [antiphon.Int32(1), antiphon.Float32(0.5), "x", {"y": True}],
    bytes(1_000_000),
    "x" * 1_000_000,
]


def test_every_kind_of_body_keeps_its_type_and_value(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            await session.producer("queue:bodies").send_many(BODIES)
            consumer = session.consumer("queue:bodies")
            for sent in BODIES:
                (got,) = await bodies(consumer, 1)

                assert got == sent and _types(got) == _types(sent)

    run(test())


def _types(value: Any) -> Any:
    """The type of a body, with those of its parts."""
    if isinstance(value, dict):
        return {name: _types(part) for name, part in value.items()}
    return [_types(part) for part in value] if isinstance(value, list) else type(value)


def test_a_redelivered_message_is_the_original_whatever_its_consumer_changed(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            await session.producer("queue:original").send({"a": [1]}, properties={"p": "q"})
            consumer = await session.consumer("queue:original")
            (message,) = await taken(consumer, 1)
            assert isinstance(message.body, dict)
            message.body["a"] = "changed"
            message.properties["p"] = "changed"
            await session.recover()
            (again,) = await taken(consumer, 1)
            assert (again.body, again.properties, again.redelivered) == ({"a": [1]}, {"p": "q"}, True)

    run(test())
