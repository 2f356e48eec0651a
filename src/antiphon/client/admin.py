"""Admin: questions to a running system."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from antiphon.client.link import Link
from antiphon.errors import ProtocolError
from antiphon.wire.frames import Answer


class Admin:
    """Asks the node behind the connection.

    >>> admin = connection.admin()
    >>> (await admin.status())["channels"]
    """

    def __init__(self, link: Callable[[], Link], timeout: float) -> None:
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
        destinations = await self._ask("destinations", list)
        return list(destinations)

    async def _ask(self, question: str, kind: type[Any]) -> Any:
        link = self._link()
        reply = await link.call(link.core.ask({"question": question}), Answer, self._timeout)
        try:
            answer = json.loads(reply.answer)
        except ValueError as error:
            raise ProtocolError(f"the answer to {question!r} is not JSON: {error}") from None
        if not isinstance(answer, kind):
            raise ProtocolError(f"the answer to {question!r} is of an unexpected form")
        return answer
