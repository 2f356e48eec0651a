"""Listener: what a node that keeps nothing of a channel knows of it, and how the others know of that node.

Where it sits
    HEARTBEAT, PRESENCE  ->  LISTENER  ->  client manager;   LISTENER  ->  PRESENCE  ->  all

What it promises
    P1  The primary is who leads the highest epoch heard of, once it says that it serves. What an older one
        says changes nothing.
    P2  A node that lives is heard (`PresenceKeeper`): who is silent for long is fenced.
    P3  News is told once: another primary, more or less room on its disk, another load; that nobody serves
        the channel, for longer than a change of primary takes, and that somebody does again.
    P4  A node whose clock stood still learns of it with the first heartbeats of the primary that it hears
        then. They come in equal intervals, and have numbers: they are a clock that goes on.

What it leaves to others
    Everything that must be true rests on the order. A listener may be wrong for a while, and whoever goes by
    it says again what was not answered.
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
    """Holds the heartbeats of one primary against the clock of this node.

    How far our clock is ahead of the beats grows when beats are late, and shrinks when the clock stood still.
    Clocks differ in their rates: so what it was is believed less and less as our own time passes.
    """

    __slots__ = ("_ahead_ns", "_heard_ns", "_nonce")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Another primary counts anew."""
        self._nonce = 0
        self._ahead_ns = 0
        self._heard_ns = 0

    def has_missed(self, now_ns: int, nonce: int, interval_ns: int, limit_ns: int) -> bool:
        """A heartbeat came: has as much time passed that our clock did not see? That is told once."""
        if nonce <= self._nonce:
            return False
        ahead_ns = now_ns - nonce * interval_ns
        before_ns = ahead_ns
        if self._nonce:
            before_ns = max(ahead_ns, self._ahead_ns - (now_ns - self._heard_ns) // 2)
        has_missed = before_ns - ahead_ns >= limit_ns
        self._nonce, self._heard_ns = nonce, now_ns
        # What is not enough to be told adds up.
        self._ahead_ns = ahead_ns if has_missed else before_ns
        return has_missed


class Listener:
    """One channel, as a client manager hears it."""

    def __init__(self, config: GroupConfig, node: int, name: str = "") -> None:
        self.config = config
        self.term = 0
        self.primary = 0
        self._presence = PresenceKeeper(config, node, name, ROLE)
        self._space = SpaceState.AMPLE
        self._beats = BeatClock()
        # When somebody last said to serve; before that, when we began to listen.
        self._served_ns: int | None = None
        self.is_served = True
        # None until the primary has told it, be it that it keeps nothing.
        self._load: int | None = None

    def reconfigure(self, config: GroupConfig) -> None:
        """The channel has another configuration."""
        self.config = config
        self._presence.reconfigure(config)

    def next_deadline_ns(self) -> int | None:
        """When it is time to say that we are there."""
        return self._presence.next_deadline_ns()

    def step(self, now_ns: int, events: Sequence[Event]) -> list[News]:
        """Take what was heard; returns what is news."""
        news: list[News] = []
        for event in events:
            if type(event) is Received and type(event.message) is m.Heartbeat:
                self._on_heartbeat(now_ns, event.sender, event.message, news)
        self._note_service(now_ns, news)
        news += [said for said in self._presence.step(now_ns, events) if isinstance(said, Multicast)]
        seen = self._presence.seen(self.primary)
        # Who has no role has only been heard, and not said yet how it stands.
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
        """Has this node not been heard of for so long that it is taken for gone?"""
        return self._presence.is_silent(node, 0, now_ns)

    def readers(self) -> list[int]:
        """Who can be asked to read: backups that keep up, then the primary, then the other replicas."""
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
