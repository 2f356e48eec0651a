"""Subscribing: the subscription that a consumer of a topic asks for, and how it is begun, found and ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from antiphon.client.aio.scope import SessionScope
from antiphon.client.core.outcomes import subscription_error
from antiphon.errors import (
    InvalidName,
    LocalError,
    SubscriptionError,
    SubscriptionInUse,
    SubscriptionUnavailable,
)
from antiphon.ids import U64_MAX
from antiphon.names import (
    DestinationName,
    Match,
    check_subscription_name,
    family_name,
    parse_destination,
    pattern_of,
    shown_name,
)
from antiphon.selectors.name_patterns import compile_pattern
from antiphon.wire.commands import OutcomeCode, StartKind, Subscribe, Unsubscribe
from antiphon.wire.frames import DestinationOpened, SubscriptionFound

Start: TypeAlias = Literal["earliest", "latest"] | int | Mapping[str, int]
"""Where a new subscription begins: with the kept messages, with new ones, or with a sequence number; of a
spanning topic, with one for each channel."""

ATTEMPTS = 3
"""How often a subscription is asked for while others begin and end it."""


def consumed_name(destination: str, match: Match | None) -> DestinationName:
    """What a consumer is of: a destination, or the topics that match a pattern; raises LocalError."""
    if match is None:
        name = parse_destination(destination)
        if name.is_family:
            raise InvalidName(f"{destination}: topics that match a pattern are asked for with match='glob'")
        return name
    family = family_name(match, destination)
    compile_pattern(*pattern_of(family))
    return parse_destination(family)


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
        _check_start(start)
        self._start = start
        self._topic = str(destination)

    async def order(self, scope: SessionScope, opened: DestinationOpened, *, is_part: bool = False) -> int:
        """Begin the subscription, or its part in one channel, or find it; its id.

        A durable subscription with another topic or selector begins anew, unless a consumer has it.
        """
        start, number = self._start_in(opened.channel, is_part)
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
            start=start,
            number=number,
            selector=self.selector,
            no_local=self.no_local,
        )
        item = await scope.order(opened.channel, subscribe)
        for _ in range(ATTEMPTS):
            if item.code != OutcomeCode.DIFFERS or not self.is_durable:
                break
            await self._end_other(scope, opened.channel)
            item = await scope.order(opened.channel, subscribe)
        error = subscription_error(item)
        if error is not None:
            raise error
        return item.sequence

    def _start_in(self, channel: str, is_part: bool) -> tuple[StartKind, int]:
        """Where the subscription begins in this channel."""
        start, shown = self._start, shown_name(self._topic)
        if isinstance(start, Mapping):
            if channel not in start:
                raise LocalError(f"start has no sequence number for channel {channel} of {shown}")
            return StartKind.NUMBER, start[channel]
        if is_part and isinstance(start, int):
            raise LocalError(
                f"{shown} has several channels, and a sequence number is one of a channel: start has "
                f'one for each, {{"{channel}": {start}, …}}'
            )
        match start:
            case None | "latest":
                return StartKind.LATEST, 0
            case "earliest":
                return StartKind.EARLIEST, 0
        return StartKind.NUMBER, start

    async def _end_elsewhere(self, scope: SessionScope, opened: DestinationOpened) -> None:
        """End a subscription of this name to a topic of another channel, unless it has consumers."""
        try:
            found = await _find(scope, self.name, durable=self.is_durable)
        except SubscriptionError:
            # There is none; or a channel does not answer, and is no reason to refuse the others.
            return
        if found.channel == opened.channel or found.topic == self._topic:
            return
        if not self.is_durable:
            raise SubscriptionInUse(f"the shared subscription {self.name!r} is one to another topic")
        await self._end_other(scope, found.channel)

    async def _end_other(self, scope: SessionScope, channel: str) -> None:
        """End another subscription that has the name in a channel; of one to this topic only that part."""
        try:
            await scope.end_stays()
            first = await _find(scope, self.name, ends=True, channel=channel)
            await _end_parts(scope, self.name, first, is_whole=first.topic != self._topic)
        except SubscriptionInUse:
            raise
        except SubscriptionError:
            # Another consumer was faster: perhaps it wants the same.
            pass


async def _find(
    scope: SessionScope, name: str, *, durable: bool = True, ends: bool = False, channel: str = ""
) -> SubscriptionFound:
    core, link = await scope.core(), scope.link
    request = link.core.find_subscription(core, name, durable=durable, ends=ends, channel=channel)
    return await link.call(request, SubscriptionFound, scope.timeout)


async def end_subscription(scope: SessionScope, name: str) -> None:
    """End a durable subscription that no consumer has."""
    await scope.end_stays()
    await _end_parts(scope, name, await _find(scope, name, ends=True), is_whole=True)


async def _end_parts(scope: SessionScope, name: str, first: SubscriptionFound, *, is_whole: bool) -> None:
    """End a durable subscription, or only the part that was found, if no consumer has a part of it.

    A part that an earlier call has ended is passed over.
    """
    parts = [first]
    for channel in first.channels if is_whole else ():
        if channel != first.channel:
            try:
                other = await _find(scope, name, ends=True, channel=channel)
                # Another may have begun meanwhile what the name is to be now.
                parts += [other] if other.topic == first.topic else []
            except (SubscriptionInUse, SubscriptionUnavailable):
                raise
            except SubscriptionError:
                pass
    for part in parts:
        ended = await scope.order(part.channel, Unsubscribe(subscription=part.subscription))
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


def _check_start(start: object) -> None:
    if start in (None, "latest", "earliest") or _is_number(start):
        return
    if isinstance(start, Mapping) and start and all(map(_is_number, start.values())):
        return
    raise LocalError(
        f'start is "earliest", "latest", a sequence number, or one for each channel; it was {start!r}'
    )


def _is_number(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= U64_MAX
