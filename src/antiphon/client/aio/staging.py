"""Staging: messages that several writers store, and one commit makes visible, all at once and once only.

Made for applications whose writers are many processes and come and go, such as a Spark sink. Each writer
stages a part and hands it over; one of them commits all parts under a version. Staged messages belong to no
session: they wait for their commit until their time is over, whichever process dies meanwhile. A version that
was committed before is not committed again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from antiphon.batch import Batch
from antiphon.batch.bodies import Sendable
from antiphon.client.aio.block import Block, Duration, seconds, timeout_s
from antiphon.client.aio.link import ClientLink
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.sending import SendLane
from antiphon.client.aio.spanning import SpanningLane, SpanningSending
from antiphon.client.aio.transacting import UncommittedSending, refusal
from antiphon.client.aio.transactions import look_at
from antiphon.client.core.publication import Row
from antiphon.client.core.transaction import PartCore, RowNumbers, StagedPartCore
from antiphon.errors import (
    AntiphonError,
    CommitUncertain,
    DestinationError,
    DestinationUnavailable,
    InvalidMessage,
    InvalidName,
    LocalError,
    NotConnected,
    PublishRefused,
    SessionClosed,
    Timeout,
    TransactionRolledBack,
)
from antiphon.ids import U64_MAX
from antiphon.names import parse_destination
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import DestinationOpened, TransactionDecided
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import STAGED_SECONDS_MAX, DropStaged


class StagedPiece(NamedTuple):
    """The contents of a part in one channel, which is found by one of its destinations."""

    channel: str
    destination: str
    batches: int
    messages: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A writer's staged messages. It can be pickled, and is all that a commit needs.

    >>> part = await staging.stage("queue:alerts", [b"a", b"b"])
    >>> part.messages, part.channels
    (2, ('a',))
    """

    id: int
    application: str
    pieces: tuple[StagedPiece, ...] = ()

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(piece.channel for piece in self.pieces)

    @property
    def messages(self) -> int:
        return sum(piece.messages for piece in self.pieces)

    def _piece(self, channel: str) -> StagedPiece | None:
        return next((piece for piece in self.pieces if piece.channel == channel), None)

    def _with_piece(self, piece: StagedPiece) -> StagedPart:
        """The same part with more in one channel."""
        others = [known for known in self.pieces if known.channel != piece.channel]
        return StagedPart(self.id, self.application, tuple(sorted((*others, piece))))


@dataclass(frozen=True, slots=True)
class _Channel:
    before: StagedPiece
    core: StagedPartCore
    writing: Writing

    @property
    def piece(self) -> StagedPiece:
        core, before = self.core, self.before
        return StagedPiece(core.channel, before.destination, core.batches, before.messages + core.messages)


class PartWriter(Block):
    """Stages one part, batch by batch, for as many destinations as need be; `staging.writer` makes them.

    A batch is handed over when `write` returns, and stored when `seal` does. Without a `seal` the part is
    dropped at the end of the block.

    >>> async with staging.writer() as writer:
    ...     await writer.write("queue:alerts", batch)
    ...     part = await writer.seal()
    """

    def __init__(
        self, scope: SessionScope, rows: RowNumbers, part: StagedPart, limit_s: int, timeout_s: float
    ) -> None:
        self._part = part
        self._scope = scope
        self._rows = rows
        self._limit_s = limit_s
        self._timeout_s = timeout_s
        self._channels: dict[str, _Channel] = {}
        self._sendings: dict[str, UncommittedSending | SpanningSending] = {}
        self._is_sealed = False

    async def write(self, destination: str, batch: Batch) -> None:
        """Have the rows of a batch stored without showing them; return when there is room for more.

        The writer gives the rows their producer and numbers, whatever the batch says. If this raises, nothing
        of the part can be committed.

        >>> await writer.write("queue:alerts", batch)
        """
        sending = self._sendings.get(destination) or await self._open(destination)
        await sending.send_batch(batch)

    async def _open(self, destination: str) -> UncommittedSending | SpanningSending:
        if self._is_sealed:
            raise LocalError("the part is sealed")
        if parse_destination(destination).is_reserved:
            raise InvalidName(f"{destination}: names that begin with _ are the system's own")
        lane = await self._scope.open_lane(destination)
        begin = partial(self._begin_sending, destination)
        sending: UncommittedSending | SpanningSending
        if isinstance(lane, SpanningLane):
            sending = SpanningSending(lane, self._timeout_s, begin)
            await sending.open()
        else:
            sending = await begin(lane)
        self._sendings[destination] = sending
        return sending

    async def _begin_sending(self, destination: str, lane: SendLane) -> UncommittedSending:
        channel = self._channels.get(lane.channel) or self._begin(lane, destination)
        return UncommittedSending(lane, channel.core, channel.writing, self._timeout_s)

    def _begin(self, lane: SendLane, destination: str) -> _Channel:
        before = self._part._piece(lane.channel) or StagedPiece(lane.channel, destination, 0, 0)
        core = StagedPartCore(
            lane.channel, self._part.application, self._part.id, self._limit_s, before.batches
        )
        core.rows = before.messages
        writing = Writing(lane.link, lane.core.session, self._rows, core)
        channel = self._channels[lane.channel] = _Channel(before, core, writing)
        return channel

    async def seal(self) -> StagedPart:
        """Return when everything is stored: the part, with all that was written.

        >>> part = await writer.seal()
        """
        for channel in self._channels.values():
            await channel.writing.stored(self._timeout_s)
        for channel in self._channels.values():
            if channel.core.messages:
                self._part = self._part._with_piece(channel.piece)
        self._is_sealed = True
        return self._part

    async def close(self) -> None:
        """Drop an unsealed part, without waiting.

        >>> await writer.close()
        """
        if not self._is_sealed:
            self._drop()

    def _drop(self) -> None:
        """Drop everything. Parts that no commit names go when their time is over."""
        self._is_sealed = True
        for name, channel in self._channels.items():
            channel.core.is_over = True
            core, link = self._scope.opened_core, channel.writing.link
            if channel.core.batches and link.error is None and core is not None and core.error is None:
                core.outbox(name).order(DropStaged(parts=(self._part.id,)), self._scope.new_fate())
                link.flush_soon()

    async def _opened(self) -> PartWriter:
        await self._scope.core()
        return self

    def __repr__(self) -> str:
        return f"<PartWriter of {self._part.application}>"


class Writing:
    """One `stage` on its way: done when all its batches have their outcome."""

    def __init__(self, link: ClientLink, session: int, rows: RowNumbers, part: StagedPartCore) -> None:
        self.rows = rows
        self.link = link
        self._session = session
        self._part = part
        self._outcomes = 0  # of its batches
        self._error: AntiphonError | None = None
        self._told: asyncio.Future[None] | None = None

    def settled(self, part: PartCore, item: ConfirmItem) -> None:
        self._outcomes += 1
        error = refusal(item, self._session, part.channel)
        if error is not None:
            text = item.text or error.text
            self.doom(part, PublishRefused(f"nothing of the part is staged any more: {text}"))
        self._tell()

    def lost(self, part: PartCore, error: AntiphonError) -> None:
        self.doom(part, error)

    def doom(self, part: PartCore, error: AntiphonError) -> None:
        self._error = self._error or error
        part.is_over = True
        self._tell()

    def check(self, part: PartCore) -> None:
        if self._error is not None:
            raise self._error

    def _tell(self) -> None:
        if self._told is not None and not self._told.done() and self._is_done:
            self._told.set_result(None)

    @property
    def _is_done(self) -> bool:
        return self._error is not None or self._outcomes == self._part.batches_new

    async def stored(self, timeout_s: float) -> None:
        if not self._is_done:
            self._told = self.link.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    with self.link.waiting():
                        await self._told
            except TimeoutError:
                raise Timeout(f"not everything was staged within {timeout_s:g} s") from None
        self.check(self._part)


TIME_LIMIT_S = 3_600
"""How long a part waits for its commit, by default."""

APPLICATION_BYTES_MAX = 255

Committed = Literal["committed", "committed before"]


class Staging(Block):
    """Stages, commits and aborts parts of one application; `connection.staging` makes them.

    >>> async with connection.staging("nightly-report") as staging:
    ...     part = await staging.stage("queue:alerts", [b"a", b"b"])
    ...     await staging.commit(7, [part])
    'committed'
    """

    def __init__(self, scope: SessionScope, application: str) -> None:
        if not (isinstance(application, str) and 0 < len(application.encode()) <= APPLICATION_BYTES_MAX):
            raise InvalidName(f"an application is named by 1 to {APPLICATION_BYTES_MAX} bytes of text")
        self.application = application
        self._rows = RowNumbers()
        self._scope = scope
        self._commits = 0
        self._deciding: asyncio.Task[Committed] | None = None

    async def stage(
        self,
        destination: str,
        bodies: Iterable[Sendable | Row] | AsyncIterable[Sendable | Row],
        *,
        part: StagedPart | None = None,
        time_limit: Duration = TIME_LIMIT_S,
        timeout: Duration | None = None,
    ) -> StagedPart:
        """Store messages without showing them; return when all of them are stored.

        They become visible when their part is committed, and go when it is aborted or when
        `time_limit` is over. Given a `part`, they are added to it, for this destination or another one;
        what is returned stands in its place then. If this raises, nothing of the part can be committed.

        >>> part = await staging.stage("queue:alerts", [b"a", antiphon.Row(b"b", priority=7)])
        >>> part = await staging.stage("topic:audit", [b"c"], part=part, time_limit=600)
        """
        if isinstance(bodies, bytes | bytearray | memoryview | str | Mapping):
            raise InvalidMessage("stage takes an iterable of bodies")
        writer = self.writer(part=part, time_limit=time_limit, timeout=timeout)
        sending = await writer._open(destination)
        try:
            await sending.send(bodies)
            return await writer.seal()
        except BaseException:
            writer._drop()
            raise

    def writer(
        self,
        *,
        part: StagedPart | None = None,
        time_limit: Duration = TIME_LIMIT_S,
        timeout: Duration | None = None,
    ) -> PartWriter:
        """A way to stage a part that is written batch by batch, and to several destinations.

        `time_limit` is how long it waits for its commit, from its last batch on; `timeout` (60 s if not
        given) the time that storing may take.

        >>> async with staging.writer() as writer:
        ...     await writer.write("queue:alerts", batch)
        ...     part = await writer.seal()
        """
        if part is not None and part.application != self.application:
            raise LocalError(f"the part belongs to {part.application!r}, not to {self.application!r}")
        limit_s = seconds(time_limit, "time_limit")
        if not 1 <= limit_s <= STAGED_SECONDS_MAX:
            raise LocalError(f"time_limit is 1 to {STAGED_SECONDS_MAX:,} s; it was {limit_s:g}")
        part = part or StagedPart(secrets.randbits(128) or 1, self.application)
        return PartWriter(self._scope, self._rows, part, int(limit_s), timeout_s(timeout))

    async def commit(
        self, version: int, parts: Iterable[StagedPart], *, timeout: Duration | None = None
    ) -> Committed:
        """Make all the parts visible, all at once; other parts of the application are not touched.

        Versions rise. If this one, or a later one, was committed before, the parts are dropped, and
        nothing happens twice: "committed before". TransactionRolledBack if it could not be, for one
        because a part is not there any more; the others stay staged. When the outcome is not known
        after `timeout` (60 s if not given) this raises CommitUncertain; committing the same version
        again is safe.

        >>> await staging.commit(7, [part])
        'committed before'
        """
        if not (isinstance(version, int) and not isinstance(version, bool) and 0 <= version <= U64_MAX):
            raise LocalError(f"a version is a number from 0 on; it was {version!r}")
        parts = list(parts)
        limit_s = timeout_s(timeout)
        try:
            async with asyncio.timeout(limit_s):
                while self._deciding is not None and not self._deciding.done():
                    # Commits go one at a time; this one will tell the outcome of the one before.
                    await asyncio.wait((self._deciding,))
                deciding = self._deciding = asyncio.create_task(self._commit(version, parts))
                deciding.add_done_callback(look_at)
                return await asyncio.shield(deciding)
        except AntiphonError:
            raise
        except TimeoutError:
            raise self._uncertain(version, f"it was not known within {limit_s:g} s") from None

    def _uncertain(self, version: int, why: str) -> CommitUncertain:
        return CommitUncertain(
            f"whether version {version} of {self.application} was committed is not known: {why}",
            transaction_id=f"{self.application}:{version}",
        )

    async def _commit(self, version: int, parts: list[StagedPart]) -> Committed:
        pieces = self._by_channel(parts)
        core = await self._scope.core()
        link = self._scope.link
        while not core.is_open:
            await link.news()
            link.check()
            core.check()
        self._commits += 1
        generation = core.generation
        request = link.core.commit_transaction(core, self._commits, pieces, self.application, version)
        try:
            decided = await link.call(request, TransactionDecided, None)
        except AntiphonError as error:
            if isinstance(error, NotConnected | SessionClosed) or core.generation != generation:
                # On another connection the outcome was asked for, and not known.
                raise self._uncertain(version, error.text) from error
            raise
        if decided.fate is TransactionFate.ROLLED_BACK:
            raise TransactionRolledBack(decided.text)
        if decided.fate is TransactionFate.COMMITTED:
            return "committed"
        try:
            await self.abort(parts)
        except AntiphonError:
            # They go when their time is over.
            pass
        return "committed before"

    async def abort(self, parts: Iterable[StagedPart]) -> None:
        """Drop staged parts. Committed ones stay, so this never does harm.

        >>> await staging.abort([part])
        """
        parts = list(parts)
        named = {piece.channel: piece.destination for part in parts for piece in part.pieces}
        for channel, _, _, _, ids in self._by_channel(parts):
            core = await self._scope.core()
            link = self._scope.link
            request = link.core.open_destination(
                named[channel], create=False, session=core.session, channel=channel
            )
            try:
                await link.call(request, DestinationOpened, self._scope.timeout)
            except DestinationUnavailable:
                raise
            except DestinationError:
                # With the destination everything staged for it has lost its meaning.
                continue
            await self._scope.order(channel, DropStaged(parts=ids))

    def _by_channel(self, parts: Iterable[StagedPart]) -> tuple[TransactionPart, ...]:
        """The contents of each channel, in the order of the parts."""
        found: dict[str, TransactionPart] = {}
        for part in parts:
            if not isinstance(part, StagedPart) or part.application != self.application:
                raise LocalError(f"not a part that was staged for {self.application}: {part!r}")
            for channel, _, batches, messages in part.pieces:
                known = found.get(channel) or TransactionPart(channel, 0, 0)
                found[channel] = TransactionPart(
                    channel, known.batches + batches, known.messages + messages, (), (*known.staged, part.id)
                )
        return tuple(found[channel] for channel in sorted(found))

    async def close(self) -> None:
        """End its session. Staged parts stay.

        >>> await staging.close()
        """
        await self._scope.close()

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on?"""
        return self._scope.is_over

    async def _opened(self) -> Staging:
        await self._scope.core()
        return self

    def __repr__(self) -> str:
        return f"<Staging of {self.application}>"
