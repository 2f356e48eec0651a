"""Client id service: a client id belongs to one connection of the cluster, by a claim in the system channel.

Where it sits
    a client's Hello  ->  CLIENT ID SERVICE  ->  CLAIM_ID in the system channel  ->  Welcome

What it promises
    CID1  A new connection with a client id is let in when its claim is applied. Of two, at any client
          managers, the first in the order is let in, and the other is refused.
    CID2  A connection that comes back is let in at once, so that it can use the other channels while the
          system channel orders nothing. If another connection has its client id by then, it is closed.
    CID3  Every claim is followed by a release when the connection is over: at once after its parting, after a
          while if it is lost. A new connection waits for that while instead of being refused.
    CID5  A socket whose client said Goodbye is closed when the release is applied: from then on no client
          manager refuses another connection because of this one.
    CID4  When a fence stands behind this node's run, its connections claim once more: the channel has taken
          them for lost.

What it leaves to others
    The fold gives out client ids. The primary ends the claims of lost connections, also of those whose client
    manager is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from antiphon.client_manager.connection import Connection
from antiphon.client_manager.flow import orders_nothing
from antiphon.client_manager.ordering import Ordering
from antiphon.client_manager.session import SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.errors import ClientIdInUse
from antiphon.wire.commands import ClaimClientId, CommandKind, Outcome, OutcomeCode, ReleaseClientId

UNAVAILABLE = "client_id.unavailable"

_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Wait:
    """A connection that waits for its client id."""

    connection: Connection
    until_ns: int = 0
    """When the connection is refused; 0 until this step ends."""
    again_ns: int = 0
    """When to claim once more, after a refusal; 0: an answer is awaited, or this step goes on."""
    refusal: str = ""
    """The last refusal: a lost connection has the client id."""


class ClientIdService:
    """The claims of one client manager; `admit` and `refuse` end the wait of a connection."""

    def __init__(
        self,
        channels: Sequence[str],
        settings: ClientManagerSettings,
        ordering: Ordering,
        admit: Callable[[Connection], None],
        refuse: Callable[[Connection, str, str], None],
        close: Callable[[Connection], None],
    ) -> None:
        self._system = min(channels)
        self._ordering = ordering
        self._admit = admit
        self._refuse = refuse
        self._close = close
        self._lane = SessionLane(self._system, None)
        self._wait_ns = settings.directory_wait_ms * _NS_PER_MS
        self._again_ns = settings.request_interval_ms * _NS_PER_MS
        # By `conn`: the connections that have claimed, and those of them that wait.
        self._claimed: dict[int, Connection] = {}
        self._waiting: dict[int, Wait] = {}
        # Those that said Goodbye, and wait for their release (CID5).
        self._parting: dict[int, Connection] = {}

    def claim(self, connection: Connection, *, is_back: bool) -> None:
        """Claim the client id of a connection, and let it in: at once if it comes back (CID2)."""
        self._claimed[connection.conn] = connection
        if is_back:
            self._admit(connection)
        else:
            self._waiting[connection.conn] = Wait(connection)
        self._order(connection)

    def _order(self, connection: Connection) -> None:
        claim = ClaimClientId(
            client_id=connection.client_id, connection=connection.id, generation=connection.generation
        )
        self._ordering.order(self._lane, claim, detail=connection)

    def settled(self, connection: Connection, kind: int, outcomes: Sequence[Outcome]) -> None:
        """A claim or a release was applied, except for `outcomes`."""
        if kind == CommandKind.RELEASE_ID and self._parting.pop(connection.conn, None) is not None:
            self._close(connection)
        if kind != CommandKind.CLAIM_ID or connection.conn not in self._claimed:
            return
        outcome = outcomes[0] if outcomes else None
        if outcome is None:
            self._waiting.pop(connection.conn, None)
            if not connection.is_welcome:
                self._admit(connection)
        elif outcome.code == OutcomeCode.EXISTS and outcome.original:
            # The connection that has it may come back; its time is short (CID3).
            wait = self._waiting.setdefault(connection.conn, Wait(connection))
            wait.refusal = outcome.text
        elif outcome.code == OutcomeCode.EXISTS:
            self._turn_away(connection, ClientIdInUse.code, outcome.text)
        elif outcome.code == OutcomeCode.STALE:
            # The client goes on elsewhere, and has left this socket.
            del self._claimed[connection.conn]
            self._waiting.pop(connection.conn, None)
        else:
            self._turn_away(connection, UNAVAILABLE, outcome.text)

    def _turn_away(self, connection: Connection, code: str, text: str) -> None:
        del self._claimed[connection.conn]
        self._waiting.pop(connection.conn, None)
        self._refuse(connection, code, text)

    def parts(self, connection: Connection) -> bool:
        """The client said Goodbye; must its socket stay until the client id is free (CID5)?"""
        if connection.conn not in self._claimed:
            return False
        self._parting[connection.conn] = connection
        return True

    def over(self, connection: Connection, *, is_lost: bool) -> None:
        """The connection is over; a client that `is_lost` may come back, if it knows who it is (CID3)."""
        self._waiting.pop(connection.conn, None)
        if self._claimed.pop(connection.conn, None) is not None:
            release = ReleaseClientId(
                client_id=connection.client_id,
                connection=connection.id,
                generation=connection.generation,
                is_lost=is_lost and connection.is_welcome,
            )
            self._ordering.order(self._lane, release, detail=connection)

    def run_over(self, channel: str) -> None:
        """The system channel has taken this node's connections for lost (CID4)."""
        if channel == self._system:
            for connection in self._claimed.values():
                self._order(connection)

    def next_deadline_ns(self) -> int | None:
        return min((_next_ns(wait) for wait in self._waiting.values()), default=None)

    def keep_time(self, now_ns: int) -> None:
        for wait in list(self._waiting.values()):
            wait.until_ns = wait.until_ns or now_ns + self._wait_ns
            if now_ns >= wait.until_ns:
                self._give_up(wait)
            elif wait.refusal and not wait.again_ns:
                wait.again_ns = now_ns + self._again_ns
            elif wait.again_ns and now_ns >= wait.again_ns:
                wait.again_ns, wait.refusal = 0, ""
                self._order(wait.connection)

    def _give_up(self, wait: Wait) -> None:
        connection = wait.connection
        if wait.refusal:
            self._turn_away(connection, ClientIdInUse.code, wait.refusal)
        elif connection.is_welcome:
            del self._waiting[connection.conn]
        else:
            why = orders_nothing(self._system)
            text = f"whether the client id {connection.client_id!r} is free could not be asked in time: {why}"
            # The claim may be ordered all the same: a release follows.
            self.over(connection, is_lost=False)
            self._refuse(connection, UNAVAILABLE, text)


def _next_ns(wait: Wait) -> int:
    return min(wait.until_ns, wait.again_ns) if wait.again_ns else wait.until_ns
