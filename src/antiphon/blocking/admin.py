"""Admin: questions to a running system, and changes of it."""

from __future__ import annotations

from typing import Any, Literal

from antiphon.blocking.loop import LoopThread
from antiphon.client import admin as asynchronous
from antiphon.client.durations import Duration


class Admin:
    """Asks the node behind the connection; see `antiphon.Admin`.

    >>> admin = connection.admin()
    >>> admin.status()["channels"]
    """

    def __init__(self, loop: LoopThread, admin: asynchronous.Admin) -> None:
        self._loop = loop
        self._admin = admin

    def status(self) -> dict[str, Any]:
        """Nodes, channels and how far they are.

        >>> [node["state"] for node in admin.status()["nodes"]]
        ['up']
        """
        return self._loop.run(self._admin.status())

    def destinations(self) -> list[dict[str, Any]]:
        """The destinations with their counts.

        >>> [destination["messages"] for destination in admin.destinations()]
        """
        return self._loop.run(self._admin.destinations())

    def digests(self) -> list[dict[str, Any]]:
        """What the state of every replica is. Those that have applied the same must have the same digest.

        >>> {row["digest"] for row in admin.digests() if row["channel"] == "a"}
        """
        return self._loop.run(self._admin.digests())

    def holds(self) -> list[dict[str, Any]]:
        """The named readers for whom messages are kept, with how much that is.

        >>> [(hold["name"], hold["rows"]) for hold in admin.holds()]
        """
        return self._loop.run(self._admin.holds())

    def create(
        self,
        destination: str,
        *,
        retention: Duration | Literal["consumed"] | None = None,
        retention_bytes: int | None = None,
        channel: str | None = None,
    ) -> None:
        """Make a destination. If it exists and is set as asked for, that is fine too.

        >>> admin.create("topic:prices", retention=3600, retention_bytes=10**10)
        """
        self._loop.run(
            self._admin.create(
                destination, retention=retention, retention_bytes=retention_bytes, channel=channel
            )
        )
