"""Choosing: the words of a command become destinations, by name or by pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from antiphon.errors import DestinationError, DestinationUnavailable, LocalError
from antiphon.names import parse_destination
from antiphon.pipeline.options import ConnectionOptions, Given
from antiphon.tls import Tls

if TYPE_CHECKING:
    from antiphon.client.aio.ranges import RangeDestination
    from antiphon.pipeline.patience import PatientRanges

_WILD = frozenset("*?")


def connection_options(
    url: str,
    *,
    user: str | None = None,
    password_file: str | None = None,
    timeout_s: float | None = None,
    tls: Tls | None = None,
) -> ConnectionOptions:
    """The address of a cluster, as options of a connection."""
    said = {"servers": url, "user": user, "passwordFile": password_file, **tls_texts(tls)}
    if timeout_s is not None:
        said["timeout"] = repr(timeout_s)
    return ConnectionOptions.of(Given({name: text for name, text in said.items() if text is not None}))


def tls_texts(tls: Tls | None) -> dict[str, str]:
    """What Spark's options say of TLS."""
    if tls is None:
        return {}
    if tls.server_name is not None or not tls.check_hostname:
        raise LocalError("jobs on Spark check the servers' certificates by the hosts of the url")
    given = {"tls.ca": tls.ca, "tls.certificate": tls.certificate, "tls.key": tls.key}
    return {name: str(path) for name, path in given.items() if path is not None}


def is_pattern(word: str) -> bool:
    """Is a word a pattern (`topic:orders.*`) and not a name?"""
    return bool(_WILD & {*word})


def find(
    ranges: PatientRanges, words: Iterable[str], known: frozenset[str] = frozenset()
) -> tuple[tuple[RangeDestination, ...], tuple[str, ...]]:
    """The destinations that are there now, in the order of names; and names in `known` that are not there.

    Of a spanning destination these are all parts. Any other name of which there is no destination is an
    error. A pattern may match nothing.
    """
    found: set[RangeDestination] = set()
    gone: list[str] = []
    for word in dict.fromkeys(words):
        if is_pattern(word):
            found.update(ranges.destinations(pattern=word))
            continue
        if parse_destination(word).is_reserved:
            raise LocalError(f"{word} has a part on every channel, and cannot be archived")
        try:
            parts = ranges.destinations([word])
        except DestinationUnavailable:
            raise
        except DestinationError:
            if word not in known:
                raise
            gone.append(word)
        else:
            found.update(parts)
    return tuple(sorted(found)), tuple(gone)


def matches(name: str, words: Sequence[str]) -> bool:
    """Does a name stand among the words, or match one of them?"""
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, word) if is_pattern(word) else name == word for word in words)
