"""Notices: the events about a channel that a node logs.

    NTC1  Each node that can know a change tells it once: another epoch or primary, no majority, no primary, a
          member that has fallen silent or is heard again, and how this node gets its own copy. All nodes see
          another primary; the primary itself publishes it.
    NTC2  Members are named. An event that calls for an operator is a warning, a recovery is not.
    NTC3  A node whose own clock or process stood still does not call others silent for that time.

Nothing depends on notices. `standing` tells the present state of a channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.presence import PresenceKeeper
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.channel_parts import ChannelParts
from antiphon.events import (
    CHANNEL_SERVED,
    CHANNEL_UNSERVED,
    EPOCH_BEGAN,
    MAJORITY_LOST,
    MAJORITY_REGAINED,
    NODE_DOWN,
    NODE_RECOVERED,
    NODE_UP,
    PRIMARY_MOVED,
    REPLICA_JOINED,
    REPLICA_JOINING,
    LoggedEvent,
)

_NS_PER_S: Final = 1_000_000_000


class Notice(NamedTuple):
    event: LoggedEvent
    # Whether the event is published, and not only written to the file of this node.
    is_public: bool = True


class ChannelNotices:
    """One channel, as one node sees it; `look` is called several times a second."""

    def __init__(self, node: int, names: Mapping[int, str]) -> None:
        self._node = node
        self._names = names
        self._began_ns: int | None = None
        # Since when this node has looked without a pause.
        self._awake_ns = 0
        self._looked_ns = 0
        self._epoch = 0
        self._is_joining = False
        self._term = 0
        self._primary = 0
        self._is_served = True
        self._has_majority = True
        # Members that are silent, and when they were last heard.
        self._silent: dict[int, int] = {}
        # How far the order on the disk went when this run began; 0 once that has been told.
        self._found = 0

    def look(self, now_ns: int, parts: ChannelParts) -> list[Notice]:
        """The notices of the changes since the last look."""
        replica, listener = parts.replica, parts.listener
        if self._began_ns is None:
            self._began_ns = self._awake_ns = self._looked_ns = now_ns
            self._found = replica.last if replica is not None else 0
        config = replica.config if replica is not None else parts.producer.config
        if now_ns - self._looked_ns >= config.suspicion_ms * MS:
            self._awake_ns = now_ns
        self._looked_ns = now_ns
        out: list[Notice] = []
        if replica is not None:
            if replica.presence is not None:
                self._look_for_silent(now_ns, config, replica.presence, out)
            self._note_joining(replica.is_joining or replica.is_amnesiac, out)
            if parts.is_ready:
                if len(config.nodes) > 1:
                    self._note_epoch(replica, out)
                    self._note_primary(replica.term, replica.primary, out)
                self._note_caught_up(replica.applied, out)
        elif listener is not None:
            self._note_primary(listener.term, listener.primary, out)
            self._note_service(listener.is_served, config, out)
        return out

    # -- who serves ----------------------------------------------------------------------------------

    def _note_primary(self, term: int, primary: int, out: list[Notice]) -> None:
        if not primary or term <= self._term:
            return
        former, self._primary, self._term = self._primary, primary, term
        words = ""
        if former == primary:
            words = " again"
        elif former:
            words = f" now, before by {self._name(former)}"
        moved = PRIMARY_MOVED(
            member=primary, words=words, former=self._name(former) if former else "", term=term
        )
        out.append(Notice(moved, is_public=primary == self._node))

    def _note_service(self, is_served: bool, config: GroupConfig, out: list[Notice]) -> None:
        """A client manager hears no primary any more; at the start it has not heard one yet."""
        if is_served is self._is_served or not self._primary:
            return
        self._is_served = is_served
        if not is_served:
            unserved = CHANNEL_UNSERVED(seconds=config.unserved_ms / 1000, member=self._primary)
            out.append(Notice(unserved))
        elif not out:
            # The same primary, in the same term: it was not heard for a while.
            out.append(Notice(CHANNEL_SERVED(member=self._primary)))

    def _note_caught_up(self, applied: int, out: list[Notice]) -> None:
        """The first time that this node serves or keeps up (not told of a disk that was empty)."""
        found, self._found = self._found, 0
        if found:
            out.append(Notice(NODE_RECOVERED(found=found, applied=applied)))

    def _note_epoch(self, replica: Replica, out: list[Notice]) -> None:
        """The node that leads an epoch tells of it."""
        if replica.state is State.LEADING and replica.epoch != self._epoch:
            self._epoch = replica.epoch
            out.append(Notice(EPOCH_BEGAN(epoch=replica.epoch, member=self._node)))

    def _note_joining(self, is_joining: bool, out: list[Notice]) -> None:
        if is_joining is not self._is_joining:
            self._is_joining = is_joining
            out.append(Notice(REPLICA_JOINING() if is_joining else REPLICA_JOINED()))

    # -- who is silent -------------------------------------------------------------------------------

    def _look_for_silent(
        self, now_ns: int, config: GroupConfig, presence: PresenceKeeper, out: list[Notice]
    ) -> None:
        assert self._began_ns is not None, "a look begins with noting the time"
        for node in config.nodes:
            if node == self._node:
                continue
            seen = presence.seen(node)
            if seen is None:
                # The others may be started after this node, and take their time.
                wait_ms = max(config.silence_ms, config.leaderless_ms)
                is_silent = now_ns - max(self._began_ns, self._awake_ns) >= wait_ms * MS
            else:
                is_silent = presence.is_silent(node, self._awake_ns, now_ns)
            if is_silent and node not in self._silent:
                self._silent[node] = self._began_ns if seen is None else seen.heard_at
                seconds = (now_ns - self._silent[node]) / _NS_PER_S
                out.append(Notice(NODE_DOWN(member=node, seconds=seconds)))
            elif not is_silent and node in self._silent:
                seconds = (now_ns - self._silent.pop(node)) / _NS_PER_S
                out.append(Notice(NODE_UP(member=node, seconds=seconds)))
        for node in [node for node in self._silent if node not in config.nodes]:
            del self._silent[node]
        silent = [node for node in config.commit_servers if node in self._silent]
        has_majority = len(config.commit_servers) - len(silent) >= config.commit_quantity
        if self._has_majority and not has_majority:
            needed = f"{config.commit_quantity} of its {len(config.commit_servers)} nodes"
            out.append(Notice(MAJORITY_LOST(members=self._join(silent), needed=needed)))
        elif has_majority and not self._has_majority:
            out.append(Notice(MAJORITY_REGAINED()))
        self._has_majority = has_majority

    def _name(self, node: int) -> str:
        return self._names.get(node, f"node {node}")

    def _join(self, nodes: Iterable[int]) -> str:
        *first, last = map(self._name, nodes)
        return f"{', '.join(first)} and {last}" if first else last
