"""Tables: what a file of TOML says, asked for key by key, with errors that name the key.

Where it sits
    tomllib  ->  TABLES  ->  config_file

What it promises
    P1  A key that is missing, of another type, or out of range is refused by its path from the top of the
        file. A key that nobody asked for is refused when the table is finished, with the nearest known one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn, TypeVar

from antiphon.errors import NodeError
from antiphon.transport.interface import Address

ID_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_ADDRESS: Final = re.compile(r"(?P<host>[^\s:/]+):(?P<port>[0-9]{1,5})")

T = TypeVar("T")

_KINDS: Final = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    float: "a number with a point",
    list: "a list",
    dict: "a table",
}


class Table:
    """One table of a file."""

    def __init__(self, found: dict[str, Any], file: str, path: str = "", key: str = "") -> None:
        self._found = found
        self._file = file
        self._path = path
        self._key = key
        self._asked: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        self._asked[key] = None
        return key in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    @property
    def own_name(self) -> str:
        """Under which key this table stands; a name."""
        if not _NAME.fullmatch(self._key):
            raise NodeError(f"{self._file}: {self._path}: {_no_name(self._key)}")
        return self._key

    def refuse(self, key: str, why: str) -> NoReturn:
        """`NodeError` about a key of this table."""
        raise NodeError(f"{self._file}: {self._whole(key)}: {why}")

    def finish(self, whose: str = "") -> None:
        """Nothing more is asked for: whatever else is there is unknown."""
        for key in self._found:
            if key not in self._asked:
                near = get_close_matches(key, self._asked, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.refuse(key, f"there is no such key{' ' + whose if whose else ''}{hint}")

    def text(self, key: str, default: str | None = None) -> str:
        """Some text; not an empty one, unless that is the default."""
        value = self._get(key, str, default)
        if not value and value != default:
            self.refuse(key, "is empty")
        return value

    def name(self, key: str, default: str | None = None) -> str:
        """A name as nodes and channels have one."""
        value = self.text(key, default)
        if not _NAME.fullmatch(value):
            self.refuse(key, _no_name(value))
        return value

    def number(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """A whole number within limits."""
        value = self._get(key, int, default)
        if not least <= value <= most:
            self.refuse(key, f"{value} is not between {least} and {most}")
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """One of several words."""
        value = self._get(key, str, None)
        if value not in choices:
            self.refuse(key, f"{value!r} is none of {', '.join(choices)}")
        return value

    def id(self, key: str) -> bytes:
        """Sixteen bytes, as hex digits."""
        value = self._get(key, str, None)
        if not _HEX.fullmatch(value) or not int(value, 16):
            self.refuse(key, f"{value!r} is not {2 * ID_BYTES} lower-case hex digits of an id")
        return bytes.fromhex(value)

    def address(self, key: str) -> Address:
        """Host and port."""
        value = self._get(key, str, None)
        match = _ADDRESS.fullmatch(value)
        if match is None or not 1 <= int(match["port"]) <= 65_535:
            self.refuse(key, f"{value!r} is not of the form host:port")
        return match["host"], int(match["port"])

    def table(self, key: str) -> Table:
        """A table of this one; an empty one if there is none."""
        return Table(self._get(key, dict, {}), self._file, self._whole(key), key)

    def tables(self, key: str) -> list[Table]:
        """The tables of a table, each under its own name."""
        outer = self.table(key)
        return [outer.table(name) for name in outer]

    def _get(self, key: str, kind: type[T], default: T | None) -> T:
        self._asked[key] = None
        if key not in self._found:
            if default is None:
                self.refuse(key, "is missing")
            return default
        value = self._found[key]
        # A bool is an int to Python, and not to anybody who writes a file.
        if type(value) is not kind:
            found = _KINDS.get(type(value), "a date")
            self.refuse(key, f"{_KINDS[kind]} is needed, and this is {found}")
        return value

    def _whole(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def quoted(text: str) -> str:
    """A text as TOML writes it: JSON's escapes are among its own, but for the one of DEL."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _no_name(value: str) -> str:
    return f"{value!r} is no name: letters, digits, - and _, at most 64 of them, a letter or digit first"
