"""Sending: the way of a `send_many` from any iterable to receipts."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterable, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

from antiphon.batch import BODY_BYTES_MAX, BatchBuilder
from antiphon.client.core_gathering import GATHERED_BYTES_MAX, HEAD_BYTES, ROW_BYTES
from antiphon.client.outcomes import STORED, publish_error
from antiphon.client.publications import Fate, ManySends, Route
from antiphon.client.receipts import Receipts
from antiphon.errors import (
    AntiphonError,
    LocalError,
    MessageTooLarge,
    PublishError,
    PublishRefused,
    PublishUncertain,
)

ROWS_FIRST = 64
"""Bodies taken from an iterator before anything is known about their size. They may be of 1 MiB each."""

ROWS_AT_ONCE_MAX = 8_192


class Sending:
    """The chunks of one `send_many`: in flight, confirmed, or failed.

    Chunks are pipelined as far as the session's window allows. After the first one that is
    not stored nothing more is sent.
    """

    def __init__(self, route: Route, timeout_s: float) -> None:
        self.receipts = Receipts(route.core.session, route.channel)
        self.failure: AntiphonError | None = None
        self._route = route
        self._timeout_s = timeout_s
        # Several chunks fit the window, so that one is on its way while another is written.
        self._chunk_bytes = min(GATHERED_BYTES_MAX, max(1, route.core.window_bytes // 4))
        self._chunks: deque[ManySends] = deque()
        self._pending: list[Any] = []
        self._pending_bytes = 0

    async def send(self, bodies: Iterable[Any] | AsyncIterable[Any]) -> Receipts:
        """Send everything; return when all is stored, raise when not."""
        try:
            if isinstance(bodies, AsyncIterable):
                await self._send_async(bodies)
            else:
                await self._send_all(bodies)
        except LocalError as error:
            # One body may not be sent. Those before it may be on their way.
            await self._drain()
            if self.failure is None and self.receipts:
                stored = len(self.receipts)
                raise PublishRefused(
                    f"the first {stored} messages are stored, those after them were not sent: {error}",
                    confirmed=stored,
                ) from error
            if self.failure is None:
                raise
        except BaseException:
            self._call_back()
            raise
        await self._drain()
        if self.failure is not None:
            raise self.failure
        return self.receipts

    # -- taking bodies ---------------------------------------------------------

    async def _send_all(self, bodies: Iterable[Any]) -> None:
        iterator = iter(bodies)
        rows = ROWS_AT_ONCE_MAX if isinstance(bodies, list | tuple) else ROWS_FIRST
        while self.failure is None and (chunk := list(islice(iterator, rows))):
            size = self._submit(chunk)
            rows = min(ROWS_AT_ONCE_MAX, 8 * rows, max(ROWS_FIRST, len(chunk) * self._chunk_bytes // size))
            await self._wait_for_room()

    async def _send_async(self, bodies: AsyncIterable[Any]) -> None:
        """What a source gives without pausing travels together; when it pauses, what is there leaves."""
        refused: list[LocalError] = []

        def submit_pending() -> None:
            try:
                self._submit_pending()
            except LocalError as error:
                refused.append(error)

        async for body in bodies:
            if not self._pending:
                self._route.link.at_tick(submit_pending)
            self._pending.append(body)
            self._pending_bytes += ROW_BYTES + (len(body) if isinstance(body, bytes | str) else ROW_BYTES)
            if self._pending_bytes >= self._chunk_bytes:
                submit_pending()
                await self._wait_for_room()
            if refused or self.failure is not None:
                break
        submit_pending()
        if refused:
            raise refused[0]

    def _submit_pending(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        if pending and self.failure is None:
            self._submit(pending)

    # -- chunks ----------------------------------------------------------------

    def _submit(self, bodies: list[Any]) -> int:
        """Send bodies, or none of them if one may not be sent; about how many bytes they take."""
        timestamp_ms = time.time_ns() // 1_000_000
        parts: list[tuple[Sequence[bytes] | BatchBuilder, int]]
        if _are_bytes(bodies):
            parts = _cut(bodies, self._chunk_bytes)
        else:
            parts = [
                (builder, builder.byte_size) for builder in _build(bodies, timestamp_ms, self._chunk_bytes)
            ]
        for part, size in parts:
            self._submit_chunk(part, size, timestamp_ms)
        return sum(size for _, size in parts)

    def _submit_chunk(self, bodies: Sequence[bytes] | BatchBuilder, size: int, timestamp_ms: int) -> None:
        route = self._route
        route.link.check()
        chunk = ManySends(
            route, bodies, size=HEAD_BYTES + size, timestamp_ms=timestamp_ms, timeout_s=self._timeout_s
        )
        self._chunks.append(chunk)
        route.link.core.watch(chunk, int(self._timeout_s * 1e9))
        route.submit(chunk)
        route.link.flush()

    async def _wait_for_room(self) -> None:
        """Wait until all chunks have left, or something went wrong."""
        self._harvest()
        while self._chunks and not self._chunks[-1].has_left and self.failure is None:
            await self._chunks[0].fate
            self._harvest()

    async def _drain(self) -> None:
        """Wait for the fate of everything that was submitted."""
        while self._chunks:
            await self._chunks[0].fate
            self._harvest()

    def _harvest(self) -> None:
        while self._chunks and self._chunks[0].fate.done():
            self._note(self._chunks.popleft().fate.result())

    def _note(self, fate: Fate) -> None:
        if isinstance(fate, AntiphonError):
            self._fail(fate)
            return
        for item in fate:
            if item.code not in STORED:
                self._fail(publish_error(item, self._route.core.session, self._route.channel))
            elif self.failure is None:
                self.receipts.add(item.number, item.sequence, item.count)

    def _fail(self, error: AntiphonError) -> None:
        """Something was not stored, or may not have been. The first such error is the one that is told."""
        if self.failure is None:
            self.failure = error
            if isinstance(error, PublishError):
                error.confirmed = len(self.receipts)
            self._call_back()
        elif isinstance(self.failure, PublishUncertain) and isinstance(error, PublishUncertain):
            self.failure.message_ids += error.message_ids

    def _call_back(self) -> None:
        """What has not left is not to leave."""
        self._pending.clear()
        for chunk in self._chunks:
            if not chunk.has_left and not chunk.fate.done():
                chunk.fate.set_result([])


def _are_bytes(bodies: Iterable[Any]) -> bool:
    return set(map(type, bodies)) == {bytes}


def check_plain(bodies: Iterable[Any] | AsyncIterable[Any]) -> None:
    """Of bodies that are all there already, refuse one that is too large before any is sent."""
    if isinstance(bodies, list | tuple) and _are_bytes(bodies):
        _check_lengths(list(map(len, bodies)))


def _check_lengths(lengths: list[int]) -> None:
    if lengths and max(lengths) > BODY_BYTES_MAX:
        place = lengths.index(max(lengths))
        raise MessageTooLarge(
            f"body {place} of {lengths[place]:,} bytes is larger than the {BODY_BYTES_MAX:,} allowed"
        )


def _cut(bodies: list[bytes], size_max: int) -> list[tuple[Sequence[bytes] | BatchBuilder, int]]:
    """The bodies in parts of about `size_max` bytes, with their sizes."""
    lengths = list(map(len, bodies))
    _check_lengths(lengths)
    total = sum(lengths) + ROW_BYTES * len(bodies)
    if total <= 2 * size_max:
        return [(bodies, total)]
    ends = list(accumulate(length + ROW_BYTES for length in lengths))
    parts: list[tuple[Sequence[bytes] | BatchBuilder, int]] = []
    start = before = 0
    while start < len(bodies):
        stop = max(start + 1, bisect_right(ends, before + size_max))
        parts.append((bodies[start:stop], ends[stop - 1] - before))
        start, before = stop, ends[stop - 1]
    return parts


def _build(bodies: Iterable[Any], timestamp_ms: int, size_max: int) -> list[BatchBuilder]:
    builders = [BatchBuilder()]
    for body in bodies:
        if builders[-1].is_full or builders[-1].byte_size >= size_max:
            builders.append(BatchBuilder())
        builders[-1].add(body, timestamp_ms=timestamp_ms)
    return builders
