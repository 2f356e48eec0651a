"""Transacted sessions against a server that fits in a test: who waits for what, and what is said when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.client.aio import transactions
from antiphon.client.aio.transacting import TransactedLane
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import CommandHeader, ConfirmItem, OutcomeCode, Return
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import CommitTransaction, RollBackTransaction, TransactedPublish
from tests.unit.client.fake_server import SESSION, FakeServer, asynchronous, serving

SOON_S = 0.05
"""How long something that is held up is given to go on, wrongly."""


@asynccontextmanager
async def transacted(server: FakeServer, **options: Any) -> AsyncIterator[antiphon.Session]:
    async with (
        antiphon.connect(server.url, **options) as connection,
        connection.session(transacted=True) as session,
    ):
        yield session


def kinds(server: FakeServer) -> list[str]:
    return [type(payload).__name__ for _, payload in server.commands]


def wishes(server: FakeServer, kind: type[Any]) -> list[Any]:
    return [payload for _, payload in server.commands if isinstance(payload, kind)]


def refusing(kind: type[Any], code: OutcomeCode, text: str, times: int = 1, sequence: int = 0) -> Any:
    """A judge that refuses the first commands of a kind."""
    left = times

    def judge(header: CommandHeader, payload: Any) -> ConfirmItem | None:
        nonlocal left
        if not isinstance(payload, kind) or not left:
            return None
        left -= 1
        return ConfirmItem(header.number, header.count, code, sequence, text)

    return judge


async def goes_on(task: asyncio.Task[Any]) -> bool:
    done, _ = await asyncio.wait((task,), timeout=SOON_S)
    return bool(done)


async def begin_commit(server: FakeServer, session: antiphon.Session) -> asyncio.Task[None]:
    """A commit that the server has heard of."""
    committing = asyncio.create_task(session.commit())
    await server.until(
        lambda: bool(wishes(server, CommitTransaction) or server.heard_of(frames.TransactionCommit))
    )
    return committing


async def send_to_two_channels(server: FakeServer, session: antiphon.Session) -> None:
    server.places["queue:b"] = "b"
    await session.producer("queue:b").send(b"1")
    await session.producer("queue:a").send(b"2")


async def send_what_gets_stuck(session: antiphon.Session, producer: antiphon.Producer) -> None:
    """A message that was gathered before anybody knew that there is no room."""
    lane = producer._opening.result
    assert isinstance(lane, TransactedLane) and session._scope.transactions is not None
    while not lane.is_blocked:
        await lane.link.news()
    part = session._scope.transactions.part(lane.channel)
    part.add(1, 0)
    lane._gathering(part).add_plain(b"stuck", asyncio.Future())


def stored(server: FakeServer) -> list[bytes]:
    return [row.batch.body(0) for rows in server.ready.values() for row in rows]


# -- sending -----------------------------------------------------------------------------------------


@asynchronous
async def test_sends_of_one_turn_travel_together_and_the_commit_right_behind_them() -> None:
    async with serving() as server, transacted(server) as session:
        server.hold()
        producer = await session.producer("queue:a")
        receipts = [await producer.send(b"1"), await producer.send("2", priority=7)]
        receipts += await producer.send_many([b"3", b"4"])
        committing = asyncio.create_task(session.commit())
        await server.until(lambda: len(server.commands) == 3)
        assert kinds(server) == ["TransactedPublish", "TransactedPublish", "CommitTransaction"]
        assert [wish.rows for wish in wishes(server, TransactedPublish)] == [2, 2]
        assert not await goes_on(committing), "nobody has confirmed it"
        server.release()
        await committing
        assert wishes(server, CommitTransaction) == [
            CommitTransaction(transaction=1, batches=2, messages=4, consumed=())
        ]
        assert server.commands[-1][0].count == 4
        assert [receipt.sequence for receipt in receipts] == [None] * 4
        assert len({receipt.message_id for receipt in receipts}) == 4
        await session.commit()
        await session.rollback()
        assert len(server.commands) == 3, "there was nothing to do"


@asynchronous
async def test_sends_wait_for_room_in_their_order_but_for_no_outcome() -> None:
    async with serving(window_bytes=1_000) as server, transacted(server) as session:
        server.hold()
        producer = await session.producer("queue:a")
        await producer.send(b"000")
        await server.until(lambda: bool(server.commands))
        sends = asyncio.gather(*(producer.send(b"%03d" % number + bytes(97)) for number in range(1, 50)))
        await asyncio.sleep(0)
        assert not sends.done() and producer.is_blocked
        assert await producer.try_send(b"one more") is None
        with pytest.raises(antiphon.Timeout, match="no room"):
            await producer.send(b"one more", timeout=SOON_S)
        server.release()
        receipts = await sends
        await session.commit()
        (bodies,) = [[row.batch.body(0) for row in rows] for rows in server.ready.values()]
        assert [body[:3] for body in bodies] == [b"%03d" % number for number in range(50)]
        assert len({receipt.message_id for receipt in receipts}) == 49


@asynchronous
async def test_a_send_many_of_more_than_fits_waits_for_room() -> None:
    async with serving(window_bytes=1_000) as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        receipts = await producer.send_many(bytes(100) for _ in range(100))

        async def more() -> AsyncIterator[bytes]:
            for number in range(100):
                yield b"%d" % number

        receipts = await producer.send_many(more())
        assert len(receipts) == 100
        await session.commit()
        assert wishes(server, CommitTransaction)[0].messages == 200
        server.hold()
        with pytest.raises(antiphon.Timeout, match="no room"):
            await producer.send_many((bytes(100) for _ in range(100)), timeout=SOON_S)
        server.release()
        with pytest.raises(antiphon.TransactionRolledBack, match="no room"):
            await session.commit()


@asynchronous
async def test_a_body_that_may_not_be_sent_spoils_what_its_send_many_began() -> None:
    async with serving() as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        with pytest.raises(antiphon.InvalidMessage):
            await producer.send(object())  # type: ignore[arg-type]
        with pytest.raises(antiphon.LocalError, match="id that it had before"):
            await producer.send(b"", message_id="ID:00000000000000000000000000000007-1@a")
        await producer.send(b"fine")
        await session.commit()
        bodies = [b""] * 1_000 + [object()]
        with pytest.raises(antiphon.InvalidMessage):
            await producer.send_many(iter(bodies))  # type: ignore[arg-type]
        with pytest.raises(antiphon.TransactionRolledBack):
            await session.commit()
        assert not server.uncommitted
        await producer.send(b"fine again")
        await session.commit()
        assert [wish.transaction for wish in wishes(server, CommitTransaction)] == [1, 3]


@asynchronous
async def test_what_is_refused_dooms_its_transaction_and_no_other() -> None:
    async with serving() as server, transacted(server) as session:
        server.places["queue:b"] = "b"
        gone, there = await session.producer("queue:a"), await session.producer("queue:b")
        await there.send(b"first")
        await server.until(lambda: bool(server.commands))
        server.judge = refusing(TransactedPublish, OutcomeCode.NO_DESTINATION, "")
        await gone.send(b"second")
        await server.until(lambda: bool(wishes(server, RollBackTransaction)))
        with pytest.raises(antiphon.TransactionRolledBack, match="does not exist any more"):
            await there.send(b"third")
        with pytest.raises(antiphon.TransactionRolledBack, match="does not exist any more"):
            await session.commit()
        assert not wishes(server, CommitTransaction) and not server.heard_of(frames.TransactionCommit)
        await there.send(b"another one")
        await session.commit()
        (wish,) = wishes(server, CommitTransaction)
        assert (wish.transaction, wish.messages) == (2, 1)


# -- the outcome -------------------------------------------------------------------------------------


@asynchronous
async def test_a_commit_is_sent_again_on_another_connection_and_happens_once() -> None:
    async with serving() as server, transacted(server) as session:
        server.hold()
        await session.producer("queue:a").send(b"1")
        committing = await begin_commit(server, session)
        server._held = None
        server.drop()
        await committing
        numbers = [header.number for header, wish in server.commands if isinstance(wish, CommitTransaction)]
        assert numbers == [2, 2]
        assert sum(map(len, server.ready.values())) == 1


@asynchronous
async def test_whoever_does_not_know_the_outcome_in_time_asks_again() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"x"])
        producer, consumer = await session.producer("queue:a"), await session.consumer("queue:in")
        await producer.send(b"1")
        server.hold()
        with pytest.raises(antiphon.CommitUncertain) as caught:
            await session.commit(timeout=SOON_S)
        assert caught.value.transaction_id == f"{SESSION:032x}:1:a"
        assert isinstance(caught.value, TimeoutError)
        for wrong in (producer.send(b"2"), consumer.receive(timeout=60), producer.send_many([b"2"])):
            with pytest.raises(antiphon.LocalError, match="`commit\\(\\)` again"):
                await wrong
        with pytest.raises(antiphon.CommitUncertain):
            await session.commit(timeout=0)
        server.release()
        await session.commit()
        await producer.send(b"2")
        await session.commit()
        assert [wish.transaction for wish in wishes(server, CommitTransaction)] == [1, 2]


@asynchronous
async def test_a_cancelled_commit_is_one_whose_outcome_is_not_known() -> None:
    async with serving() as server, transacted(server) as session:
        server.hold()
        await session.producer("queue:a").send(b"1")
        committing = await begin_commit(server, session)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        server.release()
        with pytest.raises(antiphon.LocalError, match="was committed"):
            await session.rollback()
        await session.rollback()
        assert not wishes(server, RollBackTransaction)


@asynchronous
async def test_a_rollback_after_a_commit_that_failed_has_nothing_to_do() -> None:
    async with serving() as server, transacted(server) as session:
        server.judge = refusing(CommitTransaction, OutcomeCode.TX_ROLLED_BACK, "the primary changed")
        server.hold()
        await session.producer("queue:a").send(b"1")
        with pytest.raises(antiphon.CommitUncertain):
            await session.commit(timeout=SOON_S)
        server.release()
        await session.rollback()
        await session.commit()
        assert len(wishes(server, CommitTransaction)) == 1


@asynchronous
async def test_one_that_could_not_leave_in_time_is_still_open() -> None:
    async with serving(window_bytes=1_000) as server, transacted(server) as session:
        server.fill("queue:in", [b"x"])
        consumer, producer = await session.consumer("queue:in"), await session.producer("queue:a")
        assert await consumer.receive(timeout=60) is not None
        server.hold()
        await producer.send(bytes(900))
        await server.until(lambda: bool(server.commands))
        producer_b = await session.producer("queue:b")
        waiting = asyncio.create_task(producer_b.send(bytes(900)))
        assert not await goes_on(waiting)
        server.say(frames.FlowState(channel="a", blocked=True, reason="full"))
        server.release()
        waiting.cancel()
        await send_what_gets_stuck(session, producer)
        with pytest.raises(antiphon.Timeout, match="not all was sent") as caught:
            await session.commit(timeout=SOON_S)
        assert not isinstance(caught.value, antiphon.CommitUncertain)
        server.say(frames.FlowState(channel="a", blocked=False, reason=""))
        await session.commit()
        (wish,) = wishes(server, CommitTransaction)
        assert wish.messages == 2 and wish.consumed, "what was taken before is part of it"


@asynchronous
async def test_an_expired_session_leaves_the_outcome_unknown() -> None:
    async with serving() as server, transacted(server) as session:
        server.judge = refusing(CommitTransaction, OutcomeCode.SESSION_UNKNOWN, "")
        await session.producer("queue:a").send(b"1")
        for end in (session.commit, session.commit, session.rollback):
            with pytest.raises(antiphon.CommitUncertain, match="expired"):
                await end()
        assert len(wishes(server, CommitTransaction)) == 1, "a second one could not tell either"


@asynchronous
async def test_whoever_sends_or_receives_during_a_commit_waits_for_the_next_transaction() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"x", b"y"])
        producer, consumer = await session.producer("queue:a"), await session.consumer("queue:in")
        assert await consumer.receive(timeout=60) is not None
        server.hold()
        committing = await begin_commit(server, session)
        sending = asyncio.create_task(producer.send(b"1"))
        receiving = asyncio.create_task(consumer.receive(timeout=60))
        assert await consumer.receive(timeout=SOON_S) is None
        assert not await goes_on(sending) and not await goes_on(receiving)
        server.release()
        await committing
        await sending
        message = await receiving
        assert message is not None and message.body == b"y"
        await session.commit()
        first, second = wishes(server, CommitTransaction)
        assert (first.messages, second.messages) == (0, 1)
        assert [one.numbers.count for one in (*first.consumed, *second.consumed)] == [1, 1]
        assert server.acknowledged.count == 2


@asynchronous
async def test_what_is_sent_behind_a_commit_by_somebody_else_is_not_lost_in_silence() -> None:
    async with serving(window_bytes=1_000) as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        going_on = asyncio.Event()

        async def bodies() -> AsyncIterator[bytes]:
            yield b"1"
            await going_on.wait()
            yield b"2"

        sending = asyncio.create_task(producer.send_many(bodies()))
        await server.until(lambda: bool(server.commands))
        server.hold()
        committing = await begin_commit(server, session)
        server.release()
        await committing
        await producer.send(b"3")
        going_on.set()
        with pytest.raises(antiphon.LocalError, match="ended before everything was sent"):
            await sending
        await session.commit()
        assert stored(server) == [b"1", b"3"]


# -- rollback ----------------------------------------------------------------------------------------


@asynchronous
async def test_a_rollback_returns_what_was_taken_and_begins_the_consumer_anew() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2", b"3"])
        untouched = await session.consumer("queue:other")
        consumer, producer = await session.consumer("queue:in"), await session.producer("queue:a")
        await producer.send(b"never")
        await consumer.receive_many(2, timeout=60)
        await session.rollback()
        assert [(wish.counted, list(wish.ranges)) for wish in wishes(server, Return)] == [(True, [(1, 3)])]
        assert [frame.consumer for frame in server.heard_of(frames.ConsumerClose)] == [2]
        assert [frame.consumer for frame in server.heard_of(frames.ConsumerOpen)] == [1, 2, 3]
        again = await consumer.receive_many(3, timeout=60)
        assert [(message.body, message.delivery_count) for message in again] == [
            (b"1", 2),
            (b"2", 2),
            (b"3", 1),
        ]
        assert not server.uncommitted and not untouched.closed


@asynchronous
async def test_whoever_has_half_of_what_it_asked_for_during_a_rollback_gets_it_once() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2", b"3"])
        consumer = await session.consumer("queue:in")
        await consumer.receive(timeout=60)
        receiving = asyncio.create_task(consumer.receive_many(4, timeout=60))
        assert not await goes_on(receiving)
        await session.rollback()
        server.fill("queue:in", [b"4"])
        assert [message.body for message in await receiving] == [b"1", b"2", b"3", b"4"]
        await session.commit()
        assert server.acknowledged.count == 4


@asynchronous
async def test_a_consumer_that_began_anew_can_be_closed() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1"])
        consumer = await session.consumer("queue:in")
        await consumer.receive(timeout=60)
        await session.rollback()
        await consumer.close()
        assert [frame.consumer for frame in server.heard_of(frames.ConsumerClose)] == [1, 2]
        assert not server.consumers


@asynchronous
async def test_a_consumer_that_is_closed_while_it_begins_anew_is_closed() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1"])
        consumer = await session.consumer("queue:in")
        await consumer.receive(timeout=60)
        rolling_back = asyncio.create_task(session.rollback())
        await server.until(lambda: bool(server.heard_of(frames.ConsumerClose)))
        await consumer.close()
        await rolling_back
        assert not server.consumers and consumer.closed


@asynchronous
async def test_whoever_stops_waiting_during_a_rollback_has_taken_nothing() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2", b"3"])
        consumer = await session.consumer("queue:in")
        await consumer.receive(timeout=60)
        receiving = asyncio.create_task(consumer.receive_many(4, timeout=60))
        assert not await goes_on(receiving)
        server.hold()
        rolling_back = asyncio.create_task(session.rollback())
        await server.until(lambda: bool(wishes(server, Return)))
        receiving.cancel()
        assert await consumer.receive_many(1, timeout=0) == []
        server.release()
        await rolling_back
        again = await consumer.receive_many(3, timeout=60)
        assert [message.body for message in again] == [b"1", b"2", b"3"]
        assert await consumer.receive(timeout=0) is None


@asynchronous
async def test_an_iteration_goes_on_after_a_rollback() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2", b"3"])
        seen: list[bytes] = []
        async for message in session.consumer("queue:in"):
            seen.append(message.body)
            if len(seen) == 2:
                await session.rollback()
            if len(seen) == 5:
                break
        assert seen == [b"1", b"2", b"1", b"2", b"3"]
        await session.commit()
        assert server.acknowledged.count == 3


@asynchronous
async def test_recover_gives_back_what_the_application_works_on() -> None:
    async with (
        serving() as server,
        antiphon.connect(server.url) as connection,
        connection.session() as session,
    ):
        server.fill("queue:in", [b"1", b"2", b"3"])
        seen: list[tuple[bytes, int]] = []
        async for message in session.consumer("queue:in"):
            seen.append((message.body, message.delivery_count))
            if len(seen) == 2:
                await session.recover()
            if len(seen) == 4:
                await message.ack()
                break
        assert seen == [(b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1)]
    assert server.acknowledged.count == 3


@asynchronous
async def test_a_commit_that_fails_gives_back_what_was_taken() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1"])
        server.judge = refusing(CommitTransaction, OutcomeCode.TX_ROLLED_BACK, "it was no longer there")
        consumer = await session.consumer("queue:in")
        await consumer.receive(timeout=60)
        with pytest.raises(antiphon.TransactionRolledBack, match="no longer there"):
            await session.commit()
        again = await consumer.receive(timeout=60)
        assert again is not None and (again.body, again.delivery_count) == (b"1", 2)
        await session.commit()
        assert server.acknowledged.count == 1


def give_to_another(server: FakeServer, *numbers: int) -> None:
    """A new primary did so; the client manager tells those who had it."""
    (held,) = server.consumers.values()
    for number in numbers:
        held.holds.pop(number)
    lost = Ranges((number, number + 1) for number in numbers)
    server.say(frames.ConsumerLost(session=held.session, consumer=held.number, lost=lost))


@asynchronous
async def test_a_transaction_that_took_what_others_got_is_rolled_back() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2", b"3"])
        consumer, producer = await session.consumer("queue:in"), await session.producer("queue:a")
        await consumer.receive_many(2, timeout=60)
        await producer.send(b"never")
        give_to_another(server, 1, 3)
        await session.producer("queue:b")  # its answer comes behind that
        assert await consumer.receive(timeout=0) is None
        with pytest.raises(antiphon.TransactionRolledBack, match="message 1 was given to another consumer"):
            await session.commit()
        assert not wishes(server, CommitTransaction) and not server.uncommitted
        # What is still its own comes again.
        again = await consumer.receive_many(1, timeout=60)
        assert [(message.body, message.delivery_count) for message in again] == [(b"2", 2)]
        await session.commit()
        assert server.acknowledged == Ranges([(2, 3)])


@asynchronous
async def test_a_transaction_that_waits_to_be_sent_hears_of_what_others_got() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1"])
        consumer, producer = await session.consumer("queue:in"), await session.producer("queue:a")
        await consumer.receive(timeout=60)
        server.say(frames.FlowState(channel="a", blocked=True, reason="full"))
        await send_what_gets_stuck(session, producer)
        committing = asyncio.create_task(session.commit())
        assert not await goes_on(committing)
        give_to_another(server, 1)
        assert not await goes_on(committing)
        server.say(frames.FlowState(channel="a", blocked=False, reason=""))
        with pytest.raises(antiphon.TransactionRolledBack, match="message 1 was given to another consumer"):
            await committing
        assert not wishes(server, CommitTransaction)


@asynchronous
async def test_whoever_waits_for_more_does_not_get_what_others_got_meanwhile() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2"])
        consumer = await session.consumer("queue:in")
        receiving = asyncio.create_task(consumer.receive_many(3, timeout=60))
        assert not await goes_on(receiving)
        give_to_another(server, 1)
        server.fill("queue:in", [b"3"])
        assert not await goes_on(receiving)
        server.fill("queue:in", [b"4"])
        assert [message.body for message in await receiving] == [b"2", b"3", b"4"]


# -- several channels --------------------------------------------------------------------------------


@asynchronous
async def test_several_channels_are_committed_by_the_client_manager() -> None:
    async with serving() as server, transacted(server) as session:
        server.places["queue:b"] = "b"
        server.decide = lambda wish: (TransactionFate.COMMITTED, "")
        await session.producer("queue:b").send_many([b"1", b"2"])
        await session.producer("queue:a").send(b"3")
        await session.commit()
        (wish,) = server.heard_of(frames.TransactionCommit)
        assert (wish.session, wish.transaction, wish.application) == (SESSION, 1, "")
        assert [(part.channel, part.batches, part.messages) for part in wish.parts] == [
            ("a", 1, 1),
            ("b", 1, 2),
        ]
        assert not wishes(server, CommitTransaction)


@pytest.mark.parametrize("fate", [TransactionFate.COMMITTED, TransactionFate.ROLLED_BACK])
@asynchronous
async def test_after_a_lost_connection_it_is_asked_what_became_of_it(fate: TransactionFate) -> None:
    async with serving() as server, transacted(server) as session:
        server.decide = lambda wish: (
            (fate, "nobody decided") if isinstance(wish, frames.TransactionAsk) else None
        )
        await send_to_two_channels(server, session)
        with pytest.raises(antiphon.CommitUncertain) as caught:
            await session.commit(timeout=SOON_S)
        assert caught.value.transaction_id == f"{SESSION:032x}:1:a"
        server.drop()
        if fate is TransactionFate.COMMITTED:
            await session.commit()
        else:
            with pytest.raises(antiphon.TransactionRolledBack, match="nobody decided"):
                await session.commit()
        (asked,) = server.heard_of(frames.TransactionAsk)
        assert (asked.session, asked.transaction, asked.home) == (SESSION, 1, "a")
        assert not wishes(server, RollBackTransaction), "those who decided it see to the channels"


@asynchronous
async def test_a_question_that_nobody_can_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "ASK_AGAIN_S", 0.0)
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.refusals[frames.TransactionAsk] = ("destination.unavailable", "channel a does not answer")
        session = await connection.session(transacted=True)
        await send_to_two_channels(server, session)
        committing = await begin_commit(server, session)
        server.drop()
        await server.until(lambda: len(server.heard_of(frames.TransactionAsk)) > 2)
        assert not wishes(server, RollBackTransaction), "perhaps it was committed"
        server.decide = lambda wish: (TransactionFate.COMMITTED, "")
        server.refusals.clear()
        await committing


@pytest.mark.parametrize("fate", [TransactionFate.COMMITTED, TransactionFate.ROLLED_BACK])
@asynchronous
async def test_what_became_of_it_can_be_asked_even_when_the_session_has_expired(
    fate: TransactionFate,
) -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        server.decide = lambda wish: (fate, "nobody decided") if server.expired else None
        session = await connection.session(transacted=True)
        await send_to_two_channels(server, session)
        committing = await begin_commit(server, session)
        server.expired.add(SESSION)
        server.drop()
        if fate is TransactionFate.COMMITTED:
            await committing
        else:
            with pytest.raises(antiphon.TransactionRolledBack, match="nobody decided"):
                await committing
        (asked,) = server.heard_of(frames.TransactionAsk)
        assert (asked.session, asked.transaction, asked.home) == (SESSION, 1, "a")
        assert session.closed
        with pytest.raises(antiphon.SessionClosed):
            await session.producer("queue:a").send(b"3")
        async with connection.session(transacted=True) as another:
            await another.producer("queue:a").send(b"3")
            await another.commit()


@asynchronous
async def test_a_commit_that_was_not_even_begun_is_rolled_back_here() -> None:
    async with serving() as server, transacted(server) as session:
        server.refusals[frames.TransactionCommit] = ("limit", "too many of them")
        await send_to_two_channels(server, session)
        with pytest.raises(antiphon.TransactionRolledBack, match="too many"):
            await session.commit()
        assert len(wishes(server, RollBackTransaction)) == 2
        assert not server.uncommitted


# -- blocks and repetitions --------------------------------------------------------------------------


@asynchronous
async def test_a_function_is_repeated_until_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PAUSE_S", 0.0)
    async with serving() as server, transacted(server) as session:
        server.judge = refusing(CommitTransaction, OutcomeCode.TX_ROLLED_BACK, "not this time", times=3)
        producer = await session.producer("queue:a")
        calls = 0

        async def work(given: antiphon.Session) -> int:
            nonlocal calls
            calls += 1
            await producer.send(b"%d" % calls)
            return calls

        with pytest.raises(antiphon.TransactionRolledBack, match="not this time"):
            await session.run_transaction(work, attempts=2)
        assert await session.run_transaction(work, attempts=2) == 4
        with pytest.raises(antiphon.LocalError, match="attempts"):
            await session.run_transaction(work, attempts=0)
        assert stored(server) == [b"4"]


def test_pauses_grow_and_differ() -> None:
    found = list(transactions.pauses(12))
    assert len(found) == 11
    limits = [min(2.0, 0.05 * 2**number) for number in range(11)]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(found, limits, strict=True))
    assert len(set(found)) == len(found)


@asynchronous
async def test_closing_rolls_back_what_is_open_and_waits_for_a_commit_under_way() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        session = await connection.session(transacted=True)
        producer = await session.producer("queue:a")
        await producer.send(b"1")
        await session.close()
        assert not wishes(server, CommitTransaction)
        with pytest.raises(antiphon.SessionClosed):
            await producer.send(b"2")
        session = await connection.session(transacted=True)
        await session.producer("queue:a").send(b"3")
        server.hold()
        with pytest.raises(antiphon.CommitUncertain):
            await session.commit(timeout=SOON_S)
        closing = asyncio.create_task(session.close())
        assert not await goes_on(closing)
        server.release()
        await closing
        assert stored(server) == [b"3"]
