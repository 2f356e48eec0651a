"""A node with a new disk asked for a state where there was none; another had applied all and kept nothing.

1. Node 4 took the place of node 3. Nodes 2 and 4 kept the channel and made four checkpoints stable, the last
   one at 51, while node 1 slept. Then node 2 lost its disk.
2. Node 1 woke, heard everything at once and applied it, passing four marks; a checkpoint was taken at the
   first of them only. Its log did not reach that of node 4, so it began behind the stable mark at 51, where
   node 1 had no checkpoint. It led, and had nothing to give to anybody.
3. Node 2 had forgotten that the configuration had changed. It asked the nodes of the first one, 1 and 3, for
   ever; node 4, which had what it needed, it did not know as a holder.
4. A joiner now also asks those who go by a later configuration than its own. And the log of a node that keeps
   state no longer begins behind a bare mark: the node fetches the checkpoint, and if nobody has one, whoever
   leads calls for the next.

Found by: antiphon sim bus --seed 11002642
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_node_with_the_new_disk_is_given_a_state() -> None:
    report = run("bus", 11002642)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
