"""Filters: the part of a WHERE clause that the source applies itself, so that other rows do not travel.

    FIL1  A filter that is taken is applied exactly; every other one is given back, and Spark applies it.
    FIL2  A filter may be used and given back: then it only spares what it certainly excludes.

Times are those of the senders' clocks, which are in no order, so that a filter on times spares no page; but
rows, and whole batches, before they become columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

NUMBER_MAX: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What filters leave of a query: each part as Spark's AND puts them together."""

    first: int = 0
    stop: int = NUMBER_MAX
    since_us: int = -NUMBER_MAX
    until_us: int = NUMBER_MAX
    destinations: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    channels: frozenset[str] | None = None

    def keeps(self, destination: str, channel: str) -> bool:
        """May this destination of this channel have rows that are wanted?"""
        return (
            (self.destinations is None or destination in self.destinations)
            and (self.channels is None or channel in self.channels)
            and all(map(destination.startswith, self.prefixes))
        )

    @property
    def has_times(self) -> bool:
        return self.since_us > -NUMBER_MAX or self.until_us < NUMBER_MAX


EVERYTHING: Final = Narrowed()


def narrow(filters: Iterable[Filter], has_acks: bool) -> tuple[Narrowed, list[Filter]]:
    """What all these filters leave, and those that Spark has to apply."""
    narrowed, rest = EVERYTHING, []
    for one in filters:
        narrowed, is_done = _narrow(narrowed, one, has_acks)
        if not is_done:
            rest.append(one)
    return narrowed, rest


def _narrow(narrowed: Narrowed, one: Any, has_acks: bool) -> tuple[Narrowed, bool]:
    column = one.attribute[0] if len(getattr(one, "attribute", ())) == 1 else None
    word = type(one).__name__
    if word == "IsNotNull":
        # An acknowledgement has no time.
        return narrowed, column in ("sequence", "destination", "channel") or (
            column == "timestamp" and not has_acks
        )
    if not hasattr(one, "value"):
        return narrowed, False
    if column == "sequence":
        return _numbers(narrowed, word, one.value)
    if column == "timestamp":
        return _times(narrowed, word, one.value)
    if column in ("destination", "channel"):
        return _names(narrowed, column, word, one.value)
    return narrowed, False


def _numbers(narrowed: Narrowed, word: str, value: Any) -> tuple[Narrowed, bool]:
    if word == "In":
        numbers = [number for number in value if number is not None]
        if not numbers:
            return narrowed, False
        least, most = _meet(narrowed, min(numbers), max(numbers) + 1)
        return replace(narrowed, first=least, stop=most), False
    extent = _extent(word, value)
    if extent is None:
        return narrowed, False
    least, most = _meet(narrowed, *extent)
    return replace(narrowed, first=least, stop=most), True


def _meet(narrowed: Narrowed, first: int, stop: int) -> tuple[int, int]:
    return max(narrowed.first, first), min(narrowed.stop, stop)


def _times(narrowed: Narrowed, word: str, value: Any) -> tuple[Narrowed, bool]:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return narrowed, False
    extent = _extent(word, (value - _EPOCH) // timedelta(microseconds=1))
    if extent is None:
        return narrowed, False
    since_us, until_us = extent
    return (
        replace(
            narrowed,
            since_us=max(narrowed.since_us, since_us),
            until_us=min(narrowed.until_us, until_us),
        ),
        True,
    )


def _extent(word: str, value: Any) -> tuple[int, int] | None:
    """From where, and to before where, a comparison holds; None if that cannot be told."""
    if not isinstance(value, int):
        return None
    match word:
        case "EqualTo" | "EqualNullSafe":
            return value, value + 1
        case "GreaterThan":
            return value + 1, NUMBER_MAX
        case "GreaterThanOrEqual":
            return value, NUMBER_MAX
        case "LessThan":
            return -NUMBER_MAX, value
        case "LessThanOrEqual":
            return -NUMBER_MAX, value + 1
    return None


def _names(narrowed: Narrowed, column: str, word: str, value: Any) -> tuple[Narrowed, bool]:
    match word:
        case "EqualTo" | "EqualNullSafe" if isinstance(value, str):
            names = frozenset({value})
        case "In":
            names = frozenset(name for name in value if name is not None)
        case "StringStartsWith" if column == "destination":
            return replace(narrowed, prefixes=(*narrowed.prefixes, value)), True
        case _:
            return narrowed, False
    if column == "channel":
        known = narrowed.channels
        return replace(narrowed, channels=names if known is None else known & names), True
    known = narrowed.destinations
    return replace(narrowed, destinations=names if known is None else known & names), True
