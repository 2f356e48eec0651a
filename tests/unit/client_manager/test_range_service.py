"""Ranges for clients: from some replica, bounded, passed on untouched, and answered or refused in the end."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.bus.messages import About, Query, RangeReply, RangeRequest, Reply
from antiphon.client_manager.effects import SendFrames, SendToReplica, WriteBlocked, WriteUnblocked
from antiphon.ids import IdSource
from antiphon.wire import frames
from antiphon.wire.range_frames import RangeWanted
from tests.unit.client_manager.stage import CHANNEL, CLUSTER_ID, KNOWN, Stage, publish


def staged(**settings: Any) -> Stage:
    stage = Stage(**settings)
    stage.connect()
    return stage


def read(request: int, **more: Any) -> frames.RangeRead:
    wish = frames.RangeRead(
        request=request,
        channel=CHANNEL,
        start=5,
        stop=20,
        goal=90,
        page_bytes=1 << 20,
        ahead=3,
        ahead_from=20,
        allow_lost=True,
        acks=True,
        live=True,
        destinations=(RangeWanted(KNOWN, 7),),
    )
    return replace(wish, **more)


def ask(request: int, **more: Any) -> frames.RangeAsk:
    return replace(frames.RangeAsk(request=request, channel=CHANNEL, question='{"question": "x"}'), **more)


def test_a_page_goes_from_the_replica_to_the_client_without_being_touched() -> None:
    stage = staged()
    stage.say(1, read(5, floor=3))
    assert stage.to_replica(RangeRequest) == [
        RangeRequest(1, 3, 5, 20, 90, 1 << 20, 3, 20, True, True, (KNOWN,), (7,), True)
    ]
    page = memoryview(b"whatever the replica says")
    effects = stage.tell(RangeReply(1, [b"head", page]))
    assert stage.heard_of(frames.RangePage) == [
        frames.RangePage(request=5, page=b"headwhatever the replica says")
    ]
    (sent,) = stage.of_kind(SendFrames, effects)
    assert any(buffer is page for buffer in sent.buffers)
    stage.say(1, read(5))  # its number is free again
    assert len(stage.to_replica(RangeRequest)) == 2


def test_browsing_is_an_open_read_whose_end_the_replica_finds() -> None:
    stage = staged()
    session = stage.open_session()
    stage.say(1, publish(session))
    stage.confirm_all()
    stage.say(1, read(5, start=1, stop=0, goal=0))
    (asked,) = stage.to_replica(RangeRequest)
    assert (asked.start, asked.stop, asked.goal, asked.live) == (1, 0, 0, True)
    assert asked.floor == stage.next_sequence - 1, "a client sees what was confirmed here"


def test_a_question_goes_to_a_replica_and_its_answer_to_the_client() -> None:
    stage = staged()
    stage.say(1, ask(5, wait_ms=70))
    assert stage.to_replica(Query) == [Query(1, About.RANGES, '{"question": "x"}', 0, 70)]
    stage.tell(Reply(1, About.RANGES, '{"next": 4}'))
    assert stage.heard_of(frames.RangeTold) == [frames.RangeTold(request=5, answer='{"next": 4}')]


def test_which_channels_there_are_and_which_cluster_this_is_nobody_has_to_be_asked() -> None:
    stage = Stage(("b", CHANNEL))
    stage.connect()
    stage.say(1, ask(5, channel="", question='{"question": "channels"}'))
    (told,) = stage.heard_of(frames.RangeTold)
    assert json.loads(told.answer) == {"channels": sorted(("b", CHANNEL)), "cluster": CLUSTER_ID}
    assert stage.to_replica(Query) == []


def test_an_answer_is_not_older_than_what_was_confirmed_here_or_than_what_the_client_knows() -> None:
    stage = staged()
    session = stage.open_session()
    stage.say(1, publish(session))
    stage.confirm_all()
    confirmed = stage.next_sequence - 1
    stage.say(1, read(5, floor=1), read(6, floor=10_000), ask(7))
    assert [asked.floor for asked in stage.to_replica(RangeRequest)] == [confirmed, 10_000]
    assert stage.to_replica(Query)[0].floor == confirmed


def test_what_a_replica_refuses_is_refused() -> None:
    stage = staged()
    stage.say(1, read(5), ask(6))
    stage.tell(
        RangeReply(1, [], "range.unavailable", "not yet"),
        Reply(2, About.RANGES, "", "destination.unknown", "9"),
    )
    failed = [(one.request, one.code, one.text) for one in stage.heard_of(frames.Failed)]
    assert failed == [(5, "range.unavailable", "not yet"), (6, "destination.unknown", "9")]


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (read(5, channel="nowhere"), "there is no channel 'nowhere'"),
        (ask(5, channel="nowhere"), "there is no channel 'nowhere'"),
        (read(5, start=0), "a range from 0"),
        (read(5, start=20), "a range from 20 to 20"),
        (read(5, goal=19), "of 19"),
        (read(5, start=0, stop=0, goal=0), "a range from 0"),
        (read(5, stop=0), "a range from 5 to 0 of 90"),
        (read(5, goal=0), "a range from 5 to 20 of 0"),
        (read(5, destinations=()), "of no destination"),
    ],
)
def test_what_no_client_may_ask_is_a_breach(wish: frames.ClientFrame, why: str) -> None:
    stage = staged()
    stage.say(1, wish)
    assert why in stage.goodbye().text
    assert stage.of_kind(SendToReplica) == []


def test_too_much_at_once_is_refused() -> None:
    stage = staged(range_destinations_max=2, range_question_length_max=20, range_page_bytes_max=1_000)
    stage.say(1, read(5, destinations=(RangeWanted(1),) * 3), ask(6, question="x" * 21))
    assert [(one.request, one.code) for one in stage.heard_of(frames.Failed)] == [(5, "limit"), (6, "limit")]
    stage.say(1, read(7, page_bytes=1 << 31))
    assert stage.to_replica(RangeRequest)[0].page_bytes == 1_000


def test_a_few_pages_are_on_their_way_to_a_connection_at_a_time() -> None:
    stage = staged(range_pages_max=2, range_asks_max=1)
    stage.connect(2)
    stage.say(1, *(read(request) for request in range(5, 10)), ask(10), ask(11))
    stage.say(2, read(5))
    assert [asked.request for asked in stage.to_replica(RangeRequest)] == [1, 2, 4]
    assert len(stage.to_replica(Query)) == 1
    stage.tell(RangeReply(2, [b"second"]))
    assert len(stage.to_replica(RangeRequest)) == 4
    stage.tell(Reply(3, About.RANGES, "{}"))
    assert len(stage.to_replica(Query)) == 2
    assert [one.request for one in stage.heard_of(frames.RangePage)] == [6]


def test_a_peer_that_does_not_read_gets_no_further_page_but_answers() -> None:
    stage = staged(range_pages_max=1)
    stage.say(1, read(5), read(6))
    stage.step(WriteBlocked(1))
    stage.tell(RangeReply(1, [b"page"]))
    assert len(stage.to_replica(RangeRequest)) == 1
    stage.say(1, ask(7))
    assert len(stage.to_replica(Query)) == 1
    stage.step(WriteUnblocked(1))
    assert len(stage.to_replica(RangeRequest)) == 2


def test_another_replica_is_asked_for_what_does_not_come_and_asked_first_for_a_while() -> None:
    stage = staged()
    stage.say(1, read(5))
    stage.wait(999)
    assert [effect.attempt for effect in stage.of_kind(SendToReplica)] == [0]
    stage.wait(1_001)
    assert [effect.attempt for effect in stage.of_kind(SendToReplica)] == [0, 1, 2]
    stage.tell(RangeReply(1, [b"page"]), RangeReply(1, [b"page"]))
    assert len(stage.heard_of(frames.RangePage)) == 1
    assert stage.manager.next_deadline_ns() is None
    stage.say(1, read(6))
    assert stage.of_kind(SendToReplica)[-1].attempt == 2
    stage.tell(RangeReply(2, [b"page"]))
    stage.now_ns += 11_000_000_000
    stage.say(1, frames.Ping(nonce=1))
    stage.say(1, read(7))
    assert stage.of_kind(SendToReplica)[-1].attempt == 0, "the backup may live again"


def test_an_answer_that_may_take_longer_is_not_asked_for_too_early() -> None:
    stage = staged()
    stage.say(1, ask(5, wait_ms=5_000))
    stage.wait(5_900)
    assert len(stage.of_kind(SendToReplica)) == 1
    stage.wait(200)
    assert len(stage.of_kind(SendToReplica)) == 2


def test_what_nobody_answers_is_refused_in_the_end() -> None:
    stage = staged()
    stage.say(1, read(5), ask(6))
    stage.wait(10_000)
    failed = [(one.request, one.code) for one in stage.heard_of(frames.Failed)]
    assert failed == [(5, "range.unavailable"), (6, "range.unavailable")]
    assert stage.manager.next_deadline_ns() is None
    stage.tell(RangeReply(1, [b"late"]))
    assert stage.heard_of(frames.RangePage) == []


def test_a_new_primary_is_asked_again() -> None:
    stage = staged()
    stage.say(1, read(5), ask(6))
    stage.new_term(2)
    assert len(stage.of_kind(SendToReplica)) == 4
    stage.tell(RangeReply(1, [b"page"]), RangeReply(1, [b"page"]))
    assert len(stage.heard_of(frames.RangePage)) == 1


def test_for_a_peer_that_is_gone_nothing_is_asked_and_nothing_kept() -> None:
    stage = staged(range_pages_max=1)
    stage.say(1, read(5), read(6), ask(7))
    stage.lose()
    stage.tell(RangeReply(1, [b"page"]))
    assert len(stage.to_replica(RangeRequest)) == 1
    assert stage.heard_of(frames.RangePage) == []
    assert stage.manager.next_deadline_ns() is None


def test_what_was_said_to_an_earlier_life_answers_nothing_in_this_one() -> None:
    """A replica knows who asks by node and number; a killed client manager is back within a second."""
    before, after = (staged(ids=IdSource(1, life, 3, 4)) for life in (100, 101))
    for stage in (before, after):
        stage.say(1, ask(5))
        stage.say(1, read(6))
    (old_ask,), (old_read,) = before.to_replica(Query), before.to_replica(RangeRequest)
    after.tell(Reply(old_ask.request, About.RANGES, '{"next": 4}'))
    after.tell(RangeReply(old_read.request, [b"a page of another range"]))
    assert not after.heard_of(frames.RangeTold) and not after.heard_of(frames.RangePage)
    (new_ask,) = after.to_replica(Query)
    after.tell(Reply(new_ask.request, About.RANGES, '{"next": 9}'))
    assert after.heard_of(frames.RangeTold) == [frames.RangeTold(request=5, answer='{"next": 9}')]
