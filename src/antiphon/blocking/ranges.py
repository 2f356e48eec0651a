"""Ranges: what is stored, read by numbers, without consuming it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping

from antiphon.blocking.block import Block
from antiphon.blocking.loop import LoopThread
from antiphon.client import ranges as asynchronous
from antiphon.client.durations import Duration
from antiphon.client.holds import LIMIT_DEFAULT_S, HoldReport
from antiphon.client.ranges import PAGE_BYTES, Bound, ChannelHead, Match, RangeDestination, RangePage


class Ranges(Block):
    """Reads what is stored; see `antiphon.Ranges`.

    >>> with connection.ranges() as ranges:
    ...     prices = ranges.destinations(["topic:prices"])
    ...     for channel, head in ranges.heads(prices).items():
    ...         for page in ranges.read(channel, head.first, head.next, prices):
    ...             print(page.rows)
    """

    def __init__(self, loop: LoopThread, ranges: asynchronous.Ranges) -> None:
        self._loop = loop
        self._ranges = ranges

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on?"""
        return self._ranges.closed

    @property
    def versions(self) -> Mapping[str, int]:
        """Of each channel that was listed, the number of the last change of what exists there."""
        return self._ranges.versions

    def destinations(
        self, names: Iterable[str] = (), *, pattern: str | None = None, match: Match = "glob"
    ) -> tuple[RangeDestination, ...]:
        """Where destinations are, by their names or by a pattern for them.

        >>> ranges.destinations(pattern="topic:orders.*")
        (RangeDestination(name='topic:orders.eu', channel='a', id=17, since=0),)
        """
        return self._loop.run(self._ranges.destinations(names, pattern=pattern, match=match))

    def channels(self) -> tuple[str, ...]:
        """The channels of the system.

        >>> ranges.channels()
        ('a', 'b')
        """
        return self._loop.run(self._ranges.channels())

    def cluster(self) -> str:
        """The id of the cluster that answers: numbers mean something only together with it.

        >>> ranges.cluster()
        '7c41f09a5b0e4d2e8a1f6c3d9b507e12'
        """
        return self._loop.run(self._ranges.cluster())

    def heads(
        self,
        destinations: Iterable[RangeDestination],
        above: Mapping[str, int] | None = None,
        *,
        wait: Duration = 0,
        channels: Iterable[str] = (),
        acks: bool = False,
    ) -> dict[str, ChannelHead]:
        """How far the destinations go, by channel; with `wait`, when there is more than `above` says.

        >>> ranges.heads(prices, {"a": 5_000}, wait=0.1)["a"].next
        5012
        """
        return self._loop.run(
            self._ranges.heads(destinations, above, wait=wait, channels=channels, acks=acks)
        )

    def bound(
        self,
        channel: str,
        destinations: Iterable[RangeDestination],
        start: int,
        stop: int,
        *,
        rows: int | None = None,
        bytes: int | None = None,
    ) -> Bound:
        """Up to which number there are at most so many messages, or so many bytes.

        >>> ranges.bound("a", prices, 1, 5_000, rows=100)
        Bound(stop=131, rows=100, bytes=25_600)
        """
        return self._loop.run(self._ranges.bound(channel, destinations, start, stop, rows=rows, bytes=bytes))

    def at_time(self, channel: str, log_time_ms: int) -> int:
        """The number from which on everything lies that was stored at this time or later.

        >>> ranges.at_time("a", 1_700_000_000_000)
        5012
        """
        return self._loop.run(self._ranges.at_time(channel, log_time_ms))

    def read(
        self,
        channel: str,
        start: int,
        stop: int,
        destinations: Iterable[RangeDestination],
        *,
        allow_lost: bool = False,
        acks: bool = False,
        live: bool = False,
        page_bytes: int = PAGE_BYTES,
    ) -> Iterator[RangePage]:
        """All that is stored of these destinations from number `start` on and below `stop`, page by page.

        >>> for page in ranges.read("a", 1, 5_000, prices):
        ...     for piece in page.pieces:
        ...         print(piece.first, piece.batch.bodies())
        """
        pages = self._ranges.read(
            channel,
            start,
            stop,
            destinations,
            allow_lost=allow_lost,
            acks=acks,
            live=live,
            page_bytes=page_bytes,
        )
        try:
            while (page := self._loop.run(_next(pages))) is not None:
                yield page
        finally:
            self._loop.leave(_close(pages))

    def hold(
        self,
        name: str,
        positions: Mapping[str, int],
        destinations: Iterable[RangeDestination],
        *,
        limit: Duration = LIMIT_DEFAULT_S,
        consume: bool = False,
        acks: bool = False,
    ) -> None:
        """Have everything of these destinations kept from `positions` on.

        >>> ranges.hold("nightly", {"a": 5_000}, prices)
        """
        self._loop.run(
            self._ranges.hold(name, positions, destinations, limit=limit, consume=consume, acks=acks)
        )

    def release(self, name: str, channels: Iterable[str] = ()) -> None:
        """End a hold, in these channels or in all.

        >>> ranges.release("nightly")
        """
        self._loop.run(self._ranges.release(name, channels))

    def holds(self) -> tuple[HoldReport, ...]:
        """All holds there are, in every channel.

        >>> [(hold.name, hold.rows) for hold in ranges.holds()]
        [('nightly', 120)]
        """
        return self._loop.run(self._ranges.holds())

    def close(self) -> None:
        """Read no more. Holds stay.

        >>> ranges.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._ranges.close())

    def __repr__(self) -> str:
        return repr(self._ranges)


async def _next(pages: AsyncIterator[RangePage]) -> RangePage | None:
    return await anext(pages, None)


async def _close(pages: AsyncGenerator[RangePage, None]) -> None:
    await pages.aclose()
