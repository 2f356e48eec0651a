"""ClientLink: the core of a connection under asyncio, on one socket after the other.

Bytes come in, events go out to the waiters; bytes leave at most once a turn of the event loop. One timer is
set to the core's next deadline. When a socket is lost the link looks for another by itself, and waiters only
wait longer: for as long as there is a waiter or a consumer, and at least for `reconnect_s`. Then, or when no
other socket could help, the link is over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, Protocol, TypeVar, cast

from antiphon import clock
from antiphon.client.core.client import NEVER_NS, ClientCore
from antiphon.client.core.events import (
    Arrived,
    ConsumerStopped,
    CreditReturned,
    Ended,
    Event,
    Expired,
    Refused,
    Reply,
    RequestAnswered,
    SessionEnded,
    Settled,
    Unheard,
    Welcomed,
)
from antiphon.client.core.publication import wake
from antiphon.client.core.route import Route, Server, read_servers
from antiphon.errors import (
    AccessDenied,
    AntiphonError,
    ClientIdInUse,
    NotConnected,
    RemoteError,
    Timeout,
    TlsFailed,
)
from antiphon.tls import ClientTls, tls_failure
from antiphon.wire.buffer import FrameBuffer
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import (
    CONFIRM,
    ClientFrame,
    Goodbye,
    RangeTold,
    Welcome,
    decode_server_frame,
    encode_frame,
)
from antiphon.wire.primitives import Buffer

ATTEMPT_S = 3.0
"""How long a server may take to admit the client again, before the next one is tried."""

log = logging.getLogger("antiphon")

R = TypeVar("R", bound=Reply)

ENDED_EARLY = "the server closed the connection during the handshake"

FAREWELL_S = 2.0
"""How long a peer may take to read the Goodbye."""


class ServerLine(asyncio.Protocol):
    """One attempt to connect to a server: `welcomed` tells how the greeting went."""

    def __init__(self, server: Server, link: ClientLink) -> None:
        loop = asyncio.get_running_loop()
        self.server = server
        self.buffer = FrameBuffer()
        self.welcomed: asyncio.Future[Welcome] = loop.create_future()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._link = link
        self._transport: asyncio.Transport | None = None

    @property
    def is_up(self) -> bool:
        return self._transport is not None

    def write(self, buffers: Sequence[Buffer]) -> None:
        assert self._transport is not None, "nothing is written before there is a connection"
        self._transport.writelines(buffers)

    def close(self, last_word: ClientFrame | None = None, *, waits: bool = False) -> None:
        """Close, after everything written and this frame are sent; or have the peer close, which `waits`."""
        if self._transport is not None:
            if last_word is not None:
                self._transport.write(encode_frame(last_word))
            if not waits:
                self._transport.close()

    async def closed(self) -> None:
        """Wait until the socket is closed; not for long if the peer does not read, or does not close it."""
        if self._transport is None:
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self.abort()
            await self._gone
        except asyncio.CancelledError:
            self.abort()
            raise

    def abort(self) -> None:
        """Close without a Goodbye."""
        self.welcomed.cancel()
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio calls ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream, but uvloop's streams do not say so.
        self._transport = cast(asyncio.Transport, transport)
        connected: socket.socket | None = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link.line_up(self)

    def data_received(self, data: bytes) -> None:
        self._link.line_said(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set_result(None)
        # With TLS, asyncio's transport takes no calls any more.
        self._transport = None
        self._link.line_lost(self, error)


class Pending(Protocol):
    """The tag of a command, which learns its outcome."""

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        """The outcomes are known."""

    def lose(self, error: AntiphonError) -> None:
        """The outcomes will never be known."""


class Fate:
    """The tag of a command whose outcomes are awaited."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.outcomes: asyncio.Future[list[ConfirmItem]] = loop.create_future()

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        if not self.outcomes.done():
            self.outcomes.set_result(sorted(outcomes))

    def lose(self, error: AntiphonError) -> None:
        if not self.outcomes.done():
            self.outcomes.set_exception(error)
            # A waiter sees the exception; without one, it is not to be reported either.
            self.outcomes.exception()


class Expiring(Protocol):
    """A publication, which also learns that its time is over."""

    def expire(self) -> None:
        """Stop waiting."""


class Receiver(Protocol):
    """A consumer, as the link knows it."""

    @property
    def is_used(self) -> bool:
        """Does the application still have it?"""

    def arrived(self) -> None:
        """There are messages."""

    def look_again(self) -> None:
        """Something else has changed: all that wait may look whether it concerns them."""

    def ended(self, error: AntiphonError) -> None:
        """There will be no more messages."""


class ClientLink:
    """One client of a system of servers."""

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        user: str,
        password: str,
        client_id: str,
        reconnect_s: float,
        tls: ClientTls | None = None,
    ) -> None:
        self.core = ClientCore(user=user, password=password, client_id=client_id)
        self._like_this = partial(
            ClientLink, user=user, password=password, client_id="", reconnect_s=reconnect_s, tls=tls
        )
        self._tls = tls
        self._untrusted: set[Server] = set()
        """The servers whose last attempt failed by their certificate, or by ours."""
        self.error: AntiphonError | None = None
        self.loop = asyncio.get_running_loop()
        self.receivers: dict[tuple[int, int], Receiver] = {}
        self.tell: Callable[..., None] | None = None
        """Called with the name of a callback of the application, and with what that is given."""
        self.is_stopped = False
        """Do consumers give out nothing at the moment?"""
        self._is_lost = False
        self._route = Route(servers, random.random)
        self._reconnect_s = reconnect_s
        self._line: ServerLine | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._waiting = 0
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._news: list[asyncio.Future[None]] = []
        self._at_tick: list[Callable[[], None]] = []
        self._is_tick_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER_NS

    @property
    def server(self) -> str:
        """The last server of the link."""
        return str(self._route.current)

    def has_receiver(self, channel: str, destination: int) -> bool:
        """Does a consumer of this connection, in any session, receive from this destination?"""
        for (session, number), receiver in self.receivers.items():
            consumer = self.core.sessions[session].consumers.get(number)
            if consumer is None or (consumer.channel, consumer.destination) != (channel, destination):
                continue
            if receiver.is_used:
                return True
        return False

    def sibling(self) -> ClientLink:
        """Another link to the same servers, not connected yet. A client id belongs to one connection."""
        return self._like_this(self._route.servers)

    @property
    def is_up(self) -> bool:
        return self.core.welcome is not None

    @property
    def away_s(self) -> float:
        """How long there has been no connection; 0 if there is one."""
        return (clock.now_ns() - self._route.lost_ns) / 1e9 if self._is_lost else 0.0

    # -- one socket after the other --------------------------------------------

    async def reach(self, server: Server, timeout: float) -> None:
        """Connect to this server and be admitted; raises why not."""
        line = self._line = ServerLine(server, self)
        self.core.greet()
        try:
            async with asyncio.timeout(timeout):
                await self._connect(line)
                await line.welcomed
        except BaseException:
            self._leave(line)
            line.abort()
            raise

    async def _connect(self, line: ServerLine) -> None:
        host, port = line.server
        if self._tls is None:
            await self.loop.create_connection(lambda: line, host, port)
            return
        name = self._tls.server_name or host
        try:
            await self.loop.create_connection(
                lambda: line, host, port, ssl=self._tls.context(), server_hostname=name
            )
        except ssl.SSLError as error:
            raise tls_failure(name, error) or NotConnected(ENDED_EARLY) from error
        except ConnectionError as error:
            if error.errno:
                raise
            raise NotConnected(ENDED_EARLY) from error

    def _leave(self, line: ServerLine) -> None:
        if self._line is line:
            self._line = None
            self._recall()
            self.core.lose()

    def _recall(self) -> None:
        for session in self.core.sessions.values():
            session.recall()

    def line_up(self, line: ServerLine) -> None:
        self.flush()

    def line_said(self, line: ServerLine, data: bytes) -> None:
        if self._line is not line:
            return
        now_ns = clock.now_ns()
        try:
            for kind, payload in line.buffer.feed(data):
                if kind == CONFIRM and (settled := self.core.settle_lone(payload)) is not None:
                    settled.settle(settled.outcomes)
                    continue
                for event in self.core.receive(now_ns, decode_server_frame(kind, payload)):
                    self._dispatch(event)
                if self._line is not line:
                    return
        except RemoteError as error:
            self._lost(line, error, is_final=True, goodbye=Goodbye(code=error.code, text=error.text))
            return
        news, self._news = self._news, []
        wake(news)
        self.flush()

    def line_lost(self, line: ServerLine, error: Exception | None) -> None:
        # A server that refuses our certificate says so after the handshake of TLS 1.3.
        failure = tls_failure(line.server.host, error) if isinstance(error, ssl.SSLError) else None
        self._lost(line, failure or NotConnected(str(error or "") or "the server closed the connection"))

    def _lost(
        self,
        line: ServerLine,
        error: AntiphonError,
        *,
        is_final: bool = False,
        was_silent: bool = False,
        goodbye: Goodbye | None = None,
    ) -> None:
        """The socket is of no more use: look for another, unless that would not help."""
        if self._line is not line:
            return
        self._leave(line)
        line.close(goodbye)
        if not line.welcomed.done():
            # The caller of `reach` hears it, and decides.
            line.welcomed.set_exception(error)
            line.welcomed.exception()
        elif is_final or not self._reconnect_s:
            log.warning("the connection to %s is over: %s", self.server, error)
            self.end(error)
            self._tell("on_lost")
            self.report(self.lost())
        else:
            self._is_lost = True
            log.warning("the connection to %s is lost: %s; looking for a server", self.server, error)
            self._route.lost(clock.now_ns(), was_silent=was_silent)
            self._reconnecting = self.loop.create_task(self._reconnect(error))
            self._tell("on_lost")

    def _tell(self, name: Literal["on_lost", "on_resumed", "on_error"], *given: object) -> None:
        if self.tell is not None:
            self.tell(name, *given)

    def report(self, error: AntiphonError) -> None:
        """Tell the application of a failure that none of its calls raises."""
        self._tell("on_error", error)

    async def find(self) -> None:
        """Try the servers, over and over, until one of them admits the client.

        Raises TlsFailed if all of them fail for reasons that time does not mend.
        """
        self._route.lost(clock.now_ns())
        while not await self._try_next():
            if self._is_untrusted:
                raise TlsFailed(f"no server could be reached. {self._route.reasons}")

    async def _try_next(self) -> bool:
        """Try the next server, when it is time; has it admitted the client?"""
        route = self._route
        server, at_ns = route.next()
        await asyncio.sleep(max(0, at_ns - clock.now_ns()) / 1e9)
        self._untrusted.discard(server)
        try:
            await self.reach(server, ATTEMPT_S)
            self._untrusted.clear()
            return True
        except (AccessDenied, ClientIdInUse):
            raise
        except TlsFailed as error:
            self._untrusted.add(server)
            reason = error.text
        except TimeoutError:
            reason = f"no answer within {ATTEMPT_S:g} s"
        except (OSError, AntiphonError) as error:
            reason = reason_of(error)
        route.failed(clock.now_ns(), reason)
        return False

    async def _reconnect(self, lost: AntiphonError) -> None:
        route = self._route
        while self.error is None:
            try:
                if await self._try_next():
                    return
            except (AccessDenied, ClientIdInUse) as error:
                self._give_up(error)
                return
            tried_s = (clock.now_ns() - route.lost_ns) / 1e9
            if tried_s >= self._reconnect_s and (self._is_untrusted or not self._is_needed):
                text = f"{lost}; no server could be reached for {tried_s:.0f} s. {route.reasons}"
                self._give_up(TlsFailed(text) if self._is_untrusted else NotConnected(text))

    @property
    def _is_untrusted(self) -> bool:
        """Did the last attempts at all servers fail for reasons that time does not mend?"""
        return all(server in self._untrusted for server in self._route.servers)

    @property
    def _is_needed(self) -> bool:
        """Is there a waiter or a consumer?"""
        return bool(self._waiting or self.receivers or self.core.is_awaited)

    def _give_up(self, error: AntiphonError) -> None:
        log.warning("the connection to %s is given up: %s", self.server, error)
        self.end(error)
        self.report(self.lost())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this block a lost connection is not given up."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    # -- events of the core ----------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event:
            case Settled():
                cast(Pending, event.tag).settle(event.outcomes)
            case Arrived():
                receiver = self.receivers.get((event.session, event.consumer))
                if receiver is not None:
                    receiver.arrived()
            case RequestAnswered():
                reply = self._replies.get(event.request)
                if reply is not None and not reply.done():
                    reply.set_result(event.reply)
            case Refused():
                reply = self._replies.get(event.request)
                if reply is not None and not reply.done():
                    reply.set_exception(event.error)
            case CreditReturned():
                receiver = self.receivers.get((event.session, event.consumer))
                if receiver is not None:
                    # Everything that was sent is here, and nothing more is on its way.
                    receiver.look_again()
            case ConsumerStopped():
                receiver = self.receivers.pop((event.session, event.consumer), None)
                if receiver is not None:
                    receiver.ended(event.error)
            case SessionEnded():
                for tag in event.tags:
                    cast(Pending, tag).lose(event.error)
            case Expired():
                cast(Expiring, event.publication).expire()
            case Unheard():
                log.warning("%s", event.error)
                self.report(event.error)
            case Welcomed():
                self._on_welcomed(event)
            case Ended():
                if self._line is not None:
                    self._lost(self._line, event.error, is_final=event.is_final, was_silent=event.is_silent)

    def _on_welcomed(self, event: Welcomed) -> None:
        line = self._line
        assert line is not None, "a welcome without a connection"
        line.buffer.limit = self.core.frame_limit
        self._route.reached(clock.now_ns(), line.server)
        self._route.refresh(read_servers(event.welcome.servers))
        if not line.welcomed.done():
            line.welcomed.set_result(event.welcome)
        if self._is_lost:
            log.info("connected to %s again after %.1f s", self.server, self.away_s)
            self._is_lost = False
            self._tell("on_resumed")

    # -- what the application's side calls -------------------------------------

    def wall_ms(self) -> int:
        """The time stamp of messages."""
        return time.time_ns() // 1_000_000

    async def call(self, request: int, reply: type[R], timeout: float | None) -> R:
        """Wait for the answer to a request that the core has just made; without a timeout the caller sees to
        the time."""
        future: asyncio.Future[Reply] = self.loop.create_future()
        self._replies[request] = future
        self.flush_soon()
        try:
            async with asyncio.timeout(timeout):
                with self.waiting():
                    answer = await future
        except TimeoutError:
            assert timeout is not None, "a time without a limit was over"
            raise self.late(timeout) from None
        finally:
            del self._replies[request]
            if not future.done() or future.cancelled():
                self.core.abandon_request(request)
        assert isinstance(answer, reply), "the core lets pass only the answer that was expected"
        return answer

    def late(self, timeout: float) -> Timeout:
        """Why nothing came in this time."""
        if self.is_up or not self._route.failures:
            return Timeout(f"{self.server} did not answer within {timeout:g} s")
        return Timeout(f"there was no connection for {timeout:g} s. {self._route.reasons}")

    def away(self) -> NotConnected:
        """Why nothing comes: there has been no connection for so long."""
        return NotConnected(
            f"there has been no connection for {self.away_s:.1f} s, and it is still looked for. "
            f"{self._route.reasons}"
        )

    async def channels(self, timeout: float | None) -> tuple[str, ...]:
        """The names of the system's channels."""
        request = self.core.ask_range("", {"question": "channels"}, 0, 0)
        told = json.loads((await self.call(request, RangeTold, timeout)).answer)
        return tuple(told["channels"])

    def check(self) -> None:
        """Raise NotConnected if the connection is over. A lost one that is looked for is not."""
        if self.error is not None:
            raise self.lost() from self.error

    def lost(self) -> NotConnected:
        error = NotConnected(f"the connection to {self.server} is over: {self.error}")
        error.__cause__ = self.error
        return error

    async def news(self) -> None:
        """Wait until the server has sent something, or the connection is over."""
        future: asyncio.Future[None] = self.loop.create_future()
        self._news.append(future)
        with self.waiting():
            await future

    def at_tick(self, action: Callable[[], None]) -> None:
        """Act in the next turn of the loop, just before everything is written."""
        self._at_tick.append(action)
        if not self._is_tick_due:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Write in the next turn of the loop, together with the rest of this turn."""
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
        if self._line is not None and self._line.is_up:
            output = self.core.take_output()
            if output:
                self._line.write(output)
        if self.core.wake_ns < self._timer_ns:
            self._set_timer()

    # -- stopped and started ---------------------------------------------------

    def stop(self) -> None:
        """From now on consumers give out nothing, also those whose receivers wait already."""
        self.is_stopped = True
        self._recall()

    def start(self) -> None:
        self.is_stopped = False
        for receiver in self.receivers.values():
            receiver.look_again()

    # -- time ------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_ns = self.core.wake_ns
        if self._timer_ns != NEVER_NS and self.error is None:
            delay_ns = max(0, self._timer_ns - clock.now_ns())
            self._timer = self.loop.call_later(delay_ns / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_ns = NEVER_NS
        for event in self.core.on_time(clock.now_ns()):
            self._dispatch(event)
        self.flush()

    # -- the end ---------------------------------------------------------------

    def end(self, error: AntiphonError) -> None:
        """The connection is over; the first reason counts."""
        if self.error is not None:
            return
        self._recall()
        self.error = error
        if self._reconnecting is not None and self._reconnecting is not asyncio.current_task(self.loop):
            self._reconnecting.cancel()
        self._set_timer()
        for tag in self.core.abandon():
            cast(Pending, tag).lose(self.lost())
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self.lost())
        receivers, self.receivers = self.receivers, {}
        for receiver in receivers.values():
            receiver.ended(self.lost())
        wake(self._news)

    def leave(self, *, waits: bool = False) -> ServerLine | None:
        self.flush()
        line, self._line = self._line, None
        self.end(NotConnected("it was closed here"))
        if line is not None:
            line.close(Goodbye(code="", text=""), waits=waits)
        return line

    async def close(self) -> None:
        # The server closes when the client id is free: another connection may follow at once, to any server.
        line = self.leave(waits=bool(self.core.client_id))
        if line is not None:
            await line.closed()


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)
