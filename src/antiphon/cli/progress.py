"""A progress line on stderr for long work, when a person is watching."""

from __future__ import annotations

import sys


class Progress:
    """Counts work and redraws one line, at most once per hundredth of the whole."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._drawn = -1
        self._done = 0
        # Short work is over before a bar could be read.
        self._is_shown = sys.stderr.isatty() and total >= 1000

    def advance(self, count: int) -> None:
        """Tell that `count` more are done."""
        self._done += count
        percent = self._done * 100 // self._total
        if self._is_shown and percent != self._drawn:
            self._drawn = percent
            bar = "#" * (percent // 4)
            print(f"\r{self._what} [{bar:<25}] {percent:3} %", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Leave the terminal on a line of its own."""
        if self._is_shown and self._drawn >= 0:
            print(file=sys.stderr)
