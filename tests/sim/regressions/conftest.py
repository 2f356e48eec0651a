"""Seeds that found something keep their meaning: they are of a time when no limits were drawn, and clocks
stood still in clusters alone.
"""

from __future__ import annotations

import pytest

from antiphon.sim import faults, limits


@pytest.fixture(autouse=True)
def _usual_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "are_drawn", False)
    monkeypatch.setattr(faults, "are_drawn", False)
