"""BulkCreation: one request for many destinations, until each of them is made, found or refused."""

from __future__ import annotations

from antiphon.client_manager.connection import Connection, Outbox
from antiphon.ranges import Ranges
from antiphon.wire.destination_frames import DestinationsCreate, DestinationsCreated, RefusedName


class BulkCreation:
    __slots__ = ("_connection", "_left", "_made", "_names", "_refused", "_request")

    def __init__(self, connection: Connection, wish: DestinationsCreate) -> None:
        self._connection = connection
        self._request = wish.request
        self._names = self._left = len(wish.names)
        self._made: list[int] = []
        self._refused: list[RefusedName] = []
        connection.names += self._names

    def found(self, outbox: Outbox, at: int, *, is_new: bool) -> None:
        if is_new:
            self._made.append(at)
        self._settled(outbox)

    def refused(self, outbox: Outbox, at: int, code: str, text: str) -> None:
        self._refused.append(RefusedName(at, code, text))
        self._settled(outbox)

    def _settled(self, outbox: Outbox) -> None:
        """One more name has its outcome; the last one is followed by the answer."""
        self._left -= 1
        if not self._left:
            self._connection.names -= self._names
            created = DestinationsCreated(
                request=self._request,
                made=Ranges.of_numbers(sorted(self._made)),
                refused=tuple(sorted(self._refused)),
            )
            outbox.answer(self._connection, self._request, created)
