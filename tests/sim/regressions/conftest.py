"""Seeds that found something keep their meaning: they are of a time when no limits were drawn."""

from __future__ import annotations

import pytest

from antiphon.sim import limits


@pytest.fixture(autouse=True)
def _usual_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "are_drawn", False)
