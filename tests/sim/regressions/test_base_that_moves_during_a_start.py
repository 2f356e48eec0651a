"""A start in pages, and a base that moves while they come.

1. Node 4 led a new epoch. Its log went to node 2 one entry at a time, from the beginning on, for node 2 had
   started again and knew nothing to be committed.
2. Meanwhile node 2 heard what was committed, and that a second checkpoint was stable: its base moved to 17.
3. With the last page it compared the pages with its log, and looked for what follows 0 in a log that begins
   after 17: it found nothing in common, though all of it was, and stopped rather than give up what is
   committed.
4. What the base has passed now goes from the pages, too. If the sequencer's own base has passed them, they
   are given up.

Found by: antiphon sim bus --seed 7016138
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_start_comes_to_its_end() -> None:
    report = run("bus", 7016138)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
