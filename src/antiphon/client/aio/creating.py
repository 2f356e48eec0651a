"""Bulk creation: many destinations in requests of several hundred names, a few of them at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Literal, NamedTuple

from antiphon.client.aio.link import ClientLink
from antiphon.errors import InvalidName, LocalError
from antiphon.names import parse_destination
from antiphon.wire.destination_frames import NAMES_MAX, DestinationsCreated

REQUESTS_AT_ONCE: Final = 4
"""While the channels make the names of one request, the client manager reads the next ones."""


class CreationResult(NamedTuple):
    """What became of one of many destinations; a refused one has the code of an error, and the reason."""

    destination: str
    outcome: Literal["made", "exists", "refused"]
    code: str = ""
    text: str = ""


async def create_many(
    link: ClientLink, names: Iterable[str], settings: str, timeout: float
) -> list[CreationResult]:
    """Make destinations; the results are in the order of the names."""
    results: list[CreationResult] = []
    asked: deque[asyncio.Task[list[CreationResult]]] = deque()
    try:
        for part in _parts(names):
            if len(asked) == REQUESTS_AT_ONCE:
                results += await asked.popleft()
            asked.append(asyncio.create_task(_create(link, part, settings, timeout)))
        while asked:
            results += await asked.popleft()
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return results


def _parts(names: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while part := list(islice(rest, NAMES_MAX)):
        yield part


async def _create(link: ClientLink, names: list[str], settings: str, timeout: float) -> list[CreationResult]:
    # A name that cannot be is refused here: a text of any length fits no request.
    results = {at: _refused(name, why) for at, name in enumerate(names) if (why := _fault(name)) is not None}
    places = [at for at in range(len(names)) if at not in results]
    if places:
        request = link.core.create_destinations([names[at] for at in places], settings)
        created = await link.call(request, DestinationsCreated, timeout)
        for at in created.made.numbers():
            results[places[at]] = CreationResult(names[places[at]], "made")
        for at, code, text in created.refused:
            results[places[at]] = CreationResult(names[places[at]], "refused", code, text)
    return [results.get(at) or CreationResult(name, "exists") for at, name in enumerate(names)]


def _fault(name: str) -> InvalidName | None:
    if not isinstance(name, str):
        raise LocalError(f"the name of a destination is a text such as topic:prices; it was {name!r}")
    try:
        return None if parse_destination(name).can_be_chosen else InvalidName(not_to_choose(name))
    except InvalidName as error:
        return error


def _refused(name: str, why: InvalidName) -> CreationResult:
    return CreationResult(name, "refused", why.code, why.text)


def not_to_choose(name: str) -> str:
    return f"{name}: names that begin with _ are the system's own"
