"""Seeds that found something keep their meaning: they are of a time when neither limits nor faults of disks
were drawn, and clocks stood still in clusters alone.
"""

from __future__ import annotations

import pytest

from antiphon.sim import disk_faults, faults, limits


@pytest.fixture(autouse=True)
def _usual_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for drawn in (limits, faults, disk_faults):
        monkeypatch.setattr(drawn, "are_drawn", False)
