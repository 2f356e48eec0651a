"""A witness that knows the whole order, and whose log nobody could start any more.

1. Node 3, a witness, slept through a change of the sequencer. When it came back it heard the order, but
   its log was of the former epoch, whose sequencer alone could have told it which entries were committed.
2. Meanwhile checkpoints were stable, and the log of node 2, which led, began behind one of them. It could not
   start node 3, for what lay between was in no log; and node 3 asked for no checkpoint, for it had applied
   everything, as a witness does. Then node 1 lost its disk, and nothing was committed any more.
3. Who keeps no state needs none: its log begins behind a stable mark through which it knows the order.

Found by: antiphon sim bus --seed 2004158; and where node 2 did not lead yet and could not come to lead,
which has to tell the witness then as well: antiphon sim bus --seed 4001542
"""

from __future__ import annotations

import pytest

from antiphon.sim.runs import run


@pytest.mark.parametrize("seed", [2004158, 4001542])
def test_the_witness_votes_again(seed: int) -> None:
    report = run("bus", seed)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
