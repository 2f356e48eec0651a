"""A client was lost, and its client manager had said so. Then a delivery for it arrived that had been late.

The client manager did not know that consumer any more, and said so. The primary took it for a word about what
the client had seen: nothing. So what it had seen came again without saying so.

The steps behind it: tests/unit/message_manager/delivery/test_absences.py
Found by: antiphon sim cluster --seed 15000149
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_what_a_lost_client_saw_comes_again_only_as_delivered_before() -> None:
    result = run("cluster", 15_000_149, without=("Waits",))
    assert result.is_clean, result.violation
