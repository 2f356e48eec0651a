"""Consumers: attached at the primary, fed from there, and attached again when the primary changes.

Where it sits
    message_manager of the primary  ->  CONSUMERS  ->  the client's connection

What it promises
    C1  A consumer is registered only when its channel knows its session.
    C2  It is detached only when all acknowledgements received before are confirmed, so that nothing
        acknowledged is given to somebody else.
    C3  A new primary hears what each consumer still holds: a failover does not hand it out again.
    C4  A peer that does not read gets no further credit: what the primary may send it is bounded by
        the credit it has.

What it leaves to others
    Who gets what, and in which order, is the primary's; counting what the application has worked off
    is the client's.
"""

from __future__ import annotations

from functools import partial

from antiphon.bus.effects import PrimaryChanged
from antiphon.bus.messages import (
    ConsumerEnded,
    CreditUpdate,
    Deliver,
    Register,
    Registered,
    Unregister,
)
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.client_manager.session import Consumer, ConsumerState, Lane, LaneState, Session
from antiphon.errors import ConsumerClosed
from antiphon.ids import U64_MAX, IdSource
from antiphon.wire.frames import (
    ConsumerGone,
    ConsumerOpen,
    ConsumerResume,
    ConsumerResumed,
    deliver_buffers,
)


class Consumers:
    """The consumers of all clients of one client manager."""

    __slots__ = ("_by_channel", "_credits", "_ids", "_outbox", "_terms")

    def __init__(self, channels: list[str], ids: IdSource, outbox: Outbox) -> None:
        self._ids = ids
        self._outbox = outbox
        self._by_channel: dict[str, dict[int, Consumer]] = {channel: {} for channel in channels}
        self._terms = dict.fromkeys(channels, 0)
        self._credits: dict[int, Consumer] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_channel.values()))

    # -- what the client asks for ----------------------------------------------

    def open(self, session: Session, lane: Lane, wish: ConsumerOpen | ConsumerResume) -> None:
        """Attach a consumer, now or as soon as the channel knows the session (C1)."""
        # The low half of an id: start time and counter, so that a key of a former life never comes back.
        key = self._ids.next() & U64_MAX
        consumer = Consumer(key, wish.consumer, session, lane, wish.destination, wish.subscription)
        consumer.request = wish.request
        consumer.credit_messages = wish.credit_messages
        consumer.credit_bytes = consumer.window_bytes = wish.credit_bytes
        if isinstance(wish, ConsumerResume):
            consumer.is_resumed = True
            consumer.held = wish.held.copy()
            consumer.base_messages = consumer.delivered_messages = wish.delivered_messages
            consumer.base_bytes = wish.delivered_bytes
            consumer.window_bytes = max(0, wish.credit_bytes - wish.delivered_bytes)
        session.consumers[wish.consumer] = consumer
        if session.connection is not None:
            session.connection.consumer_count += 1
        self._by_channel[lane.channel][key] = consumer
        if lane.state == LaneState.OPEN:
            self._register(consumer)

    def session_known(self, lane: Lane) -> None:
        """The channel knows the session: what waited for that is registered."""
        for consumer in self._of_lane(lane):
            if consumer.state == ConsumerState.WAITING:
                self._register(consumer)

    def session_refused(self, lane: Lane, code: str, text: str) -> None:
        for consumer in self._of_lane(lane):
            if consumer.state == ConsumerState.WAITING:
                self._end(consumer, code, text)

    def credit(self, consumer: Consumer, messages: int, size: int) -> None:
        """Credit is absolute; it counts once the peer reads what it has asked for (C4)."""
        connection = consumer.session.connection
        if connection is not None and connection.is_blocked:
            connection.credits_held[consumer.key] = (consumer, messages, size)
            return
        # It never shrinks: a smaller figure is an older one.
        consumer.credit_messages = max(consumer.credit_messages, messages)
        consumer.credit_bytes = max(consumer.credit_bytes, size)
        self._credits[consumer.key] = consumer

    def unblocked(self, connection: Connection) -> None:
        held, connection.credits_held = connection.credits_held, {}
        for consumer, messages, size in held.values():
            self.credit(consumer, messages, size)

    def close(
        self, consumer: Consumer, seen_through: int, request: int | None = None, *, is_lost: bool = False
    ) -> None:
        """Detach a consumer once its acknowledgements are confirmed (C2), then answer the request."""
        if consumer.request is not None:
            self._refuse_opening(consumer, ConsumerClosed.code, "the consumer was closed before it was open")
        if consumer.state == ConsumerState.WAITING:
            self._forget(consumer)
        else:
            consumer.state = ConsumerState.CLOSING
        consumer.lane.after_confirmed(partial(self._detach, consumer, seen_through, request, is_lost))

    def close_all(self, session: Session, *, is_lost: bool = False) -> None:
        """The client is gone or goes: it may have seen everything that was sent to it."""
        for consumer in list(session.consumers.values()):
            if consumer.state != ConsumerState.CLOSING:
                self.close(consumer, consumer.delivered_messages, is_lost=is_lost)

    def _detach(self, consumer: Consumer, seen_through: int, request: int | None, is_lost: bool) -> None:
        if self._forget(consumer):
            # What it got before this registration comes before the primary's delivery number 1.
            seen = max(0, min(seen_through, consumer.delivered_messages) - consumer.base_messages)
            self._outbox.do(SendToPrimary(consumer.lane.channel, Unregister(consumer.key, seen, is_lost)))
        connection = consumer.session.connection
        if request is not None and connection is not None:
            self._outbox.answer(connection, request)

    # -- what the primary says -------------------------------------------------

    def registered(self, channel: str, message: Registered) -> Consumer | None:
        """The primary's answer; the consumer, if it was refused."""
        consumer = self._by_channel[channel].get(message.consumer)
        if consumer is None or message.term < self._terms[channel]:
            return None
        if message.code:
            self._end(consumer, message.code, message.text)
            return consumer
        if consumer.state == ConsumerState.REGISTERING:
            consumer.state = ConsumerState.ATTACHED
        consumer.held.remove_all(message.lost)
        request, connection = consumer.request, consumer.session.connection
        if request is not None and connection is not None:
            consumer.request = None
            resumed = ConsumerResumed(request=request, lost=message.lost) if consumer.is_resumed else None
            self._outbox.answer(connection, request, resumed)
        return None

    def deliver(self, channel: str, message: Deliver) -> None:
        consumer = self._by_channel[channel].get(message.consumer)
        if consumer is None or message.term < self._terms[channel]:
            return
        connection = consumer.session.connection
        if connection is None or consumer.state == ConsumerState.CLOSING:
            # Nobody will see it: detaching gives it back, uncounted.
            return
        first = consumer.base_messages + message.first_delivery
        if first <= consumer.delivered_messages:
            return
        pieces = []
        count = 0
        for first_sequence, rows, redelivery_count, buffers in message.pieces:
            consumer.held.add(first_sequence, first_sequence + rows)
            count += rows
            pieces.append((first_sequence, redelivery_count, buffers))
        consumer.delivered_messages = first + count - 1
        self._outbox.send_buffers(
            connection,
            deliver_buffers(
                session=consumer.session.id,
                destination=message.destination,
                term=message.term,
                first_delivery=first,
                consumer=consumer.number,
                channel=channel,
                pieces=pieces,
            ),
        )

    def ended(self, channel: str, message: ConsumerEnded) -> None:
        consumer = self._by_channel[channel].get(message.consumer)
        if consumer is not None and message.term >= self._terms[channel]:
            self._end(consumer, message.code, message.text)

    def primary_changed(self, channel: str, event: PrimaryChanged) -> None:
        """Attach everybody again, with what they hold (C3)."""
        if event.term <= self._terms[channel]:
            return
        self._terms[channel] = event.term
        for consumer in list(self._by_channel[channel].values()):
            if consumer.state != ConsumerState.WAITING:
                consumer.base_messages = consumer.delivered_messages
                # How many bytes were delivered only the former primary knew. To start with a whole
                # window again may give the client two windows, but never too little to go on.
                consumer.base_bytes = consumer.credit_bytes - consumer.window_bytes
                self._register(consumer)

    # -- steps -----------------------------------------------------------------

    def send_credits(self) -> None:
        """At most one word about each consumer's credit in a step, and the last one."""
        for consumer in self._credits.values():
            if consumer.state in (ConsumerState.REGISTERING, ConsumerState.ATTACHED):
                update = CreditUpdate(consumer.key, *consumer.credit_left)
                self._outbox.do(SendToPrimary(consumer.lane.channel, update))
        self._credits.clear()

    def _register(self, consumer: Consumer) -> None:
        is_closing = consumer.state == ConsumerState.CLOSING
        if not is_closing:
            consumer.state = ConsumerState.REGISTERING
        self._credits.pop(consumer.key, None)
        messages, size = (0, 0) if is_closing else consumer.credit_left
        self._outbox.do(
            SendToPrimary(
                consumer.lane.channel,
                Register(
                    consumer=consumer.key,
                    session=consumer.session.id,
                    generation=consumer.session.generation,
                    destination=consumer.destination,
                    subscription=consumer.subscription,
                    selector="",
                    credit_messages=messages,
                    credit_bytes=size,
                    held=consumer.held.copy(),
                    number=consumer.number,
                    resumes=consumer.is_resumed,
                ),
            )
        )

    def _end(self, consumer: Consumer, code: str, text: str) -> None:
        """The consumer is gone without having asked for it."""
        if not self._forget(consumer):
            return
        connection = consumer.session.connection
        if consumer.request is not None:
            self._refuse_opening(consumer, code, text)
        elif connection is not None and consumer.state != ConsumerState.CLOSING:
            self._outbox.send(
                connection,
                ConsumerGone(session=consumer.session.id, consumer=consumer.number, code=code, text=text),
            )

    def _refuse_opening(self, consumer: Consumer, code: str, text: str) -> None:
        connection, request = consumer.session.connection, consumer.request
        consumer.request = None
        if connection is not None and request is not None:
            self._outbox.refuse(connection, request, code, text)

    def _forget(self, consumer: Consumer) -> bool:
        """Is it forgotten now, or was it before?"""
        connection = consumer.session.connection
        if connection is not None:
            connection.credits_held.pop(consumer.key, None)
        self._credits.pop(consumer.key, None)
        if consumer.session.consumers.pop(consumer.number, None) is not None and connection is not None:
            connection.consumer_count -= 1
        return self._by_channel[consumer.lane.channel].pop(consumer.key, None) is not None

    def _of_lane(self, lane: Lane) -> list[Consumer]:
        assert lane.session is not None, "the node itself has no consumers"
        return [consumer for consumer in lane.session.consumers.values() if consumer.lane is lane]
