"""A voter that lies below the base, and another whose disk is lost: the third brings both back.

1. Checkpoints of every few entries were stable; the log of node 3 began behind one of them. Node 1 had slept
   and lay below it. Then node 2 lost its disk.
2. Nobody came to lead: node 3 could not start node 1, since what lay between was in no log, and node 1 could
   not take the checkpoint of node 3, since only a sequencer could have told it that it was stable.
3. But it was the base of node 3, and a base is always stable: its own word is enough.

Found by: antiphon sim bus --seed 3513
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_group_comes_to_life_again() -> None:
    report = run("bus", 3513)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
