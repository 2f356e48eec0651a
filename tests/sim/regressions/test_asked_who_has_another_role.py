"""A node that is far behind asks for order and payloads in one trip, of servers that gave up that role.

1. Node 2 slept. Meanwhile a configuration was committed in which node 1 was no data server any more, and in
   which nobody but node 2 could lead: node 3, the other candidate, had no state yet.
2. Node 2 knew of no such configuration. It was far behind, so it asked node 1 for the order with its
   payloads, again and again; node 1, a witness by now, did not answer. The commit servers were never asked.
3. Every other question is for the order alone.

Found by: antiphon sim bus --seed 3008288
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_order_is_learned_from_those_who_keep_it() -> None:
    report = run("bus", 3008288)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
