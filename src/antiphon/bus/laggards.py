"""Laggards: whom a sequencer waits for, and for how long.

Where it sits
    reign  ->  LAGGARDS

What it promises
    P1  A replica that lives and falls behind by more than `lag_max` numbers holds the numbering back, so that
        it is not lost for a moment of slowness.
    P2  It does so for at most `laggard_wait_ms` at a stretch. Then it is left to catch up by itself and the
        others go on; it counts again when it is within half the limit.
    P3  A replica that is silent, or alone in the group, holds back nobody.

What it leaves to others
    How it catches up: from the log, or from a checkpoint if it falls behind the base. This is about pace
    only; what is committed needs no more than the quantities say.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.bus.effects import Alarm, RoleEffect
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.presence import PresenceKeeper


class Laggards:
    """The data servers of a group as its sequencer sees them."""

    __slots__ = ("_began_at", "_left", "_node", "_presence", "_waits_since", "holds_back")

    def __init__(self, node: int, presence: PresenceKeeper | None, now_ns: int) -> None:
        self._node = node
        self._presence = presence
        self._began_at = now_ns
        self._waits_since: dict[int, int] = {}
        self._left: dict[int, None] = {}
        # Must nothing be numbered for now?
        self.holds_back = False

    def look(
        self, now_ns: int, config: GroupConfig, last: int, match: Mapping[int, int], out: list[RoleEffect]
    ) -> None:
        """See who lags; `match` is how far commit servers acknowledged, which is newer than a presence."""
        self.holds_back = False
        if self._presence is None:
            return
        for server in config.data_servers:
            if server == self._node or self._presence.is_silent(server, self._began_at, now_ns):
                self._waits_since.pop(server, None)
                continue
            seen = self._presence.seen(server)
            have = max(match.get(server, 0), 0 if seen is None else seen.applied)
            if last - have <= config.lag_max // 2:
                self._waits_since.pop(server, None)
                self._left.pop(server, None)
            elif last - have > config.lag_max and server not in self._left:
                self._hold(now_ns, config, server, last - have, out)

    def _hold(self, now_ns: int, config: GroupConfig, server: int, lag: int, out: list[RoleEffect]) -> None:
        if now_ns - self._waits_since.setdefault(server, now_ns) < config.laggard_wait_ms * MS:
            self.holds_back = True
            return
        del self._waits_since[server]
        self._left[server] = None
        out.append(Alarm(f"node {server} is {lag} numbers behind and is left to catch up by itself"))
