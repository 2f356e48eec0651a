"""NoRecords: the `Referrer` of a witness, which refers to no records."""

from __future__ import annotations

from antiphon.errors import Damaged
from antiphon.journal.ports import Location


class NoRecords:
    """A `Referrer` that needs no record."""

    def live_bytes_by_segment(self) -> dict[int, int]:
        return {}

    def records_in(self, segment: int) -> list[Location]:
        return []

    def relocated(self, old: Location, new: Location) -> None:
        """Never called."""

    def damaged(self, place: Location, error: Damaged) -> None:
        """Never called."""
