"""Loads: the bytes that each channel keeps, as its primary says; and the place of the next destination."""

from __future__ import annotations

from collections.abc import Iterable

DESTINATION_LOAD = 1 << 20
"""The load of a new destination until its channel tells the real one, which is as much."""


class Loads:
    """The loads of all channels. A channel without a primary is chosen only if no channel has one."""

    def __init__(self, channels: Iterable[str]) -> None:
        self._loads: dict[str, int | None] = dict.fromkeys(sorted(channels))
        # Loads of destinations that are placed, or about to be, since the channel told its load.
        self._added = dict.fromkeys(self._loads, 0)
        self._unserved: set[str] = set()

    def changed(self, channel: str, load: int, under_way: int = 0) -> None:
        """The channel tells its load, which has nothing yet of so many destinations that are being made."""
        self._loads[channel] = load
        self._added[channel] = under_way * DESTINATION_LOAD

    def served(self, channel: str, *, is_served: bool) -> None:
        """The channel has lost its primary for longer than a change takes, or has one again."""
        if is_served:
            self._unserved.discard(channel)
        else:
            self._unserved.add(channel)

    def place(self) -> str:
        """The channel for a new destination. The destination counts at once, so that a burst is spread."""
        channel = min(self._loads, key=self._rank)
        self._added[channel] += DESTINATION_LOAD
        return channel

    def place_several(self, count: int) -> tuple[str, ...]:
        """The channels for a new spanning destination, each of which has a part of the load."""
        channels = sorted(self._loads, key=self._rank)[:count]
        for channel in channels:
            self._added[channel] += DESTINATION_LOAD
        return tuple(sorted(channels))

    def _rank(self, channel: str) -> tuple[bool, int, str]:
        load = self._loads[channel]
        # A destination of a channel without a primary would wait.
        is_away = load is None or channel in self._unserved
        return is_away, (load or 0) + self._added[channel], channel
