"""`antiphon sim`: what it says when all is well, when a promise is broken, and when it was asked wrongly."""

from __future__ import annotations

import json

import pytest

from antiphon.cli.main import main
from tests.planted.catalogue import planted


def test_seeds_without_a_fault_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "node", "--seeds", "2", "--from", "5"]) == 0

    said = capsys.readouterr().out
    assert "2 seeds in" in said
    assert "seeds a minute" in said
    assert "no promise was broken" in said


def test_a_broken_promise_names_the_seed_the_promise_and_the_replay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted("acknowledge-before-fsync"):
        assert main(["sim", "node", "--seeds", "3", "--profile", "acknowledging-early"]) == 1

    said = capsys.readouterr().out
    assert "seed 1: I15 write before send: " in said
    assert "replay: antiphon sim node --seed 1 --profile acknowledging-early --trace" in said


def test_one_seed_tells_its_digest_and_its_probes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "node", "--seed", "3"]) == 0
    once = capsys.readouterr().out
    assert main(["sim", "node", "--seed", "3"]) == 0

    assert "trace digest " in once
    assert "journal.rolled_over" in once
    assert capsys.readouterr().out == once


def test_a_trace_has_a_line_for_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "node", "--seed", "3", "--trace"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert any("node 1     says CommitAcknowledge(epoch=65537 " in line for line in lines)
    assert any(line.endswith("world      heals") for line in lines)


def test_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "node", "--seeds", "1", "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert said["seeds"] == 1
    assert said["violation"] is None
    assert said["figures"]["confirmed"] > 0


def test_a_group_is_simulated_and_its_size_may_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "bus", "--seeds", "2", "--nodes", "5", "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert said["probes"]["shape.five"] == 2
    assert said["figures"]["confirmed"] > 0


def test_a_broken_promise_of_a_group_is_replayed_with_the_same_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["sim", "bus", "--profile", "numbering-twice", "--nodes", "3"]
    with planted("dedup-off"):
        assert main([*words, "--seeds", "8"]) == 1
        verdict, replay = capsys.readouterr().out.splitlines()[-2:]
        assert replay.startswith("replay: antiphon sim bus --seed ")
        seed = replay.split()[5]
        assert main([*words, "--seed", seed]) == 1
    assert verdict in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["node", "--profile", "doubt"], "node has no profile doubt; it has: "),
        (["topic", "--nodes", "3"], "--nodes is for the workload bus"),
    ],
)
def test_what_does_not_fit_the_workload_is_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_an_unknown_workload_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "elephants"]) == 2

    assert "there is no workload 'elephants'; known: bus" in capsys.readouterr().err
