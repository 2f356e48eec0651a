"""Loads: how much each channel has to keep, as its primary says; and where the next destination goes."""

from __future__ import annotations

from collections.abc import Iterable

DESTINATION_LOAD = 1 << 20
"""What a destination counts for that its channel has not told of yet: as much as the channel will say."""


class Loads:
    """The loads of all channels. One that has said nothing counts as empty only if none has said anything."""

    def __init__(self, channels: Iterable[str]) -> None:
        self._loads: dict[str, int | None] = dict.fromkeys(sorted(channels))

    def changed(self, channel: str, load: int) -> None:
        self._loads[channel] = load

    def placed(self, channel: str) -> None:
        """A destination was given to this channel: who makes many at once does not make them all in one."""
        load = self._loads[channel]
        self._loads[channel] = (load or 0) + DESTINATION_LOAD

    def least(self) -> str:
        """The channel with the least to keep; of several, the one with the lowest name."""
        return min(self._loads, key=self._rank)

    def _rank(self, channel: str) -> tuple[bool, int, str]:
        load = self._loads[channel]
        # A channel that nobody serves says nothing: what is made there would wait.
        return load is None, load or 0, channel
