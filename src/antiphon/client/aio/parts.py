"""Parts: opening what has a part in several channels, of which some may be away at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from antiphon.errors import AntiphonError, DestinationUnavailable, Timeout

PAUSE_SECONDS: Final = 0.5
"""After so long a channel that was away is asked again."""

LATE_SECONDS: Final = 1.0
"""For so long channels that have not answered yet hold up those that are there."""

Opening: TypeAlias = Callable[[], Awaitable[Any]]
"""Opens a part; may be called again, also while an earlier call goes on."""


def is_away(error: BaseException) -> bool:
    """Does the channel not answer, or take nothing? Then it is asked again later."""
    return isinstance(error, DestinationUnavailable | Timeout)


async def told(openings: Mapping[str, Opening], *, waits: bool = False) -> dict[str, BaseException | None]:
    """What came of opening each part.

    When one is open, the others are waited for a moment only, unless this `waits` for all.
    """
    tasks = {channel: asyncio.ensure_future(opening()) for channel, opening in openings.items()}
    try:
        done, late = await asyncio.wait(tasks.values(), timeout=None if waits else LATE_SECONDS)
        while late and all(task.exception() for task in done):
            done, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks.values():
            task.cancel()  # the part goes on opening
    return {
        channel: Timeout(f"channel {channel} has not answered") if task in late else task.exception()
        for channel, task in tasks.items()
    }


async def until_open(opening: Opening) -> None:
    """Open a part, however long its channel is away."""
    while True:
        try:
            await opening()
            return
        except AntiphonError as error:
            if not is_away(error):
                raise
            await asyncio.sleep(PAUSE_SECONDS)
