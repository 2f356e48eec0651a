"""Publications as asyncio sees them: the futures of those who wait for messages to be stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias, cast

from antiphon.batch import BatchBuilder
from antiphon.client.core_gathering import Chunk, Gathering, Publication
from antiphon.client.core_session import SessionCore
from antiphon.client.link import Link
from antiphon.client.outcomes import STORED, lost_error, publish_error
from antiphon.client.receipts import Receipt
from antiphon.errors import AntiphonError, Timeout
from antiphon.wire.commands import ConfirmItem


class Route(NamedTuple):
    """Where the messages of a producer go: over which connection, in which session, to what."""

    link: Link
    core: SessionCore
    channel: str
    destination: int
    settings_version: int

    def submit(self, publication: Publication) -> None:
        """Hand a publication over. It leaves when there is room, and when the link is flushed."""
        self.core.submit(self.channel, publication)


class Sends(Gathering):
    """Sends that travel together; each has a future of its own, whose result is its receipt."""

    __slots__ = ("_route", "is_submitted", "opened_ns", "timeout_s")

    def __init__(self, route: Route, timeout_s: float) -> None:
        self.opened_ns = time.monotonic_ns()
        super().__init__(
            destination=route.destination,
            settings_version=route.settings_version,
            timestamp_ms=time.time_ns() // 1_000_000,
            deadline_ns=self.opened_ns + int(timeout_s * 1e9),
        )
        self.timeout_s = timeout_s
        self.is_submitted = False
        self._route = route

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        """Give every sender its receipt, or its error."""
        session, channel = self._route.core.session, self._route.channel
        for item in outcomes:
            place = item.number - self.first_number
            tickets = cast("list[asyncio.Future[Receipt]]", self.tickets)
            numbers = range(item.number, item.number + item.count)
            for number, ticket in zip(numbers, islice(tickets, place, place + item.count), strict=True):
                if ticket.done():
                    continue
                if item.code in STORED:
                    sequence = item.sequence + number - item.number
                    ticket.set_result(Receipt(session, channel, number, sequence))
                else:
                    ticket.set_exception(
                        publish_error(item._replace(number=number, count=1), session, channel)
                    )

    def lose(self, error: AntiphonError) -> None:
        """The outcome will never be known: tell every sender whether its message had left."""
        session, channel = self._route.core.session, self._route.channel
        for place, ticket in enumerate(cast("list[asyncio.Future[Receipt]]", self.tickets)):
            if not ticket.done():
                number = self.first_number + place if self.has_left else 0
                ticket.set_exception(lost_error(error, session, channel, number, 1))

    def expire(self) -> None:
        self.lose(Timeout(f"its outcome was not known within {self.timeout_s:g} s"))


Fate: TypeAlias = list[ConfirmItem] | AntiphonError
"""What became of a chunk: its outcomes, or why they will never be known."""


class ManySends(Chunk):
    """A part of a `send_many`. Its one future is never an error: nobody may be left to look at it."""

    __slots__ = ("_route", "timeout_s")

    def __init__(
        self,
        route: Route,
        bodies: Sequence[bytes] | BatchBuilder,
        *,
        size: int,
        timestamp_ms: int,
        timeout_s: float,
    ) -> None:
        fate: asyncio.Future[Fate] = route.link.loop.create_future()
        super().__init__(
            bodies,
            size,
            fate,
            destination=route.destination,
            settings_version=route.settings_version,
            timestamp_ms=timestamp_ms,
            deadline_ns=time.monotonic_ns() + int(timeout_s * 1e9),
        )
        self.timeout_s = timeout_s
        self._route = route

    @property
    def fate(self) -> asyncio.Future[Fate]:
        return cast("asyncio.Future[Fate]", self.ticket)

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        if not self.fate.done():
            self.fate.set_result(sorted(outcomes))

    def lose(self, error: AntiphonError) -> None:
        if not self.fate.done():
            core, channel = self._route.core, self._route.channel
            self.fate.set_result(lost_error(error, core.session, channel, self.first_number, self.count))

    def expire(self) -> None:
        self.lose(Timeout(f"its outcome was not known within {self.timeout_s:g} s"))
