"""Transactions whose session is used by several tasks at once, cancelled, closed or cut off meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import antiphon
from antiphon.client.aio.transacting import TransactedLane
from antiphon.wire import frames
from antiphon.wire.commands import CommandHeader, ConfirmItem, OutcomeCode, Return
from antiphon.wire.transactions import CommitTransaction, RollBackTransaction, TransactedPublish
from tests.unit.client.aio.test_transactions import (
    SOON_S,
    begin_commit,
    goes_on,
    refusing,
    send_what_gets_stuck,
    stored,
    transacted,
    wishes,
)
from tests.unit.client.fake_server import SESSION, Peer, asynchronous, serving

# -- those who wait for their turn -------------------------------------------------------------------


@asynchronous
async def test_who_is_cancelled_when_its_turn_has_just_come_is_cancelled() -> None:
    async with serving() as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        lane = producer._opening.result
        assert lane is not None and isinstance(lane, TransactedLane)
        lane.core.set_blocked("a", True)
        sending = asyncio.create_task(producer.send(b"1"))
        assert not await goes_on(sending)
        lane.core.set_blocked("a", False)
        for news in lane.link._news:
            news.set_result(None)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not lane._queue
        await producer.send(b"2")
        await session.commit()
        assert wishes(server, CommitTransaction)[0].messages == 1


@pytest.mark.parametrize("turns", range(6))
@asynchronous
async def test_who_waited_for_a_commit_waits_for_the_one_that_follows_at_once(turns: int) -> None:
    async with serving() as server, transacted(server) as session:
        mine, theirs = await session.producer("queue:a"), await session.producer("queue:b")
        await mine.send(b"1")
        server.hold()
        committing = await begin_commit(server, session)
        sending = asyncio.create_task(theirs.send(b"2"))
        assert not await goes_on(sending)
        server.release()
        await committing
        for _ in range(turns):
            await asyncio.sleep(0)
        await mine.send(b"3")
        await session.commit()
        await sending
        await session.commit()
        assert sorted(stored(server)) == [b"1", b"2", b"3"]


# -- several who end it ------------------------------------------------------------------------------


@asynchronous
async def test_a_commit_that_two_wait_for_goes_on_when_one_of_them_has_no_more_time() -> None:
    async with serving() as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        await producer.send(b"1")
        server.hold()
        server.say(frames.FlowState(channel="a", blocked=True, reason="full"))
        await send_what_gets_stuck(session, producer)
        patient = asyncio.create_task(session.commit())
        with pytest.raises(antiphon.CommitUncertain):
            await session.commit(timeout=SOON_S)
        assert not patient.done()
        server.release()
        server.say(frames.FlowState(channel="a", blocked=False, reason=""))
        await patient
        assert wishes(server, CommitTransaction)[0].messages == 2


@asynchronous
async def test_who_joins_a_commit_that_is_just_called_off_is_not_cancelled_with_it() -> None:
    async with serving() as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        await producer.send(b"1")
        server.say(frames.FlowState(channel="a", blocked=True, reason="full"))
        await send_what_gets_stuck(session, producer)
        first = asyncio.create_task(session.commit())
        assert not await goes_on(first)
        first.cancel()
        second = asyncio.create_task(session.commit())
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(antiphon.Timeout, match="not committed"):
            await second
        server.say(frames.FlowState(channel="a", blocked=False, reason=""))
        await session.commit()
        assert wishes(server, CommitTransaction)[0].messages == 2


@asynchronous
async def test_what_cannot_be_committed_is_not_called_uncertain() -> None:
    async with serving() as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        refuse = refusing(TransactedPublish, OutcomeCode.NO_DESTINATION, "")

        def judge(header: CommandHeader, payload: Any) -> ConfirmItem | None:
            if isinstance(payload, RollBackTransaction):
                server.hold()
            item: ConfirmItem | None = refuse(header, payload)
            return item

        server.judge = judge
        await producer.send(b"1")
        await server.until(lambda: bool(wishes(server, RollBackTransaction)))
        with pytest.raises(antiphon.Timeout, match=r"cannot be committed: .* does not exist") as caught:
            await session.commit(timeout=SOON_S)
        assert not isinstance(caught.value, antiphon.CommitUncertain)
        server.release()
        with pytest.raises(antiphon.TransactionRolledBack):
            await session.commit()


# -- blocks ------------------------------------------------------------------------------------------


@asynchronous
async def test_a_block_leaves_a_commit_of_unknown_outcome_to_be_heard_of() -> None:
    """Rolling back would hear its outcome, and nobody could ask for it any more."""
    async with serving() as server, transacted(server) as session:
        server.judge = refusing(CommitTransaction, OutcomeCode.TX_ROLLED_BACK, "the primary changed")
        server.hold()
        with pytest.raises(antiphon.CommitUncertain):
            async with session.transaction():
                await session.producer("queue:a").send(b"1")
                asyncio.get_running_loop().call_later(2 * SOON_S, server.release)
                await session.commit(timeout=SOON_S)
        with pytest.raises(antiphon.TransactionRolledBack, match="primary changed"):
            await session.commit()


@asynchronous
async def test_a_cancelled_block_is_rolled_back_and_stays_cancelled() -> None:
    async with serving() as server, transacted(server) as session:
        calls = 0

        async def work(given: antiphon.Session) -> None:
            nonlocal calls
            calls += 1
            await given.producer("queue:a").send(b"1")
            await asyncio.Event().wait()

        working = asyncio.create_task(session.run_transaction(work))
        await server.until(lambda: bool(server.uncommitted))
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert calls == 1 and not server.uncommitted and len(wishes(server, RollBackTransaction)) == 1
        await session.commit()
        assert not wishes(server, CommitTransaction)


@asynchronous
async def test_who_goes_on_before_a_rollback_has_ended_is_told_that_it_was_a_rollback() -> None:
    async with serving() as server, transacted(server) as session:
        producer = await session.producer("queue:a")
        await producer.send(b"1")
        await server.until(lambda: bool(server.uncommitted))
        server.hold()
        rolling_back = asyncio.create_task(session.rollback())
        assert not await goes_on(rolling_back)
        rolling_back.cancel()
        await asyncio.wait((rolling_back,))
        with pytest.raises(antiphon.LocalError, match="rollback is not done"):
            await producer.send(b"2")
        server.release()
        await session.rollback()
        await producer.send(b"2")


# -- the end of the session --------------------------------------------------------------------------


@asynchronous
async def test_a_closed_session_commits_nothing_and_says_so() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        for bodies in ([], [b"1"]):
            session = await connection.session(transacted=True)
            await session.producer("queue:a").send_many(bodies)
            await session.close()
            for end in (session.commit, session.rollback, session.commit):
                with pytest.raises(antiphon.SessionClosed):
                    await asyncio.wait_for(end(), 5)


@asynchronous
async def test_a_session_that_has_expired_commits_nothing_and_says_so_at_once() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"x"])
        consumer = await session.consumer("queue:in")
        await consumer.receive(timeout=60)
        await session.producer("queue:a").send(b"1")
        await server.until(lambda: bool(server.uncommitted))
        server.expired.add(SESSION)
        server.drop()
        while not session.closed:
            await session._scope.link.news()
        with pytest.raises(antiphon.SessionClosed):
            await asyncio.wait_for(session.commit(), 5)


@asynchronous
async def test_what_was_received_comes_again_however_long_there_was_no_connection() -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2"])
        consumer, producer = await session.consumer("queue:in"), await session.producer("queue:a")
        await producer.send(b"never")
        assert await consumer.receive(timeout=60) is not None
        await server.until(lambda: bool(server.uncommitted))
        session._scope.timeout = SOON_S
        server.hold()
        rolling_back = asyncio.create_task(session.rollback())
        await server.until(lambda: bool(wishes(server, RollBackTransaction)))
        assert not (await asyncio.wait((rolling_back,), timeout=4 * SOON_S))[0]
        server.release()
        await rolling_back
        assert len(wishes(server, Return)) == 1
        again = await consumer.receive_many(2, timeout=60)
        assert [(message.body, message.delivery_count) for message in again] == [(b"1", 2), (b"2", 1)]


@asynchronous
async def test_a_consumer_begins_anew_however_long_there_was_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as server, transacted(server) as session:
        server.fill("queue:in", [b"1", b"2"])
        consumer = await session.consumer("queue:in")
        assert await consumer.receive(timeout=60) is not None
        session._scope.timeout = SOON_S
        carry_out = server._carry_out
        refused = 0

        def fail(peer: Peer, frame: frames.ClientFrame) -> None:
            nonlocal refused
            refused += isinstance(frame, frames.Hello)
            if isinstance(frame, frames.ConsumerClose | frames.Hello):
                peer.transport.abort()
            else:
                carry_out(peer, frame)

        monkeypatch.setattr(server, "_carry_out", fail)
        rolling_back = asyncio.create_task(session.rollback())
        await server.until(lambda: refused > 2)
        assert not await goes_on(rolling_back)
        monkeypatch.undo()
        await rolling_back
        again = await consumer.receive_many(2, timeout=60)
        assert [(message.body, message.delivery_count) for message in again] == [(b"1", 2), (b"2", 1)]
