"""ConsumerCore: the messages delivered to one consumer, and the application's progress with them.

    delivered  ->  buffered  ->  taken  ->  (held  ->)  gathered  ->  acknowledged

What it promises
    CNS1  Messages are taken in the order they were delivered, each once.
    CNS2  Credit counts the messages that the application took: no more than `prefetch_messages` are ever
          buffered, and hardly more than `prefetch_bytes` of bodies. A consumer may begin with credit for
          fewer, which grows as the application takes them: a slow consumer does not keep many from others.
          A message that leaves the buffer untaken counts as taken.
    CNS3  Only messages that the application took are acknowledged.
    CNS4  A delivered message whose acknowledgement is not known stays the consumer's on another connection,
          and is not delivered to it again. If others got the message meanwhile, the application does not get
          it, or cannot acknowledge it any more.
    CNS5  No number is here twice: the later copy is kept.
    CNS6  The buffer is sure to be the consumer's for a while: from the moment of asking, and from each
          delivery within that time, since a server passes on only sure messages. After a sleep or a long
          silence the client asks (`consumer_requests`).
    CNS7  Without a prefetch a consumer has credit for the wanted messages, and no more (`consumer_requests`).
    CNS8  Until unwanted messages are known to be back in their queue, the consumer grants no credit, and
          keeps no message behind them: the application sees them first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from antiphon.batch import BODY_BYTES_MAX, Batch, ColumnId
from antiphon.client.core.pace import USUAL, Pace
from antiphon.errors import ProtocolError
from antiphon.message import Handover, Message, MessageView
from antiphon.ranges import Ranges
from antiphon.wire.frames import ConsumerResume, Deliver

PREFETCH_MESSAGES = 1_000
PREFETCH_BYTES = 1024 * 1024

FIRST_MESSAGES = 32
"""The first credit of a consumer without a given prefetch."""

_GROWTH = 4
"""The next credit is so many times the messages taken since the last."""

HELD_RANGES_MAX = 65_536
"""Ranges claimed on another connection: a megabyte of them. Messages beyond may come twice."""


class Span(NamedTuple):
    """The rows `[start, stop)` of a delivered batch, with consecutive numbers from `first` on.

    `offsets` are those of the bodies.
    """

    batch: Batch
    delivery: Handover
    offsets: memoryview
    start: int
    stop: int
    first: int

    @property
    def numbers(self) -> tuple[int, int]:
        return self.first, self.first + self.stop - self.start

    @property
    def body_bytes(self) -> int:
        """The size of the bodies alone, which byte credit counts on both sides."""
        size: int = self.offsets[self.stop] - self.offsets[self.start]
        return size

    def message(self) -> Message:
        return Message(self.batch, self.start, self.delivery)

    def messages(self) -> list[Message]:
        return list(map(Message, repeat(self.batch), range(self.start, self.stop), repeat(self.delivery)))


class ConsumerCore:
    """One consumer: its buffer, its credit, and the acknowledgements it gathers.

    Messages get `acknowledge` and `reject`, which `message.ack()` and `message.reject()` will call.
    """

    def __init__(
        self,
        *,
        consumer: int,
        name: str,
        destination: int,
        channel: str,
        subscription: int = 0,
        selector: str = "",
        prefetch_messages: int = PREFETCH_MESSAGES,
        prefetch_bytes: int = PREFETCH_BYTES,
        first_messages: int | None = None,
        acknowledge: Callable[[MessageView], Coroutine[Any, Any, None]] | None = None,
        reject: Callable[[MessageView], Coroutine[Any, Any, None]] | None = None,
        pace: Pace = USUAL,
    ) -> None:
        self._ack_bytes = pace.ack_bytes
        self.consumer = consumer
        self.name = name
        self.destination = destination
        self.channel = channel
        self.subscription = subscription
        self.selector = selector
        self._acknowledge = acknowledge
        self._reject = reject
        self.prefetch_messages = prefetch_messages
        self.prefetch_bytes = prefetch_bytes
        # The credit at a time; it grows up to `prefetch_messages` (CNS2).
        self.window = min(first_messages or prefetch_messages, prefetch_messages)
        self._taken_then = 0
        # The receivers with their counts, and those whose time is up: these want no more (CNS7).
        self.wants: dict[object, int] = {}
        self.late: set[object] = set()
        # Was the server asked to use up the credit, and has not answered?
        self.is_draining = False
        # Is the server still to be asked, when the unwanted messages are back?
        self.is_drain_due = False
        # Unwanted messages on their way back, by command (CNS8).
        self.returning: list[Ranges] = []
        self.buffered = 0
        self.is_closing = False
        self.recall: Callable[[], None] | None = None
        """Called before the buffer changes: a thread may be handing out its messages."""
        # Until when the buffer is sure; when the server was asked, if it has not answered yet (CNS6).
        self.sure_until_ns = 0
        self.asked_ns: int | None = None
        self._was_slow = False
        # Delivered, and no acknowledgement confirmed (CNS4).
        self.unconfirmed = Ranges()
        # Taken, but neither acknowledged nor on the way to be: by the application, or by an `async for` that
        # goes on.
        self.held = Ranges()
        # Held until others got them: the application is told when it acknowledges or commits.
        self.forfeited = Ranges()
        # The messages that loops work on, by number.
        self.in_hand: dict[int, Span] = {}
        # Delivered and not taken; and taken by a receiver that waits for more before the application sees
        # any.
        self.spans: deque[Span] = deque()
        self.in_transit: list[list[Span]] = []
        # Others got these while an acknowledgement was on its way. If that counts they are done with, though
        # they may have come again.
        self._in_doubt = Ranges()
        self._arrived_through = self._arrived_bytes = 0
        self._taken_bytes = 0
        self.granted = (self.window, prefetch_bytes)
        # Numbers to be acknowledged; the last run, which mostly just grows, apart.
        self._gathered = Ranges()
        self._gathered_run = (0, 0)
        self._gathered_bytes = self.gathered_since_ns = 0

    @property
    def place(self) -> tuple[str, int, int]:
        return self.channel, self.destination, self.subscription

    # -- from the server -------------------------------------------------------

    def arrive(self, frame: Deliver) -> list[Span]:
        """Buffer a delivery, if it keeps to the numbering and the credit (CNS2)."""
        if frame.first_delivery != self._arrived_through + 1:
            raise ProtocolError(
                f"delivery {frame.first_delivery} for consumer {self.consumer} came after delivery "
                f"{self._arrived_through}"
            )
        arrived = []
        topics = frame.topics
        if topics and len(topics) != len(frame.pieces):
            raise ProtocolError(f"{len(frame.pieces)} pieces came with the names of {len(topics)} topics")
        for at, (first_sequence, redelivery_count, data) in enumerate(frame.pieces):
            batch = Batch.decode(data)
            name = topics[at] if topics else self.name
            delivery = Handover(
                self.channel, name, first_sequence, redelivery_count, self._acknowledge, self._reject
            )
            bodies = batch.column(ColumnId.BODY)
            assert bodies is not None and bodies.offsets is not None, "every batch has a column of bodies"
            for start, stop, offset in batch.runs():
                span = Span(batch, delivery, bodies.offsets, start, stop, first_sequence + offset)
                if self.unconfirmed.add(*span.numbers) != stop - start:
                    self._came_again(span)
                self.spans.append(span)
                arrived.append(span)
                self.buffered += stop - start
            self._arrived_through += batch.count
            self._arrived_bytes += bodies.offsets[batch.count] - bodies.offsets[0]
        messages, size = self.granted
        # A message that begins within the byte credit may end beyond it; and a new primary, which does not
        # know the bytes delivered before, begins the byte credit anew.
        if (
            self._arrived_through > messages
            or self._arrived_bytes > size + self.prefetch_bytes + BODY_BYTES_MAX
        ):
            raise ProtocolError(
                f"consumer {self.consumer} was sent {self._arrived_through} messages of "
                f"{self._arrived_bytes} bytes; it allowed {messages} messages of {size} bytes"
            )
        return arrived

    def _came_again(self, span: Span) -> None:
        """Some messages were here: others had them meanwhile, and the frame about that was lost (CNS5)."""
        self._recall()
        again = Ranges([span.numbers])
        again.remove_all(self._discard(again))
        self._in_doubt.add_all(again)

    def heard(self, now_ns: int, sure_ns: int) -> None:
        """A delivery came. After a long silence it may have been on its way all the time (CNS6)."""
        if now_ns < self.sure_until_ns:
            self.sure_until_ns = now_ns + sure_ns

    def lost_server(self) -> None:
        """The connection is gone: another server will be asked."""
        self.sure_until_ns = 0
        self.asked_ns = None
        self.is_draining = self.is_drain_due = False

    def answered(self, now_ns: int, sure_ns: int) -> None:
        """The server said that the buffer is the consumer's, since the time of asking.

        If the answer took long, the core asks once more; a second slow answer has to do.
        """
        assert self.asked_ns is not None, "nobody asked whose the messages are"
        took_ns, self.asked_ns = now_ns - self.asked_ns, None
        is_slow = took_ns >= sure_ns
        if not is_slow:
            self.sure_until_ns = now_ns - took_ns + sure_ns
        elif self._was_slow:
            self.sure_until_ns = now_ns + sure_ns // 8
        self._was_slow = is_slow and not self._was_slow

    # -- on another connection -------------------------------------------------

    def resumption(self, request: int, session: int) -> ConsumerResume:
        """The request to go on with another server."""
        if not self.prefetch_messages:
            # Credit of the lost connection that is not wanted any more is not asked for again.
            wanted = 0 if self.returning else self._wanted_through
            self.granted = (max(self._arrived_through, wanted), self.granted[1])
        messages, size = self.granted
        held = self.unconfirmed
        if len(held) > HELD_RANGES_MAX:
            held = Ranges(list(held)[:HELD_RANGES_MAX])
        return ConsumerResume(
            request=request,
            session=session,
            consumer=self.consumer,
            channel=self.channel,
            destination=self.destination,
            subscription=self.subscription,
            selector=self.selector,
            credit_messages=messages,
            credit_bytes=size,
            delivered_messages=self._arrived_through,
            delivered_bytes=self._arrived_bytes,
            held=held.copy(),
        )

    def drop(self, lost: Ranges) -> None:
        """The consumer has lost these: the application does not see those it has not taken (CNS4)."""
        self._recall()
        doubtful = self.unconfirmed.intersection(lost)
        self.unconfirmed.remove_all(lost)
        doubtful.remove_all(self._discard(lost))
        self._in_doubt.add_all(doubtful)

    def release(self, numbers: Ranges) -> bool:
        """These are known to be acknowledged, and are not claimed any more; did copies leave the buffer?"""
        self.unconfirmed.remove_all(numbers)
        if not self._in_doubt or not (done := self._in_doubt.intersection(numbers)):
            return False
        self._in_doubt.remove_all(done)
        self._recall()
        before = self.buffered
        self._discard(done)
        return self.buffered < before

    def refuse(self, numbers: Ranges) -> None:
        """An acknowledgement of these was refused: they are the consumer's only if they came again (CNS4)."""
        came_again = self._in_doubt.intersection(numbers)
        self._in_doubt.remove_all(came_again)
        self.unconfirmed.remove_all(numbers.difference(came_again))

    def _recall(self) -> None:
        if self.recall is not None:
            self.recall()

    def _discard(self, lost: Ranges) -> Ranges:
        """Drop these copies, also from the acknowledgements; returns those that were here."""
        here = Ranges()
        for spans in (self.spans, *self.in_transit):
            for span in spans:
                here.add_all(lost.clip(*span.numbers))
        bytes_before = sum([span.body_bytes for span in self.spans])
        self.spans = deque(_without(self.spans, lost))
        self.buffered = sum([span.stop - span.start for span in self.spans])
        self._taken_bytes += bytes_before - sum([span.body_bytes for span in self.spans])
        for spans in self.in_transit:
            spans[:] = _without(spans, lost)
        forfeited = self.held.intersection(lost)
        for sequence in [one for one in self.in_hand if one in lost]:
            del self.in_hand[sequence]
            forfeited.add(sequence, sequence + 1)
        self.held.remove_all(forfeited)
        self.forfeited.add_all(forfeited)
        here.add_all(forfeited)
        here.add_all(self._forget_gathered(lost))
        return here

    def _forget_gathered(self, lost: Ranges) -> Ranges:
        gathered = self._gathered
        gathered.add(*self._gathered_run)
        forgotten = gathered.intersection(lost)
        gathered.remove_all(forgotten)
        self._gathered_run = (0, 0)
        if gathered:
            # The last run has a place of its own.
            *_, self._gathered_run = gathered
            gathered.remove(*self._gathered_run)
        return forgotten

    # -- to the application ----------------------------------------------------

    @property
    def taken_through(self) -> int:
        return self._arrived_through - self.buffered

    def take(self, count: int) -> list[Span]:
        """Up to `count` messages, in order (CNS1)."""
        taken = []
        spans = self.spans
        while count and spans:
            span = spans[0]
            batch, delivery, offsets, start, stop, first = span
            if stop - start <= count:
                spans.popleft()
            else:
                stop = start + count
                spans[0] = Span(batch, delivery, offsets, stop, span.stop, first + count)
                span = Span(batch, delivery, offsets, start, stop, first)
            taken.append(span)
            count -= stop - start
            self.buffered -= stop - start
            self._taken_bytes += offsets[stop] - offsets[start]
        return taken

    def first(self, count: int, size: int) -> tuple[list[Span], int]:
        """The first buffered messages, at most so many and of about that size: rows, and their count."""
        spans: list[Span] = []
        found = 0
        for span in self.spans:
            rows = span.stop - span.start
            wanted = min(rows, count - found, 1 + size * rows // max(1, span.body_bytes))
            spans.append(span._replace(stop=span.start + wanted))
            found += wanted
            size -= spans[-1].body_bytes
            if wanted < rows or found == count or size <= 0:
                break
        return spans, found

    def put_back(self, taken: Sequence[Span]) -> None:
        """Undo a take that did not reach the application."""
        for span in reversed(taken):
            self.spans.appendleft(span)
            self.buffered += span.stop - span.start
            self._taken_bytes -= span.body_bytes

    def new_credit(self) -> tuple[int, int] | None:
        """Credit to grant (messages, bytes, both absolute) once half of the last is used up; else None."""
        if self.is_draining or self.returning:
            return None
        messages, size = self.granted
        taken = self.taken_through
        if not self.prefetch_messages:
            if self._wanted_through <= messages:
                return None
            through = self._wanted_through
        elif 2 * (messages - taken) > self.window and 2 * (size - self._taken_bytes) > self.prefetch_bytes:
            return None
        else:
            grown = max(self.window, _GROWTH * (taken - self._taken_then))
            self.window, self._taken_then = min(grown, self.prefetch_messages), taken
            through = taken + self.window
        # Absolute figures only ever grow: after `put_back` the old ones stand.
        granted = (max(messages, through), max(size, self._taken_bytes + self.prefetch_bytes))
        if granted == self.granted:
            return None
        self.granted = granted
        return granted

    # -- without a prefetch, and drained ---------------------------------------

    @property
    def _wanted_through(self) -> int:
        """The delivery number of the last wanted message (CNS7)."""
        return self.taken_through + sum(
            [count for asker, count in self.wants.items() if asker not in self.late]
        )

    @property
    def has_idle_credit(self) -> bool:
        """May the server send unwanted messages?"""
        used = max(self._arrived_through, self._wanted_through)
        return not self.prefetch_messages and self.granted[0] > used

    def take_unwanted(self) -> Ranges:
        """Give up the unwanted messages, the last ones first, and those behind messages on their way back."""
        unwanted = Ranges()
        count = self.buffered - sum(self.wants.values())
        for first, stop in [span.numbers for span in reversed(self.spans)]:
            if count > 0:
                unwanted.add(max(first, stop - count), stop)
                count -= stop - first
            for part in self.returning:
                if part.first + 1 < stop:
                    unwanted.add(max(first, part.first + 1), stop)
        if unwanted:
            self.unconfirmed.remove_all(unwanted)
            self._discard(unwanted)
        return unwanted

    def credit_to_drain(self) -> tuple[int, int]:
        """The credit that is to be used up, with what late receivers want and could not be granted before."""
        messages, size = self.granted
        wanted = self.taken_through + sum(self.wants.values())
        if wanted > messages:
            self.granted = (wanted, max(size, self._taken_bytes + self.prefetch_bytes))
        return self.granted

    def drained(self) -> None:
        """The server has used up the credit: everything it sent has arrived."""
        self.is_draining = False
        self.granted = (self._arrived_through, self.granted[1])

    # -- acknowledgements ------------------------------------------------------

    def hold(self, taken: Iterable[Span]) -> None:
        """The application has these, and will acknowledge them."""
        for span in taken:
            self.held.add(*span.numbers)
            if not self.unconfirmed.covers(*span.numbers):
                # Others got some of it while it was handed over.
                lost = Ranges([span.numbers]).difference(self.unconfirmed)
                self.held.remove_all(lost)
                self.forfeited.add_all(lost)

    def take_held(self) -> Ranges:
        held, self.held = self.held, Ranges()
        return held

    def hold_in_hand(self) -> None:
        """No message in hand will be acknowledged without the application."""
        for sequence in self.in_hand:
            self.held.add(sequence, sequence + 1)
        self.in_hand.clear()

    def put_in_hand(self, span: Span) -> None:
        """The application works on this message until it asks for another."""
        self.in_hand[span.numbers[0]] = span

    def take_from_hand(self, sequence: int) -> bool:
        """The application is done with this message now; False when it was before."""
        if self.in_hand.pop(sequence, None) is not None:
            return True
        self.take_forfeited(sequence)
        return False

    def empty_hand(self) -> list[Span]:
        """The application is done with all messages in hand."""
        spans = list(self.in_hand.values())
        self.in_hand.clear()
        return spans

    def take_forfeited(self, sequence: int) -> bool:
        """Was this message given to others? That is told once."""
        return bool(self.forfeited.remove(sequence, sequence + 1))

    def gather(self, now_ns: int, taken: Iterable[Span]) -> bool:
        """The application is done with these; returns whether it is time to tell the server."""
        first, stop = self._gathered_run
        if first == stop:
            self.gathered_since_ns = now_ns
        for span in taken:
            start, end = span.numbers
            if start == stop:
                stop = end
            else:
                self._gathered.add(first, stop)
                first, stop = start, end
            self._gathered_bytes += span.body_bytes
        self._gathered_run = (first, stop)
        return self._gathered_bytes >= self._ack_bytes

    @property
    def has_gathered(self) -> bool:
        first, stop = self._gathered_run
        return first < stop

    def take_gathered(self) -> Ranges:
        gathered = self._gathered
        gathered.add(*self._gathered_run)
        self._gathered, self._gathered_run, self._gathered_bytes = Ranges(), (0, 0), 0
        return gathered


def _without(spans: Iterable[Span], lost: Ranges) -> list[Span]:
    left = []
    for span in spans:
        kept = Ranges([span.numbers]).difference(lost)
        for first, end in kept:
            start = span.start + first - span.first
            left.append(span._replace(start=start, stop=start + end - first, first=first))
    return left
