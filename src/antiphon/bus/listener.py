"""Listener: what a client manager knows of a channel of which it keeps nothing.

Where it sits
    HEARTBEAT, PRESENCE  ->  LISTENER  ->  client manager;   LISTENER  ->  PRESENCE  ->  all

What it promises
    LSN1  The primary is the leader of the highest epoch heard of, once that node says that it serves. A
          message of an older epoch changes nothing.
    LSN2  This node sends its presence (`PresenceKeeper`): a node that is silent for long is fenced.
    LSN3  News is emitted once: another primary, more or less room on its disk, another load; that no node
          serves the channel, for longer than a change of primary takes, and that a node does again.
    LSN4  A node whose clock stood still learns so with the next heartbeats of the primary: they come in equal
          intervals and have numbers, so they are a clock that goes on.

What it leaves to others
    Safety rests on the order. A listener may be wrong for a while, and the machines that rely on it repeat
    what was not answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Event,
    LoadChanged,
    Multicast,
    PrimaryChanged,
    Received,
    ServiceChanged,
    SpaceChanged,
    TimeMissed,
)
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import SpaceState
from antiphon.bus.presence import PresenceKeeper
from antiphon.ids import epoch_node

ROLE = "client-manager"

News = PrimaryChanged | ServiceChanged | SpaceChanged | TimeMissed | LoadChanged | Multicast


class BeatClock:
    """Compares the heartbeats of a primary with the clock of this node.

    The lead of our clock over the beats grows when beats are late, and shrinks when the clock stood still.
    Clocks differ in their rates, so an old lead counts less and less as our own time passes.
    """

    __slots__ = ("_ahead_ns", "_heard_ns", "_nonce")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._nonce = 0
        self._ahead_ns = 0
        self._heard_ns = 0

    def has_missed(self, now_ns: int, nonce: int, interval_ns: int, limit_ns: int) -> bool:
        """Whether so much time has passed at this heartbeat that our clock did not see; True once."""
        if nonce <= self._nonce:
            return False
        ahead_ns = now_ns - nonce * interval_ns
        before_ns = ahead_ns
        if self._nonce:
            before_ns = max(ahead_ns, self._ahead_ns - (now_ns - self._heard_ns) // 2)
        has_missed = before_ns - ahead_ns >= limit_ns
        self._nonce, self._heard_ns = nonce, now_ns
        # Amounts below the limit add up.
        self._ahead_ns = ahead_ns if has_missed else before_ns
        return has_missed


class Listener:
    def __init__(self, config: GroupConfig, node: int, name: str = "") -> None:
        self.config = config
        self.term = 0
        self.primary = 0
        self._presence = PresenceKeeper(config, node, name, ROLE)
        self._space = SpaceState.AMPLE
        self._beats = BeatClock()
        # When a node last said to serve; before that, when this node began to listen.
        self._served_ns: int | None = None
        self.is_served = True
        # None until the primary has told its load.
        self._load: int | None = None

    def reconfigure(self, config: GroupConfig) -> None:
        self.config = config
        self._presence.reconfigure(config)

    def next_deadline_ns(self) -> int | None:
        return self._presence.next_deadline_ns()

    def step(self, now_ns: int, events: Sequence[Event]) -> list[News]:
        news: list[News] = []
        for event in events:
            if type(event) is Received and type(event.message) is m.Heartbeat:
                self._on_heartbeat(now_ns, event.sender, event.message, news)
        self._note_service(now_ns, news)
        news += [said for said in self._presence.step(now_ns, events) if isinstance(said, Multicast)]
        seen = self._presence.seen(self.primary)
        # A node without a role has only been heard, and has not told its state.
        if seen is not None and seen.role and seen.load != self._load:
            self._load = seen.load
            news.append(LoadChanged(seen.load))
        return news

    def _on_heartbeat(self, now_ns: int, sender: int, beat: m.Heartbeat, news: list[News]) -> None:
        if beat.epoch < self.term or epoch_node(beat.epoch) != sender or not beat.serving:
            return
        if beat.epoch > self.term:
            self.term, self.primary = beat.epoch, sender
            self._beats.begin()
            news.append(PrimaryChanged(beat.epoch, sender))
        interval_ns, limit_ns = self.config.heartbeat_ms * MS, self.config.sure_ms * MS // 2
        self._served_ns = now_ns
        if self._beats.has_missed(now_ns, beat.nonce, interval_ns, limit_ns):
            news.append(TimeMissed())
        if beat.space is not self._space:
            self._space = beat.space
            is_tight = beat.space is SpaceState.TIGHT
            news.append(SpaceChanged(beat.space is not SpaceState.AMPLE, is_tight, self._low(sender)))

    def _note_service(self, now_ns: int, news: list[News]) -> None:
        if self._served_ns is None:
            self._served_ns = now_ns
        is_served = now_ns - self._served_ns < self.config.unserved_ms * MS
        if is_served is not self.is_served:
            self.is_served = is_served
            news.append(ServiceChanged(is_served))

    def is_silent(self, node: int, now_ns: int) -> bool:
        return self._presence.is_silent(node, 0, now_ns)

    def readers(self) -> list[int]:
        """The nodes to ask for reading: backups that keep up, then the primary, then the other replicas."""
        ranks: list[tuple[int, int]] = []
        for node in self.config.data_servers:
            seen = self._presence.seen(node)
            keeps_up = seen is not None and seen.is_synchronized
            rank = 1 if node == self.primary else 0 if keeps_up else 2
            ranks.append((rank, node))
        return [node for _, node in sorted(ranks)]

    def _low(self, node: int) -> str:
        seen = self._presence.seen(node)
        name = seen.name if seen is not None and seen.name else f"node {node}"
        return f"the disk of {name}, which serves channel {self.config.group}, is nearly full"
