"""Staging: messages that writers elsewhere store, and one word makes visible."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.batch import Batch
from antiphon.batch.bodies import Sendable
from antiphon.blocking.block import Block
from antiphon.blocking.feeding import run_fed
from antiphon.blocking.loop import LoopThread
from antiphon.client import staged_parts
from antiphon.client import staging as asynchronous
from antiphon.client.core_gathering import Row
from antiphon.client.durations import Duration
from antiphon.client.staged_parts import StagedPart
from antiphon.client.staging import TIME_LIMIT_S, Committed


class Staging(Block):
    """What one application stages, commits and gives up; see `antiphon.Staging`.

    >>> with connection.staging("nightly-report") as staging:
    ...     part = staging.stage("queue:alerts", [b"a", b"b"])
    ...     staging.commit(7, [part])
    'committed'
    """

    def __init__(self, loop: LoopThread, staging: asynchronous.Staging) -> None:
        self._loop = loop
        self._staging = staging

    @property
    def application(self) -> str:
        return self._staging.application

    @property
    def closed(self) -> bool:
        """Was it closed, or can it not go on?"""
        return self._staging.closed

    def stage(
        self,
        destination: str,
        bodies: Iterable[Sendable | Row],
        *,
        part: StagedPart | None = None,
        time_limit: Duration = TIME_LIMIT_S,
        timeout: Duration | None = None,
    ) -> StagedPart:
        """Store messages without showing them; return when all of them are stored.

        They are taken from the iterable in the caller's thread.

        >>> part = staging.stage("queue:alerts", [b"a", b"b"])
        """
        return run_fed(
            self._loop,
            bodies,
            lambda rows: self._staging.stage(
                destination, rows, part=part, time_limit=time_limit, timeout=timeout
            ),
        )

    def writer(
        self,
        *,
        part: StagedPart | None = None,
        time_limit: Duration = TIME_LIMIT_S,
        timeout: Duration | None = None,
    ) -> PartWriter:
        """A way to stage a part that is written batch by batch, and to several destinations.

        >>> with staging.writer() as writer:
        ...     writer.write("queue:alerts", batch)
        ...     part = writer.seal()
        """
        writer = self._staging.writer(part=part, time_limit=time_limit, timeout=timeout)
        self._loop.run(writer._opened())
        return PartWriter(self._loop, writer)

    def commit(
        self, version: int, parts: Iterable[StagedPart], *, timeout: Duration | None = None
    ) -> Committed:
        """Make all the parts visible, all at once and once only.

        >>> staging.commit(7, [part])
        'committed before'
        """
        return self._loop.run(self._staging.commit(version, list(parts), timeout=timeout))

    def abort(self, parts: Iterable[StagedPart]) -> None:
        """Drop what was staged. What is committed stays, so this never does harm.

        >>> staging.abort([part])
        """
        self._loop.run(self._staging.abort(list(parts)))

    def close(self) -> None:
        """End its session. What is staged stays.

        >>> staging.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._staging.close())

    def __repr__(self) -> str:
        return repr(self._staging)


class PartWriter(Block):
    """Stages one part, batch by batch; see `antiphon.Staging.writer`.

    >>> with staging.writer() as writer:
    ...     writer.write("queue:alerts", batch)
    ...     part = writer.seal()
    """

    def __init__(self, loop: LoopThread, writer: staged_parts.PartWriter) -> None:
        self._loop = loop
        self._writer = writer

    def write(self, destination: str, batch: Batch) -> None:
        """Have the rows of a batch stored without showing them; return when there is room for more.

        >>> writer.write("queue:alerts", batch)
        """
        self._loop.run(self._writer.write(destination, batch))

    def seal(self) -> StagedPart:
        """Return when everything is stored: the part, with all that was written.

        >>> part = writer.seal()
        """
        return self._loop.run(self._writer.seal())

    def close(self) -> None:
        """Drop what was not sealed.

        >>> writer.close()
        """
        if not self._loop.is_over:
            self._loop.run(self._writer.close())

    def __repr__(self) -> str:
        return repr(self._writer)
