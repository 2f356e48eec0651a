"""WatchedPayloads: the payloads of a journal, whose losses the checkers see."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.ids import Mid
from antiphon.journal.payload_index import PayloadIndex


class WatchedPayloads:
    def __init__(self, payloads: PayloadIndex, on_discarded: Callable[[Mid], None]) -> None:
        self._discard = payloads.discard
        self._on_discarded = on_discarded
        self.has = payloads.has
        self.locate = payloads.locate
        self.read = payloads.read
        self.record = payloads.record
        self.place = payloads.place
        self.location_of = payloads.location_of
        self.copied = payloads.copied
        self.forget_copies = payloads.forget_copies

    def discard(self, mid: Mid) -> None:
        self._on_discarded(mid)
        self._discard(mid)
