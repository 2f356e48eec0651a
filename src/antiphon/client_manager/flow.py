"""Flow: whether more may be published in a channel, and who has to know.

A channel whose disk is nearly full takes no more publications, but whatever frees space goes on:
deliveries, acknowledgements, the ends of sessions. Clients are told before their windows are full, so
that an application can see it (`producer.is_blocked`) instead of only waiting longer and longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.bus.effects import SpaceChanged
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.wire.frames import FlowState


class Flow:
    """What the clients of one client manager are told of the state of its channels."""

    __slots__ = ("_outbox", "_reasons")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._reasons: dict[str, str] = {}

    def changed(self, channel: str, event: SpaceChanged, connections: Iterable[Connection]) -> None:
        """A channel tells how it is; whoever has to do with it hears the news, if it is news."""
        if event.is_low == (channel in self._reasons):
            return
        if event.is_low:
            self._reasons[channel] = event.text
        else:
            del self._reasons[channel]
        for connection in connections:
            if channel in connection.channels:
                self._tell(connection, channel)

    def welcome(self, connection: Connection, channel: str) -> None:
        """A client begins to have to do with a channel: it hears if it has to wait."""
        connection.channels[channel] = None
        if channel in self._reasons:
            self._tell(connection, channel)

    def _tell(self, connection: Connection, channel: str) -> None:
        reason = self._reasons.get(channel)
        state = FlowState(channel=channel, blocked=reason is not None, reason=reason or "")
        self._outbox.send(connection, state)
