"""Questions about the whole system: who is asked, who is waited for, and whose word counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.bus.messages import About, Query, Reply
from antiphon.inquiries import Asker, Inquiries, NodeRef, Put, Told

MS = 1_000_000
CM_1, CM_2, MM_1, MM_2, MM_B, WITNESS = 1, 2, 11, 12, 21, 31
MEMBERS = (
    NodeRef("cm-1", CM_1, "client-manager"),
    NodeRef("cm-2", CM_2, "client-manager"),
    NodeRef("mm-a-1", MM_1, "message-manager", "a", 1),
    NodeRef("mm-a-2", MM_2, "message-manager", "a", 2),
    NodeRef("mm-b-1", MM_B, "message-manager", "b", 1),
    NodeRef("w-a-1", WITNESS, "witness", "a"),
)
NAMES = {member.number: member.name for member in MEMBERS}
ME = Asker(7, 3)


def status(number: int, *, epoch: int = 5, committed: int = 9, is_primary: bool = False, **more: Any) -> str:
    """What a node says about itself."""
    member = next(member for member in MEMBERS if member.number == number)
    row = {"name": member.name, "role": member.role, "state": "up", "is_primary": is_primary}
    row |= {"channel": member.channel, "synchronized": True}
    channels = []
    if member.role == "message-manager":
        channel = {"name": member.channel, "epoch": epoch, "committed": committed, "degraded": False}
        channel["replicas"] = sum(
            1 for one in MEMBERS if one.channel == member.channel and one.role == member.role
        )
        channels = [channel | {"primary": member.name if is_primary else None, "serving": is_primary}]
    said = {
        "cluster": "test",
        "nodes": [row],
        "channels": channels,
        "destinations": 0,
        "connections": 0,
        "config_digest": "d1",
    }
    return json.dumps(said | more)


def kept(number: int, *names: str, committed: int = 9, is_primary: bool = False, more: bool = False) -> str:
    channels = json.loads(status(number, committed=committed, is_primary=is_primary))["channels"]
    rows = [{"name": name} for name in names]
    return json.dumps({"channels": channels, "rows": rows, "through": 77, "more": more})


class Desk:
    """Asks, and answers for whoever is to be heard."""

    def __init__(self, gone: tuple[int, ...] = ()) -> None:
        self.inquiries = Inquiries(CM_1, MEMBERS, ("a", "b"), lambda node: node in gone)
        self.puts: list[Put] = []

    def ask(self, question: str, asker: Asker = ME, **more: Any) -> list[Told]:
        asked = self.inquiries.concerns_all(json.dumps({"question": question, **more}))
        assert asked is not None
        self.puts, told = self.inquiries.ask(0, asker, asked, lambda text: status(CM_1, connections=2))
        return told

    def answer(self, number: int, answer: str) -> list[Told]:
        request = self.puts[0].question.request
        return self.inquiries.answered(number, Reply(request, About.NODE, answer))

    def merged(self, told: list[Told]) -> Any:
        ((asker, text),) = told
        assert asker == ME
        return json.loads(text)


def test_everybody_else_is_asked_over_a_channel_that_it_takes_part_in() -> None:
    desk = Desk()
    assert desk.ask("status") == []
    assert [(put.channel, put.to) for put in desk.puts] == [
        ("a", CM_2),
        ("a", MM_1),
        ("a", MM_2),
        ("b", MM_B),
        ("a", WITNESS),
    ]
    assert {put.question for put in desk.puts} == {Query(1, About.NODE, '{"question": "status"}')}


def test_the_answer_comes_when_all_have_answered() -> None:
    desk = Desk()
    desk.ask("status")
    assert desk.answer(MM_1, status(MM_1, is_primary=True, destinations=3)) == []
    assert desk.answer(MM_2, status(MM_2, destinations=3)) == []
    assert desk.answer(WITNESS, status(WITNESS)) == []
    assert desk.answer(CM_2, status(CM_2, connections=5)) == []
    merged = desk.merged(desk.answer(MM_B, status(MM_B, is_primary=True, destinations=4)))
    assert [node["name"] for node in merged["nodes"]] == [member.name for member in MEMBERS]
    assert [(row["name"], row["primary"]) for row in merged["channels"]] == [("a", "mm-a-1"), ("b", "mm-b-1")]
    assert (merged["cluster"], merged["config_digest"]) == ("test", "d1")
    assert (merged["destinations"], merged["connections"], merged["silent"]) == (7, 7, [])
    assert desk.inquiries.next_deadline_ns() is None


def test_who_is_silent_is_asked_again_then_named_and_not_waited_for() -> None:
    desk = Desk(gone=(MM_2,))
    desk.ask("status")
    desk.answer(MM_1, status(MM_1, is_primary=True))
    desk.answer(MM_B, status(MM_B, is_primary=True))
    desk.answer(WITNESS, status(WITNESS))
    assert desk.inquiries.next_deadline_ns() == 300 * MS
    puts, told = desk.inquiries.keep_time(300 * MS)
    # A client manager takes part in all channels: it is tried over the next one.
    assert [(put.channel, put.to) for put in puts] == [("b", CM_2), ("a", MM_2)]
    assert told == []
    assert desk.inquiries.keep_time(999 * MS)[1] == []
    assert desk.inquiries.next_deadline_ns() == 1_000 * MS
    puts, told = desk.inquiries.keep_time(1_000 * MS)
    merged = desk.merged(told)
    assert puts == []
    assert merged["silent"] == ["cm-2", "mm-a-2"]
    states = {node["name"]: node["state"] for node in merged["nodes"]}
    assert (states["cm-2"], states["mm-a-2"], states["mm-a-1"]) == ("suspect", "down", "up")
    (silent,) = [node for node in merged["nodes"] if node["name"] == "mm-a-2"]
    assert (silent["role"], silent["channel"], silent["rank"]) == ("message-manager", "a", 2)
    assert desk.answer(MM_2, status(MM_2)) == [], "too late"


def over(desk: Desk) -> Any:
    return desk.merged(desk.inquiries.keep_time(1_000 * MS)[1])


def test_of_two_primaries_the_one_with_the_higher_epoch_is_it() -> None:
    desk = Desk()
    desk.ask("status")
    desk.answer(MM_1, status(MM_1, epoch=5, is_primary=True, destinations=1))
    desk.answer(MM_2, status(MM_2, epoch=6, is_primary=True, destinations=2))
    merged = over(desk)
    assert [(row["name"], row["primary"]) for row in merged["channels"]] == [("a", "mm-a-2"), ("b", None)]
    assert merged["destinations"] == 2
    assert [node["name"] for node in merged["nodes"] if node["is_primary"]] == ["mm-a-2"]


def test_without_a_primary_the_replica_that_is_farthest_is_heard() -> None:
    desk = Desk()
    desk.ask("status")
    desk.answer(MM_1, status(MM_1, committed=7, destinations=1))
    desk.answer(MM_2, status(MM_2, committed=8, destinations=2))
    merged = over(desk)
    assert [(row["primary"], row["committed"]) for row in merged["channels"]] == [(None, 8), (None, None)]
    assert merged["destinations"] == 2


def test_a_channel_tells_how_many_copies_there_are_and_whether_it_serves() -> None:
    def rows(*answers: tuple[int, str]) -> list[tuple[Any, ...]]:
        desk = Desk()
        desk.ask("status")
        for number, answer in answers:
            desk.answer(number, answer)
        merged = over(desk)
        columns = ("name", "serving", "copies", "replicas", "degraded")
        return [tuple(row[column] for column in columns) for row in merged["channels"]]

    serving, following = (MM_1, status(MM_1, is_primary=True)), (MM_2, status(MM_2))
    other = (MM_B, status(MM_B, is_primary=True))
    b = ("b", True, 1, 1, False)
    assert rows(serving, following, other) == [("a", True, 2, 2, False), b]
    assert rows(serving, other) == [("a", True, 1, 2, True), b], "a copy less"
    assert rows(following, other) == [("a", False, 1, 2, True), b], "nobody leads"
    assert rows(other) == [("a", False, 0, 2, True), b], "nobody answers"


def test_destinations_are_asked_of_the_message_managers_of_a_channel_and_told_by_its_primary() -> None:
    desk = Desk()
    desk.ask("destinations")
    assert [put.to for put in desk.puts] == [MM_1, MM_2]
    assert {put.question.question for put in desk.puts} == {
        '{"question": "kept", "channel": "a", "after": 0}'
    }
    desk.answer(MM_1, kept(MM_1, "queue:old", committed=99))
    page = desk.merged(desk.answer(MM_2, kept(MM_2, "queue:x", "queue:y", is_primary=True)))
    assert [row["name"] for row in page["rows"]] == ["queue:x", "queue:y"]
    assert page["next"] == {"channel": "b", "after": 0}, "the next channel"
    desk.ask("destinations", **page["next"])
    page = desk.merged(desk.answer(MM_B, kept(MM_B, "queue:b", is_primary=True)))
    assert (page["rows"], page["next"]) == ([{"name": "queue:b"}], None)


def test_destinations_that_do_not_fit_one_answer_are_told_in_several() -> None:
    desk = Desk()
    desk.ask("destinations", channel="b", after=5)
    assert desk.puts[0].question.question == '{"question": "kept", "channel": "b", "after": 5}'
    page = desk.merged(desk.answer(MM_B, kept(MM_B, "queue:b", is_primary=True, more=True)))
    assert page["next"] == {"channel": "b", "after": 77}


def test_a_channel_of_which_nobody_answers_is_passed_over() -> None:
    desk = Desk()
    desk.ask("destinations")
    assert over(desk) == {"rows": [], "next": {"channel": "b", "after": 0}}


def test_digests_are_those_of_all_replicas() -> None:
    desk = Desk()
    desk.ask("digests")
    desk.answer(MM_B, '[{"name": "mm-b-1"}]')
    desk.answer(MM_1, '[{"name": "mm-a-1"}]')
    assert [row["name"] for row in over(desk)] == ["mm-a-1", "mm-b-1"]


@pytest.mark.parametrize("answer", ["", "[]", "{}", "no JSON", '{"nodes": []}'])
def test_who_cannot_answer_counts_as_silent(answer: str) -> None:
    desk = Desk()
    desk.ask("status")
    desk.answer(MM_1, answer)
    assert "mm-a-1" in over(desk)["silent"]


def test_many_who_ask_the_same_are_answered_by_one_inquiry() -> None:
    desk = Desk()
    desk.ask("digests")
    asked = desk.puts
    assert desk.ask("digests", Asker(8, 1)) == []
    assert (len(asked), desk.puts) == (3, [])
    _, told = desk.inquiries.keep_time(1_000 * MS)
    assert [asker for asker, _ in told] == [ME, Asker(8, 1)]
    assert {text for _, text in told} == {"[]"}


def test_an_answer_said_twice_counts_once() -> None:
    desk = Desk()
    desk.ask("status")
    desk.answer(MM_1, status(MM_1, connections=3))
    desk.answer(MM_1, status(MM_1, connections=4))
    assert over(desk)["connections"] == 5


@pytest.mark.parametrize(
    "text",
    [
        *("", "7", "{}", "[]", '{"question": []}', '{"question": "config"}'),
        *('{"question": "destinations", "channel": "z"}', '{"question": "destinations", "after": "x"}'),
    ],
)
def test_what_concerns_only_the_node_itself_is_not_asked_of_others(text: str) -> None:
    assert Desk().inquiries.concerns_all(text) is None


def test_who_is_alone_asks_nobody() -> None:
    alone = Inquiries(1, (), ("a",), lambda node: True)
    assert alone.concerns_all('{"question": "status"}') is None
    assert alone.next_deadline_ns() is None
