"""What became of a producer, told before it was folded.

1. Producer 101 had missed what was committed behind number 20, and the logs begin later: it asked node 1 what
   became of it.
2. In one and the same step node 1 heard that 44 ... 53 are committed, three envelopes of that producer among
   them, and the question. It answered at once: how far it knew the order, 53, with a row that did not count
   these yet.
3. So the producer believed that the three were not in the order, sent them again and again, and was told that
   they had been published. Had its run been over, it would have ordered them a second time.
4. The question is now answered when everything that came in the step is folded.

Found by: antiphon sim bus --seed 10004712
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_producer_learns_what_became_of_its_envelopes() -> None:
    report = run("bus", 10004712)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
