"""Dead messages, as an administrator handles them; and moving messages from queue to queue.

DED1  A message is sent back, or moved, and leaves its queue by one commit: once, or not at all, also when
      this process ends in the middle.
DED2  Messages that come to the queue meanwhile stay there, so that a message which dies again at once is not
      sent back for ever.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final

from antiphon.client.aio.consumer import Consumer, Intake
from antiphon.client.aio.producer import Producer
from antiphon.client.aio.ranges import browse
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.subscribing import SubscriptionWish
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.transaction import TakenMessages
from antiphon.dead import (
    DEAD_PROPERTIES,
    DEAD_REASON,
    DEAD_TIME,
    DELIVERY_COUNT,
    ORIGINAL_DESTINATION,
    ORIGINAL_MESSAGE_ID,
    ORIGINAL_SEQUENCE,
)
from antiphon.errors import DestinationError, DestinationUnavailable, TransactionRolledBack
from antiphon.message import Message
from antiphon.names import DEAD_QUEUE_NAME, parse_destination
from antiphon.ranges import Ranges
from antiphon.selectors import compile_selector
from antiphon.wire.frames import AckMode, DestinationOpened, RangeTold

MOVED_MESSAGES: Final = 256
MOVED_BYTES: Final = 1 << 20
"""Messages and, about, bytes of one commit."""

_ATTEMPTS: Final = 10

MakeScope = Callable[[AckMode], SessionScope]


def describe(message: Message) -> dict[str, Any]:
    """A dead message as `antiphon admin dead` shows it."""
    properties = message.properties
    time_ms = properties.get(DEAD_TIME)
    return {
        "destination": properties.get(ORIGINAL_DESTINATION),
        "channel": message.channel,
        "sequence": message.sequence,
        "message_id": message.message_id,
        "reason": properties.get(DEAD_REASON),
        "delivery_count": properties.get(DELIVERY_COUNT),
        "dead_time": time_ms / 1000 if isinstance(time_ms, int) else None,
        "original_sequence": properties.get(ORIGINAL_SEQUENCE),
        "original_message_id": properties.get(ORIGINAL_MESSAGE_ID),
        "timestamp": message.timestamp,
        "bytes": len(message.body_bytes),
    }


class DeadQueue:
    """The dead messages of one channel."""

    def __init__(self, make_scope: MakeScope, channel: str) -> None:
        self._make_scope = make_scope
        self._channel = channel

    async def messages(self, destination: str | None, ids: Collection[str] = ()) -> AsyncIterator[Message]:
        """Those of a destination, or with one of these ids, of the copy or of the original; or all."""
        scope, everything = self._make_scope(AckMode.AUTO), compile_selector(None)
        try:
            async for message in browse(
                scope, DEAD_QUEUE_NAME, everything, create=False, channel=self._channel
            ):
                properties = message.properties
                if destination is not None and properties.get(ORIGINAL_DESTINATION) != destination:
                    continue
                if ids and not {message.message_id, properties.get(ORIGINAL_MESSAGE_ID)}.intersection(ids):
                    continue
                yield message
        except DestinationUnavailable:
            raise
        except DestinationError:
            # No message has ever died here.
            return
        finally:
            await scope.close()

    async def retry(self, destination: str | None, ids: Collection[str]) -> int:
        """Send messages back to where they died; returns how many. See DED1."""
        done = 0
        end = await _end_of(self._make_scope, DEAD_QUEUE_NAME, self._channel)
        for _ in range(_ATTEMPTS):
            try:
                async for count in self._retry_all(destination, ids, end):
                    done += count
            except TransactionRolledBack:
                # Another client has taken some of them; those are left out the next time.
                continue
            return done
        raise TransactionRolledBack(
            f"{done} messages were sent back; others handle the dead messages of channel {self._channel}, too"
        )

    async def _retry_all(self, destination: str | None, ids: Collection[str], end: int) -> AsyncIterator[int]:
        scope = self._make_scope(AckMode.TRANSACTED)
        try:
            lot: list[Message] = []
            size = 0
            async for message in self.messages(destination, ids):
                if message.sequence >= end:
                    break
                if not isinstance(message.properties.get(ORIGINAL_DESTINATION), str):
                    continue
                lot.append(message)
                size += len(message.body_bytes)
                if len(lot) >= MOVED_MESSAGES or size >= MOVED_BYTES:
                    yield await self._send_back(scope, lot)
                    lot, size = [], 0
            if lot:
                yield await self._send_back(scope, lot)
        finally:
            await scope.close()

    async def _send_back(self, scope: SessionScope, lot: list[Message]) -> int:
        """Publish to the origins and acknowledge in the dead queue, by one commit."""
        assert scope.transactions is not None, "messages are sent back by a transaction"
        opened = await scope.open_destination(DEAD_QUEUE_NAME, create=False, channel=self._channel)
        producers: dict[str, Producer] = {}
        numbers = Ranges()
        for message in lot:
            origin = str(message.properties[ORIGINAL_DESTINATION])
            producer = producers.get(origin)
            if producer is None:
                producer = producers[origin] = Producer(scope, origin)
            properties = {
                name: value for name, value in message.properties.items() if name not in DEAD_PROPERTIES
            }
            await _send(producer, message, properties)
            numbers.add(message.sequence, message.sequence + 1)
        scope.transactions.acknowledge_also(TakenMessages(_nobody(opened), numbers))
        await scope.transactions.commit(scope.timeout)
        return len(lot)


async def move(make_scope: MakeScope, source: str, target: str, channel: str = "") -> int:
    """Move the messages of a queue that no consumer has to another destination; returns how many."""
    scope = make_scope(AckMode.AUTO)
    link = scope.link
    request = link.core.open_destination(source, create=False, channel=channel)
    opened = await link.call(request, DestinationOpened, scope.timeout)
    channels = opened.channels or (channel,)
    return sum([await _move(make_scope, source, target, one) for one in channels])


async def _move(make_scope: MakeScope, source: str, target: str, channel: str) -> int:
    """Move the messages of a queue, or of its part in one channel."""
    end = await _end_of(make_scope, source, channel)
    scope = make_scope(AckMode.TRANSACTED)
    moved = 0
    try:
        assert scope.transactions is not None, "messages are moved by a transaction"
        wish = SubscriptionWish(parse_destination(source))
        consumer = await Consumer(Intake(scope, source, MOVED_MESSAGES, wish, create=False, channel=channel))
        producer = Producer(scope, target)
        while True:
            messages = await consumer.receive_many(MOVED_MESSAGES, timeout=0)
            for message in messages:
                await _send(producer, message, message.properties)
            if messages:
                await scope.transactions.commit(scope.timeout)
                moved += len(messages)
            if not messages or messages[-1].sequence >= end:
                return moved
    finally:
        await scope.close()


async def _send(producer: Producer, message: Message, properties: dict[str, Any]) -> None:
    await producer.send(
        message.body,
        properties=properties,
        priority=message.priority,
        key=message.key,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        type=message.type,
        persistent=message.persistent,
    )


async def _end_of(make_scope: MakeScope, name: str, channel: str) -> int:
    """The number behind the last message of a queue at this moment (DED2); 0 if there is no such queue."""
    scope = make_scope(AckMode.AUTO)
    link = scope.link
    request = link.core.open_destination(name, create=False, channel=channel)
    try:
        opened = await link.call(request, DestinationOpened, scope.timeout)
    except DestinationUnavailable:
        raise
    except DestinationError:
        if name == DEAD_QUEUE_NAME:
            return 0
        raise
    question = {"question": "heads", "destinations": [opened.destination]}
    request = link.core.ask_range(opened.channel, question, 0, 0)
    told = json.loads((await link.call(request, RangeTold, scope.timeout)).answer)
    return int(told["next"])


def _nobody(opened: DestinationOpened) -> ConsumerCore:
    """In place of the consumer of messages that were looked at only."""
    return ConsumerCore(
        consumer=0, name=DEAD_QUEUE_NAME, destination=opened.destination, channel=opened.channel
    )
