"""Spanning: the channel of each message that is sent to a destination of several channels.

SPN1  All messages with one key go to the same channel, from any sender: their order is kept.
SPN2  So do messages with one `dedup_id` and no key: a part remembers the ids of its own messages only.
SPN3  The channels take turns with all other messages; a channel that takes nothing is passed over.

The channel of a key is number `XXH3-64(key in UTF-8) modulo the number of channels` in the order of the
destination's channels, counted from 0. A `dedup_id` is hashed likewise.
"""

from __future__ import annotations

from collections.abc import Callable

import xxhash


def place_of(key: str | None, dedup_id: str | bytes | None, count: int) -> int | None:
    """Which of `count` channels a message belongs to; None if it may go to any."""
    text = dedup_id if key is None else key
    if text is None:
        return None
    return xxhash.xxh3_64_intdigest(text.encode() if isinstance(text, str) else text) % count


class Turns:
    """The turns of messages that may go to any channel."""

    __slots__ = ("_count", "_last")

    def __init__(self, count: int) -> None:
        self._count = count
        self._last = count - 1

    def next(self, *ways: Callable[[int], bool]) -> int:
        """The next channel that is fit in the first way; or else in the second, and so on; or else any."""
        turns = [(self._last + ahead) % self._count for ahead in range(1, self._count + 1)]
        fit = (turn for is_fit in ways for turn in turns if is_fit(turn))
        self._last = next(fit, turns[0])
        return self._last

    def shares(self, count: int, fit: list[int]) -> list[tuple[int, int, int]]:
        """Cut `count` messages into a share for each fit channel: (channel, first, one behind the last).

        The shares are consecutive and of about the same size; the channels go on taking turns.
        """
        first = self.next(fit.__contains__)
        turns = sorted(fit, key=lambda one: (one - first) % self._count)[:count]
        ends = [count * at // len(turns) for at in range(len(turns) + 1)]
        self._last = turns[-1] if turns else self._last
        return list(zip(turns, ends, ends[1:], strict=False))
