"""Offsets: the position of a query, in the form that lives in its checkpoint.

    {"v": 2, "cluster": "7c41…", "channels": {"a": 5000, "b": 17}, "subscribed": "topic:x,topic:y"}

`channels` has the next number of each channel, in the order of names: Spark compares offsets as text. A
channel that is not named is read from its beginning: nothing that the query wants was there before.

`cluster` is the id of the cluster that gave these numbers. `subscribed` is the subscription of the query: its
names, or `regex:` or `glob:` and its pattern. By it a run knows which destinations are new to the query. An
offset that a user writes by hand needs only `channels`; an offset of version 1 has no more than that either.

Two more keys are there only while they are needed:

`behind`: a destination that was added to a query whose channel had gone on before. `{"topic:y": 730}` says
that the query has read this destination up to number 730 only. The key goes when the destination has caught
up with its channel. A part of a spanning destination has a name of its own here and in `since`: `a/topic:y`.

`since`: what a query that starts at the earliest does not miss. Of two topics on one channel, one keeps
messages from number 10 on, the other, older ones being gone, from number 900 on. The query begins at 10, and
`{"topic:other": 900}` says that the lost messages of the other are no loss to the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

VERSION: Final = 2

FIRST: Final = 1
"""The first number of a channel."""

EARLIEST, LATEST = -2, -1
"""What a user may write for a channel's number, as with Kafka; never found in a checkpoint."""

_KEYS: Final = {
    1: {"v", "channels", "since"},
    2: {"v", "cluster", "channels", "subscribed", "behind", "since"},
}


class BadOffset(ValueError):
    """Not an offset of this source."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The subscription of a query: names, or a pattern for them.

    >>> Choice(pattern="topic:eu.*", match="glob").text 'glob:topic:eu.*'
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    match: Literal["glob", "regex"] = "regex"

    @property
    def text(self) -> str:
        """The text in an offset."""
        return ",".join(self.names) if self.pattern is None else f"{self.match}:{self.pattern}"


def parse_choice(text: str) -> Choice:
    """Parse `Choice.text`: no name of a destination begins like a pattern."""
    match text.partition(":"):
        case ("glob", _, pattern):
            return Choice(pattern=pattern, match="glob")
        case ("regex", _, pattern):
            return Choice(pattern=pattern, match="regex")
    return Choice(tuple(text.split(",")))


@dataclass(frozen=True, slots=True)
class Offset:
    """The next number of each channel, and of the destinations that are behind or begin later.

    Offsets are equal if they mean the same position, whatever was subscribed.
    """

    channels: Mapping[str, int] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, int] = field(default_factory=dict)
    cluster: str = field(default="", compare=False)
    subscribed: str = field(default="", compare=False)

    def next(self, channel: str) -> int:
        """The next wanted number of a channel."""
        return self.channels.get(channel, FIRST)

    def next_of(self, label: str, channel: str) -> int:
        """The next wanted number of a destination, which lives on this channel."""
        return self.behind.get(label, self.channels.get(channel, FIRST))

    def as_json(self) -> dict[str, Any]:
        """The JSON that Spark keeps, always in the same order."""
        said: dict[str, Any] = {
            "v": VERSION,
            "cluster": self.cluster,
            "channels": dict(sorted(self.channels.items())),
            "subscribed": self.subscribed,
        }
        if self.behind:
            said["behind"] = dict(sorted(self.behind.items()))
        if self.since:
            said["since"] = dict(sorted(self.since.items()))
        return said


def parse_offset(said: Any) -> Offset:
    """Parse the result of `as_json`, or the text of a user; raise BadOffset if it is something else."""
    if not isinstance(said, dict):
        raise BadOffset(f"not an offset: {said!r}")
    version = said.get("v", VERSION)
    if type(version) is not int or version not in _KEYS:
        raise BadOffset(f"not an offset of version {VERSION}: {said!r}")
    unknown = said.keys() - _KEYS[version]
    if unknown:
        raise BadOffset(f"an offset of version {version} has no {min(unknown)!r}: {said!r}")
    return Offset(
        _numbers(said.get("channels"), EARLIEST, "channels"),
        _numbers(said.get("since", {}), FIRST, "since"),
        _numbers(said.get("behind", {}), FIRST, "behind"),
        _text(said, "cluster"),
        _text(said, "subscribed"),
    )


def _text(said: Mapping[str, Any], what: str) -> str:
    text = said.get(what, "")
    if not isinstance(text, str):
        raise BadOffset(f"{what} of an offset is not a text: {text!r}")
    return text


def _numbers(said: Any, least: int, what: str) -> dict[str, int]:
    if not isinstance(said, dict):
        raise BadOffset(f"{what} of an offset is not an object: {said!r}")
    for name, number in said.items():
        if not isinstance(name, str) or type(number) is not int or not least <= number < 1 << 63:
            raise BadOffset(f"{what} of an offset has no number for {name!r}: {number!r}")
    return dict(sorted(said.items()))
