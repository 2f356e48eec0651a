"""Repair: when to ask for something that is missing.

RPR1  The first question waits for a short time that differs between nodes: most gaps close by themselves, and
      then most nodes need not ask.
RPR2  While nothing comes, questions grow rarer, up to a limit; they never end.
RPR3  One question at a time. If more is missing, the next question follows its answer at once, so that a node
      far behind catches up as fast as answers come.
"""

from __future__ import annotations

from antiphon.bus.chance import Chance
from antiphon.bus.group import MS, GroupConfig


class Repair:
    __slots__ = ("_chance", "_delay_ms", "_delay_ms_max", "_delay_ms_min", "at", "attempts")

    def __init__(self, config: GroupConfig, chance: Chance) -> None:
        self._chance = chance
        self._delay_ms_min = config.fetch_delay_ms
        self._delay_ms_max = config.fetch_delay_ms_max
        self._delay_ms = config.fetch_delay_ms
        # When to ask, None while nothing is missing.
        self.at: int | None = None
        # Questions without an answer that helped.
        self.attempts = 0

    def rest(self) -> None:
        self.at = None
        self.attempts = 0
        self._delay_ms = self._delay_ms_min

    def is_due(self, now_ns: int, *, has_moved: bool = False, is_answered: bool = False) -> bool:
        """Whether it is time to ask.

        `has_moved`: the first missing part has come; `is_answered`: it came by an answer.
        """
        if is_answered:
            self.rest()
            self._set(now_ns)
            return True
        if has_moved or self.at is None:
            self.rest()
            self._set(now_ns)
            return False
        if now_ns < self.at:
            return False
        self.attempts += 1
        self._delay_ms = min(self._delay_ms * 2, self._delay_ms_max)
        self._set(now_ns)
        return True

    def _set(self, now_ns: int) -> None:
        delay_ns = self._delay_ms * MS
        self.at = now_ns + delay_ns + self._chance.below(delay_ns)
