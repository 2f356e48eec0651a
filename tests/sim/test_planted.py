"""Planted bugs: a simulator that no longer finds them has gone blind.

Each is looked for under the profile made for it, in at most about six times the seeds it takes on
average, and the seed that finds it passes when the bug is taken out. The bugs about the disk are
found twice: at once, by the checker that compares every word with the disk (I15), and without that
checker by what comes of them, a node that has forgotten what was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from antiphon.bus import planted
from antiphon.sim.runs import WORKLOADS, Report, run
from tests.sim.seeds import processes, verdict

I15 = "WriteBeforeSend"
# The fold is the second line of defence: it stops the node rather than take a wrong entry.
FOLD = "AssertionError at bus/ledger.py"
LOG = "AssertionError at bus/log.py"


class Hunt(NamedTuple):
    """A bug, how many seeds are enough, how it may show, and the checkers that look away."""

    workload: str
    bug: str
    seeds: int
    words: tuple[str, ...]
    without: tuple[str, ...] = ()


# In the comments: how many seeds it takes on average.
HUNTS = [
    Hunt("node", planted.ACKNOWLEDGE_BEFORE_FSYNC, 6, ("I15", "I4")),  # 1.0
    Hunt("node", planted.RELEASE_BY_EARLIER_SYNC, 6, ("I15", "I4")),  # 1.1
    Hunt("node", planted.DEDUP_OFF, 8, ("two places", FOLD)),  # 1.1
    Hunt("node", planted.FIFO_OFF, 8, ("behind number", FOLD)),  # 1.3
    Hunt("node", planted.CHECKPOINT_BEFORE_RECORDS, 30, ("I22",)),  # 5
    Hunt("node", planted.FALLBACK_SEGMENTS_FREED, 8, ("I22",)),  # 1.3
    # A checkpoint may refer to a record that never reached the disk: then the next life calls it damage. And
    # what was promised may be forgotten before anything that was committed is missed.
    Hunt("node", planted.ACKNOWLEDGE_BEFORE_FSYNC, 8, ("I4", "I8", "Damaged"), (I15,)),  # 1.3
    Hunt("node", planted.RELEASE_BY_EARLIER_SYNC, 14, ("I4", "I8", "Damaged"), (I15,)),  # 2.2
    Hunt("bus", planted.ACKNOWLEDGE_BEFORE_FSYNC, 6, ("I15",)),  # 1.0
    Hunt("bus", planted.RELEASE_BY_EARLIER_SYNC, 8, ("I15",)),  # 1.1
    Hunt("bus", planted.DEDUP_OFF, 8, ("I5", FOLD)),  # 1.1
    Hunt("bus", planted.FIFO_OFF, 9, ("I5", FOLD)),  # 1.5
    Hunt("bus", planted.NEVER_REREPORT, 30, ("I17",)),  # 4.8
    Hunt("bus", planted.DELIVER_BEFORE_DURABLE, 8, ("I15",)),  # 1.2
    Hunt("bus", planted.REFRESH_TS, 6, ("two different contents",)),  # 1.0
    Hunt("bus", planted.SEAL_QUANTITY_ONE, 12, ("I10",)),  # 2.0
    # A sequencer that is over goes on: it may be seen where it writes or where it is believed.
    Hunt("bus", planted.NO_FENCE, 12, ("I10", "I8", "I15", "would give up committed entries")),  # 1.8
    Hunt("bus", planted.ADOPT_LONGEST, 30, ("I10", FOLD, LOG)),  # 5.2
    Hunt("bus", planted.NO_RESUBMIT, 30, ("I10", LOG)),  # 4.6
    Hunt("bus", planted.RAISE_COMMITTED_FROM_ANY_EPOCH, 12, ("I10", "I9", FOLD, LOG)),  # 2.0
    Hunt("bus", planted.KEEP_OWN_SUFFIX, 24, ("I10", FOLD, LOG)),  # 3.6
    Hunt("bus", planted.OWN_REPORT_NOT_REQUIRED, 8, ("Q1",)),  # 1.2
    Hunt("bus", planted.GARBAGE_BEFORE_STABLE, 6, ("I12",)),  # 1.0
    Hunt("bus", planted.VOTE_AFTER_DAMAGE, 6, ("I18",)),  # 1.0
    Hunt("bus", planted.NEGATIVE_AFTER_DAMAGE, 9, ("I18",)),  # 1.4
    Hunt("bus", planted.CONFIG_BEFORE_COMMIT, 9, ("I6", "I17")),  # 1.5
    Hunt("bus", planted.TWO_CHANGES_AT_ONCE, 12, ("I7",)),  # 2
    Hunt("bus", planted.EXCEPTIONS_OF_OTHERS_KEPT, 6, ("bounded memory",)),  # 1.0
    Hunt("bus", planted.HEARD_IS_DOUBTED, 60, ("bounded log",)),
    Hunt("bus", planted.HELD_SPACE_IGNORED, 6, ("bounded disk",)),  # 1.0
    Hunt("cluster", planted.HELD_RANGES_IGNORED, 28, ("holds it",)),  # 6
    Hunt("cluster", planted.LOWER_GENERATION_ACCEPTED, 36, ("I13", "I14")),  # 5.7
    Hunt("cluster", planted.ACKNOWLEDGED_TWICE, 24, ("two acknowledgements",)),  # 4
    Hunt("cluster", planted.OLD_TERM_ACCEPTED, 18, ("I14",)),  # 2.8
    Hunt("cluster", planted.STANDING_CLOCK_TRUSTED, 12, ("acknowledged for good", "I30")),  # 1.7
    Hunt("cluster", planted.FLOOR_IGNORED, 24, ("I19",)),  # 4
    # Found at once on the disk; and without that, by a node that has to ask others for what it had.
    Hunt("cluster", planted.REFERENCES_IGNORED, 6, ("I22",)),  # 1.0
    Hunt("cluster", planted.DEAD_KEEP_SEGMENTS, 6, ("bounded disk",)),  # 1.0
    Hunt("cluster", planted.REFERENCES_IGNORED, 12, ("I23",), ("Places",)),  # 2.0
    Hunt("cluster", planted.COUNT_STUCK, 8, ("I21",)),  # 1.1
    Hunt("cluster", planted.RETURNED_LAST, 15, ("I21",)),  # 2.1
    Hunt("cluster", planted.MISREAD_PUTS_ASIDE, 8, ("I24",)),  # 1.3
    Hunt("cluster", planted.LOSS_NOT_TOLD, 18, ("I30", "I31")),  # 2.5
    Hunt("cluster", planted.LOSS_NOT_TOLD, 90, ("I31", "acknowledged for good"), ("Hands",)),  # 15
    Hunt("cluster", planted.LOSS_FORGOTTEN, 18, ("I30",)),  # 2.5
    Hunt("cluster", planted.WALL_CLOCK_BELIEVED, 16, ("I27",)),  # 2
    # By what comes of it: what goes too early, and what stays for ever.
    Hunt("cluster", planted.WALL_CLOCK_BELIEVED, 50, ("I28", "I17"), ("LogTimePace",)),  # 8
    Hunt("cluster", planted.AGED_ONE_TOO_MANY, 8, ("I28",)),  # 1.2
    Hunt("cluster", planted.SHED_ONE_TOO_MANY, 8, ("I28",)),  # 1.1
    Hunt("cluster", planted.LATE_WORD_DETACHES, 22, ("I29",)),  # 3.6
    Hunt("cluster", planted.EXPIRED_THOUGH_RESUMED, 12, ("I29",)),  # 1.9
    Hunt("cluster", planted.CREDIT_KEPT, 8, ("I32", "it allowed 0 messages")),  # 1.0
    Hunt("transactions", planted.DECISION_NOT_ORDERED, 8, ("has not decided", "nobody has decided")),  # 1.3
    Hunt("transactions", planted.PARTICIPANT_DECIDES_ALONE, 9, ("has let go of", "lets go of")),  # 1.4
    # Who was restored and who was not differ from then on: in what they hold, decide, promise or report.
    Hunt("transactions", planted.CHECKPOINT_FORGETS_TRANSACTIONS, 15, ("transactions:", "I11", "I17")),  # 2.4
    Hunt("transactions", planted.OPEN_SURVIVES_FENCE, 24, ("was fenced",)),  # 3
    Hunt("transactions", planted.DECISION_ENDS_WITH_SESSION, 18, ("let go of its decision",)),  # 2.7
    Hunt("holds", planted.HOLD_BEGUN_ANEW, 10, ("I20",)),  # 1.3
    Hunt("holds", planted.OUTDATED_HOLD_TAKEN, 14, ("I20",)),  # 2.1
    Hunt("holds", planted.RESTORE_FORGETS_LOCKS, 14, ("I11 restore",)),  # 2.2
    # Without who compares: somebody else is given what is another's, or what is not locked is unlocked.
    Hunt("holds", planted.RESTORE_FORGETS_LOCKS, 60, ("I20", "KeyError"), ("Restores",)),  # 10
]


class Caught(NamedTuple):
    """The first seed that finds a bug, and the same seed without it."""

    found: Report
    healthy: Report


Catch = Callable[[Hunt], Caught | None]


def hunt(wanted: Hunt) -> Caught | None:
    for seed in range(1, wanted.seeds + 1):
        found = run(wanted.workload, seed, planted=wanted.bug, without=wanted.without)
        if not found.is_clean:
            return Caught(found, run(wanted.workload, seed, profile=wanted.bug, without=wanted.without))
    return None


@pytest.fixture(scope="module")
def catch(request: pytest.FixtureRequest) -> Iterator[Catch]:
    """All hunts that this session asks for are under way at once, each in one process."""
    marked = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [spec.params["wanted"] for spec in marked if spec is not None and "wanted" in spec.params]
    with processes() as pool:
        hunts = {wanted: pool.submit(hunt, wanted) for wanted in asked}
        try:
            yield lambda wanted: hunts[wanted].result()
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "wanted", HUNTS, ids=lambda one: f"{one.workload}-{one.bug}{'-unseen' * len(one.without)}"
)
def test_a_planted_bug_is_found_and_its_seed_passes_without_it(wanted: Hunt, catch: Catch) -> None:
    caught = catch(wanted)

    assert caught is not None, f"{wanted.bug} was not found in {wanted.seeds} seeds"
    found, healthy = caught
    assert any(words in found.violation for words in wanted.words), found.violation
    assert f"--seed {found.seed} --planted {wanted.bug} --trace" in found.replay
    assert healthy.is_clean, verdict(healthy)


@pytest.mark.parametrize("workload", ["bus", "cluster", "holds", "node", "transactions"])
def test_there_is_a_hunt_for_every_profile(workload: str) -> None:
    assert {one.bug for one in HUNTS if one.workload == workload} == set(WORKLOADS[workload].profiles)


def test_every_bug_that_can_be_planted_is_hunted() -> None:
    assert set(WORKLOADS["bus"].profiles) == set(planted.ALL)
    assert set(WORKLOADS["cluster"].profiles) == set(planted.OF_CLUSTER)
    assert set(WORKLOADS["transactions"].profiles) == set(planted.OF_TRANSACTIONS)
    assert set(WORKLOADS["holds"].profiles) == set(planted.OF_HOLDS)
