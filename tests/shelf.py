"""A small application for the stage: it keeps the last two envelopes, so that its state refers to records.

As with the message manager, the digest of the state is over what it means (which envelopes), not over where
its records lie.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from struct import Struct

from antiphon.bus.effects import StateCaptured, StateOpened
from antiphon.bus.messages import Entry, EntryKind
from antiphon.ids import MID_STRUCT, Mid
from antiphon.journal.ports import Location

KEPT = 2
_PLACE = Struct("<QQQQ")
_ROW_BYTES = MID_STRUCT.size + _PLACE.size


class Shelf:
    """Which envelopes are kept, and where they lie; and a state of another node that was opened."""

    def __init__(self, where: Callable[[Mid], Location], state: bytes | memoryview | None) -> None:
        # In another life the same records lie elsewhere.
        self._rows = {mid: where(mid) for mid in _decode(state)} if state is not None else {}
        self._opened: dict[Mid, Location] = {}

    def apply(self, entry: Entry, location: Location | None) -> None:
        if entry.kind is EntryKind.DATA and location is not None:
            self._rows[entry.mid] = location
            self._rows = dict(list(self._rows.items())[-KEPT:])

    def capture(self, n: int) -> StateCaptured:
        return _captured(n, self._rows)

    def open(self, n: int, state: bytes | memoryview) -> StateOpened:
        self._opened = _decode(state)
        return StateOpened(n, _digest(self._opened), tuple(self._opened.values()))

    def move(self, n: int, moved: dict[Location, Location]) -> StateCaptured:
        self._opened = {mid: moved[place] for mid, place in self._opened.items()}
        return _captured(n, self._opened)

    def install(self) -> None:
        self._rows, self._opened = self._opened, {}

    def drop(self) -> None:
        self._opened = {}


def _captured(n: int, rows: dict[Mid, Location]) -> StateCaptured:
    state = b"".join(MID_STRUCT.pack(*mid) + _PLACE.pack(*place) for mid, place in rows.items())
    return StateCaptured(n, _digest(rows), state, ())


def _digest(rows: dict[Mid, Location]) -> bytes:
    return blake2b(b"".join(MID_STRUCT.pack(*mid) for mid in rows), digest_size=16).digest()


def _decode(state: bytes | memoryview) -> dict[Mid, Location]:
    rows = [bytes(state[at : at + _ROW_BYTES]) for at in range(0, len(state), _ROW_BYTES)]
    return {
        Mid(*MID_STRUCT.unpack(row[: MID_STRUCT.size])): Location(*_PLACE.unpack(row[MID_STRUCT.size :]))
        for row in rows
    }
