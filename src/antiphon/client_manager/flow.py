"""Flow: whether more may be published in a channel, and who has to know.

A channel whose disk is nearly full takes no more publications, but whatever frees space goes on:
deliveries, acknowledgements, the ends of sessions. A channel that nobody serves takes nothing at all: what
has not left yet waits at the client, which can tell an application that it was never sent. Clients are told
before their windows are full, so that an application can see it (`producer.is_blocked`) and is told why,
instead of only waiting longer and longer.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.bus.effects import ServiceChanged, SpaceChanged
from antiphon.client_manager.connection import Connection, Outbox
from antiphon.wire.frames import FlowState


class Flow:
    """What the clients of one client manager are told of the state of its channels."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        # Why a channel takes nothing, by channel.
        self._full: dict[str, str] = {}
        self._unserved: dict[str, str] = {}

    def space_changed(self, channel: str, event: SpaceChanged, connections: Iterable[Connection]) -> None:
        """The disk of a channel has room or not; whoever has to do with it hears the news, if it is news."""
        before = self._reason(channel)
        if not event.is_low:
            self._full.pop(channel, None)
        else:
            self._full.setdefault(channel, event.text)
        self._tell_all(channel, before, connections)

    def served(self, channel: str, event: ServiceChanged, connections: Iterable[Connection]) -> None:
        """Nobody serves a channel, or somebody does again."""
        before = self._reason(channel)
        if event.is_served:
            self._unserved.pop(channel, None)
        else:
            self._unserved[channel] = orders_nothing(channel)
        self._tell_all(channel, before, connections)

    def welcome(self, connection: Connection, channel: str) -> None:
        """A client begins to have to do with a channel: it hears if it has to wait."""
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
    """What a client is told of a channel in which nothing is ordered."""
    return (
        f"channel {channel} orders nothing at the moment, most likely because too few of its nodes can be "
        "reached"
    )
