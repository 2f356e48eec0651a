"""Browsing: pages of stored messages, from a replica to the clients that look at them.

What it promises
    W1  One page is on its way to a connection at a time, and none to a peer that does not read: a page
        is large, and asking for it is not.
    W2  Every request is answered, by a page or a refusal, in the order of asking.
    W3  A page shows everything that was confirmed here before it was asked for.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import NamedTuple

from antiphon.bus.messages import BrowseReply, BrowseRequest
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.wire.frames import Browse, browsed_buffers


class Wish(NamedTuple):
    """A page that a client has asked for; `floor` is what it must not be older than (W3)."""

    connection: Connection
    channel: str
    browse: Browse
    floor: int


class Browsing:
    """Who waits for pages."""

    __slots__ = ("_asked", "_numbers", "_on_the_way", "_outbox", "_waiting")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._numbers = count(1)
        self._waiting: dict[int, deque[Wish]] = {}  # by connection
        self._on_the_way: dict[int, int] = {}  # connection -> the number asked under
        self._asked: dict[int, Wish] = {}  # by that number

    def ask(self, connection: Connection, channel: str, browse: Browse, floor: int) -> None:
        """A client wants to see a page."""
        wish = Wish(connection, channel, browse, floor)
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
        number = self._on_the_way[connection.conn] = next(self._numbers)
        self._asked[number] = wish
        self._send(number, wish)

    def _send(self, number: int, wish: Wish) -> None:
        browse = wish.browse
        request = BrowseRequest(number, wish.floor, browse.destination, browse.after, browse.limit)
        self._outbox.do(SendToPrimary(wish.channel, request))

    def answered(self, channel: str, reply: BrowseReply) -> None:
        """A replica shows a page, or says why not."""
        wish = self._asked.pop(reply.request, None)
        if wish is None:
            return
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

    def primary_changed(self, channel: str) -> None:
        """Who was asked may be gone: ask again."""
        for number, wish in self._asked.items():
            if wish.channel == channel:
                self._send(number, wish)

    def connection_over(self, connection: Connection) -> None:
        self._waiting.pop(connection.conn, None)
        number = self._on_the_way.pop(connection.conn, None)
        if number is not None:
            del self._asked[number]
