"""Consumers: attached at the primary, fed from there, and attached again when the primary changes.

Where it sits
    message_manager of the primary  ->  streams  ->  CONSUMERS  ->  the client's connection

What it promises
    CON1  A consumer is registered only when its channel knows its session; after a resume also only when the
          session's earlier commands are confirmed: a return among them would take messages that the consumer
          just got.
    CON2  A consumer is detached only when all acknowledgements received before are confirmed, so that no
          other consumer gets an acknowledged message.
    CON3  A new primary hears which messages each consumer has, so a failover does not deliver them again. So
          does a primary that took this node for dead. A message whose acknowledgement is on its way counts as
          had; if that turns out to be refused, the primary hears again, and gives the message to others.
    CON4  A peer that does not read gets no further credit: its credit bounds the primary's deliveries.
    CON5  A consumer that the primary has and this node does not, because messages crossed, is detached there.
    CON6  No delivery is passed on, and no client is told that its buffer is still its own, unless the primary
          has said so of this node within `sure_ms` (`streams`).
    CON7  A client hears at once which messages its consumers have lost to others: with the answer to a
          registration, before any later delivery. No consumer has a number twice.
    CON8  A drain is answered when the primary has used up the credit of that moment, and the deliveries
          before are on their way: from then on nothing comes without new credit.

What it leaves to others
    The primary chooses consumers and order; the client counts the messages that its application has taken.
    `requests`, `credits` and `streams` repeat what is lost on the way.
"""

from __future__ import annotations

from antiphon.bus.effects import PrimaryChanged, TimeMissed
from antiphon.bus.messages import (
    SESSION_DETACHED,
    ConsumerEnded,
    Deliver,
    DeliverHead,
    Drained,
    Register,
    Registered,
    Taker,
    Unregister,
)
from antiphon.client_manager.awaited import Detachment, Registration
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.client_manager.credits import CreditAccounts
from antiphon.client_manager.ordering import DestinationGone, Ordering
from antiphon.client_manager.requests import Requests
from antiphon.client_manager.session import Consumer, ConsumerState, LaneState, Session, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.client_manager.streams import Numbered, Streams
from antiphon.errors import ConsumerClosed, ProtocolError
from antiphon.ids import IdSource
from antiphon.ranges import Ranges
from antiphon.wire.frames import (
    ConsumerGone,
    ConsumerLost,
    ConsumerOpen,
    ConsumerResume,
    ConsumerResumed,
    deliver_buffers,
)

_LOST_RANGES_MAX = 65_536
"""Ranges of one ConsumerLost: a megabyte of them."""


class Consumers:
    def __init__(
        self,
        node: int,
        channels: list[str],
        settings: ClientManagerSettings,
        ids: IdSource,
        outbox: Outbox,
        requests: Requests,
        ordering: Ordering,
        destination_gone: DestinationGone,
    ) -> None:
        self._node = node
        self._ids = ids
        self._outbox = outbox
        self._requests = requests
        self._ordering = ordering
        self._destination_gone = destination_gone
        self._by_channel: dict[str, dict[int, Consumer]] = {channel: {} for channel in channels}
        self.streams = Streams(channels, settings, outbox, self._take, self._stream_begun, self._ask)
        floors = ordering.confirmed_through
        self.credits = CreditAccounts(self._by_channel, settings, outbox, self.streams, floors)
        # Clients that asked whether their buffer is still theirs, and wait (CON6).
        self._unsure: dict[str, dict[Consumer, int]] = {channel: {} for channel in channels}
        # Consumers of an earlier term that have no answer yet in this one.
        self._settling: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_channel.values()))

    # -- what the client asks for ----------------------------------------------

    def open(self, session: Session, lane: SessionLane, wish: ConsumerOpen | ConsumerResume) -> None:
        """Attach a consumer, now or as soon as the channel knows the session (CON1)."""
        key = self._new_key()
        consumer = Consumer(
            key, wish.consumer, session, lane, wish.destination, wish.subscription, wish.selector
        )
        consumer.request = wish.request
        consumer.credit_messages = wish.credit_messages
        consumer.credit_bytes = wish.credit_bytes
        if isinstance(wish, ConsumerResume):
            consumer.is_resumed = consumer.resumes = True
            consumer.held = wish.held.copy()
            consumer.base_messages = consumer.delivered_messages = wish.delivered_messages
            consumer.base_bytes = consumer.delivered_bytes = wish.delivered_bytes
        session.consumers[wish.consumer] = consumer
        if session.connection is not None:
            session.connection.consumer_count += 1
        self._by_channel[lane.channel][key] = consumer
        if lane.state == LaneState.OPEN:
            self._register_in_turn(consumer)

    def _register_in_turn(self, consumer: Consumer) -> None:
        if consumer.session.is_resumed:
            self._ordering.after_confirmed(consumer.lane, Registration(consumer))
        else:
            self._register(consumer)

    def _register_behind_returns(self, consumer: Consumer) -> None:
        """Register a consumer once the channel has applied what the consumer gave back.

        A primary that has not applied a return yet would give the message to the consumer once more, and take
        that copy for the returned one.
        """
        is_closing = consumer.state == ConsumerState.CLOSING
        if consumer.has_given_back and not is_closing and self._ordering.awaits_return(consumer.lane):
            consumer.state = ConsumerState.WAITING
            self._ordering.after_confirmed(consumer.lane, Registration(consumer))
        else:
            self._register(consumer)

    def register_waiting(self, consumer: Consumer) -> None:
        """Register the consumer, unless it was closed or registered meanwhile."""
        is_known = self._by_channel[consumer.lane.channel].get(consumer.key) is consumer
        if is_known and consumer.state == ConsumerState.WAITING and consumer.lane.state == LaneState.OPEN:
            self._register(consumer)

    def _new_key(self) -> int:
        # A key of a former life never comes back.
        return self._ids.next_key()

    def session_known(self, lane: SessionLane) -> None:
        """The channel knows the session: register its waiting consumers."""
        for consumer in self._of_lane(lane):
            if consumer.state == ConsumerState.WAITING:
                self._register_in_turn(consumer)

    def session_refused(self, lane: SessionLane, code: str, text: str) -> None:
        for consumer in self._of_lane(lane):
            if consumer.state == ConsumerState.WAITING:
                self._end(consumer, code, text)

    def credit(self, consumer: Consumer, messages: int, size: int) -> None:
        """Credit is absolute, and counts once the peer reads (CON4)."""
        connection = consumer.session.connection
        if connection is not None and connection.is_blocked:
            connection.credits_held[consumer.key] = (consumer, messages, size)
            return
        # Credit never shrinks: a smaller figure is an older one.
        consumer.credit_messages = max(consumer.credit_messages, messages)
        consumer.credit_bytes = max(consumer.credit_bytes, size)
        self.credits.changed(consumer)

    def drain(self, consumer: Consumer, request: int, messages: int, size: int) -> None:
        """A client wants the messages of now, and its credit back (CON8)."""
        if consumer.drain_request is not None:
            raise ProtocolError(f"consumer {consumer.number} drains a second time before the first answer")
        consumer.drain_request, consumer.drain_messages = request, messages
        self.credit(consumer, messages, size)
        self._look_at_drain(consumer)

    def _look_at_drain(self, consumer: Consumer) -> None:
        """End the drain if everything it had credit for has come."""
        if consumer.delivered_messages >= consumer.drain_messages:
            self._answer_drain(consumer)

    def _answer_drain(self, consumer: Consumer) -> None:
        request, connection = consumer.drain_request, consumer.session.connection
        consumer.drain_request = None
        if request is not None and connection is not None:
            consumer.credit_messages = consumer.delivered_messages
            self._outbox.answer(connection, request)

    def unblocked(self, connection: Connection) -> None:
        held, connection.credits_held = connection.credits_held, {}
        for consumer, messages, size in held.values():
            self.credit(consumer, messages, size)

    def close(
        self, consumer: Consumer, seen_through: int, request: int | None = None, *, is_lost: bool = False
    ) -> None:
        """Detach a consumer once its acknowledgements are confirmed (CON2), then answer the request."""
        if consumer.request is not None:
            self._refuse_opening(consumer, ConsumerClosed.code, "the consumer was closed before it was open")
        if consumer.state == ConsumerState.WAITING:
            self._forget(consumer)
        else:
            consumer.state = ConsumerState.CLOSING
        self._ordering.after_confirmed(consumer.lane, Detachment(consumer, seen_through, request, is_lost))

    def close_all(self, session: Session, *, is_lost: bool = False) -> None:
        """The client is gone or goes, and may have seen every delivery."""
        for consumer in list(session.consumers.values()):
            if consumer.state != ConsumerState.CLOSING:
                self.close(consumer, consumer.delivered_messages, is_lost=is_lost)

    def detach(self, detachment: Detachment) -> None:
        """The acknowledgements of a consumer that closes are confirmed."""
        consumer, seen_through, request, is_lost = detachment
        if self._forget(consumer):
            # Deliveries before this registration come before the primary's delivery number 1.
            seen = max(0, min(seen_through, consumer.delivered_messages) - consumer.base_messages)
            self._unregister(consumer.lane.channel, consumer.key, seen, is_lost=is_lost)
        connection = consumer.session.connection
        if request is not None and connection is not None:
            self._outbox.answer(connection, request)

    def _unregister(self, channel: str, key: int, seen: int, *, is_lost: bool = False) -> None:
        self._requests.unregister(channel, Unregister(key, seen, is_lost, self.streams.term(channel)))

    # -- what the primary says -------------------------------------------------

    def registered(self, channel: str, message: Registered) -> None:
        """The primary's answer, in the stream or beside it."""
        if message.number:
            self.streams.arrive(channel, message.stream, message.number, message)
        elif message.term == self.streams.term(channel):
            self._on_registered(channel, message)
            self.streams.learn(channel, message.term, message.stream)

    def deliver(self, channel: str, message: Deliver) -> None:
        """Pass on a delivery; one for another client manager is ignored."""
        for target in message.targets:
            if target.node == self._node:
                self.streams.arrive(channel, target.stream, target.number, message)

    def numbered(self, channel: str, message: ConsumerEnded | Drained) -> None:
        """A message of the node's stream."""
        self.streams.arrive(channel, message.stream, message.number, message)

    def head(self, channel: str, message: DeliverHead) -> None:
        """The standing of this node's stream at the primary; or that the primary knows of none (CON3)."""
        if not message.is_void:
            self.streams.learn(channel, message.term, message.stream)
        if not self.streams.is_current(channel, message.term, message.stream):
            return
        said_ns = self.credits.heard(channel, message)
        if not message.is_void:
            self.streams.head(channel, message)
            if said_ns is not None:
                self.streams.answered(channel, said_ns, self._assure)
        elif message.stream:
            self.streams.void(channel)
            self._attach_again(channel, message.stream)

    def time_missed(self, channel: str, event: TimeMissed) -> None:
        """The clock stood still: queued deliveries may be with others by now, and acknowledged."""
        self.streams.doubt(channel)

    def _ask(self, channel: str, is_anew: bool) -> None:
        """Ask the primary: only its answer tells whether the stream is this node's (CON6)."""
        self.credits.ask(channel, is_anew=is_anew)

    def check(self, consumer: Consumer, request: int) -> None:
        """A client asks whether its buffer is still its own; losses are told first."""
        unsure = self._unsure[consumer.lane.channel]
        if consumer in unsure:
            raise ProtocolError(
                f"consumer {consumer.number} is checked a second time before the first answer"
            )
        unsure[consumer] = request
        self._assure(consumer.lane.channel)

    def _assure(self, channel: str) -> None:
        """Answer the clients that wait for that (CON6)."""
        if not self._unsure[channel] or not self.streams.is_sure(channel):
            return
        for consumer in list(self._unsure[channel]):
            if consumer.state not in (ConsumerState.WAITING, ConsumerState.REGISTERING):
                self._answer_check(consumer)

    def _answer_check(self, consumer: Consumer) -> None:
        request, connection = (
            self._unsure[consumer.lane.channel].pop(consumer, None),
            consumer.session.connection,
        )
        if request is not None and connection is not None:
            self._outbox.answer(connection, request)

    def _take(self, channel: str, message: Numbered) -> None:
        if type(message) is Deliver:
            self._on_deliver(channel, message)
        elif isinstance(message, Registered):
            self._on_registered(channel, message)
        elif isinstance(message, ConsumerEnded):
            consumer = self._by_channel[channel].get(message.consumer)
            if consumer is not None:
                self._end(consumer, message.code, message.text)
        elif isinstance(message, Drained):
            self._on_drained(channel, message)

    def _on_drained(self, channel: str, message: Drained) -> None:
        consumer = self._by_channel[channel].get(message.consumer)
        if consumer is None or consumer.state == ConsumerState.CLOSING:
            return
        is_all = consumer.base_messages + message.through >= consumer.drain_messages
        unused = consumer.base_messages + message.through - consumer.delivered_messages
        if unused > 0:
            # These numbers had no messages; the client counts on without a gap.
            consumer.base_messages -= unused
        if consumer.drain_request is not None and is_all:
            self._answer_drain(consumer)
        elif unused > 0:
            # Messages that are gone used a part of the client's credit: so much is still to be drained.
            self.credits.changed(consumer)

    def _on_registered(self, channel: str, message: Registered) -> None:
        consumer = self._by_channel[channel].get(message.consumer)
        if consumer is None:
            if not message.code:
                self._detach_stray(channel, message.consumer)
            return
        self._requests.registered(channel, consumer.key)
        self._settle(channel, consumer.key)
        if message.code:
            self._on_refused(consumer, message)
            return
        if consumer.state == ConsumerState.REGISTERING:
            consumer.state = ConsumerState.ATTACHED
            consumer.resumes = False
            consumer.stream = max(consumer.stream, message.stream)
            self._look_at_drain(consumer)
            if consumer.credit_left != consumer.said_credit or consumer.drains:
                self.credits.changed(consumer)
        # The first answer counts. A repeated one is as old as the question, and does not know later
        # deliveries.
        lost = message.lost if consumer.awaits_answer else Ranges()
        consumer.awaits_answer = False
        consumer.held.remove_all(lost)
        request, connection = consumer.request, consumer.session.connection
        if request is None or connection is None:
            self._tell_lost(consumer, lost)
        else:
            consumer.request = None
            resumed = ConsumerResumed(request=request, lost=lost) if consumer.is_resumed else None
            self._outbox.answer(connection, request, resumed)
        if consumer.is_said_wrong and consumer.state == ConsumerState.ATTACHED:
            self._attach_anew(consumer)
        self._assure(channel)

    def _tell_lost(self, consumer: Consumer, lost: Ranges) -> None:
        """The client must not work on these messages any more (CON7)."""
        connection = consumer.session.connection
        if connection is None:
            return
        pairs = list(lost)
        for start in range(0, len(pairs), _LOST_RANGES_MAX):
            part = Ranges(pairs[start : start + _LOST_RANGES_MAX])
            said = ConsumerLost(session=consumer.session.id, consumer=consumer.number, lost=part)
            self._outbox.send(connection, said)

    def _on_refused(self, consumer: Consumer, message: Registered) -> None:
        if message.code != SESSION_DETACHED:
            self._end(consumer, message.code, message.text)
            # Perhaps the destination is gone: the next question for the name gets a fresh answer.
            self._destination_gone(consumer.lane.channel, consumer.destination)
        elif consumer.state != ConsumerState.CLOSING:
            # The channel took this node for dead, and does not know the session's owner.
            consumer.state = ConsumerState.WAITING
            self._ordering.claim_lane(consumer.lane)

    def _detach_stray(self, channel: str, key: int) -> None:
        """The primary attached a consumer that this node does not have: an old message came late (CON5)."""
        if not self._requests.is_leaving(channel, key):
            self._unregister(channel, key, 0)

    def _on_deliver(self, channel: str, message: Deliver) -> None:
        consumers = self._by_channel[channel]
        for target in message.targets:
            if target.node == self._node:
                for taker in target.takers:
                    consumer = consumers.get(taker.consumer)
                    if consumer is None:
                        self._detach_stray(channel, taker.consumer)
                    else:
                        self._hand_over(channel, consumer, taker, message)

    def _hand_over(self, channel: str, consumer: Consumer, taker: Taker, message: Deliver) -> None:
        connection = consumer.session.connection
        if connection is None or consumer.state == ConsumerState.CLOSING:
            # No client will see the delivery: detaching returns it, uncounted.
            return
        first = consumer.delivered_messages + 1
        missed = consumer.base_messages + taker.first_delivery - first
        if missed < 0:
            return
        if missed:
            # Messages were gone when they were to be sent a second time. The client has got none of them, and
            # counts on without a gap; their credit is given anew.
            consumer.base_messages -= missed
            self.credits.changed(consumer)
        if not message.pieces:
            # All of them were gone, and their bytes count no more than they do.
            consumer.base_bytes = consumer.delivered_bytes - taker.bytes_through
            return
        consumer.delivered_bytes = consumer.base_bytes + taker.bytes_through
        pieces = []
        if any(piece.redelivery_count for piece in message.pieces):
            self._note_again(consumer, message)
        for piece in message.pieces:
            first_sequence, rows, redelivery_count, buffers, offsets = piece
            if offsets:
                is_new = consumer.held.add_all(Ranges.of_numbers(piece.sequences)) == rows
            else:
                is_new = consumer.held.add(first_sequence, first_sequence + rows) == rows
            if not is_new or (redelivery_count and consumer.has_given_back):
                # The consumer's copy is void (CON7): others got the message, and the answer that says so is
                # late; or the consumer returned an earlier copy than the one that was taken from it.
                self._tell_lost(consumer, Ranges.of_numbers(piece.sequences))
            consumer.delivered_messages += rows
            pieces.append((first_sequence, redelivery_count, buffers))
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
                topics=message.topics,
            ),
        )

    def _note_again(self, consumer: Consumer, message: Deliver) -> None:
        """Acknowledgements on their way are about earlier copies than these (SSN3)."""
        if acknowledged := self._ordering.acknowledged(consumer):
            for piece in message.pieces:
                numbers = Ranges.of_numbers(piece.sequences)
                consumer.came_again.add_all(acknowledged.intersection(numbers))

    # -- attaching again -------------------------------------------------------

    def primary_changed(self, channel: str, event: PrimaryChanged) -> None:
        """Attach all consumers again, with the messages they have (CON3)."""
        former = self.streams.term(channel)
        if event.term <= former:
            return
        self.streams.new_term(channel, event.term)
        self.credits.new_term(channel)
        self._requests.primary_changed(channel, event)
        again = [one for one in self._by_channel[channel].values() if one.state != ConsumerState.WAITING]
        if former:
            # An earlier life of this node is not settled: its clients may still be on their way back.
            self._settling[channel] = {consumer.key for consumer in again}
        for consumer in again:
            self._begin_count(consumer)
            self._register_behind_returns(consumer)
        self._settle(channel, 0)

    def _settle(self, channel: str, key: int) -> None:
        """A consumer of an earlier term has its answer; the primary waits for the last of them."""
        settling = self._settling.get(channel)
        if settling is not None:
            settling.discard(key)
            if not settling:
                del self._settling[channel]
                self.credits.settled(channel)

    def _stream_begun(self, channel: str, stream: int) -> None:
        """The channel knows another run of this node now: consumers of the former run are detached."""
        self._attach_again(channel, stream - 1)

    def _attach_again(self, channel: str, void: int) -> None:
        """The primary has detached the consumers of every stream up to `void`.

        They get other keys: late messages under the former keys concern no consumer.
        """
        consumers = self._by_channel[channel]
        for consumer in list(consumers.values()):
            if consumer.state == ConsumerState.ATTACHED and consumer.stream <= void:
                self._attach_anew(consumer)

    def said_wrong(self, consumer: Consumer) -> None:
        """The primary believes that the consumer has messages of which its client has let go (CON3)."""
        if consumer.state == ConsumerState.ATTACHED:
            self._attach_anew(consumer)
        else:
            consumer.is_said_wrong = True

    def _attach_anew(self, consumer: Consumer) -> None:
        """Register an attached consumer under another key, which takes over from the former one."""
        consumers = self._by_channel[consumer.lane.channel]
        del consumers[consumer.key]
        self.credits.forget(consumer)
        connection = consumer.session.connection
        held = connection.credits_held.pop(consumer.key, None) if connection is not None else None
        consumer.key = self._new_key()
        consumers[consumer.key] = consumer
        if connection is not None and held is not None:
            connection.credits_held[consumer.key] = held
        consumer.resumes = True
        self._begin_count(consumer)
        self._register_behind_returns(consumer)

    def _begin_count(self, consumer: Consumer) -> None:
        """The primary will count from the coming registration on."""
        consumer.base_messages = consumer.delivered_messages
        consumer.base_bytes = consumer.delivered_bytes

    def _register(self, consumer: Consumer) -> None:
        is_closing = consumer.state == ConsumerState.CLOSING
        if not is_closing:
            consumer.state = ConsumerState.REGISTERING
        channel = consumer.lane.channel
        term = self.streams.term(channel)
        if not term:
            # No primary is known yet; the first one hears of it (`primary_changed`).
            return
        consumer.stream = 0
        consumer.awaits_answer = True
        consumer.said_held, consumer.is_said_wrong = consumer.held.copy(), False
        consumer.said_credit = messages, size = (0, 0) if is_closing else consumer.credit_left
        self._requests.register(
            channel,
            Register(
                consumer=consumer.key,
                session=consumer.session.id,
                generation=consumer.session.generation,
                destination=consumer.destination,
                subscription=consumer.subscription,
                selector=consumer.selector,
                credit_messages=messages,
                credit_bytes=size,
                held=consumer.held.copy(),
                number=consumer.number,
                resumes=consumer.resumes,
                term=term,
                floor=self._ordering.confirmed_through[channel],
            ),
        )

    # -- ending ----------------------------------------------------------------

    def _end(self, consumer: Consumer, code: str, text: str) -> None:
        """The consumer is gone without the client's wish."""
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
        """Forget the consumer; False if it was forgotten before."""
        connection, channel = consumer.session.connection, consumer.lane.channel
        if connection is not None:
            connection.credits_held.pop(consumer.key, None)
        self.credits.forget(consumer)
        self._requests.registered(channel, consumer.key)
        self._settle(channel, consumer.key)
        self._answer_check(consumer)
        self._answer_drain(consumer)
        if consumer.session.consumers.pop(consumer.number, None) is not None and connection is not None:
            connection.consumer_count -= 1
        return self._by_channel[channel].pop(consumer.key, None) is not None

    def _of_lane(self, lane: SessionLane) -> list[Consumer]:
        return [consumer for consumer in lane.of_session.consumers.values() if consumer.lane is lane]
