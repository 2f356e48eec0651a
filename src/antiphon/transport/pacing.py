"""Pacer: bursts up to what a receive buffer takes, and in the long run no more than the network does.

A token bucket. Without it a frame of 3 MiB, cut into two thousand datagrams and sent within a
millisecond, would overrun the buffers of all who are to have it.
"""

from __future__ import annotations

_SECOND_NS = 1_000_000_000


class Pacer:
    """Says whether so much may be sent now."""

    __slots__ = ("_burst", "_level", "_now_ns", "_rate")

    def __init__(self, *, bytes_per_second: int, burst_bytes: int) -> None:
        assert bytes_per_second > 0 and burst_bytes > 0
        self._rate = bytes_per_second
        self._burst = burst_bytes
        self._level = burst_bytes
        self._now_ns = 0

    def may_send(self, now_ns: int) -> bool:
        """Is there anything left? What is sent then may be more than that; the rest is owed."""
        if self._level <= 0:
            self._fill(now_ns)
        return self._level > 0

    def sent(self, size: int) -> None:
        self._level -= size

    def wait_ns(self) -> int:
        """How long until something may be sent again, at least a little."""
        return max(0, -self._level + self._burst // 8) * _SECOND_NS // self._rate

    def _fill(self, now_ns: int) -> None:
        earned = (now_ns - self._now_ns) * self._rate // _SECOND_NS
        self._level = min(self._burst, self._level + earned)
        self._now_ns = now_ns
