"""The runner: what happens in a round is one step, and no step is taken for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from antiphon import clock
from antiphon.bus.effects import Synced
from antiphon.node import InChannel
from antiphon.runtime.node_runner import NodeRunner

LIMIT_S = 10.0


class NotingMachines:
    """Does nothing, and notes with what it was stepped."""

    def __init__(self) -> None:
        self.steps: list[list[Any]] = []
        self.deadline_ns: int | None = None
        self.stepped = asyncio.Event()

    is_serving = True

    def next_deadline_ns(self) -> int | None:
        return self.deadline_ns

    def step(self, now_ns: int, wall_ms: int, events: Iterable[Any]) -> list[Any]:
        if self.deadline_ns is not None and now_ns >= self.deadline_ns:
            self.deadline_ns = None
        self.steps.append(list(events))
        self.stepped.set()
        return []


class NoPort:
    def carry_out(self, effect: Any) -> None:
        raise AssertionError("nothing was asked for")


def play(story: Callable[[NotingMachines, NodeRunner], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        machines = NotingMachines()
        runner = NodeRunner(machines)
        runner.begin_in({}, [], NoPort())
        async with asyncio.timeout(LIMIT_S):
            await machines.stepped.wait()
            assert machines.steps == [[]], "the first step needs no event"
            machines.steps.clear()
            await story(machines, runner)
        runner.end()

    asyncio.run(run())


async def rounds(count: int = 5) -> None:
    """Let the loop come round so often."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_the_disk_tells_is_taken_together_with_what_arrives_and_only_once() -> None:
    async def story(machines: NotingMachines, runner: NodeRunner) -> None:
        runner.tell("a", Synced(1))
        runner.take(["arrived"])
        await rounds()
        assert machines.steps == [[InChannel("a", Synced(1)), "arrived"]]

    play(story)


def test_what_the_disk_tells_is_taken_when_nothing_arrives() -> None:
    async def story(machines: NotingMachines, runner: NodeRunner) -> None:
        runner.tell("a", Synced(1))
        runner.tell("a", Synced(2))
        await rounds()
        assert machines.steps == [[InChannel("a", Synced(1)), InChannel("a", Synced(2))]]

    play(story)


def test_a_step_is_taken_when_it_is_due_and_not_before() -> None:
    async def story(machines: NotingMachines, runner: NodeRunner) -> None:
        due_ns = clock.now_ns() + 3_400_000
        machines.deadline_ns = due_ns
        runner.take(["arrived"])
        machines.steps.clear()
        machines.stepped.clear()
        await machines.stepped.wait()
        assert clock.now_ns() >= due_ns
        # Had it been woken too early, there would be more of them.
        assert machines.steps == [[]]

    play(story)


def test_no_step_is_taken_for_a_deadline_that_was_put_off() -> None:
    async def story(machines: NotingMachines, runner: NodeRunner) -> None:
        machines.deadline_ns = clock.now_ns() + 3_000_000
        runner.take(["arrived"])
        due_ns = machines.deadline_ns = clock.now_ns() + 9_000_000
        runner.take(["arrived"])
        machines.steps.clear()
        machines.stepped.clear()
        await machines.stepped.wait()
        assert clock.now_ns() >= due_ns
        assert machines.steps == [[]]

    play(story)


def test_before_a_step_for_the_disk_the_runner_looks_whether_something_has_arrived() -> None:
    async def run() -> None:
        machines = NotingMachines()
        runner = NodeRunner(machines)
        arrived: list[str] = []

        def look() -> None:
            if arrived:
                runner.take([arrived.pop()])

        runner.begin_in({}, [], NoPort(), [look])
        async with asyncio.timeout(LIMIT_S):
            await machines.stepped.wait()
            machines.steps.clear()
            arrived.append("arrived")
            runner.tell("a", Synced(1))
            await rounds()
            assert machines.steps == [[InChannel("a", Synced(1)), "arrived"]]
            runner.tell("a", Synced(2))
            await rounds()
            assert machines.steps[1:] == [[InChannel("a", Synced(2))]]
        runner.end()

    asyncio.run(run())


def test_an_error_in_the_loop_that_nobody_caught_ends_the_node() -> None:
    async def story(machines: NotingMachines, runner: NodeRunner) -> None:
        runner.own_loop()

        def fail() -> None:
            raise KeyError("a bug")

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.wait([runner.failed], timeout=LIMIT_S)
        assert isinstance(runner.failed.exception(), KeyError)
        runner.take(["arrived"])
        assert machines.steps == [], "a node that failed does nothing more"

    play(story)


def test_what_a_socket_suffers_does_not_end_the_node() -> None:
    async def story(machines: NotingMachines, runner: NodeRunner) -> None:
        runner.own_loop()
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": "accept", "exception": OSError(24, "Too many open files")})
        loop.call_exception_handler({"message": "a warning"})
        await rounds()
        assert not runner.failed.done()
        runner.take(["arrived"])
        assert machines.steps == [["arrived"]]

    play(story)
