"""What is staged outside of sessions, against a server that fits in a test."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.wire import frames
from antiphon.wire.commands import OutcomeCode
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import DropStaged, StagedPublish
from tests.unit.client.aio.test_transactions import SOON_S, refusing, wishes
from tests.unit.client.fake_server import SESSION, FakeServer, asynchronous, serving


@asynccontextmanager
async def staging_at(server: FakeServer, **options: Any) -> AsyncIterator[antiphon.Staging]:
    async with (
        antiphon.connect(server.url, **options) as connection,
        connection.staging("report") as staging,
    ):
        yield staging


@asynchronous
async def test_a_part_may_have_several_batches_destinations_and_channels() -> None:
    async with serving(window_bytes=1_000) as server, staging_at(server) as staging:
        server.places["queue:b"] = "b"
        part = await staging.stage("queue:a", (bytes(100) for _ in range(30)), time_limit=60)
        part = await staging.stage("queue:b", ["text", antiphon.Row(b"x", key="k")], part=part)
        part = await staging.stage("queue:other", [b"y"], part=part)
        staged = wishes(server, StagedPublish)
        assert {(wish.part, wish.application) for wish in staged} == {(part.id, "report")}
        assert {wish.seconds for wish in staged} == {60, 3_600}
        channels = [frame.channel for frame in server.heard_of(frames.Command)]
        in_a = [wish.index for wish, channel in zip(staged, channels, strict=True) if channel == "a"]
        in_b = [wish.index for wish, channel in zip(staged, channels, strict=True) if channel == "b"]
        assert in_a == list(range(len(in_a))) and len(in_a) > 2, "each channel counts for itself"
        assert in_b == list(range(len(in_b)))
        assert part.channels == ("a", "b") and part.messages == 33
        assert pickle.loads(pickle.dumps(part)) == part
        server.decide = lambda wish: (TransactionFate.COMMITTED, "")
        assert await staging.commit(7, [part]) == "committed"
        (wish,) = server.heard_of(frames.TransactionCommit)
        assert (wish.session, wish.transaction, wish.application, wish.version) == (SESSION, 1, "report", 7)
        assert [(one.channel, one.batches, one.messages, one.staged) for one in wish.parts] == [
            ("a", len(in_a), 31, (part.id,)),
            ("b", len(in_b), 2, (part.id,)),
        ]


@asynchronous
async def test_stage_returns_when_everything_is_stored() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.hold()
        staging_it = asyncio.create_task(staging.stage("queue:a", [b"1"]))
        await server.until(lambda: bool(wishes(server, StagedPublish)))
        done, _ = await asyncio.wait((staging_it,), timeout=SOON_S)
        assert not done
        server.release()
        assert (await staging_it).messages == 1
        server.hold()
        with pytest.raises(antiphon.Timeout, match="not everything was staged"):
            await staging.stage("queue:a", [b"1"], timeout=SOON_S)
        server.release()
        await server.until(lambda: bool(wishes(server, DropStaged)))


@asynchronous
async def test_what_is_refused_says_why_and_leaves_nothing_staged() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.judge = refusing(StagedPublish, OutcomeCode.REFUSED, "report has staged 1 of 1 bytes")
        with pytest.raises(antiphon.PublishRefused, match="report has staged 1 of 1 bytes"):
            await staging.stage("queue:a", [b"1"])
        await server.until(lambda: bool(wishes(server, DropStaged)))
        assert (await staging.stage("queue:a", [b"1"])).messages == 1


@asynchronous
async def test_a_version_that_was_committed_before_drops_what_is_staged_now() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.decide = lambda wish: (TransactionFate.COMMITTED_BEFORE, "")
        part = await staging.stage("queue:a", [b"1"])
        assert await staging.commit(7, [part]) == "committed before"
        assert wishes(server, DropStaged) == [DropStaged(parts=(part.id,))]
        await staging.abort([part])
        await staging.abort([])
        assert len(wishes(server, DropStaged)) == 2


@asynchronous
async def test_a_commit_whose_connection_is_lost_asks_what_became_of_it() -> None:
    async with serving() as server, staging_at(server) as staging:
        part = await staging.stage("queue:a", [b"1"])
        with pytest.raises(antiphon.CommitUncertain) as caught:
            await staging.commit(7, [part], timeout=SOON_S)
        assert caught.value.transaction_id == "report:7"
        with pytest.raises(antiphon.CommitUncertain):
            await staging.commit(7, [part], timeout=0)
        assert len(server.heard_of(frames.TransactionCommit)) == 1, "one at a time"
        server.decide = lambda wish: (
            (TransactionFate.COMMITTED, "")
            if isinstance(wish, frames.TransactionAsk)
            else (TransactionFate.COMMITTED_BEFORE, "")
        )
        server.drop()
        assert await staging.commit(7, [part]) == "committed before"
        (asked,) = server.heard_of(frames.TransactionAsk)
        assert (asked.transaction, asked.home) == (1, "")


@asynchronous
async def test_one_that_cannot_be_committed_says_why() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.decide = lambda wish: (TransactionFate.ROLLED_BACK, "a part is not here any more")
        part = await staging.stage("queue:a", [b"1"])
        with pytest.raises(antiphon.TransactionRolledBack, match="not here any more"):
            await staging.commit(7, [part])
        server.refusals[frames.TransactionCommit] = ("limit", "too many of them")
        with pytest.raises(antiphon.AntiphonError, match="too many"):
            await staging.commit(8, [part])


@asynchronous
async def test_commits_that_are_asked_for_together_are_done_one_after_the_other() -> None:
    async with serving() as server, staging_at(server) as staging:
        fates = {
            7: (TransactionFate.COMMITTED, ""),
            8: (TransactionFate.ROLLED_BACK, "not here"),
            9: (TransactionFate.COMMITTED_BEFORE, ""),
        }
        server.decide = lambda wish: fates[wish.version]
        part = await staging.stage("queue:a", [b"1"])
        told = await asyncio.gather(
            *(staging.commit(version, [part], timeout=5) for version in fates), return_exceptions=True
        )
        assert [str(each) for each in told] == ["committed", "not here", "committed before"]


@asynchronous
async def test_a_question_that_nobody_can_answer_leaves_the_outcome_unknown() -> None:
    async with serving() as server, staging_at(server) as staging:
        server.refusals[frames.TransactionAsk] = ("destination.unavailable", "channel s does not answer")
        part = await staging.stage("queue:a", [b"1"])
        committing = asyncio.create_task(staging.commit(7, [part]))
        await server.until(lambda: bool(server.heard_of(frames.TransactionCommit)))
        server.drop()
        with pytest.raises(antiphon.CommitUncertain, match="channel s does not answer"):
            await committing


@asynchronous
async def test_what_cannot_be_dropped_for_now_is_not_said_to_be_dropped() -> None:
    async with serving() as server, staging_at(server) as staging:
        part = await staging.stage("queue:a", [b"1"])
        server.refusals[frames.DestinationOpen] = ("destination.unavailable", "channel a does not answer")
        with pytest.raises(antiphon.DestinationUnavailable):
            await staging.abort([part])
        server.refusals[frames.DestinationOpen] = ("destination", "queue:a does not exist")
        await staging.abort([part])
        assert not wishes(server, DropStaged)
