"""The blocking face: `connect` and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.blocking.admin import Admin
from antiphon.blocking.block import Block
from antiphon.blocking.loop import LoopThread
from antiphon.blocking.ranges import Ranges
from antiphon.blocking.session import Session
from antiphon.blocking.staging import Staging
from antiphon.client import aio
from antiphon.client.durations import Duration


def connect(
    url: str,
    user: str | None = None,
    password: str | None = None,
    client_id: str | None = None,
    timeout: Duration = 10,
    reconnect: Duration = aio.RECONNECT_S,
) -> Connection:
    """A connection to the first of the servers in `url` that lets us in; see `antiphon.connect`.

    >>> with antiphon.blocking.connect("antiphon://127.0.0.1:7420,127.0.0.1:7421") as connection:
    ...     with connection.session() as session:
    ...         session.producer("queue:orders").send(b"...")
    """
    connection = aio.connect(url, user, password, client_id, timeout, reconnect)
    loop = LoopThread()
    try:
        loop.run(connection._opened())
    except BaseException:
        loop.end()
        raise
    return Connection(loop, connection)


class Connection(Block):
    """A connection to a server; `connect` makes them.

    >>> connection = antiphon.blocking.connect("antiphon://127.0.0.1:7420")
    >>> connection.close()
    """

    def __init__(self, loop: LoopThread, connection: aio.Connection) -> None:
        self._loop = loop
        self._connection = connection

    @property
    def closed(self) -> bool:
        """Was it closed, or given up? One that is lost for a while is not."""
        return self._connection.closed

    @property
    def state(self) -> aio.State:
        """ "connected"; "lost" while there is no connection and one is looked for; "closed".

        >>> connection.state
        'connected'
        """
        return self._connection.state

    @property
    def on_lost(self) -> Callable[[], Any] | None:
        """Called when the connection is lost, in the connection's thread: it may not use the connection.

        >>> lost = threading.Event()
        >>> connection.on_lost = lost.set
        """
        return self._connection.on_lost

    @on_lost.setter
    def on_lost(self, callback: Callable[[], Any] | None) -> None:
        self._connection.on_lost = callback

    @property
    def on_resumed(self) -> Callable[[], Any] | None:
        """Called when there is a connection again, in the connection's thread: it may not use the connection.

        >>> connection.on_resumed = lost.clear
        """
        return self._connection.on_resumed

    @on_resumed.setter
    def on_resumed(self, callback: Callable[[], Any] | None) -> None:
        self._connection.on_resumed = callback

    def session(self, ack: aio.AckName | None = None, *, transacted: bool = False) -> Session:
        """A session, opened when this returns; see `antiphon.Connection.session`.

        >>> with connection.session(ack="client") as session:
        ...     consumer = session.consumer("queue:orders")
        """
        session = self._connection.session(ack, transacted=transacted)
        self._loop.run(session._opened())
        return Session(self._loop, session)

    def staging(self, app_id: str) -> Staging:
        """What an application stages outside of sessions; see `antiphon.Connection.staging`.

        >>> with connection.staging("nightly-report") as staging:
        ...     part = staging.stage("queue:alerts", [b"a", b"b"])
        ...     staging.commit(7, [part])
        """
        return Staging(self._loop, self._connection.staging(app_id))

    def ranges(self) -> Ranges:
        """What is stored, read by ranges of numbers; see `antiphon.Connection.ranges`.

        >>> with connection.ranges() as ranges:
        ...     prices = ranges.destinations(["topic:prices"])
        ...     heads = ranges.heads(prices)
        """
        return Ranges(self._loop, self._connection.ranges())

    def admin(self) -> Admin:
        """Questions to the system.

        >>> status = connection.admin().status()
        """
        return Admin(self._loop, self._connection.admin())

    def close(self) -> None:
        """Close the sessions, each of which waits until everything in it is confirmed, then say goodbye.

        >>> connection.close()
        """
        if self._loop.is_over:
            return
        try:
            self._loop.run(self._connection.close())
        finally:
            self._loop.end()

    def __repr__(self) -> str:
        return repr(self._connection)
