"""Spanning: the way of one session's messages to a destination that has a part in several channels.

SPL1  A message stays with the channel that it was given to: there it gets its number, and is stored once.
SPL2  A message without a key goes to a channel that takes messages, as long as there is one.
SPL3  A message with a key waits for the channel of its key, however long that is away, within its time limit.

`core/spanning` chooses the channels. Which messages travel together is each channel's own lane's business.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain, groupby, repeat, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias

from antiphon.batch import Batch
from antiphon.batch.layout import ColumnId
from antiphon.client.aio.block import Once
from antiphon.client.aio.link import ClientLink
from antiphon.client.aio.parts import is_away, told, until_open
from antiphon.client.aio.sending import Feeding, Sending, SendLane, are_bytes, parts_of
from antiphon.client.aio.transacting import TransactedLane, UncommittedSending
from antiphon.client.core.publication import GATHERED_BYTES_MAX, Bodies, Row
from antiphon.client.core.receipts import Receipt, Receipts, SpanningReceipts
from antiphon.client.core.session import SessionCore
from antiphon.client.core.spanning import Turns, place_of
from antiphon.errors import (
    AntiphonError,
    LocalError,
    PublishError,
    PublishRefused,
    PublishUncertain,
    Timeout,
)
from antiphon.ids import parse_message_id
from antiphon.wire.frames import DestinationOpened

CHUNKS_AHEAD: Final = 8
"""So many chunks may wait for room in one channel, while others go on."""


class SpanningLane:
    """The lanes to the parts, as one. The producers of a session share the lanes, and take turns each."""

    def __init__(
        self,
        link: ClientLink,
        core: SessionCore,
        destination: str,
        channels: Sequence[str],
        open_part: Callable[[str], Coroutine[Any, Any, SendLane]],
        leave: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """`leave` runs a coroutine that is not waited for."""
        self.link = link
        self.core = core
        self.channel = ""  # none of its own
        self.channels = tuple(channels)
        self._destination = destination
        self._openings = [Once(partial(open_part, channel)) for channel in channels]
        self._leave = leave
        self._turns = Turns(len(channels))
        # The channel of the keyless messages of this turn of the loop.
        self._current: int | None = None

    async def opened(self) -> None:
        """Open the parts; those of channels that are away are opened when these are there."""
        openings = dict(zip(self.channels, self._openings, strict=True))
        outcomes = await told({channel: opening.get for channel, opening in openings.items()})
        errors = [error for error in outcomes.values() if error is not None]
        fatal = [error for error in errors if not is_away(error)]
        if fatal or len(errors) == len(openings):
            raise (fatal or errors)[0]
        for channel, error in outcomes.items():
            if error is not None:
                self._leave(until_open(openings[channel].get))

    # -- choosing --------------------------------------------------------------

    def _takes(self, place: int) -> bool:
        """Would a message leave at once?"""
        lane = self._openings[place].result
        return lane is not None and not lane.is_blocked

    def _is_there(self, place: int) -> bool:
        """Is the lane open, and its channel not known to be away?"""
        lane = self._openings[place].result
        return lane is not None and not self.core.why_blocked(lane.channel)

    def is_open(self, place: int) -> bool:
        """Is there a lane to this part?"""
        return self._openings[place].result is not None

    def fit(self) -> list[int]:
        """The channels among which messages without keys are shared (SPL2)."""
        places = range(len(self.channels))
        for is_fit in (self._takes, self._is_there, self.is_open):
            if found := [place for place in places if is_fit(place)]:
                return found
        return list(places)

    def _place(self, key: str | None, dedup_id: str | bytes | None) -> int:
        place = place_of(key, dedup_id, len(self.channels))
        if place is not None:
            return place
        current = self._current
        if current is None or not self._takes(current):
            current = self._turns.next(self._takes, self._is_there, self.is_open)
            if self._current is None:
                self.link.at_tick(self._end_turn)
            self._current = current
        return current

    def _end_turn(self) -> None:
        self._current = None

    def shares(self, count: int) -> list[tuple[int, int, int]]:
        """See `Turns.shares`."""
        return self._turns.shares(count, self.fit())

    async def lane(self, place: int, timeout_s: float) -> tuple[SendLane, float]:
        """The lane to a part, and the rest of the time."""
        opening = self._openings[place]
        if (lane := opening.result) is not None:
            return lane, timeout_s
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                await until_open(opening.get)
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise
            why = self.core.why_blocked(self.channels[place])
            raise Timeout(
                f"the message was not sent: for {timeout_s:g} s channel {self.channels[place]} of "
                f"{self._destination} was away{why}"
            ) from None
        opened = opening.result
        assert opened is not None, "a part is open without a lane"
        return opened, max(0.0, timeout_s - (time.monotonic() - began_s))

    # -- sending ---------------------------------------------------------------

    async def send(self, body: bytes | None, row: Row | None, timeout_s: float) -> Receipt:
        """Send one message, a plain body or a whole row."""
        place = self._place(None, None) if row is None else self._place(row.key, row.dedup_id)
        lane = self._openings[place].result
        if lane is None:
            lane, timeout_s = await self.lane(place, timeout_s)
        return await lane.send(body, row, timeout_s)

    async def send_many(
        self, bodies: Iterable[Any] | AsyncIterable[Any], timeout_s: float
    ) -> SpanningReceipts:
        return await SpanningSending(self, timeout_s).send(bodies)

    async def send_batches(self, batches: AsyncIterable[Batch], timeout_s: float) -> SpanningReceipts:
        if any(isinstance(opening.result, TransactedLane) for opening in self._openings):
            raise LocalError("batches are staged, or sent outside of transactions")
        return await SpanningSending(self, timeout_s).send_batches(batches)

    async def target_of(self, message_id: str, timeout_s: float) -> DestinationOpened:
        channel = parse_message_id(message_id).channel
        if channel not in self.channels:
            raise LocalError(
                f"{message_id} was sent to channel {channel!r}; this destination is in "
                f"{', '.join(self.channels)}"
            )
        lane, left_s = await self.lane(self.channels.index(channel), timeout_s)
        return await lane.target_of(message_id, left_s)

    def submit_gathered(self) -> None:
        for opening in self._openings:
            if opening.result is not None:
                opening.result.submit_gathered()

    @property
    def is_blocked(self) -> bool:
        """Would a message without a key have to wait before it leaves?"""
        return not any(map(self._takes, range(len(self.channels))))

    def would_block(self, key: str | None, dedup_id: str | bytes | None) -> bool:
        place = place_of(key, dedup_id, len(self.channels))
        return self.is_blocked if place is None else not self._takes(place)


class ShareOfChannel(NamedTuple):
    """A part of what is sent, its size, about, and the channel it goes to."""

    bodies: Bodies
    size: int
    place: int


Begin: TypeAlias = Callable[[SendLane], Coroutine[Any, Any, Sending]]
"""Makes the sending to one channel."""


class SpanningSending(Feeding[ShareOfChannel]):
    """The shares of one `send_many`, each of which is sent as to an ordinary destination.

    Bodies without keys are cut into consecutive shares. When something goes wrong, `confirmed` counts the
    messages from the start that are stored; others behind them may be stored, too, in other channels.
    """

    def __init__(self, lane: SpanningLane, timeout_s: float, begin: Begin | None = None) -> None:
        super().__init__(lane.link, min(GATHERED_BYTES_MAX, max(1, lane.core.window_bytes // 4)))
        self._lane = lane
        self._timeout_s = timeout_s
        self._begin = begin
        self._sendings: dict[int, Sending] = {}
        # Shares of channels that are away, until these are there.
        self._late: list[ShareOfChannel] = []
        self._stored = [Receipts(lane.core.session, channel) for channel in lane.channels]
        self._receipts = SpanningReceipts(lane.core.session, self._stored)

    @property
    def receipts(self) -> SpanningReceipts:
        self._receipts._count()
        return self._receipts

    async def send(self, bodies: Iterable[Any] | AsyncIterable[Any]) -> SpanningReceipts:
        """Send everything; return when all is stored, or in a transaction when all has left."""
        await self.open()
        if not self._is_uncommitted:
            await self._to_the_end(self._send_each(bodies))
            return self.receipts
        try:
            await self._send_each(bodies)
            await self._drain()
            self._check()
        except BaseException as error:
            for sending in self._sendings.values():
                sending.spoil(error)
            raise
        return self.receipts

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def send_batches(self, batches: AsyncIterable[Batch]) -> SpanningReceipts:
        """Send columns; return when all is stored, raise when not."""
        await self.open()
        await self._to_the_end(self._send_columns(batches))
        return self.receipts

    async def send_batch(self, batch: Batch) -> None:
        """Send columns that wait for a commit; return when there is room for more. If this raises, nothing of
        the part may be committed."""
        try:
            for share in self._columns(batch):
                self._submit(share)
            await self._wait_for_room()
            self._check()
        except BaseException as error:
            for sending in self._sendings.values():
                if isinstance(sending, UncommittedSending):
                    sending.doom(error)
            raise

    async def open(self) -> None:
        """Make a sending for each channel that is there."""
        for place in range(len(self._lane.channels)):
            if self._lane.is_open(place):
                await self._sending(place)

    async def _sending(self, place: int) -> Sending:
        lane, _ = await self._lane.lane(place, self._timeout_s)
        begin = self._begin or partial(_begin, self._timeout_s)
        sending = self._sendings[place] = await begin(lane)
        self._stored[place] = sending.receipts
        return sending

    async def _to_the_end(self, submitting: Awaitable[None]) -> None:
        try:
            await self._finish(submitting)
        except PublishError as error:
            error.confirmed = len(self.receipts)
            if isinstance(error, PublishUncertain):
                self._gather_uncertain(error)
            raise

    def _gather_uncertain(self, error: PublishUncertain) -> None:
        """One error for the messages of all channels whose fate is not known."""
        errors = [one.failure for one in self._sendings.values()]
        again = [one._again for one in errors if isinstance(one, PublishUncertain) and one._again is not None]
        others = [one for one in errors if isinstance(one, PublishUncertain) and one is not error]
        error.message_ids += tuple([id for other in others for id in other.message_ids])
        if len(again) > 1:
            error._again = partial(_all_again, self._lane.core.session, again)

    # -- sharing out -----------------------------------------------------------

    def _parts(self, bodies: list[Any]) -> list[ShareOfChannel]:
        count = len(self._lane.channels)
        of_place: dict[int, list[Any]] = {}
        runs: Iterable[tuple[int, int]]
        if are_bytes(bodies):
            shares = self._lane.shares(len(bodies))
            of_place = {place: bodies[start:stop] for place, start, stop in shares}
            runs = [(place, stop - start) for place, start, stop in shares]
        else:
            shared = self._shared_out(
                [place_of(one.key, one.dedup_id, count) if isinstance(one, Row) else None for one in bodies]
            )
            for body, place in zip(bodies, shared, strict=True):
                of_place.setdefault(place, []).append(body)
            runs = _runs(shared)
        cut = [
            [ShareOfChannel(*part, place) for part in parts_of(some, self._chunk_bytes)]
            for place, some in of_place.items()
        ]
        self._note(runs)
        return [share for shares in zip_longest(*cut) for share in shares if share is not None]

    def _shared_out(self, places: list[int | None]) -> list[int]:
        """The channel of each message: that of its key, or consecutive shares of those without one."""
        free = places.count(None)
        turns = chain.from_iterable(
            repeat(place, stop - start) for place, start, stop in (self._lane.shares(free) if free else ())
        )
        return [next(turns) if place is None else place for place in places]

    def _note(self, runs: Iterable[tuple[int, int]]) -> None:
        """The next messages go to these channels, so many to each."""
        for place, count in runs:
            self._receipts._share(place, count)

    def _columns(self, batch: Batch) -> list[ShareOfChannel]:
        count = len(self._lane.channels)
        if batch.column(ColumnId.KEY) is None and not batch.has_ids:
            ((place, _, _),) = self._lane.shares(1)
            self._note([(place, batch.count)])
            return [ShareOfChannel(batch, batch.byte_size, place)]
        rows = range(batch.count)
        shared = self._shared_out([place_of(batch.key(row), batch.dedup_id(row), count) for row in rows])
        of_place: dict[int, list[int]] = {}
        for row, place in enumerate(shared):
            of_place.setdefault(place, []).append(row)
        self._note(_runs(shared))
        parts = [(place, batch.take(some).closed_up()) for place, some in of_place.items()]
        return [ShareOfChannel(part, part.byte_size, place) for place, part in parts]

    # -- sending ---------------------------------------------------------------

    @property
    def _is_uncommitted(self) -> bool:
        return any(isinstance(one, UncommittedSending) for one in self._sendings.values())

    def _submit(self, part: ShareOfChannel) -> None:
        sending = self._sendings.get(part.place)
        if sending is None or any(late.place == part.place for late in self._late):
            self._late.append(part)
        else:
            sending._submit((part.bodies, part.size))

    @property
    def _is_held_up(self) -> bool:
        """Is a channel away, or has one more to send than it should, or all of them something?"""
        waiting = [one.waiting for one in self._sendings.values()]
        return bool(self._late) or max(waiting, default=0) > CHUNKS_AHEAD or all(waiting)

    async def _wait_for_room(self) -> None:
        await self._submit_late()
        self._harvest()
        while self._is_held_up and self.failure is None:
            futures = [one.progress for one in self._sendings.values() if one.waiting]
            outcomes = [one for one in futures if one is not None]
            if outcomes:
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
            else:
                for sending in self._sendings.values():
                    await sending._wait_for_room()
            self._harvest()

    async def _submit_late(self) -> None:
        """Wait for the channels that were away."""
        while self._late and self.failure is None:
            try:
                sending = self._sendings.get(self._late[0].place) or await self._sending(self._late[0].place)
            except Timeout as error:
                self._fail(PublishRefused(str(error)))
                return
            bodies, size, _ = self._late.pop(0)
            sending._submit((bodies, size))

    async def _drain(self) -> None:
        await self._submit_late()
        for sending in self._sendings.values():
            if isinstance(sending, UncommittedSending):
                await sending._wait_for_room()
            await sending._drain()
        self._harvest()

    def _harvest(self) -> None:
        for sending in self._sendings.values():
            sending._harvest()
            if sending.failure is not None and self.failure is None:
                self._fail(sending.failure)

    def _fail(self, error: AntiphonError) -> None:
        self.failure = error
        self._call_back()

    def _call_back(self) -> None:
        self._pending.clear()
        self._late.clear()
        for sending in self._sendings.values():
            sending._call_back()


def _runs(places: list[int]) -> Iterable[tuple[int, int]]:
    """Messages that go to one channel one after the other, and how many they are."""
    return [(place, sum(1 for _ in run)) for place, run in groupby(places)]


async def _begin(timeout_s: float, lane: SendLane) -> Sending:
    return await lane.begin_sending(timeout_s)


async def _all_again(
    session: int, again: Sequence[Callable[[Any], Awaitable[Any]]], timeout: Any
) -> SpanningReceipts:
    """Send the messages of several channels again; their receipts, channel after channel."""
    parts = [await one(timeout) for one in again]
    receipts = SpanningReceipts(session, parts)
    for place, part in enumerate(parts):
        receipts._share(place, len(part))
    receipts._count()
    return receipts
