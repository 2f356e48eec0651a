"""What arrives may be left lying for a moment, or be looked for before its time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.transport.udp import DRAIN_MAX
from antiphon.wire.lanes import Lane
from tests.integration.transports.stage import UDP, hall, run

# Far longer than a frame takes here, and short enough to wait for.
GATHER_SECONDS = 0.3


@pytest.mark.parametrize("kind", UDP)
def test_what_arrives_within_the_time_is_delivered_in_one_call(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            await members.acquainted()
            members.members[2].gather_seconds = GATHER_SECONDS
            members.calls[2].clear()
            members.heard[2].clear()
            for at in range(3):
                members.members[1].multicast(Lane.DATA, [b"frame %d" % at])
                members.members[1].flush()
                # Each in a round of its own, in which the other could be woken.
                await asyncio.sleep(0)
            await members.until(lambda: len(members.heard[2]) >= 3)
            assert [one.frame for one in members.heard[2]] == [b"frame 0", b"frame 1", b"frame 2"]
            assert members.calls[2] == [3]
            # It listens again.
            members.members[2].gather_seconds = 0.0
            members.members[1].multicast(Lane.DATA, [b"one more"])
            members.members[1].flush()
            await members.until(lambda: len(members.heard[2]) == 4)

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_more_than_a_wake_up_takes_is_not_left_lying_once_more(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            await members.acquainted()
            loop = asyncio.get_running_loop()
            call_later = loop.call_later
            heard_by_then: list[int] = []

            def noting(seconds: float, *what: Any, **more: Any) -> asyncio.TimerHandle:
                if seconds == GATHER_SECONDS:
                    heard_by_then.append(len(members.heard[2]))
                return call_later(seconds, *what, **more)

            monkeypatch.setattr(loop, "call_later", noting)
            members.members[2].gather_seconds = GATHER_SECONDS
            count = 3 * DRAIN_MAX + 1
            for _ in range(count):
                # A datagram each: all of them lie there when the first are taken.
                members.members[1].multicast(Lane.DATA, [b"frame"])
                members.members[1].flush()
            await members.until(lambda: len(members.heard[2]) == count)
            assert set(heard_by_then) <= {0, count}, "some of them had to wait twice"

    run(story())


@pytest.mark.parametrize("kind", UDP)
def test_who_looks_need_not_wait(kind: str) -> None:
    async def story() -> None:
        async with hall(kind, 2) as members:
            await members.acquainted()
            members.heard[2].clear()
            members.members[1].multicast(Lane.DATA, [b"here already"])
            members.members[1].flush()
            # On a loopback it lies in the other's socket by now, and no round of the loop has passed.
            members.members[2].look()
            assert [one.frame for one in members.heard[2]] == [b"here already"]
            members.members[2].look()
            assert len(members.heard[2]) == 1

    run(story())
