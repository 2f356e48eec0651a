"""Admin: questions to a running system, and changes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from antiphon.client.aio.block import Duration, seconds
from antiphon.client.aio.holds import read_reports
from antiphon.client.aio.link import ClientLink
from antiphon.errors import InvalidName, LocalError, ProtocolError
from antiphon.names import parse_destination
from antiphon.wire.frames import Answer, DestinationOpened, RangeTold


class Admin:
    """Asks the node behind the connection.

    >>> admin = connection.admin()
    >>> (await admin.status())["channels"]
    """

    def __init__(self, link: Callable[[], ClientLink], timeout: float) -> None:
        self._link = link
        self._timeout = timeout

    async def status(self) -> dict[str, Any]:
        """Nodes, channels and how far they are.

        >>> [node["state"] for node in (await admin.status())["nodes"]]
        ['up']
        """
        status = await self._ask("status", dict)
        return dict(status)

    async def destinations(self) -> list[dict[str, Any]]:
        """The destinations with their counts.

        >>> [destination["messages"] for destination in await admin.destinations()]
        """
        rows: list[dict[str, Any]] = []
        page = await self._ask("destinations", dict)
        while True:
            rows += page.get("rows", [])
            if not page.get("next"):
                return rows
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
        channels = (await self._ask_range("", "channels"))["channels"]
        rows: list[dict[str, Any]] = []
        for channel in channels:
            told = await self._ask_range(channel, "holds")
            rows += [report._asdict() for report in read_reports(channel, told["holds"])]
        return rows

    async def create(
        self,
        destination: str,
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        channel: str | None = None,
    ) -> None:
        """Make a destination. If it exists and is set as asked for, that is fine too.

        A topic keeps what its subscriptions need, and beyond that everything that is younger than
        `retention` (seconds or a timedelta; an hour if not given) as long as it is among the last
        `retention_bytes` (1 GiB). "consumed": nothing beyond. A queue keeps what is not consumed.
        It lives in `channel`, or if that is not given in the one that has least to keep.

        >>> await admin.create("topic:prices", retention=timedelta(days=7), retention_bytes=10**10)
        """
        if parse_destination(destination).is_reserved:
            raise InvalidName(f"{destination}: names that begin with _ are the system's own")
        settings: dict[str, Any] = {}
        if retention is not None:
            settings["retention"] = retention if retention == "consumed" else seconds(retention, "retention")
        if retention_bytes is not None:
            if not isinstance(retention_bytes, int) or isinstance(retention_bytes, bool):
                raise LocalError(f"retention_bytes is a number of bytes; it was {retention_bytes!r}")
            settings["retention_bytes"] = retention_bytes
        if channel is not None:
            if not isinstance(channel, str) or not channel:
                raise LocalError(f"channel is the name of one; it was {channel!r}")
            settings["channel"] = channel
        link = self._link()
        request = link.core.create_destination(destination, json.dumps(settings, sort_keys=True))
        await link.call(request, DestinationOpened, self._timeout)

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
