"""A spare that a configuration wants state of waited for an entry that it could not take.

1. Node 4 was a spare, without state. A configuration listed it as a keeper. Its order, learned through the
   entry of that configuration and not beyond, told so, and the node was to begin anew, with a state.
2. It waited until its records would tell a later life that the configuration is in force, as the next entry
   of the order does. Before that came, an epoch of the new configuration began, and the log was of that epoch
   from then on. The node missed the epoch's first entries; when it asked for them, they had gone with a
   checkpoint.
3. The record of that epoch tells the same as an entry behind would: no epoch of a configuration begins before
   it is in force. So does a log that holds only what is committed. Recovery knew this, and the wait did not.

Found by: antiphon sim bus --seed 13005997
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_the_spare_begins_anew() -> None:
    report = run("bus", 13005997)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
