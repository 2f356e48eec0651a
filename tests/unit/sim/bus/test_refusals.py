"""Which numbers the application of a simulated bus refuses."""

from __future__ import annotations

import pytest

from antiphon.sim.bus.refusals import refusals


@pytest.mark.parametrize("one_in", [1, 2, 7])
def test_one_number_in_so_many_is_refused(one_in: int) -> None:
    """One in seven was all: a run had seven times as many outcomes under way as it reckoned with."""
    refused = refusals(1, 14 * one_in, one_in)
    assert [outcome.first for outcome in refused] == list(range(one_in, 14 * one_in + 1, one_in))


def test_none_is_refused_where_all_are_done() -> None:
    assert refusals(1, 100, 0) == ()
