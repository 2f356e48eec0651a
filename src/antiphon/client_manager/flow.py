"""Flow: whether more may be published in a channel, and the clients that have to know.

A channel whose disk is nearly full takes no more publications; deliveries, acknowledgements and ends of
sessions go on, and free space. A channel without a primary takes nothing: unsent commands wait at the client,
which can tell its application that they were never sent. Clients are told before their windows are full, so
that an application can see it (`producer.is_blocked`) with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.bus.effects import ServiceChanged, SpaceChanged
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.wire.frames import FlowState


class Flow:
    """The state of the channels, as the clients of one client manager are told it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # The reason why a channel takes nothing, by channel.
        self._full: dict[str, str] = {}
        self._unserved: dict[str, str] = {}

    def space_changed(self, channel: str, event: SpaceChanged, connections: Iterable[Connection]) -> None:
        """The disk of a channel has room or not; its clients are told of a change."""
        before = self._reason(channel)
        if not event.is_low:
            self._full.pop(channel, None)
        else:
            self._full.setdefault(channel, event.text)
        self._tell_all(channel, before, connections)

    def served(self, channel: str, event: ServiceChanged, connections: Iterable[Connection]) -> None:
        """A channel has lost its primary, or has one again."""
        before = self._reason(channel)
        if event.is_served:
            self._unserved.pop(channel, None)
        else:
            self._unserved[channel] = orders_nothing(channel)
        self._tell_all(channel, before, connections)

    def welcome(self, connection: Connection, channel: str) -> None:
        """A client begins to use a channel: it is told if it has to wait."""
        connection.channels[channel] = None
        if self._reason(channel):
            self._tell(connection, channel)

    def _reason(self, channel: str) -> str:
        return self._unserved.get(channel) or self._full.get(channel) or ""

    def _tell_all(self, channel: str, before: str, connections: Iterable[Connection]) -> None:
        if self._reason(channel) != before:
            for connection in connections:
                if channel in connection.channels:
                    self._tell(connection, channel)

    def _tell(self, connection: Connection, channel: str) -> None:
        reason = self._reason(channel)
        self._outbox.send(connection, FlowState(channel=channel, blocked=bool(reason), reason=reason))


def orders_nothing(channel: str) -> str:
    """The text for clients of a channel in which nothing is ordered."""
    return (
        f"channel {channel} orders nothing at the moment, most likely because too few of its nodes can be "
        "reached"
    )
