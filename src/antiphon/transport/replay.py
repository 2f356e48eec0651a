"""ReplayWindow: each datagram of a stream counts once.

Datagrams of a stream are numbered 0, 1, 2, … A number at `next` or above is new. Below, only the numbers in
`missing` may still be taken, late or repaired, as long as they are within the window. So one small table says
both what may be taken and what is missing, and while nothing is lost it is empty.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

WINDOW: Final = 4_096

T = TypeVar("T")


class ReplayWindow(Generic[T]):
    """The numbers of one stream that were taken. `T` is the owner's note about a missing number."""

    __slots__ = ("_size", "given_up", "missing", "next")

    def __init__(self, first: int, size: int = WINDOW) -> None:
        self.next = first
        self.missing: dict[int, T | None] = {}
        """In ascending order; never more than the window has room for."""
        self.given_up = 0
        """How many numbers are too far behind to be taken any more."""
        self._size = size

    def is_fresh(self, number: int) -> bool:
        """May this number be taken? Asked before a datagram is opened, since it costs nothing."""
        return number >= self.next or number in self.missing

    def take(self, number: int) -> None:
        """A datagram with this fresh number was found genuine."""
        if number < self.next:
            del self.missing[number]
            return
        if number > self.next:
            self.expect(number)
        self.next = number + 1
        if self.missing:
            self._forget()

    def expect(self, head: int) -> range:
        """Numbers below `head` have been given out; returns those that are newly missing."""
        first = max(self.next, head - self._size)
        if head <= first:
            return range(0)
        self.given_up += first - self.next
        new = range(first, head)
        self.missing.update(dict.fromkeys(new))
        self.next = head
        self._forget()
        return new

    def give_up(self, number: int) -> None:
        """The number is not taken any more, even if it comes."""
        del self.missing[number]
        self.given_up += 1

    def give_up_below(self, number: int) -> None:
        while self.missing:
            first = next(iter(self.missing))
            if first >= number:
                return
            self.give_up(first)

    def _forget(self) -> None:
        self.give_up_below(self.next - self._size)
