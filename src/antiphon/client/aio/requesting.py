"""Requests and replies: one temporary queue for all requests of a session, and producers that are kept.

RPL1  A reply is found by its correlation id. Any number of requests wait at the same time.
RPL2  A reply for which nobody waits any more is acknowledged and dropped.
RPL3  The replies have a session of their own, on the same connection: what the application acknowledges does
      not cover them.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from antiphon.batch.bodies import Sendable
from antiphon.client.aio.block import Once
from antiphon.client.aio.consumer import Consumer, Intake
from antiphon.client.aio.producer import Producer
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.subscribing import SubscriptionWish
from antiphon.client.aio.temporaries import make_temporary
from antiphon.client.core.receipts import Receipt
from antiphon.errors import AntiphonError, LocalError, PublishRefused, SessionClosed, Timeout
from antiphon.message import Message, MessageView
from antiphon.names import parse_destination

PRODUCERS_MAX: Final = 1_000
"""Producers that a session keeps for its requests and replies; the one that was not used for longest goes."""


class KeptProducers:
    """The producers of one session by destination, for callers that have none of their own."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._producers: dict[str, Producer] = {}
        if scope.transactions is not None:
            # The commit tells that a destination is gone: the repeat is to hear it when it sends.
            scope.transactions.when_rolled_back(self._producers.clear)

    async def send(self, destination: str, body: Sendable, **options: Any) -> Receipt:
        producer = self._producers.pop(destination, None) or Producer(self._scope, destination)
        self._producers[destination] = producer
        if len(self._producers) > PRODUCERS_MAX:
            del self._producers[next(iter(self._producers))]
        try:
            return await producer.send(body, **options)
        except PublishRefused:
            # A destination that was deleted may have been made anew.
            if self._producers.get(destination) is producer:
                del self._producers[destination]
            raise

    async def reply(self, message: MessageView, body: Sendable, **options: Any) -> Receipt:
        """Send a reply where the message says, under the id by which its sender knows the request."""
        if message.reply_to is None:
            raise LocalError("the message does not say where a reply is to go: it has no reply_to")
        correlation_id = message.correlation_id or message.message_id
        return await self.send(message.reply_to, body, correlation_id=correlation_id, **options)


class Inbox(NamedTuple):
    """Where the replies to the requests of a session come."""

    scope: SessionScope
    name: str
    consumer: Consumer


class Requester:
    """The requests of one session (RPL1)."""

    def __init__(self, scope: SessionScope, producers: KeptProducers) -> None:
        self._scope = scope
        self._producers = producers
        self._opening = Once(self._open)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._asked = 0
        self._reading: asyncio.Task[None] | None = None

    async def request(
        self, destination: str, body: Sendable, timeout_s: float, options: dict[str, Any]
    ) -> Message:
        if self._scope.transactions is not None:
            raise LocalError(
                "a request of a transacted session would leave with its commit, and the reply come behind "
                "that: use another session"
            )
        id = ""
        try:
            async with asyncio.timeout(timeout_s):
                inbox = await self._opening.get()
                self._asked += 1
                id = str(self._asked)
                reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                self._waiting[id] = reply
                await self._producers.send(
                    destination, body, correlation_id=id, reply_to=inbox.name, timeout=timeout_s, **options
                )
                return await reply
        except TimeoutError:
            raise Timeout(f"no reply to the request to {destination} came within {timeout_s:g} s") from None
        finally:
            unheard = self._waiting.pop(id, None)
            if unheard is not None and unheard.done() and not unheard.cancelled():
                # Nobody else looks at why there is no reply.
                unheard.exception()

    async def close(self) -> None:
        """End the requests that wait. The temporary queue goes with its session."""
        if not self._opening.has_begun:
            return
        inbox = self._opening.result or await self._opening.get()
        self._fail(SessionClosed("the session is closed"))
        if self._reading is not None:
            self._reading.cancel()
        await inbox.scope.close()

    async def _open(self) -> Inbox:
        scope = self._scope.sibling()
        try:
            name = await make_temporary(scope, "queue")
            intake = Intake(scope, name, None, SubscriptionWish(parse_destination(name)), create=False)
            consumer = await Consumer(intake)
        except BaseException:
            self._scope.leave(scope.close())
            raise
        inbox = Inbox(scope, name, consumer)
        self._reading = asyncio.get_running_loop().create_task(self._read(inbox))
        return inbox

    async def _read(self, inbox: Inbox) -> None:
        try:
            while True:
                message = await inbox.consumer.receive()
                reply = self._waiting.get(message.correlation_id or "") if message is not None else None
                if message is not None and reply is not None and not reply.done():
                    reply.set_result(message)
        except AntiphonError as error:
            # The session of the replies has ended. The next request begins another one.
            self._opening = Once(self._open)
            self._fail(error)

    def _fail(self, error: AntiphonError) -> None:
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(error)
