"""One node with a state, another that needs it, and a stable checkpoint that was forgotten in a restart.

1. Nodes 1 and 2 kept the channel; their newest stable checkpoint was the one at 27. That at 36 was not stable
   when the configuration changed: node 3, which had no state, took the place of node 2.
2. Node 1 took one more at 44. For it to be stable node 3 would have had to take it as well. Then node 1
   crashed. The file of the checkpoint at 27 was still there, but a node came back with its two newest only.
3. So node 1 gave nothing to node 3, which asked for ever, and no later checkpoint could become stable: that
   takes two nodes with a state.
4. A node now comes back with all of its checkpoints that the base has not passed, so that the newest stable
   one is known. And its base does not pass that one.

Found by: antiphon sim bus --seed 7002574
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_other_node_is_given_the_stable_one() -> None:
    report = run("bus", 7002574)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
