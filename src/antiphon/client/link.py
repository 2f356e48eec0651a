"""Link: the core of a connection on a real socket, under asyncio.

Bytes in, events out to whoever waits for them; bytes out at most once a turn of the event
loop. There is one timer, set to when the core wants to be woken.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from antiphon.client.core import NEVER_NS, ClientCore
from antiphon.client.core_events import (
    Answered,
    Arrived,
    ConsumerEnded,
    Ended,
    Event,
    Expired,
    Refused,
    Reply,
    Settled,
    Welcomed,
)
from antiphon.errors import AntiphonError, NotConnected, RemoteError, Timeout
from antiphon.wire.buffer import FrameBuffer
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import Goodbye, Welcome, decode_server_frame, encode_frame

FAREWELL_S = 2.0
"""How long a peer may take to read our last words."""

R = TypeVar("R", bound=Reply)


class Pending(Protocol):
    """What commands are sent with: it learns their fate."""

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        """The outcomes are known."""

    def lose(self, error: AntiphonError) -> None:
        """They never will be."""


class Expiring(Protocol):
    """A publication: it also learns that its time is over."""

    def expire(self) -> None:
        """Stop waiting."""


class Receiver(Protocol):
    """A consumer, as the link knows it."""

    def arrived(self) -> None:
        """There are messages."""

    def ended(self, error: AntiphonError) -> None:
        """There will be no more."""


class Link(asyncio.Protocol):
    """One connection to one server."""

    def __init__(self, *, server: str, user: str, password: str, client_id: str) -> None:
        self.server = server
        self.core = ClientCore(user=user, password=password, client_id=client_id)
        self.error: AntiphonError | None = None
        self.loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[Welcome] = self.loop.create_future()
        self.receivers: dict[tuple[int, int], Receiver] = {}
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._gone: asyncio.Future[None] = self.loop.create_future()
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._news: list[asyncio.Future[None]] = []
        self._at_tick: list[Callable[[], None]] = []
        self._is_tick_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS

    # -- asyncio calls ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connected: socket.socket | None = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.error is not None:
            return
        now_ns = time.monotonic_ns()
        try:
            for kind, payload in self._buffer.feed(data):
                for event in self.core.receive(now_ns, decode_server_frame(kind, payload)):
                    self._dispatch(event)
                if self.error is not None:
                    return
        except RemoteError as error:
            self.end(error, goodbye=True)
            return
        news, self._news = self._news, []
        for future in news:
            if not future.done():
                future.set_result(None)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.end(NotConnected(str(error) if error else "the server closed the connection"))
        self._gone.set_result(None)

    # -- events of the core ----------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event:
            case Settled():
                cast(Pending, event.tag).settle(event.outcomes)
            case Arrived():
                receiver = self.receivers.get((event.session, event.consumer))
                if receiver is not None:
                    receiver.arrived()
            case Answered():
                reply = self._replies.get(event.request)
                if reply is not None and not reply.done():
                    reply.set_result(event.reply)
            case Refused():
                reply = self._replies.get(event.request)
                if reply is not None and not reply.done():
                    reply.set_exception(event.error)
            case ConsumerEnded():
                receiver = self.receivers.pop((event.session, event.consumer), None)
                if receiver is not None:
                    receiver.ended(event.error)
            case Expired():
                cast(Expiring, event.publication).expire()
            case Welcomed():
                self._buffer.limit = self.core.frame_limit
                if not self.welcomed.done():
                    self.welcomed.set_result(event.welcome)
            case Ended():
                self.end(event.error)

    # -- what the application's side calls -------------------------------------

    async def call(self, request: int, reply: type[R], timeout: float) -> R:
        """Wait for the answer to a request that the core has just made."""
        future: asyncio.Future[Reply] = self.loop.create_future()
        self._replies[request] = future
        self.flush_soon()
        try:
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            raise Timeout(f"{self.server} did not answer within {timeout:g} s") from None
        finally:
            del self._replies[request]
            if not future.done() or future.cancelled():
                self.core.abandon_request(request)
        assert isinstance(answer, reply), "the core lets pass only the answer that was expected"
        return answer

    def check(self) -> None:
        """Raise NotConnected unless there is a connection."""
        if self.error is not None:
            raise self.lost() from self.error

    def lost(self) -> NotConnected:
        return NotConnected(f"the connection to {self.server} is over: {self.error}")

    async def news(self) -> None:
        """Wait until the server has said something, or the connection is over."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._news.append(future)
        await future

    def at_tick(self, action: Callable[[], None]) -> None:
        """Do this in the next turn of the loop, just before everything is written."""
        self._at_tick.append(action)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Write in the next turn of the loop, together with what this turn still brings."""
        if not self._is_tick_due:
            self._is_tick_due = True
            self.loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._is_tick_due = False
        actions, self._at_tick = self._at_tick, []
        for action in actions:
            action()
        self.flush()

    def flush(self) -> None:
        """Write now."""
        output = self.core.take_output()
        if output and self._transport is not None and self.error is None:
            self._transport.writelines(output)
        if self.core.wake_ns < self._timer_ns:
            self._set_timer()

    # -- time ------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_ns = self.core.wake_ns
        if self._timer_ns != NEVER_NS and self.error is None:
            delay_ns = max(0, self._timer_ns - time.monotonic_ns())
            self._timer = self.loop.call_later(delay_ns / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ns = NEVER_NS
        for event in self.core.on_time(time.monotonic_ns()):
            self._dispatch(event)
        self.flush()

    # -- the end ---------------------------------------------------------------

    def end(self, error: AntiphonError, *, goodbye: bool = False) -> None:
        """The connection is over, for this reason. The first reason counts."""
        if self.error is not None:
            return
        self.error = error
        if self._transport is not None:
            if goodbye:
                self._transport.write(encode_frame(Goodbye(code=error.code, text=error.text)))
            self._transport.close()
        self._set_timer()
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
        for tag in self.core.abandon():
            cast(Pending, tag).lose(self.lost())
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.lost())
        receivers, self.receivers = self.receivers, {}
        for receiver in receivers.values():
            receiver.ended(self.lost())
        for future in self._news:
            if not future.done():
                future.set_result(None)

    async def close(self) -> None:
        """Say goodbye and wait until the socket is closed."""
        if self.error is None:
            self.flush()
            assert self._transport is not None, "whoever closes a link has made it"
            self._transport.write(encode_frame(Goodbye(code="", text="")))
            self.end(NotConnected("it was closed here"))
        try:
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            # The peer reads nothing any more.
            self.abort()
            await self._gone

    def abort(self) -> None:
        """Give up without a word."""
        self.welcomed.cancel()
        self.end(NotConnected("it was given up here"))
        if self._transport is not None:
            self._transport.abort()
