"""A role that a node has no more is told nothing.

1. Node 3 was writing envelopes when the configuration changed, and in the new one it is no data server.
2. Its data server had no seat any more, so it was never stepped; but it still waited for the disk, so every
   sync and every submit was put into its inbox, for the rest of the life of the node.
3. Only roles that have a seat are told.

Found by: antiphon sim bus --seed 225, by what machines keep at rest
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_what_is_for_a_role_that_is_gone_does_not_pile_up() -> None:
    report = run("bus", 225)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
