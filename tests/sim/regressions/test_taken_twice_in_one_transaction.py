"""A primary was gone, and a client manager cut off. The next primary waited for it in vain and gave what its
trader had to another one, which gave it back, so that it came to the first trader a second time.

The client manager had heard, with the answer to its registration, that this was lost; it told only clients
that were just coming back. So the trader had 84 coins twice: it took both copies in one transaction, which
acknowledged the one message once. The commit succeeded, and there was more money than before.

The steps behind it: tests/unit/client_manager/test_consumers.py, tests/unit/client/core/test_transaction.py
Found by: antiphon sim transactions --seed 900000674
"""

from __future__ import annotations

from antiphon.sim.runs import run


def test_what_comes_back_to_a_transaction_that_lost_it_is_not_counted_twice() -> None:
    result = run("transactions", 900_000_674, without=("Waits", "Topics", "Retiring", "Spanning"))
    assert result.is_clean, result.violation
