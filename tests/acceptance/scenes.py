"""What the acceptance tests share: sessions of the real client, and waiting until a destination is so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import antiphon

WAIT_S = 60.0


class Broker(Protocol):
    """A message system that clients reach by its address, of one node or of many."""

    @property
    def url(self) -> str: ...


@asynccontextmanager
async def in_session(
    broker: Broker, ack: Any = "auto", *, client_id: str | None = None, transacted: bool = False
) -> AsyncIterator[antiphon.Session]:
    """A session with a connection of its own."""
    options: dict[str, Any] = {"transacted": True} if transacted else {"ack": ack}
    async with (
        antiphon.connect(broker.url, client_id=client_id, timeout=WAIT_S) as connection,
        connection.session(**options) as session,
    ):
        yield session


@asynccontextmanager
async def in_two_sessions(
    broker: Broker, *, client_id: str | None = None
) -> AsyncIterator[tuple[antiphon.Session, antiphon.Session]]:
    """Two sessions of one connection: a client id belongs to one."""
    async with (
        antiphon.connect(broker.url, client_id=client_id, timeout=WAIT_S) as connection,
        connection.session() as one,
        connection.session() as other,
    ):
        yield one, other


async def row_of(broker: Broker, name: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the broker tells of a destination, asked until the condition holds."""
    async with antiphon.connect(broker.url, timeout=WAIT_S) as connection, asyncio.timeout(WAIT_S):
        while True:
            for row in await connection.admin().destinations():
                if row["name"] == name and is_so(row):
                    return row


async def taken(consumer: antiphon.Consumer, count: int) -> list[antiphon.Message]:
    """Exactly so many messages."""
    messages = await consumer.receive_many(count, timeout=WAIT_S)
    assert len(messages) == count, f"only {len(messages)} of {count} came"
    return messages


async def bodies(consumer: antiphon.Consumer, count: int) -> list[Any]:
    return [message.body for message in await taken(consumer, count)]


async def browsed(session: antiphon.Session, destination: str, selector: str | None = None) -> list[Any]:
    return [message.body async for message in session.browse(destination, selector=selector)]
