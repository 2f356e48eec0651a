"""Subscribing: from what an application asks of a topic to a subscription, and its end.

A subscription is ordered like a message: it begins at its place in the channel, and what was published
before is not for it unless it says so.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from antiphon.client.outcomes import subscription_error
from antiphon.client.scope import SessionScope
from antiphon.errors import LocalError
from antiphon.ids import U64_MAX
from antiphon.names import DestinationName, check_subscription_name
from antiphon.wire.commands import StartKind, Subscribe, Unsubscribe
from antiphon.wire.frames import DestinationOpened, SubscriptionFound

Start: TypeAlias = Literal["earliest", "latest"] | int
"""Where a new subscription begins: with what is kept, with what comes, or with a sequence number."""


class Wish:
    """What an application wants of a topic; of a queue it can want nothing of the kind."""

    def __init__(self, destination: DestinationName, durable: str | None, start: Start | None) -> None:
        if destination.kind == "queue" and durable is not None:
            raise LocalError(f"{destination} is a queue: only a subscription to a topic is durable")
        if destination.kind == "queue" and start is not None:
            raise LocalError(
                f"{destination} is a queue: it is consumed from its first message, not from a start"
            )
        if durable is not None:
            check_subscription_name(durable)
        self.is_topic = destination.kind == "topic"
        # Its subscription ends with its consumer.
        self.is_passing = self.is_topic and durable is None
        self.durable = durable
        self._start, self._number = _start(start)

    async def order(self, scope: SessionScope, opened: DestinationOpened) -> int:
        """Begin the subscription, or find it; its id."""
        item = await scope.order(
            opened.channel,
            Subscribe(
                destination=opened.destination,
                durable=self.durable is not None,
                shared=False,
                name=self.durable or "",
                client_id=scope.link.core.client_id,
                start=self._start,
                number=self._number,
            ),
        )
        error = subscription_error(item)
        if error is not None:
            raise error
        return item.sequence


def _start(start: Start | None) -> tuple[StartKind, int]:
    match start:
        case None | "latest":
            return StartKind.LATEST, 0
        case "earliest":
            return StartKind.EARLIEST, 0
        case int() if not isinstance(start, bool) and 0 <= start <= U64_MAX:
            return StartKind.NUMBER, start
    raise LocalError(f'start is "earliest", "latest" or a sequence number; it was {start!r}')


async def unsubscribe(scope: SessionScope, name: str) -> None:
    """End a durable subscription of this connection's client id."""
    check_subscription_name(name)
    core = await scope.core()
    link = scope.link
    request = link.core.find_subscription(core, name)
    found = await link.call(request, SubscriptionFound, scope.timeout)
    error = subscription_error(await scope.order(found.channel, Unsubscribe(subscription=found.subscription)))
    if error is not None:
        raise error
