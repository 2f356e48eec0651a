"""`antiphon faults`: what it writes is what a node reads, and a file that makes no sense is never left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.cli.main import main
from antiphon.runtime.cluster_data import load_cluster
from antiphon.transport.driver import FaultFile
from antiphon.transport.faults import CUT, NONE, Fault, FaultLayer, FaultRules


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.txt"


def rules_of(path: Path) -> FaultRules:
    """As a running node has them."""
    layer = FaultLayer(1)
    assert FaultFile(path, layer).look()
    return layer.rules


def faults(path: Path, *options: str) -> int:
    return main(["faults", str(path), *options])


def test_a_fault_for_all_pairs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults(path, "--drop", "0.3", "--duplicate", "0.1", "--reorder", "0.2", "--delay", "5..20") == 0
    assert rules_of(path).between(1, 2) == Fault(0.3, 0.1, 0.2, (5.0, 20.0))
    assert "any -> any     drop 0.3, duplicate 0.1, reorder 0.2, delay 5 to 20 ms" in capsys.readouterr().out


def test_a_fault_from_some_to_some(path: Path) -> None:
    assert faults(path, "--drop", "0.3", "--from", "1,3", "--to", "2") == 0
    rules = rules_of(path)
    assert rules.between(1, 2) == rules.between(3, 2) == Fault(drop=0.3)
    assert rules.between(2, 1) is rules.between(1, 3) is NONE
    assert faults(path, "--delay", "7", "--from", "2") == 0
    assert rules_of(path).between(2, 4) == Fault(delay_ms=(7.0, 7.0))


def test_a_partition_cuts_both_ways_and_one_way_only_one(path: Path) -> None:
    assert faults(path, "--partition", "1:2,3") == 0
    rules = rules_of(path)
    assert [rules.between(*pair) for pair in ((1, 2), (2, 1), (1, 3), (3, 1))] == [CUT] * 4
    assert rules.between(2, 3) is rules.between(3, 2) is NONE
    assert faults(path, "--clear", "--partition", "1:2,3", "--one-way") == 0
    rules = rules_of(path)
    assert rules.between(1, 2) == rules.between(1, 3) == CUT
    assert rules.between(2, 1) is rules.between(3, 1) is NONE


def test_a_partition_may_have_many_sides(path: Path) -> None:
    assert faults(path, "--partition", "1:2:3,4") == 0
    rules = rules_of(path)
    assert {
        (one, other) for one in range(1, 5) for other in range(1, 5) if rules.between(one, other) == CUT
    } == {(1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (4, 1), (2, 3), (3, 2), (2, 4), (4, 2)}


def test_rules_are_added_behind_those_that_are_there(path: Path) -> None:
    path.write_text("# by hand\n*>* drop=0.1")
    assert faults(path, "--partition", "1:2", "--seed", "9") == 0
    rules = rules_of(path)
    assert (rules.seed, rules.between(1, 2), rules.between(2, 3)) == (9, CUT, Fault(drop=0.1))
    assert path.read_text().startswith("# by hand\n")


def test_nodes_of_a_cluster_may_be_called_by_their_names(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    assert main(["init", str(data), "--message-managers", "3"]) == 0
    spec = load_cluster(data / "cluster.toml")
    one, *others = [node for node in spec.nodes if node.has_disk]
    capsys.readouterr()
    sides = f"{one.name}:{','.join(other.name for other in others)}"
    config = ["--config", str(data / "cluster.toml")]
    assert faults(path, *config, "--partition", sides, "--one-way") == 0
    assert f"  {one.name} -> {others[0].name}" in capsys.readouterr().out
    rules = rules_of(path)
    assert [rules.between(one.number, other.number) for other in others] == [CUT, CUT]
    assert rules.between(others[0].number, one.number) is NONE
    before = path.read_text()
    for options, words in (
        (["--config", str(data / "cluster.toml")], "there is no node 'x'"),
        ([], "--config"),
    ):
        assert faults(path, *options, "--drop", "1", "--from", "x") == 1
        assert words in capsys.readouterr().err
    assert path.read_text() == before


def test_clear_makes_the_network_well_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults(path, "--drop", "1")
    capsys.readouterr()
    assert faults(path, "--clear") == 0
    assert rules_of(path) == FaultRules()
    assert capsys.readouterr().out == "no faults\n"
    assert list(path.parent.iterdir()) == [path], "nothing is left lying about"


def test_without_an_option_the_rules_are_shown_and_not_touched(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faults(path) == 0
    assert not path.exists() and capsys.readouterr().out == "no faults\n"
    path.write_text("seed=7; 1-2 cut; 2>3 delay=5\n3>1 drop=0")
    before = path.stat()
    assert faults(path) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  1 -> 2         cut",
        "  2 -> 1         cut",
        "  2 -> 3         delay 5 ms",
        "  3 -> 1         well",
    ]
    assert faults(path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seed"] == 7 and len(told["rules"]) == 4
    assert told["rules"][0] == {
        "from": 1, "to": 2, "drop": 1.0, "duplicate": 0.0, "reorder": 0.0, "delay_ms": [0.0, 0.0],
    }  # fmt: skip
    assert path.stat() == before or path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_file_that_makes_no_sense_is_said_to_and_stays(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text("lose=0.1\n")
    for options in ([], ["--drop", "0.5"]):
        assert faults(path, *options) == 1
        said = capsys.readouterr().err
        assert str(path) in said and "'lose=0.1' is no fault" in said
    assert path.read_text() == "lose=0.1\n"
    assert faults(path, "--clear") == 0


@pytest.mark.parametrize(
    "options",
    [
        ["--drop", "2"],
        ["--drop", "nan"],
        ["--drop", "0.1; 1>2 cut"],
        ["--drop", "0.1#"],
        ["--delay", "soon"],
        ["--delay", "5..2 drop=1"],
        ["--from", "1"],
        ["--from", "1>2", "--drop", "1"],
        ["--to", "", "--drop", "1"],
        ["--partition", "1"],
        ["--partition", "1:1"],
        ["--partition", "1:*"],
        ["--one-way"],
        ["--one-way", "--drop", "1"],
        ["--seed", "-1"],
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    options: list[str], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = faults(path, *options)
    except SystemExit as refused:
        code = refused.code if isinstance(refused.code, int) else -1
    assert code == 2 and capsys.readouterr().err
    assert not path.exists()
