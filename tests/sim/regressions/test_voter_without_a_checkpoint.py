"""A voter that has applied everything, whose log nobody could start, and whose own checkpoint was too old.

1. Node 1 was deaf for the whole first epoch: its log stayed empty. Then it heard everything at once and
   applied it, passing three marks; a checkpoint was taken at the first of them only, as one was under way.
2. The log of node 2 began behind the second mark by then, and node 3 lost its disk. Nobody came to lead:
   node 2 could not start node 1, whose own checkpoint did not reach the base, and which had no reason to
   take one of another node, since it had applied everything.
3. It knows the order through a stable mark, and that is enough for its log. Should it crash before its next
   checkpoint, it takes one of another node.

Found by: antiphon sim bus --seed 3000657
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_group_comes_to_life_again() -> None:
    report = run("bus", 3000657)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
