"""Ranges against what they mean: pages put together are what is stored, whatever their size.

The stored state is made by drawn commands to two topics and two queues of one channel, with retention that
lets go of some, acknowledgements that punch holes, batches and lone messages.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import Batch
from antiphon.bus.messages import About, Query, RangeReply, RangeRequest, Reply
from antiphon.message_manager.manager import MessageManager
from antiphon.wire.range_frames import decode_page
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import Client, MemoryPayloads, sent, show

SMALL = '{"retention":1,"retention_bytes":900}'

places = st.integers(0, 200)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3), st.integers(1, 6)),
        st.tuples(st.just("publish"), st.integers(0, 3), st.integers(1, 6)),
        st.tuples(st.just("ack"), st.integers(2, 3), places, st.integers(1, 4)),
        st.tuples(st.just("time"), st.integers(100, 700)),
        st.tuples(st.just("mark")),
    ),
    min_size=5,
    max_size=40,
)


class Story:
    """A channel, and what is stored in it by an account of our own."""

    def __init__(self, drawn: list[tuple[Any, ...]]) -> None:
        self.channel = RestoredChannel()
        self.client = Client()
        self.channel.order(self.client.open())
        self.ids = [
            self.channel.create_topic("all"),
            self.channel.create_topic("few", SMALL),
            self.channel.create("one"),
            self.channel.create("two"),
        ]
        self.bodies: dict[int, tuple[int, bytes]] = {}
        for kind, *more in drawn:
            getattr(self, f"_{kind}")(*more)

    def _publish(self, which: int, count: int) -> None:
        bodies = [b"%d-%d" % (self.channel.next, row) * 9 for row in range(count)]
        first = self.channel.order(self.client.publish(self.ids[which], bodies))
        for row, body in enumerate(bodies):
            self.bodies[first + row] = (self.ids[which], body)

    def _ack(self, which: int, place: int, count: int) -> None:
        live = list(self._destination(which).live.numbers())
        if live:
            number = live[place % len(live)]
            self.channel.order(self.client.ack(self.ids[which], (number, number + count)))

    def _time(self, ms: int) -> None:
        self.channel.pass_time(ms)

    def _mark(self) -> None:
        self.channel.mark()

    def _destination(self, which: int) -> Any:
        return self.channel.manager.state.directory.get(self.ids[which])

    def stored(self, wanted: list[int], start: int, stop: int) -> list[tuple[int, int, bytes]]:
        """What is stored of these, number by number."""
        found = []
        for which in wanted:
            for number in self._destination(which).stored.numbers():
                if start <= number < stop:
                    found.append((number, *self.bodies[number]))
        return sorted(found)

    def lost(self, which: int) -> list[int]:
        """The numbers of this topic that are not stored any more."""
        kept = set(self._destination(which).stored.numbers())
        return [
            number for number, (id, _) in self.bodies.items() if id == self.ids[which] and number not in kept
        ]

    def replica(self) -> MessageManager:
        """Another one, which has applied the same and is not the primary."""
        payloads = MemoryPayloads(3)
        manager = MessageManager("main", 2, payloads)
        for entry, payload in self.channel.log:
            show(manager, payloads, entry, payload)
        return manager


def answer(manager: MessageManager, message: RangeRequest | Query) -> RangeReply | Reply:
    manager.receive(0, 9, message)
    (reply,) = [one for one in sent(manager.flush(0, 0)) if isinstance(one, RangeReply | Reply)]
    assert reply.code == "", reply
    return reply


def read(
    manager: MessageManager, ids: list[int], start: int, stop: int, page_bytes: int, *, ahead: bool
) -> tuple[list[tuple[int, int, bytes]], set[tuple[int, int, int]]]:
    """All pages of a range one behind the other: their rows, and what they say is lost."""
    rows, losses = [], set()
    ends: list[int] = []
    at = start
    while at < stop:
        until = next((end for end in ends if end > at), stop)
        request = RangeRequest(
            1, 0, at, until, stop, page_bytes, 3 if ahead else 0, 0, True, False, tuple(ids), (0,) * len(ids)
        )
        reply = answer(manager, request)
        assert isinstance(reply, RangeReply)
        page = decode_page(b"".join(reply.page))
        assert at <= page.through + 1 <= until and (page.through >= at or not page.rows)
        assert list(page.ends) == sorted(set(page.ends))
        losses |= set(map(tuple, page.losses))  # type: ignore[arg-type]
        for id, first, count, _, data in page.pieces:
            batch = Batch.decode(data)
            assert batch.count == count and first + count - 1 <= page.through
            rows += [(first + row, id, body) for row, body in enumerate(batch.bodies())]
        at = page.through + 1
        ends = list(page.ends)
    return rows, losses


@given(
    steps,
    st.sets(st.integers(0, 3), min_size=1).map(sorted),
    places,
    places,
    st.sampled_from([1, 100, 300, 1_000, 1 << 20]),
    st.booleans(),
)
def test_pages_put_together_are_what_is_stored(
    drawn: list[tuple[Any, ...]], wanted: list[int], one: int, other: int, page_bytes: int, ahead: bool
) -> None:
    story = Story(drawn)
    start, stop = sorted((1 + one % story.channel.next, 1 + other % story.channel.next))
    ids = [story.ids[which] for which in wanted]
    expected = story.stored(wanted, start, stop)
    for manager in (story.channel.manager, story.replica()):
        rows, losses = read(manager, ids, start, stop, page_bytes, ahead=ahead)
        assert rows == expected
        for which in wanted:
            told = [loss for loss in losses if loss[0] == story.ids[which]]
            is_lost = which < 2 and start < stop and any(number >= start for number in story.lost(which))
            assert bool(told) == is_lost, (told, story.lost(which))


@given(
    steps,
    st.sets(st.integers(0, 3), min_size=1).map(sorted),
    places,
    places,
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 2_000),
)
def test_a_bound_is_the_largest_that_keeps_to_its_limits(
    drawn: list[tuple[Any, ...]],
    wanted: list[int],
    one: int,
    other: int,
    rows: int | None,
    size: int | None,
) -> None:
    story = Story(drawn)
    start, stop = sorted((1 + one % story.channel.next, 1 + other % story.channel.next))
    ids = [story.ids[which] for which in wanted]
    question = {
        "question": "bound",
        "destinations": ids,
        "start": start,
        "stop": stop,
        "rows": rows,
        "bytes": size,
    }
    reply = answer(story.channel.manager, Query(1, About.RANGES, json.dumps(question)))
    assert isinstance(reply, Reply)
    bound = json.loads(reply.answer)

    def weight(end: int) -> int:
        """Of the batches that reach into the range and are in the index, whether they live or not."""
        return sum(story._destination(which).index.bytes_between(start, end) for which in wanted)

    def fits(end: int) -> bool:
        return (rows is None or len(story.stored(wanted, start, end)) <= rows) and (
            size is None or weight(end) <= size
        )

    expected = max(end for end in range(start, stop + 1) if fits(end))
    if expected < stop and not story.stored(wanted, start, expected):
        # Even the first batch is too much: then it, or as many rows of it as may be.
        left = story.stored(wanted, start, stop)
        expected = stop
        if left:
            first, id, _ = left[0]
            batch = story._destination(story.ids.index(id)).index.find(first)
            expected = min(stop, batch.stop, first + (rows or batch.count))
    assert bound == {
        "stop": expected,
        "rows": len(story.stored(wanted, start, expected)),
        "bytes": weight(expected),
    }
