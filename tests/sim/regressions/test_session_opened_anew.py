"""A client manager that slept, and an envelope of it that opened a session which had ended meanwhile.

1. A depositor's first envelope, the opening of its session and two messages, was ordered and applied. Its
   client manager fell asleep before it heard of that.
2. The depositor went to another one, resumed the session, was away for longer than sessions live, and the
   session expired: with it went what the channel knew of its numbers.
3. The first client manager woke up. The logs did not reach back to its envelope any more, so that nobody
   could tell it which numbers that had taken, and it was ordered once more, as such envelopes are. Sessions
   recognise what came before; but this one opened its session anew, and both messages were stored twice.
4. What may be in the order already opens nothing now: it resumes its session, if that is still there.

Found by: antiphon sim transactions --seed 13106299
"""

from __future__ import annotations

from antiphon.sim.runs import run
from antiphon.sim.trace import Trace
from antiphon.sim.workloads.transactions import TransactionRun
from antiphon.sim.world import MILLISECOND_NS


def test_nothing_is_stored_twice() -> None:
    report = run("transactions", 13106299, without=("Waits", "Topics", "Retiring", "Spanning"))

    assert report.is_clean, f"{report.violation}\n    {report.replay}"


def test_nothing_is_stored_twice_by_doors_that_sleep_long_and_often() -> None:
    """Sessions live shortly, logs are short, and whoever can leaves a door that sleeps."""
    trial = TransactionRun(21000027, Trace(), without=("Topics", "Retiring", "Spanning"))
    profile = trial.profile
    profile.safety_ns = 2_000 * MILLISECOND_NS
    profile.door_sleeps, profile.sleep_ns_max = 5, 1_200 * MILLISECOND_NS
    profile.leave_probability = profile.clients.resume_probability = 1.0
    profile.clients.patience_ns = 200 * MILLISECOND_NS
    profile.node.session_expiry_ms = 150
    profile.settings["checkpoint_entries"] = 6
    profile.settings["silence_ms"] = 2_000

    trial.run()
