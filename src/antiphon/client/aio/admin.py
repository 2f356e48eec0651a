"""Admin: questions to a running system, and changes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from antiphon.client.aio.block import Duration, seconds
from antiphon.client.aio.creating import CreationResult, create_many, not_to_choose
from antiphon.client.aio.dead import DeadQueue, MakeScope, describe, move
from antiphon.client.aio.holds import read_reports
from antiphon.client.aio.link import ClientLink
from antiphon.client.aio.merging import check_channel
from antiphon.client.aio.scope import SessionScope
from antiphon.client.core.outbox import Order
from antiphon.client.core.outcomes import destination_error
from antiphon.errors import (
    DestinationError,
    DestinationUnavailable,
    InvalidName,
    LocalError,
    ProtocolError,
)
from antiphon.names import LOG_TOPIC_NAME, check_stored, parse_destination
from antiphon.wire.commands import AlterDestination, DeleteDestination, PurgeDestination
from antiphon.wire.frames import AckMode, Answer, DestinationOpened, RangeTold

DeadTo = Literal["_DMQ", "_DMQ+expired", "nowhere"]
"""Where dead messages go, see `Admin.create`."""


def _settings(
    retention: Duration | Literal["consumed"] | None,
    retention_bytes: int | None,
    redelivery_limit: int | None,
    redelivery_delay: Duration | None,
    dead_to: DeadTo | None,
    dedup_window: Duration | None,
    exclusive: bool | None,
) -> dict[str, Any]:
    """The given settings; raises LocalError for one that is of another type."""
    settings: dict[str, Any] = {}
    if retention is not None:
        settings["retention"] = retention if retention == "consumed" else seconds(retention, "retention")
    for name, number, what in (
        ("retention_bytes", retention_bytes, "bytes"),
        ("redelivery_limit", redelivery_limit, "redeliveries"),
    ):
        if number is not None:
            if not isinstance(number, int) or isinstance(number, bool):
                raise LocalError(f"{name} is a number of {what}; it was {number!r}")
            settings[name] = number
    for name, duration in (("redelivery_delay", redelivery_delay), ("dedup_window", dedup_window)):
        if duration is not None:
            settings[name] = seconds(duration, name)
    if dead_to is not None:
        settings["dead_to"] = dead_to
    if exclusive is not None:
        settings["exclusive"] = exclusive
    return settings


def _placed(settings: dict[str, Any], channel: str | None, channels: int | Sequence[str] | None) -> str:
    """The settings of a new destination, with the channel or the channels it is to live in, if given."""
    if channel is not None:
        if not isinstance(channel, str) or not channel:
            raise LocalError(f"channel is the name of one; it was {channel!r}")
        settings["channel"] = channel
    if channels is not None:
        settings["channels"] = channels if isinstance(channels, int | str) else list(channels)
    return json.dumps(settings, sort_keys=True)


class Admin:
    """Asks the node behind the connection.

    >>> admin = connection.admin()
    >>> (await admin.status())["channels"]
    """

    def __init__(self, link: Callable[[], ClientLink], timeout: float, make_scope: MakeScope) -> None:
        self._link = link
        self._timeout = timeout
        self._make_scope = make_scope

    async def status(self) -> dict[str, Any]:
        """Nodes, channels and how far they are.

        >>> [node["state"] for node in (await admin.status())["nodes"]]
        ['up']
        """
        status = await self._ask("status", dict)
        return dict(status)

    async def destinations(self, *, log: bool = False) -> list[dict[str, Any]]:
        """The destinations with their counts; with `log` also the topic of events, "topic:_LOG".

        One that has several channels is one row, with its parts.

        >>> [destination["messages"] for destination in await admin.destinations()]
        """
        rows: list[dict[str, Any]] = []
        page = await self._ask("destinations", dict)
        while True:
            rows += page.get("rows", [])
            if not page.get("next"):
                return put_together([row for row in rows if log or row["name"] != LOG_TOPIC_NAME])
            page = await self._ask("destinations", dict, **page["next"])

    async def digests(self) -> list[dict[str, Any]]:
        """The digest of every replica's state. Replicas that have applied the same must have the same digest.

        >>> {row["digest"] for row in await admin.digests() if row["channel"] == "a"}
        """
        digests = await self._ask("digests", list)
        return list(digests)

    async def holds(self) -> list[dict[str, Any]]:
        """The named readers for whom messages are kept, with how much that is; see `Ranges.hold`.

        >>> [(hold["name"], hold["rows"]) for hold in await admin.holds()]
        """
        rows: list[dict[str, Any]] = []
        for channel in await self._channels():
            told = await self._ask_range(channel, "holds")
            rows += [report._asdict() for report in read_reports(channel, told["holds"])]
        return rows

    async def create(
        self,
        destination: str,
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        redelivery_limit: int | None = None,
        redelivery_delay: Duration | None = None,
        dead_to: DeadTo | None = None,
        dedup_window: Duration | None = None,
        exclusive: bool | None = None,
        channel: str | None = None,
        channels: int | Sequence[str] | None = None,
    ) -> None:
        """Make a destination. If it exists and is set as asked for, that is fine too.

        A topic keeps what its subscriptions need, and beyond that everything that is younger than
        `retention` (seconds or a timedelta; an hour if not given) as long as it is among the last
        `retention_bytes` (1 GiB). "consumed": nothing beyond. A queue keeps what is not consumed.
        It lives in `channel`, or if that is not given in the one that has least to keep.

        A message that came back more often than `redelivery_limit` (10 for a queue; 0 for a topic, which is
        no limit) is dead, as is one that a consumer rejected. `dead_to` says where dead messages go: to the
        queue of dead messages of their channel, "_DMQ", which is the default; with "_DMQ+expired" expired
        messages of a queue go there, too; "nowhere" drops them. A message that came back waits for
        `redelivery_delay` (seconds or a timedelta, 0 if not given) before it is delivered again, and twice as
        long each further time, an hour at most.

        The ids of messages (`dedup_id` of `send`) are remembered for `dedup_window` (seconds or a timedelta,
        10 minutes if not given, a week at most), but not more than the last 262,144 of them. 0: a message is
        stored whatever its id.

        An `exclusive` queue gives its messages to one consumer at a time; the others wait in line, and the
        next takes over when the first is closed or lost.

        With `channels`, a number of them or their names, the destination has a part in each, and so may be
        larger and faster than one channel is. Messages with the same `key` go to the same channel and stay in
        order; other messages are spread over the channels. Limits such as `retention_bytes` are those of each
        part. The channels of a name stay, also when it is deleted; an exclusive queue has one channel.

        >>> await admin.create("topic:prices", retention=timedelta(days=7), retention_bytes=10**10)
        >>> await admin.create("queue:orders", channels=2)
        """
        if not parse_destination(destination).can_be_chosen:
            raise InvalidName(not_to_choose(destination))
        settings = _settings(
            retention, retention_bytes, redelivery_limit, redelivery_delay, dead_to, dedup_window, exclusive
        )
        link = self._link()
        request = link.core.create_destination(destination, _placed(settings, channel, channels))
        await link.call(request, DestinationOpened, self._timeout)

    async def create_many(
        self,
        destinations: Iterable[str],
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        redelivery_limit: int | None = None,
        redelivery_delay: Duration | None = None,
        dead_to: DeadTo | None = None,
        dedup_window: Duration | None = None,
        exclusive: bool | None = None,
        channel: str | None = None,
        channels: int | Sequence[str] | None = None,
    ) -> list[CreationResult]:
        """Make many destinations with the same settings, see `create`; thousands of them take a second.

        The results have for each name, in their order, the `outcome`: "made"; "exists", set as asked for; or
        "refused", with the `code` of the error and the reason as `text`. One that is refused does not hinder
        the others. If an error is raised in between, some are made: call again, and the rest will be.

        >>> results = await admin.create_many(f"topic:prices.{isin}" for isin in isins)
        >>> [result for result in results if result.outcome == "refused"]
        []
        """
        if isinstance(destinations, str):
            raise LocalError("destinations are several names; `create` makes one")
        settings = _settings(
            retention, retention_bytes, redelivery_limit, redelivery_delay, dead_to, dedup_window, exclusive
        )
        text = _placed(settings, channel, channels)
        return await create_many(self._link(), destinations, text, self._timeout)

    async def change(
        self,
        destination: str,
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        redelivery_limit: int | None = None,
        redelivery_delay: Duration | None = None,
        dead_to: DeadTo | None = None,
        dedup_window: Duration | None = None,
        exclusive: bool | None = None,
    ) -> None:
        """Change settings of a destination that exists, while it is used; the others stay. See `create`.

        Of "topic:_LOG" the parts of all channels are changed.

        >>> await admin.change("queue:orders", redelivery_limit=3)
        """
        settings = _settings(
            retention, retention_bytes, redelivery_limit, redelivery_delay, dead_to, dedup_window, exclusive
        )
        if not settings:
            raise LocalError("no setting was given that is to be changed")
        text = json.dumps(settings, sort_keys=True)
        for channel in await self._channels_of(destination):
            await self._order(
                destination, lambda id: AlterDestination(destination=id, settings=text), channel
            )

    async def delete(self, destination: str) -> None:
        """Delete a destination with all its messages and subscriptions; its consumers are closed and told.

        If that was interrupted, repeat it: of a destination with several channels, a part may be left.

        >>> await admin.delete("queue:orders")
        """
        # The first part goes last: as long as there are others, it is there.
        await self._order(destination, lambda id: DeleteDestination(destination=id), is_reversed=True)

    async def purge(self, destination: str, *, channel: str = "") -> None:
        """Drop all messages of a destination, also those that consumers have; subscriptions stay.

        Messages of a transaction that is being committed stay. `channel` is for "queue:_DMQ".

        >>> await admin.purge("queue:orders")
        """
        check_channel(parse_destination(destination), channel)
        await self._order(destination, lambda id: PurgeDestination(destination=id), channel)

    async def dead(self, destination: str | None = None) -> list[dict[str, Any]]:
        """The dead messages of a destination, or all: where they died, why, and after how many deliveries.

        >>> [(row["destination"], row["reason"]) for row in await admin.dead()]
        """
        if destination is not None:
            parse_destination(destination)
        rows: list[dict[str, Any]] = []
        for channel in await self._channels():
            async for message in DeadQueue(self._make_scope, channel).messages(destination):
                rows.append(describe(message))
        return rows

    async def retry(self, destination: str | None = None, *, ids: Iterable[str] = ()) -> int:
        """Send dead messages back to where they died; returns how many.

        All, those of a destination, or those with these ids, as `dead` tells them. Each is sent back once,
        as a new message without the properties of its death; that is so, too, when the caller is killed in
        the middle, and calls again. To a topic they are published: all of its subscriptions get them.

        >>> await admin.retry("queue:orders")
        """
        if destination is not None:
            parse_destination(destination)
        if isinstance(ids, str):
            raise LocalError("ids is a list of message ids")
        wanted = frozenset(ids)
        return sum(
            [
                await DeadQueue(self._make_scope, channel).retry(destination, wanted)
                for channel in await self._channels()
            ]
        )

    async def move(self, source: str, target: str, *, channel: str = "") -> int:
        """Move the messages of a queue that no consumer has at the moment; returns how many.

        Each is moved once, also when the caller is killed in the middle. `channel` is for "queue:_DMQ".

        This takes messages as one more consumer does. So what stays is: messages that consumers have; those
        with a key of a group that a consumer has; everything in an exclusive queue that has a consumer; and
        delayed messages. Close the consumers to move all but the delayed ones.

        >>> await admin.move("queue:orders", "queue:orders.later")
        """
        name = parse_destination(source)
        if name.kind != "queue":
            raise LocalError(f"{source} is a topic: only the messages of a queue are moved")
        check_channel(name, channel)
        if source == target:
            raise LocalError(f"the messages of {source} are there already")
        return await move(self._make_scope, source, target, channel)

    async def consumers(self, destination: str | None = None) -> list[dict[str, Any]]:
        """The consumers of a destination, or all, with the messages that they have.

        >>> [(row["destination"], row["in_flight"]) for row in await admin.consumers()]
        """
        if destination is not None:
            parse_destination(destination)
        rows: list[dict[str, Any]] = []
        for channel in await self._channels():
            page = await self._ask("consumers", dict, channel=channel, after="")
            rows += page.get("rows", [])
            while page.get("next"):
                page = await self._ask("consumers", dict, channel=channel, after=page["next"])
                rows += page.get("rows", [])
        return [
            {name: value for name, value in row.items() if name != "place"}
            for row in rows
            if destination in (None, row["destination"])
        ]

    async def _channels(self) -> tuple[str, ...]:
        return await self._link().channels(self._timeout)

    async def _channels_of(self, name: str) -> tuple[str, ...]:
        """The channels with a part of a destination of the system; of any other, none is named."""
        return await self._channels() if parse_destination(name).has_parts else ("",)

    async def _order(
        self, name: str, command: Callable[[int], Order], channel: str = "", *, is_reversed: bool = False
    ) -> None:
        """Have a command about a destination, or about each of its parts, ordered.

        Raises DestinationError with the reason if refused. Nothing is ordered while a channel is away.
        """
        check_stored(parse_destination(name))
        scope = self._make_scope(AckMode.AUTO)
        try:
            parts = await _parts(scope, name, channel)
            for part in reversed(parts) if is_reversed else parts:
                outcome = await scope.order(part.channel, command(part.destination))
                error = destination_error(outcome, name)
                if error is not None:
                    raise error
        finally:
            await scope.close()

    async def _ask_range(self, channel: str, question: str) -> dict[str, Any]:
        link = self._link()
        request = link.core.ask_range(channel, {"question": question}, 0, 0)
        told: dict[str, Any] = json.loads((await link.call(request, RangeTold, self._timeout)).answer)
        return told

    async def _ask(self, question: str, kind: type[Any], **more: Any) -> Any:
        link = self._link()
        reply = await link.call(link.core.ask({"question": question, **more}), Answer, self._timeout)
        try:
            answer = json.loads(reply.answer)
        except ValueError as error:
            raise ProtocolError(f"the answer to {question!r} is not JSON: {error}") from None
        if not isinstance(answer, kind):
            raise ProtocolError(f"the answer to {question!r} is of an unexpected form")
        return answer


async def _parts(scope: SessionScope, name: str, channel: str) -> list[DestinationOpened]:
    """The destination, or those of its parts that are there."""
    opened = await scope.open_destination(name, create=False, channel=channel)
    if not opened.channels:
        return [opened]
    parts: list[DestinationOpened] = []
    missing: list[DestinationError] = []
    for one in opened.channels:
        try:
            parts.append(await scope.open_destination(name, create=False, channel=one))
        except DestinationUnavailable:
            raise
        except DestinationError as error:
            missing.append(error)
    if not parts:
        raise missing[0]
    return parts


def put_together(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The destinations, with one row for the parts of each that has several channels."""
    whole: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        spans = ",".join(row.get("channels", ()))
        key = (row["name"], spans or str(row.get("channel")))
        if not spans:
            whole[key] = row
        elif key not in whole:
            whole[key] = {**row, "channel": spans, "parts": [row]}
        else:
            whole[key] = _sum(whole[key], row)
    return list(whole.values())


def _sum(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The row of a destination with one more of its parts."""
    summed = dict(whole)
    for name, value in part.items():
        if isinstance(value, bool):
            summed[name] = whole[name] or value
        elif isinstance(value, int):
            summed[name] = whole[name] + value
    subscriptions = {_identity(one): one for one in whole["subscriptions"]}
    for one in part["subscriptions"]:
        known = subscriptions.get(_identity(one))
        backlog = one["backlog"] + (known["backlog"] if known is not None else 0)
        subscriptions[_identity(one)] = {**one, "backlog": backlog}
    summed["subscriptions"] = list(subscriptions.values())
    summed["parts"] = [*whole["parts"], part]
    return summed


def _identity(subscription: dict[str, Any]) -> tuple[Any, ...]:
    """A name tells which subscriptions of several parts are one; those without a name are listed each."""
    if not subscription["name"]:
        return (id(subscription),)
    return tuple(subscription[name] for name in ("name", "client_id", "durable", "shared"))
