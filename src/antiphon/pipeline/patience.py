"""Patience: waiting for a cluster that does not answer for a while, as in a rolling restart.

    PAT1  A question that failed because no node answered is asked again every `retryInterval`, until a node
          answers or the `timeout` is over; then the last error is raised. Any other error is raised at once.
    PAT2  The log says when waiting begins, goes on, and is over.
    PAT3  A query that only asks for news is not held up: it is told that there is no answer now.
    PAT4  A driver that never reached a server fails soon: most likely it has the wrong address.

The client library restores a lost connection, and waits some seconds itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon.errors import (
    AntiphonError,
    ConnectionFailed,
    DestinationUnavailable,
    NotConnected,
    RangeUnavailable,
    Timeout,
    TlsFailed,
)

if TYPE_CHECKING:
    from antiphon.blocking.face import Ranges
    from antiphon.client.aio.holds import HoldReport
    from antiphon.client.aio.ranges import Bound, ChannelHead, RangeDestination, RangePage
    from antiphon.names import Match

log = logging.getLogger("antiphon.pipeline")

T = TypeVar("T")

AWAY: Final = (ConnectionFailed, NotConnected, Timeout, DestinationUnavailable, RangeUnavailable)
"""The errors of a cluster that does not answer."""

SAY_AGAIN_S: Final = 30.0


class NoAnswerNow(Exception):
    """No node answers at the moment, and the caller does not want to wait."""


class RetryPolicy:
    """For how long no node has answered, and whether that is too long."""

    def __init__(
        self,
        timeout_s: float,
        retry_s: float,
        *,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._now_s = now_s
        self._sleep = sleep
        self._since_s: float | None = None
        self._said_s = 0.0
        self._error: AntiphonError | None = None
        self.has_answered = False

    @property
    def waiting(self) -> str | None:
        """Since when and why no node answers, in words; None if one does."""
        if self._since_s is None:
            return None
        return f"no answer for {self._now_s() - self._since_s:.0f} s: {self._error}"

    def answered(self) -> None:
        if self._since_s is not None:
            log.warning("the cluster answers again after %.0f s", self._now_s() - self._since_s)
            self._since_s = None
        self.has_answered = True

    def wait(self, error: AntiphonError) -> None:
        """No node answered: wait for a moment, or raise the error if it has been too long."""
        now_s = self._now_s()
        if self._since_s is None:
            # The time that the client library has waited before does not count.
            self._since_s = self._said_s = now_s
            if self._timeout_s > 0:
                log.warning(
                    "the cluster does not answer; it is asked again every %g s for at most %g s: %s",
                    self._retry_s,
                    self._timeout_s,
                    error,
                )
        self._error = error
        left_s = self._since_s + self._timeout_s - now_s
        if left_s <= 0:
            raise error
        if now_s - self._said_s >= SAY_AGAIN_S:
            self._said_s = now_s
            log.warning("the cluster has not answered for %.0f s: %s", now_s - self._since_s, error)
        self._sleep(min(self._retry_s, left_s))

    def ask(self, question: Callable[[], T]) -> T:
        """The answer to a question, asked as often as need be."""
        while True:
            try:
                answer = question()
            except AWAY as error:
                if isinstance(error, TlsFailed) and not self.has_answered:
                    # Time does not mend that; a query that runs outlasts a mistake with new certificates.
                    raise
                self.wait(error)
            else:
                self.answered()
                return answer


class PatientRanges:
    """Range reads over the present connection."""

    def __init__(
        self, opened: Callable[[], Ranges], patience: RetryPolicy, *, waits_at_first: bool = True
    ) -> None:
        """Without `waits_at_first`, a cluster that never answered is not waited for (PAT4)."""
        self._opened = opened
        self._patience = patience
        self._waits_at_first = waits_at_first
        self._waits = True

    @property
    def waiting(self) -> str | None:
        """Since when and why no node answers, in words; None if one does."""
        return self._patience.waiting

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Questions in this block are asked once, and raise NoAnswerNow (PAT3)."""
        self._waits = False
        try:
            yield
        finally:
            self._waits = True

    def current(self) -> Ranges:
        """The reads themselves, for a caller that handles failures itself."""
        return self._opened()

    def _ask(self, question: Callable[[Ranges], T]) -> T:
        while True:
            try:
                answer = question(self._opened())
            except AWAY as error:
                is_known = self._waits_at_first or self._patience.has_answered
                if isinstance(error, ConnectionFailed) and not is_known:
                    raise
                self._patience.wait(error)
                if not self._waits:
                    raise NoAnswerNow from error
            else:
                self._patience.answered()
                return answer

    # -- the questions -----------------------------------------------------------

    @property
    def versions(self) -> Mapping[str, int]:
        """The versions of the last listings over the present connection; no node is asked."""
        try:
            return self._opened().versions
        except AWAY:
            return {}

    def cluster(self) -> str:
        return self._ask(lambda ranges: ranges.cluster())

    def destinations(
        self, names: Iterable[str] = (), *, pattern: str | None = None, match: Match = "glob"
    ) -> tuple[RangeDestination, ...]:
        return self._ask(lambda ranges: ranges.destinations(names, pattern=pattern, match=match))

    def heads(
        self, destinations: Iterable[RangeDestination], above: Mapping[str, int] | None = None, **more: Any
    ) -> dict[str, ChannelHead]:
        return self._ask(lambda ranges: ranges.heads(destinations, above, **more))

    def bound(
        self, channel: str, destinations: Iterable[RangeDestination], start: int, stop: int, **more: Any
    ) -> Bound:
        return self._ask(lambda ranges: ranges.bound(channel, destinations, start, stop, **more))

    def at_time(self, channel: str, log_time_ms: int) -> int:
        return self._ask(lambda ranges: ranges.at_time(channel, log_time_ms))

    def holds(self) -> tuple[HoldReport, ...]:
        return self._ask(lambda ranges: ranges.holds())

    def hold(
        self,
        name: str,
        positions: Mapping[str, int],
        destinations: Iterable[RangeDestination],
        **more: Any,
    ) -> None:
        self._ask(lambda ranges: ranges.hold(name, positions, destinations, **more))

    def read(
        self, channel: str, start: int, stop: int, destinations: Iterable[RangeDestination], **more: Any
    ) -> Iterator[RangePage]:
        """The pages of a range; after a failure those that follow the last one that came."""
        while start < stop:
            try:
                for page in self._opened().read(channel, start, stop, destinations, **more):
                    self._patience.answered()
                    start = page.through + 1
                    yield page
                return
            except AWAY as error:
                self._patience.wait(error)
