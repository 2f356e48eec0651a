"""Subscriptions, browsing and creating, as an application asks for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

import antiphon
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    ConfirmItem,
    OutcomeCode,
    StartKind,
    Subscribe,
    Unsubscribe,
)
from tests.unit.client.fake_server import FakeServer, asynchronous, serving


@asynccontextmanager
async def in_session(
    client_id: str | None = "desk", ack: Any = "auto"
) -> AsyncIterator[tuple[FakeServer, antiphon.Session]]:
    async with (
        serving() as server,
        antiphon.connect(server.url, client_id=client_id) as connection,
        connection.session(ack=ack) as session,
    ):
        yield server, session


def ordered(server: FakeServer, kind: type[Any]) -> list[Any]:
    return [payload for _, payload in server.commands if isinstance(payload, kind)]


# -- subscribing -------------------------------------------------------------------------


@asynchronous
async def test_a_consumer_of_a_topic_subscribes_and_then_attaches() -> None:
    async with in_session() as (server, session):
        await session.consumer("topic:prices")
        assert ordered(server, Subscribe) == [
            Subscribe(
                destination=1,
                durable=False,
                shared=False,
                name="",
                client_id="desk",
                start=StartKind.LATEST,
                number=0,
            )
        ]
        (opened,) = server.heard_of(frames.ConsumerOpen)
        assert opened.subscription == server.sequence == 1, "the place of the command is the subscription"


@pytest.mark.parametrize(
    ("start", "kind", "number"),
    [
        (None, StartKind.LATEST, 0),
        ("latest", StartKind.LATEST, 0),
        ("earliest", StartKind.EARLIEST, 0),
        (1234, StartKind.NUMBER, 1234),
    ],
)
def test_a_subscription_begins_where_it_is_told(start: Any, kind: StartKind, number: int) -> None:
    @asynchronous
    async def run() -> None:
        async with in_session() as (server, session):
            await session.consumer("topic:prices", durable="audit", start=start)
            (wish,) = ordered(server, Subscribe)
            assert (wish.durable, wish.name, wish.start, wish.number) == (True, "audit", kind, number)

    run()


@asynchronous
async def test_a_durable_subscription_that_exists_is_the_one_that_is_consumed() -> None:
    async with in_session() as (server, session):
        server.judge = lambda header, payload: ConfirmItem(header.number, 1, OutcomeCode.EXISTS, 77)
        await session.consumer("topic:prices", durable="audit")
        (opened,) = server.heard_of(frames.ConsumerOpen)
        assert opened.subscription == 77


@pytest.mark.parametrize(
    ("options", "durable", "name"),
    [({"shared": "workers"}, False, "workers"), ({"durable": "audit", "shared": True}, True, "audit")],
)
def test_a_shared_subscription_is_asked_for_by_its_name(
    options: dict[str, Any], durable: bool, name: str
) -> None:
    @asynchronous
    async def run() -> None:
        async with in_session(client_id=None) as (server, session):
            consumer = await session.consumer("topic:prices", **options)
            (wish,) = ordered(server, Subscribe)
            assert (wish.durable, wish.shared, wish.name, wish.client_id) == (durable, True, name, "")
            (find,) = server.heard_of(frames.SubscriptionFind)
            assert (find.name, find.durable, find.ends) == (name, durable, False)
            await consumer.close()
            assert len(ordered(server, Unsubscribe)) == (not durable)

    run()


@asynchronous
async def test_no_local_is_a_part_of_the_wish() -> None:
    async with in_session() as (server, session):
        await session.consumer("topic:prices", no_local=True)
        await session.consumer("topic:prices", durable="audit", no_local=True)
        assert [wish.no_local for wish in ordered(server, Subscribe)] == [True, True]


@asynchronous
async def test_a_durable_subscription_with_another_selector_begins_anew() -> None:
    async with in_session() as (server, session):
        codes = [OutcomeCode.DIFFERS, OutcomeCode.APPLIED, OutcomeCode.EXISTS]
        server.judge = lambda header, payload: ConfirmItem(header.number, 1, codes.pop(0), 5)
        await session.consumer("topic:prices", durable="audit", selector="n = 2")
        assert [type(payload) for _, payload in server.commands] == [Subscribe, Unsubscribe, Subscribe]
        assert [find.ends for find in server.heard_of(frames.SubscriptionFind)] == [False, True]


@asynchronous
async def test_a_subscription_that_others_begin_anew_is_asked_for_again() -> None:
    async with in_session() as (server, session):
        codes = [OutcomeCode.DIFFERS, OutcomeCode.REFUSED, OutcomeCode.EXISTS]
        server.judge = lambda header, payload: ConfirmItem(header.number, 1, codes.pop(0), 5)
        await session.consumer("topic:prices", durable="audit", selector="n = 2")
        (opened,) = server.heard_of(frames.ConsumerOpen)
        assert opened.subscription == 5


@pytest.mark.parametrize("options", [{"durable": "audit"}, {"shared": "audit"}], ids=str)
def test_a_subscription_that_is_used_with_another_selector_is_in_use(options: dict[str, str]) -> None:
    @asynchronous
    async def run() -> None:
        async with in_session() as (server, session):
            server.judge = lambda header, payload: ConfirmItem(header.number, 1, OutcomeCode.DIFFERS, 5)
            server.refusals[frames.SubscriptionFind] = ("subscription.in_use", "it has a consumer")
            with pytest.raises(antiphon.SubscriptionInUse):
                await session.consumer("topic:prices", **options, selector="n = 2")
            assert ordered(server, Unsubscribe) == []

    run()


@asynchronous
async def test_a_name_that_is_one_to_a_topic_of_another_channel_is_moved_unless_it_has_consumers() -> None:
    async with in_session() as (server, session):
        server.has_subscriptions = True
        server.places["topic:elsewhere"] = "other"
        with pytest.raises(antiphon.SubscriptionInUse, match="another topic"):
            await session.consumer("topic:elsewhere", shared="audit")
        await session.consumer("topic:elsewhere", durable="audit")
        assert [type(payload) for _, payload in server.commands] == [Unsubscribe, Subscribe]
        assert server.commands[0][1] == Unsubscribe(subscription=77)


@asynchronous
async def test_a_durable_subscription_that_is_not_shared_needs_a_client_id() -> None:
    async with in_session(client_id=None) as (server, session):
        with pytest.raises(antiphon.LocalError, match="client_id="):
            await session.consumer("topic:prices", durable="audit")
        assert ordered(server, Subscribe) == []


@asynchronous
async def test_acknowledgements_name_the_subscription() -> None:
    async with in_session() as (server, session):
        consumer = await session.consumer("topic:prices")
        server.fill("topic:prices", [b"a", b"b"])
        message = await consumer.receive(timeout=60)
        assert message is not None and message.destination == "topic:prices"
        await consumer.close()
        assert ordered(server, Acknowledge) == [
            Acknowledge(destination=1, subscription=1, ranges=Ranges([(2, 3)]))
        ]


@asynchronous
async def test_a_subscription_ends_with_its_consumer_unless_it_is_durable() -> None:
    async with in_session() as (server, session):
        consumer = await session.consumer("topic:prices")
        await session.consumer("topic:prices", durable="audit")
        await consumer.close()
        assert ordered(server, Unsubscribe) == [Unsubscribe(subscription=1)]
        names = [type(frame).__name__ for frame in server.heard]
        assert names.index("ConsumerClose") < len(names) - 1 - names[::-1].index("Command")
    assert len(ordered(server, Unsubscribe)) == 1, "and with its session the server ends it itself"


@asynchronous
async def test_a_subscription_whose_consumer_was_refused_is_ended() -> None:
    async with in_session() as (server, session):
        server.refusals[frames.ConsumerOpen] = ("subscription.in_use", "somebody has it")
        with pytest.raises(antiphon.SubscriptionInUse, match="somebody has it"):
            await session.consumer("topic:prices", durable="audit")
        with pytest.raises(antiphon.SubscriptionError):
            await session.consumer("topic:prices")
        await server.until(lambda: bool(ordered(server, Unsubscribe)))
        assert ordered(server, Unsubscribe) == [Unsubscribe(subscription=2)]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (OutcomeCode.REFUSED, antiphon.SubscriptionError),
        (OutcomeCode.NO_DESTINATION, antiphon.DestinationError),
        (OutcomeCode.SESSION_UNKNOWN, antiphon.SessionClosed),
    ],
)
def test_why_there_is_no_subscription_is_said(code: OutcomeCode, error: type[Exception]) -> None:
    def judge(header: CommandHeader, payload: Any) -> ConfirmItem:
        return ConfirmItem(header.number, 1, code, 0, "unsubscribe it first")

    @asynchronous
    async def run() -> None:
        async with in_session() as (server, session):
            server.judge = judge
            with pytest.raises(error, match="unsubscribe it first"):
                await session.consumer("topic:prices", durable="audit")
            assert server.heard_of(frames.ConsumerOpen) == []

    run()


@asynchronous
async def test_what_cannot_be_is_refused_before_anything_is_sent() -> None:
    async with in_session() as (server, session):
        with pytest.raises(antiphon.LocalError, match="is a queue"):
            session.consumer("queue:orders", durable="audit")
        with pytest.raises(antiphon.LocalError, match="is a queue"):
            session.consumer("queue:orders", start="earliest")
        with pytest.raises(antiphon.LocalError, match="share it in any case"):
            session.consumer("queue:orders", shared="workers")
        with pytest.raises(antiphon.LocalError, match="no_local"):
            session.consumer("queue:orders", no_local=True)
        with pytest.raises(antiphon.LocalError, match="of all connections"):
            session.consumer("topic:prices", shared="workers", no_local=True)
        with pytest.raises(antiphon.LocalError, match="one name"):
            session.consumer("topic:prices", durable="audit", shared="workers")
        with pytest.raises(antiphon.LocalError, match="has a name"):
            session.consumer("topic:prices", shared=True)
        with pytest.raises(antiphon.LocalError, match="shared is"):
            session.consumer("topic:prices", shared=7)  # type: ignore[arg-type]
        with pytest.raises(antiphon.InvalidName):
            session.consumer("topic:prices", durable="")
        with pytest.raises(antiphon.InvalidName):
            session.consumer("topic:prices", shared="")
        for start in ("soon", -1, True, 1.5, 1 << 64):
            with pytest.raises(antiphon.LocalError, match="start is"):
                session.consumer("topic:prices", start=start)  # type: ignore[arg-type]
        with pytest.raises(antiphon.InvalidName):
            await session.unsubscribe("a\nb")
        assert server.heard_of(frames.DestinationOpen) == []


@asynchronous
async def test_unsubscribing_finds_the_subscription_by_its_name() -> None:
    async with in_session() as (server, session):
        await session.unsubscribe("audit")
        (find,) = server.heard_of(frames.SubscriptionFind)
        assert find.name == "audit"
        assert ordered(server, Unsubscribe) == [Unsubscribe(subscription=77)]
        server.judge = lambda header, payload: ConfirmItem(header.number, 1, OutcomeCode.REFUSED, 0, "gone")
        with pytest.raises(antiphon.SubscriptionError, match="gone"):
            await session.unsubscribe("audit")
        server.refusals[frames.SubscriptionFind] = ("subscription.unknown", "there is no such thing")
        with pytest.raises(antiphon.SubscriptionError, match="no such thing"):
            await session.unsubscribe("audit")


# -- browsing ----------------------------------------------------------------------------


@asynchronous
async def test_browsing_goes_from_page_to_page_and_takes_nothing() -> None:
    async with in_session() as (server, session):
        server.fill("queue:a", [b"a", b"b", b"c", b"d", b"e"])
        for _ in range(2):
            seen = [(m.sequence, m.body, m.destination) async for m in session.browse("queue:a")]
            assert seen == [
                (at + 1, body, "queue:a") for at, body in enumerate((b"a", b"b", b"c", b"d", b"e"))
            ]
        assert [frame.start for frame in server.heard_of(frames.RangeRead)] == [1, 3, 5] * 2
        assert server.commands == []


@asynchronous
async def test_browsing_may_be_left_at_any_time() -> None:
    async with in_session() as (server, session):
        server.fill("queue:a", [b"a", b"b", b"c"])
        async for message in session.browse("queue:a"):
            assert message.body == b"a"
            break
        assert len(server.heard_of(frames.RangeRead)) == 1


@asynchronous
async def test_a_message_that_was_looked_at_cannot_be_acknowledged() -> None:
    async with in_session(ack="individual") as (server, session):
        server.fill("queue:a", [b"a"])
        async for message in session.browse("queue:a"):
            with pytest.raises(antiphon.LocalError, match="nothing to acknowledge"):
                await message.ack()


@asynchronous
async def test_an_empty_destination_shows_nothing_and_a_bad_name_is_an_error() -> None:
    async with in_session() as (server, session):
        assert [message async for message in session.browse("topic:prices")] == []
        with pytest.raises(antiphon.InvalidName):
            session.browse("prices")
        server.refusals[frames.RangeRead] = ("destination.unknown", "it was deleted")
        with pytest.raises(antiphon.DestinationError, match="deleted"):
            _ = [message async for message in session.browse("topic:prices")]


# -- creating ----------------------------------------------------------------------------


@asynchronous
async def test_a_destination_is_made_with_settings() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        admin = connection.admin()
        await admin.create("queue:orders")
        await admin.create("topic:prices", retention=timedelta(minutes=1), retention_bytes=5_000)
        await admin.create("topic:weather", retention="consumed", channel="b")
        made = [
            (frame.name, json.loads(frame.settings)) for frame in server.heard_of(frames.DestinationCreate)
        ]
        assert made == [
            ("queue:orders", {}),
            ("topic:prices", {"retention": 60, "retention_bytes": 5_000}),
            ("topic:weather", {"channel": "b", "retention": "consumed"}),
        ]
        server.refusals[frames.DestinationCreate] = ("destination.refused", "its retention is 60, not 5")
        with pytest.raises(antiphon.DestinationError, match="60, not 5"):
            await admin.create("topic:prices", retention=5)


@asynchronous
async def test_settings_that_cannot_be_are_refused_before_anything_is_sent() -> None:
    async with serving() as server, antiphon.connect(server.url) as connection:
        admin = connection.admin()
        for settings in ({"retention": -1}, {"retention": "soon"}, {"retention_bytes": 1.5}, {"channel": ""}):
            with pytest.raises(antiphon.LocalError):
                await admin.create("topic:prices", **settings)
        with pytest.raises(antiphon.InvalidName):
            await admin.create("topic:_LOG")
        assert server.heard_of(frames.DestinationCreate) == []
