"""Placements: in which channel a destination lives, by its name. Kept by the system channel only.

A name has one place. Who wants another is told which it has, so two client managers that make the same
destination at the same time make it in the same channel.
"""

from __future__ import annotations

from typing import Final

from antiphon.errors import DestinationError
from antiphon.names import parse_destination
from antiphon.wire.primitives import Reader, Writer

PLACEMENTS_MAX: Final = 1_000_000
"""Names that have a place: all of them stand in every checkpoint of the system channel."""

CHANNEL_BYTES_MAX: Final = 64


class Placements:
    """The channel of each name that has been given one."""

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def get(self, name: str) -> str | None:
        return self._channels.get(name)

    def place(self, name: str, channel: str) -> None:
        """Give a name its place; raises InvalidName or DestinationError if it cannot have it."""
        assert name not in self._channels, f"{name} has its place already"
        parse_destination(name)
        if not 0 < len(channel.encode()) <= CHANNEL_BYTES_MAX:
            raise DestinationError(f"{name} cannot live in a channel called {channel[:CHANNEL_BYTES_MAX]!r}")
        if len(self._channels) >= PLACEMENTS_MAX:
            raise DestinationError(f"there are {PLACEMENTS_MAX:,} destinations already")
        self._channels[name] = channel

    def free(self, name: str) -> None:
        """There is no destination of this name any more: the next one may live elsewhere."""
        self._channels.pop(name, None)

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        """In the order in which they were given, which is that of the log: the same on every replica."""
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
