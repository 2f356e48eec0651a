"""`connect`, and the connection that it returns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from antiphon.client.aio.admin import Admin
from antiphon.client.aio.block import Block, Duration, Once, seconds
from antiphon.client.aio.link import ClientLink, reason_of
from antiphon.client.aio.ranges import Ranges
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.session import Session
from antiphon.client.aio.staging import Staging
from antiphon.client.core.route import Server, parse_url
from antiphon.errors import AccessDenied, AntiphonError, ConnectionFailed, LocalError, NotConnected
from antiphon.wire.frames import AckMode

log = logging.getLogger("antiphon")

AckName = Literal["auto", "client", "individual", "dups_ok"]

State = Literal["connected", "lost", "closed"]

RECONNECT_S = 60.0

CREDENTIAL_CHARACTERS_MAX = 1_024
"""Of a user's name, a password or a client id: far more than real ones, far less than a greeting holds."""

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
) -> Connection:
    """A connection to the first of the servers in `url` that lets us in.

    Await it, or use it with `async with`. `timeout` is how long that may take; and how
    long the server may take later on to open a session, a producer or a consumer.

    A connection that is lost is made again by itself, to any of the servers, and everything goes on
    where it was: what was sent and not confirmed is sent again and stored once, what a consumer holds
    stays its own. The application only waits. This is tried for as long as anything waits or there is a
    consumer, and at least for `reconnect` seconds; then, or at once if that is 0, the connection is over
    (NotConnected). `connection.state` says how it is; `on_lost` and `on_resumed` are called when it changes.

    >>> async with antiphon.connect("antiphon://127.0.0.1:7420,127.0.0.1:7421") as connection:
    ...     async with connection.session() as session:
    ...         await session.producer("queue:orders").send(b"...")
    """
    return Connection(
        parse_url(url),
        user=_checked("user", user),
        password=_checked("password", password),
        client_id=_checked("client_id", client_id),
        timeout=seconds(timeout, "timeout"),
        reconnect=seconds(reconnect, "reconnect"),
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
    ) -> None:
        self._servers = servers
        self._user = user
        self._password = password
        self._client_id = client_id
        self._timeout = timeout
        self._reconnect = reconnect
        self._connecting = Once(self._connect, undo=self._leave)
        self._link: ClientLink | None = None
        self._sessions: list[Session | Staging | Ranges] = []
        self._callbacks: set[asyncio.Task[Any]] = set()
        self.on_lost: Callable[[], Any] | None = None
        """Called, or awaited in a task, when the connection is lost; it is looked for meanwhile."""
        self.on_resumed: Callable[[], Any] | None = None
        """Called, or awaited in a task, when there is a connection again."""

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
        return Admin(self._connected, self._timeout)

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

    def _tell(self, change: Literal["on_lost", "on_resumed"]) -> None:
        callback = self.on_lost if change == "on_lost" else self.on_resumed
        try:
            result = callback() if callback is not None else None
        except Exception:
            log.exception("%s of a connection raised", change)
            return
        if asyncio.iscoroutine(result):
            task = asyncio.get_running_loop().create_task(_logged(change, result))
            self._callbacks.add(task)
            task.add_done_callback(self._callbacks.discard)

    def _leave(self, link: ClientLink) -> None:
        """The caller of `connect` was cancelled, and has nothing to close."""
        self._link = None
        link.leave()

    async def _connect(self) -> ClientLink:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        failures: dict[str, str] = {}
        link = ClientLink(
            self._servers,
            user=self._user,
            password=self._password,
            client_id=self._client_id,
            reconnect_s=self._reconnect,
        )
        for place, server in enumerate(self._servers):
            # A server that never answers leaves the others their share of the time.
            share = (deadline - loop.time()) / (len(self._servers) - place)
            try:
                await link.reach(server, share)
                self._link = link
                link.tell = self._tell
                return link
            except AccessDenied:
                raise
            except TimeoutError:
                failures[str(server)] = f"no answer within {share:.3g} s"
            except (OSError, AntiphonError) as error:
                failures[str(server)] = reason_of(error)
        reasons = "; ".join(f"{server}: {reason}" for server, reason in failures.items())
        raise ConnectionFailed(f"no server could be reached. {reasons}", failures)


async def _logged(name: str, callback: Coroutine[Any, Any, Any]) -> None:
    try:
        await callback
    except Exception:
        log.exception("%s of a connection raised", name)


def _checked(what: str, text: str | None) -> str:
    if text is not None and not (isinstance(text, str) and len(text) <= CREDENTIAL_CHARACTERS_MAX):
        raise LocalError(f"{what} is a text of at most {CREDENTIAL_CHARACTERS_MAX:,} characters")
    return text or ""
