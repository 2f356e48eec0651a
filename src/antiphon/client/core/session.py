"""SessionCore: one session's outboxes and consumers, and the acknowledgements between them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from antiphon.client.core.consumer import PREFETCH_MESSAGES, ConsumerCore, Span
from antiphon.client.core.events import Settled
from antiphon.client.core.outbox import CommandOutbox
from antiphon.client.core.outcomes import STORED
from antiphon.client.core.pace import USUAL, Pace
from antiphon.client.core.publication import FateTicket, Publication, wake
from antiphon.client.core.transaction import TakenMessages
from antiphon.errors import AcknowledgeRefused, AntiphonError, LocalError, ProtocolError, SessionClosed
from antiphon.message import MessageView
from antiphon.ranges import Ranges
from antiphon.wire.commands import Acknowledge, ConfirmItem, OutcomeCode, Return
from antiphon.wire.frames import AckMode, Credit, Deliver, DestinationOpened, SessionOpened, encode_frame
from antiphon.wire.primitives import Buffer

QUEUE = 0
"""In place of a subscription: the messages belong to the queue itself."""


CONSUMER_MAX = 0xFFFF_FFFF

RANGES_MAX = 16_384
"""Ranges of one acknowledgement: 256 KiB of them."""


class Acknowledgement:
    """The tag of a sent acknowledgement. A waiter for its outcome asks `is_settled` first.

    Of gathered ones no call raises the outcome.
    """

    __slots__ = ("consumer", "is_gathered", "is_lost", "numbers", "outcomes", "waiting")

    def __init__(self, consumer: ConsumerCore, numbers: Ranges, *, is_gathered: bool = False) -> None:
        self.consumer = consumer
        self.numbers = numbers
        self.is_gathered = is_gathered
        self.outcomes: list[ConfirmItem] = []
        self.is_lost = False
        self.waiting: list[FateTicket] = []

    @property
    def is_settled(self) -> bool:
        """Is the outcome known, or known never to come?"""
        return self.is_lost or bool(self.outcomes)

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        self.outcomes = outcomes
        wake(self.waiting)

    def lose(self, error: AntiphonError) -> None:
        """The connection or the session is over, and no outcome will come."""
        self.is_lost = True
        wake(self.waiting)


class ReturnedUnseen:
    """The tag of returned messages that the application has not seen."""

    __slots__ = ("consumer", "numbers")

    def __init__(self, consumer: ConsumerCore, numbers: Ranges) -> None:
        self.consumer = consumer
        self.numbers = numbers

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        """The messages are in their queue again."""

    def lose(self, error: AntiphonError) -> None:
        """The messages go back with the session."""


class SessionCore:
    """One session, on one connection after the other.

    `wake` is called with the time at which acknowledgements that wait must go.
    """

    def __init__(
        self,
        opened: SessionOpened,
        ack_mode: AckMode,
        *,
        output: list[Buffer],
        wake: Callable[[int], None],
        pace: Pace = USUAL,
    ) -> None:
        self.session = opened.session
        self.generation = opened.generation
        self.window_bytes = opened.window_bytes
        self.ack_mode = ack_mode
        self.is_automatic = ack_mode in (AckMode.AUTO, AckMode.DUPS_OK)
        """Are messages acknowledged without a call of the application?"""
        self.is_open = True
        """Is the session on a connection at this moment?"""
        self.is_adopted = False
        """Did another client begin the session?"""
        self.error: AntiphonError | None = None
        """Why the session cannot go on, on any connection."""
        self.unstored = 0
        """Non-persistent messages that the server took, and that were refused or may be lost."""
        # The channels that know the session, see DestinationOpen, and the generation under which they were
        # first heard to. A late opening of the session in a channel has a lower generation.
        self.channels: dict[str, int] = {}
        # The server's reason why a channel takes nothing at the moment.
        self._blocked: dict[str, str] = {}
        self._pace = pace
        self._ack_delay_ns = pace.ack_delay_lazy_ns if ack_mode is AckMode.DUPS_OK else pace.ack_delay_ns
        self.outboxes: dict[str, CommandOutbox] = {}
        self.consumers: dict[int, ConsumerCore] = {}
        # Consumers of the same source.
        self._rivals: dict[tuple[str, int, int], list[ConsumerCore]] = {}
        # The highest number that a consumer has had, and that of the last one.
        self.consumers_opened = 0
        self._last_consumer = 0
        self._output = output
        self._wake = wake
        # Consumers with gathered acknowledgements, by number; and the last one each has sent.
        self._gathering: dict[int, ConsumerCore] = {}
        self._last_sent: dict[int, Acknowledgement] = {}
        self._has_kept_word = False

    def outbox(self, channel: str) -> CommandOutbox:
        outbox = self.outboxes.get(channel)
        if outbox is None:
            outbox = self.outboxes[channel] = CommandOutbox(
                session=self.session,
                generation=self.generation,
                channel=channel,
                window_bytes=self.window_bytes,
                output=self._output,
                pace=self._pace,
            )
            outbox.is_open = self.is_open
            outbox.is_blocked = channel in self._blocked
        return outbox

    def submit(self, channel: str, publication: Publication) -> None:
        """Send a publication as soon as there is room; waiting acknowledgements go ahead of it."""
        if self._gathering:
            for consumer in list(self._gathering.values()):
                if consumer.channel == channel:
                    self.send_gathered(consumer)
        (self.outboxes.get(channel) or self.outbox(channel)).submit(publication)

    def confirm(self, channel: str, items: Iterable[ConfirmItem]) -> list[Settled]:
        """Take outcomes; report the commands that now have all of theirs."""
        outbox = self.outboxes.get(channel)
        if outbox is None:
            raise ProtocolError(f"channel {channel!r} confirmed commands that it was never sent")
        settled = outbox.confirm(items)
        for command in settled:
            if isinstance(command.tag, Acknowledgement):
                self._settle(command.tag, command.outcomes)
        return settled

    def _settle(self, sent: Acknowledgement, outcomes: Iterable[ConfirmItem]) -> None:
        consumer, numbers = sent.consumer, sent.numbers
        for item in outcomes:
            if item.code not in STORED:
                # The outcome names the first lost message; those before count.
                through = item.sequence if item.code == OutcomeCode.ACK_LOST else 0
                counted = numbers.clip(0, through)
                consumer.refuse(numbers.difference(counted))
                numbers = counted
        self._release(consumer, numbers)

    def check(self) -> None:
        if self.error is not None:
            raise SessionClosed(str(self.error)) from self.error

    @property
    def is_idle(self) -> bool:
        """Has every command left, and its outcome come?"""
        return not self._gathering and all(outbox.is_idle for outbox in self.outboxes.values())

    def new_consumer(
        self,
        name: str,
        opened: DestinationOpened,
        *,
        subscription: int = QUEUE,
        selector: str = "",
        prefetch_messages: int = PREFETCH_MESSAGES,
        first_messages: int | None = None,
        acknowledge: Callable[[MessageView], Coroutine[Any, Any, None]] | None = None,
        reject: Callable[[MessageView], Coroutine[Any, Any, None]] | None = None,
    ) -> ConsumerCore:
        number = self._next_consumer()
        consumer = self.consumers[number] = ConsumerCore(
            consumer=number,
            name=name,
            destination=opened.destination,
            channel=opened.channel,
            subscription=subscription,
            selector=selector,
            prefetch_messages=prefetch_messages,
            first_messages=first_messages,
            acknowledge=acknowledge,
            reject=reject,
            pace=self._pace,
        )
        self._rivals.setdefault(consumer.place, []).append(consumer)
        return consumer

    def _next_consumer(self) -> int:
        """A number that no consumer of the session has; the first ones come again after the last."""
        number = self._last_consumer % CONSUMER_MAX + 1
        while number in self.consumers:
            number = number % CONSUMER_MAX + 1
        self._last_consumer = number
        self.consumers_opened = max(self.consumers_opened, number)
        return number

    def note_known(self, channel: str) -> None:
        self.channels.setdefault(channel, self.generation)

    def forget_consumer(self, number: int) -> None:
        """No delivery will come for the consumer, and the application has no message of it."""
        consumer = self.consumers.pop(number, None)
        self._last_sent.pop(number, None)
        if consumer is not None:
            rivals = self._rivals[consumer.place]
            rivals.remove(consumer)
            if not rivals:
                del self._rivals[consumer.place]

    # -- another connection ----------------------------------------------------

    def recall(self) -> None:
        for consumer in self.consumers.values():
            if consumer.recall is not None:
                consumer.recall()

    def suspend(self) -> None:
        """The connection is gone; nothing leaves until `resume`."""
        self.is_open = False
        self._blocked.clear()
        for consumer in self.consumers.values():
            consumer.lost_server()
        for outbox in self.outboxes.values():
            outbox.suspend()

    def resume(self, opened: SessionOpened) -> None:
        """The session goes on: first of all, everything without an outcome is sent again."""
        self.generation = opened.generation
        self.window_bytes = opened.window_bytes
        self.is_open = True
        for outbox in self.outboxes.values():
            outbox.resume(opened.generation, opened.window_bytes)

    def end(self, error: AntiphonError) -> list[object]:
        """The session cannot go on: the tags of all commands that will get no outcome any more."""
        self.error = error
        self.is_open = False
        self._gathering.clear()
        tags: list[object] = []
        for outbox in self.outboxes.values():
            outbox.suspend()
            tags += outbox.abandon()
        return tags

    def why_blocked(self, channel: str = "") -> str:
        """Behind a colon the reason why the channel, or any, takes nothing; empty if the server gave none."""
        reasons = list(self._blocked.values()) if not channel else [self._blocked.get(channel, "")]
        return f": {'; '.join(reasons)}" if any(reasons) else ""

    def set_blocked(self, channel: str, is_blocked: bool, reason: str = "") -> None:
        """Let publications to this channel leave, or wait."""
        if is_blocked:
            self._blocked[channel] = reason
        else:
            self._blocked.pop(channel, None)
        outbox = self.outboxes.get(channel)
        if outbox is not None:
            outbox.is_blocked = is_blocked
            outbox.pump()

    # -- taking messages -------------------------------------------------------

    def arrive(self, consumer: ConsumerCore, frame: Deliver) -> None:
        """Messages came for a consumer; another consumer of the session has lost its copies of them."""
        arrived = consumer.arrive(frame)
        rivals = self._rivals[consumer.place]
        if len(rivals) > 1:
            for other in rivals:
                for span in arrived if other is not consumer else ():
                    if lost := other.unconfirmed.clip(*span.numbers):
                        self.drop(other, lost)

    def take(self, consumer: ConsumerCore, count: int) -> list[Span]:
        """Up to `count` buffered messages; the server may then send more, to a consumer with a prefetch."""
        spans = consumer.take(count)
        if consumer.prefetch_messages:
            self.grant(consumer)
        return spans

    def drop(self, consumer: ConsumerCore, lost: Ranges) -> None:
        """The consumer has lost these messages."""
        consumer.drop(lost)
        self._refill(consumer)

    def _release(self, consumer: ConsumerCore, numbers: Ranges) -> None:
        """These are acknowledged, and are not claimed any more."""
        if consumer.release(numbers):
            self._refill(consumer)

    def _refill(self, consumer: ConsumerCore) -> None:
        """Messages have left the buffer untaken: the server may send more in their place."""
        if consumer.consumer in self.consumers and not consumer.is_closing:
            self.grant(consumer)

    def grant(self, consumer: ConsumerCore) -> None:
        """Let the server send as much as the consumer has room for, if that is more than before."""
        credit = consumer.new_credit()
        if credit is not None and self.is_open:
            messages, size = credit
            frame = Credit(session=self.session, consumer=consumer.consumer, messages=messages, bytes=size)
            self._output.append(encode_frame(frame))

    def return_unseen(self, consumer: ConsumerCore, numbers: Ranges) -> None:
        """Return messages that the application has not seen, uncounted."""
        for part in numbers.parts(RANGES_MAX):
            returned = Return(
                destination=consumer.destination,
                subscription=consumer.subscription,
                counted=False,
                ranges=part,
            )
            consumer.returning.append(part)
            self.outbox(consumer.channel).order(returned, ReturnedUnseen(consumer, part))

    # -- acknowledging ---------------------------------------------------------

    def gather(self, now_ns: int, consumer: ConsumerCore, spans: Iterable[Span]) -> None:
        """The application is done with these: acknowledge them soon."""
        if consumer.gather(now_ns, spans):
            self.send_gathered(consumer)
        elif consumer.consumer not in self._gathering and consumer.has_gathered:
            self._gathering[consumer.consumer] = consumer
            self._wake(now_ns + self._ack_delay_ns)

    def send_gathered(self, consumer: ConsumerCore) -> None:
        self._gathering.pop(consumer.consumer, None)
        if consumer.has_gathered:
            self.acknowledge(consumer, consumer.take_gathered(), is_gathered=True)

    def on_time(self, now_ns: int) -> int | None:
        """Send the acknowledgements that have waited long enough; returns the next such time."""
        for consumer in list(self._gathering.values()):
            if consumer.gathered_since_ns + self._ack_delay_ns <= now_ns:
                self.send_gathered(consumer)
        waiting = [consumer.gathered_since_ns for consumer in self._gathering.values()]
        return min(waiting) + self._ack_delay_ns if waiting else None

    def acknowledge(
        self, consumer: ConsumerCore, numbers: Ranges, *, is_gathered: bool = False
    ) -> list[Acknowledgement]:
        sent = []
        outbox = self.outbox(consumer.channel)
        for part in numbers.parts(RANGES_MAX):
            tag = Acknowledgement(consumer, part, is_gathered=is_gathered)
            self._last_sent[consumer.consumer] = tag
            outbox.acknowledge(
                Acknowledge(
                    destination=consumer.destination, subscription=consumer.subscription, ranges=part
                ),
                tag,
            )
            sent.append(tag)
        return sent

    def acknowledge_one(self, consumer: ConsumerCore, sequence: int) -> list[Acknowledgement]:
        """Acknowledge one message now, unless that was done before."""
        if consumer.take_forfeited(sequence):
            raise _refused(sequence)
        if not consumer.held.remove(sequence, sequence + 1) and not consumer.take_from_hand(sequence):
            return []
        return self.acknowledge(consumer, Ranges([(sequence, sequence + 1)]))

    def reject_one(self, consumer: ConsumerCore, sequence: int) -> Acknowledgement:
        """Reject one message for good, now; its outcome is that of an acknowledgement."""
        if consumer.take_forfeited(sequence):
            raise _refused(sequence)
        if not consumer.held.remove(sequence, sequence + 1) and not consumer.take_from_hand(sequence):
            raise LocalError(f"message {sequence} is acknowledged already, and cannot be rejected any more")
        numbers = Ranges([(sequence, sequence + 1)])
        rejected = Return(
            destination=consumer.destination,
            subscription=consumer.subscription,
            counted=True,
            rejected=True,
            ranges=numbers,
        )
        tag = Acknowledgement(consumer, numbers)
        self.outbox(consumer.channel).order(rejected, tag)
        return tag

    def acknowledge_held(self) -> list[Acknowledgement]:
        """Acknowledge all messages that the session was given so far, except those that others have got."""
        sent: list[Acknowledgement] = []
        for consumer in self.consumers.values():
            if consumer.held:
                sent += self.acknowledge(consumer, consumer.take_held())
        return sent

    def take_refusal(self) -> AcknowledgeRefused | None:
        """Why not all given messages can be acknowledged; told once."""
        refusal = None
        for consumer in self.consumers.values():
            if consumer.forfeited:
                refusal = refusal or _refused(consumer.forfeited.first)
                consumer.forfeited.clear()
        return refusal

    # -- transactions ----------------------------------------------------------

    def take_consumed(self) -> list[TakenMessages]:
        """The messages that the application took and did not acknowledge or return; also the consumers of
        lost ones."""
        for consumer in self.consumers.values():
            consumer.hold_in_hand()
        return [
            TakenMessages(consumer, consumer.take_held())
            for consumer in self.consumers.values()
            if consumer.held or consumer.forfeited
        ]

    def hold_again(self, taken: Iterable[TakenMessages]) -> None:
        """The commit came to nothing: the application holds these again."""
        for consumer, numbers in taken:
            consumer.held.add_all(numbers)

    def release(self, taken: Iterable[TakenMessages]) -> None:
        """These are acknowledged, and are not claimed any more."""
        for consumer, numbers in taken:
            self._release(consumer, numbers)

    def give_back(self, taken: Iterable[TakenMessages]) -> list[tuple[str, Return]]:
        """The commands, with their channels, that return taken messages, counted as delivered.

        Messages that others were given meanwhile are left out.
        """
        return [
            (
                consumer.channel,
                Return(
                    destination=consumer.destination,
                    subscription=consumer.subscription,
                    counted=True,
                    ranges=part,
                ),
            )
            for consumer, numbers in taken
            for part in numbers.intersection(consumer.unconfirmed).parts(RANGES_MAX)
        ]

    def owes_word(self) -> bool:
        """Must the application be told, once, that acknowledgements are not confirmed?

        Only of automatic ones: of its own it hears from `message.ack()`.
        """
        if not self.is_automatic or self._has_kept_word:
            return False
        self._has_kept_word = any(consumer.has_gathered for consumer in self.consumers.values()) or any(
            not sent.outcomes for sent in self._last_sent.values()
        )
        return self._has_kept_word

    def last_sent(self, consumer: ConsumerCore) -> Acknowledgement | None:
        """The last acknowledgement of a consumer, until its outcome comes: the earlier ones come before."""
        sent = self._last_sent.get(consumer.consumer)
        return None if sent is None or sent.is_settled else sent


def _refused(sequence: int) -> AcknowledgeRefused:
    return AcknowledgeRefused(f"message {sequence} was given to another consumer meanwhile")
