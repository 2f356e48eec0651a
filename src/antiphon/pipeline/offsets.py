"""Offsets: how far a query has come, in the form that lives in its checkpoint.

    {"v": 1, "channels": {"a": 5000, "b": 17}}

`channels` has the next number of each channel, in the order of names: Spark compares offsets as text. A
channel that is not named is read from its beginning: nothing that the query wants was there before.

`since` is there only while it is needed: what a query that starts at the earliest does not miss. Of two
topics on one channel, one keeps messages from number 10 on, the other, older ones being gone, from number
900 on. The query begins at 10, and `{"since": {"topic:other": 900}}` says that what the other had before is
no loss to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

VERSION: Final = 1

FIRST: Final = 1
"""The first number of a channel."""

EARLIEST, LATEST = -2, -1
"""What a user may write for a channel's number, as with Kafka; never found in a checkpoint."""


class BadOffset(ValueError):
    """Not an offset of ours."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The next number of each channel, and from where on a destination is wanted."""

    channels: Mapping[str, int] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)

    def next(self, channel: str) -> int:
        """The next number that is wanted of a channel."""
        return self.channels.get(channel, FIRST)

    def as_json(self) -> dict[str, Any]:
        """What Spark keeps, always in the same order."""
        said: dict[str, Any] = {"v": VERSION, "channels": dict(sorted(self.channels.items()))}
        if self.since:
            said["since"] = dict(sorted(self.since.items()))
        return said


def parse_offset(said: Any) -> Offset:
    """Read what `as_json` gave, or a user wrote; raise BadOffset if it is something else."""
    if (
        not isinstance(said, dict)
        or said.get("v") != VERSION
        or not said.keys() <= {"v", "channels", "since"}
    ):
        raise BadOffset(f"not an offset of version {VERSION}: {said!r}")
    return Offset(
        _numbers(said.get("channels"), EARLIEST, "channels"), _numbers(said.get("since", {}), FIRST, "since")
    )


def _numbers(said: Any, least: int, what: str) -> dict[str, int]:
    if not isinstance(said, dict):
        raise BadOffset(f"{what} of an offset is not an object: {said!r}")
    for name, number in said.items():
        if not isinstance(name, str) or type(number) is not int or not least <= number < 1 << 63:
            raise BadOffset(f"{what} of an offset has no number for {name!r}: {number!r}")
    return dict(sorted(said.items()))
