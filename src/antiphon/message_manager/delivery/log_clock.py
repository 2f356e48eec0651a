"""LogClock: what a primary may say the channel's time is.

Where it sits
    wall clock, own clock  ->  LOG CLOCK  ->  proposals (LOG_TIME)  ->  log, fold

What it promises
    K1  Log time never goes back, and goes on at least as fast as the primary's own clock, which no one sets:
        also while the wall clock is behind.
    K2  Log time follows a wall clock that is ahead by a slack for each mark: whatever the wall clock says,
        log time moves by the time that has passed on the own clock, and a twentieth more.
    K3  How long ago the last mark of a former term was made, nobody knows but the wall clock. What has passed
        since this replica applied that mark is certain, and counts at once. The rest is made up at most
        sixty times as fast, until log time meets the wall clock for the first time.
    K4  The first mark of a channel is the wall clock's time: there is nothing to compare it with.

What it leaves to others
    When a mark is made. That the own clock goes on while the machine is suspended is the runtime's business.

Why, and what a wrong clock can still do: docs/design/log-time.md.
"""

from __future__ import annotations

from typing import Final

CATCH_UP_RATE: Final = 60
"""So many times as fast as the own clock log time moves towards the wall clock when a term begins."""

SLACK_SHARE: Final = 20
"""In one interval of marks log time moves by one part in so many more than the own clock, at most."""

DIFFERENCE_MS_MAX: Final = 60_000
"""Log time and wall clock may differ by so much before somebody is told."""

_NS_PER_MS: Final = 1_000_000


class LogClock:
    """The time of a channel at one replica; `now_ns` is always the replica's own clock."""

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
        # Log time was this at this moment of our own clock.
        self._time_ns = 0
        self._at_ns = 0
        self._is_catching_up = False
        # Was the wall clock ahead of log time when the time was last told?
        self._is_wall_ahead = False
        # By how much log time was ahead of the wall clock then.
        self.difference_ms = 0
        self._is_alarmed = False

    def told(self, now_ns: int, time_ms: int) -> None:
        """A mark was applied, or a state was taken over with all its marks."""
        self.told_ms, self._told_ns = time_ms, now_ns
        if time_ms * _NS_PER_MS > self._time_ns:
            # Not our own: that of a former term, or of a checkpoint.
            self._time_ns, self._at_ns = time_ms * _NS_PER_MS, now_ns

    def begin(self) -> None:
        """A term of ours begins: log time goes on from the last mark that was applied (K3).

        What we proposed in a former term and what was never ordered counts for nothing.
        """
        self._time_ns, self._at_ns = self.told_ms * _NS_PER_MS, self._told_ns
        self._is_catching_up = self._is_wall_ahead = True
        self.difference_ms, self._is_alarmed = 0, False

    def tell(self, now_ns: int, wall_ms: int) -> int:
        """The time to propose now; the next one goes on from there."""
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
            # A wall clock that is far behind was not met: it may be set right, and be ahead then.
            self._is_catching_up = False
        return time_ms

    def when(self, time_ms: int) -> int:
        """The moment of our own clock at which log time may be this, if the wall clock stays what it is."""
        missing_ns = max(0, time_ms * _NS_PER_MS - self._time_ns)
        rate = CATCH_UP_RATE if self._is_catching_up and self._is_wall_ahead else 1
        return self._at_ns - (-missing_ns // rate)

    def alarm(self) -> str | None:
        """What an operator must know of the time that was told last; said once until it is over."""
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
