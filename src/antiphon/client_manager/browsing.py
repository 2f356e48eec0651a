"""Browsing: pages of stored messages, from a replica to the clients that look at them.

What it promises
    W1  One page is on its way to a connection at a time, and none to a peer that does not read: a page
        is large, and asking for it is not.
    W2  Every request is answered, by a page or a refusal, in the order of asking. A replica that gives none
        is not waited for: another one is asked.
        The next page is asked of the one that gave the last.
    W3  A page shows everything that was confirmed here before it was asked for.

What it leaves to others
    Which replica is asked: looking at messages is better done by one that does not deliver them.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

from antiphon.bus.messages import BrowseReply, BrowseRequest
from antiphon.client_manager.asking import Asking, Patience
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.wire.frames import Browse, browsed_buffers


class BrowseWish(NamedTuple):
    """A page that a client has asked for; `floor` is what it must not be older than (W3)."""

    connection: Connection
    browse: Browse
    floor: int


class Browsing:
    """Who waits for pages."""

    __slots__ = ("_asking", "_on_the_way", "_outbox", "_patience", "_waiting")

    def __init__(self, settings: ClientManagerSettings, outbox: Outbox, asking: Asking) -> None:
        self._outbox = outbox
        self._asking = asking
        self._patience = Patience(settings.browse_repeat_ms)
        self._waiting: dict[int, deque[BrowseWish]] = {}  # by connection
        self._on_the_way: dict[int, int] = {}  # connection -> the number asked under

    def ask(self, connection: Connection, browse: Browse, floor: int) -> None:
        """A client wants to see a page."""
        wish = BrowseWish(connection, browse, floor)
        self._waiting.setdefault(connection.conn, deque()).append(wish)
        self.go_on(connection)

    def go_on(self, connection: Connection) -> None:
        """Ask for the next page of a connection, if it is its turn (W1)."""
        waiting = self._waiting.get(connection.conn)
        if not waiting or connection.is_blocked or connection.conn in self._on_the_way:
            return
        wish = waiting.popleft()
        if not waiting:
            del self._waiting[connection.conn]
        number = self._on_the_way[connection.conn] = self._asking.next_number()
        browse = wish.browse
        request = BrowseRequest(number, wish.floor, browse.destination, browse.after, browse.limit)
        self._asking.put(browse.channel, request, partial(self._on_page, wish), self._patience)

    def _on_page(self, wish: BrowseWish, reply: BrowseReply) -> None:
        """A replica shows a page, or says why not."""
        connection, request = wish.connection, wish.browse.request
        del self._on_the_way[connection.conn]
        if reply.code:
            self._outbox.refuse(connection, request, reply.code, reply.text)
        else:
            connection.requests.discard(request)
            pieces = [(first, redelivered, buffers) for first, _, redelivered, buffers in reply.pieces]
            buffers = browsed_buffers(request=request, through=reply.through, more=reply.more, pieces=pieces)
            self._outbox.send_buffers(connection, buffers)
        self.go_on(connection)

    def connection_over(self, connection: Connection) -> None:
        self._waiting.pop(connection.conn, None)
        number = self._on_the_way.pop(connection.conn, None)
        if number is not None:
            self._asking.forget(number)
