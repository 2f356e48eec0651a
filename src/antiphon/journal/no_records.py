"""NoRecords: what the journal is told where nobody refers to its records, as on a witness."""

from __future__ import annotations

from antiphon.errors import Damaged
from antiphon.journal.ports import Location


class NoRecords:
    """A `Referrer` that needs none."""

    def live_bytes_by_segment(self) -> dict[int, int]:
        """No segment is needed."""
        return {}

    def records_in(self, segment: int) -> list[Location]:
        """No record is needed."""
        return []

    def relocated(self, old: Location, new: Location) -> None:
        """Never told, as no record is needed."""

    def damaged(self, place: Location, error: Damaged) -> None:
        """Never told either."""
