"""The desk of a bus member: commands in, load out, answers back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.bus.effects import EnvelopeConfirmed, EnvelopeUncertain, Submitted
from antiphon.wire.commands import count_of, iterate_commands
from tests.bus_load import BusDesk


class Hall:
    """A desk, and a channel that does what the test says."""

    def __init__(self) -> None:
        self.submitted: list[Submitted] = []
        self.figures = {"applied": 0, "epoch": 0}
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.desk = BusDesk(
            1,
            self.submitted.extend,
            lambda: {"node": 1},
            lambda: self.figures,
            lambda line: self.answers.put_nowait(json.loads(line)),
        )

    def confirm(self, submitted: Submitted, first: int) -> None:
        self.desk.carry_out(EnvelopeConfirmed(submitted.tag, first, submitted.count, ()))


def tell(story: Callable[[Hall], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await story(Hall())

    asyncio.run(run())


def test_what_makes_no_sense_is_answered_with_an_error() -> None:
    async def story(hall: Hall) -> None:
        for line in ("dance", "load size=3", "load envelopes=many", "status\n"):
            hall.desk.take_line(line)
        answers = [await hall.answers.get() for _ in range(4)]
        assert [answer["to"] for answer in answers] == [1, 2, 3, 4]
        assert ["error" in answer for answer in answers] == [True, True, True, False]
        assert answers[3]["status"] == {"node": 1}

    tell(story)


def test_a_load_is_submitted_as_publish_commands_and_answered_when_all_is_confirmed() -> None:
    async def story(hall: Hall) -> None:
        hall.desk.take_line("load envelopes=3 messages=20 size=256 list=1")
        assert [(one.count, count_of(one.payload)) for one in hall.submitted] == [(20, 20)] * 3
        headers = [next(iterate_commands(one.payload))[0] for one in hall.submitted]
        assert [header.number for header in headers] == [1, 21, 41]
        assert {header.session for header in headers} == {hall.desk.session}
        assert hall.answers.empty()
        hall.desk.carry_out(EnvelopeUncertain(hall.submitted[1].tag))
        for place, one in enumerate(hall.submitted):
            hall.confirm(one, 100 + 20 * place)
        result = (await hall.answers.get())["load"]
        assert (result["envelopes"], result["messages"], result["uncertain"]) == (3, 60, 1)
        assert result["places"] == [[1, 100, 20], [21, 120, 20], [41, 140, 20]]

    tell(story)


def test_a_large_load_is_submitted_as_it_is_confirmed() -> None:
    async def story(hall: Hall) -> None:
        hall.desk.take_line("load envelopes=1000 messages=220 size=256")
        ahead = len(hall.submitted)
        assert 2 <= ahead < 1_000
        hall.confirm(hall.submitted[0], 1)
        hall.confirm(hall.submitted[1], 221)
        await asyncio.sleep(0)
        assert len(hall.submitted) == ahead + 2

    tell(story)


def test_whoever_waits_is_told_when_all_is_reached() -> None:
    async def story(hall: Hall) -> None:
        hall.desk.take_line("wait applied=5 epoch=2")
        hall.figures = {"applied": 9, "epoch": 1}
        hall.desk.look()
        assert hall.answers.empty()
        hall.figures["epoch"] = 3
        hall.desk.look()
        assert await hall.answers.get() == {"to": 1, "reached": {"applied": 9, "epoch": 3}}

    tell(story)
