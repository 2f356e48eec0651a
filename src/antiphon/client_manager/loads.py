"""Loads: the bytes that each channel keeps, as its primary says; and the place of the next destination."""

from __future__ import annotations

from collections.abc import Iterable

DESTINATION_LOAD = 1 << 20
"""The load of a new destination until its channel tells the real one, which is as much."""


class Loads:
    """The loads of all channels. A silent channel counts as empty only if all are silent."""

    def __init__(self, channels: Iterable[str]) -> None:
        self._loads: dict[str, int | None] = dict.fromkeys(sorted(channels))

    def changed(self, channel: str, load: int) -> None:
        self._loads[channel] = load

    def placed(self, channel: str) -> None:
        """A destination was placed in this channel: many at once do not all go to one."""
        load = self._loads[channel]
        self._loads[channel] = (load or 0) + DESTINATION_LOAD

    def least(self) -> str:
        """The channel with the least load; of several, the one with the lowest name."""
        return min(self._loads, key=self._rank)

    def _rank(self, channel: str) -> tuple[bool, int, str]:
        load = self._loads[channel]
        # A channel without a primary is silent, and a destination there would wait.
        return load is None, load or 0, channel
