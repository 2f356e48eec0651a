"""Fault rules in words, what they do to what arrives, and the file they can be in."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from antiphon.errors import LocalError
from antiphon.transport.driver import FaultFile
from antiphon.transport.faults import CUT, NONE, Fault, FaultLayer, FaultRules

MS = 1_000_000


def layer(text: str, node: int = 2) -> FaultLayer:
    return FaultLayer(node, FaultRules.parse(text))


def test_without_rules_there_are_no_faults() -> None:
    assert FaultRules.parse(" \n # nothing\n").between(1, 2) is NONE
    assert layer("").arrive(0, 1, b"x") == [b"x"]


def test_rules_are_read() -> None:
    rules = FaultRules.parse(
        "seed=7; drop=0.3 duplicate=0.1 reorder=0.2 delay=5..20\n1>2 delay=1.5 # slow\n1-3 cut"
    )
    assert rules.seed == 7
    assert rules.between(2, 1) == Fault(0.3, 0.1, 0.2, (5.0, 20.0))
    assert rules.between(1, 2) == Fault(delay_ms=(1.5, 1.5))
    assert rules.between(1, 3) == rules.between(3, 1) == CUT


def test_the_last_rule_that_matches_counts() -> None:
    rules = FaultRules.parse("*>4 cut; 2>4 drop=0.5")
    assert rules.between(1, 4) == CUT
    assert rules.between(2, 4) == Fault(drop=0.5)
    assert rules.between(4, 1) is NONE


def test_links_can_be_cut_one_way() -> None:
    rules = FaultRules().cut((1, 2))
    assert rules.between(1, 2) == CUT
    assert rules.between(2, 1) is NONE


@pytest.mark.parametrize(
    "text",
    [
        "drop",
        "drop=",
        "drop=2",
        "drop=-1",
        "drop=x",
        "lose=0.1",
        "1>2",
        "1>x cut",
        "delay=9..",
        "seed=a",
        "cut drop=1",
    ],
)
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(LocalError):
        FaultRules.parse(text)


def arrivals(faulty: FaultLayer, count: int) -> list[int]:
    found = []
    for number in range(count):
        found += [int(data) for data in faulty.arrive(number * MS, 1, b"%d" % number)]
        found += [int(data) for _, data in faulty.due(number * MS)]
    found += [int(data) for _, data in faulty.due(10**15)]
    return found


def test_losses_are_as_many_as_asked_for_and_the_same_for_a_seed() -> None:
    found = arrivals(layer("seed=3; drop=0.3"), 2_000)
    assert 1_300 < len(found) < 1_500
    assert arrivals(layer("seed=3; drop=0.3"), 2_000) == found
    assert arrivals(layer("seed=4; drop=0.3"), 2_000) != found
    assert arrivals(layer("seed=3; drop=0.3", node=5), 2_000) != found, "receivers lose different things"


def test_doubled_means_twice() -> None:
    counts = Counter(Counter(arrivals(layer("duplicate=0.5"), 1_000)).values())
    assert set(counts) == {1, 2}
    assert 400 < counts[2] < 600


@pytest.mark.parametrize("rules", ["reorder=0.3", "delay=0..9"])
def test_disorder_loses_nothing(rules: str) -> None:
    found = arrivals(layer(rules), 1_000)
    assert found != sorted(found)
    assert sorted(found) == list(range(1_000))


def test_what_is_delayed_comes_when_it_is_due() -> None:
    faulty = layer("delay=5")
    assert faulty.arrive(0, 1, b"x") == []
    assert faulty.next_ns == 5 * MS
    assert faulty.due(5 * MS - 1) == []
    assert faulty.due(5 * MS) == [(1, b"x")]
    assert faulty.next_ns is None


def test_what_waits_to_be_overtaken_does_not_wait_for_ever() -> None:
    faulty = layer("reorder=1")
    assert faulty.arrive(0, 1, b"x") == []
    assert faulty.due(5 * MS) == [(1, b"x")]


def test_what_waits_to_be_overtaken_is_overtaken_by_the_next() -> None:
    faulty = layer("reorder=1")
    assert faulty.arrive(0, 1, b"first") == []
    faulty.rules = FaultRules()
    assert faulty.arrive(0, 3, b"of another") == [b"of another"]
    assert faulty.arrive(0, 1, b"second") == [b"second", b"first"]


def test_rules_can_change_while_it_runs() -> None:
    faulty = layer("1>2 cut")
    assert faulty.arrive(0, 1, b"x") == []
    assert faulty.arrive(0, 3, b"x") == [b"x"]
    faulty.rules = FaultRules()
    assert faulty.arrive(0, 1, b"x") == [b"x"]


def test_the_file_is_read_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "faults"
    faulty = FaultLayer(2)
    file = FaultFile(path, faulty)
    assert file.look(), "that there is no file is news the first time"
    assert not file.look()
    path.write_text("1-2 cut")
    assert file.look()
    assert faulty.rules.between(1, 2) == CUT
    assert not file.look()
    path.write_text("1-3 cut")
    os.utime(path, ns=(1, 1))
    assert file.look()
    assert faulty.rules.between(1, 2) is NONE
    path.unlink()
    assert file.look()
    assert faulty.rules == FaultRules()


def test_a_file_that_makes_no_sense_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "faults"
    path.write_text("1-2 cut")
    faulty = FaultLayer(2)
    file = FaultFile(path, faulty)
    file.look()
    path.write_text("1-2 cut everything")
    assert not file.look()
    assert faulty.rules.between(1, 2) == CUT
    assert "stay as they were" in caplog.text
