"""Streams: the numbered messages of a primary to this client manager, put in order and acknowledged.

Where it sits
    the primary of a channel  ->  STREAMS  ->  consumers  ->  clients

What it promises
    STM1  Of each stream every number is taken once, in the order 1, 2, 3 …, whatever the network does to it.
    STM2  A higher term voids the stream of a lower one, and within a term the stream of a later run of this
          node voids that of an earlier one. Messages of a void stream are not taken.
    STM3  Received messages are acknowledged soon: when they are many, or a little later together; at once
          when the primary does not seem to know.
    STM4  A gap is named after a short while, because the network reorders; and again, more rarely, until its
          first number has come. Then what is still missing has a short while again.
    STM5  The messages kept because they came too early are bounded; the others count as missing.
    STM6  A delivery, or the message that there is none, is taken only while the stream is sure to be this
          node's: a message of this node, sent no longer ago than `sure_ms`, has been answered by a primary
          that led when it received it. Until then the stream is held: its messages may be old. The same goes
          for a void stream.

What it leaves to others
    The meaning of the messages; and the primary sends missing ones again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from antiphon.bus.messages import ConsumerEnded, Deliver, DeliverAck, DeliverHead, Drained, Registered
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendToPrimary
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.ranges import Ranges

_NS_PER_MS: Final = 1_000_000

_EARLY_MAX: Final = 4_096
"""Early messages that are kept."""

_NAMED_MAX: Final = 256
"""Missing numbers that are named at once, the first ones."""

_WEIGHT: Final = 256
"""The weight of a message besides its rows, about."""

Numbered = Deliver | Registered | ConsumerEnded | Drained

_FOR_SURE: Final = frozenset[type[Numbered]]((Deliver, Drained))
"""Messages that are held until the stream is sure to be this node's (STM6)."""


class Inflow:
    __slots__ = (
        *("acknowledge_at_ns", "channel", "early", "early_bytes", "gap_at", "is_held", "is_owed"),
        *("is_urgent", "is_void", "name_at_ns", "next", "owed_bytes", "stream", "sure_until_ns"),
        *("term", "told"),
    )

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.term = 0
        self.begin(0)

    def begin(self, stream: int) -> None:
        """Begin a stream; the messages of the one before are dropped (STM2)."""
        self.stream = stream
        self.next = 1
        # The highest number that the primary is known to have sent.
        self.told = 0
        self.early: dict[int, Numbered] = {}
        self.early_bytes = 0
        # Must deliveries wait, and until when need they not (STM6)?
        self.is_held = False
        self.is_void = False
        self.sure_until_ns = 0
        # Is an acknowledgement owed, of how much, can it wait, and until when?
        self.is_owed = False
        self.is_urgent = False
        self.owed_bytes = 0
        self.acknowledge_at_ns: int | None = None
        # The number at which a gap begins, and when it is to be named.
        self.gap_at = 0
        self.name_at_ns: int | None = None

    @property
    def has_gap(self) -> bool:
        return self.told >= self.next

    def owe_at_once(self) -> None:
        """The primary lacks an acknowledgement."""
        self.is_owed = self.is_urgent = True

    def acknowledged(self) -> None:
        self.is_owed = self.is_urgent = False
        self.owed_bytes = 0
        self.acknowledge_at_ns = None

    def missing(self) -> Ranges:
        """The first numbers that were sent and have not come."""
        missing = Ranges()
        number, left = self.next, _NAMED_MAX
        for early in [*sorted(self.early), self.told + 1]:
            if early > number and left:
                stop = min(early, number + left)
                missing.add(number, stop)
                left -= stop - number
            number = early + 1
        return missing


class Streams:
    """The streams of all channels.

    `take` is handed the messages in order, `begun` is told of another stream, `doubted` of one that is not
    sure to be this node's any more: its owner asks the primary; after a clock that stood still only later
    answers count.
    """

    def __init__(
        self,
        channels: list[str],
        settings: ClientManagerSettings,
        outbox: Outbox,
        take: Callable[[str, Numbered], None],
        begun: Callable[[str, int], None],
        doubted: Callable[[str, bool], None],
    ) -> None:
        self._outbox = outbox
        self._take = take
        self._begun = begun
        self._doubted = doubted
        self._sure_ns = settings.sure_ms * _NS_PER_MS
        self._now_ns = 0
        self._acknowledge_ns = settings.acknowledge_delay_ms * _NS_PER_MS
        self._acknowledge_bytes = settings.acknowledge_bytes
        self._delay_ns = settings.missing_delay_ms * _NS_PER_MS
        self._interval_ns = settings.missing_interval_ms * _NS_PER_MS
        self._early_bytes_max = settings.early_bytes_max
        self._inflows = {channel: Inflow(channel) for channel in channels}

    def term(self, channel: str) -> int:
        return self._inflows[channel].term

    def stream(self, channel: str) -> int:
        return self._inflows[channel].stream

    def new_term(self, channel: str, term: int) -> None:
        inflow = self._inflows[channel]
        assert term > inflow.term, f"term {term} of channel {channel} follows term {inflow.term}"
        inflow.term = term
        inflow.begin(0)

    def is_current(self, channel: str, term: int, stream: int) -> bool:
        inflow = self._inflows[channel]
        return term == inflow.term and stream == inflow.stream

    def arrive(self, channel: str, stream: int, number: int, message: Numbered) -> None:
        """A numbered message came: it is taken in its turn, and once (STM1)."""
        inflow = self._inflows[channel]
        if message.term != inflow.term or stream < inflow.stream:
            return
        if stream > inflow.stream:
            self._begin(inflow, stream)
        inflow.is_owed = True
        inflow.owed_bytes += _weight(message)
        if number < inflow.next:
            # A repetition.
            inflow.is_urgent = True
        if number != inflow.next or (inflow.is_held and type(message) in _FOR_SURE):
            self._keep(inflow, number, message)
            return
        inflow.next = number + 1
        if number > inflow.told:
            inflow.told = number
        self._take(channel, message)
        if inflow.early:
            self._take_early(inflow)

    def _take_early(self, inflow: Inflow) -> None:
        while (early := inflow.early.get(inflow.next)) is not None:
            if inflow.is_held and type(early) in _FOR_SURE:
                return
            del inflow.early[inflow.next]
            inflow.next += 1
            inflow.early_bytes -= _weight(early)
            self._take(inflow.channel, early)

    def learn(self, channel: str, term: int, stream: int) -> None:
        """There is such a stream, though perhaps nothing has come of it yet."""
        inflow = self._inflows[channel]
        if term == inflow.term and stream > inflow.stream:
            self._begin(inflow, stream)

    def _begin(self, inflow: Inflow, stream: int) -> None:
        inflow.begin(stream)
        self._begun(inflow.channel, stream)
        if self._sure_ns:
            self._doubt(inflow, is_anew=True)

    def _keep(self, inflow: Inflow, number: int, message: Numbered) -> None:
        if number < inflow.next or number in inflow.early:
            return
        inflow.told = max(inflow.told, number)
        weight = _weight(message)
        if len(inflow.early) < _EARLY_MAX and inflow.early_bytes + weight <= self._early_bytes_max:
            inflow.early[number] = message
            inflow.early_bytes += weight

    def is_sure(self, channel: str) -> bool:
        """Is this stream still this node's?"""
        return not self._inflows[channel].is_held

    def look(self, now_ns: int) -> None:
        """A step begins: is each stream still sure to be this node's?"""
        self._now_ns = now_ns
        if self._sure_ns:
            for inflow in self._inflows.values():
                if now_ns >= inflow.sure_until_ns and inflow.stream and not inflow.is_held:
                    self._doubt(inflow, is_anew=False)

    def doubt(self, channel: str) -> None:
        """This node may have been taken for dead, whatever its clock says."""
        inflow = self._inflows[channel]
        if self._sure_ns and inflow.stream:
            self._doubt(inflow, is_anew=True)

    def _doubt(self, inflow: Inflow, *, is_anew: bool) -> None:
        inflow.is_held = True
        inflow.sure_until_ns = 0
        self._doubted(inflow.channel, is_anew)

    def answered(self, channel: str, said_ns: int, then: Callable[[str], None]) -> None:
        """The primary has answered a message that was sent at `said_ns`: the stream was this node's then.
        `then` is called while held messages may pass.

        A late answer lets only the messages of now pass: otherwise a primary that is always slow would never
        be heard.
        """
        inflow = self._inflows[channel]
        inflow.sure_until_ns = max(inflow.sure_until_ns, said_ns + self._sure_ns)
        if not inflow.is_held or inflow.is_void or self._now_ns >= said_ns + 2 * self._sure_ns:
            return
        inflow.is_held = False
        inflow.owe_at_once()
        self._take_early(inflow)
        then(channel)
        inflow.is_held = self._now_ns >= inflow.sure_until_ns

    def head(self, channel: str, message: DeliverHead) -> None:
        """The length of a stream, and how much of it the primary knows to be here (STM3)."""
        if self.is_current(channel, message.term, message.stream) and message.stream:
            inflow = self._inflows[channel]
            inflow.told = max(inflow.told, message.number)
            if message.acknowledged < inflow.next - 1 or inflow.has_gap:
                inflow.owe_at_once()

    def void(self, channel: str) -> None:
        """The primary has given up the stream, and waits for this node to begin another."""
        inflow = self._inflows[channel]
        inflow.is_held = inflow.is_void = True
        inflow.acknowledged()
        inflow.name_at_ns = None
        inflow.told = inflow.next - 1

    def next_deadline_ns(self) -> int | None:
        earliest: int | None = None
        for inflow in self._inflows.values():
            for deadline_ns in (inflow.name_at_ns, inflow.acknowledge_at_ns):
                if deadline_ns is not None and (earliest is None or deadline_ns < earliest):
                    earliest = deadline_ns
        return earliest

    def keep_time(self, now_ns: int) -> None:
        for inflow in self._inflows.values():
            if inflow.is_owed or inflow.name_at_ns is not None:
                self._look(inflow, now_ns)

    def _look(self, inflow: Inflow, now_ns: int) -> None:
        missing = None
        if not inflow.has_gap:
            inflow.name_at_ns = None
        elif inflow.name_at_ns is None or inflow.gap_at != inflow.next:
            inflow.gap_at = inflow.next
            inflow.name_at_ns = now_ns + self._delay_ns
        elif inflow.name_at_ns <= now_ns:
            inflow.name_at_ns = now_ns + self._interval_ns
            missing = inflow.missing()
        if missing is not None or (inflow.is_owed and self._is_due(inflow, now_ns)):
            inflow.acknowledged()
            said = DeliverAck(inflow.term, inflow.next - 1, missing or Ranges(), inflow.stream)
            self._outbox.do(SendToPrimary(inflow.channel, said))

    def _is_due(self, inflow: Inflow, now_ns: int) -> bool:
        """Must the primary hear now, or can the acknowledgement wait for more (STM3)?"""
        if inflow.is_urgent or inflow.owed_bytes >= self._acknowledge_bytes:
            return True
        if inflow.acknowledge_at_ns is None:
            inflow.acknowledge_at_ns = now_ns + self._acknowledge_ns
        return now_ns >= inflow.acknowledge_at_ns


def _weight(message: Numbered) -> int:
    if not isinstance(message, Deliver):
        return _WEIGHT
    return _WEIGHT + sum([sum(map(len, piece.buffers)) for piece in message.pieces])
