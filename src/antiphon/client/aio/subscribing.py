"""Subscribing: the subscription that a consumer of a topic asks for, and how it is begun, found and ended."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from antiphon.client.aio.scope import SessionScope
from antiphon.client.core.outcomes import subscription_error
from antiphon.errors import LocalError, SubscriptionError, SubscriptionInUse
from antiphon.ids import U64_MAX
from antiphon.names import DestinationName, check_subscription_name
from antiphon.wire.commands import OutcomeCode, StartKind, Subscribe, Unsubscribe
from antiphon.wire.frames import DestinationOpened, SubscriptionFound

Start: TypeAlias = Literal["earliest", "latest"] | int
"""Where a new subscription begins: with the kept messages, with new ones, or with a sequence number."""

ATTEMPTS = 3
"""How often a subscription is asked for while others begin and end it."""


class SubscriptionWish:
    """The wanted subscription of a topic; a queue has none."""

    def __init__(
        self,
        destination: DestinationName,
        durable: str | None = None,
        shared: str | bool = False,
        start: Start | None = None,
        selector: str = "",
        no_local: bool = False,
    ) -> None:
        if destination.kind == "queue" and durable is not None:
            raise LocalError(f"{destination} is a queue: only a subscription to a topic is durable")
        if destination.kind == "queue" and shared is not False:
            raise LocalError(f"{destination} is a queue: its consumers share it in any case")
        if destination.kind == "queue" and start is not None:
            raise LocalError(
                f"{destination} is a queue: it is consumed from its first message, not from a start"
            )
        if destination.kind == "queue" and no_local:
            raise LocalError(f"{destination} is a queue: only a subscription to a topic is no_local")
        if shared is not False and no_local:
            raise LocalError("a shared subscription has the messages of all connections: it is not no_local")
        self.is_topic = destination.kind == "topic"
        self.is_durable = durable is not None
        self.is_shared = shared is not False
        self.name = _name(durable, shared)
        # The subscription ends with its consumer, or with the last of those that share it.
        self.is_passing = self.is_topic and not self.is_durable
        self.selector = selector
        self.no_local = bool(no_local)
        self.options: tuple[Any, ...] = (durable, shared, start, selector, no_local)
        self._start, self._number = _start(start)

    async def order(self, scope: SessionScope, opened: DestinationOpened) -> int:
        """Begin the subscription, or find it; its id.

        A durable subscription with another topic or selector begins anew, unless a consumer has it.
        """
        client_id = scope.link.core.client_id
        if self.is_durable and not self.is_shared and not client_id:
            raise LocalError(
                f"the durable subscription {self.name!r} belongs to a client id: connect(…, client_id=…), "
                "or shared=True"
            )
        if self.name:
            await self._end_elsewhere(scope, opened)
        subscribe = Subscribe(
            destination=opened.destination,
            durable=self.is_durable,
            shared=self.is_shared,
            name=self.name,
            client_id=client_id,
            start=self._start,
            number=self._number,
            selector=self.selector,
            no_local=self.no_local,
        )
        item = await scope.order(opened.channel, subscribe)
        for _ in range(ATTEMPTS):
            if item.code != OutcomeCode.DIFFERS or not self.is_durable:
                break
            try:
                await end_subscription(scope, self.name)
            except SubscriptionInUse:
                raise
            except SubscriptionError:
                # Another consumer was faster: perhaps it wants the same.
                pass
            item = await scope.order(opened.channel, subscribe)
        error = subscription_error(item)
        if error is not None:
            raise error
        return item.sequence

    async def _end_elsewhere(self, scope: SessionScope, opened: DestinationOpened) -> None:
        """End a subscription of this name to a topic of another channel, unless it has consumers."""
        try:
            found = await _find(scope, self.name, durable=self.is_durable)
        except SubscriptionError:
            # There is none; or a channel does not answer, and is no reason to refuse the others.
            return
        if found.channel == opened.channel:
            return
        if not self.is_durable:
            raise SubscriptionInUse(f"the shared subscription {self.name!r} is one to another topic")
        await end_subscription(scope, self.name)


async def _find(
    scope: SessionScope, name: str, *, durable: bool = True, ends: bool = False
) -> SubscriptionFound:
    core, link = await scope.core(), scope.link
    request = link.core.find_subscription(core, name, durable=durable, ends=ends)
    return await link.call(request, SubscriptionFound, scope.timeout)


async def end_subscription(scope: SessionScope, name: str) -> None:
    """End a durable subscription that no consumer has."""
    await scope.end_stays()
    found = await _find(scope, name, ends=True)
    ended = await scope.order(found.channel, Unsubscribe(subscription=found.subscription))
    error = subscription_error(ended)
    if error is not None:
        raise error


def _name(durable: str | None, shared: str | bool) -> str:
    if not isinstance(shared, str | bool):
        raise LocalError(f"shared is the name of a subscription, or True for a durable one: {shared!r}")
    if durable is not None and isinstance(shared, str):
        raise LocalError(
            f"a subscription has one name: durable={durable!r}, shared=True for one that stays, "
            f"or shared={shared!r} for one that ends with its last consumer"
        )
    if shared is True and durable is None:
        raise LocalError(
            "a shared subscription has a name: shared='workers', or durable='audit', shared=True"
        )
    name = durable if durable is not None else shared
    if isinstance(name, bool):
        return ""
    check_subscription_name(name)
    return name


def _start(start: Start | None) -> tuple[StartKind, int]:
    match start:
        case None | "latest":
            return StartKind.LATEST, 0
        case "earliest":
            return StartKind.EARLIEST, 0
        case int() if not isinstance(start, bool) and 0 <= start <= U64_MAX:
            return StartKind.NUMBER, start
    raise LocalError(f'start is "earliest", "latest" or a sequence number; it was {start!r}')
