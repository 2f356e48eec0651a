"""RefusalLog: a line for each connection that was closed with a reason, and never too many lines.

A reason may be the peer's text: unprintable characters are escaped, long texts cut, and none is a format.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LINES_PER_SECOND = 10
TEXT_LENGTH_MAX = 300


class RefusalLog:
    """At most so many lines a second; of the others, their number."""

    def __init__(
        self,
        logger: logging.Logger,
        lines_per_second: int = LINES_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._lines_max = lines_per_second
        self._clock = clock
        self._second_ends = 0.0
        self._lines = 0
        self._suppressed = 0

    def note(self, peer: str, code: str, text: str) -> None:
        self.settle()
        if self._lines >= self._lines_max:
            self._suppressed += 1
            return
        self._lines += 1
        self._logger.info(
            "connection of %s closed: %s: %s", printable(peer), printable(code), printable(text)
        )

    def settle(self) -> None:
        """If the second is over, log how many lines were left out in it."""
        now = self._clock()
        if now < self._second_ends:
            return
        suppressed, self._suppressed = self._suppressed, 0
        self._second_ends = now + 1.0
        # The line about the others is one of the lines.
        self._lines = 1 if suppressed else 0
        if suppressed:
            self._logger.info("%d more connections were closed and not listed", suppressed)


def printable(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """The text as one line that shows everything in it: `a\\nb` has no line break, but says where one was.

    >>> printable("two\\nlines")
    'two\\\\nlines'
    """
    cut = text[:length_max]
    if not cut.isprintable():
        cut = "".join(
            letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
            for letter in cut
        )
    return cut if len(text) <= length_max else f"{cut}... ({len(text)} characters)"
