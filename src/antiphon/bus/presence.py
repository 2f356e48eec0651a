"""Presence keeper: sends the presence of this node, and remembers when the others were last heard.

Where it sits
    replica, or a client manager without one  ->  PRESENCE  ->  all;   PRESENCE  ->  sequencer, commit server

What it promises
    PRS1  A node sends its presence every `presence_ms`, and sooner when its role changes or it has caught up
          or fallen behind. When it sends or receives a heartbeat in the last third of that time, the
          presence leaves in the same step: one wake-up serves both.
    PRS2  Presence is about liveness and drift only. No vote, no number and no confirmation rests on it.
    PRS3  A group of one node sends and receives none.

What it leaves to others
    The sequencer fences the producer of a silent node, as an entry of the order. A time-out decides nothing.

The owner of a keeper sets the standing of the node (`role`, `applied`, `is_synchronized`, `load`), and either
steps the keeper with all received messages, or calls `hear` and hands on the presences.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.bus import messages as m
from antiphon.bus.effects import Multicast, Received, RoleEffect, RoleEvent
from antiphon.bus.group import MS, GroupConfig

MISSED_MAX = 3
"""After so many missing presences a node is no longer counted on; it may well be alive."""


class Seen:
    __slots__ = (
        *("applied", "config_digest", "config_id", "disk_id", "heard_at", "is_synchronized", "load", "name"),
        "role",
    )

    def __init__(self, heard_at: int) -> None:
        self.heard_at = heard_at
        self.name = ""
        self.role = ""
        self.applied = 0
        self.is_synchronized = False
        self.load = 0
        self.config_id = 0
        self.config_digest = b""
        self.disk_id = b""


class PresenceKeeper:
    def __init__(self, config: GroupConfig, node: int, name: str = "", role: str = "") -> None:
        self._node = node
        self._name = name
        # The standing of this node, kept true by the owner.
        self.role = role
        self.applied = 0
        self.is_synchronized = False
        self.load = 0
        self._seen: dict[int, Seen] = {}
        self._said: tuple[str, bool] | None = None
        self._said_at = 0
        self.reconfigure(config)

    def reconfigure(self, config: GroupConfig) -> None:
        self._config = config
        self._digest = config.digest
        self._is_alone = config.nodes == (self._node,)
        self._seen = {node: seen for node, seen in self._seen.items() if node in config.nodes}
        self._said = None

    # -- what others may ask -----------------------------------------------------------------------

    def seen(self, node: int) -> Seen | None:
        return self._seen.get(node)

    def is_silent(self, node: int, since_ns: int, now_ns: int, silence_ms: int | None = None) -> bool:
        """Whether nothing was heard of this node for `silence_ms`, by default that of the group.

        The silence begins at `since_ns` at the earliest.
        """
        seen = self._seen.get(node)
        heard_at = since_ns if seen is None else max(since_ns, seen.heard_at)
        silence_ms = self._config.silence_ms if silence_ms is None else silence_ms
        return now_ns - heard_at >= silence_ms * MS

    def keeps_up(self, node: int, now_ns: int) -> bool:
        """Whether this node was heard just now, and said that it keeps up."""
        seen = self._seen.get(node)
        if seen is None or not seen.is_synchronized:
            return False
        return now_ns - seen.heard_at < MISSED_MAX * self._config.presence_ms * MS

    @property
    def applied_max(self) -> int:
        return max([seen.applied for seen in self._seen.values()], default=0)

    # -- steps -------------------------------------------------------------------------------------

    def hear(self, now_ns: int, sender: int) -> None:
        seen = self._seen.get(sender)
        if seen is not None:
            seen.heard_at = now_ns
        elif sender != self._node and sender in self._config.nodes:
            self._seen[sender] = Seen(now_ns)

    def next_deadline_ns(self) -> int | None:
        if self._is_alone:
            return None
        interval_ms = self._config.presence_ms
        if self._said != (self.role, self.is_synchronized):
            # A change is sent at once, but not more often than a heartbeat.
            interval_ms = min(interval_ms, self._config.heartbeat_ms)
        return self._said_at + interval_ms * MS

    def step(self, now_ns: int, events: Sequence[RoleEvent]) -> list[RoleEffect]:
        early_ns = 0
        for event in events:
            if type(event) is Received:
                self.hear(now_ns, event.sender)
                if type(event.message) is m.Presence:
                    self._note(event.sender, event.message, event.disk_id)
                elif type(event.message) is m.Heartbeat:
                    early_ns = self._config.presence_ms * MS // 3
        deadline = self.next_deadline_ns()
        if deadline is None or now_ns < deadline - early_ns:
            return []
        self._said, self._said_at = (self.role, self.is_synchronized), now_ns
        presence = m.Presence(
            self._name,
            self.role,
            self.applied,
            self.is_synchronized,
            self._digest,
            self.load,
            self._config.config_id,
        )
        return [Multicast(presence)]

    def _note(self, sender: int, presence: m.Presence, disk_id: bytes) -> None:
        seen = self._seen.get(sender)
        if seen is not None:
            seen.name = presence.name
            seen.role = presence.role
            seen.applied = presence.applied
            seen.is_synchronized = presence.synchronized
            seen.load = presence.load
            seen.config_id = presence.config_id
            seen.config_digest = presence.config_digest
            seen.disk_id = disk_id
