"""RangeService: ranges of stored messages, from some replica to the clients that read them.

Where it sits
    a client's request  ->  RANGE SERVICE  ->  a replica of the channel  ->  the client

What it promises
    RGS1  A few pages are on their way to a connection at a time, and none to a peer that does not read. Pages
          are neither decoded nor copied here.
    RGS2  Every request is answered, or refused after a while in which no replica gave an answer.
    RGS3  An answer is not older than any confirmation sent here before the request, nor than the client's
          floor.

What it leaves to others
    `Asking` asks a replica that does not deliver, if it keeps up. The client checks that a page is complete
    and undamaged.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.bus.messages import About, Query, RangeReply, RangeRequest, Reply
from antiphon.client_manager.asking import Asking, Patience
from antiphon.client_manager.connection import Connection, Outbox, Refusal
from antiphon.client_manager.settings import LIMIT, ClientManagerSettings
from antiphon.errors import ProtocolError, RangeUnavailable
from antiphon.wire import frames


class Wish(NamedTuple):
    """A client's request; the answer must not be older than `floor` (RGS3)."""

    connection: Connection
    frame: frames.RangeRead | frames.RangeAsk
    floor: int


@dataclass(slots=True)
class _Line:
    """The requests of one connection: in line, and on the way by their numbers."""

    pages: deque[Wish] = field(default_factory=deque)
    asks: deque[Wish] = field(default_factory=deque)
    pages_on_the_way: set[int] = field(default_factory=set)
    asks_on_the_way: set[int] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        return not (self.pages or self.asks or self.pages_on_the_way or self.asks_on_the_way)


class RangeService:
    """The range requests of all clients. `floors` are the highest numbers confirmed in each channel."""

    def __init__(
        self,
        channels: Sequence[str],
        settings: ClientManagerSettings,
        outbox: Outbox,
        floors: Mapping[str, int],
        asking: Asking,
        cluster_id: str = "",
    ) -> None:
        self._channels = tuple(channels)
        self._cluster_id = cluster_id
        self._settings = settings
        self._outbox = outbox
        self._floors = floors
        self._asking = asking
        self._patience = Patience(settings.range_repeat_ms, settings.range_wait_ms)
        self._lines: dict[int, _Line] = {}  # by connection

    def ask(self, connection: Connection, ask: frames.RangeAsk) -> None:
        """A client asks about stored messages."""
        if len(ask.question) > self._settings.range_question_length_max:
            raise Refusal(LIMIT, f"a question of {len(ask.question)} characters is too long")
        if not ask.channel:
            answer = json.dumps({"channels": sorted(self._channels), "cluster": self._cluster_id})
            told = frames.RangeTold(request=ask.request, answer=answer)
            self._outbox.answer(connection, ask.request, told)
            return
        self._check_channel(ask.channel)
        wish = Wish(connection, ask, max(ask.floor, self._floors[ask.channel]))
        self._line(connection).asks.append(wish)
        self.go_on(connection)

    def read(self, connection: Connection, read: frames.RangeRead) -> None:
        is_open = not read.stop and not read.goal
        if not read.start or not (is_open or read.start < read.stop <= read.goal):
            raise ProtocolError(f"a range from {read.start} to {read.stop} of {read.goal}")
        if not read.destinations:
            raise ProtocolError("a range of no destination")
        if len(read.destinations) > self._settings.range_destinations_max:
            raise Refusal(LIMIT, f"a range of {len(read.destinations):,} destinations is too much at once")
        self._check_channel(read.channel)
        wish = Wish(connection, read, max(read.floor, self._floors[read.channel]))
        self._line(connection).pages.append(wish)
        self.go_on(connection)

    def _check_channel(self, channel: str) -> None:
        if channel not in self._channels:
            raise ProtocolError(f"there is no channel {channel[:80]!r}")

    def _line(self, connection: Connection) -> _Line:
        return self._lines.setdefault(connection.conn, _Line())

    def go_on(self, connection: Connection) -> None:
        """Ask for the next pages in a connection's line, if it is their turn (RGS1)."""
        line = self._lines.get(connection.conn)
        if line is None:
            return
        while line.asks and len(line.asks_on_the_way) < self._settings.range_asks_max:
            self._put_ask(line, line.asks.popleft())
        while (
            line.pages
            and not connection.is_blocked
            and len(line.pages_on_the_way) < self._settings.range_pages_max
        ):
            self._put_read(line, line.pages.popleft())

    def _put_ask(self, line: _Line, wish: Wish) -> None:
        ask = wish.frame
        assert isinstance(ask, frames.RangeAsk), "a page stands in the line of questions"
        wait_ms = min(ask.wait_ms, self._settings.range_ask_wait_ms_max)
        number = self._asking.next_number()
        line.asks_on_the_way.add(number)
        query = Query(number, About.RANGES, ask.question, wish.floor, wait_ms)
        self._asking.put(ask.channel, query, wish, self._patience, wait_ms)

    def _put_read(self, line: _Line, wish: Wish) -> None:
        read = wish.frame
        assert isinstance(read, frames.RangeRead), "a question stands in the line of pages"
        number = self._asking.next_number()
        line.pages_on_the_way.add(number)
        request = RangeRequest(
            number,
            wish.floor,
            read.start,
            read.stop,
            read.goal,
            min(read.page_bytes, self._settings.range_page_bytes_max),
            read.ahead,
            read.ahead_from,
            read.allow_lost,
            read.acks,
            tuple([wanted.destination for wanted in read.destinations]),
            tuple([wanted.since for wanted in read.destinations]),
            read.live,
        )
        self._asking.put(read.channel, request, wish, self._patience)

    def told(self, wish: Wish, number: int, reply: RangeReply | Reply | None) -> None:
        """A replica gives a page, answers a question, or refuses; or none has in time (RGS2)."""
        self._strike(wish, number)
        connection, request = wish.connection, wish.frame.request
        if reply is None:
            text = f"no replica of channel {wish.frame.channel} answers at the moment"
            self._outbox.refuse(connection, request, RangeUnavailable.code, text)
        elif reply.code:
            self._outbox.refuse(connection, request, reply.code, reply.text)
        elif isinstance(reply, RangeReply):
            connection.requests.discard(request)
            self._outbox.send_buffers(connection, frames.range_page_buffers(request, reply.page))
        elif len(reply.answer) > self._settings.answer_length_max:
            text = f"the answer of {len(reply.answer)} characters is too long"
            self._outbox.refuse(connection, request, LIMIT, text)
        else:
            self._outbox.answer(connection, request, frames.RangeTold(request=request, answer=reply.answer))
        self.go_on(connection)

    def _strike(self, wish: Wish, number: int) -> None:
        line = self._lines[wish.connection.conn]
        line.pages_on_the_way.discard(number)
        line.asks_on_the_way.discard(number)
        if line.is_empty:
            del self._lines[wish.connection.conn]

    def connection_over(self, connection: Connection) -> None:
        line = self._lines.pop(connection.conn, None)
        if line is not None:
            for number in (*line.pages_on_the_way, *line.asks_on_the_way):
                self._asking.forget(number)
