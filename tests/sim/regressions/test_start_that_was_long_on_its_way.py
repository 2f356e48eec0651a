"""A start that says less than its receiver knows to be committed.

1. Node 1 had a new disk. When the configuration listed it, node 2, which led, sent it the start of its epoch:
   the log through 6. The network kept it for half a second.
2. Meanwhile node 1 crashed, came back, and learned from node 3 what was committed, through 7.
3. Then the start came. Taken as it stood, it would have cut off 7; the assertion that guards what is
   committed stopped the node.
4. A server that knows more to be committed than a start contains now asks for the rest, as it does when a
   page is missing.

Found by: antiphon sim bus --seed 9001623
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_a_late_start_is_asked_for_again() -> None:
    report = run("bus", 9001623)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
