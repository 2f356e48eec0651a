"""LogClock: the log time that a primary may propose.

CLK1  Log time never goes back, and goes on at least as fast as the primary's own clock, which cannot be set,
      also while the wall clock is behind.
CLK2  Towards a wall clock that is ahead, log time moves by the time passed on the own clock and a twentieth.
CLK3  When a term begins, the time since this replica applied the last mark is certain, and counts at once.
      The rest is known only from the wall clock, and is made up at most sixty times as fast, until log time
      meets the wall clock for the first time.
CLK4  The first mark of a channel is the wall clock's time.

The own clock goes on while the machine is suspended (`runtime`). More: docs/design/log-time.md.
"""

from __future__ import annotations

from typing import Final

CATCH_UP_RATE: Final = 60
"""How many times as fast as the own clock log time moves towards the wall clock when a term begins."""

SLACK_SHARE: Final = 20
"""The share of an interval by which log time may move further than the own clock."""

DIFFERENCE_MS_MAX: Final = 60_000
"""An operator is told of a larger difference between log time and wall clock."""

_NS_PER_MS: Final = 1_000_000


class LogClock:
    """The log time of a channel at one replica; `now_ns` is always the replica's own clock."""

    __slots__ = (
        "_at_ns",
        "_is_alarmed",
        "_is_catching_up",
        "_is_wall_ahead",
        "_slack_ns",
        "_time_ns",
        "_told_ns",
        "difference_ms",
        "told_ms",
    )

    def __init__(self, interval_ms: int) -> None:
        self._slack_ns = interval_ms * _NS_PER_MS // SLACK_SHARE
        # The last mark that was applied here, 0 if there was none, and when.
        self.told_ms = 0
        self._told_ns = 0
        # Log time was `_time_ns` at this moment of the own clock.
        self._time_ns = 0
        self._at_ns = 0
        self._is_catching_up = False
        # Whether the wall clock was ahead of log time at the last `tell`.
        self._is_wall_ahead = False
        # How far log time was ahead of the wall clock then.
        self.difference_ms = 0
        self._is_alarmed = False

    def told(self, now_ns: int, time_ms: int) -> None:
        """Note a mark that was applied, alone or with a state."""
        self.told_ms, self._told_ns = time_ms, now_ns
        if time_ms * _NS_PER_MS > self._time_ns:
            # The mark of a former term, or of a checkpoint.
            self._time_ns, self._at_ns = time_ms * _NS_PER_MS, now_ns

    def begin(self) -> None:
        """Begin a term: log time goes on from the last applied mark (CLK3).

        Marks that this replica proposed and that were never ordered do not count.
        """
        self._time_ns, self._at_ns = self.told_ms * _NS_PER_MS, self._told_ns
        self._is_catching_up = self._is_wall_ahead = True
        self.difference_ms, self._is_alarmed = 0, False

    def tell(self, now_ns: int, wall_ms: int) -> int:
        wall_ns = wall_ms * _NS_PER_MS
        if not self._time_ns:
            self._time_ns = max(wall_ns, _NS_PER_MS)
        else:
            passed_ns = max(0, now_ns - self._at_ns)
            rate = CATCH_UP_RATE if self._is_catching_up else 1
            reach_ns = self._time_ns + rate * passed_ns + self._slack_ns
            self._time_ns = max(self._time_ns + passed_ns, min(wall_ns, reach_ns))
        self._at_ns = now_ns
        time_ms = self._time_ns // _NS_PER_MS
        self.difference_ms = time_ms - wall_ms
        self._is_wall_ahead = self.difference_ms < 0
        if 0 <= self.difference_ms <= DIFFERENCE_MS_MAX:
            # A wall clock that is far behind may be set right, and be ahead then.
            self._is_catching_up = False
        return time_ms

    def when(self, time_ms: int) -> int:
        """The moment of the own clock at which log time may be this, if the wall clock stays as it is."""
        missing_ns = max(0, time_ms * _NS_PER_MS - self._time_ns)
        rate = CATCH_UP_RATE if self._is_catching_up and self._is_wall_ahead else 1
        return self._at_ns - (-missing_ns // rate)

    @property
    def has_time(self) -> bool:
        """Has log time begun?"""
        return self._time_ns > 0

    def now_ms(self, now_ns: int) -> int:
        """Log time as far as it is certain at this moment; 0 before the first mark."""
        if not self._time_ns:
            return 0
        return (self._time_ns + max(0, now_ns - self._at_ns)) // _NS_PER_MS

    def moment(self, time_ms: int) -> int:
        """The moment of the own clock at which `now_ms` is this, without another mark."""
        return self._at_ns + max(0, time_ms * _NS_PER_MS - self._time_ns)

    def alarm(self) -> str | None:
        """A text for the operator about a difference that is too large; once until the difference is over."""
        was_alarmed, self._is_alarmed = self._is_alarmed, abs(self.difference_ms) > DIFFERENCE_MS_MAX
        if was_alarmed or not self._is_alarmed:
            return None
        seconds = abs(self.difference_ms) // 1_000
        if self.difference_ms > 0:
            return (
                f"the clock of this machine is {seconds:,} s behind log time, which goes on without it: "
                "either this clock is wrong now, or that of a primary was wrong before"
            )
        if self._is_catching_up:
            return (
                f"the clock of this machine is {seconds:,} s ahead of log time, which makes that up within "
                f"{seconds // (CATCH_UP_RATE - 1) + 1:,} s; what is kept for a time ages faster until then"
            )
        return (
            f"the clock of this machine is {seconds:,} s ahead of log time, which does not follow it: "
            "either this clock is wrong, or it has been set right just now; then restart this node"
        )
