"""Repair: a lost datagram is asked for, and sent again by its sender.

Where it sits
    receiver:  a gap in a stream  ->  GAPS  ->  ASK(stream, numbers)
    sender:    ASK  ->  STORE  ->  the very datagrams that were lost

What it promises
    TRP1  A gap is asked for after a short time (datagrams overtake each other), at growing intervals, and
          given up after a time.
    TRP2  Where several members may lack the same, each waits a random time longer, and a member that hears
          another ask for it stays silent for one interval.
    TRP3  A datagram is sent again at most once per interval, however many ask for it, and at most so many
          bytes per question.
    TRP4  What is kept is bounded in number, bytes and time.

What it leaves to others
    Nothing follows the last datagrams of a stream that would show their loss: senders announce their heads
    (`link.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from antiphon.bus.chance import Chance
from antiphon.transport.replay import WINDOW, ReplayWindow

MS: Final = 1_000_000

ASK_AFTER_NS: Final = 1 * MS
ASK_SPREAD_NS: Final = 4 * MS
ASK_AGAIN_NS: Final = 10 * MS
ASK_AGAIN_NS_MAX: Final = 80 * MS

GIVE_AGAIN_NS: Final = 5 * MS
GIVE_BYTES_MAX: Final = 1024 * 1024

Span = tuple[int, int]
"""First number and how many."""


class Lack:
    """Numbers that were found missing together, and when to ask for them."""

    __slots__ = ("ask_at_ns", "interval_ns", "since_ns")

    def __init__(self, now_ns: int, delay_ns: int) -> None:
        self.since_ns = now_ns
        self.ask_at_ns = now_ns + delay_ns
        self.interval_ns = ASK_AGAIN_NS

    def put_off(self, now_ns: int) -> None:
        """Another member has just asked; the answer needs a while."""
        self.ask_at_ns = now_ns + self.interval_ns
        self.interval_ns = min(2 * self.interval_ns, ASK_AGAIN_NS_MAX)


class Gaps:
    """The missing numbers of one stream of another member."""

    __slots__ = ("_chance", "_give_up_ns", "_is_shared", "next_ns", "window")

    def __init__(self, first: int, *, give_up_ns: int, is_shared: bool, chance: Chance) -> None:
        self.window: ReplayWindow[Lack] = ReplayWindow(first)
        self.next_ns: int | None = None
        """When to look at `due` again; None while nothing is missing."""
        self._give_up_ns = give_up_ns
        self._is_shared = is_shared
        self._chance = chance

    def expect(self, now_ns: int, head: int) -> None:
        """The sender has sent everything below `head`."""
        new = self.window.expect(head)
        if new:
            delay_ns = ASK_AFTER_NS
            if self._is_shared:
                delay_ns += self._chance.below(ASK_SPREAD_NS)
            lack = Lack(now_ns, delay_ns)
            missing = self.window.missing
            for number in new:
                missing[number] = lack
            if self.next_ns is None or lack.ask_at_ns < self.next_ns:
                self.next_ns = lack.ask_at_ns

    def overheard(self, now_ns: int, spans: Iterable[Span]) -> None:
        """Another member has asked for these (TRP2)."""
        missing = self.window.missing
        put_off: dict[Lack, None] = {}
        for first, count in spans:
            for number in range(first, first + min(count, WINDOW)):
                lack = missing.get(number)
                if lack is not None:
                    put_off[lack] = None
        for lack in put_off:
            lack.put_off(now_ns)

    def due(self, now_ns: int) -> list[Span]:
        """The numbers to ask for now. Numbers that were asked for too long are given up."""
        asked: list[int] = []
        over: list[int] = []
        lacks: list[Lack] = []
        self.next_ns = None
        for number, lack in self.window.missing.items():
            assert lack is not None, "a gap was never noted"
            if not lacks or lacks[-1] is not lack:
                lacks.append(lack)
            if now_ns - lack.since_ns >= self._give_up_ns:
                over.append(number)
            elif lack.ask_at_ns <= now_ns:
                asked.append(number)
        for number in over:
            self.window.give_up(number)
        for lack in lacks:
            if lack.ask_at_ns <= now_ns:
                lack.put_off(now_ns)
            if now_ns - lack.since_ns < self._give_up_ns:
                at_ns = min(lack.ask_at_ns, lack.since_ns + self._give_up_ns)
                self.next_ns = at_ns if self.next_ns is None else min(self.next_ns, at_ns)
        return spans_of(asked)


def spans_of(numbers: Iterable[int]) -> list[Span]:
    """Ascending numbers as runs."""
    spans: list[Span] = []
    for number in numbers:
        if spans and spans[-1][0] + spans[-1][1] == number:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((number, 1))
    return spans


class Sealed(NamedTuple):
    """A datagram as it was sent; sent again unchanged, so that its nonce is not used twice."""

    head: bytes
    rest: bytes


class _KeptDatagram:
    __slots__ = ("datagram", "given_ns", "sent_ns")

    def __init__(self, now_ns: int, datagram: Sealed) -> None:
        self.datagram = datagram
        self.sent_ns = now_ns
        self.given_ns = now_ns - GIVE_AGAIN_NS


class Store:
    """The recent datagrams of one stream: consecutive numbers."""

    __slots__ = ("_bytes_max", "_keep_ns", "_kept", "_oldest", "bytes")

    def __init__(self, *, bytes_max: int, keep_ns: int) -> None:
        self._bytes_max = bytes_max
        self._keep_ns = keep_ns
        self._kept: dict[int, _KeptDatagram] = {}
        self._oldest = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def oldest(self) -> int:
        """The lowest number that can still be had, or the next one to be sent."""
        return self._oldest

    def keep(self, now_ns: int, number: int, datagram: Sealed) -> None:
        assert number == self._oldest + len(self._kept), "a datagram was not kept"
        self._kept[number] = _KeptDatagram(now_ns, datagram)
        self.bytes += len(datagram.rest)
        while self.bytes > self._bytes_max or len(self._kept) > WINDOW:
            self._let_go()

    def expire(self, now_ns: int) -> None:
        """Drop datagrams older than the time after which all members give up."""
        while self._kept and now_ns - self._kept[self._oldest].sent_ns >= self._keep_ns:
            self._let_go()

    def give(self, now_ns: int, spans: Iterable[Span]) -> list[Sealed]:
        """The datagrams of these numbers that can be had and were not sent a moment ago (TRP3)."""
        given: list[Sealed] = []
        size = 0
        for first, count in spans:
            for number in range(first, first + min(count, WINDOW)):
                kept = self._kept.get(number)
                if kept is None or now_ns - kept.given_ns < GIVE_AGAIN_NS:
                    continue
                size += len(kept.datagram.rest)
                if size > GIVE_BYTES_MAX and given:
                    return given
                kept.given_ns = now_ns
                given.append(kept.datagram)
        return given

    def _let_go(self) -> None:
        kept = self._kept.pop(self._oldest)
        self._oldest += 1
        self.bytes -= len(kept.datagram.rest)
