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
from itertools import count
from typing import NamedTuple

from antiphon.bus.messages import BrowseReply, BrowseRequest
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.client_manager.effects import SendToReplica
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.wire.frames import Browse, browsed_buffers

_NS_PER_MS = 1_000_000


class Wish(NamedTuple):
    """A page that a client has asked for; `floor` is what it must not be older than (W3)."""

    connection: Connection
    browse: Browse
    floor: int


class _Asked:
    """A page on its way: who has been asked for it how often, and when to ask the next."""

    __slots__ = ("again_ns", "attempts", "wish")

    def __init__(self, wish: Wish, attempts: int) -> None:
        self.wish = wish
        self.attempts = attempts
        self.again_ns: int | None = None


class Browsing:
    """Who waits for pages."""

    __slots__ = ("_answering", "_asked", "_numbers", "_on_the_way", "_outbox", "_repeat_ns", "_waiting")

    def __init__(self, settings: ClientManagerSettings, outbox: Outbox) -> None:
        self._outbox = outbox
        self._repeat_ns = settings.browse_repeat_ms * _NS_PER_MS
        self._numbers = count(1)
        self._waiting: dict[int, deque[Wish]] = {}  # by connection
        self._on_the_way: dict[int, int] = {}  # connection -> the number asked under
        self._asked: dict[int, _Asked] = {}  # by that number
        # The attempt that was answered last, in each channel: whoever gave no answer then is passed over.
        self._answering: dict[str, int] = {}

    def ask(self, connection: Connection, browse: Browse, floor: int) -> None:
        """A client wants to see a page."""
        wish = Wish(connection, browse, floor)
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
        self._asked[number] = _Asked(wish, self._answering.get(wish.browse.channel, 0))
        self._send(number)

    def _send(self, number: int) -> None:
        asked = self._asked[number]
        browse = asked.wish.browse
        request = BrowseRequest(number, asked.wish.floor, browse.destination, browse.after, browse.limit)
        self._outbox.do(SendToReplica(browse.channel, request, asked.attempts))

    def answered(self, channel: str, reply: BrowseReply) -> None:
        """A replica shows a page, or says why not."""
        asked = self._asked.pop(reply.request, None)
        if asked is None:
            return
        self._answering[channel] = asked.attempts
        connection, request = asked.wish.connection, asked.wish.browse.request
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
        for number, asked in self._asked.items():
            if asked.wish.browse.channel == channel:
                self._send(number)

    def next_deadline_ns(self) -> int | None:
        deadlines = [asked.again_ns for asked in self._asked.values() if asked.again_ns is not None]
        return min(deadlines, default=None)

    def keep_time(self, now_ns: int) -> None:
        """Ask another replica for what did not come."""
        for number, asked in self._asked.items():
            if asked.again_ns is None:
                asked.again_ns = now_ns + self._repeat_ns
            elif asked.again_ns <= now_ns:
                asked.again_ns = now_ns + self._repeat_ns
                asked.attempts += 1
                self._send(number)

    def connection_over(self, connection: Connection) -> None:
        self._waiting.pop(connection.conn, None)
        number = self._on_the_way.pop(connection.conn, None)
        if number is not None:
            del self._asked[number]
