"""Crowd: clients that were confirmed together send again together, and should share their next envelope.

An envelope costs the same for one command as for a hundred. Clients that each wait for their confirmation
fall apart into groups with an envelope each, unless the first to come again wait for the others.

What it promises
    CRW1  After a confirmation of `crowd_min` commands or more, a small envelope waits until as many commands
          have come, and no small one is under way.
    CRW2  Nobody waits for the others longer than the envelope before took, or than `crowd_wait_ms`.
    CRW3  If the others do not come within that time, the next envelopes do not wait: one at first, then
          twice as many after each wait in vain. Clients that have nothing to do with each other hardly ever
          wait for each other.
"""

from __future__ import annotations

from typing import Final

from antiphon.client_manager.settings import ClientManagerSettings

_MS_NS: Final = 1_000_000
_APART_MAX: Final = 64
_AWAY_WAITS: Final = 20
"""A crowd that has stayed away for so many waits has gone."""


class Crowd:
    def __init__(self, settings: ClientManagerSettings) -> None:
        self._least = settings.crowd_min
        self._wait_ns = settings.crowd_wait_ms * _MS_NS
        self._come = 0
        # How many will have come when everybody is back; 0: nobody is waited for.
        self._expected = 0
        self._left_ns = 0
        self.waits_until_ns: int | None = None
        # Envelopes that still leave without waiting, and how many will after the next wait in vain.
        self._apart = 0
        self._apart_next = 1

    def come(self, commands: int) -> None:
        self._come += commands

    def confirmed(self, commands: int) -> None:
        """The clients of these commands know that they are applied: expect as many new ones."""
        if self._apart:
            self._apart -= 1
        elif self._expected or commands >= self._least:
            self._expected = max(self._expected, self._come) + commands

    def leave(self, now_ns: int, *, is_small: bool) -> None:
        """All that waits leaves now."""
        self.waits_until_ns = None
        if is_small:
            self._left_ns = now_ns

    def must_wait(self, now_ns: int, *, is_under_way: bool) -> bool:
        """Whether a small envelope is to wait for others; `is_under_way`: a small one has left before."""
        if not self._expected:
            return False
        if is_under_way:
            return True
        if self._come >= self._expected:
            if self.waits_until_ns is not None:
                self._apart_next = 1
            return False
        if self.waits_until_ns is None:
            took_ns = now_ns - self._left_ns
            if took_ns > _AWAY_WAITS * self._wait_ns:
                self._expected = 0
                return False
            self.waits_until_ns = now_ns + min(took_ns, self._wait_ns)
        if now_ns < self.waits_until_ns:
            return True
        self._expected = 0
        self._apart = self._apart_next
        self._apart_next = min(2 * self._apart_next, _APART_MAX)
        return False
