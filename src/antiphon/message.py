"""Message: what an application holds, a view of one row of a batch.

Nothing is decoded before it is asked for, and nothing is cached: a message is three references, so a consumer
can hand out a million a second.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import repeat
from typing import Any, NamedTuple

from antiphon.batch import Batch
from antiphon.batch.bodies import Body
from antiphon.errors import LocalError
from antiphon.ids import format_message_id
from antiphon.values import PropertyValue


class Handover(NamedTuple):
    """The common attributes of messages that arrived in one piece.

    Row r of the piece's batch has the sequence number `first_sequence + batch.offset(r)`.
    """

    channel: str
    destination: str
    first_sequence: int
    redelivery_count: int = 0
    acknowledge: Callable[[MessageView], Coroutine[Any, Any, None]] | None = None
    reject: Callable[[MessageView], Coroutine[Any, Any, None]] | None = None


class MessageView:
    """The attributes of a message; acknowledging depends on the face."""

    __slots__ = ("_batch", "_delivery", "_row")

    def __init__(self, batch: Batch, row: int, delivery: Handover) -> None:
        self._batch = batch
        self._row = row
        self._delivery = delivery

    # -- content ---------------------------------------------------------------

    @property
    def body(self) -> Body:
        """The body as the type it was sent as: bytes, str, dict, list or None."""
        return self._batch.body(self._row)

    @property
    def body_bytes(self) -> memoryview:
        """The encoded body, without a copy."""
        return self._batch.body_bytes(self._row)

    @property
    def properties(self) -> dict[str, PropertyValue]:
        """The properties, a new dict each time."""
        return self._batch.properties(self._row)

    # -- what the producer said ------------------------------------------------

    @property
    def timestamp(self) -> float:
        """When the message was sent, in seconds since 1970."""
        return self._batch.timestamp_ms(self._row) / 1000

    @property
    def priority(self) -> int:
        """0 to 9, the most urgent."""
        return self._batch.priority(self._row)

    @property
    def expires(self) -> float | None:
        """When the message expires, in seconds since 1970; None: never."""
        return self._batch.expires_ms(self._row) / 1000 or None

    @property
    def deliver_at(self) -> float | None:
        """Before when the message was not to be delivered, in seconds since 1970; None: no delay."""
        return self._batch.deliver_at_ms(self._row) / 1000 or None

    @property
    def persistent(self) -> bool:
        return self._batch.is_persistent(self._row)

    @property
    def key(self) -> str | None:
        return self._batch.key(self._row)

    @property
    def correlation_id(self) -> str | None:
        return self._batch.correlation_id(self._row)

    @property
    def reply_to(self) -> str | None:
        return self._batch.reply_to(self._row)

    @property
    def type(self) -> str | None:
        return self._batch.type(self._row)

    @property
    def dedup_id(self) -> bytes | None:
        """The id by which the destination stored the message once; a text is given as its UTF-8."""
        return self._batch.dedup_id(self._row)

    # -- where it comes from ---------------------------------------------------

    @property
    def message_id(self) -> str:
        batch = self._batch
        number = batch.first_number + batch.offset(self._row)
        return format_message_id(batch.producer, self._delivery.channel, number)

    @property
    def sequence(self) -> int:
        """The place of the message in the order of the channel."""
        return self._delivery.first_sequence + self._batch.offset(self._row)

    @property
    def channel(self) -> str:
        return self._delivery.channel

    @property
    def destination(self) -> str:
        return self._delivery.destination

    @property
    def redelivered(self) -> bool:
        """Was the message given to a consumer before?"""
        return self._delivery.redelivery_count > 0

    @property
    def delivery_count(self) -> int:
        """Which delivery this is; 1 is the first."""
        return self._delivery.redelivery_count + 1

    def __repr__(self) -> str:
        return f"<Message {self.sequence} of {self.destination} on {self.channel}>"


class Message(MessageView):
    """A message as it was delivered.

    >>> async for message in consumer:
    ...     print(message.sequence, message.body, message.properties)
    ...     await message.ack()
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge the message; the session's mode says what else that covers."""
        acknowledge = self._delivery.acknowledge
        if acknowledge is None:
            raise LocalError("this message was not given by a consumer; there is nothing to acknowledge")
        await acknowledge(self)

    async def reject(self) -> None:
        """Say that the message cannot be processed, ever: it goes to the dead queue at once.

        Of this message alone, in every mode. Not in a transacted session, and not after it is acknowledged:
        what `receive` returned in an automatic session is.

        >>> async for message in consumer:
        ...     if message.type != "order":
        ...         await message.reject()
        """
        reject = self._delivery.reject
        if reject is None:
            raise LocalError("this message was not given by a consumer; there is nothing to reject")
        await reject(self)


def messages_of(batch: Batch, delivery: Handover) -> list[Message]:
    return list(map(Message, repeat(batch), range(batch.count), repeat(delivery)))
