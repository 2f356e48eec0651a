"""Sending: the way of messages from `send` and `send_many` to the outbox, and of their outcomes back."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Generic, TypeAlias, TypeVar

from antiphon import clock
from antiphon.batch import BODY_BYTES_MAX, Batch, BatchBuilder
from antiphon.client.aio.link import ClientLink
from antiphon.client.aio.resending import Uncertain
from antiphon.client.core.outcomes import ACCEPTED, STORED, lost_error, publish_error
from antiphon.client.core.publication import (
    GATHERED_BYTES_MAX,
    HEAD_BYTES,
    ROW_BYTES,
    Bodies,
    Publication,
    Row,
)
from antiphon.client.core.receipts import Receipt, Receipts, receipt_of
from antiphon.client.core.session import SessionCore
from antiphon.errors import (
    AntiphonError,
    LocalError,
    MessageTooLarge,
    PublishError,
    PublishRefused,
    PublishUncertain,
    Timeout,
)
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import DestinationOpened

log = logging.getLogger("antiphon")

AGE_SHARE = 16
"""Messages that travel together expire together. So messages join others only while those are young: no older
than a sixteenth of their time."""


class SendLane:
    """The way of one session's messages to one destination.

    All producers of a session for a destination share one, so that their messages stay in order.
    """

    def __init__(self, link: ClientLink, core: SessionCore, opened: DestinationOpened) -> None:
        self.link = link
        self.core = core
        self.target = opened
        self.channel = opened.channel
        self.destination = opened.destination
        self.settings_version = opened.settings_version
        self._sends: Sends | None = None

    async def send(self, body: bytes | None, row: Row | None, timeout_s: float) -> Receipt:
        """Send one message, a plain body or a whole row; return when that is all its sender waits for."""
        sends = self.gather(timeout_s, row)
        ticket: asyncio.Future[Outcome] = self.link.loop.create_future()
        if row is not None:
            sends.add(row, ticket)
        else:
            assert body is not None, "a message is a body or a row"
            sends.add_plain(body, ticket)
        outcome = await ticket
        if isinstance(outcome, AntiphonError) or outcome[0].code not in ACCEPTED:
            raise self._failure(sends, ticket, outcome)
        return receipt_of(outcome[0], self.core.session, self.channel, outcome[0].number)

    def gather(self, timeout_s: float, row: Row | None) -> Sends:
        """The publication for a message, or for a plain body: one that has not left yet, or a new one.

        Non-persistent messages travel apart from others: they are taken before the others are stored.
        """
        sends, is_persistent = self._sends, row is None or row.persistent
        if sends is not None and not sends.first_number:
            is_like = sends.timeout_s == timeout_s and sends.is_persistent == is_persistent
            if is_like and self._may_grow(sends, row):
                return sends
            self.submit_gathered()
        sends = self._sends = Sends(self, timeout_s)
        sends.is_persistent = is_persistent
        self.link.core.watch(sends, int(timeout_s * 1e9))
        self.link.at_tick(self.submit_gathered)
        return sends

    def _may_grow(self, sends: Sends, row: Row | None) -> bool:
        if not sends.has_room_for(row):
            return False
        if not sends.is_submitted:
            return True
        # The publication waits for room. An added message must not come before those that wait behind it.
        age_ns = clock.now_ns() - sends.opened_ns
        is_last = self.core.outbox(self.channel).last_waiting is sends
        return is_last and age_ns * AGE_SHARE < sends.timeout_s * 1e9

    def submit_gathered(self) -> None:
        sends = self._sends
        if sends is None or sends.is_submitted:
            return
        sends.is_submitted = True
        if self.link.error is not None:
            sends.lose(self.link.lost())
        elif self.core.error is not None:
            sends.lose(self.core.error)
        elif sends.count:
            self.submit(sends)
        else:
            # The only message for it was refused by its check.
            sends.is_settled = True

    @property
    def is_blocked(self) -> bool:
        """Would another message have to wait before it leaves?"""
        sends = self._sends
        gathered = sends.size if sends is not None and not sends.is_submitted else 0
        return not self.core.outbox(self.channel).has_room(gathered + 1)

    def _failure(self, sends: Sends, ticket: asyncio.Future[Outcome], outcome: Outcome) -> AntiphonError:
        if not isinstance(outcome, AntiphonError):
            return publish_error(outcome[0], self.core.session, self.channel)
        if isinstance(outcome, PublishUncertain):
            self.uncertain([sends], sends.timeout_s).explain(outcome, sends.tickets.index(ticket))
        return outcome

    def note_unstored(self, count: int, why: AntiphonError) -> None:
        """Non-persistent messages whose senders were told that they were taken are not stored, or perhaps
        not: their senders do not wait to be told."""
        self.core.unstored += count
        text = f"{count} non-persistent message{'' if count == 1 else 's'} for channel {self.channel}: {why}"
        log.warning("%s", text)
        if isinstance(why, PublishUncertain):
            self.link.report(PublishUncertain(text, message_ids=why.message_ids))
        else:
            self.link.report(PublishRefused(text))

    def uncertain(self, publications: Sequence[Publication], timeout_s: float) -> Uncertain:
        """The means to send these again."""
        return Uncertain(self.link, self.core, self.channel, publications, timeout_s)

    def too_late(self, publication: Publication, timeout_s: float) -> Timeout:
        """Why the outcome of a publication is not known in time, as far as that is known."""
        what = "its outcome was not known" if publication.has_left else "it could not leave"
        return Timeout(f"{what} within {timeout_s:g} s{self.core.why_blocked(self.channel)}")

    async def send_many(self, bodies: Iterable[Any] | AsyncIterable[Any], timeout_s: float) -> Receipts:
        return await (await self.begin_sending(timeout_s)).send(bodies)

    async def send_batches(self, batches: AsyncIterable[Batch], timeout_s: float) -> Receipts:
        return await (await self.begin_sending(timeout_s)).send_batches(batches)

    async def begin_sending(self, timeout_s: float) -> Sending:
        """Many messages are about to be sent."""
        self.submit_gathered()  # what was sent before comes before
        return Sending(self, timeout_s)

    async def target_of(self, message_id: str, timeout_s: float) -> DestinationOpened:
        """Where a message with this id was sent to."""
        return self.target

    def would_block(self, key: str | None, dedup_id: str | bytes | None) -> bool:
        """Would such a message have to wait before it leaves?"""
        return self.is_blocked

    def submit(self, publication: Publication) -> None:
        """Hand a publication over. It leaves when there is room, and when the link is flushed."""
        self.core.submit(self.channel, publication)


Outcome: TypeAlias = list[ConfirmItem] | AntiphonError
"""The outcome of messages that share a ticket: their items, or why these will never be known."""


class Sends(Publication):
    """Messages that travel together, and the futures of their senders: one for all, or one for each. The
    result of a future is never an exception: no sender may be left to look at it."""

    __slots__ = ("_lane", "is_persistent", "is_submitted", "opened_ns", "timeout_s")

    def __init__(
        self,
        lane: SendLane,
        timeout_s: float,
        bodies: Bodies | None = None,
        size: int = 0,
        ticket: asyncio.Future[Outcome] | None = None,
    ) -> None:
        self.opened_ns = clock.now_ns()
        super().__init__(
            bodies,
            HEAD_BYTES + size,
            ticket,
            destination=lane.destination,
            settings_version=lane.settings_version,
            timestamp_ms=time.time_ns() // 1_000_000,
            deadline_ns=self.opened_ns + int(timeout_s * 1e9),
        )
        self.timeout_s = timeout_s
        self.is_submitted = False
        self.is_persistent = True
        self._lane = lane

    @property
    def outcome(self) -> asyncio.Future[Outcome]:
        outcome: asyncio.Future[Outcome] = self.tickets[0]
        return outcome

    def settle(self, outcomes: list[ConfirmItem]) -> None:
        """Tell all senders the outcome of their messages, or that they are taken."""
        if self.is_taken and self.is_settled:
            self._settle_taken(outcomes)
        if self.waiting and self.is_settled:
            self.tell()
        tickets: list[asyncio.Future[Outcome]] = self.tickets
        if len(tickets) == 1:
            if not tickets[0].done():
                tickets[0].set_result(outcomes)
            return
        for first, count, code, sequence, text in outcomes:
            place = first - self.first_number
            for past, ticket in enumerate(islice(tickets, place, place + count)):
                if not ticket.done():
                    ticket.set_result([ConfirmItem(first + past, 1, code, sequence + past, text)])

    def _settle_taken(self, outcomes: list[ConfirmItem]) -> None:
        lane = self._lane
        for item in outcomes:
            if item.code not in STORED:
                lane.note_unstored(item.count, publish_error(item, lane.core.session, lane.channel))

    def lose(self, error: AntiphonError) -> None:
        """The outcome will not be known in time: tell all senders whether their messages had left."""
        self.tell()
        session, channel = self._lane.core.session, self._lane.channel
        if self.is_taken:
            why = lost_error(error, session, channel, self.first_number, self.count)
            self._lane.note_unstored(self.count, why)
            return
        count = self.count if len(self.tickets) == 1 else 1
        for place, ticket in enumerate(self.tickets):
            if not ticket.done():
                number = self.first_number + place if self.has_left else 0
                ticket.set_result(lost_error(error, session, channel, number, count))

    def expire(self) -> None:
        if self.is_taken:
            # They are still sent, for as long as the session lives.
            return
        self.lose(self._lane.too_late(self, self.timeout_s))


ROWS_FIRST = 64
"""Bodies taken from an iterator while their size is unknown. They may be of 1 MiB each."""

ROWS_AT_ONCE_MAX = 8_192

Part: TypeAlias = tuple[Bodies, int]
"""The contents of a chunk, and their size, about."""

PartT = TypeVar("PartT", bound=tuple[Any, ...])
"""A part of what is sent: its contents, its size, and perhaps where it goes."""


class _SourceFailed(Exception):
    """The iterable of bodies raised, as its cause says."""


class Feeding(Generic[PartT]):
    """Bodies on their way from an application: taken from an iterable, and cut into parts that are submitted.

    A subclass says what becomes of a part. After the first failure nothing more is submitted.
    """

    def __init__(self, link: ClientLink, chunk_bytes: int) -> None:
        self.failure: AntiphonError | None = None
        self._link = link
        self._chunk_bytes = chunk_bytes
        self._pending: list[Any] = []
        self._pending_bytes = 0

    @property
    def receipts(self) -> Sequence[Receipt]:
        """The receipts of the messages from the start on that are stored."""
        raise NotImplementedError

    def _parts(self, bodies: list[Any]) -> list[PartT]:
        """The bodies as parts; raises if one may not be sent."""
        raise NotImplementedError

    def _submit(self, part: PartT) -> None:
        raise NotImplementedError

    @property
    def _is_held_up(self) -> bool:
        """Does a submitted part wait for room?"""
        raise NotImplementedError

    async def _wait_for_room(self) -> None:
        raise NotImplementedError

    async def _drain(self) -> None:
        """Wait for the outcome of everything that was submitted."""
        raise NotImplementedError

    def _harvest(self) -> None:
        """Take the outcomes that are known."""
        raise NotImplementedError

    def _call_back(self) -> None:
        """What has not left is not sent any more."""
        raise NotImplementedError

    async def _finish(self, submitting: Awaitable[None]) -> None:
        try:
            await submitting
        except (LocalError, _SourceFailed) as error:
            # A body may not be sent, or the iterable failed. Earlier bodies may be on their way.
            await self._drain()
            if self.failure is None and (self.receipts or isinstance(error, _SourceFailed)):
                stored = len(self.receipts)
                raise PublishRefused(
                    f"the first {stored} messages are stored, those after them were not sent: {error}",
                    confirmed=stored,
                ) from (error.__cause__ or error)
            if self.failure is None:
                raise
        except BaseException:
            self._call_back()
            raise
        await self._drain()
        if self.failure is not None:
            raise self.failure

    async def _send_each(self, bodies: Iterable[Any] | AsyncIterable[Any]) -> None:
        if isinstance(bodies, AsyncIterable):
            await self._send_async(bodies)
        else:
            await self._send_all(bodies)

    async def _send_columns(self, batches: AsyncIterable[Batch]) -> None:
        async for batch in batches:
            for part in self._columns(batch):
                self._submit(part)
            await self._wait_for_room()
            if self.failure is not None:
                return

    async def _send_all(self, bodies: Iterable[Any]) -> None:
        iterator = iter(bodies)
        rows = ROWS_AT_ONCE_MAX if isinstance(bodies, list | tuple) else ROWS_FIRST
        while taken := _taken(iterator, rows):
            parts = self._parts(taken)
            for part in parts:
                self._submit(part)
                await self._wait_for_room()
                if self.failure is not None:
                    return
            average = max(1, sum([part[1] for part in parts]) // len(taken))
            rows = min(ROWS_AT_ONCE_MAX, 8 * rows, max(ROWS_FIRST, self._chunk_bytes // average))

    async def _send_async(self, bodies: AsyncIterable[Any]) -> None:
        """Bodies that a source gives without pausing travel together; when it pauses, they leave."""
        refused: list[LocalError] = []

        def submit_pending() -> None:
            try:
                self._submit_pending()
            except LocalError as error:
                refused.append(error)

        iterator = aiter(bodies)
        while True:
            try:
                body = await anext(iterator)
            except StopAsyncIteration:
                break
            except Exception as error:
                submit_pending()
                raise _SourceFailed(str(error)) from error
            if not self._pending:
                self._link.at_tick(submit_pending)
            self._pending.append(body)
            self._pending_bytes += ROW_BYTES + (len(body) if isinstance(body, bytes | str) else ROW_BYTES)
            if self._pending_bytes >= self._chunk_bytes:
                submit_pending()
            if self._is_held_up:
                await self._wait_for_room()
            if refused or self.failure is not None:
                break
        submit_pending()
        if refused:
            raise refused[0]

    def _submit_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        self._harvest()
        if pending and self.failure is None:
            for part in self._parts(pending):
                self._submit(part)

    def _columns(self, batch: Batch) -> list[PartT]:
        """A batch as parts."""
        raise NotImplementedError


class Sending(Feeding[Part]):
    """The chunks of one `send_many` to one channel: in flight, confirmed, or failed.

    Chunks are pipelined as far as the session's window allows. After the first one that is
    not stored nothing more is sent.
    """

    def __init__(self, lane: SendLane, timeout_s: float) -> None:
        # Several chunks fit the window, so that one is on its way while another is written.
        super().__init__(lane.link, min(GATHERED_BYTES_MAX, max(1, lane.core.window_bytes // 4)))
        self._receipts = Receipts(lane.core.session, lane.channel)
        self._lane = lane
        self._timeout_s = timeout_s
        self._chunks: deque[Sends] = deque()
        self._uncertain: list[Sends] = []

    @property
    def receipts(self) -> Receipts:
        return self._receipts

    async def send(self, bodies: Iterable[Any] | AsyncIterable[Any]) -> Receipts:
        """Send everything; return when all is stored, raise when not."""
        await self._finish(self._send_each(bodies))
        return self.receipts

    async def send_batches(self, batches: AsyncIterable[Batch]) -> Receipts:
        """Send columns; return when all is stored, raise when not."""
        await self._finish(self._send_columns(batches))
        return self.receipts

    def _parts(self, bodies: list[Any]) -> list[Part]:
        return parts_of(bodies, self._chunk_bytes)

    def _columns(self, batch: Batch) -> list[Part]:
        return [(batch, batch.byte_size)]

    def _submit(self, part: Part) -> None:
        lane = self._lane
        lane.link.check()
        lane.core.check()
        chunk = Sends(lane, self._timeout_s, *part, lane.link.loop.create_future())
        self._chunks.append(chunk)
        lane.link.core.watch(chunk, int(self._timeout_s * 1e9))
        lane.submit(chunk)
        lane.link.flush()

    @property
    def _is_held_up(self) -> bool:
        """Does a submitted chunk wait for room?"""
        return bool(self._chunks) and not self._chunks[-1].has_left

    @property
    def waiting(self) -> int:
        """How many submitted chunks wait for room."""
        return sum([not chunk.has_left for chunk in self._chunks])

    @property
    def progress(self) -> asyncio.Future[Outcome] | None:
        """Done when there may be more room; None if that is to be waited for by `_wait_for_room`."""
        return self._chunks[0].outcome if self._chunks else None

    def spoil(self, error: BaseException) -> None:
        """The sending ends with this error: in a transaction nothing of it may be committed."""

    async def _wait_for_room(self) -> None:
        self._harvest()
        while self._chunks and not self._chunks[-1].has_left and self.failure is None:
            await self._chunks[0].outcome
            self._harvest()

    async def _drain(self) -> None:
        """Wait for the outcome of all submitted chunks."""
        while self._chunks:
            await self._chunks[0].outcome
            self._harvest()

    def _harvest(self) -> None:
        while self._chunks and self._chunks[0].outcome.done():
            chunk = self._chunks.popleft()
            self._note(chunk, chunk.outcome.result())

    def _note(self, chunk: Sends, outcome: Outcome) -> None:
        if isinstance(outcome, AntiphonError):
            if isinstance(outcome, PublishUncertain) and (self.failure is None or self._uncertain):
                self._uncertain.append(chunk)
                self._lane.uncertain(self._uncertain, self._timeout_s).explain(outcome)
            self._fail(outcome)
            return
        for item in sorted(outcome):
            if item.code not in ACCEPTED:
                self._fail(publish_error(item, self._lane.core.session, self._lane.channel))
            elif self.failure is None:
                self.receipts._add_item(item)

    def _fail(self, error: AntiphonError) -> None:
        """A chunk was not stored, or may not have been. The first error is the one that is raised."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, PublishError):
                error.confirmed = len(self.receipts)
            self._call_back()
        elif isinstance(self.failure, PublishUncertain) and isinstance(error, PublishUncertain):
            self.failure.message_ids += error.message_ids

    def _call_back(self) -> None:
        self._pending.clear()
        for chunk in self._chunks:
            if not chunk.has_left and not chunk.outcome.done():
                chunk.outcome.set_result([])


def parts_of(bodies: list[Any], size_max: int) -> list[Part]:
    """The bodies in parts of about `size_max` bytes; raises if one may not be sent."""
    if are_bytes(bodies):
        return _cut(bodies, size_max)
    return [(builder, builder.byte_size) for builder in _build(bodies, size_max)]


def _taken(iterator: Iterator[Any], rows: int) -> list[Any]:
    """The next bodies. Those that came before the iterable raised are left out with it."""
    try:
        return list(islice(iterator, rows))
    except Exception as error:
        raise _SourceFailed(str(error)) from error


def are_bytes(bodies: Iterable[Any]) -> bool:
    """Are these plain bodies, which travel as they are?"""
    return set(map(type, bodies)) == {bytes}


def check_plain(bodies: Iterable[Any] | AsyncIterable[Any]) -> None:
    """Refuse a list with a body that is too large before any is sent."""
    if isinstance(bodies, list | tuple) and are_bytes(bodies):
        _check_lengths(list(map(len, bodies)))


def _check_lengths(lengths: list[int]) -> None:
    if lengths and max(lengths) > BODY_BYTES_MAX:
        place = lengths.index(max(lengths))
        raise MessageTooLarge(
            f"body {place} of {lengths[place]:,} bytes is larger than the {BODY_BYTES_MAX:,} allowed"
        )


def _cut(bodies: list[bytes], size_max: int) -> list[Part]:
    """The bodies in parts of about `size_max` bytes, with their sizes."""
    lengths = list(map(len, bodies))
    _check_lengths(lengths)
    total = sum(lengths) + ROW_BYTES * len(bodies)
    if total <= 2 * size_max:
        return [(bodies, total)]
    ends = list(accumulate(length + ROW_BYTES for length in lengths))
    parts: list[Part] = []
    start = before = 0
    while start < len(bodies):
        stop = max(start + 1, bisect_right(ends, before + size_max))
        parts.append((bodies[start:stop], ends[stop - 1] - before))
        start, before = stop, ends[stop - 1]
    return parts


def _build(bodies: Iterable[Any], size_max: int) -> list[BatchBuilder]:
    timestamp_ms = time.time_ns() // 1_000_000
    builders = [BatchBuilder()]
    for body in bodies:
        builder = builders[-1]
        is_in_the_way = isinstance(body, Row) and body.dedup_id is not None and not builder.takes_ids
        if builder.count and (builder.is_full or builder.byte_size >= size_max or is_in_the_way):
            builders.append(BatchBuilder())
        if isinstance(body, Row):
            body._add_to(builders[-1], timestamp_ms)
        else:
            builders[-1].add(body, timestamp_ms=timestamp_ms)
    return builders
