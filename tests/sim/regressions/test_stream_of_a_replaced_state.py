"""A primary whose state was replaced, and a client manager that heard nothing of it any more.

1. A sequencer lacked an envelope, and took over a checkpoint of another node, in the term that it served.
2. It began its streams to the client managers anew, with number 1 and under the same names: term and run.
3. A client manager had taken 50 numbers of its stream. It took the new ones for repetitions, acknowledged 50,
   and the primary, which had sent six, passed over that. Consumers got nothing any more.
4. Streams behind a replaced state are named after the number of the state now, so they are other streams.

The steps behind it: tests/unit/message_manager/test_installing.py
Found by: antiphon sim transactions --seed 3105000658
"""

from __future__ import annotations

import pytest

from antiphon.sim import disk_faults, faults, limits
from antiphon.sim.runs import run


@pytest.fixture(autouse=True)
def _all_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is one with drawn limits and faults of disks."""
    for drawn in (limits, faults, disk_faults):
        monkeypatch.setattr(drawn, "are_drawn", True)


def test_consumers_go_on_behind_a_replaced_state() -> None:
    assert run("transactions", 3_105_000_658, without=("Spanning",)).is_clean
