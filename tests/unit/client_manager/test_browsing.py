"""Pages for clients that look: one at a time, bounded, and never older than what was confirmed."""

from __future__ import annotations

from dataclasses import replace

from antiphon.bus.messages import BrowseReply, BrowseRequest, Piece
from antiphon.client_manager.effects import SendToReplica, WriteBlocked, WriteUnblocked
from antiphon.wire import frames
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, publish


def staged() -> Stage:
    stage = Stage()
    stage.connect()
    return stage


def browse(request: int, destination: int = KNOWN, after: int = 0, limit: int = 10) -> frames.Browse:
    return frames.Browse(request=request, channel=CHANNEL, destination=destination, after=after, limit=limit)


def page(request: int, through: int = 9, more: bool = False) -> BrowseReply:
    return BrowseReply(request, through, more, (Piece(8, 2, 1, [b"ro", memoryview(b"ws")]),))


def test_a_page_goes_from_the_replica_to_the_client() -> None:
    stage = staged()
    stage.say(1, browse(5, after=3, limit=7))
    (asked,) = stage.to_replica(BrowseRequest)
    assert (asked.destination, asked.after, asked.limit, asked.floor) == (KNOWN, 3, 7, 0)
    stage.tell(page(asked.request, more=True))
    (shown,) = stage.heard_of(frames.Browsed)
    assert (shown.request, shown.through, shown.more) == (5, 9, True)
    assert [(first, count, bytes(batch)) for first, count, batch in shown.pieces] == [(8, 1, b"rows")]
    stage.say(1, browse(5))  # its number is free again
    assert len(stage.to_replica(BrowseRequest)) == 2


def test_a_page_is_not_older_than_what_was_confirmed_here() -> None:
    stage = staged()
    session = stage.open_session()
    stage.say(1, publish(session))
    stage.confirm_all()
    stage.say(1, browse(5))
    assert stage.to_replica(BrowseRequest)[0].floor == stage.next_sequence - 1


def test_what_cannot_be_shown_is_refused() -> None:
    stage = staged()
    stage.say(1, browse(5))
    (asked,) = stage.to_replica(BrowseRequest)
    stage.tell(BrowseReply(asked.request, 0, False, code="destination.unknown", text="gone"))
    codes = [(failed.request, failed.code) for failed in stage.heard_of(frames.Failed)]
    assert codes == [(5, "destination.unknown")]
    stage.say(1, replace(browse(6), channel="b"))
    assert "there is no channel 'b'" in stage.goodbye().text


def test_another_replica_is_asked_for_a_page_that_does_not_come() -> None:
    stage = staged()
    stage.say(1, browse(5))
    stage.wait(400)
    assert [effect.attempt for effect in stage.of_kind(SendToReplica)] == [0]
    stage.wait(1_200)
    assert [effect.attempt for effect in stage.of_kind(SendToReplica)] == [0, 1, 2, 3]
    asked, *again = stage.to_replica(BrowseRequest)
    assert again == [asked] * 3
    stage.tell(page(asked.request))
    stage.tell(page(asked.request))
    assert len(stage.heard_of(frames.Browsed)) == 1
    assert stage.manager.next_deadline_ns() is None
    stage.say(1, browse(6))  # whoever gave the last page is asked for the next
    assert stage.of_kind(SendToReplica)[-1].attempt == 3


def test_a_page_without_messages_is_a_breach() -> None:
    stage = staged()
    stage.say(1, browse(5, limit=0))
    assert "page" in stage.goodbye().text


def test_one_page_is_on_its_way_to_a_connection_at_a_time() -> None:
    stage = staged()
    stage.connect(2)
    stage.say(1, *(browse(request) for request in (5, 6, 7)))
    stage.say(2, browse(5))
    asked = stage.to_replica(BrowseRequest)
    assert len(asked) == 2, "one for each"
    stage.tell(page(asked[0].request))
    assert len(stage.to_replica(BrowseRequest)) == 3
    stage.tell(page(stage.to_replica(BrowseRequest)[-1].request))
    stage.tell(page(stage.to_replica(BrowseRequest)[-1].request))
    assert [shown.request for shown in stage.heard_of(frames.Browsed)] == [5, 6, 7]


def test_a_peer_that_does_not_read_gets_no_further_page() -> None:
    stage = staged()
    stage.say(1, browse(5), browse(6))
    (first,) = stage.to_replica(BrowseRequest)
    stage.step(WriteBlocked(1))
    stage.tell(page(first.request))
    assert len(stage.to_replica(BrowseRequest)) == 1
    stage.step(WriteUnblocked(1))
    assert len(stage.to_replica(BrowseRequest)) == 2


def test_a_page_for_a_peer_that_is_gone_goes_nowhere() -> None:
    stage = staged()
    stage.say(1, browse(5), browse(6))
    (asked,) = stage.to_replica(BrowseRequest)
    stage.lose()
    stage.tell(page(asked.request))
    assert len(stage.to_replica(BrowseRequest)) == 1
    assert stage.heard_of(frames.Browsed) == []


def test_a_new_primary_is_asked_again_and_answers_once() -> None:
    stage = staged()
    stage.say(1, browse(5))
    stage.new_term(2)
    first, second = stage.to_replica(BrowseRequest)
    assert first == second
    stage.tell(page(first.request))
    stage.tell(page(first.request))
    assert len(stage.heard_of(frames.Browsed)) == 1
