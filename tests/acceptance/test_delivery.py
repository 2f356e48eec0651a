"""Queues, topics, sessions, sending and receiving, as Jakarta Messaging 3.1 has them (4, 6.2, 7, 8)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import antiphon
from tests.acceptance.scenes import (
    WAIT_S,
    Broker,
    bodies,
    browsed,
    in_session,
    in_two_sessions,
    row_of,
    taken,
)
from tests.client_scenes import numbered, run

# -- queues ----------------------------------------------------------------------------------------


def test_each_message_of_a_queue_goes_to_one_consumer_in_order(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            consumers = [await session.consumer("queue:shared", prefetch=10) for _ in range(3)]
            await session.producer("queue:shared").send_many(numbered(300))
            seen: list[list[bytes]] = [[] for _ in consumers]
            while sum(map(len, seen)) < 300:
                for consumer, mine in zip(consumers, seen, strict=True):
                    mine += [bytes(m.body_bytes) for m in await consumer.receive_many(10, timeout=0)]
            assert sorted(body for mine in seen for body in mine) == numbered(300)
            assert all(mine == sorted(mine) for mine in seen)

    run(test())


def test_each_consumer_of_a_queue_gets_what_it_selects_in_its_order(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            names = ("n < 40", "n >= 40 AND n < 80", None)
            consumers = [
                await session.consumer("queue:chosen", selector=selector, prefetch=5) for selector in names
            ]
            rows = [antiphon.Row(str(at), {"n": at * 37 % 120}) for at in range(120)]
            await session.producer("queue:chosen").send_many(rows)
            seen: list[list[int]] = [[] for _ in consumers]
            while sum(map(len, seen)) < 120:
                for consumer, mine in zip(consumers, seen, strict=True):
                    mine += [int(str(m.body)) for m in await consumer.receive_many(5, timeout=0)]
            assert all(mine == sorted(mine) for mine in seen)
            assert all(at * 37 % 120 < 40 for at in seen[0])
            assert all(40 <= at * 37 % 120 < 80 for at in seen[1])
            assert sorted(seen[0] + seen[1] + seen[2]) == list(range(120))

    run(test())


def test_of_the_consumers_of_an_exclusive_queue_one_receives_and_the_next_follows(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
            await connection.admin().create("queue:alone", exclusive=True)
            first, second = await connection.session("individual"), await connection.session()
            one, other = await first.consumer("queue:alone"), await second.consumer("queue:alone")
            await second.producer("queue:alone").send_many(numbered(30))
            messages = await taken(one, 10)
            assert [message.body for message in messages] == numbered(10)
            assert await other.receive(timeout=0) is None
            for message in messages[:5]:
                await message.ack()
            await one.close()
            again = await taken(other, 25)
            assert [message.body for message in again] == numbered(25, 5), "none overtook another"
            assert [message.delivery_count for message in again] == [2] * 5 + [1] * 20

    run(test())


def test_a_browser_takes_nothing_honours_its_selector_and_ends(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            rows = [antiphon.Row(str(at), {"n": at}) for at in range(10)]
            await session.producer("queue:looked").send_many(rows)
            for _ in range(2):
                assert await browsed(session, "queue:looked") == [str(at) for at in range(10)]
                assert await browsed(session, "queue:looked", "n >= 8") == ["8", "9"]
            messages = await taken(session.consumer("queue:looked"), 10)
            assert not any(message.redelivered for message in messages)

    run(test())


# -- topics ----------------------------------------------------------------------------------------


def test_every_subscription_has_its_own_independent_copy(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as quick, in_session(broker, "client") as slow:
            first, second = await quick.consumer("topic:copies"), await slow.consumer("topic:copies")
            await quick.producer("topic:copies").send_many(numbered(20))
            held = await bodies(second, 20)
            assert await bodies(first, 20) == held == numbered(20)
            await slow.recover()
            assert [message.delivery_count for message in await taken(second, 20)] == [2] * 20
            assert await first.receive(timeout=0) is None

    run(test())


def test_a_subscription_without_a_name_dies_with_its_consumer(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            consumer = await session.consumer("topic:passing")
            await consumer.close()
            await row_of(broker, "topic:passing", lambda row: not row["subscriptions"])
            await session.producer("topic:passing").send(b"missed")
            assert await session.consumer("topic:passing").receive(timeout=0) is None

    run(test())


def test_a_durable_subscription_accumulates_while_nobody_consumes_it(broker: Broker) -> None:
    async def test() -> None:
        async with (
            in_session(broker, client_id="away") as session,
            session.consumer("topic:away", durable="kept"),
        ):
            pass
        async with in_session(broker) as other:
            await other.producer("topic:away").send_many(numbered(20))
        async with in_session(broker, client_id="away") as session:
            assert await bodies(session.consumer("topic:away", durable="kept"), 20) == numbered(20)

    run(test())


def test_a_durable_subscription_has_one_consumer(broker: Broker) -> None:
    async def test() -> None:
        async with in_two_sessions(broker, client_id="one") as (session, other):
            async with session.consumer("topic:one", durable="only"):
                with pytest.raises(antiphon.SubscriptionInUse):
                    await other.consumer("topic:one", durable="only")
            async with other.consumer("topic:one", durable="only"):
                pass

    run(test())


def test_a_durable_subscription_belongs_to_its_client_id(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="x") as x, in_session(broker, client_id="y") as y:
            consumers = [await one.consumer("topic:ids", durable="same") for one in (x, y)]
            await x.producer("topic:ids").send(b"m")
            assert [await bodies(consumer, 1) for consumer in consumers] == [[b"m"], [b"m"]]

    run(test())


def test_no_local_leaves_out_what_the_own_connection_publishes(broker: Broker) -> None:
    async def test() -> None:
        async with in_two_sessions(broker, client_id="local") as (session, mine), in_session(broker) as other:
            consumer = await session.consumer("topic:local", no_local=True)
            plain = await session.consumer("topic:local")
            for number, one in enumerate((session, mine, other)):
                await one.producer("topic:local").send(b"%d" % number)
            async with antiphon.connect(broker.url, timeout=WAIT_S) as connection:
                transacted = await connection.session(transacted=True)
                await transacted.producer("topic:local").send(b"3")
                await transacted.commit()
            assert await bodies(plain, 4) == [b"0", b"1", b"2", b"3"]
            assert await bodies(consumer, 2) == [b"2", b"3"]
            assert await consumer.receive(timeout=0) is None

    run(test())


def test_no_local_of_a_durable_subscription_goes_by_the_client_id(broker: Broker) -> None:
    async def test() -> None:
        async with (
            in_session(broker, client_id="mine") as session,
            session.consumer("topic:mine", durable="s", no_local=True),
        ):
            pass
        async with in_session(broker, client_id="mine") as session, in_session(broker) as other:
            await session.producer("topic:mine").send(b"own, on another connection")
            await other.producer("topic:mine").send(b"m")
            async with session.consumer("topic:mine", durable="s", no_local=True) as consumer:
                assert await bodies(consumer, 1) == [b"m"]
                assert await consumer.receive(timeout=0) is None
            await other.producer("topic:mine").send(b"before")
            async with session.consumer("topic:mine", durable="s") as consumer:
                await session.producer("topic:mine").send(b"after")
                assert await bodies(consumer, 1) == [b"after"], "it began anew"

    run(test())


def test_a_durable_subscription_that_is_used_is_no_local_or_not(broker: Broker) -> None:
    async def test() -> None:
        async with in_two_sessions(broker, client_id="firm") as (session, other):
            async with session.consumer("topic:firm", durable="s"):
                with pytest.raises(antiphon.SubscriptionInUse):
                    await other.consumer("topic:firm", durable="s", no_local=True)
            async with other.consumer("topic:firm", durable="s", no_local=True):
                pass

    run(test())


def test_names_of_subscriptions_have_at_least_the_letters_and_the_length_that_they_must(
    broker: Broker,
) -> None:
    names = ["aZ09_.-" + "x" * 121, "x" * 128, ".", "-_-"]

    async def test() -> None:
        async with in_session(broker, client_id="names") as session:
            for name in names:
                for options in ({"durable": name}, {"shared": name}):
                    consumer = await session.consumer("topic:names", **options)  # type: ignore[arg-type]
                    await session.producer("topic:names").send(name)
                    assert await bodies(consumer, 1) == [name]
                    await consumer.close()
                await session.unsubscribe(name)

    run(test())


def test_a_client_id_is_of_one_connection(broker: Broker) -> None:
    async def test() -> None:
        async with antiphon.connect(broker.url, client_id="single", timeout=WAIT_S):
            with pytest.raises(antiphon.ClientIdInUse):
                await antiphon.connect(broker.url, client_id="single", timeout=WAIT_S)
        async with antiphon.connect(broker.url, client_id="single", timeout=WAIT_S):
            pass

    run(test())


def test_a_durable_subscription_without_a_client_id_is_refused_unless_it_is_shared(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            with pytest.raises(antiphon.AntiphonError):
                await session.consumer("topic:nobody", durable="s")
            await session.consumer("topic:nobody", durable="s", shared=True)

    run(test())


@pytest.mark.parametrize("options", [{"shared": "workers"}, {"durable": "audit", "shared": True}], ids=str)
def test_consumers_of_any_connections_share_a_subscription(broker: Broker, options: dict[str, Any]) -> None:
    topic = f"topic:shared.{len(options)}"

    async def test() -> None:
        async with in_session(broker) as one, in_session(broker) as two, in_session(broker) as publisher:
            consumers = [await session.consumer(topic, **options, prefetch=5) for session in (one, two, two)]
            alone = await publisher.consumer(topic)
            await publisher.producer(topic).send_many(numbered(300))
            parts = await asyncio.gather(*(bodies(consumer, 50) for consumer in consumers))
            rest = numbered(300)
            for part in parts:
                assert part == sorted(part, key=numbered(300).index), "each gets its part in order"
                rest = [body for body in rest if body not in part]
            assert len(rest) == 150, "no message came to two of them"
            await consumers[0].close()
            await consumers[1].close()
            assert sorted(await bodies(consumers[2], 150)) == sorted(rest)
            assert await bodies(alone, 300) == numbered(300)

    run(test())


def test_a_shared_subscription_without_durable_dies_with_its_last_consumer(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as one, in_session(broker) as two:
            consumers = [await session.consumer("topic:last", shared="workers") for session in (one, two)]
            await consumers[0].close()
            producer = one.producer("topic:last")
            await producer.send(b"a")
            assert await bodies(consumers[1], 1) == [b"a"]
            row = await row_of(broker, "topic:last", lambda row: True)
            (subscription,) = row["subscriptions"]
            assert (subscription["name"], subscription["durable"], subscription["shared"]) == (
                "workers",
                False,
                True,
            )
            await consumers[1].close()
            await row_of(broker, "topic:last", lambda row: not row["subscriptions"])
            await producer.send(b"missed")
            assert await two.consumer("topic:last", shared="workers").receive(timeout=0) is None

    run(test())


def test_a_shared_durable_subscription_accumulates_while_nobody_consumes_it(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session, session.consumer("topic:sd", durable="kept", shared=True):
            pass
        async with in_session(broker) as other:
            await other.producer("topic:sd").send_many(numbered(20))
            assert await bodies(other.consumer("topic:sd", durable="kept", shared=True), 20) == numbered(20)

    run(test())


def test_shared_subscriptions_belong_to_the_client_id_if_there_is_one(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="sx") as x, in_session(broker) as nobody:
            for options in ({"shared": "same"}, {"durable": "same", "shared": True}):
                consumers = [await one.consumer("topic:sids", **options) for one in (x, nobody)]
                await x.producer("topic:sids").send(b"m")
                assert [await bodies(consumer, 1) for consumer in consumers] == [[b"m"], [b"m"]]

    run(test())


def test_a_shared_subscription_is_apart_from_a_durable_one_of_that_name(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            passing = await session.consumer("topic:apart", shared="same")
            kept = await session.consumer("topic:apart", durable="same", shared=True)
            await session.producer("topic:apart").send(b"m")
            assert [await bodies(passing, 1), await bodies(kept, 1)] == [[b"m"], [b"m"]]

    run(test())


def test_a_durable_name_is_shared_or_not_even_while_nobody_consumes_it(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="kinds") as session:
            for name, first, second in (("a", True, False), ("b", False, True)):
                async with session.consumer("topic:kinds", durable=name, shared=first):
                    pass
                with pytest.raises(antiphon.SubscriptionError):
                    await session.consumer("topic:kinds", durable=name, shared=second)

    run(test())


@pytest.mark.parametrize("shared", [True, False])
def test_a_durable_name_that_is_consumed_is_shared_or_not(broker: Broker, shared: bool) -> None:
    async def test() -> None:
        async with in_two_sessions(broker, client_id=f"kind.{shared}") as (session, other):
            consumer = await session.consumer("topic:kind", durable="s", shared=shared)
            with pytest.raises(antiphon.SubscriptionError):
                await other.consumer("topic:kind", durable="s", shared=not shared)
            await other.producer("topic:kind").send(b"m")
            assert await bodies(consumer, 1) == [b"m"]

    run(test())


@pytest.mark.parametrize("change", ["topic", "selector"])
def test_a_shared_subscription_that_is_used_has_one_topic_and_one_selector(
    broker: Broker, change: str
) -> None:
    async def test() -> None:
        other = {"topic": ("topic:used.2", "n = 1"), "selector": ("topic:used.1", "n = 2")}[change]
        async with in_session(broker) as one, in_session(broker) as two:
            for options in ({"shared": f"w.{change}"}, {"durable": f"d.{change}", "shared": True}):
                consumer = await one.consumer("topic:used.1", **options, selector="n = 1")
                with pytest.raises(antiphon.SubscriptionInUse):
                    await two.consumer(other[0], **options, selector=other[1])
                await one.producer(other[0]).send(b"before", properties={"n": int(other[1][-1])})
                await consumer.close()
                again = await two.consumer(other[0], **options, selector=other[1])
                await one.producer(other[0]).send(b"after", properties={"n": int(other[1][-1])})
                assert await bodies(again, 1) == [b"after"], "it began anew"

    run(test())


def test_another_topic_begins_an_idle_durable_subscription_anew(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="moved") as session:
            async with session.consumer("topic:moved.1", durable="s"):
                with pytest.raises(antiphon.SubscriptionInUse):
                    await session.consumer("topic:moved.2", durable="s")
            async with session.consumer("topic:moved.2", durable="s") as consumer:
                await session.producer("topic:moved.2").send(b"m")
                assert await bodies(consumer, 1) == [b"m"]
            await row_of(broker, "topic:moved.1", lambda row: not row["subscriptions"])

    run(test())


def test_another_selector_begins_an_idle_durable_subscription_anew(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, client_id="anew") as session:
            async with session.consumer("topic:anew", durable="s", selector="n = 1"):
                with pytest.raises(antiphon.SubscriptionInUse):
                    await session.consumer("topic:anew", durable="s", selector="n = 2")
            producer = session.producer("topic:anew")
            await producer.send(b"old", properties={"n": 2})
            async with session.consumer("topic:anew", durable="s", selector="n = 2") as consumer:
                await producer.send(b"new", properties={"n": 2})
                assert await bodies(consumer, 1) == [b"new"]

    run(test())


def test_unsubscribe_deletes_the_subscription_and_is_refused_while_it_is_consumed(broker: Broker) -> None:
    async def test() -> None:
        async with in_two_sessions(broker, client_id="end") as (session, other):
            async with session.consumer("topic:end", durable="s"):
                for one in (other, session):
                    with pytest.raises(antiphon.SubscriptionInUse):
                        await one.unsubscribe("s")
            await session.producer("topic:end").send(b"waits")
            await other.unsubscribe("s")
            with pytest.raises(antiphon.SubscriptionError):
                await other.unsubscribe("s")
            assert await session.consumer("topic:end", durable="s").receive(timeout=0) is None

    run(test())


def test_a_durable_subscription_does_not_end_while_a_transaction_has_messages_of_it(broker: Broker) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(broker.url, client_id="unacked", timeout=WAIT_S) as connection,
            connection.session() as session,
            connection.session(transacted=True) as worker,
        ):
            async with worker.consumer("topic:unacked", durable="s") as consumer:
                await session.producer("topic:unacked").send(b"m")
                assert await bodies(consumer, 1) == [b"m"]
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.unsubscribe("s")
            await worker.commit()
            await session.unsubscribe("s")

    run(test())


def test_a_durable_subscription_does_not_end_while_a_session_has_not_acknowledged_its_messages(
    broker: Broker,
) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(broker.url, client_id="unsettled", timeout=WAIT_S) as connection,
            connection.session() as session,
            connection.session("client") as worker,
        ):
            consumer = await worker.consumer("topic:unsettled", durable="s")
            await session.producer("topic:unsettled").send(b"m")
            (message,) = await taken(consumer, 1)
            await consumer.close()
            for one in (session, worker):
                with pytest.raises(antiphon.SubscriptionInUse):
                    await one.unsubscribe("s")
            await message.ack()
            await session.unsubscribe("s")

    run(test())


# -- sessions, acknowledgements, transactions ------------------------------------------------------


@pytest.mark.parametrize("ack", ["auto", "dups_ok"])
def test_what_receive_returned_is_acknowledged_and_never_comes_again(broker: Broker, ack: str) -> None:
    async def test() -> None:
        name = f"queue:{ack}"
        async with in_session(broker, ack) as session:
            await session.producer(name).send_many(numbered(10))
            assert await bodies(session.consumer(name, prefetch=0), 6) == numbered(6)
        async with in_session(broker) as session:
            messages = await taken(session.consumer(name), 4)
            assert [message.body for message in messages] == numbered(4, 6)
            assert not any(message.redelivered for message in messages)

    run(test())


def test_a_client_acknowledgement_covers_all_that_the_session_was_given(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            for name in ("queue:c1", "queue:c2"):
                await session.producer(name).send_many(numbered(5))
            first, second = await session.consumer("queue:c1"), await session.consumer("queue:c2")
            await taken(first, 5)
            (*_, last) = await taken(second, 3)
            await last.ack()
            await session.recover()
            rest = await taken(second, 2)
            assert [(m.body, m.delivery_count) for m in rest] == [(b"000003", 1), (b"000004", 1)]
            assert await first.receive(timeout=0) is None

    run(test())


def test_closing_a_session_acknowledges_nothing_that_the_client_did_not(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            await session.producer("queue:left").send_many(numbered(3))
            await taken(session.consumer("queue:left"), 3)
        async with in_session(broker) as session:
            messages = await taken(session.consumer("queue:left"), 3)
            assert [(m.body, m.redelivered, m.delivery_count) for m in messages] == [
                (body, True, 2) for body in numbered(3)
            ]

    run(test())


def test_recover_restarts_at_the_first_unacknowledged_message_in_order(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            await session.producer("queue:recover").send_many(numbered(10))
            consumer = await session.consumer("queue:recover")
            messages = await taken(consumer, 4)
            await messages[-1].ack()
            await taken(consumer, 3)
            await session.recover()
            again = await taken(consumer, 6)
            assert [message.body for message in again] == numbered(6, 4)
            assert [message.delivery_count for message in again] == [2] * 3 + [1] * 3

    run(test())


def test_recover_is_of_everything_that_the_session_was_given(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            names = ("queue:all.1", "queue:all.2", "topic:all")
            consumers = [await session.consumer(name) for name in names]
            for name in names:
                await session.producer(name).send_many(numbered(5))
            for consumer in consumers:
                assert await bodies(consumer, 3) == numbered(3)
            await session.recover()
            for consumer in consumers:
                again = await taken(consumer, 5)
                assert [message.body for message in again] == numbered(5)
                assert [(m.redelivered, m.delivery_count) for m in again] == [(True, 2)] * 3 + [
                    (False, 1)
                ] * 2

    run(test())


def test_messages_of_a_closed_consumer_stay_with_the_session_until_it_acknowledges(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session, in_session(broker) as other:
            await other.producer("queue:stay").send_many(numbered(10))
            consumer = await session.consumer("queue:stay")
            messages = await taken(consumer, 4)
            await consumer.close()
            rest = await taken(other.consumer("queue:stay"), 6)
            assert [message.body for message in rest] == numbered(6, 4), "what was not seen goes to others"
            assert not any(message.redelivered for message in rest)
            await messages[0].ack()
            await row_of(broker, "queue:stay", lambda row: bool(row["acknowledged"] == 10))
            await session.recover()
            assert await other.consumer("queue:stay").receive(timeout=0) is None

    run(test())


def test_recover_returns_what_a_closed_consumer_gave(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session, in_session(broker) as other:
            await other.producer("queue:stay.2").send_many(numbered(3))
            async with session.consumer("queue:stay.2") as consumer:
                await taken(consumer, 3)
            waiting = await other.consumer("queue:stay.2")
            assert await waiting.receive(timeout=0) is None
            await session.recover()
            again = await taken(waiting, 3)
            assert [(m.body, m.delivery_count) for m in again] == [(body, 2) for body in numbered(3)]

    run(test())


def test_an_acknowledgement_of_a_message_that_is_not_the_sessions_any_more_is_refused(broker: Broker) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(broker.url, timeout=WAIT_S) as connection,
            connection.session("client") as session,
        ):
            await session.producer("queue:gone").send(b"x")
            (message,) = await taken(session.consumer("queue:gone"), 1)
            await connection.admin().purge("queue:gone")
            with pytest.raises(antiphon.AcknowledgeRefused):
                await message.ack()

    run(test())


def test_what_a_transaction_sends_is_seen_at_its_commit_and_not_after_a_rollback(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, transacted=True) as session, in_session(broker) as other:
            consumer = await other.consumer("queue:seen")
            producer = session.producer("queue:seen")
            await producer.send_many(numbered(5))
            await session.rollback()
            await producer.send_many(numbered(5, 5))
            assert await consumer.receive(timeout=0) is None
            assert await browsed(other, "queue:seen") == []
            await session.commit()
            assert await bodies(consumer, 5) == numbered(5, 5)

    run(test())


def test_a_rollback_gives_back_what_was_received_and_a_commit_acknowledges_it(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as other, in_session(broker, transacted=True) as session:
            await other.producer("queue:back").send_many(numbered(5))
            consumer = await session.consumer("queue:back")
            assert await bodies(consumer, 5) == numbered(5)
            await session.rollback()
            again = await taken(consumer, 5)
            assert [(m.body, m.delivery_count) for m in again] == [(body, 2) for body in numbered(5)]
            await session.commit()
            await row_of(broker, "queue:back", lambda row: bool(row["acknowledged"] == 5))
            await session.rollback()
            assert await consumer.receive(timeout=0) is None

    run(test())


def test_a_transaction_over_several_destinations_is_whole(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as other, in_session(broker, transacted=True) as session:
            topic = await other.consumer("topic:whole")
            await other.producer("queue:whole.in").send(b"m")
            for ends in (session.rollback, session.commit):
                await taken(session.consumer("queue:whole.in"), 1)
                for name in ("queue:whole.out", "topic:whole"):
                    await session.producer(name).send_many(numbered(3))
                assert await topic.receive(timeout=0) is None
                await ends()
            assert await bodies(topic, 3) == numbered(3)
            assert await bodies(other.consumer("queue:whole.out"), 3) == numbered(3)
            assert await other.consumer("queue:whole.in").receive(timeout=0) is None

    run(test())


def test_a_transaction_that_cannot_be_committed_is_rolled_back_whole_and_says_so(broker: Broker) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(broker.url, timeout=WAIT_S) as connection,
            connection.session(transacted=True) as session,
            connection.session() as other,
        ):
            for name in ("queue:doomed.1", "queue:doomed.2"):
                await other.producer(name).send(b"m")
            one, two = await session.consumer("queue:doomed.1"), await session.consumer("queue:doomed.2")
            assert await bodies(one, 1) == await bodies(two, 1) == [b"m"]
            await session.producer("queue:doomed.out").send(b"made of both")
            await connection.admin().purge("queue:doomed.2")
            with pytest.raises(antiphon.TransactionRolledBack):
                await session.commit()
            assert await browsed(other, "queue:doomed.out") == []
            (again,) = await taken(one, 1)
            assert (again.body, again.delivery_count) == (b"m", 2)
            assert await two.receive(timeout=0) is None
            await session.commit()

    run(test())


def test_sends_under_way_are_of_the_transaction_that_is_committed(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, transacted=True) as session, in_session(broker) as other:
            producer = await session.producer("queue:underway")
            for first in (0, 50):
                sends = [asyncio.create_task(producer.send(body)) for body in numbered(50, first)]
                await asyncio.sleep(0)
                await (session.rollback() if first == 0 else session.commit())
                await asyncio.gather(*sends)
            assert await bodies(other.consumer("queue:underway"), 50) == numbered(50, 50)

    run(test())


def test_a_session_that_is_not_transacted_has_no_commit(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            with pytest.raises(antiphon.LocalError, match="transacted"):
                await session.commit()

    run(test())


def test_a_consumer_is_given_no_more_than_its_prefetch(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "individual") as session:
            slow = await session.consumer("queue:overrun", prefetch=5)
            await session.producer("queue:overrun").send_many(numbered(50))
            await row_of(broker, "queue:overrun", lambda row: bool(row["in_flight"] == 5))
            assert await bodies(session.consumer("queue:overrun"), 45) == numbered(45, 5)
            assert await bodies(slow, 5) == numbered(5)

    run(test())


# -- sending and receiving -------------------------------------------------------------------------


def test_messages_of_one_session_keep_the_order_of_their_sends(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            producers = [session.producer("queue:fifo") for _ in range(2)]
            for at, body in enumerate(numbered(40)):
                await producers[at % 2].send(body)
            assert await bodies(session.consumer("queue:fifo"), 40) == numbered(40)

    run(test())


def test_sends_that_are_not_waited_for_are_done_in_their_order_and_mix_with_others(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            producer = await session.producer("queue:async")
            done: list[bytes] = []

            async def send(body: bytes) -> None:
                await producer.send(body)
                done.append(body)

            sends = []
            for at, body in enumerate(numbered(100)):
                if at % 10 == 9:
                    await asyncio.sleep(0)
                    await send(body)
                else:
                    sends.append(asyncio.create_task(send(body)))
            await asyncio.gather(*sends)
            assert done == numbered(100), "in the order of the sends"
            assert await bodies(session.consumer("queue:async"), 100) == numbered(100)

    run(test())


def test_a_send_to_a_destination_that_was_deleted_is_refused(broker: Broker) -> None:
    async def test() -> None:
        async with (
            antiphon.connect(broker.url, timeout=WAIT_S) as connection,
            connection.session() as session,
        ):
            for name in ("queue:deleted", "topic:deleted"):
                producer = await session.producer(name)
                await producer.send(b"x")
                await connection.admin().delete(name)
                with pytest.raises(antiphon.PublishRefused, match="does not exist any more"):
                    await producer.send(b"y")

    run(test())


def test_a_message_that_is_not_persistent_never_comes_twice(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session:
            rows = [antiphon.Row(body, persistent=at % 2 == 0) for at, body in enumerate(numbered(10))]
            await session.producer("queue:once").send_many(rows)
            consumer = await session.consumer("queue:once")
            assert await bodies(consumer, 10) == numbered(10)
        async with in_session(broker) as session:
            consumer = await session.consumer("queue:once")
            messages = await taken(consumer, 5)
            assert [message.body for message in messages] == numbered(10)[::2]
            assert await consumer.receive(timeout=0) is None

    run(test())


def test_a_destination_that_does_not_exist_is_refused_where_none_may_be_made(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker) as session:
            with pytest.raises(antiphon.DestinationError):
                await session.consumer("queue:nowhere", create=False)

    run(test())


@pytest.mark.parametrize("prefetch", [0, 1, None])
def test_a_receive_that_does_not_wait_really_asks_the_broker(broker: Broker, prefetch: int | None) -> None:
    async def test() -> None:
        async with in_session(broker) as session, in_session(broker) as other:
            name = f"queue:drain{prefetch}"
            producer = await other.producer(name)
            consumer = await session.consumer(name, prefetch=prefetch)
            assert await consumer.receive(timeout=0) is None
            for body in numbered(20):
                await producer.send(body)
                message = await consumer.receive(timeout=0)
                assert message is not None and message.body == body

    run(test())


def test_a_closed_consumer_gives_nothing_and_leaves_the_rest_to_others(broker: Broker) -> None:
    async def test() -> None:
        async with in_session(broker, "client") as session, in_session(broker) as other:
            await session.producer("queue:closed").send_many(numbered(3))
            consumer = await session.consumer("queue:closed", prefetch=0)
            (message,) = await taken(consumer, 1)
            await message.ack()
            await consumer.close()
            with pytest.raises(antiphon.ConsumerClosed):
                await consumer.receive(timeout=WAIT_S)
            assert await bodies(other.consumer("queue:closed"), 2) == numbered(2, 1)

    run(test())
