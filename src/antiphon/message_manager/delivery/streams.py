"""Streams: numbered messages of the primary to each client manager, until they are acknowledged.

STR1  Each client manager has one stream in a term, numbered 1, 2, 3 … The stream is named after the run of
      the client manager; another run has another stream, which begins with 1 again. So has the same run when
      the state of the primary is replaced; then the name is the number of that state, a higher one.
STR2  The content of a number is kept until it is acknowledged; of deliveries only which rows they were.
STR3  A client manager that acknowledges nothing gets no more deliveries than its window. Only its own
      consumers stop. Answers take no room: they do not wait for it, and clients wait for each of them.
STR4  A client manager that has not acknowledged the end of its stream is sent the head, ever more rarely.
STR5  `Credits` are answered, at most once for each flush.
STR6  A client manager learns which of its `Credits` came before a heartbeat that a quorum has answered: when
      they came no other primary had been elected, and the stream was the primary's own.

Delivery fills the streams and reads rows again; the log says that a client manager is gone.
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
"""The least weight of a delivery, as the transport counts."""


class Rows(NamedTuple):
    """The messages of a `Piece` with the same redelivery count, and their bytes of bodies."""

    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    redelivery_count: int
    body_bytes: int
    offsets: bytes = b""


@dataclass(slots=True)
class Sent:
    """The content of a number (STR2): a message of few bytes, or rows of a destination for takers."""

    weight: int = 0
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
        # The last number, and the last acknowledged one.
        self.number = 0
        self.acknowledged = 0
        self.credits_heard = 0
        self.owes_head = False
        # The last `Credits` that a quorum vouches for (STR6); those for which the answer to heartbeat
        # `_ticket` will vouch; and the last that came after that heartbeat.
        self.sure = 0
        self._asked = 0
        self._ticket = 0
        self._asked_later = 0
        # Numbers to be sent again; a dict for its order.
        self.again: dict[int, None] = {}
        # Consumers with credit that wait for room, in the order of their turns.
        self.stopped: dict[ConsumerKey, Consumer] = {}
        # Bytes given in this flush that are not in a message yet.
        self.given_bytes = 0
        self._window_bytes = window_bytes
        self._sent: deque[Sent] = deque()
        self._sent_bytes = 0
        self._probe_at_ns: int | None = None
        self._probe_wait_ns = 0

    @property
    def room(self) -> int:
        """The bytes that may be delivered now (STR3). A delivery that begins within them may end beyond."""
        return self._window_bytes - self._sent_bytes - self.given_bytes

    @property
    def has_much_room(self) -> bool:
        return 4 * self.room >= self._window_bytes

    def put(self, sent: Sent) -> int:
        self._sent.append(sent)
        self._sent_bytes += sent.weight
        self.number += 1
        return self.number

    def find(self, number: int) -> Sent | None:
        at = number - self.acknowledged - 1
        return self._sent[at] if 0 <= at < len(self._sent) else None

    def acknowledge(self, upto: int) -> None:
        """Take an acknowledgement; a smaller number is older, and a larger one is invalid."""
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
        """Note `Credits` that came after heartbeat `beat`: only a later one can vouch for them (STR6)."""
        self.credits_heard = max(self.credits_heard, number)
        self.owes_head = True
        if self._asked and self._ticket <= beat:
            self._asked_later = max(self._asked_later, number)
        else:
            self._asked, self._ticket = max(self._asked, number), beat + 1

    def beaten(self, beat: int, answered: int) -> bool:
        if not self._asked or answered < self._ticket:
            return False
        self.sure, self.owes_head = max(self.sure, self._asked), True
        self._asked, self._ticket, self._asked_later = self._asked_later, beat + 1, 0
        return True

    @property
    def awaits_beat(self) -> bool:
        return self._asked > 0

    def head(self, term: int) -> DeliverHead:
        self.owes_head = False
        return DeliverHead(term, self.number, self.credits_heard, self.run, self.acknowledged, sure=self.sure)

    def is_due(self, now_ns: int, wait_min_ns: int, wait_max_ns: int) -> bool:
        """Whether the head is to be sent (STR4)."""
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
        *("_beat", "_by_node", "_installed_at", "_probe_max_ns", "_probe_min_ns", "_term", "_unknown"),
        "_window_bytes",
    )

    def __init__(self, term: int, settings: MessageManagerSettings, installed_at: int = 0) -> None:
        self._term = term
        self._installed_at = installed_at
        self._window_bytes = settings.stream_window_bytes
        self._probe_min_ns = settings.stream_probe_ms * _NS_PER_MS
        self._probe_max_ns = settings.stream_probe_ms_max * _NS_PER_MS
        self._by_node: dict[int, Stream] = {}
        self._beat = 0
        # Heads for client managers whose stream is unknown here.
        self._unknown: dict[int, DeliverHead] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._by_node.values())

    def begin(self, node: int, run: int) -> Stream:
        # What was begun before the state was replaced is over, though the term and the run go on (STR1).
        run = max(run, self._installed_at)
        stream = self._by_node.get(node)
        if stream is None or stream.run < run:
            stream = self._by_node[node] = Stream(node, run, self._window_bytes)
        return stream

    def is_current(self, stream: Stream) -> bool:
        return self._by_node.get(stream.node) is stream

    def end(self, node: int, before: int) -> None:
        """End the runs of a client manager that began before number `before`, and tell it."""
        stream = self._by_node.get(node)
        if stream is not None and stream.run < before:
            del self._by_node[node]
            self._tell_unknown(node, stream.run, 0)

    def _tell_unknown(self, node: int, run: int, credits_heard: int) -> None:
        self._unknown[node] = DeliverHead(self._term, 0, credits_heard, run, is_void=True)

    # -- client managers say -----------------------------------------------------

    def heard(self, sender: int, message: Credits) -> Stream | None:
        """Note `Credits`; the stream that they belong to, if it is known (STR5)."""
        stream = self._by_node.get(sender)
        if stream is None or stream.run != message.stream:
            self._tell_unknown(sender, message.stream, message.number)
            return None
        stream.hear(message.number, self._beat)
        return stream

    def beaten(self, beat: int, answered: int) -> bool:
        self._beat = beat
        is_news = False
        for stream in self._by_node.values():
            is_news = stream.beaten(beat, answered) or is_news
        return is_news

    def acknowledge(self, sender: int, message: DeliverAck) -> Stream | None:
        """Take an acknowledgement; the stream, if it now has room for its stopped consumers."""
        if message.term != self._term:
            return None
        stream = self._by_node.get(sender)
        if stream is None or stream.run != message.stream:
            self._tell_unknown(sender, message.stream, 0)
            return None
        stream.acknowledge(message.upto)
        for start, stop in message.missing:
            # Without the bounds a wrong message could cause a long loop.
            for number in range(max(start, stream.acknowledged + 1), min(stop, stream.number + 1)):
                stream.again[number] = None
        return stream if stream.stopped and stream.has_much_room else None

    # -- flushing ----------------------------------------------------------------

    def number(self, stream: Stream, message: Registered | ConsumerEnded | Drained) -> Send:
        sent = Sent(message=message)
        number = stream.put(sent)
        sent.message = replace(message, stream=stream.run, number=number)
        return Send(stream.node, sent.message)

    def heads(self, now_ns: int) -> list[Send]:
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
    return max(size, _WEIGHT_MIN)
