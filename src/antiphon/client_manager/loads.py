"""Loads: the bytes that each channel keeps, as its primary says; and the place of the next destination."""

from __future__ import annotations

from collections.abc import Iterable

DESTINATION_LOAD = 1 << 20
"""The load of a new destination until its channel tells the real one, which is as much."""


class Loads:
    """The loads of all channels. A silent channel counts as empty only if all are silent."""

    def __init__(self, channels: Iterable[str]) -> None:
        self._loads: dict[str, int | None] = dict.fromkeys(sorted(channels))
        # Loads of destinations that are placed, or about to be, since the channel told its load.
        self._added = dict.fromkeys(self._loads, 0)

    def changed(self, channel: str, load: int) -> None:
        self._loads[channel] = load
        self._added[channel] = 0

    def place(self) -> str:
        """The channel for a new destination. The destination counts at once, so that a burst is spread."""
        channel = min(self._loads, key=self._rank)
        self._added[channel] += DESTINATION_LOAD
        return channel

    def _rank(self, channel: str) -> tuple[bool, int, str]:
        load = self._loads[channel]
        # A channel without a primary is silent, and a destination there would wait.
        return load is None, (load or 0) + self._added[channel], channel
