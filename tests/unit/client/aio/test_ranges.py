"""Who reads ranges: what is asked ahead, what is checked, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import antiphon
from antiphon.batch import Batch
from antiphon.client.aio.ranges import PAGES_ON_THE_WAY, RangeDestination, Ranges
from antiphon.errors import (
    AntiphonError,
    DestinationError,
    LocalError,
    ProtocolError,
    RangeError,
    RangeLost,
    RangeUnavailable,
)
from antiphon.wire import frames
from antiphon.wire.commands import OutcomeCode
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.range_frames import RangeLoss, page_buffers
from tests.unit.client.aio.test_transactions import refusing, wishes
from tests.unit.client.fake_server import FakeServer, asynchronous, serving

PRICES = (RangeDestination("topic:prices", "a", 7),)
PAGE_ROWS = 10


class Shelf:
    """Numbers 1 … `last` of one topic, of which a page has ten; every number is a message of its own."""

    def __init__(self, last: int = 100) -> None:
        self.last = last
        self.losses: tuple[RangeLoss, ...] = ()
        self.held: list[frames.RangeRead] = []
        self.is_slow = False
        self.spoils = False
        self.claims = 0  # rows too many
        self.topic, self.shift = 7, 0  # of somebody else, or from somewhere else

    def show(self, wish: Any) -> frames.ServerFrame | None:
        if isinstance(wish, frames.RangeRead):
            self.held.append(wish)
            return None if self.is_slow else self.page(wish)
        return None

    def page(self, wish: frames.RangeRead) -> frames.RangePage:
        through = min(wish.stop, wish.start + PAGE_ROWS, self.last + 1) - 1
        begins = wish.ahead_from or through + 1
        ends = [min(begins + at * PAGE_ROWS, wish.goal) for at in range(1, wish.ahead + 1)]
        ends = sorted({end for end in ends if end > begins})
        bodies = [b"%d" % number for number in range(wish.start, through + 1)]
        batch = Batch.of_bodies(bodies, 1, 1, 0).encode()
        pieces = [(self.topic, wish.start + self.shift, len(bodies), 0, [batch])]
        page = b"".join(page_buffers(through, len(bodies) + self.claims, ends, self.losses, pieces))
        if self.spoils:
            page = page[:-1] + bytes([page[-1] ^ 1])
        return frames.RangePage(request=wish.request, page=page)


@asynccontextmanager
async def reading(server: FakeServer, **options: Any) -> AsyncIterator[Ranges]:
    async with antiphon.connect(server.url, **options) as connection, connection.ranges() as ranges:
        yield ranges


async def bodies(ranges: Ranges, start: int, stop: int, **how: Any) -> list[bytes]:
    pages = ranges.read("a", start, stop, PRICES, **how)
    return [body async for page in pages for piece in page.pieces for body in piece.batch.bodies()]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


@asynchronous
async def test_a_range_is_read_to_its_end_and_each_part_once() -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf(1_000)
        server.show = shelf.show
        assert await bodies(ranges, 5, 923) == numbers(5, 923)
        starts = sorted(wish.start for wish in shelf.held)
        assert starts == list(range(5, 923, PAGE_ROWS))
        asking = [wish for wish in shelf.held if wish.ahead]
        assert len(asking) < len(shelf.held) / 4, "where pages end is asked for now and then"
        assert all(wish.goal == 923 for wish in shelf.held)


@asynchronous
async def test_pages_are_asked_for_ahead_but_only_a_few() -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf(200)
        server.show = shelf.show
        pages = ranges.read("a", 1, 201, PRICES)
        await anext(pages)
        shelf.is_slow = True
        await server.until(lambda: len(shelf.held) == 1 + PAGES_ON_THE_WAY)
        # They may be answered in another order, and are given in their own.
        waiting = shelf.held[1:]
        shelf.is_slow = False
        for wish in reversed(waiting):
            server.say(shelf.page(wish))
        rest = [page async for page in pages]
        assert [page.through for page in rest] == list(range(20, 201, PAGE_ROWS))


@asynchronous
async def test_who_leaves_early_leaves_nothing_behind() -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf(200)
        server.show = shelf.show
        before = asyncio.all_tasks()
        pages = ranges.read("a", 1, 201, PRICES)
        await anext(pages)
        shelf.is_slow = True
        await server.until(lambda: len(shelf.held) == 1 + PAGES_ON_THE_WAY)
        await pages.aclose()
        for wish in shelf.held[1:]:
            server.say(shelf.page(wish))  # nobody waits for it any more
        shelf.is_slow = False
        assert await bodies(ranges, 1, 12) == numbers(1, 12)
        assert asyncio.all_tasks() == before


@asynchronous
async def test_a_read_goes_on_when_the_connection_is_lost() -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf(100)
        server.show = shelf.show
        found: list[bytes] = []
        async for page in ranges.read("a", 1, 101, PRICES):
            if page.through == 40:
                server.drop()
            found += [body for piece in page.pieces for body in piece.batch.bodies()]
        assert found == numbers(1, 101)


@asynchronous
@pytest.mark.parametrize("topic, shift", [(8, 0), (7, -1), (7, 1)])
async def test_a_page_of_another_range_is_not_shown_however_whole_it_is(topic: int, shift: int) -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf()
        server.show = shelf.show
        shelf.topic, shelf.shift = topic, shift
        with pytest.raises(ProtocolError, match="a page of the range from 5 on has rows from"):
            await bodies(ranges, 5, 50)


@asynchronous
async def test_a_page_that_is_not_what_the_replica_sent_is_not_shown() -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf()
        server.show = shelf.show
        shelf.spoils = True
        with pytest.raises(ProtocolError, match="digest"):
            await bodies(ranges, 1, 50)
        shelf.spoils, shelf.claims = False, 1
        with pytest.raises(ProtocolError, match="other than the 11 rows"):
            await bodies(ranges, 1, 50)


@asynchronous
async def test_loss_is_an_error_unless_it_is_allowed() -> None:
    async with serving() as server, reading(server) as ranges:
        shelf = Shelf()
        server.show = shelf.show
        shelf.losses = (RangeLoss(7, 3, 9),)
        with pytest.raises(RangeLost) as raised:
            await bodies(ranges, 1, 50)
        error = raised.value
        assert (error.destination, error.channel, error.first, error.last) == ("topic:prices", "a", 3, 9)
        assert "topic:prices" in error.text and "3 to 9" in error.text
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is RangeLost and (again.first, again.last, again.text) == (3, 9, error.text)
        assert await bodies(ranges, 1, 50, allow_lost=True) == numbers(1, 50)
        assert all(wish.allow_lost for wish in shelf.held[-3:])


@asynchronous
async def test_what_cannot_be_read_is_said_in_words() -> None:
    async with serving() as server, reading(server) as ranges:
        server.refusals[frames.RangeRead] = ("range.unavailable", "too far")
        with pytest.raises(RangeUnavailable, match="too far"):
            await bodies(ranges, 1, 50)
        server.refusals[frames.RangeRead] = ("destination.unknown", "7")
        with pytest.raises(DestinationError, match="topic:prices"):
            await bodies(ranges, 1, 50)
        server.refusals[frames.DestinationOpen] = ("destination.unknown", "")
        with pytest.raises(DestinationError, match="topic:nowhere"):
            await ranges.destinations(["topic:nowhere"])
        for start, stop, wanted in ((0, 5, PRICES), (6, 5, PRICES), (1, 5, ())):
            with pytest.raises(LocalError):
                await anext(ranges.read("a", start, stop, wanted))
        with pytest.raises(LocalError):
            await ranges.destinations()
        with pytest.raises(LocalError):
            await ranges.destinations("topic:x")
        with pytest.raises(LocalError, match="glob"):
            await ranges.destinations(pattern="x", match="like")  # type: ignore[arg-type]
        await ranges.close()
        with pytest.raises(LocalError, match="closed"):
            await ranges.channels()


# -- questions -------------------------------------------------------------------------------------


class Desk:
    """Answers questions about two channels."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.heads = {"a": 10, "b": 20}
        self.asked: list[tuple[str, int, int, dict[str, Any]]] = []
        self.names: list[tuple[int, str]] = [(1, "topic:eu.x"), (2, "queue:eu.x"), (3, "topic:_own")]
        self.versions = [5]
        self.answers: dict[str, Any] = {}
        self.waiting: dict[str, frames.RangeAsk] = {}  # by channel, the last one that was not answered
        server.show = self.show

    def show(self, wish: frames.RangeAsk) -> frames.ServerFrame | None:
        question = json.loads(wish.question)
        self.asked.append((wish.channel, wish.floor, wish.wait_ms, question))
        told = self.answer(wish.channel, wish.wait_ms, question)
        if told is None:
            self.waiting[wish.channel] = wish
            return None
        return frames.RangeTold(request=wish.request, answer=json.dumps(told))

    def end_waiting(self, channel: str) -> None:
        """The time is over, or there is news: it is told how it is."""
        wish = self.waiting.pop(channel)
        told = self.answer(channel, 0, json.loads(wish.question))
        self.server.say(frames.RangeTold(request=wish.request, answer=json.dumps(told)))

    def answer(self, channel: str, wait_ms: int, question: dict[str, Any]) -> dict[str, Any] | None:
        match question["question"]:
            case "channels":
                return {"channels": ["a", "b"]}
            case "list":
                is_more = channel == "a" and len(self.versions) > 1
                version = self.versions.pop(0) if is_more else self.versions[0]
                rows = [row for row in self.names if row[0] > question["after"]] if channel == "a" else []
                more = len(rows) > 2
                return {"rows": rows[:2], "parts": [], "more": more, "version": version, "applied": 9}
            case "heads":
                if wait_ms and self.heads[channel] <= question["above"]:
                    return None
                return {
                    "next": self.heads[channel],
                    "first": 1,
                    "applied": 30,
                    "version": 5,
                    "log_time_ms": 1,
                    "rows": 2,
                    "bytes": 3,
                    "destinations": [[id, 1, self.heads[channel], 0] for id in question["destinations"]],
                }
        found: dict[str, Any] = self.answers[question["question"]]
        return found


BOTH = (RangeDestination("topic:x", "a", 7), RangeDestination("topic:y", "b", 7))


@asynchronous
async def test_names_are_matched_whole_and_the_system_s_own_never() -> None:
    async with serving() as server, reading(server) as ranges:
        Desk(server)
        assert [one.name for one in await ranges.destinations(pattern="*")] == ["topic:eu.x", "queue:eu.x"]
        assert [one.name for one in await ranges.destinations(pattern="topic:eu.?")] == ["topic:eu.x"]
        assert await ranges.destinations(pattern="topic:eu") == ()
        assert ranges.versions == {"a": 5, "b": 5}


@asynchronous
async def test_a_listing_during_which_something_is_made_begins_anew() -> None:
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        desk.versions = [5, 6]
        await ranges.destinations(pattern="*")
        in_a = [question["after"] for channel, _, _, question in desk.asked if channel == "a"]
        assert in_a == [0, 2, 0, 2] and ranges.versions["a"] == 6


@asynchronous
async def test_what_is_heard_later_is_not_older() -> None:
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        head = (await ranges.heads(PRICES + PRICES, {"a": 4}))["a"]
        assert desk.asked[-1][3]["destinations"] == [7], "named twice, asked for once"
        assert (head.channel, head.next, head.rows, head.bytes) == ("a", 10, 2, 3)
        assert head.destinations[0][:4] == (7, 1, 10, 0)
        assert desk.asked[-1][1] == 0
        assert (await ranges.heads(PRICES, {"a": 40}))["a"].next == 40, "it is not less than is known"
        assert desk.asked[-1][1] == 30
        shelf = Shelf()
        server.show = shelf.show
        await bodies(ranges, 1, 5)
        assert shelf.held[0].floor == 30


@asynchronous
async def test_a_destination_that_is_gone_is_named_to_who_asks_how_far_it_goes() -> None:
    async with serving() as server, reading(server) as ranges:
        Desk(server)
        await ranges.heads(PRICES)
        server.refusals[frames.RangeAsk] = ("destination.unknown", "7")
        for wait_s in (0.0, 1.0):
            with pytest.raises(DestinationError, match="there is no destination topic:prices any more"):
                await ranges.heads(PRICES, wait=wait_s)
        with pytest.raises(DestinationError, match="there is no destination topic:prices any more"):
            await ranges.bound("a", PRICES, 1, 5)


@asynchronous
async def test_the_first_channel_with_news_ends_the_waiting_and_all_are_asked_once_more() -> None:
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        heads = await ranges.heads(BOTH, {"a": 10, "b": 5}, wait=5)
        assert (heads["a"].next, heads["b"].next) == (10, 20)
        waits = [(channel, wait_ms) for channel, _, wait_ms, _ in desk.asked]
        assert waits == [("a", 5_000), ("b", 5_000), ("a", 0)]


@asynchronous
async def test_a_channel_that_waits_still_is_not_asked_again_until_it_is_another_question() -> None:
    """Servers wait for as long as they were told: what piles up there would hold up all that follows."""
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        for news in range(21, 31):
            desk.heads["b"] = news
            heads = await ranges.heads(BOTH, {"a": 10, "b": news - 1}, wait=5)
            assert heads["b"].next == news
        waiting = [channel for channel, _, wait_ms, _ in desk.asked if wait_ms]
        assert waiting == ["a", *"b" * 10]
        desk.heads |= {"a": 11, "b": 31}
        assert (await ranges.heads(BOTH, {"a": 11, "b": 30}, wait=5))["b"].next == 31
        waiting = [channel for channel, _, wait_ms, _ in desk.asked if wait_ms]
        assert waiting[-2:] == ["a", "b"]


@asynchronous
async def test_that_the_time_of_an_earlier_question_is_over_does_not_end_the_next_one() -> None:
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        await ranges.heads(BOTH, {"a": 10, "b": 5}, wait=5)
        asked = len(desk.asked)
        second = asyncio.create_task(ranges.heads(BOTH, {"a": 10, "b": 20}, wait=5))
        await server.until(lambda: len(desk.asked) == asked + 1)
        desk.end_waiting("a")
        # It is asked once more, for what is left of the time.
        await server.until(lambda: len(desk.asked) == asked + 2)
        channel, _, wait_ms, _ = desk.asked[-1]
        assert channel == "a" and 0 < wait_ms <= 5_000 and not second.done()
        desk.heads["b"] = 21
        desk.end_waiting("b")
        assert (await second)["b"].next == 21


@asynchronous
async def test_channels_without_destinations_can_be_watched() -> None:
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        await ranges.destinations(pattern="*")
        heads = await ranges.heads(PRICES, channels=["b"])
        assert sorted(heads) == ["a", "b"] and heads["b"].destinations == ()
        assert desk.asked[-1][3]["version"] == 5


@asynchronous
async def test_bounds_and_times_are_asked_for() -> None:
    async with serving() as server, reading(server) as ranges:
        desk = Desk(server)
        desk.answers = {"bound": {"stop": 4, "rows": 2, "bytes": 3}, "time": {"number": 17}}
        assert await ranges.bound("b", BOTH, 1, 9, rows=5) == (4, 2, 3)
        channel, _, _, question = desk.asked[-1]
        assert channel == "b" and question["destinations"] == [7] and question["rows"] == 5
        assert await ranges.at_time("a", 99) == 17


# -- holds -----------------------------------------------------------------------------------------


@asynchronous
async def test_a_hold_is_a_command_in_each_channel_it_has_destinations_in() -> None:
    async with serving() as server, reading(server) as ranges:
        Desk(server)
        await ranges.hold("nightly", {"a": 5, "b": 6, "c": 7}, BOTH, limit=60, acks=True)
        assert sorted(wishes(server, Hold), key=lambda hold: hold.position) == [
            Hold(name="nightly", position=5, limit_ms=60_000, acks=True, destinations=(7,)),
            Hold(name="nightly", position=6, limit_ms=60_000, acks=True, destinations=(7,)),
        ]
        assert [frame.channel for frame in server.heard_of(frames.Command)] == ["a", "b"]
        await ranges.release("nightly", ["a"])
        (release,) = wishes(server, ReleaseHold)
        assert release.name == "nightly" and release.heard > 0, "the answer to its hold had a number"
        await ranges.release("nightly")
        assert len(wishes(server, ReleaseHold)) == 3


@asynchronous
async def test_a_hold_that_is_refused_says_why() -> None:
    async with serving() as server, reading(server) as ranges:
        server.judge = refusing(Hold, OutcomeCode.REFUSED, "somebody else consumes it")
        with pytest.raises(RangeError, match="'nightly' in channel a: somebody else"):
            await ranges.hold("nightly", {"a": 5}, PRICES, consume=True)
        server.judge = refusing(Hold, OutcomeCode.NO_DESTINATION, "")
        with pytest.raises(DestinationError, match="nightly"):
            await ranges.hold("nightly", {"a": 5}, PRICES)
        for wrong in ({"limit": 0}, {"limit": 10**9}):
            with pytest.raises(LocalError):
                await ranges.hold("nightly", {"a": 5}, PRICES, **wrong)  # type: ignore[arg-type]
        with pytest.raises(LocalError):
            await ranges.hold("", {"a": 5}, PRICES)


@asynchronous
async def test_a_word_that_is_outdated_is_said_again_with_the_number_that_was_heard_of() -> None:
    async with serving() as server, reading(server) as ranges:
        server.judge = refusing(Hold, OutcomeCode.OUTDATED, "a hold has ended since", sequence=77)
        await ranges.hold("nightly", {"a": 5}, PRICES)
        assert [hold.heard for hold in wishes(server, Hold)] == [0, 77]
        server.judge = refusing(ReleaseHold, OutcomeCode.OUTDATED, "a hold has begun since", sequence=99)
        await ranges.release("nightly", ["a"])
        assert [release.heard for release in wishes(server, ReleaseHold)] == [77, 99]
        server.judge = refusing(Hold, OutcomeCode.OUTDATED, "a hold has ended since", sequence=99)
        with pytest.raises(RangeError, match="a hold has ended since"):
            # It was heard of: who says so all the same is not asked again and again.
            await ranges.hold("nightly", {"a": 5}, PRICES)


@asynchronous
async def test_a_hold_is_said_in_another_session_when_its_own_is_over() -> None:
    async with serving() as server, reading(server) as ranges:
        server.judge = refusing(Hold, OutcomeCode.SESSION_UNKNOWN, "")
        await ranges.hold("nightly", {"a": 5}, PRICES)
        assert len({header.session for header, _ in server.commands}) == 2
        server.judge = refusing(Hold, OutcomeCode.SESSION_UNKNOWN, "it has expired", times=99)
        with pytest.raises(AntiphonError, match="it has expired"):
            await ranges.hold("nightly", {"a": 5}, PRICES)
