"""A session lasts while its client is attached, and for its expiry time longer.

    - a session does not expire while a client manager has its client, unless that client manager was taken
      for dead for as long as a session may be without a client
    - a session whose client is gone is kept for that long, by the time of the world
    - once nothing fails any more, the session goes

Attachment is seen at the client ports, by generation. A client that resumes has a higher generation; channels
that the resume does not name hear of the generation with the client's first command.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.bus.messages import Entry
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.sessions import NOBODY
from antiphon.sim.checkers.watch import Checker
from antiphon.sim.world import CLOCK_RATE_MAX, MILLISECOND_NS, World
from antiphon.wire.commands import CommandKind, ExpireSession, iterate_commands

EXPIRY_SHORT_MS = 1_000
"""A run waits at its end for expiries up to this."""

Attachment = tuple[int, int]
"""A session and its generation."""


class Attachments(Checker):
    """Which client manager has the client of each session, as the client managers know."""

    promise = "I29 session"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.node_of: dict[Attachment, int] = {}
        self.left_ns: dict[Attachment, int] = {}

    def on_attached(self, node: int, session: int, generation: int) -> None:
        self.node_of[session, generation] = node
        self.left_ns.pop((session, generation), None)

    def on_left(self, node: int, session: int, generation: int) -> None:
        if self.node_of.get((session, generation)) == node:
            del self.node_of[session, generation]
            self.left_ns[session, generation] = self.world.now_ns


@dataclass(slots=True)
class _Known:
    """A session of the channel: since when it has this generation, and since when it has no owner."""

    generation: int
    since_ns: int
    ownerless_ns: int | None = None


class Expiries(Checker):
    """The sessions of one channel, and when they expire."""

    promise = "I29 session"

    def __init__(self, world: World, attachments: Attachments, expiry_ms: int) -> None:
        super().__init__(world)
        self._attachments = attachments
        self._expiry_ms = expiry_ms
        self._folded = 0
        self._known: dict[int, _Known] = {}
        # Sessions that the entry at hand proposes to end.
        self._ending: list[int] = []

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded:
            return
        self._ending = []
        for header, body, _ in iterate_commands(payload) if payload is not None else ():
            if header.kind == CommandKind.SESSION_EXPIRE:
                self._ending.append(ExpireSession.decode(body).session)
            elif header.kind == CommandKind.SESSION_CLOSE and header.session in self._ending:
                self._ending.remove(header.session)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        if entry.last <= self._folded:
            return
        self._folded = entry.last
        for session in self._ending:
            known = self._known.get(session)
            if known is not None and state.sessions.get(session) is None:
                self.world.probe("session.expired")
                self._check(session, known)
        before, self._known = self._known, {}
        for row in state.sessions:
            known = before.get(row.id)
            if known is None or known.generation != row.generation:
                known = _Known(row.generation, self.world.now_ns)
            if row.owner != NOBODY:
                known.ownerless_ns = None
            elif known.ownerless_ns is None:
                known.ownerless_ns = self.world.now_ns
            self._known[row.id] = known

    def _check(self, session: int, known: _Known) -> None:
        key = (session, known.generation)
        node = self._attachments.node_of.get(key)
        if node is not None and known.ownerless_ns is None:
            self.fail(f"session {session:#x} expires while its client is attached at node {node}")
        # A client that left before it was told that its session is open was never there.
        left_ns = self._attachments.left_ns.get(key, 0 if node is None else None)
        starts = [at_ns for at_ns in (left_ns, known.ownerless_ns) if at_ns is not None]
        since_ns = max(min(starts, default=0), known.since_ns)
        away_ns = self.world.now_ns - since_ns
        if away_ns * CLOCK_RATE_MAX < self._expiry_ms * MILLISECOND_NS:
            self.fail(
                f"session {session:#x} expires after {away_ns / MILLISECOND_NS:.1f} ms without its client; "
                f"that may last {self._expiry_ms} ms"
            )

    def what_is_open(self, state: ChannelState) -> list[str]:
        """Sessions without a client that are still there though they should be gone."""
        if self._expiry_ms > EXPIRY_SHORT_MS:
            return []
        return [
            f"session {row.id:#x} has no client"
            for row in state.sessions
            if (row.id, row.generation) not in self._attachments.node_of
        ]
