"""Looking at what is stored, page by page."""

from __future__ import annotations

import pytest

from antiphon.batch import Batch
from antiphon.bus.messages import BrowseReply, BrowseRequest
from antiphon.message_manager import browsing
from antiphon.message_manager.browsing import PAGES_AT_ONCE
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.wire.commands import CommandKind, Publish
from tests.unit.message_manager.channel import Channel, Client, batch_of, bodies, sent

PAGE_BYTES = 1_000


@pytest.fixture
def channel() -> Channel:
    return Channel(MessageManagerSettings(registration_wait_ms=0, deliver_bytes_max=PAGE_BYTES))


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.flush()
    return destination


def replies(channel: Channel) -> list[BrowseReply]:
    return [message for message in sent(channel.flush()) if isinstance(message, BrowseReply)]


def page(
    channel: Channel, destination: int, after: int = 0, limit: int = 1_000, floor: int = 0
) -> BrowseReply:
    channel.say(BrowseRequest(7, floor, destination, after, limit))
    [reply] = replies(channel)
    assert reply.request == 7
    return reply


def rows(reply: BrowseReply) -> list[tuple[int, bytes]]:
    return [
        (piece.first_sequence + row, body)
        for piece in reply.pieces
        for row, body in enumerate(batch_of(piece.buffers).bodies())
    ]


def all_rows(channel: Channel, destination: int, limit: int = 1_000) -> list[tuple[int, bytes]]:
    after, more, seen = 0, True, []
    while more:
        reply = page(channel, destination, after, limit)
        assert reply.through > after or not reply.more
        seen += rows(reply)
        after, more = reply.through, reply.more
    return seen


def test_a_page_shows_what_is_stored_and_leaves_it_there(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    reply = page(channel, queue)
    assert rows(reply) == [(first, b"m0"), (first + 1, b"m1"), (first + 2, b"m2")]
    assert (reply.through, reply.more, reply.code) == (first + 2, False, "")
    assert page(channel, queue) == reply
    channel.order(client.ack(queue, (first + 1, first + 2)))
    assert rows(page(channel, queue)) == [(first, b"m0"), (first + 2, b"m2")]


@pytest.mark.parametrize("limit", [1, 2, 7, 1_000])
def test_pages_put_together_are_everything_in_order(
    channel: Channel, client: Client, queue: int, limit: int
) -> None:
    expected = []
    for count in (1, 5, 12):
        first = channel.order(client.publish(queue, bodies(count, f"{count}-")))
        expected += [(first + at, body) for at, body in enumerate(bodies(count, f"{count}-"))]
        channel.mark()
    assert all_rows(channel, queue, limit) == expected


def test_a_page_is_bounded_in_bytes_but_never_empty(channel: Channel, client: Client, queue: int) -> None:
    large = [bytes([at]) * 400 for at in range(4)] + [bytes(3 * PAGE_BYTES)]
    first = channel.order(client.publish(queue, large))
    reply = page(channel, queue)
    assert 0 < sum(len(buffer) for piece in reply.pieces for buffer in piece.buffers) <= PAGE_BYTES
    assert reply.more
    assert [body for _, body in all_rows(channel, queue)] == large
    assert rows(page(channel, queue, after=first + 3)) == [(first + 4, large[4])]


def test_what_a_topic_keeps_can_be_looked_at(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices")
    subscription = channel.order(client.subscribe(topic))
    first = channel.order(client.publish(topic, bodies(2)))
    channel.order(client.ack(topic, (first, first + 2), subscription=subscription))
    assert rows(page(channel, topic)) == [(first, b"m0"), (first + 1, b"m1")]


def test_it_is_seen_how_often_a_message_came_back(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.order(client.give_back(queue, (first + 1, first + 2)))
    assert [(piece.count, piece.redelivery_count) for piece in page(channel, queue).pieces] == [
        (1, 0),
        (1, 1),
        (1, 0),
    ]


def test_an_empty_destination_has_an_empty_page_and_an_unknown_one_none(channel: Channel, queue: int) -> None:
    assert page(channel, queue) == BrowseReply(7, 0, False)
    assert page(channel, 999).code == "destination.unknown"


def test_who_asks_sees_what_it_wrote(channel: Channel, client: Client, queue: int) -> None:
    """A replica that has not come so far waits until it has."""
    number = channel.next
    channel.say(BrowseRequest(7, number, queue, 0, 10))
    assert replies(channel) == []
    assert channel.manager.next_deadline_ns() is None or channel.manager.next_deadline_ns() != channel.now_ns
    channel.order(client.publish(queue, bodies(1)))
    [reply] = replies(channel)
    assert rows(reply) == [(number, b"m0")]


def test_a_backup_shows_pages_too(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(1)))
    channel.claim(2)
    assert not channel.manager.is_primary
    assert len(rows(page(channel, queue))) == 1


def test_many_pages_are_not_read_all_at_once(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(1)))
    for request in range(PAGES_AT_ONCE + 2):
        channel.say(BrowseRequest(request, 0, queue, 0, 10))
    assert [reply.request for reply in replies(channel)] == list(range(PAGES_AT_ONCE))
    assert channel.manager.next_deadline_ns() == channel.now_ns
    assert [reply.request for reply in replies(channel)] == [PAGES_AT_ONCE, PAGES_AT_ONCE + 1]


def test_a_batch_that_cannot_be_read_is_passed_over(channel: Channel, client: Client, queue: int) -> None:
    one = channel.order(client.publish(queue, bodies(1)))
    batch = bytearray(Batch.of_bodies(bodies(2), client.session, client.number, 0).encode())
    batch[-20:] = b"\xff" * 20
    channel.order(client.raw(CommandKind.PUBLISH, Publish(queue, 1, 0, batch).encode(), count=2))
    two = channel.order(client.publish(queue, bodies(1)))
    assert [number for number, _ in rows(page(channel, queue))] == [one, two]


def test_who_asks_again_before_the_page_could_be_given_is_answered_once(channel: Channel, queue: int) -> None:
    later = channel.manager.applied + 1
    for _ in range(5):
        channel.say(BrowseRequest(7, later, queue, 0, 10))
    assert replies(channel) == []
    channel.order(Client(session=0xBAD).ack(1, (1, 2)))
    assert [reply.request for reply in replies(channel)] == [7]


def test_a_question_too_many_is_refused_at_once_with_words(
    channel: Channel, queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "WAITING_MAX", 2)
    never = channel.manager.applied + 1_000
    for request in (1, 2, 3):
        channel.say(BrowseRequest(request, never, queue, 0, 10))
    assert channel.manager.next_deadline_ns() == channel.now_ns
    [refused] = replies(channel)
    assert (refused.request, refused.code) == (3, "limit")
    assert "ask again later" in refused.text
