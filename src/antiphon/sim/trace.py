"""Trace: the events of a run, in lines for people and in a digest for machines.

A line is (time, who, what). The digest runs over all lines, so that two runs of one seed can be compared
without keeping either: digests that differ between two processes mean a dependence on the order of a set, on
`hash()` or on the world outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any
from zlib import crc32

_ITEMS_SHOWN = 3
_BYTES_SHOWN = 8


class Trace:
    """Takes lines. Off by default: making them costs more than the run itself."""

    def __init__(self, is_on: bool = False, show: Callable[[str], None] | None = None) -> None:
        self.is_on = is_on or show is not None
        self._show = show
        self._hash = blake2b(digest_size=16)

    def note(self, now_ns: int, who: str, what: str) -> None:
        line = f"{now_ns / 1e6:12.6f} {who:<10} {what}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        return self._hash.hexdigest()


def summary(thing: Any) -> str:
    """A message, event or effect in one short line that is the same in every process."""
    if isinstance(thing, bytes | bytearray | memoryview):
        if len(thing) <= _BYTES_SHOWN:
            return bytes(thing).hex() or "-"
        return f"<{len(thing)} B {crc32(thing):08x}>"
    if isinstance(thing, Enum):
        return thing.name
    if isinstance(thing, str | int | float | bool | type(None)):
        return str(thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        inside = " ".join(f"{field.name}={summary(getattr(thing, field.name))}" for field in fields(thing))
        return f"{type(thing).__name__}({inside})"
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return f"{type(thing).__name__}({' '.join(summary(item) for item in thing)})"
    if isinstance(thing, list | tuple):
        shown = " ".join(summary(item) for item in thing[:_ITEMS_SHOWN])
        if len(thing) <= _ITEMS_SHOWN:
            return f"[{shown}]"
        # The rest still counts for the digest.
        rest = crc32("".join(summary(item) for item in thing[_ITEMS_SHOWN:]).encode())
        return f"[{shown} and {len(thing) - _ITEMS_SHOWN} more {rest:08x}]"
    if isinstance(thing, dict):
        return f"{{{' '.join(f'{key}={summary(value)}' for key, value in thing.items())}}}"
    if hasattr(thing, "__iter__"):
        return f"{type(thing).__name__}({' '.join(str(item) for item in thing)})"
    return type(thing).__name__
