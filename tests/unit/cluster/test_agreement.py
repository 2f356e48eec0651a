"""Nodes that start compare their files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from antiphon.cluster.agreement import KEYS_NAMED_MAX, PATIENT_SECONDS, Agreement, ConfigCard
from antiphon.cluster.config_file import digest, essential_keys
from antiphon.cluster.topology import ClusterSpec
from tests.unit.cluster.clusters import a_cluster

SPEC = a_cluster(client_managers=1, message_managers=3)
OTHER = replace(SPEC, hops=2, bus={"heartbeat_ms": 20})


def card(name: str, spec: ClusterSpec = SPEC) -> ConfigCard:
    return ConfigCard(
        name=name, number=SPEC.node(name).number, digest=digest(spec), keys=essential_keys(spec)
    )


def agreement(name: str, spec: ClusterSpec = SPEC) -> Agreement:
    return Agreement(card(name, spec), {one.number: one.name for one in SPEC.nodes if one.name != name})


def established(name: str, asker: Agreement, spec: ClusterSpec = SPEC) -> tuple[int, str]:
    answer = card(name, spec).answer(json.loads(asker.question), is_established=True)
    return SPEC.node(name).number, json.dumps(answer)


def newcomer(name: str, asker: Agreement, spec: ClusterSpec = SPEC) -> tuple[int, str]:
    answer = agreement(name, spec).reply(asker.question)
    assert answer is not None
    return SPEC.node(name).number, answer


def test_who_has_the_same_file_starts() -> None:
    asker = agreement("mm-a-2")
    assert asker.unheard == [1, 2, 4]
    asker.take(*established("cm-1", asker))
    asker.take(*newcomer("mm-a-1", asker))
    assert asker.unheard == [4]
    assert asker.refusal() is None


def test_the_same_file_is_not_sent_key_by_key() -> None:
    asker = agreement("mm-a-2")
    assert json.loads(established("cm-1", asker)[1])["keys"] == {}
    assert json.loads(established("cm-1", asker, OTHER)[1])["keys"] == essential_keys(OTHER)


@pytest.mark.parametrize("name", ["mm-a-1", "mm-a-3"], ids=["with a lower number", "with a higher number"])
def test_who_differs_from_one_at_work_does_not_start_and_names_the_keys(name: str) -> None:
    asker = agreement("mm-a-2", OTHER)
    asker.take(*established(name, asker))
    refusal = asker.refusal()
    assert refusal is not None
    assert f"mm-a-2 is not that of {name}" in refusal
    assert "different are bus.heartbeat_ms, hops:" in refusal


def test_of_two_newcomers_the_one_with_the_higher_number_yields() -> None:
    lower, higher = agreement("mm-a-1", OTHER), agreement("mm-a-2")
    lower.take(*newcomer("mm-a-2", lower))
    higher.take(*newcomer("mm-a-1", higher, OTHER))
    assert lower.refusal() is None
    assert "is not that of mm-a-1" in str(higher.refusal())


def test_a_file_that_differs_altogether_is_not_listed_in_full() -> None:
    elsewhere = tuple(replace(one, host="elsewhere", interface="10.1.1.1") for one in SPEC.nodes)
    asker = agreement("mm-a-2", replace(SPEC, nodes=elsewhere, hops=2))
    asker.take(*established("mm-a-1", asker))
    refusal = str(asker.refusal())
    assert refusal.count(",") == KEYS_NAMED_MAX - 1 and " and 1 more:" in refusal


@pytest.mark.parametrize("nonsense", ["", "[]", "{}", '{"digest": 5}', "[" * 100_000, '{"digest": "x"'])
def test_nonsense_is_no_answer(nonsense: str) -> None:
    asker = agreement("mm-a-2")
    asker.take(1, nonsense)
    assert asker.unheard == [1, 2, 4]
    assert asker.reply(nonsense) is None


def test_an_answer_without_sensible_keys_is_still_one() -> None:
    asker = agreement("mm-a-2")
    asker.take(1, '{"digest": "x", "keys": 5, "is_established": true}')
    assert "mm-a-2 is not that of cm-1" in str(asker.refusal())


def test_a_stranger_is_not_heard() -> None:
    asker = agreement("mm-a-2")
    asker.take(77, '{"digest": "x", "keys": {}, "is_established": true}')
    assert asker.refusal() is None


@pytest.mark.parametrize(
    ("status", "has_history"),
    [
        ({"channels": [{"name": "a", "committed": 7}]}, True),
        ({"channels": [{"name": "a", "committed": 0}]}, False),
        ({"channels": []}, False),
        ({"channels": [5, {"committed": None}, {}]}, False),
        ({"channels": 5}, False),
        ([], False),
    ],
)
def test_a_channel_that_has_ordered_something_has_a_history(status: object, has_history: bool) -> None:
    asker = agreement("mm-a-2")
    asker.take_history(SPEC.node("mm-a-1").number, json.dumps(status))
    assert asker.has_history is has_history
    asker.take_history(SPEC.node("mm-a-1").number, "")
    assert asker.has_history is has_history


FIRST, SECOND, THIRD = [SPEC.node(f"mm-a-{rank}").number for rank in (1, 2, 3)]
YOUNG, OLD = json.dumps({"channels": []}), json.dumps({"channels": [{"committed": 5}]})


def formatting() -> Agreement:
    """The first start of mm-a-2."""
    one = replace(card("mm-a-2"), is_new=True)
    return Agreement(one, {FIRST: "mm-a-1", THIRD: "mm-a-3"}, [FIRST, THIRD])


def said(name: str, *, is_new: bool, is_established: bool) -> str:
    one = replace(card(name), is_new=is_new)
    return json.dumps(one.answer({"digest": one.digest}, is_established=is_established))


def test_voters_that_are_new_and_just_starting_settle_a_first_start() -> None:
    asker = formatting()
    assert asker.unsettled == [FIRST, THIRD]
    asker.take(FIRST, said("mm-a-1", is_new=True, is_established=False))
    assert asker.unsettled == [THIRD]
    asker.take(THIRD, said("mm-a-3", is_new=True, is_established=False))
    assert asker.unsettled == []
    assert not asker.has_history


def test_a_question_settles_nothing() -> None:
    """It may come late: its sender was new when it asked, and has a history now."""
    asker = formatting()
    third = Agreement(replace(card("mm-a-3"), is_new=True), {SECOND: "mm-a-2"}, [SECOND])
    assert asker.reply(third.question) is not None
    assert asker.unsettled == [FIRST, THIRD]


def test_a_voter_that_is_not_new_has_a_history_though_it_has_committed_nothing_yet() -> None:
    """All start again after a power cut, and one of them has lost its disk."""
    for is_established in (True, False):
        asker = formatting()
        asker.take(FIRST, said("mm-a-1", is_new=False, is_established=is_established))
        assert asker.has_history and asker.unsettled == [THIRD]


def test_a_voter_that_is_at_work_must_tell_what_was_ordered_since() -> None:
    for told, has_history in ((YOUNG, False), (OLD, True)):
        asker = formatting()
        asker.take(FIRST, said("mm-a-1", is_new=True, is_established=True))
        assert asker.unsettled == [FIRST, THIRD]
        asker.take_history(FIRST, told)
        assert asker.unsettled == [THIRD]
        assert asker.has_history is has_history


def test_who_formats_nothing_waits_for_no_voter() -> None:
    assert agreement("mm-a-2").unsettled == []


def test_a_member_that_is_there_is_waited_for_longer_than_one_that_is_not() -> None:
    asker = agreement("mm-a-2")
    asker.take(*established("cm-1", asker))
    assert asker.awaited == [2, 4]
    assert asker.is_worth_waiting(0.2, 0.3, 0.0, lambda node: False)
    assert not asker.is_worth_waiting(0.3, 0.3, 0.0, lambda node: node == 1), "cm-1 has answered"
    assert asker.is_worth_waiting(0.3, 0.3, 0.0, lambda node: node == 4)
    assert not asker.is_worth_waiting(PATIENT_SECONDS, 0.3, 0.0, lambda node: node == 4)
    asker.take(*established("mm-a-1", asker))
    asker.take(*established("mm-a-3", asker))
    assert not asker.is_worth_waiting(0.0, 0.3, 0.0, lambda node: True), "all have answered"


def test_a_voter_that_must_be_heard_is_waited_for_longest() -> None:
    others = {one.number: one.name for one in SPEC.nodes if one.name != "mm-a-2"}
    asker = Agreement(replace(card("mm-a-2"), is_new=True), others, [2, 4])
    assert asker.is_worth_waiting(59.0, 0.3, 60.0, lambda node: False)
    assert not asker.is_worth_waiting(60.0, 0.3, 60.0, lambda node: False)
