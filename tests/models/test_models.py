"""The models of the protocol: the safe ones hold in every state they can reach, planted mistakes are found.

A model that no longer finds its mistakes has gone blind, and one whose search was cut short has shown
nothing. How to run one by hand: models/README.md.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system_packages import require_package
from tests.tidy.source import ROOT

MODELS = ROOT / "models"

# The largest search of `make test` takes ten seconds on an idle core.
SEARCH_SECONDS = 300
LONG_SEARCH_SECONDS = 900
MEMORY_MIB_MAX = 8_192

FROM_ONE_TO_THREE = "OLD=1 NEW=7 SERVERS=3"
TURN_BY_TURN = "EPOCHS=4 EPOCHS_OF_NEW=20"
ONE_MESSAGE = "MESSAGES=1 OTHERS=3"

# On a busy machine a search waits for the processor.
pytestmark = pytest.mark.timeout(4 * SEARCH_SECONDS)

# Model and bounds.
SAFE = [
    ("sequencer_change", "EPOCHS=2 SLOTS=2"),
    ("sequencer_change", "EPOCHS=3 SLOTS=1"),
    ("sequencer_change", "EPOCHS=4 SLOTS=1"),
    ("suffixes", "EPOCHS=2 SLOTS=2"),
    ("suffixes", "EPOCHS=3 SLOTS=1"),
    ("reports", ONE_MESSAGE),
    ("reports", f"{ONE_MESSAGE} CHANGES=2"),
    ("one_round", "EPOCHS=2 SLOTS=1"),
    ("configuration", "EPOCHS=3 SLOTS=2"),
    ("configuration", f"{TURN_BY_TURN} SLOTS=2"),
    ("configuration", f"EPOCHS=4 SLOTS=2 {FROM_ONE_TO_THREE}"),
]
SAFE_LONG = [
    ("sequencer_change", "EPOCHS=3 SLOTS=3"),
    ("sequencer_change", "EPOCHS=4 SLOTS=2"),
    ("suffixes", "EPOCHS=3 SLOTS=2 CRASHES=0"),
    ("reports", "MESSAGES=2 OTHERS=1 CRASHES=0"),
    ("reports", "MESSAGES=2 OTHERS=1 CRASHES=2"),
]

# The properties, each by words that only its assertions have.
AGREEMENT = "committed[k]=="
TRUTH = ".committed_upto]==server["
DEFINITE_FAILURE = "told_failed"
PRESENCE = ".data[replica["
COPIES = ".data[next]"
PAYLOAD = "].copy[i]!=0)"
NOTHING_IS_FORGOTTEN = "(last+1)>(message[i].ts+"

# Model, mistake, bounds, and the property that it violates.
PLANTED = [
    ("sequencer_change", "NO_FENCE", "EPOCHS=2 SLOTS=2", AGREEMENT),
    ("sequencer_change", "SEAL_ONE", "EPOCHS=2 SLOTS=2", AGREEMENT),
    ("sequencer_change", "ACK_BEFORE_SYNC", "EPOCHS=2 SLOTS=2", AGREEMENT),
    ("sequencer_change", "REUSE_EPOCH", "EPOCHS=2 SLOTS=2", AGREEMENT),
    ("sequencer_change", "ADOPT_LONGEST", "EPOCHS=3 SLOTS=2", AGREEMENT),
    ("sequencer_change", "NO_RESUBMIT", "EPOCHS=4 SLOTS=1", AGREEMENT),
    ("suffixes", "RAISE_FROM_ANY_EPOCH", "EPOCHS=2 SLOTS=1", TRUTH),
    ("suffixes", "KEEP_OWN_ENTRIES", "EPOCHS=3 SLOTS=1", TRUTH),
    ("suffixes", "NO_START_NEED", "EPOCHS=3 SLOTS=1", TRUTH),
    ("reports", "REPORT_BEFORE_SYNC", ONE_MESSAGE, PAYLOAD),
    ("reports", "FRESH_TS_ON_RETRY", ONE_MESSAGE, DEFINITE_FAILURE),
    ("reports", "NO_REREPORT", ONE_MESSAGE, NOTHING_IS_FORGOTTEN),
    ("reports", "SETTLE_ON_SUBMIT", ONE_MESSAGE, NOTHING_IS_FORGOTTEN),
    ("reports", "EXPIRED_BY_SEQUENCER", ONE_MESSAGE, DEFINITE_FAILURE),
    ("one_round", "ACK_WITHOUT_DATA", "EPOCHS=2 SLOTS=1", PRESENCE),
    ("one_round", "RECOVER_WITHOUT_DATA", "EPOCHS=2 SLOTS=1", PRESENCE),
    ("one_round", "COVERED_BEYOND_LOG", "EPOCHS=2 SLOTS=1", PRESENCE),
    ("one_round", "COVERED_ACROSS_EPOCHS", "EPOCHS=3 SLOTS=1", PRESENCE),
    ("one_round", "COMMIT_WITHOUT_OWN", "EPOCHS=2 SLOTS=1", COPIES),
    ("one_round", "START_BEFORE_SYNC", "EPOCHS=3 SLOTS=1", AGREEMENT),
    ("configuration", "APPLY_EARLY", "EPOCHS=3 SLOTS=2", AGREEMENT),
    ("configuration", "CONFIG_BY_NUMBER", "EPOCHS=3 SLOTS=2", AGREEMENT),
    ("configuration", "TWO_CHANGES", "EPOCHS=3 SLOTS=2", AGREEMENT),
    ("configuration", "NEW_SERVER_VOTES", f"EPOCHS=3 SLOTS=2 {FROM_ONE_TO_THREE}", AGREEMENT),
    ("configuration", "EPOCHS_ALONE", f"{TURN_BY_TURN} SLOTS=2", AGREEMENT),
]

# Model, mistake, and bounds just below those that show it.
HIDDEN = [
    ("sequencer_change", "ADOPT_LONGEST", "EPOCHS=2 SLOTS=2"),
    ("sequencer_change", "NO_RESUBMIT", "EPOCHS=3 SLOTS=1"),
    ("suffixes", "KEEP_OWN_ENTRIES", "EPOCHS=2 SLOTS=2"),
    ("one_round", "START_BEFORE_SYNC", "EPOCHS=2 SLOTS=1"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What the verifier said of one model."""

    output: str

    @property
    def is_exhaustive(self) -> bool:
        cut_short = (
            "max search depth too small",
            "Search not completed",
            "out of memory",
            "reached -DMEMLIM",
        )
        return "State-vector" in self.output and not any(words in self.output for words in cut_short)

    @property
    def errors(self) -> int:
        found = re.search(r"errors: (\d+)", self.output)
        assert found, f"the verifier did not end:\n{self.output}"
        return int(found.group(1))

    @property
    def violation(self) -> str:
        found = re.search(r"assertion violated (.*)", self.output)
        return found.group(1) if found else ""


def search(folder: Path, model: str, *flags: str, seconds: float = SEARCH_SECONDS) -> Search:
    """Translate, compile and run one variant of a model, all in `folder`."""
    require_package("spin", "spin")
    require_package("gcc", "gcc")

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=seconds)
        output = done.stdout + done.stderr
        assert done.returncode == 0, f"{' '.join(words)}:\n{output}"
        return output

    run("spin", "-a", *(f"-D{flag}" for flag in flags), str(MODELS / f"{model}.pml"))
    run("gcc", "-O1", "-DSAFETY", "-DNOREDUCE", f"-DMEMLIM={MEMORY_MIB_MAX}", "-o", "pan", "pan.c")
    return Search(output=run("./pan", "-m10000", "-w24"))


def assert_holds(result: Search) -> None:
    assert result.errors == 0, result.output
    assert result.is_exhaustive, result.output


@pytest.mark.parametrize(("model", "bounds"), SAFE)
def test_the_model_holds_in_every_state(tmp_path: Path, model: str, bounds: str) -> None:
    assert_holds(search(tmp_path, model, *bounds.split()))


@pytest.mark.long
@pytest.mark.parametrize(("model", "bounds"), SAFE_LONG)
def test_the_model_holds_in_every_state_of_a_larger_bound(tmp_path: Path, model: str, bounds: str) -> None:
    assert_holds(search(tmp_path, model, *bounds.split(), seconds=LONG_SEARCH_SECONDS))


@pytest.mark.parametrize(("model", "mistake", "bounds", "violated"), PLANTED)
def test_a_planted_mistake_is_found(
    tmp_path: Path, model: str, mistake: str, bounds: str, violated: str
) -> None:
    result = search(tmp_path, model, mistake, *bounds.split())

    assert result.errors == 1, result.output
    assert violated in result.violation, result.output


@pytest.mark.parametrize(("model", "mistake", "bounds"), HIDDEN)
def test_a_mistake_hides_below_its_bound(tmp_path: Path, model: str, mistake: str, bounds: str) -> None:
    """So that nobody makes the bounds smaller to save time, and finds comfort."""
    assert_holds(search(tmp_path, model, mistake, *bounds.split()))


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.pml")), ids=lambda path: path.stem)
def test_there_is_a_hunt_for_every_mistake_that_a_model_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(
        r"^ \*     ([A-Z_]+)   ", text.split("Flags:")[1].split("Bounds")[0], flags=re.MULTILINE
    )

    assert named
    assert set(named) == {mistake for model, mistake, _, _ in PLANTED if model == path.stem}


def test_a_search_that_was_cut_short_is_no_proof() -> None:
    whole = "State-vector 44 byte, depth reached 42, errors: 0"

    assert Search(output=whole).is_exhaustive
    assert not Search(output="error: max search depth too small\n" + whole).is_exhaustive
    assert not Search(output="pan: out of memory\nWarning: Search not completed\n" + whole).is_exhaustive
