"""Temporary destinations: which session each lives with, and which connection may consume it.

TMP1  A temporary destination is made by a session's command, and goes with the session's row in its channel,
      or before. So it lives as long as its session does, whichever client manager has that.
TMP2  Only sessions of the connection that made it consume it, purge it, change it or end it.
TMP3  A session has a bounded number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from antiphon.message_manager.state.sessions import Session
from antiphon.wire.primitives import Reader, Writer

TEMPORARIES_MAX: Final = 1_000
"""Temporary destinations of one session in one channel."""


class Temporary(NamedTuple):
    """The owner of a temporary destination."""

    id: int
    session: int
    connection: int

    def belongs_to(self, row: Session) -> bool:
        """May this session consume it? A session that named no connection is alone."""
        return row.id == self.session or (bool(self.connection) and row.connection == self.connection)


class Temporaries:
    """The owners of a channel's temporary destinations."""

    __slots__ = ("_by_id", "_by_session")

    def __init__(self) -> None:
        self._by_id: dict[int, Temporary] = {}
        # The ids of each session ascend: they were made in that order.
        self._by_session: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, destination: int) -> bool:
        return destination in self._by_id

    def __iter__(self) -> Iterator[Temporary]:
        """By id, ascending."""
        return iter(self._by_id.values())

    def of_session(self, session: int) -> tuple[int, ...]:
        """The destinations that end with this session, in the order in which they were made."""
        return tuple(self._by_session.get(session, ()))

    def may_use(self, destination: int, row: Session) -> bool:
        """May this session consume the destination? Everybody may, unless it is another's temporary one."""
        known = self._by_id.get(destination)
        return known is None or known.belongs_to(row)

    def add(self, temporary: Temporary) -> None:
        assert temporary.id not in self._by_id, "a temporary destination was made twice"
        self._by_id[temporary.id] = temporary
        self._by_session.setdefault(temporary.session, {})[temporary.id] = None

    def remove(self, destination: int) -> None:
        """Nothing, for a destination that is not temporary."""
        gone = self._by_id.pop(destination, None)
        if gone is not None:
            of_session = self._by_session[gone.session]
            del of_session[destination]
            if not of_session:
                del self._by_session[gone.session]

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.count(len(self._by_id))
        for id, session, connection in self:
            writer.u64(id)
            writer.u128(session)
            writer.u128(connection)

    @classmethod
    def read(cls, reader: Reader) -> Temporaries:
        temporaries = cls()
        for _ in range(reader.count(8 + 16 + 16)):
            temporaries.add(Temporary(reader.u64(), reader.u128(), reader.u128()))
        return temporaries
