"""A consumer of several parts: which channels must be there when it is opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import antiphon
from antiphon.client.aio.merging import MergedIntake
from tests.unit.client.fake_server import asynchronous


class Part:
    """As much of an intake as opening and closing need."""

    def __init__(self, refusal: antiphon.AntiphonError | None) -> None:
        self.error: antiphon.AntiphonError | None = None
        self.is_closed = False
        self._refusal = refusal

    async def opened(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def close(self) -> None:
        self.is_closed = True


class Scope:
    """A session of a system with two channels."""

    timeout = 1.0

    def __init__(self) -> None:
        self.link = SimpleNamespace(channels=self._channels)
        self.left: list[Any] = []

    async def core(self) -> None: ...

    async def _channels(self, timeout: float) -> tuple[str, ...]:
        return ("a", "b")

    def leave(self, ending: Any) -> None:
        self.left.append(ending)


def merge(destination: str, error: antiphon.AntiphonError) -> tuple[MergedIntake, Scope, dict[str, Part]]:
    """A consumer with a part that opens, and one that does not."""
    parts, scope = {"a": Part(None), "b": Part(error)}, Scope()
    made: Any = parts.__getitem__
    known: Any = scope
    is_family = destination.startswith("topic:")
    return MergedIntake(known, destination, made, is_family=is_family), scope, parts


@pytest.mark.parametrize(
    "error",
    [
        antiphon.DestinationError("there are 1,000 patterns already"),
        antiphon.DestinationUnavailable("channel b does not answer"),
    ],
    ids=["refused", "away"],
)
@asynchronous
async def test_a_consumer_of_a_pattern_begins_in_every_channel_or_not_at_all(
    error: antiphon.AntiphonError,
) -> None:
    """What a channel publishes before its part begins would be missed in silence."""
    merged, scope, parts = merge("topic:x*", error)
    with pytest.raises(type(error)):
        await merged.opened()
    for ending in scope.left:
        await ending
    assert parts["a"].is_closed, "what was opened goes"


@pytest.mark.parametrize(
    "error",
    [antiphon.DestinationError("there is none"), antiphon.DestinationUnavailable("channel b is away")],
    ids=["refused", "away"],
)
@asynchronous
async def test_a_queue_of_the_system_needs_no_part_in_every_channel(error: antiphon.AntiphonError) -> None:
    merged, _, _ = merge("queue:_DMQ", error)
    await merged.opened()
