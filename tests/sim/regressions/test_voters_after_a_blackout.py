"""Two voters with the same two checkpoints, after a blackout, and a third whose disk is lost.

1. Node 1 and node 3 had checkpoints at 12 and at 26. The one at 12 was known to be stable; the log of node 3
   began there, that of node 1 at the beginning. All nodes went down, and the disk of node 2 was lost.
2. Nobody came to lead. Node 3 could not start node 1 below its base; node 1 had the checkpoint at 12, but it
   had come back with the ledger of the newer one only, and a log begins with a ledger.
3. A node now comes back with the ledgers of both.

Found by: antiphon sim bus --seed 5000684
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_one_of_them_leads() -> None:
    report = run("bus", 5000684)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
