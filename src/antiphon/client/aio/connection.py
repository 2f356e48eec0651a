"""`connect`, and the connection that it returns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Literal

from antiphon.client.aio.admin import Admin
from antiphon.client.aio.block import Block, Duration, Once, seconds
from antiphon.client.aio.callbacks import Callbacks
from antiphon.client.aio.link import ClientLink, reason_of
from antiphon.client.aio.ranges import Ranges
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.session import Session
from antiphon.client.aio.staging import Staging
from antiphon.client.core.route import TLS_SCHEME, Server, in_drawn_order, is_secure, parse_url
from antiphon.errors import (
    AccessDenied,
    AntiphonError,
    ClientIdInUse,
    ConnectionFailed,
    LocalError,
    NotConnected,
    TlsFailed,
)
from antiphon.tls import ClientTls, TlsChoice
from antiphon.wire.frames import AckMode

AckName = Literal["auto", "client", "individual", "dups_ok"]

State = Literal["connected", "lost", "closed"]

RECONNECT_S = 60.0

USER_BYTES_MAX = 255
"""Of a user's name or a client id: client managers close the connection at a longer one."""

PASSWORD_BYTES_MAX = 1_024
"""Far more than real ones have, far less than a greeting holds."""

_ACK_MODES = {
    "auto": AckMode.AUTO,
    "client": AckMode.CLIENT,
    "individual": AckMode.INDIVIDUAL,
    "dups_ok": AckMode.DUPS_OK,
}


def connect(
    url: str,
    user: str | None = None,
    password: str | None = None,
    client_id: str | None = None,
    timeout: Duration = 10,
    reconnect: Duration = RECONNECT_S,
    spread: bool = True,
    started: bool = True,
    tls: TlsChoice = None,
) -> Connection:
    """A connection to one of the servers in `url`.

    The servers are tried in an order that each connection draws, so that many clients with the same `url`
    spread over the servers, and those of a lost server over the others; in the order of the `url`, if
    `spread` is False.

    Await it, or use it with `async with`. `timeout` is how long that may take; and how
    long the server may take later on to open a session, a producer or a consumer.

    A connection that is lost is made again by itself, to any of the servers, and everything goes on
    where it was: what was sent and not confirmed is sent again and stored once, what a consumer holds
    stays its own. The application only waits. This is tried for as long as anything waits or there is a
    consumer, and at least for `reconnect` seconds; then, or at once if that is 0, the connection is over
    (NotConnected). `connection.state` says how it is; `on_lost` and `on_resumed` are called when it changes.

    With `started=False` consumers give out nothing before `connection.start()`.

    `on_error` is called with an error that no call raises. NotConnected: the connection is over.
    SessionClosed: a session cannot go on. AcknowledgeRefused: an acknowledgement that the library sent in the
    background came too late. PublishRefused, PublishUncertain: a non-persistent message, whose `send` had
    returned, is not stored, or perhaps not.

    A `client_id` belongs to one connection in the whole cluster, until that is closed: another one raises
    ClientIdInUse. A connection that is lost keeps it for two seconds, and then until another takes it: if the
    first comes back then, it is over.

    With `antiphons://` the connection speaks TLS, and the servers' certificates are verified. `tls` is the
    path of the CA's file, a `Tls` or a mapping with its fields, or an ssl.SSLContext; None trusts the CAs
    that this machine trusts. Files that change are read again for the next connection. If no server passes,
    `connect` raises TlsFailed; a connection that was lost is given up for that after `reconnect` seconds,
    whatever waits for it.

    >>> async with antiphon.connect("antiphon://127.0.0.1:7420,127.0.0.1:7421") as connection:
    ...     async with connection.session() as session:
    ...         await session.producer("queue:orders").send(b"...")
    """
    servers = parse_url(url)
    if tls is not None and not is_secure(url):
        raise LocalError(f"tls= is for urls that begin with {TLS_SCHEME}; {url!r} does not")
    return Connection(
        in_drawn_order(servers, random.random) if spread else servers,
        user=_checked("user", user, USER_BYTES_MAX),
        password=_checked("password", password, PASSWORD_BYTES_MAX),
        client_id=_checked("client_id", client_id, USER_BYTES_MAX),
        timeout=seconds(timeout, "timeout"),
        reconnect=seconds(reconnect, "reconnect"),
        started=bool(started),
        tls=ClientTls(tls) if is_secure(url) else None,
    )


class Connection(Block):
    """A connection to a server; `connect` makes them.

    >>> connection = await antiphon.connect("antiphon://127.0.0.1:7420")
    >>> await connection.close()
    """

    def __init__(
        self,
        servers: list[Server],
        *,
        user: str,
        password: str,
        client_id: str,
        timeout: float,
        reconnect: float,
        started: bool = True,
        tls: ClientTls | None = None,
    ) -> None:
        self._servers = servers
        self._tls = tls
        self._user = user
        self._password = password
        self._client_id = client_id
        self._timeout = timeout
        self._reconnect = reconnect
        self._connecting = Once(self._connect, undo=self._leave)
        self._link: ClientLink | None = None
        self._begins_started = started
        self._sessions: list[Session | Staging | Ranges] = []
        self._callbacks = Callbacks()
        self.on_lost: Callable[[], Any] | None = None
        """Called, or awaited in a task, when the connection is lost; it is looked for meanwhile."""
        self.on_resumed: Callable[[], Any] | None = None
        """Called, or awaited in a task, when there is a connection again."""
        self.on_error: Callable[[AntiphonError], Any] | None = None
        """Called, or awaited in a task, with an error that no call raises, see `connect`."""

    @property
    def state(self) -> State:
        """ "connected"; "lost" while there is no connection and one is looked for, or was not yet; "closed".

        >>> connection.on_lost = lambda: print("no connection")
        >>> connection.state
        'connected'
        """
        if self.closed:
            return "closed"
        return "connected" if self._link is not None and self._link.is_up else "lost"

    @property
    def closed(self) -> bool:
        """Was the connection closed, or given up? A connection that is lost for a while is not."""
        return self._link is not None and self._link.error is not None

    @property
    def is_started(self) -> bool:
        """Do consumers give out messages? Not after `stop`, until `start`.

        >>> connection = await antiphon.connect("antiphon://127.0.0.1:7420", started=False)
        >>> connection.is_started
        False
        """
        return self._begins_started if self._link is None else not self._link.is_stopped

    async def stop(self) -> None:
        """Have the consumers of all sessions give out nothing until `start`.

        When this returns no `receive` returns a message, and no loop goes on to its next one. Calls that wait
        go on waiting, and their timeouts run on: then they return nothing. What the application is working on
        is not waited for. Sending, acknowledging, commits and browsing go on as usual; replies to requests
        wait, as other messages do. Messages that were sent ahead stay with their consumers.

        >>> await connection.stop()
        """
        self._connected().stop()

    async def start(self) -> None:
        """Have the consumers give out messages again. A connection is started if `connect` is not told
        otherwise.

        >>> await connection.start()
        """
        self._connected().start()

    def session(self, ack: AckName | None = None, *, transacted: bool = False) -> Session:
        """A session, whose `ack` says when messages are acknowledged.

        auto: when `receive` returns them, or when `async for` asks for the next one.
        client: `message.ack()` acknowledges everything the session was given so far.
        individual: `message.ack()` acknowledges this one.
        dups_ok: as auto, but lazily: after a failure more messages may come a second time.

        In a `transacted` session `session.commit()` acknowledges every received message, and makes every sent
        one visible.

        >>> async with connection.session(ack="client") as session:
        ...     consumer = session.consumer("queue:orders")
        """
        if transacted and ack is not None:
            raise LocalError("a transacted session acknowledges by commit: it takes no ack")
        if ack is not None and ack not in _ACK_MODES:
            raise LocalError(f"ack is one of {', '.join(map(repr, _ACK_MODES))}; it was {ack!r}")
        mode = AckMode.TRANSACTED if transacted else _ACK_MODES[ack or "auto"]
        session = Session(SessionScope(self._connected, mode, self._timeout))
        self._remember(session)
        return session

    def staging(self, app_id: str) -> Staging:
        """Messages that are staged outside of sessions, and committed all at once, see `Staging`.

        >>> async with connection.staging("nightly-report") as staging:
        ...     part = await staging.stage("queue:alerts", [b"a", b"b"])
        ...     await staging.commit(7, [part])
        """
        staging = Staging(SessionScope(self._connected, AckMode.AUTO, self._timeout), app_id)
        self._remember(staging)
        return staging

    def ranges(self) -> Ranges:
        """Stored messages, read by ranges of numbers without consuming them, see `Ranges`.

        >>> async with connection.ranges() as ranges:
        ...     prices = await ranges.destinations(["topic:prices"])
        ...     heads = await ranges.heads(prices)
        """
        ranges = Ranges(lambda: SessionScope(self._connected, AckMode.AUTO, self._timeout))
        self._remember(ranges)
        return ranges

    def _remember(self, one: Session | Staging | Ranges) -> None:
        self._sessions = [known for known in self._sessions if not known.closed]
        self._sessions.append(one)

    def admin(self) -> Admin:
        """Questions to the system.

        >>> status = await connection.admin().status()
        """
        return Admin(
            self._connected, self._timeout, lambda mode: SessionScope(self._connected, mode, self._timeout)
        )

    async def close(self) -> None:
        """Close the sessions, each of which waits until everything in it is confirmed, then say goodbye.

        >>> await connection.close()
        """
        try:
            await asyncio.gather(*(session.close() for session in self._sessions))
        finally:
            self._sessions.clear()
            if self._link is not None:
                await self._link.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._link.server if self._link is not None else "not connected"
        return f"<Connection {state}>"

    def _connected(self) -> ClientLink:
        if self._link is None:
            raise NotConnected("the connection was neither awaited nor entered with `async with`")
        self._link.check()
        return self._link

    async def _opened(self) -> Connection:
        await self._connecting.get()
        return self

    def _tell(self, name: Literal["on_lost", "on_resumed", "on_error"], *given: object) -> None:
        function: Callable[..., Any] | None = getattr(self, name)
        self._callbacks.call(name, function, *given)

    def _leave(self, link: ClientLink) -> None:
        """The caller of `connect` was cancelled, and has nothing to close."""
        self._link = None
        link.leave()

    async def _connect(self) -> ClientLink:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        failures: dict[str, str] = {}
        untrusted = 0
        late: TimeoutError | None = None
        link = ClientLink(
            self._servers,
            user=self._user,
            password=self._password,
            client_id=self._client_id,
            reconnect_s=self._reconnect,
            tls=self._tls,
        )
        for place, server in enumerate(self._servers):
            # A server that never answers leaves the others their share of the time.
            share = max(0.0, deadline - loop.time()) / (len(self._servers) - place)
            try:
                await link.reach(server, share)
                self._link = link
                link.tell = self._tell
                if not self._begins_started:
                    link.stop()
                return link
            except (AccessDenied, ClientIdInUse):
                raise
            except TimeoutError as error:
                late = error
                failures[str(server)] = f"no answer within {share:.3g} s"
            except (OSError, AntiphonError) as error:
                failures[str(server)] = reason_of(error)
                untrusted += isinstance(error, TlsFailed)
        reasons = "; ".join(f"{server}: {reason}" for server, reason in failures.items())
        if untrusted == len(self._servers):
            raise TlsFailed(f"no server could be reached. {reasons}", failures)
        # The cause tells whether more time might have helped.
        raise ConnectionFailed(f"no server could be reached. {reasons}", failures) from late


def _checked(what: str, text: str | None, bytes_max: int) -> str:
    """The text, or "" for None. An error does not repeat it, for it may be a secret."""
    if text is None:
        return ""
    try:
        if isinstance(text, str) and len(text.encode()) <= bytes_max:
            return text
    except UnicodeEncodeError:
        pass
    raise LocalError(f"{what} is a text of at most {bytes_max:,} bytes of UTF-8") from None
