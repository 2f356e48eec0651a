"""Answers about the stored ranges of a replica: heads, bounds, numbers at a time, names.

A question is a JSON object; a malformed question raises `ProtocolError`. Costs are by runs of numbers and by
stored batches, never by messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from antiphon.errors import ProtocolError
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.settings import channels_of

LISTING_LENGTH_MAX: Final = 1 << 19
"""Characters of names in one page of a listing, unless a single name has more."""

DESTINATIONS_MAX: Final = 65_536
EXACT_DESTINATIONS_MAX: Final = 64
"""With more destinations a bound may be a little lower than it could be."""

NEAR_LOOKS_MAX: Final = 8
NEAR_ENOUGH: Final = 0.875

_FIRST_STEP: Final = 1_024
_NUMBER_MAX: Final = (1 << 63) - 1

Question = dict[str, Any]


class NoSuchDestination(Exception):
    """A destination of the question does not exist (any more)."""

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.id = id


def read_question(text: str) -> Question:
    try:
        asked = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a question about ranges is not JSON") from None
    if (
        not isinstance(asked, dict)
        or not isinstance(asked.get("question"), str)
        or asked["question"] not in _TELLERS
    ):
        raise ProtocolError("there is no such question about ranges")
    return asked


def answer(state: ChannelState, asked: Question) -> str:
    """Raises ProtocolError or NoSuchDestination."""
    return json.dumps(_TELLERS[asked["question"]](state, asked), separators=(",", ":"))


def has_news(state: ChannelState, asked: Question) -> bool:
    """Whether the state has more than the asker knew."""
    if asked["question"] != "heads":
        return True
    version, above = asked.get("version"), _number(asked, "above", 0)
    if version is not None and state.directory.version != version:
        return True
    destinations = wanted(state, _ids(asked))
    if asked.get("acks") and destinations and state.holds.acknowledgements.last >= max(1, above):
        return True
    return any(destination.last_stored >= above for destination in destinations)


def wanted(state: ChannelState, ids: Sequence[int]) -> list[Destination]:
    found = []
    for id in ids:
        destination = state.directory.get(id)
        if destination is None:
            raise NoSuchDestination(id)
        found.append(destination)
    return found


def _ids(asked: Question) -> list[int]:
    ids = asked.get("destinations")
    if not isinstance(ids, list) or not all(type(id) is int for id in ids):
        raise ProtocolError("destinations are a list of ids")
    if len(ids) > DESTINATIONS_MAX or len(set(ids)) < len(ids):
        raise ProtocolError(f"destinations are at most {DESTINATIONS_MAX:,} ids, each of them once")
    return ids


def weight_of(asked: Question) -> int:
    ids = asked.get("destinations")
    return len(ids) if isinstance(ids, list) else 1


def _number(asked: Question, name: str, default: int | None = None) -> int:
    number = asked.get(name, default)
    if type(number) is not int or not 0 <= number <= _NUMBER_MAX:
        raise ProtocolError(f"{name} is a number from 0 on")
    return number


# -- heads ---------------------------------------------------------------------------------


def _heads(state: ChannelState, asked: Question) -> dict[str, Any]:
    """The ends of these destinations, and the rows and bytes at or above a number."""
    destinations, above = wanted(state, _ids(asked)), _number(asked, "above", 0)
    next_number = max((one.last_stored + 1 for one in destinations), default=1)
    if asked.get("acks"):
        next_number = max(next_number, state.holds.acknowledgements.last + 1)
    first, rows, size = next_number, 0, 0
    heads = []
    for destination in destinations:
        stored = destination.stored
        lowest = stored.first if stored else destination.last_stored + 1
        lost_through = destination.lost_through
        # The number of lost messages, and the log time of the last of them.
        lost = (destination.trimmed, state.times.time_of(lost_through)) if lost_through else ()
        heads.append((destination.id, lowest, destination.last_stored + 1, lost_through, *lost))
        if not stored:
            continue
        first = min(first, lowest)
        rows += stored.clip(above, _NUMBER_MAX).count
        size += destination.index.bytes_between(above, _NUMBER_MAX)
    return {
        "next": next_number,
        "first": first,
        "applied": state.applied,
        "version": state.directory.version,
        "log_time_ms": state.log_time_ms,
        "rows": rows,
        "bytes": size,
        "destinations": heads,
    }


# -- bounds --------------------------------------------------------------------------------


def _bound(state: ChannelState, asked: Question) -> dict[str, Any]:
    """The end of a range from `start` on with so many rows and bytes, but at least one batch, or row."""
    start, stop = _number(asked, "start"), _number(asked, "stop")
    rows = None if asked.get("rows") is None else max(1, _number(asked, "rows"))
    size = None if asked.get("bytes") is None else max(1, _number(asked, "bytes"))
    # Most of many destinations have nothing in the range.
    destinations = [one for one in wanted(state, _ids(asked)) if one.last_stored >= start]

    def count(end: int) -> int:
        return sum([one.stored.clip(start, end).count for one in destinations])

    def weigh(end: int) -> int:
        return sum([one.index.bytes_between(start, end) for one in destinations])

    def load(end: int) -> float:
        return max(count(end) / rows if rows else 0, weigh(end) / size if size else 0)

    if len(destinations) <= EXACT_DESTINATIONS_MAX:
        bound = _largest(start, stop, lambda end: load(end) <= 1)
    else:
        bound = _near(start, stop, load)
    if bound < stop and not count(bound):
        bound = _first_step(destinations, start, stop, rows, is_whole=size is not None)
    return {"stop": bound, "rows": count(bound), "bytes": weigh(bound)}


def _largest(start: int, stop: int, fits: Callable[[int], bool]) -> int:
    """The largest end that fits; growing steps keep the cost proportional to the result."""
    low, step = start, _FIRST_STEP
    while low < stop and fits(high := min(stop, start + step)):
        low, step = high, step * 2
    if low >= stop:
        return stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _near(start: int, stop: int, load: Callable[[int], float]) -> int:
    """An end that fits and is near the largest; each look at `load` costs a pass over many destinations."""
    low, low_load = start, 0.0
    high, high_load = stop, load(stop)
    if high_load <= 1:
        return stop
    for _ in range(NEAR_LOOKS_MAX):
        if high - low <= 1 or low_load >= NEAR_ENOUGH:
            break
        guess = low + int((high - low) * (1 - low_load) / (high_load - low_load))
        end = min(max(guess, low + 1), high - 1)
        if (end_load := load(end)) <= 1:
            low, low_load = end, end_load
        else:
            high, high_load = end, end_load
    return low


def _first_step(
    destinations: list[Destination], start: int, stop: int, rows: int | None, *, is_whole: bool
) -> int:
    """The number behind the first row; or, if `bytes` are too few for a batch, behind the first batch."""
    firsts = [
        (first, at)
        for at, one in enumerate(destinations)
        if (first := one.stored.next_from(start)) is not None and first < stop
    ]
    if not firsts:
        # The rows that exceeded the limits are not kept any more.
        return stop
    first, at = min(firsts)
    end = destinations[at].index.find(first).stop if is_whole else first + 1
    return min(stop, end, first + rows if rows is not None else end)


# -- time and names --------------------------------------------------------------------------


def _time(state: ChannelState, asked: Question) -> dict[str, Any]:
    return {"number": state.times.at_time(_number(asked, "log_time_ms")), "applied": state.applied}


def _list(state: ChannelState, asked: Question) -> dict[str, Any]:
    """A page of names and ids, of destinations with ids above `after`; and whether there are more.

    `parts` are the ids of those that are parts of spanning destinations.
    Temporary ones are left out: they come and go, and a pattern would mean those of strangers.
    """
    after, length, more = _number(asked, "after", 0), 0, False
    rows: list[tuple[int, str]] = []
    parts: list[int] = []
    for destination in state.directory.after(after):
        if destination.id in state.directory.temporaries:
            continue
        if rows and length > LISTING_LENGTH_MAX:
            more = True
            break
        rows.append((destination.id, destination.name))
        if channels_of(destination.settings):
            parts.append(destination.id)
        length += len(destination.name) + 24
    version = state.directory.version
    return {"rows": rows, "parts": parts, "more": more, "version": version, "applied": state.applied}


def _holds(state: ChannelState, asked: Question) -> dict[str, Any]:
    return {"holds": state.holds.reports(state.log_time_ms), "applied": state.applied}


_TELLERS: Final[dict[str, Callable[[ChannelState, Question], dict[str, Any]]]] = {
    "heads": _heads,
    "bound": _bound,
    "time": _time,
    "list": _list,
    "holds": _holds,
}
