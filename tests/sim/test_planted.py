"""Planted bugs: a simulator that no longer finds them has gone blind.

Each is looked for under a profile that lays stress on what it harms, in at most about six times the seeds it
takes on average, and the seed that finds it passes without the bug. To see what happened in a seed:
`python -m tests.planted BUG sim WORKLOAD --profile PROFILE --seed N --trace`. The bugs about the disk are
found twice: at once, by the checker that compares every word with the disk (I15), and without that
checker by what comes of them, a node that has forgotten what was committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from antiphon.sim.runs import WORKLOADS, Report, run
from tests.planted.catalogue import BUGS, planted
from tests.sim.seeds import processes, verdict

I15 = "WriteBeforeSend"
# Bugs that keep a group from taking checkpoints are seen at rest, too: the journal is larger than it may be.
SPACE = "Space"
# The fold is the second line of defence: it stops the node rather than take a wrong entry.
FOLD = "AssertionError at bus/ledger.py"
LOG = "AssertionError at bus/log.py"


class Hunt(NamedTuple):
    """A bug, the profile that shows it, how many seeds are enough, how it may show, and who looks away."""

    workload: str
    bug: str
    profile: str
    seeds: int
    words: tuple[str, ...]
    without: tuple[str, ...] = ()


HUNTS = [
    Hunt("node", "acknowledge-before-fsync", "acknowledging-early", 6, ("I15", "I4")),
    Hunt("node", "release-by-earlier-sync", "acknowledging-early", 6, ("I15", "I4")),
    Hunt("node", "dedup-off", "numbering-twice", 8, ("two places", FOLD)),
    Hunt("node", "fifo-off", "numbering-out-of-order", 8, ("behind number", FOLD)),
    Hunt("node", "checkpoint-before-records", "moved-records", 30, ("I22",)),
    Hunt("node", "fallback-segments-freed", "fallbacks", 8, ("I22",)),
    Hunt("node", "embedded-envelopes-forgotten", "order-without-data", 6, ("I17",)),
    # A checkpoint may refer to a record that never reached the disk: then the next life calls it damage. And
    # what was promised may be forgotten before anything that was committed is missed.
    Hunt("node", "acknowledge-before-fsync", "acknowledging-early", 8, ("I4", "I8", "Damaged"), (I15,)),
    Hunt("node", "release-by-earlier-sync", "acknowledging-early", 14, ("I4", "I8", "Damaged"), (I15,)),
    Hunt("node", "delay-ignored", "delivery-rules", 4, ("I33",)),
    Hunt("node", "expiry-ignored", "delivery-rules", 4, ("I33",)),
    Hunt("node", "priority-reversed", "delivery-rules", 4, ("I33",)),
    Hunt("cluster", "priority-reversed", "delivery-rules", 6, ("I33",)),
    Hunt("node", "ids-not-captured", "ids", 8, ("I36", "I13"), ("Restores",)),
    Hunt("cluster", "ids-not-captured", "ids", 8, ("I36", "I13"), ("Restores",)),
    Hunt("node", "ids-for-ever", "ids", 12, ("I36", "I13")),
    Hunt("cluster", "batch-left-out", "ids", 6, ("I36", "I13")),
    Hunt("node", "all-rows-match", "selectors", 4, ("I38",)),
    Hunt("cluster", "all-rows-match", "selectors", 6, ("I38",)),
    Hunt("node", "rows-renumbered", "selectors", 4, ("I38",)),
    # Without who compares the bodies: the client manager and the client know of different messages.
    Hunt("cluster", "rows-renumbered", "selectors", 8, ("I13", "I21"), ("Selections",)),
    Hunt("node", "groups-not-noted", "message-groups", 6, ("I37",)),
    Hunt("node", "groups-go-on-early", "message-groups", 20, ("I37",)),
    Hunt("cluster", "groups-not-noted", "message-groups", 6, ("I37",)),
    Hunt("cluster", "groups-of-holders-forgotten", "held-groups", 10, ("I37",)),
    Hunt("bus", "acknowledge-before-fsync", "acknowledging-early", 6, ("I15",)),
    Hunt("bus", "release-by-earlier-sync", "acknowledging-early", 8, ("I15",)),
    # An envelope in two places, or, where the fold refuses the second, envelopes behind it that stay.
    Hunt("bus", "dedup-off", "numbering-twice", 8, ("I5", "without a number", FOLD)),
    Hunt("bus", "fifo-off", "numbering-out-of-order", 9, ("I5", FOLD)),
    Hunt("bus", "never-rereport", "producers-that-die", 30, ("I17",)),
    Hunt("bus", "deliver-before-durable", "slow-members", 8, ("I15",)),
    Hunt("bus", "refresh-ts", "old-envelopes", 6, ("two different contents",)),
    Hunt("bus", "seal-quantity-one", "muted-sequencers", 12, ("I10",)),
    # A sequencer that is over goes on: it may be seen where it writes or where it is believed.
    Hunt("bus", "no-fence", "late-words", 12, ("I10", "I8", "I15", "would give up committed entries")),
    Hunt("bus", "adopt-longest", "muted-sequencers", 30, ("I10", "I7", FOLD, LOG)),
    Hunt("bus", "no-resubmit", "muted-sequencers", 30, ("I10", LOG), (SPACE,)),
    Hunt("bus", "raise-committed-from-any-epoch", "muted-sequencers", 12, ("I10", "I9", FOLD, LOG)),
    Hunt("bus", "keep-own-suffix", "muted-sequencers", 24, ("I10", FOLD, LOG)),
    Hunt("bus", "own-report-not-required", "lost-envelopes", 34, ("Q1",)),
    Hunt("bus", "acknowledge-without-envelope", "entries-before-envelopes", 14, ("Q1",)),
    Hunt("bus", "commit-without-own", "entries-before-envelopes", 30, ("Q1",)),
    Hunt("bus", "start-without-envelopes", "entries-before-envelopes", 40, ("Q1",)),
    Hunt("bus", "kept-without-data", "order-without-data", 24, ("I17",)),
    Hunt("bus", "garbage-before-stable", "checkpoints", 6, ("I12",)),
    Hunt("bus", "vote-after-damage", "damaged-logs", 6, ("I18",)),
    Hunt("bus", "negative-after-damage", "damaged-logs", 9, ("I18",)),
    Hunt("bus", "config-before-commit", "changes", 9, ("I6", "I17"), (SPACE,)),
    Hunt("bus", "two-changes-at-once", "changes", 12, ("I7",)),
    Hunt("bus", "exceptions-of-others-kept", "kept-exceptions", 6, ("bounded memory",)),
    Hunt("bus", "heard-is-doubted", "doubt", 60, ("bounded log",)),
    Hunt("bus", "held-space-ignored", "held-space", 6, ("bounded disk",)),
    Hunt("cluster", "held-ranges-ignored", "held-ranges", 28, ("holds it", "which lives")),
    Hunt("cluster", "lower-generation-accepted", "lower-generations", 36, ("I13", "I14")),
    Hunt("cluster", "acknowledged-twice", "second-acknowledgements", 24, ("two acknowledgements",)),
    Hunt("cluster", "old-term-accepted", "old-terms", 60, ("I13", "I14")),
    Hunt("cluster", "standing-clock-trusted", "sleepers", 12, ("acknowledged for good", "I30")),
    Hunt("cluster", "floor-ignored", "early-pages", 24, ("I19",)),
    # Found at once on the disk; and without that, by a node that has to ask others for what it had.
    Hunt("cluster", "references-ignored", "references", 6, ("I22",)),
    Hunt("cluster", "dead-keep-segments", "dead-segments", 6, ("bounded disk",)),
    Hunt("cluster", "references-ignored", "references", 12, ("I23",), ("Places",)),
    Hunt("cluster", "count-stuck", "returns", 8, ("I21",)),
    Hunt("cluster", "returned-last", "returns", 15, ("I21",)),
    Hunt("cluster", "misread-puts-aside", "misreading", 8, ("I24",)),
    Hunt("cluster", "old-disk-id-kept", "ruined-disks", 6, ("I24",)),
    Hunt("cluster", "loss-not-told", "losses", 18, ("I30", "I31")),
    Hunt("cluster", "loss-not-told", "losses", 90, ("I31", "acknowledged for good"), ("Hands",)),
    Hunt("cluster", "loss-forgotten", "losses", 18, ("I30",)),
    Hunt("cluster", "wall-clock-believed", "wrong-clocks", 16, ("I27",)),
    # By what comes of it: what goes too early, and what stays for ever.
    Hunt("cluster", "wall-clock-believed", "wrong-clocks", 50, ("I28", "I17"), ("LogTimePace",)),
    Hunt("cluster", "aged-one-too-many", "retention-by-age", 8, ("I28",)),
    Hunt("cluster", "shed-one-too-many", "retention-by-bytes", 8, ("I28",)),
    Hunt("cluster", "late-word-detaches", "late-words", 22, ("I29",)),
    Hunt("cluster", "expired-though-resumed", "return-after-a-fence", 12, ("I29",)),
    Hunt("cluster", "shared-ends-with-one", "sharing", 10, ("I13",)),
    Hunt("cluster", "credit-kept", "kept-credit", 8, ("I32", "it allowed 0 messages")),
    Hunt(
        "transactions", "decision-not-ordered", "hasty-commits", 8, ("has not decided", "nobody has decided")
    ),
    Hunt("transactions", "participant-decides-alone", "lonely-decisions", 9, ("has let go of", "lets go of")),
    # Who was restored and who was not differ from then on: in what they hold, decide, promise or report.
    Hunt(
        "transactions", "checkpoint-forgets-transactions", "lost-parts", 15, ("transactions:", "I11", "I17")
    ),
    Hunt("transactions", "open-survives-fence", "open-parts", 24, ("was fenced",)),
    Hunt("transactions", "decision-ends-with-session", "ended-sessions", 18, ("let go of its decision",)),
    Hunt("transactions", "committed-not-offered", "topics", 6, ("I17 liveness: in", "needs")),
    Hunt("transactions", "taken-goes-back-unseen", "closed-consumers", 12, ("I30",)),
    Hunt("patterns", "undecided-not-kept", "", 24, ("I39", "I13")),
    Hunt("patterns", "joins-above-the-floor", "", 24, ("I39",)),
    Hunt("patterns", "joined-not-given", "", 24, ("I17", "I37", "neither ready nor in flight")),
    Hunt("patterns", "every-name-matches", "", 6, ("I39",)),
    Hunt("holds", "hold-begun-anew", "", 10, ("I20",)),
    Hunt("holds", "outdated-hold-taken", "", 14, ("I20",)),
    Hunt("holds", "restore-forgets-locks", "", 14, ("I11 restore",)),
    # Without who compares: somebody else is given what is another's, or what is not locked is unlocked.
    Hunt("holds", "restore-forgets-locks", "", 60, ("I20", "KeyError"), ("Restores",)),
]


class Caught(NamedTuple):
    """The first seed that finds a bug, and the same seed without it."""

    found: Report
    healthy: Report


Catch = Callable[[Hunt], Caught | None]


def hunt(wanted: Hunt) -> Caught | None:
    for seed in range(1, wanted.seeds + 1):
        with planted(wanted.bug):
            found = run(wanted.workload, seed, profile=wanted.profile, without=wanted.without)
        if not found.is_clean:
            return Caught(found, run(wanted.workload, seed, profile=wanted.profile, without=wanted.without))
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


def cases() -> Iterator[Any]:
    """The hunts with fewer checkers, which see what comes of a bug, are part of the long form."""
    for wanted in HUNTS:
        name = f"{wanted.workload}-{wanted.bug}{'-unseen' * len(wanted.without)}"
        yield pytest.param(wanted, id=name, marks=pytest.mark.long if wanted.without else ())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("wanted", list(cases()))
def test_a_planted_bug_is_found_and_its_seed_passes_without_it(wanted: Hunt, catch: Catch) -> None:
    caught = catch(wanted)

    assert caught is not None, f"{wanted.bug} was not found in {wanted.seeds} seeds"
    found, healthy = caught
    assert any(words in found.violation for words in wanted.words), found.violation
    assert healthy.is_clean, verdict(healthy)


@pytest.mark.parametrize("workload", ["bus", "cluster", "node", "transactions"])
def test_there_is_a_hunt_for_every_profile(workload: str) -> None:
    assert {one.profile for one in HUNTS if one.workload == workload} == set(WORKLOADS[workload].profiles)


def test_every_bug_that_can_be_planted_is_hunted() -> None:
    assert {one.bug for one in HUNTS} == set(BUGS)
