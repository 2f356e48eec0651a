"""The driver: when what was said leaves, with sockets that only note."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from antiphon.transport.driver import Driver
from antiphon.transport.link import Out
from antiphon.wire.lanes import Lane
from tests.unit.transport.links import settings_of

LIMIT_S = 10.0


class NotingDriver(Driver):
    def __init__(self) -> None:
        super().__init__(settings_of(1), is_repairing=True, datagram_bytes=1_400)
        self.sent: list[int] = []
        self.transmissions = 0
        self.spoken = asyncio.Event()

    async def _open(self) -> None:
        """There is nothing to open."""

    async def _close(self) -> None:
        """Nor to close."""

    def _has_room(self, stream: int) -> bool:
        return True

    def _transmit(self, outgoing: list[Out]) -> None:
        self.transmissions += 1
        self.sent += [destination for destination, _ in outgoing]
        self.spoken.set()

    def _take_late(self, now_ns: int) -> None:
        raise AssertionError("nothing was held back")


def play(story: Callable[[NotingDriver], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        driver = NotingDriver()
        await driver.start()
        driver.sent.clear()
        driver.transmissions = 0
        async with asyncio.timeout(LIMIT_S):
            await story(driver)
        await driver.close()

    asyncio.run(run())


async def rounds(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_was_said_leaves_at_the_end_of_the_round() -> None:
    async def story(driver: NotingDriver) -> None:
        driver.multicast(Lane.CONTROL, [b"one"])
        driver.multicast(Lane.CONTROL, [b"two"])
        assert driver.sent == []
        await rounds()
        assert len(driver.sent) == 1

    play(story)


def test_who_flushes_is_not_woken_for_what_has_left() -> None:
    async def story(driver: NotingDriver) -> None:
        driver.flushes_itself = False
        driver.multicast(Lane.CONTROL, [b"one"])
        driver.flush()
        assert len(driver.sent) == 1
        driver.flush()
        await rounds()
        assert driver.transmissions == 1

    play(story)


def test_what_was_flushed_is_still_vouched_for_when_it_is_quiet() -> None:
    async def story(driver: NotingDriver) -> None:
        driver.flushes_itself = False
        driver.multicast(Lane.CONTROL, [b"one"])
        driver.flush()
        (lane,) = driver.sent
        # The word about how far the stream is comes by a timer, which the flush has set.
        while driver.sent.count(lane) < 2:
            await driver.spoken.wait()
            driver.spoken.clear()

    play(story)
