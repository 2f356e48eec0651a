"""Placements: the channel of each destination, by name, in the system channel only.

The placement of a spanning destination is the list of its channels: `a,b`.

A name keeps its placement: two client managers that create it at once create it in the same channel.
"""

from __future__ import annotations

from typing import Final

from antiphon.errors import DestinationError
from antiphon.names import CHANNELS_MAX, parse_destination, read_channels
from antiphon.wire.primitives import Reader, Writer

PLACEMENTS_MAX: Final = 1_000_000
"""Every placement is in every checkpoint of the system channel."""

CHANNEL_BYTES_MAX: Final = 64


class Placements:
    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def get(self, name: str) -> str | None:
        return self._channels.get(name)

    def place(self, name: str, channel: str) -> None:
        """Give a name its placement; raises InvalidName or DestinationError."""
        assert name not in self._channels, f"{name} has its place already"
        parse_destination(name)
        channels = read_channels(channel)
        for one in channels:
            if not 0 < len(one.encode()) <= CHANNEL_BYTES_MAX:
                raise DestinationError(f"{name} cannot live in a channel called {one[:CHANNEL_BYTES_MAX]!r}")
        if len(channels) > CHANNELS_MAX or len(set(channels)) < len(channels):
            raise DestinationError(f"{name} cannot live in so many channels, or twice in one")
        if len(self._channels) >= PLACEMENTS_MAX:
            raise DestinationError(f"there are {PLACEMENTS_MAX:,} destinations already")
        self._channels[name] = channel

    def free(self, name: str) -> None:
        self._channels.pop(name, None)

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        """In the order of the log: the same on every replica."""
        writer.count(len(self._channels))
        for name, channel in self._channels.items():
            writer.text(name)
            writer.text(channel)

    @classmethod
    def read(cls, reader: Reader) -> Placements:
        placements = cls()
        for _ in range(reader.count(4)):
            name = reader.text()
            placements._channels[name] = reader.text()
        return placements
