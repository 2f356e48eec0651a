"""One node with a state, and no proof that its newest checkpoint is stable.

1. The disk of node 2 was full, so that node 2 had a log and no checkpoint. All nodes lost power, and the disk
   of node 3 was replaced.
2. Node 1 had the checkpoints at 146, where its log begins, and at 160, which was stable. In its new life
   node 1 began an epoch that node 2 could not follow: the entries below 147 were gone at node 1.
3. Node 2 fetched the checkpoint at 160 and looked for proof: for two holders, of which there was one, or for
   a committed entry, which needed node 2. So no node ever led.
4. A joiner without a proof now takes the checkpoint with which its holder's log begins: a base is stable.

Found by: antiphon sim bus --seed 610017048
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_group_goes_on_from_the_base_of_the_only_holder() -> None:
    report = run("bus", 610017048)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
