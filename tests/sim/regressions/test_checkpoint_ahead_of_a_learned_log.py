"""A voter whose checkpoint is ahead of its log, and that waited for what nobody could call committed.

1. Node 3 of five had lost its disk. It applied the order faster than it wrote it down, a page of one entry at
   a time. The CONFIG at 42 listed its new disk when its log ended at 6; it applied the claim and the mark
   behind 42, too, and took a checkpoint at 44.
2. All nodes crashed. Node 3 came back with that checkpoint, whose ledger names the configuration, and with a
   log that ended at 11. A ledger does not say where a configuration began: at 44 at the latest.
3. Node 3 learned the order through 42 from the others. They hold 43 and 44, but after a crash nobody knows
   that these are committed before a quorum has started the next epoch.
4. Node 4 had found its log damaged before the crash, node 2 did so now: both had new disks that no
   configuration listed. Nodes 1, 3 and 5 were the quorum. Node 3 waited for 44 and did not vote, so nobody
   led, so nobody called 44 committed. Had it crashed once more, it would have voted: its log held the CONFIG
   by then.
5. A server that learns the CONFIG of its configuration, or gets a base behind it, now knows where that began.

Found by: antiphon sim bus --seed 2200001136
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_it_votes_when_its_log_has_come_to_its_configuration() -> None:
    report = run("bus", 2200001136)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
