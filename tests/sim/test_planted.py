"""Planted bugs: a simulator that no longer finds them has gone blind.

Each is looked for under the profile made for it, in at most about six times the seeds it takes on
average, and the seed that finds it passes when the bug is taken out. The bugs about the disk are
found twice: at once, by the checker that compares every word with the disk (I15), and without that
checker by what comes of them, a node that has forgotten what was committed.
"""

from __future__ import annotations

import pytest

from antiphon.bus import planted
from antiphon.sim.runs import Report, run

I15 = "WriteBeforeSend"

# Bug, checkers that look away, seeds at most (the mean over 40 seeds is in the comment).
HUNTS = [
    (planted.ACKNOWLEDGE_BEFORE_FSYNC, (), 6),  # 1.0
    (planted.RELEASE_BY_EARLIER_SYNC, (), 6),  # 1.1
    (planted.DEDUP_OFF, (), 8),  # 1.1
    (planted.FIFO_OFF, (), 8),  # 1.3
    (planted.ACKNOWLEDGE_BEFORE_FSYNC, (I15,), 8),  # 1.3
    (planted.RELEASE_BY_EARLIER_SYNC, (I15,), 14),  # 2.2
]

# How they show: to a checker, or to an assertion of the fold, the second line of defence.
WORDS = {
    # A checkpoint may refer to a record that never reached the disk: then the next life calls it damage.
    planted.ACKNOWLEDGE_BEFORE_FSYNC: ("I15", "I4", "Damaged"),
    planted.RELEASE_BY_EARLIER_SYNC: ("I15", "I4", "Damaged"),
    planted.DEDUP_OFF: ("two places", "AssertionError at bus/ledger.py"),
    planted.FIFO_OFF: ("behind number", "AssertionError at bus/ledger.py"),
}


def hunt(bug: str, without: tuple[str, ...], seeds: int) -> Report:
    for seed in range(1, seeds + 1):
        report = run("bus", seed, planted=bug, without=without)
        if not report.is_clean:
            return report
    pytest.fail(f"{bug} was not found in {seeds} seeds")


@pytest.mark.parametrize(("bug", "without", "seeds"), HUNTS)
def test_a_planted_bug_is_found_and_its_seed_passes_without_it(
    bug: str, without: tuple[str, ...], seeds: int
) -> None:
    found = hunt(bug, without, seeds)

    assert any(words in found.violation for words in WORDS[bug]), found.violation
    assert f"--seed {found.seed} --planted {bug} --trace" in found.replay
    healthy = run("bus", found.seed, profile=bug, without=without)
    assert healthy.is_clean, f"{healthy.violation}\n    {healthy.replay}"


def test_there_is_a_hunt_for_every_bug_that_can_be_planted() -> None:
    assert {bug for bug, _, _ in HUNTS} == set(planted.ALL)
