"""A message that no consumer could have seen was told as redelivered.

1. A node that was far behind was elected, and claimed its term after number 36. The nodes that followed it
   had freed the log which it still had to apply. Two messages were published in its term.
2. The node took over a checkpoint after number 40 from a backup, and served: its claim lies below.
3. The primary took 40 for the number of its claim, and told the two messages as redelivered. Now the
   sequencer says behind which number it made the claim.

Found by: antiphon sim holds --seed 203000053
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_messages_published_in_a_term_are_new_in_it() -> None:
    report = run("holds", 203000053)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
