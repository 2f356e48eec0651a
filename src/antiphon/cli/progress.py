"""A progress line on stderr for long work, when a person is watching."""

from __future__ import annotations

import sys

SHOWN_FROM = 1_000
"""Shorter work is over before a bar could be read."""


class Progress:
    """Counts work and redraws one line: at most once per hundredth of the whole, where that is known."""

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._drawn = -1
        self._done = 0
        self._is_shown = sys.stderr.isatty() and (total is None or total >= SHOWN_FROM)

    def advance(self, count: int) -> None:
        self._done += count
        if not self._is_shown:
            return
        if self._total is None:
            self._draw(self._done // SHOWN_FROM, f"{self._done:,}")
        else:
            percent = min(100, self._done * 100 // self._total)
            self._draw(percent, f"[{'#' * (percent // 4):<25}] {percent:3} %")

    def finish(self) -> None:
        """Leave the terminal on a line of its own."""
        if self._is_shown and self._drawn >= 0:
            print(file=sys.stderr)

    def _draw(self, step: int, text: str) -> None:
        if step != self._drawn:
            self._drawn = step
            print(f"\r{self._what} {text}", end="", file=sys.stderr, flush=True)
