"""Receiving, acknowledging, and giving back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from tests.unit.client.fake_server import SESSION, FakeServer, asynchronous, serving


@asynccontextmanager
async def consuming(
    *bodies: bytes, ack: Any = "auto", prefetch: int | None = None, **options: Any
) -> AsyncIterator[tuple[FakeServer, antiphon.Session, antiphon.Consumer]]:
    """A consumer of a queue that has these bodies, numbered from 1."""
    async with serving(**options) as server, antiphon.connect(server.url, reconnect=0) as connection:
        if bodies:
            server.fill("queue:a", list(bodies))
        async with connection.session(ack=ack) as session:
            yield server, session, session.consumer("queue:a", prefetch=prefetch)


def ranges(*pairs: tuple[int, int]) -> Ranges:
    return Ranges(pairs)


# -- receiving -----------------------------------------------------------------------


@asynchronous
async def test_messages_are_received_in_order() -> None:
    async with consuming(b"a", b"b", b"c") as (_, _, consumer):
        received = [await consumer.receive(timeout=60) for _ in range(3)]
        assert [message.body for message in received if message] == [b"a", b"b", b"c"]
        assert [message.sequence for message in received if message] == [1, 2, 3]
        assert [message.destination for message in received if message] == ["queue:a"] * 3


@asynchronous
async def test_nothing_within_the_time_is_none() -> None:
    async with consuming() as (_, _, consumer):
        assert await consumer.receive(timeout=0.01) is None
        assert await consumer.receive(timeout=0) is None
        assert await consumer.receive_many(5, timeout=0.01) == []


@asynchronous
async def test_receiving_waits_for_what_comes_later() -> None:
    async with consuming() as (server, _, consumer):
        await consumer
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        server.fill("queue:a", [b"late"])
        message = await receiving
        assert message is not None and message.body == b"late"


@asynchronous
async def test_many_are_received_at_once_and_fewer_when_time_is_over() -> None:
    async with consuming(*[b"x"] * 25) as (_, _, consumer):
        assert [message.sequence for message in await consumer.receive_many(10)] == list(range(1, 11))
        assert len(await consumer.receive_many(100, timeout=0.05)) == 15
        assert await consumer.receive_many(0) == []


@asynchronous
async def test_more_than_the_prefetch_can_be_received_at_once() -> None:
    async with consuming(*[b"x"] * 100, prefetch=7) as (_, _, consumer):
        messages = await consumer.receive_many(100, timeout=60)
        assert [message.sequence for message in messages] == list(range(1, 101))


@asynchronous
async def test_no_more_than_the_prefetch_is_sent_ahead() -> None:
    async with consuming(*[b"x"] * 100, prefetch=10) as (server, _, consumer):
        await consumer
        (attached,) = server.consumers.values()
        assert attached.delivered == 10
        await consumer.receive_many(4)
        assert server.heard_of(frames.Credit) == []
        await consumer.receive()
        await server.until(lambda: attached.delivered == 15)
        assert [credit.messages for credit in server.heard_of(frames.Credit)] == [15]


@asynchronous
async def test_large_messages_do_not_stall_the_credit() -> None:
    async with consuming() as (server, _, consumer):
        for size in [600_000] * 9 + [1 << 20] * 2:
            server.fill("queue:a", [bytes(size)])
        messages = await consumer.receive_many(11, timeout=60)
        assert len(messages) == 11


@asynchronous
async def test_several_who_wait_are_served_in_turn() -> None:
    async with consuming() as (server, _, consumer):
        await consumer
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(3)]
        await asyncio.sleep(0)
        server.fill("queue:a", [b"a", b"b", b"c"])
        messages = await asyncio.gather(*waiting)
        assert [message.body for message in messages if message] == [b"a", b"b", b"c"]


@asynchronous
async def test_a_cancelled_receive_loses_nothing() -> None:
    async with consuming(*[b"x"] * 5) as (server, _, consumer):
        await consumer
        receiving = asyncio.create_task(consumer.receive_many(10))
        other = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        receiving.cancel()
        first = await other
        assert first is not None and first.sequence == 1
        assert [message.sequence for message in await consumer.receive_many(4)] == [2, 3, 4, 5]
        assert server.acks() in ([], [ranges((1, 2))])


@pytest.mark.parametrize("prefetch", [-1, "10", 1.5, 10_000_000])
@asynchronous
async def test_a_prefetch_that_makes_no_sense_is_refused_at_once(prefetch: Any) -> None:
    async with consuming() as (_, session, _):
        with pytest.raises(antiphon.LocalError, match="prefetch"):
            session.consumer("queue:a", prefetch=prefetch)


@pytest.mark.parametrize("count", [-1, 1.5, "3"])
@asynchronous
async def test_a_number_of_messages_that_is_none_is_refused(count: Any) -> None:
    async with consuming() as (_, _, consumer):
        with pytest.raises(antiphon.LocalError, match="receive_many"):
            await consumer.receive_many(count)


# -- acknowledging in auto sessions ----------------------------------------------------


@asynchronous
async def test_a_received_message_is_acknowledged_soon() -> None:
    async with consuming(b"a", b"b") as (server, _, consumer):
        await consumer.receive()
        assert server.acks() == []
        await server.until(lambda: server.acks() == [ranges((1, 2))])


@asynchronous
async def test_messages_received_together_are_acknowledged_together() -> None:
    async with consuming(*[bytes(100)] * 3_000) as (server, _, consumer):
        for _ in range(3):
            await consumer.receive_many(1_000)
        await server.until(lambda: len(server.acks()) == 3)
        assert server.acks() == [ranges((1, 1_001)), ranges((1_001, 2_001)), ranges((2_001, 3_001))]


@asynchronous
async def test_whoever_waits_for_more_has_acknowledged_what_it_had() -> None:
    async with consuming(b"a") as (server, _, consumer):
        await consumer.receive()
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await server.until(lambda: server.acks() == [ranges((1, 2))])
        waiting.cancel()


@asynchronous
async def test_closing_a_session_waits_for_acknowledgements() -> None:
    async with consuming(b"a", b"b") as (server, session, consumer):
        await consumer.receive()
        server.hold()
        closing = asyncio.create_task(session.close())
        await server.until(lambda: len(server.acks()) == 1)
        assert server.heard_of(frames.SessionClose) == []
        assert not closing.done()
        server.release()
        await closing
        assert server.acknowledged == ranges((1, 2))
        assert len(server.heard_of(frames.SessionClose)) == 1


@asynchronous
async def test_a_session_that_cannot_confirm_its_acknowledgements_says_so() -> None:
    async with serving() as server, antiphon.connect(server.url, reconnect=0) as connection:
        server.fill("queue:a", [b"a"])
        session = await connection.session()
        consumer = await session.consumer("queue:a")
        server.hold()
        await consumer.receive()
        await server.until(lambda: len(server.acks()) == 1)
        server.drop()
        with pytest.raises(antiphon.NotConnected):
            await session.close()


@asynchronous
async def test_an_explicit_acknowledgement_in_an_auto_session_waits_for_the_automatic_one() -> None:
    async with consuming(b"a") as (server, _, consumer):
        message = await consumer.receive()
        assert message is not None
        await message.ack()
        assert server.acks() == [ranges((1, 2))]
        await message.ack()
        assert server.acks() == [ranges((1, 2))]


# -- acknowledging in other sessions ---------------------------------------------------


@asynchronous
async def test_in_a_client_session_everything_given_so_far_is_acknowledged() -> None:
    async with consuming(*[b"x"] * 5, ack="client") as (server, session, consumer):
        server.fill("queue:b", [b"y"])
        other = await session.consumer("queue:b").receive(timeout=60)
        messages = await consumer.receive_many(3)
        assert other is not None and other.sequence == 6
        await messages[1].ack()
        assert sorted(map(list, server.acks())) == [[(1, 4)], [(6, 7)]]
        await messages[2].ack()
        assert len(server.acks()) == 2, "there was nothing left to acknowledge"


@asynchronous
async def test_in_an_individual_session_only_that_message_is_acknowledged() -> None:
    async with consuming(*[b"x"] * 5, ack="individual") as (server, _, consumer):
        messages = await consumer.receive_many(5)
        await messages[3].ack()
        await asyncio.gather(messages[0].ack(), messages[1].ack())
        assert server.acks() == [ranges((4, 5)), ranges((1, 2)), ranges((2, 3))]


@asynchronous
async def test_an_acknowledgement_returns_when_it_is_confirmed() -> None:
    async with consuming(b"x", ack="individual") as (server, _, consumer):
        message = await consumer.receive()
        assert message is not None
        server.hold()
        first, again = asyncio.create_task(message.ack()), asyncio.create_task(message.ack())
        await server.until(lambda: len(server.acks()) == 1)
        assert not first.done() and not again.done()
        server.release()
        await asyncio.gather(first, again)
        assert len(server.acks()) == 1


@pytest.mark.parametrize("ack", ["client", "individual"])
@asynchronous
async def test_a_message_given_to_another_meanwhile_is_refused(ack: str) -> None:
    async with consuming(b"x", ack=ack) as (server, _, consumer):
        message = await consumer.receive()
        assert message is not None
        server.judge = lambda header, payload: ConfirmItem(header.number, 1, OutcomeCode.ACK_LOST, 1)
        with pytest.raises(antiphon.AcknowledgeRefused, match="message 1 was given to another"):
            await message.ack()


@pytest.mark.parametrize("ack", ["client", "individual"])
@asynchronous
async def test_a_message_that_the_server_says_was_given_to_another_is_refused_unasked(ack: str) -> None:
    async with consuming(b"x", b"y", b"z", ack=ack) as (server, session, consumer):
        first, second = await consumer.receive_many(2)
        (held,) = server.consumers.values()
        server.say(frames.ConsumerLost(session=held.session, consumer=1, lost=ranges((1, 2), (3, 4))))
        await session.producer("queue:b")  # its answer comes behind that
        assert await consumer.receive(timeout=0) is None, "the third was not taken yet, and is gone"
        with pytest.raises(antiphon.AcknowledgeRefused, match="message 1 was given to another"):
            await first.ack()
        await second.ack()
        assert server.acknowledged == ranges((2, 3))


@asynchronous
async def test_an_acknowledgement_learns_that_the_connection_is_lost() -> None:
    async with consuming(b"x", ack="individual") as (server, _, consumer):
        message = await consumer.receive()
        assert message is not None
        server.hold()
        acknowledging = asyncio.create_task(message.ack())
        await server.until(lambda: len(server.acks()) == 1)
        server.drop()
        with pytest.raises(antiphon.NotConnected):
            await acknowledging
        with pytest.raises(antiphon.NotConnected):
            await message.ack()
        await consumer.close()  # who acknowledged was told


# -- closing ---------------------------------------------------------------------------


@asynchronous
async def test_what_was_not_seen_goes_to_others_and_what_was_seen_comes_again_marked() -> None:
    async with consuming(*[b"x"] * 5, ack="individual") as (server, session, consumer):
        messages = await consumer.receive_many(3)
        await messages[0].ack()
        await consumer.close()
        (close,) = server.heard_of(frames.ConsumerClose)
        assert close.seen_through == 3
        again = await session.consumer("queue:a").receive_many(4, timeout=60)
        assert [(message.sequence, message.redelivered, message.delivery_count) for message in again] == [
            (2, True, 2),
            (3, True, 2),
            (4, False, 1),
            (5, False, 1),
        ]


@asynchronous
async def test_a_closed_consumer_gives_nothing() -> None:
    async with consuming(b"x") as (_, _, consumer):
        await consumer
        await consumer.close()
        await consumer.close()
        assert consumer.closed
        with pytest.raises(antiphon.ConsumerClosed):
            await consumer.receive()


@asynchronous
async def test_whoever_waits_learns_that_the_consumer_was_closed() -> None:
    async with consuming() as (_, _, consumer):
        await consumer
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(antiphon.ConsumerClosed):
            await waiting


@asynchronous
async def test_whoever_waits_learns_that_the_server_ended_the_consumer() -> None:
    async with consuming(b"x") as (server, _, consumer):
        await consumer
        server.say(
            frames.ConsumerGone(session=SESSION, consumer=1, code="local.consumer_closed", text="deleted")
        )
        with pytest.raises(antiphon.ConsumerClosed, match="deleted"):
            await consumer.receive_many(5)
        with pytest.raises(antiphon.ConsumerClosed, match="deleted"):
            await consumer.receive()


@asynchronous
async def test_whoever_waits_learns_that_the_connection_is_lost() -> None:
    async with consuming() as (server, _, consumer):
        await consumer
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        server.drop()
        with pytest.raises(antiphon.NotConnected):
            await waiting
        with pytest.raises(antiphon.NotConnected):
            await consumer.receive()


@asynchronous
async def test_a_consumer_that_is_refused_says_so_when_it_opens() -> None:
    async with consuming() as (server, _, consumer):
        server.refusals[frames.ConsumerOpen] = ("local.access_denied", "not yours")
        with pytest.raises(antiphon.AccessDenied, match="not yours"):
            await consumer
        server.refusals.clear()
        server.fill("queue:a", [b"x"])
        assert await consumer.receive(timeout=60) is not None


@asynchronous
async def test_nothing_in_a_closed_session_works_any_more() -> None:
    async with consuming(b"x") as (_, session, consumer):
        producer = await session.producer("queue:a")
        await consumer
        await session.close()
        await session.close()
        with pytest.raises(antiphon.SessionClosed):
            await producer.send(b"x")
        with pytest.raises(antiphon.ConsumerClosed):
            await consumer.receive()
        with pytest.raises(antiphon.SessionClosed):
            await session.producer("queue:b").send(b"x")
        with pytest.raises(antiphon.SessionClosed):
            await session


@asynchronous
async def test_closing_a_session_sends_what_was_just_handed_over() -> None:
    async with consuming() as (server, session, _):
        producer = await session.producer("queue:a")
        sends = [asyncio.create_task(producer.send(b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        await session.close()
        assert [receipt.sequence for receipt in await asyncio.gather(*sends)] == [1, 2, 3]
        assert isinstance(server.heard[-1], frames.SessionClose)


@asynchronous
async def test_an_exception_inside_is_not_hidden_by_the_end_of_the_connection() -> None:
    async with serving() as server:
        with pytest.raises(KeyError, match="mine"):
            async with (
                antiphon.connect(server.url, reconnect=0) as connection,
                connection.session() as session,
            ):
                server.fill("queue:a", [b"x"])
                async with session.consumer("queue:a") as consumer:
                    await consumer.receive()
                    server.drop()
                    raise KeyError("mine")


# -- whose the messages are ----------------------------------------------------------


@asynchronous
async def test_what_is_buffered_waits_until_the_server_has_said_that_it_is_ours() -> None:
    async with consuming(b"a", b"b", sure_ms=60_000, assures=False) as (server, _, consumer):
        receiving = asyncio.create_task(consumer.receive_many(2))
        await server.until(lambda: bool(server.heard_of(frames.ConsumerCheck)))
        assert not receiving.done()
        server.say(frames.Done(request=server.heard_of(frames.ConsumerCheck)[0].request))
        assert [message.body for message in await receiving] == [b"a", b"b"]
        # The word holds for a minute.
        server.fill("queue:a", [b"c"])
        assert (await consumer.receive()) is not None
        assert len(server.heard_of(frames.ConsumerCheck)) == 1


@asynchronous
async def test_who_polls_gets_what_is_there_though_it_must_be_asked_about_each_time() -> None:
    async with consuming(b"a", b"b", b"c", sure_ms=1) as (server, _, consumer):
        await consumer
        await server.until(lambda: not server.ready.get(server.destination("queue:a")))
        received = [await consumer.receive(timeout=0) for _ in range(3)]
        assert [message.body for message in received if message] == [b"a", b"b", b"c"]


@asynchronous
async def test_a_receive_that_cannot_learn_whose_its_messages_are_returns_none_and_they_stay() -> None:
    async with consuming(b"a", sure_ms=60_000, assures=False) as (server, _, consumer):
        await consumer
        await server.until(lambda: not server.ready.get(server.destination("queue:a")))
        assert await consumer.receive(timeout=0.01) is None
        server.say(frames.Done(request=server.heard_of(frames.ConsumerCheck)[0].request))
        message = await consumer.receive()
        assert message is not None and message.body == b"a"


# -- consumers that are dropped --------------------------------------------------------


@pytest.mark.parametrize("ack", ["auto", "client", "individual", "dups_ok"])
@asynchronous
async def test_a_consumer_written_twice_goes_on_where_the_first_was(ack: str) -> None:
    async with consuming(b"a", b"b", b"c", ack=ack) as (server, session, _):
        received = [await session.consumer("queue:a").receive(timeout=5) for _ in range(3)]
        assert [message.body for message in received if message] == [b"a", b"b", b"c"]
        assert len(server.heard_of(frames.ConsumerOpen)) == 1
        await session.consumer("queue:a", prefetch=7)  # not the same
        assert len(server.heard_of(frames.ConsumerOpen)) == 2


@asynchronous
async def test_a_consumer_that_is_dropped_gives_back_what_it_has_not_handed_out() -> None:
    async with consuming(*[b"%d" % number for number in range(5)]) as (server, session, _):
        first = await session.consumer("queue:a").receive(timeout=5)
        assert first is not None and first.body == b"0"
        async with antiphon.connect(server.url) as other, other.session() as another:
            messages = await another.consumer("queue:a").receive_many(4, timeout=5)
            assert [message.body for message in messages] == [b"1", b"2", b"3", b"4"]
            assert not any(message.redelivered for message in messages)
        assert await session.consumer("queue:a").receive(timeout=0.05) is None


@pytest.mark.parametrize("ack", ["client", "individual"])
@asynchronous
async def test_what_the_application_holds_of_a_dropped_consumer_stays_its_own(ack: str) -> None:
    async with consuming(b"a", b"b", ack=ack) as (server, session, _):
        message = await session.consumer("queue:a").receive(timeout=5)
        assert message is not None
        async with antiphon.connect(server.url) as other, other.session() as another:
            consumer = await another.consumer("queue:a")
            assert await consumer.receive(timeout=0.5) is None
            await message.ack()
            rest = await consumer.receive(timeout=5)
            assert rest is not None and rest.body == b"b"
            assert await consumer.receive(timeout=0) is None


@asynchronous
async def test_closing_a_consumer_that_took_over_another_leaves_what_is_held_of_that() -> None:
    async with consuming(b"a", b"b", b"c", ack="individual") as (server, session, _):
        held = await session.consumer("queue:a").receive(timeout=5)
        async with session.consumer("queue:a") as consumer:
            second = await consumer.receive(timeout=5)
            assert held is not None and second is not None and second.body == b"b"
        with pytest.raises(antiphon.ConsumerClosed):
            await consumer.receive(timeout=0)
        assert server.heard_of(frames.ConsumerClose) == []
        await held.ack()
        await server.until(lambda: len(server.heard_of(frames.ConsumerClose)) == 1)
        rest = await session.consumer("queue:a").receive_many(2, timeout=5)
        assert [message.body for message in rest] == [b"b", b"c"]


@asynchronous
async def test_two_consumers_that_are_both_in_use_are_two() -> None:
    async with consuming(b"a", b"b") as (server, session, _):
        first, second = await session.consumer("queue:a"), await session.consumer("queue:a")
        assert len(server.heard_of(frames.ConsumerOpen)) == 2
        await first.close()
        assert not second.closed
        assert len(await second.receive_many(2, timeout=5)) == 2


@asynchronous
async def test_a_consumer_that_was_never_used_costs_nothing() -> None:
    async with consuming() as (server, session, _):
        session.consumer("queue:a")
        await session.producer("queue:a")
        assert server.heard_of(frames.ConsumerOpen) == []
