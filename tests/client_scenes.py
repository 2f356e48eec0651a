"""What tests of clients with real servers have in common: deadlines, bodies, what is stored by its number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import antiphon
from antiphon.client.aio.ranges import RangeDestination, RangePage, Ranges

Rows = list[tuple[int, int, bytes]]
"""Number, destination and body of each."""


def run(test: Coroutine[Any, Any, None], seconds: float = 60) -> None:
    asyncio.run(asyncio.wait_for(test, seconds))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


@asynccontextmanager
async def reading(url: str) -> AsyncIterator[tuple[antiphon.Connection, antiphon.Session, Ranges]]:
    """A connection with a session and ranges."""
    async with (
        antiphon.connect(url) as connection,
        connection.session() as session,
        connection.ranges() as ranges,
    ):
        yield connection, session, ranges


def rows_of(page: RangePage) -> Rows:
    return [
        (piece.first + row, piece.destination, body)
        for piece in page.pieces
        for row, body in enumerate(piece.batch.bodies())
    ]


async def rows(
    ranges: Ranges, destinations: tuple[RangeDestination, ...], start: int, stop: int, **how: Any
) -> Rows:
    """A whole range, all of whose pages follow each other."""
    found: Rows = []
    through = start - 1
    async for page in ranges.read(destinations[0].channel, start, stop, destinations, **how):
        some = rows_of(page)
        assert page.rows == len(some) and page.through > through
        assert all(through < number <= page.through for number, _, _ in some)
        through = page.through
        found += some
    assert through == stop - 1
    return found
