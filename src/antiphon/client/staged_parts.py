"""Staged parts: what a writer has staged, and the way there.

A part is written by one process and committed by another, so what stands for it can be pickled. Its batches
are counted in each channel: one that lacks something never looks whole.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.batch import Batch
from antiphon.client.block import Block
from antiphon.client.core_transaction import PartCore, RowNumbers, StagedPartCore
from antiphon.client.link import Link
from antiphon.client.publications import Lane
from antiphon.client.scope import SessionScope
from antiphon.client.transacting import UncommittedSending, refusal
from antiphon.errors import AntiphonError, InvalidName, LocalError, PublishRefused, Timeout
from antiphon.names import parse_destination
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.transactions import DropStaged


class StagedPiece(NamedTuple):
    """What a part has in one channel, which is found by one of its destinations."""

    channel: str
    destination: str
    batches: int
    messages: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What a writer has staged. It can be pickled, and is all that whoever commits needs.

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
    """What of a part goes to one channel."""

    before: StagedPiece
    core: StagedPartCore
    writing: Writing

    @property
    def piece(self) -> StagedPiece:
        core, before = self.core, self.before
        return StagedPiece(core.channel, before.destination, core.batches, before.messages + core.messages)


class PartWriter(Block):
    """Stages one part, batch by batch, for as many destinations as need be; `staging.writer` makes them.

    A batch is handed over when `write` returns, and stored when `seal` does. What was not sealed when the
    block ends is dropped.

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
        self._sendings: dict[str, UncommittedSending] = {}
        self._is_sealed = False

    async def write(self, destination: str, batch: Batch) -> None:
        """Have the rows of a batch stored without showing them; return when there is room for more.

        Whose they are and how they are numbered is said here, whatever the batch says. If this
        raises, nothing of the part can be committed.

        >>> await writer.write("queue:alerts", batch)
        """
        sending = self._sendings.get(destination) or await self._open(destination)
        await sending.send_batch(batch)

    async def _open(self, destination: str) -> UncommittedSending:
        """The way to a destination."""
        if self._is_sealed:
            raise LocalError("the part is sealed")
        if parse_destination(destination).is_reserved:
            raise InvalidName(f"{destination}: names that begin with _ are the system's own")
        lane = await self._scope.open_lane(destination)
        channel = self._channels.get(lane.channel) or self._begin(lane, destination)
        sending = UncommittedSending(lane, channel.core, channel.writing, self._timeout_s)
        self._sendings[destination] = sending
        return sending

    def _begin(self, lane: Lane, destination: str) -> _Channel:
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
        """Drop what was not sealed; it is not waited for.

        >>> await writer.close()
        """
        if not self._is_sealed:
            self._drop()

    def _drop(self) -> None:
        """Give up everything. What nobody hears of goes when its time is over."""
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
    """One `stage` on its way: it is done when all its batches have their outcome."""

    def __init__(self, link: Link, session: int, rows: RowNumbers, part: StagedPartCore) -> None:
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
        """Wait until everything is stored."""
        if not self._is_done:
            self._told = self.link.loop.create_future()
            try:
                async with asyncio.timeout(timeout_s):
                    with self.link.waiting():
                        await self._told
            except TimeoutError:
                raise Timeout(f"not everything was staged within {timeout_s:g} s") from None
        self.check(self._part)
