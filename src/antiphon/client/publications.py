"""Publications as asyncio sees them: the futures of those who wait for messages to be stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from typing import TypeAlias, cast

from antiphon import clock
from antiphon.client.core_gathering import HEAD_BYTES, Bodies, Chunk, Gathering, Publication
from antiphon.client.core_session import SessionCore
from antiphon.client.link import Link
from antiphon.client.outcomes import STORED, lost_error, publish_error
from antiphon.client.receipts import Receipt
from antiphon.client.resending import Uncertain
from antiphon.errors import AntiphonError, PublishUncertain, Timeout
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import DestinationOpened

AGE_SHARE = 16
"""What travels together expires together. So messages join others only while those are young: no older
than a sixteenth of the time they have."""


class Lane:
    """The way of one session's messages to one destination.

    All its producers for a destination share one, so that what they send stays in order.
    """

    def __init__(self, link: Link, core: SessionCore, opened: DestinationOpened) -> None:
        self.link = link
        self.core = core
        self.target = opened
        self.channel = opened.channel
        self.destination = opened.destination
        self.settings_version = opened.settings_version
        self._sends: Sends | None = None

    def gather(self, timeout_s: float) -> Sends:
        """Where the next message goes: to those that have not left yet, or to new ones."""
        sends = self._sends
        if sends is not None and not sends.first_number:
            # It has not left.
            if sends.timeout_s == timeout_s and self._may_grow(sends):
                return sends
            self.submit_gathered()
        sends = self._sends = Sends(self, timeout_s)
        self.link.core.watch(sends, int(timeout_s * 1e9))
        self.link.at_tick(self.submit_gathered)
        return sends

    def _may_grow(self, sends: Sends) -> bool:
        if sends.is_full or not sends.is_submitted:
            return not sends.is_full
        # It waits for room. What is added to it must not come before what waits behind it.
        age_ns = clock.now_ns() - sends.opened_ns
        is_last = self.core.outbox(self.channel).last_waiting is sends
        return is_last and age_ns * AGE_SHARE < sends.timeout_s * 1e9

    def submit_gathered(self) -> None:
        """Hand over what was gathered."""
        sends = self._sends
        if sends is None or sends.is_submitted:
            return
        sends.is_submitted = True
        if self.link.error is not None:
            sends.lose(self.link.lost())
        elif self.core.error is not None:
            sends.lose(self.core.error)
        elif sends.tickets:
            self.submit(sends)
        else:
            # The only message for it was refused when it was looked at.
            sends.is_settled = True

    @property
    def is_blocked(self) -> bool:
        """Would another message have to wait before it leaves?"""
        sends = self._sends
        gathered = sends.size if sends is not None and not sends.is_submitted else 0
        return not self.core.outbox(self.channel).has_room(gathered + 1)

    def uncertain(self, publications: Sequence[Publication], timeout_s: float) -> Uncertain:
        """The means to send these again."""
        return Uncertain(self.link, self.core, self.channel, publications, timeout_s)

    def too_late(self, publication: Publication, timeout_s: float) -> Timeout:
        """Why the outcome of a publication is not known in time, as far as that is known."""
        what = "its outcome was not known" if publication.has_left else "it could not leave"
        return Timeout(f"{what} within {timeout_s:g} s{self.core.why_blocked(self.channel)}")

    def submit(self, publication: Publication) -> None:
        """Hand a publication over. It leaves when there is room, and when the link is flushed."""
        self.core.submit(self.channel, publication)


class Sends(Gathering):
    """Sends that travel together; each has a future of its own, whose result is its receipt."""

    __slots__ = ("_lane", "is_submitted", "opened_ns", "timeout_s")

    def __init__(self, lane: Lane, timeout_s: float) -> None:
        self.opened_ns = clock.now_ns()
        super().__init__(
            destination=lane.destination,
            settings_version=lane.settings_version,
            timestamp_ms=time.time_ns() // 1_000_000,
            deadline_ns=self.opened_ns + int(timeout_s * 1e9),
        )
        self.timeout_s = timeout_s
        self.is_submitted = False
        self._lane = lane

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        """Give every sender its receipt, or its error."""
        if self.listeners:
            self.tell()
        session, channel = self._lane.core.session, self._lane.channel
        if len(self.tickets) == 1 and len(outcomes) == 1 and outcomes[0].code in STORED:
            (lone,) = cast("list[asyncio.Future[Receipt]]", self.tickets)
            if not lone.done():
                lone.set_result(Receipt(session, channel, self.first_number, outcomes[0].sequence))
            return
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
        """The outcome will not be known in time: tell every sender whether its message had left."""
        self.tell()
        session, channel = self._lane.core.session, self._lane.channel
        uncertain = self._lane.uncertain([self], self.timeout_s)
        for place, ticket in enumerate(cast("list[asyncio.Future[Receipt]]", self.tickets)):
            if not ticket.done():
                number = self.first_number + place if self.has_left else 0
                lost = lost_error(error, session, channel, number, 1)
                if isinstance(lost, PublishUncertain):
                    uncertain.explain(lost, place)
                ticket.set_exception(lost)

    def expire(self) -> None:
        self.lose(self._lane.too_late(self, self.timeout_s))


Fate: TypeAlias = list[ConfirmItem] | AntiphonError
"""What became of a chunk: its outcomes, or why they will never be known."""


class ManySends(Chunk):
    """A part of a `send_many`. Its one future is never an error: nobody may be left to look at it."""

    __slots__ = ("_lane", "timeout_s")

    def __init__(
        self,
        lane: Lane,
        bodies: Bodies,
        size: int,
        timeout_s: float,
    ) -> None:
        fate: asyncio.Future[Fate] = lane.link.loop.create_future()
        super().__init__(
            bodies,
            HEAD_BYTES + size,
            fate,
            destination=lane.destination,
            settings_version=lane.settings_version,
            timestamp_ms=time.time_ns() // 1_000_000,
            deadline_ns=clock.now_ns() + int(timeout_s * 1e9),
        )
        self.timeout_s = timeout_s
        self._lane = lane

    @property
    def fate(self) -> asyncio.Future[Fate]:
        return cast("asyncio.Future[Fate]", self.ticket)

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        self.tell()
        if not self.fate.done():
            self.fate.set_result(sorted(outcomes))

    def lose(self, error: AntiphonError) -> None:
        self.tell()
        if not self.fate.done():
            core, channel = self._lane.core, self._lane.channel
            self.fate.set_result(lost_error(error, core.session, channel, self.first_number, self.count))

    def expire(self) -> None:
        self.lose(self._lane.too_late(self, self.timeout_s))
