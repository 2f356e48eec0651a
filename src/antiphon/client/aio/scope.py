"""SessionScope: the state that a session shares with its producers and consumers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from antiphon.client.aio.block import Once
from antiphon.client.aio.link import ClientLink, Fate
from antiphon.client.aio.sending import SendLane
from antiphon.client.aio.spanning import SpanningLane
from antiphon.client.aio.transacting import TransactedLane
from antiphon.client.aio.transactions import SessionTransactions
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.outbox import Order
from antiphon.client.core.session import SessionCore
from antiphon.client.core.transaction import TakenMessages
from antiphon.errors import AntiphonError, LocalError, NotConnected, SessionClosed, Timeout
from antiphon.names import parse_destination
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import AckMode, DestinationOpened, Done, SessionOpened

CLOSE_TIMEOUT_S = 60.0
"""How long closing waits for the outcomes of commands: as long as a send would."""

CLOSE_BLOCKED_S = 1.0
"""How long closing waits for a channel that takes nothing, by the server's word."""


TEMPORARY_LANES_MAX = 1_000
"""Lanes to temporary destinations that a session remembers."""


class Receiving(Protocol):
    """A consumer, as its session knows it."""

    options: tuple[Any, ...]

    def is_fed_by(self, core: ConsumerCore) -> bool:
        """Is this core the source of its messages?"""

    async def restart(self) -> None:
        """Drop the buffer, and have every unacknowledged message come again."""

    async def close(self) -> None:
        """Give back its messages, and wait until its acknowledgements are confirmed."""

    async def end_stay(self) -> None:
        """Closed before: go if the application has no messages of it any more."""


class SessionScope:
    """One session: opened on first use, closed with everything in it."""

    def __init__(self, link: Callable[[], ClientLink], ack_mode: AckMode, timeout: float) -> None:
        self.ack_mode = ack_mode
        self.timeout = timeout
        self.is_closed = False
        self.consumers: dict[Receiving, None] = {}  # a dict for its order
        # Dropped consumers that no call has taken over yet.
        self.dropped: dict[Receiving, None] = {}
        # Closed consumers of which the application still has messages.
        self.staying: dict[Receiving, None] = {}
        self.transactions = SessionTransactions(self) if ack_mode is AckMode.TRANSACTED else None
        # While it is set, receivers wait for it first.
        self.hindrance: Callable[[], Coroutine[Any, Any, None]] | None = None
        # The channels of destinations that were found to have several.
        self.spanning: dict[str, tuple[str, ...]] = {}
        self._lanes: dict[tuple[str, int], SendLane] = {}  # ids are a channel's own
        # Those of them that lead to temporary destinations, in the order in which they were opened.
        self._temporaries: deque[tuple[str, int]] = deque()
        self._link = link
        self._opening = Once(self._open)
        self._left: set[asyncio.Task[None]] = set()

    @property
    def link(self) -> ClientLink:
        """The connection; NotConnected when there is none."""
        return self._link()

    def sibling(self) -> SessionScope:
        """Another session on the same connection, which acknowledges by itself."""
        return SessionScope(self._link, AckMode.AUTO, self.timeout)

    async def core(self) -> SessionCore:
        """The open session, opened now if need be."""
        if self.is_closed:
            raise SessionClosed("the session is closed")
        core = self._opening.result or await self._opening.get()
        core.check()
        return core

    @property
    def opened_core(self) -> SessionCore | None:
        return self._opening.result

    @property
    def is_over(self) -> bool:
        core = self._opening.result
        return self.is_closed or (core is not None and core.error is not None)

    async def open_destination(
        self, name: str, *, create: bool = True, channel: str = ""
    ) -> DestinationOpened:
        """Find a destination, or make it if wanted, and have its channel know the session."""
        core = await self.core()
        link = self.link
        request = link.core.open_destination(name, create=create, session=core.session, channel=channel)
        try:
            return await link.call(request, DestinationOpened, self.timeout)
        except Timeout:
            raise self.unopened(name, self.timeout) from None

    def unopened(self, name: str, timeout: float) -> Timeout:
        """Why a destination could not be opened in this time, as far as that is known."""
        core = self.opened_core
        if core is not None and (why := core.why_blocked()):
            return Timeout(f"{name} could not be opened within {timeout:g} s{why}")
        return self.link.late(timeout)

    async def order(self, channel: str, payload: Order) -> ConfirmItem:
        """Have a command ordered; its outcome."""
        core = await self.core()
        fate = self.new_fate()
        core.outbox(channel).order(payload, fate)
        try:
            async with asyncio.timeout(self.timeout):
                return await self.outcome(fate)
        except TimeoutError:
            raise self.link.late(self.timeout) from None

    def leave(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that is not waited for. Its failure ends with the session."""

        async def ended() -> None:
            try:
                await ending
            except AntiphonError:
                pass

        task = asyncio.get_running_loop().create_task(ended())
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    def new_fate(self) -> Fate:
        return Fate(self.link.loop)

    async def outcome(self, fate: Fate) -> ConfirmItem:
        """The outcome of a command that was just ordered, however long there is no connection meanwhile."""
        link = self.link
        link.flush_soon()
        with link.waiting():
            return (await fate.outcomes)[0]

    async def open_lane(self, name: str) -> SendLane | SpanningLane:
        """The lane to a destination, which is made if it does not exist."""
        opened = await self.open_destination(name)
        if not opened.channels:
            return await self._lane(name, opened)
        core, open_part = await self.core(), partial(self._open_part_lane, name)
        lane = SpanningLane(self.link, core, name, opened.channels, open_part, self.leave)
        await lane.opened()
        return lane

    async def _open_part_lane(self, name: str, channel: str) -> SendLane:
        """The lane to a part of a spanning destination."""
        return await self._lane(name, await self.open_destination(name, channel=channel))

    async def _lane(self, name: str, opened: DestinationOpened) -> SendLane:
        core = await self.core()
        place = (opened.channel, opened.destination)
        lane = self._lanes.get(place)
        if lane is None:
            if self.transactions is None:
                lane = SendLane(self.link, core, opened)
            else:
                lane = TransactedLane(self.link, core, opened, self.transactions)
            self._lanes[place] = lane
            if self.transactions is None and parse_destination(name).is_temporary:
                self._note_temporary(place)
        return lane

    def _note_temporary(self, place: tuple[str, int]) -> None:
        """A session that replies meets ever new temporary queues: the oldest lanes are forgotten."""
        self._temporaries.append(place)
        if len(self._temporaries) > TEMPORARY_LANES_MAX:
            self._lanes.pop(self._temporaries.popleft()).submit_gathered()

    def submit_gathered(self) -> None:
        for lane in self._lanes.values():
            lane.submit_gathered()

    async def recover(self) -> None:
        """Give back all messages that were taken and not acknowledged."""
        if self.hindrance is not None:
            raise LocalError("the session is being recovered already")
        core = await self.core()
        recovered = asyncio.Event()

        async def recovering() -> None:
            await recovered.wait()

        self.hindrance = recovering
        try:
            await self.give_back(core, core.take_consumed())
        finally:
            self.hindrance = None
            recovered.set()
        await self.end_stays()

    async def end_stays(self) -> None:
        """Closed consumers go when the application has acknowledged or returned the messages it had."""
        if self.staying:
            await asyncio.gather(*(consumer.end_stay() for consumer in list(self.staying)))

    async def give_back(self, core: SessionCore, taken: list[TakenMessages]) -> None:
        """Return taken messages; then have their consumers begin anew, so that they come in order."""
        fates = []
        for channel, payload in core.give_back(taken):
            fates.append(self.new_fate())
            core.outbox(channel).order(payload, fates[-1])
        for fate in fates:
            await self.outcome(fate)
        restarted = [
            consumer for consumer in self.consumers if any(consumer.is_fed_by(core) for core, _ in taken)
        ]
        await asyncio.gather(*(consumer.restart() for consumer in restarted))

    async def _open(self) -> SessionCore:
        link = self.link
        opened = await link.call(link.core.open_session(self.ack_mode), SessionOpened, self.timeout)
        return link.core.sessions[opened.session]

    async def close(self) -> None:
        self.is_closed = True
        if not self._opening.has_begun:
            return
        core = await self._opening.get()
        if self.transactions is not None:
            await self.transactions.close(CLOSE_TIMEOUT_S)
        self.submit_gathered()
        await asyncio.gather(*(consumer.close() for consumer in list(self.consumers)))
        try:
            await self._settle(core)
            link = self.link
            core.check()
            if link.is_up:
                # Without a connection there is nothing left to send: the server will see that the client is
                # gone.
                await self._say_closed(link, core)
        except (NotConnected, SessionClosed):
            # Senders were told their outcomes. Of automatic acknowledgements only the session knows.
            if core.owes_word():
                raise

    async def _say_closed(self, link: ClientLink, core: SessionCore) -> None:
        """Have the session end. A channel without a primary hears of it later, and is not waited for."""
        request = link.core.close_session(core.session)
        limit = min(self.timeout, CLOSE_BLOCKED_S) if core.why_blocked() else self.timeout
        try:
            await link.call(request, Done, limit)
        except Timeout:
            if not core.why_blocked():
                raise

    async def _settle(self, core: SessionCore) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while not core.is_idle and core.error is None:
                    await self.link.news()
        except TimeoutError:
            raise Timeout(
                f"not everything in the session was confirmed within {CLOSE_TIMEOUT_S:g} s"
            ) from None
