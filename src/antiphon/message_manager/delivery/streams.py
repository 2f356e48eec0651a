"""Streams: what the primary says to each client manager in numbers, until it is known to have come.

Where it sits
    delivery  ->  STREAMS  ->  client_manager/streams

What it promises
    S1  Each client manager has one stream in a term, numbered 1, 2, 3 … It is named after the run of the
        client manager; another run has another stream, which begins with 1 again.
    S2  Of a number that is not acknowledged it is known what it was, though not the rows themselves: these
        can be read again.
    S3  A client manager that acknowledges nothing gets no more than its window. That stops its own
        consumers and nobody else's.
    S4  Who has not acknowledged the end of its stream is told where it is, more and more rarely.
    S5  `Credits` are answered, at most once for each flush.
    S6  A client manager learns which of its words came before a heartbeat that a quorum has answered: when
        that word came no other primary had been elected, and the stream was its own.

What it leaves to others
    What is in the stream, and reading it again, is delivery's. That a client manager is gone the log says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from antiphon.bus.effects import Send
from antiphon.bus.messages import (
    ConsumerEnded,
    Credits,
    DeliverAck,
    DeliverHead,
    Drained,
    Registered,
    Taker,
)
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.settings import MessageManagerSettings

_NS_PER_MS: Final = 1_000_000

_WEIGHT_MIN: Final = 1_280
"""What a message weighs at least, as the transport counts."""


class Rows(NamedTuple):
    """Messages that were delivered: consecutive numbers, how often they were given back, bytes of bodies."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    redelivery_count: int
    body_bytes: int


@dataclass(slots=True)
class Sent:
    """What one number of a stream was (S2): a message of few bytes, or rows of a destination for takers."""

    weight: int
    message: Registered | ConsumerEnded | Drained | None = None
    destination: int = 0
    takers: tuple[Taker, ...] = ()
    rows: tuple[Rows, ...] = ()


class Stream:
    """The stream of one client manager in one of its runs."""

    __slots__ = (
        "_asked",
        "_asked_later",
        "_probe_at_ns",
        "_probe_wait_ns",
        "_sent",
        "_sent_bytes",
        "_ticket",
        "_window_bytes",
        "acknowledged",
        "again",
        "credits_heard",
        "given_bytes",
        "node",
        "number",
        "owes_head",
        "run",
        "stopped",
        "sure",
    )

    def __init__(self, node: int, run: int, window_bytes: int) -> None:
        self.node = node
        self.run = run
        # The last number, and through which they are known to have come.
        self.number = 0
        self.acknowledged = 0
        self.credits_heard = 0
        self.owes_head = False
        # The last word that is answered for (S6); the one that the heartbeat `_ticket` will answer for, and
        # the last one that came when that heartbeat had been said.
        self.sure = 0
        self._asked = 0
        self._ticket = 0
        self._asked_later = 0
        # Numbers to be sent a second time; a dict for its order.
        self.again: dict[int, None] = {}
        # Consumers with credit that wait for room.
        self.stopped: dict[ConsumerKey, Consumer] = {}
        # Of the flush that is under way: bytes that are given and not in a message yet.
        self.given_bytes = 0
        self._window_bytes = window_bytes
        self._sent: deque[Sent] = deque()
        self._sent_bytes = 0
        self._probe_at_ns: int | None = None
        self._probe_wait_ns = 0

    @property
    def room(self) -> int:
        """How many bytes may be sent to it now (S3). What begins within it may end beyond."""
        return self._window_bytes - self._sent_bytes - self.given_bytes

    @property
    def has_much_room(self) -> bool:
        """Is it worth waking who was stopped?"""
        return 4 * self.room >= self._window_bytes

    def put(self, sent: Sent) -> int:
        """The next message of the stream; its number."""
        self._sent.append(sent)
        self._sent_bytes += sent.weight
        self.number += 1
        return self.number

    def find(self, number: int) -> Sent | None:
        """What is under this number, unless it is known to have come."""
        at = number - self.acknowledged - 1
        return self._sent[at] if 0 <= at < len(self._sent) else None

    def acknowledge(self, upto: int) -> None:
        """Everything up to this number came. Less than before is an older word, more is nobody's."""
        if not self.acknowledged < upto <= self.number:
            return
        for _ in range(upto - self.acknowledged):
            self._sent_bytes -= self._sent.popleft().weight
        self.acknowledged = upto
        self._probe_at_ns = None
        self._probe_wait_ns = 0
        if self.again:
            self.again = {number: None for number in self.again if number > upto}

    def hear(self, number: int, beat: int) -> None:
        """A word came after heartbeat `beat`: only a later one can answer for it (S6)."""
        self.credits_heard = max(self.credits_heard, number)
        self.owes_head = True
        if self._asked and self._ticket <= beat:
            self._asked_later = max(self._asked_later, number)
        else:
            self._asked, self._ticket = max(self._asked, number), beat + 1

    def beaten(self, beat: int, answered: int) -> bool:
        """A quorum has answered a heartbeat; is that news for the client manager?"""
        if not self._asked or answered < self._ticket:
            return False
        self.sure, self.owes_head = max(self.sure, self._asked), True
        self._asked, self._ticket, self._asked_later = self._asked_later, beat + 1, 0
        return True

    def head(self, term: int) -> DeliverHead:
        self.owes_head = False
        return DeliverHead(term, self.number, self.credits_heard, self.run, self.acknowledged, sure=self.sure)

    def is_due(self, now_ns: int, wait_min_ns: int, wait_max_ns: int) -> bool:
        """Is its end unacknowledged for so long that it should be told where it is (S4)?"""
        if not self._sent:
            return False
        if self._probe_at_ns is not None and self._probe_at_ns > now_ns:
            return False
        is_first = self._probe_at_ns is None
        self._probe_wait_ns = wait_min_ns if is_first else min(2 * self._probe_wait_ns, wait_max_ns)
        self._probe_at_ns = now_ns + self._probe_wait_ns
        return not is_first

    def next_deadline_ns(self, now_ns: int) -> int | None:
        if self.owes_head or self.again or (self._sent and self._probe_at_ns is None):
            return now_ns
        return self._probe_at_ns if self._sent else None


class DeliveryStreams:
    """The streams of all client managers in one term."""

    __slots__ = (
        *("_beat", "_by_node", "_probe_max_ns", "_probe_min_ns", "_term", "_unknown", "_window_bytes"),
    )

    def __init__(self, term: int, settings: MessageManagerSettings) -> None:
        self._term = term
        self._window_bytes = settings.stream_window_bytes
        self._probe_min_ns = settings.stream_probe_ms * _NS_PER_MS
        self._probe_max_ns = settings.stream_probe_ms_max * _NS_PER_MS
        self._by_node: dict[int, Stream] = {}
        # The last heartbeat of this term.
        self._beat = 0
        # Who has to be told that its stream is not known here.
        self._unknown: dict[int, DeliverHead] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._by_node.values())

    def begin(self, node: int, run: int) -> Stream:
        """The stream of a client manager in this run, now or since long (S1)."""
        stream = self._by_node.get(node)
        if stream is None or stream.run < run:
            stream = self._by_node[node] = Stream(node, run, self._window_bytes)
        return stream

    def is_current(self, stream: Stream) -> bool:
        return self._by_node.get(stream.node) is stream

    def end(self, node: int, before: int) -> None:
        """The runs of this client manager that began before number `before` are over; it is told."""
        stream = self._by_node.get(node)
        if stream is not None and stream.run < before:
            del self._by_node[node]
            self._tell_unknown(node, stream.run, 0)

    def _tell_unknown(self, node: int, run: int, credits_heard: int) -> None:
        self._unknown[node] = DeliverHead(self._term, 0, credits_heard, run, is_void=True)

    # -- client managers say -----------------------------------------------------

    def heard(self, sender: int, message: Credits) -> Stream | None:
        """Note that credit came; the stream of who says so, if we know it (S5)."""
        stream = self._by_node.get(sender)
        if stream is None or stream.run != message.stream:
            self._tell_unknown(sender, message.stream, message.number)
            return None
        stream.hear(message.number, self._beat)
        return stream

    def beaten(self, beat: int, answered: int) -> bool:
        """How far the heartbeats are, and the answers to them; is anybody to be told (S6)?"""
        self._beat = beat
        is_news = False
        for stream in self._by_node.values():
            is_news = stream.beaten(beat, answered) or is_news
        return is_news

    def acknowledge(self, sender: int, message: DeliverAck) -> Stream | None:
        """Something came, something is missing; the stream, if it has room for who was stopped."""
        if message.term != self._term:
            return None
        stream = self._by_node.get(sender)
        if stream is None or stream.run != message.stream:
            self._tell_unknown(sender, message.stream, 0)
            return None
        stream.acknowledge(message.upto)
        for start, stop in message.missing:
            # What is beyond the end is nobody's; without this a wrong word could be a long loop.
            for number in range(max(start, stream.acknowledged + 1), min(stop, stream.number + 1)):
                stream.again[number] = None
        return stream if stream.stopped and stream.has_much_room else None

    # -- flushing ----------------------------------------------------------------

    def number(self, stream: Stream, message: Registered | ConsumerEnded | Drained) -> Send:
        """A message of few bytes, with its place in the stream."""
        sent = Sent(_WEIGHT_MIN, message)
        number = stream.put(sent)
        sent.message = replace(message, stream=stream.run, number=number)
        return Send(stream.node, sent.message)

    def heads(self, now_ns: int) -> list[Send]:
        """Who has to be told how its stream stands."""
        heads = [Send(node, head) for node, head in self._unknown.items()]
        self._unknown.clear()
        for stream in self._by_node.values():
            is_due = stream.is_due(now_ns, self._probe_min_ns, self._probe_max_ns)
            if is_due or stream.owes_head:
                heads.append(Send(stream.node, stream.head(self._term)))
        return heads

    def next_deadline_ns(self, now_ns: int) -> int | None:
        if self._unknown:
            return now_ns
        earliest = None
        for stream in self._by_node.values():
            deadline = stream.next_deadline_ns(now_ns)
            if deadline is not None and (earliest is None or deadline < earliest):
                earliest = deadline
        return earliest


def weight_of(size: int) -> int:
    """What a message with so many bytes of rows counts against a window."""
    return max(size, _WEIGHT_MIN)
