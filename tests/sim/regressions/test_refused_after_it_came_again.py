"""A message in a queue was never taken: the client dropped it when an earlier acknowledgement was refused.

1. A consumer acknowledged message 85, which a consuming hold had locked by then: the acknowledgement was
   refused. The hold expired, and the primary gave 85 to the same consumer again.
2. The outcome came to the client manager late. The client had the second copy when it heard that the
   acknowledgement of the first was refused, took that for an acknowledgement that counts, and dropped 85.
3. The primary had 85 in flight to a consumer without it. Now an acknowledgement that is refused says nothing
   about a copy that came after it was sent.

Found by: antiphon sim holds --seed 414000306
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_a_copy_that_came_before_the_refusal_is_the_consumers() -> None:
    report = run("holds", 414000306)

    assert report.is_clean, f"{report.violation}\n    {report.replay}"
