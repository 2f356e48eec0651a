"""Holding: messages that a query has not yet processed stay stored, under the query's name.

A hold is renewed with every commit, and by a thread of its own during a long batch: a batch of an hour must
not lose a hold of ten minutes. A query that is gone for good does not renew its hold, which then ends by
itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.pipeline.patience import PatientRanges

if TYPE_CHECKING:
    from antiphon.blocking.face import Ranges
    from antiphon.client.aio.ranges import RangeDestination

log = logging.getLogger("antiphon.pipeline")

RENEWALS: Final = 4
"""Renewals within the limit of a hold: so many may fail before it ends."""

RENEW_S_MAX: Final = 300.0


class QueryHold:
    """The hold of one query on all its channels."""

    def __init__(
        self, ranges: PatientRanges, name: str, limit_s: float, *, consume: bool, acks: bool
    ) -> None:
        self._ranges = ranges
        self._name = name
        self._limit_s = limit_s
        self._consume = consume
        self._acks = acks
        self._positions: dict[str, int] = {}
        self._destinations: tuple[RangeDestination, ...] = ()
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, positions: Mapping[str, int], destinations: tuple[RangeDestination, ...]) -> None:
        """Hold everything from these numbers on. An existing hold stays where it is.

        Only commits move a hold: that Spark asks for the next batch does not say that the batch before is
        recorded as processed.
        """
        new = {channel: number for channel, number in positions.items() if channel not in self._positions}
        if new or destinations != self._destinations:
            self._change(new, destinations)

    def move(self, positions: Mapping[str, int], destinations: tuple[RangeDestination, ...]) -> None:
        """Everything below these numbers is processed. The hold never goes back."""
        self._change(positions, destinations)

    def _change(self, positions: Mapping[str, int], destinations: tuple[RangeDestination, ...]) -> None:
        with self._guard:
            for channel in sorted({destination.channel for destination in destinations}):
                wanted = positions.get(channel)
                if wanted is not None:
                    self._positions[channel] = max(wanted, self._positions.get(channel, 0))
            self._destinations = destinations
            self._say(self._ranges)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="antiphon-hold", daemon=True)
            self._thread.start()

    def _say(self, ranges: PatientRanges | Ranges) -> None:
        if self._positions:
            ranges.hold(
                self._name,
                dict(self._positions),
                self._destinations,
                limit=self._limit_s,
                consume=self._consume,
                acks=self._acks,
            )

    def _renew(self) -> None:
        while not self._ended.wait(min(self._limit_s / RENEWALS, RENEW_S_MAX)):
            try:
                with self._guard:
                    # A failed renewal is tried again in its turn.
                    self._say(self._ranges.current())
            except AntiphonError as error:
                log.warning("the hold %s could not be renewed, it will be tried again: %s", self._name, error)

    def end(self) -> None:
        """Stop renewing; the hold stays until its limit, so that the query may be restarted."""
        self._ended.set()
