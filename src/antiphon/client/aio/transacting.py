"""Transacting: the way of a transacted session's messages to one destination.

A send is done when its message is gathered and there was room for it. The outcome is not awaited: a refusal
dooms the transaction, and `commit` says so.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.batch import ROWS_MAX, Batch
from antiphon.client.aio.link import ClientLink
from antiphon.client.aio.sending import Part as SomeBodies
from antiphon.client.aio.sending import Sending, SendLane, Sends
from antiphon.client.core.outcomes import STORED, publish_error
from antiphon.client.core.publication import HEAD_BYTES, ROW_BYTES, Bodies, Departure, Row
from antiphon.client.core.receipts import Receipt, Receipts
from antiphon.client.core.session import SessionCore
from antiphon.client.core.transaction import PartCore, RowNumbers, TransactedPart
from antiphon.errors import AntiphonError, InvalidMessage, LocalError, Timeout
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import DestinationOpened

if TYPE_CHECKING:
    from antiphon.client.aio.transactions import SessionTransactions

FOREVER_S = 1e9
"""A transacted send has no time limit; its commit has one."""

ADMITTED_AT_ONCE = 256
"""Sends that may go on when there is room again: about a batch of small messages."""


PACK_MESSAGES = 256
PACK_BYTES = 64 * 1024
"""The bytes that a thread may gather by itself before it asks the loop again."""

PACK_SECONDS = 0.01
"""After this time a thread's gathered messages leave, however few."""


class Pack:
    """Messages of a transaction that a thread gathers without asking the loop for each.

    They have their numbers, and there is room for them. The loop sends them on before any other call of this
    thread.
    """

    __slots__ = (
        "_bodies",
        "_bytes_max",
        "_channel",
        "_guard",
        "_is_over",
        "_session",
        "_size",
        "first_row",
        "part",
    )

    def __init__(self, session: int, channel: str, part: PartCore, first_row: int, bytes_max: int) -> None:
        self.part = part
        self.first_row = first_row
        self._session = session
        self._channel = channel
        self._bytes_max = bytes_max
        self._bodies: list[bytes] = []
        self._size = 0
        self._is_over = False
        self._guard = threading.Lock()

    def add(self, body: bytes) -> Receipt | None:
        """Gather one message; None: ask the loop."""
        with self._guard:
            bodies, size = self._bodies, self._size + len(body) + ROW_BYTES
            if self._is_over or size > self._bytes_max or len(bodies) == PACK_MESSAGES:
                return None
            bodies.append(body)
            self._size = size
            number = self.first_row + len(bodies) - 1
        return Receipt(self._session, self._channel, number, None)

    def end(self) -> tuple[list[bytes], int]:
        with self._guard:
            self._is_over = True
        return self._bodies, self._size


class TransactedLane(SendLane):
    """The way of one transacted session's messages to one destination."""

    def __init__(
        self,
        link: ClientLink,
        core: SessionCore,
        opened: DestinationOpened,
        transactions: SessionTransactions,
    ) -> None:
        super().__init__(link, core, opened)
        self.transactions = transactions
        self._queue: deque[asyncio.Future[None]] = deque()
        self._admitting: asyncio.Task[None] | None = None
        self._pack: Pack | None = None

    def join(self, body: bytes) -> Receipt | None:
        """Add a plain body to those of this turn of the loop; None if that is not possible."""
        sends = self._sends
        if type(sends) is not UncommittedSends or sends.is_submitted or sends.is_full or self._queue:
            return None
        part, size = sends.part, sends.size
        if part.is_over or self.transactions.is_ending or size >= sends.room or not part.has_room(1, size):
            return None
        sends.add_plain(body)
        part.rows += 1
        return Receipt(self.core.session, self.channel, sends.first_row + sends.count - 1, None)

    async def send(self, body: bytes | None, row: Row | None, timeout_s: float) -> Receipt:
        """Gather one message, a plain body or a whole row."""
        if self._queue or self.is_blocked or self.transactions.is_ending:
            await self.turn(timeout_s)
        part = self.transactions.part(self.channel)
        sends = self._gathering(part, row)
        try:
            part.add(1, sends.size)
        except AntiphonError as error:
            self.transactions.doom(part, error)
            raise
        try:
            if row is not None:
                sends.add(row)
            else:
                assert body is not None, "a message is a body or a row"
                sends.add_plain(body)
        except BaseException:
            part.rows -= 1
            raise
        return Receipt(self.core.session, self.channel, sends.first_row + sends.count - 1, None)

    async def begin_sending(self, timeout_s: float) -> UncommittedSending:
        await self.turn(timeout_s)
        self.submit_gathered()  # what was sent before comes before
        part = self.transactions.part(self.channel)
        return UncommittedSending(self, part, self.transactions, timeout_s)

    async def send_batches(self, batches: AsyncIterable[Batch], timeout_s: float) -> Receipts:
        raise LocalError("batches are staged, or sent outside of transactions")

    async def target_of(self, message_id: str, timeout_s: float) -> DestinationOpened:
        raise LocalError("in a transaction nothing is sent under an id that it had before")

    def _gathering(self, part: TransactedPart, row: Row | None = None) -> UncommittedSends:
        sends = self._sends
        if isinstance(sends, UncommittedSends) and sends.part is part and self._may_grow(sends, row):
            return sends
        self.submit_gathered()
        sends = self._sends = UncommittedSends(self, part, self.transactions)
        self.link.at_tick(self.submit_gathered)
        return sends

    def lend(self) -> Pack | None:
        """Let a thread gather messages by itself; None if there is no room for many."""
        if self._pack is not None or self._queue or self.is_blocked or self.transactions.is_ending:
            return None
        part = self.transactions.part(self.channel)
        gathered = self._sends.size if self._sends is not None and not self._sends.is_submitted else 0
        size = min(PACK_BYTES, self.core.outbox(self.channel).room - gathered)
        if size <= 0 or not part.has_room(PACK_MESSAGES, gathered + HEAD_BYTES + size):
            return None
        part.rows += PACK_MESSAGES
        first_row = self.transactions.rows.take(self.channel, PACK_MESSAGES)
        pack = self._pack = Pack(self.core.session, self.channel, part, first_row, size)
        self.link.loop.call_later(PACK_SECONDS, self._end, pack)
        return pack

    def _end(self, pack: Pack) -> None:
        if pack is self._pack:
            self.recall()

    def recall(self) -> None:
        """Send on a thread's gathered messages; from now on the thread gathers no more."""
        pack, self._pack = self._pack, None
        if pack is None:
            return
        bodies, size = pack.end()
        self.transactions.rows.give_back(self.channel, pack.first_row, PACK_MESSAGES, len(bodies))
        pack.part.rows -= PACK_MESSAGES - len(bodies)
        if not bodies or pack.part.is_over:
            return
        self.submit_gathered()  # what was sent before comes before
        chunk = UncommittedSends(self, pack.part, self.transactions, bodies, size, pack.first_row)
        error = self.link.error or self.core.error
        if error is not None:
            chunk.lose(error)
        else:
            self.submit(chunk)
            self.link.flush_soon()

    async def turn(self, timeout_s: float) -> None:
        """Wait until there is room and no commit under way, in the order of asking."""
        if not self._queue and not self.is_blocked and not self.transactions.is_ending:
            return
        mine: asyncio.Future[None] = self.link.loop.create_future()
        self._queue.append(mine)
        if self._admitting is None:
            self._admitting = self.link.loop.create_task(self._admit())
        try:
            async with asyncio.timeout(timeout_s):
                with self.link.waiting():
                    await mine
                # A commit may have begun since this send was let in.
                await self.transactions.quiet()
        except TimeoutError:
            why = self.core.why_blocked(self.channel) or ", or a commit under way"
            raise Timeout(f"the message was not sent: for {timeout_s:g} s there was no room{why}") from None
        finally:
            # A send that is let in and cancelled in the same turn of the loop is not in the queue any more.
            if (not mine.done() or mine.cancelled()) and mine in self._queue:
                self._queue.remove(mine)

    async def _admit(self) -> None:
        """Let senders go on, some at a time: more would find no room and wait anew."""
        try:
            while self._queue:
                while self.link.error is None and self.core.error is None and self.is_blocked:
                    await self.link.news()
                await self.transactions.quiet()
                for mine in list(self._queue)[:ADMITTED_AT_ONCE]:
                    if not mine.done():
                        mine.set_result(None)
                    if self._queue and self._queue[0] is mine:
                        self._queue.popleft()
                await asyncio.sleep(0)
        finally:
            self._admitting = None


class PartOwner(Protocol):
    """The owner of parts: a session's transactions, or a staging."""

    rows: RowNumbers

    def settled(self, part: PartCore, item: ConfirmItem) -> None:
        """A batch of the part has its outcome."""

    def lost(self, part: PartCore, error: AntiphonError) -> None:
        """A batch of the part will have no outcome."""

    def doom(self, part: PartCore, error: AntiphonError) -> None:
        """A message of the part cannot be sent, so that nothing of the part may be committed."""

    def check(self, part: PartCore) -> None:
        """Raise if nothing can come of the part any more."""


class UncommittedSends(Sends):
    """Messages that their part counts when they leave; its owner hears their outcome."""

    __slots__ = ("_owner", "_rows", "first_row", "part", "room")

    def __init__(
        self,
        lane: SendLane,
        part: PartCore,
        owner: PartOwner,
        bodies: Bodies | None = None,
        size: int = 0,
        first_row: int | None = None,
    ) -> None:
        super().__init__(lane, FOREVER_S, bodies, size)
        self.part = part
        self._owner = owner
        # A gathering publication takes as many numbers as it may need, and gives back the rest.
        self._rows = ROWS_MAX if bodies is None else self.count
        self.first_row = owner.rows.take(part.channel, self._rows) if first_row is None else first_row
        # As it was when gathering began; sends of others in the same turn are left out of account.
        self.room = lane.core.outbox(lane.channel).room if bodies is None else 0

    @property
    def is_wanted(self) -> bool:
        return not self.part.is_over

    def leave(self, session: int, generation: int, number: int, confirmed_through: int) -> Departure | None:
        if self._rows > self.count:
            self._owner.rows.give_back(self.part.channel, self.first_row, self._rows, self.count)
        batch = self.build(session, self.first_row)
        if batch is None:
            return None
        return self.part.enclose(self, batch, session, generation, number, confirmed_through)

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        self.tell()
        self._owner.settled(self.part, outcomes[0])

    def lose(self, error: AntiphonError) -> None:
        self.tell()
        self._owner.lost(self.part, error)


class UncommittedSending(Sending):
    """A `send_many` that is done when everything has left. If it fails, nothing of it may be committed."""

    def __init__(self, lane: SendLane, part: PartCore, owner: PartOwner, timeout_s: float) -> None:
        super().__init__(lane, timeout_s)
        self._part = part
        self._owner = owner
        self._last: UncommittedSends | None = None

    async def send(self, bodies: Iterable[Any] | AsyncIterable[Any]) -> Receipts:
        try:
            await self._send_each(bodies)
        except BaseException as error:
            self.spoil(error)
            raise
        return self.receipts

    def spoil(self, error: BaseException) -> None:
        if self.receipts:
            self.doom(error)

    def doom(self, error: BaseException) -> None:
        """Nothing of the part may be committed."""
        interrupted = LocalError("sending was interrupted")
        self._owner.doom(self._part, error if isinstance(error, AntiphonError) else interrupted)

    @property
    def waiting(self) -> int:
        return int(self._is_held_up)

    @property
    def progress(self) -> None:
        """Room is waited for by `_wait_for_room`: there are no outcomes."""
        return None

    async def send_batch(self, batch: Batch) -> None:
        """Send columns; return when there is room for more. If this raises, nothing of the part may be
        committed."""
        self._submit((batch, batch.byte_size))
        await self._wait_for_room()

    def _submit(self, part: SomeBodies) -> None:
        lane = self._lane
        lane.link.check()
        lane.core.check()
        self._owner.check(self._part)
        bodies = part[0]
        if not self._part.takes_ids and not isinstance(bodies, list) and bodies.has_ids:
            refused = InvalidMessage(
                "a staged message has no dedup_id: its commit is made once, by a version"
            )
            self._owner.doom(self._part, refused)
            raise refused
        chunk = self._last = UncommittedSends(lane, self._part, self._owner, *part)
        try:
            self._part.add(chunk.count, chunk.size)
        except AntiphonError as error:
            self._owner.doom(self._part, error)
            raise
        self.receipts._add(chunk.first_row, None, chunk.count)
        lane.submit(chunk)
        # Not at once: a commit may leave with it.
        lane.link.flush_soon()

    @property
    def _is_held_up(self) -> bool:
        last = self._last
        return last is not None and not last.has_left and not last.is_settled

    async def _wait_for_room(self) -> None:
        lane = self._lane
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._is_held_up:
                    lane.link.check()
                    lane.core.check()
                    self._owner.check(self._part)
                    await lane.link.news()
        except TimeoutError:
            raise Timeout(f"not all was sent: there was no room for {self._timeout_s:g} s") from None


def refusal(item: ConfirmItem, session: int, channel: str) -> AntiphonError | None:
    """Why a batch with this outcome was not stored; None when it was."""
    return None if item.code in STORED else publish_error(item, session, channel)
