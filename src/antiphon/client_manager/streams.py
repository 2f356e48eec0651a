"""Streams: what a primary says to this client manager in numbers, put in order and acknowledged.

Where it sits
    the primary of a channel  ->  STREAMS  ->  consumers  ->  clients

What it promises
    S1  Of each stream every number is taken once, in the order 1, 2, 3 …, whatever the network does to it.
    S2  A higher term voids the stream of a lower one, and within a term that of a later run of ours voids
        that of an earlier one. What still comes of a void stream is not taken.
    S3  What came is acknowledged soon: when it is much, or a little later with what has come until then; at
        once when the primary does not seem to know.
    S4  A gap is named after a short while, because the network reorders; and again until it is closed.
    S5  What is kept because it came too early is bounded. What is not kept counts as missing.
    S6  A delivery, or the word that there is none, is taken only while the stream is sure to be ours: a word
        of ours that was said no longer ago than `sure_ms` has been answered by a primary that led when it
        heard it. Until then the stream is held: what came may be old. The same goes for a stream that is
        void.

What it leaves to others
    What the messages mean; and that what is missing comes again is the primary's.
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
"""How many messages may be kept that came before others."""

_NAMED_MAX: Final = 256
"""How many missing numbers are named at once: these first, the others when they are there."""

_WEIGHT: Final = 256
"""What a message weighs besides its rows, about."""

Numbered = Deliver | Registered | ConsumerEnded | Drained

_FOR_SURE: Final = frozenset[type[Numbered]]((Deliver, Drained))
"""What is held until the stream is sure to be ours (S6)."""


class Inflow:
    """The stream of one channel."""

    __slots__ = (
        *("acknowledge_at_ns", "channel", "early", "early_bytes", "is_held", "is_owed", "is_urgent"),
        *("is_void", "name_at_ns", "next", "owed_bytes", "stream", "sure_until_ns", "term", "told"),
    )

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.term = 0
        self.begin(0)

    def begin(self, stream: int) -> None:
        """Nothing has come of this stream; of what there was before, nothing is wanted (S2)."""
        self.stream = stream
        self.next = 1
        # The highest number that is known to be said.
        self.told = 0
        self.early: dict[int, Numbered] = {}
        self.early_bytes = 0
        # Must deliveries wait, and until when need they not (S6)?
        self.is_held = False
        self.is_void = False
        self.sure_until_ns = 0
        # Is an acknowledgement owed, of how much, can it wait, and until when?
        self.is_owed = False
        self.is_urgent = False
        self.owed_bytes = 0
        self.acknowledge_at_ns: int | None = None
        # When is a gap to be named?
        self.name_at_ns: int | None = None

    @property
    def has_gap(self) -> bool:
        return self.told >= self.next

    def owe_at_once(self) -> None:
        """The primary does not know what it could."""
        self.is_owed = self.is_urgent = True

    def acknowledged(self) -> None:
        """Nothing is owed any more."""
        self.is_owed = self.is_urgent = False
        self.owed_bytes = 0
        self.acknowledge_at_ns = None

    def missing(self) -> Ranges:
        """What is known to be said and has not come, the first of it."""
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

    `take` is handed what is in order, `begun` told of another stream, `doubted` of one that is not sure to be
    ours any more: its owner has the primary asked; and if our clock cannot be trusted, only what is said from
    now on counts.
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
        """The stream that is current in a channel; 0 while there is none."""
        return self._inflows[channel].stream

    def new_term(self, channel: str, term: int) -> None:
        inflow = self._inflows[channel]
        assert term > inflow.term, f"term {term} of channel {channel} follows term {inflow.term}"
        inflow.term = term
        inflow.begin(0)

    def is_current(self, channel: str, term: int, stream: int) -> bool:
        inflow = self._inflows[channel]
        return term == inflow.term and stream == inflow.stream

    # -- the primary says ------------------------------------------------------

    def arrive(self, channel: str, stream: int, number: int, message: Numbered) -> None:
        """A message with a number came: it is taken in its turn, and once (S1)."""
        inflow = self._inflows[channel]
        if message.term != inflow.term or stream < inflow.stream:
            return
        if stream > inflow.stream:
            self._begin(inflow, stream)
        inflow.is_owed = True
        inflow.owed_bytes += _weight(message)
        if number < inflow.next:
            # It was said again.
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

    # -- whose the stream is (S6) ------------------------------------------------

    def is_sure(self, channel: str) -> bool:
        """Is what came of this stream still ours?"""
        return not self._inflows[channel].is_held

    def look(self, now_ns: int) -> None:
        """A step begins: is each stream still sure to be ours?"""
        self._now_ns = now_ns
        if self._sure_ns:
            for inflow in self._inflows.values():
                if now_ns >= inflow.sure_until_ns and inflow.stream and not inflow.is_held:
                    self._doubt(inflow, is_anew=False)

    def doubt(self, channel: str) -> None:
        """We may have been taken for dead, whatever our clock says."""
        inflow = self._inflows[channel]
        if self._sure_ns and inflow.stream:
            self._doubt(inflow, is_anew=True)

    def _doubt(self, inflow: Inflow, *, is_anew: bool) -> None:
        inflow.is_held = True
        inflow.sure_until_ns = 0
        self._doubted(inflow.channel, is_anew)

    def answered(self, channel: str, said_ns: int, then: Callable[[str], None]) -> None:
        """What we said at this time has reached the primary, and the stream was ours; `then` it still is.

        An answer that took long lets what has come by now pass, and nothing else: a primary that is always
        so slow would never be heard otherwise.
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

    # -- how long it is --------------------------------------------------------------

    def head(self, channel: str, message: DeliverHead) -> None:
        """How long a stream of ours is, and how much of it the primary knows to be here (S3)."""
        if self.is_current(channel, message.term, message.stream) and message.stream:
            inflow = self._inflows[channel]
            inflow.told = max(inflow.told, message.number)
            if message.acknowledged < inflow.next - 1 or inflow.has_gap:
                inflow.owe_at_once()

    def void(self, channel: str) -> None:
        """The primary has given up the stream: it waits for us to begin another."""
        inflow = self._inflows[channel]
        inflow.is_held = inflow.is_void = True
        inflow.acknowledged()
        inflow.name_at_ns = None
        inflow.told = inflow.next - 1

    # -- time ------------------------------------------------------------------

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
        elif inflow.name_at_ns is None:
            inflow.name_at_ns = now_ns + self._delay_ns
        elif inflow.name_at_ns <= now_ns:
            inflow.name_at_ns = now_ns + self._interval_ns
            missing = inflow.missing()
        if missing is not None or (inflow.is_owed and self._is_due(inflow, now_ns)):
            inflow.acknowledged()
            said = DeliverAck(inflow.term, inflow.next - 1, missing or Ranges(), inflow.stream)
            self._outbox.do(SendToPrimary(inflow.channel, said))

    def _is_due(self, inflow: Inflow, now_ns: int) -> bool:
        """Is the primary to hear now what came, or can that wait for more (S3)?"""
        if inflow.is_urgent or inflow.owed_bytes >= self._acknowledge_bytes:
            return True
        if inflow.acknowledge_at_ns is None:
            inflow.acknowledge_at_ns = now_ns + self._acknowledge_ns
        return now_ns >= inflow.acknowledge_at_ns


def _weight(message: Numbered) -> int:
    if not isinstance(message, Deliver):
        return _WEIGHT
    return _WEIGHT + sum([sum(map(len, piece.buffers)) for piece in message.pieces])
