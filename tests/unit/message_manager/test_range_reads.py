"""Ranges of what is stored: complete, vouched for, and told exactly what is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.bus.messages import About, Query, RangeReply, RangeRequest, Reply
from antiphon.errors import Damaged, ProtocolError
from antiphon.message_manager import range_reads
from antiphon.message_manager.questions import WAITING_MAX
from antiphon.message_manager.range_reads import AHEAD_MAX, AT_ONCE_BYTES, PAGE_ACKS_MAX
from antiphon.ranges import Ranges
from antiphon.wire.range_frames import PageContents, decode_page
from antiphon.wire.transactions import Consumed
from tests.browsing import browse, numbered
from tests.unit.message_manager.channel import Channel, Client, bodies, sent

Rows = list[tuple[int, int, bytes]]
MS = 1_000_000


def request(start: int, stop: int, *destinations: int, **more: Any) -> RangeRequest:
    fields: dict[str, Any] = {
        "request": 7,
        "floor": 0,
        "goal": stop,
        "page_bytes": 1 << 20,
        "ahead": 0,
        "ahead_from": 0,
        "allow_lost": False,
        "acks": False,
        "since": (0,) * len(destinations),
    }
    return RangeRequest(start=start, stop=stop, destinations=destinations, **{**fields, **more})


def replies(channel: Channel) -> list[RangeReply]:
    return [message for message in sent(channel.flush()) if isinstance(message, RangeReply)]


def page(channel: Channel, wish: RangeRequest) -> PageContents:
    channel.say(wish)
    [reply] = replies(channel)
    assert (reply.request, reply.code) == (wish.request, ""), reply
    return decode_page(b"".join(reply.page))


def rows(shown: PageContents) -> Rows:
    return [
        (piece.first + row, piece.destination, body)
        for piece in shown.pieces
        for row, body in enumerate(Batch.decode(piece.batch).bodies())
    ]


def told(channel: Channel, wait_ms: int = 0, floor: int = 0, **question: Any) -> Reply | None:
    channel.say(Query(9, About.RANGES, json.dumps(question), floor, wait_ms))
    return answer(channel)


def answer(channel: Channel) -> Reply | None:
    said = [message for message in sent(channel.flush()) if isinstance(message, Reply)]
    assert len(said) <= 1
    return said[0] if said else None


def asked(channel: Channel, **question: Any) -> dict[str, Any]:
    reply = told(channel, **question)
    assert reply is not None and not reply.code, reply
    found: dict[str, Any] = json.loads(reply.answer)
    return found


# -- pages -----------------------------------------------------------------------------------------


def test_a_page_has_what_is_stored_of_the_wanted_destinations_and_nothing_else(
    channel: Channel, client: Client
) -> None:
    one, two, other = (channel.create_topic(name) for name in ("one", "two", "other"))
    expected: Rows = []
    for round in range(4):
        for topic in (one, two, other):
            first = channel.order(client.publish(topic, bodies(3, f"{round}-{topic}-")))
            if topic != other:
                expected += [(first + at, topic, b"%d-%d-%d" % (round, topic, at)) for at in range(3)]
    shown = page(channel, request(1, channel.next, one, two))
    assert rows(shown) == expected
    assert (shown.through, shown.rows, shown.losses, shown.ends) == (channel.next - 1, 24, (), ())
    start, stop = expected[4][0], expected[19][0]
    cut = page(channel, request(start, stop, one, two))
    assert rows(cut) == expected[4:19]
    assert cut.through == stop - 1


def test_a_batch_that_is_wanted_whole_is_passed_on_as_it_lies_there(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    channel.order(client.publish(topic, bodies(100)))
    channel.say(request(1, channel.next, topic))
    [reply] = replies(channel)
    (batch,) = reply.page[1:]
    assert isinstance(batch, memoryview)
    assert any(batch.obj is stored for stored in channel.payloads.records.values())


def test_pages_end_at_batches_and_go_on_where_they_ended(channel: Channel, client: Client) -> None:
    topics = [channel.create_topic("one"), channel.create_topic("two")]
    for round in range(10):
        channel.order(client.publish(topics[round % 2], [bytes(100)] * 5))
    start, found, pages = 1, [], 0
    while start < channel.next:
        shown = page(channel, request(start, channel.next, *topics, page_bytes=1_500))
        assert len(shown.pieces) == 2 and all(piece.count == 5 for piece in shown.pieces)
        assert shown.through >= start
        found += rows(shown)
        start, pages = shown.through + 1, pages + 1
    assert pages == 5
    assert found == rows(page(channel, request(1, channel.next, *topics)))


def test_a_page_holds_at_least_one_batch_however_large_it_is(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    channel.order(client.publish(topic, [bytes(1_000)] * 3))
    assert page(channel, request(1, channel.next, topic, page_bytes=1)).rows == 3


def test_a_page_says_where_the_next_ones_end(channel: Channel, client: Client) -> None:
    topics = [channel.create_topic("one"), channel.create_topic("two")]
    firsts = [channel.order(client.publish(topics[at % 2], [bytes(100)] * 5)) for at in range(10)]
    wish = request(1, channel.next, *topics, page_bytes=1_500, ahead=2)
    shown = page(channel, wish)
    assert shown.through == firsts[2] - 1
    assert shown.ends == (firsts[4], firsts[6])
    further = page(
        channel, request(1, channel.next, *topics, page_bytes=1_500, ahead=64, ahead_from=firsts[6])
    )
    assert further.ends == (firsts[8], channel.next)
    for start, stop in zip((firsts[2], *shown.ends), (*shown.ends, *further.ends), strict=False):
        part = page(channel, request(start, stop, *topics, page_bytes=1_500, goal=channel.next))
        assert (part.through, part.rows) == (stop - 1, 10)


def test_ends_are_bounded_in_number(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    for _ in range(AHEAD_MAX + 10):
        channel.order(client.publish(topic, [bytes(100)]))
    shown = page(channel, request(1, channel.next, topic, page_bytes=1, ahead=1_000))
    assert len(shown.ends) == AHEAD_MAX


def test_a_queue_shows_what_is_not_consumed(channel: Channel, client: Client) -> None:
    queue = channel.create("q")
    first = channel.order(client.publish(queue, bodies(6)))
    channel.order(client.ack(queue, (first + 2, first + 4)))
    shown = page(channel, request(1, channel.next, queue))
    assert [number - first for number, _, _ in rows(shown)] == [0, 1, 4, 5]
    assert shown.rows == 4


def test_under_a_hold_what_is_acknowledged_is_still_shown(channel: Channel, client: Client) -> None:
    queue = channel.create("q")
    channel.order(client.hold("reader", 1, queue))
    first = channel.order(client.publish(queue, bodies(6)))
    before = page(channel, request(1, first + 6, queue))
    channel.order(client.ack(queue, (first + 2, first + 4)))
    assert rows(page(channel, request(1, first + 6, queue))) == rows(before)


def test_what_is_lost_is_told_of_its_destination_alone(channel: Channel, client: Client) -> None:
    short = channel.create_topic("short", '{"retention":"consumed"}')
    long = channel.create_topic("long")
    channel.order(client.publish(long, bodies(5)))
    lost = channel.order(client.publish(short, bodies(5))) + 4
    channel.order(client.publish(long, bodies(5)))
    refused = page(channel, request(2, channel.next, short, long))
    assert (refused.rows, refused.through) == (0, 1)
    assert refused.losses == ((short, 2, lost),)
    allowed = page(channel, request(2, channel.next, short, long, allow_lost=True))
    assert (allowed.rows, allowed.losses) == (10, ((short, 2, lost),))
    assert page(channel, request(2, channel.next, long)).losses == ()
    assert page(channel, request(lost + 1, channel.next, short, long)).rows == 5
    known = request(2, channel.next, short, long, since=(lost + 1, 0))
    assert (page(channel, known).rows, page(channel, known).losses) == (10, ())
    partly = page(channel, request(2, channel.next, short, long, since=(lost, 0)))
    assert partly.losses == ((short, lost, lost),)


def test_a_destination_that_does_not_exist_is_named_by_its_id(channel: Channel) -> None:
    topic = channel.create_topic("t")
    channel.say(request(1, 2, topic, 99))
    [reply] = replies(channel)
    assert (reply.code, reply.text) == ("destination.unknown", "99")


def test_a_replica_waits_until_it_has_the_whole_range(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    first = channel.next
    channel.claim(2)  # it is not the primary
    channel.say(request(1, first + 4, topic))
    assert replies(channel) == []
    channel.order(client.publish(topic, bodies(3)))
    [reply] = replies(channel)
    assert decode_page(b"".join(reply.page)).rows == 3
    channel.say(request(1, 3, topic, floor=channel.next))
    assert replies(channel) == []
    channel.mark()
    assert len(replies(channel)) == 1


def test_what_the_primary_does_not_get_for_a_while_does_not_exist(channel: Channel) -> None:
    topic = channel.create_topic("t")
    channel.say(request(1, 1_000, topic))
    assert replies(channel) == []
    due_ns = channel.manager.next_deadline_ns()
    assert due_ns == channel.now_ns + 1_000 * MS
    channel.now_ns = due_ns
    [reply] = replies(channel)
    assert reply.code == "range.unavailable" and "number 999" in reply.text
    channel.claim(2)
    channel.say(request(1, 1_000, topic))
    channel.now_ns += 2_000 * MS
    assert replies(channel) == [], "a backup does not know"


def test_one_wake_up_reads_only_so_much(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    for _ in range(6):
        channel.order(client.publish(topic, [bytes(900_000)] * 2))
    for number in range(6):
        channel.say(request(1, channel.next, topic, request=number, page_bytes=2 << 20))
    given = replies(channel)
    assert 0 < len(given) < 6
    assert sum(map(len, given[-1].page)) + AT_ONCE_BYTES > sum(len(b"".join(one.page)) for one in given)
    assert channel.manager.next_deadline_ns() == channel.now_ns
    while len(given) < 6:
        given += replies(channel)
    assert [one.request for one in given] == list(range(6))


def test_what_is_asked_again_is_answered_once(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    channel.say(request(1, channel.next + 1, topic))
    channel.say(request(1, channel.next + 1, topic))
    channel.order(client.publish(topic, bodies(1)))
    assert len(replies(channel)) == 1


def test_those_who_wait_are_bounded(channel: Channel) -> None:
    topic = channel.create_topic("t")
    for number in range(WAITING_MAX + 5):
        channel.say(request(1, channel.next + 1, topic, request=number))
    channel.mark()
    channel.mark()
    given = replies(channel)
    assert len(given) == WAITING_MAX and given[0].request == 5


def test_a_page_ends_before_a_damaged_record_and_one_that_begins_with_it_waits(
    channel: Channel, client: Client
) -> None:
    topic = channel.create_topic("t")
    channel.manager.reconfigure((1, 2, 3))  # somebody else may have it
    first = channel.order(client.publish(topic, bodies(2)))
    second = channel.order(client.publish(topic, bodies(2)))
    channel.mark()
    read = channel.payloads.read

    def damaged(location: Any) -> memoryview:
        if location == channel.manager.state.directory.get(topic).index.find(second).location:  # type: ignore[union-attr]
            raise Damaged("segment", 0, "a bit has changed")
        return read(location)

    channel.payloads.read = damaged  # type: ignore[method-assign]
    channel.manager._reader.let_go()
    shown = page(channel, request(1, channel.next, topic))
    assert (rows(shown)[0][0], shown.through) == (first, second - 1)
    channel.say(request(second, channel.next, topic))
    assert replies(channel) == []
    channel.payloads.read = read  # type: ignore[method-assign]
    channel.manager._go_on()
    [reply] = replies(channel)
    assert decode_page(b"".join(reply.page)).rows == 2


def test_acknowledgements_are_shown_to_who_asks_for_them_as_long_as_they_are_held(
    channel: Channel, client: Client
) -> None:
    queue, other = channel.create("q"), channel.create("other")
    channel.pass_time(1_000)
    channel.order(client.hold("audit", 1, queue, other, acks=True))
    first = channel.order(client.publish(queue, bodies(6)))
    elsewhere = channel.order(client.publish(other, bodies(1)))
    one = channel.order(client.ack(queue, (first, first + 2), (first + 4, first + 5)))
    channel.order(client.ack(other, (elsewhere, elsewhere + 1)))
    two = channel.order(client.ack(queue, (first + 2, first + 3)))
    shown = page(channel, request(1, channel.next, queue, acks=True))
    assert shown.rows == 6
    assert shown.acks == (
        (one, channel.wall_ms, queue, 0, Ranges([(first, first + 2), (first + 4, first + 5)])),
        (two, channel.wall_ms, queue, 0, Ranges([(first + 2, first + 3)])),
    )
    assert page(channel, request(1, two, queue, acks=True)).acks == shown.acks[:1]
    assert page(channel, request(1, channel.next, queue)).acks == ()
    assert asked(channel, question="heads", destinations=[queue])["next"] == first + 6
    assert asked(channel, question="heads", destinations=[queue], acks=True)["next"] == two + 1
    channel.order(client.hold("audit", two, queue, other, acks=True, heard=channel.heard))
    assert page(channel, request(1, channel.next, queue, acks=True)).acks == shown.acks[1:]


def test_a_page_has_only_so_many_acknowledgements(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.message_manager.range_reads.PAGE_ACKS_MAX", 3)
    queue = channel.create("q")
    channel.order(client.hold("audit", 1, queue, acks=True))
    first = channel.order(client.publish(queue, bodies(8)))
    acks = [channel.order(client.ack(queue, (first + at, first + at + 1))) for at in range(8)]
    start, found, rows_found = 1, [], 0
    while start < channel.next:
        shown = page(channel, request(start, channel.next, queue, acks=True))
        assert len(shown.acks) <= 3 and shown.through >= start
        found += [ack.number for ack in shown.acks]
        rows_found += shown.rows
        start = shown.through + 1
    assert (found, rows_found) == (acks, 8)


# -- questions -------------------------------------------------------------------------------------


def test_heads_say_how_far_the_wanted_destinations_go(channel: Channel, client: Client) -> None:
    topic, queue, other = channel.create_topic("t"), channel.create("q"), channel.create_topic("other")
    assert asked(channel, question="heads", destinations=[topic, queue])["next"] == 1
    first = channel.order(client.publish(topic, bodies(4)))
    last = channel.order(client.publish(queue, bodies(2)))
    channel.order(client.publish(other, bodies(9)))
    head = asked(channel, question="heads", destinations=[topic, queue], above=first + 3)
    assert (head["first"], head["next"], head["rows"]) == (first, last + 2, 3)
    assert head["destinations"] == [[topic, first, first + 4, 0], [queue, last, last + 2, 0]]
    assert head["applied"] == channel.next - 1 and head["version"] == other
    channel.order(client.ack(queue, (last, last + 2)))
    again = asked(channel, question="heads", destinations=[topic, queue])
    assert again["next"] == last + 2, "it never falls"
    assert again["destinations"][1] == [queue, last + 2, last + 2, 0]
    reply = told(channel, question="heads", destinations=[topic, 99])
    assert reply is not None and (reply.code, reply.text) == ("destination.unknown", "99")


def test_a_head_says_how_many_messages_were_lost_and_of_which_time(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t", '{"retention":"consumed"}')
    first = channel.order(client.publish(topic, bodies(4)))
    times = channel.manager.state.times
    times.mark(first - 1, 1_700_000_000_000)
    (head,) = asked(channel, question="heads", destinations=[topic])["destinations"]
    assert head == [topic, first + 4, first + 4, first + 3, 4, 1_700_000_000_000]


def test_who_waits_for_a_head_is_told_of_news_or_when_its_time_is_over(
    channel: Channel, client: Client
) -> None:
    topic, other = channel.create_topic("t"), channel.create_topic("other")
    wish = {"question": "heads", "destinations": [topic], "above": 1, "version": other}
    assert told(channel, 200, **wish) is None
    channel.now_ns += 50 * MS
    channel.order(client.publish(other, bodies(1)))
    assert answer(channel) is None
    channel.now_ns += 50 * MS
    channel.order(client.publish(topic, bodies(1)))
    assert answer(channel) is not None
    wish["above"] = channel.next
    assert told(channel, 200, **wish) is None
    assert channel.manager.next_deadline_ns() == channel.now_ns + 200 * MS
    channel.now_ns += 200 * MS
    assert answer(channel) is not None
    assert told(channel, 200, **wish) is None
    channel.now_ns += 50 * MS
    channel.create_topic("new")
    assert answer(channel) is not None, "there is one more destination"


def test_many_commands_are_not_looked_at_one_by_one(channel: Channel, client: Client) -> None:
    """Between two looks there is a moment; what came meanwhile is seen when it is over."""
    topic, other = channel.create_topic("t"), channel.create_topic("other")
    channel.now_ns += 1_000 * MS
    assert told(channel, 1_000, question="heads", destinations=[topic], above=1) is None
    channel.order(client.publish(other, bodies(1)))
    channel.now_ns += 1 * MS
    channel.order(client.publish(topic, bodies(1)))
    assert answer(channel) is None
    due_ns = channel.manager.next_deadline_ns()
    assert due_ns is not None and due_ns <= channel.now_ns + 5 * MS
    channel.now_ns = due_ns
    assert answer(channel) is not None


def test_bounds_count_rows_and_weigh_batches_over_all_destinations(channel: Channel, client: Client) -> None:
    topics = [channel.create_topic("one"), channel.create_topic("two")]
    firsts = [channel.order(client.publish(topics[at % 2], [bytes(100)] * 5)) for at in range(10)]
    end = channel.next

    def bound(**limits: int) -> tuple[int, int]:
        answer = asked(channel, question="bound", destinations=topics, start=1, stop=end, **limits)
        return answer["stop"], answer["rows"]

    assert bound() == (end, 50)
    assert bound(rows=50) == (end, 50)
    assert bound(rows=12) == (firsts[2] + 2, 12)
    assert bound(rows=1)[1] == 1 and bound(rows=0)[1] == 1
    size = channel.manager.state.directory.get(topics[0]).index.find(firsts[0]).length  # type: ignore[union-attr]
    assert bound(bytes=3 * size + 5) == (firsts[3], 15)
    assert bound(bytes=1) == (firsts[1], 5), "a batch, though it is too large"
    assert bound(bytes=1, rows=3) == (firsts[0] + 3, 3)
    assert bound(bytes=3 * size, rows=3) == (firsts[0] + 3, 3)


def test_bounds_over_very_many_destinations_keep_to_their_limits_and_come_near(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.message_manager.range_questions.EXACT_DESTINATIONS_MAX", 3)
    topics = [channel.create_topic(f"t{at}") for at in range(5)]
    for at in range(200):
        channel.order(client.publish(topics[at % 5 if at < 100 else 0], bodies(1 + at % 7)))
    end = channel.next
    wish = {"question": "bound", "destinations": topics, "start": 1, "stop": end}
    whole = asked(channel, **wish)
    assert whole["stop"] == end
    for rows in (1, 10, 100, 500):
        bound = asked(channel, **wish, rows=rows)
        assert max(1, rows // 2) <= bound["rows"] <= rows, bound
    bound = asked(channel, **wish, bytes=whole["bytes"] // 3)
    assert whole["bytes"] // 6 <= bound["bytes"] <= whole["bytes"] // 3
    assert asked(channel, **wish, rows=whole["rows"]) == whole


def test_a_time_is_a_place_in_the_log(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t")
    channel.pass_time(1_000)
    early = channel.wall_ms
    channel.order(client.publish(topic, bodies(1)))
    channel.pass_time(1_000)
    number = channel.order(client.publish(topic, bodies(1)))
    assert asked(channel, question="time", log_time_ms=0)["number"] == 1
    assert asked(channel, question="time", log_time_ms=early + 1)["number"] < number
    assert asked(channel, question="time", log_time_ms=channel.wall_ms + 1)["number"] == number


def test_a_listing_names_everything_page_by_page(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [(channel.create_topic(f"t{at}"), f"topic:t{at}") for at in range(10)]
    whole = asked(channel, question="list")
    assert whole["rows"] == [list(row) for row in made] and not whole["more"]
    assert (whole["version"], whole["parts"]) == (made[-1][0], [])
    part = channel.create_topic("part", '{"channels":"main,b"}')
    assert asked(channel, question="list")["parts"] == [part]
    whole = asked(channel, question="list")
    monkeypatch.setattr("antiphon.message_manager.range_questions.LISTING_LENGTH_MAX", 50)
    found, after = [], 0
    while True:
        one = asked(channel, question="list", after=after)
        found += one["rows"]
        if not one["more"]:
            break
        after = found[-1][0]
    assert found == whole["rows"]


@pytest.mark.parametrize(
    "question",
    [
        "",
        "[]",
        "{}",
        '{"question": "status"}',
        '{"question": "heads"}',
        '{"question": "heads", "destinations": ["x"]}',
        '{"question": "heads", "destinations": [true]}',
        '{"question": "heads", "destinations": [3, 3]}',
        '{"question": "heads", "destinations": [], "above": -1}',
        '{"question": "heads", "destinations": [], "above": 1e9}',
        '{"question": "bound", "destinations": []}',
        '{"question": "bound", "destinations": [], "start": 1, "stop": 99999999999999999999}',
        '{"question": "time"}',
        '{"question": "list", "after": null}',
        "[" * 10_000,
    ],
)
def test_what_is_no_question_is_refused_and_harms_nobody(channel: Channel, question: str) -> None:
    channel.say(Query(9, About.RANGES, question))
    reply = answer(channel)
    assert reply is not None and reply.code == "remote.protocol", reply


def test_holds_are_reported_with_what_is_kept_for_them(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("t", '{"retention":"consumed"}')
    first = channel.next
    channel.order(client.hold("reader", first, topic))
    channel.order(client.publish(topic, bodies(7)))
    (row,) = asked(channel, question="holds")["holds"]
    assert (row["name"], row["position"], row["rows"]) == ("reader", first, 7)


@pytest.mark.parametrize(
    "text",
    [
        '{"question": []}',
        '{"question": {"heads": 1}}',
        "[" * 100_000,
        '{"question": "heads", "above": 1e400}',
    ],
)
def test_what_is_no_question_is_refused_and_nobody_falls_over_it(channel: Channel, text: str) -> None:
    channel.say(Query(9, About.RANGES, text))
    said = answer(channel)
    assert said is not None and said.code == ProtocolError.code


def test_who_watches_a_channel_without_destinations_for_acknowledgements_waits(
    channel: Channel, client: Client
) -> None:
    """It has nothing to read there; an answer at once would make it ask without end."""
    channel.create("q")
    version = channel.manager.state.directory.version
    watching = {"question": "heads", "destinations": [], "above": 0, "version": version, "acks": True}
    assert told(channel, wait_ms=100, **watching) is None


def test_who_consumes_is_not_shown_what_others_have_consumed(channel: Channel, client: Client) -> None:
    """An archive holds the queue, so what its consumers had acknowledged is still there for the archive."""
    queue = channel.create("q")
    first = channel.order(client.publish(queue, bodies(6)))
    channel.order(client.hold("archive", first, queue))
    channel.order(client.ack(queue, (first, first + 2), (first + 3, first + 4)))
    every = page(channel, request(1, channel.next, queue))
    assert [number for number, _, _ in rows(every)] == [*range(first, first + 6)]
    left = page(channel, request(1, channel.next, queue, live=True))
    assert [number for number, _, _ in rows(left)] == [first + 2, first + 4, first + 5]
    assert (left.rows, left.through) == (3, channel.next - 1)


@pytest.mark.parametrize("many", [1, 2_000])
def test_acknowledgements_that_transactions_made_are_shown_page_by_page_too(
    channel: Channel, client: Client, many: int
) -> None:
    """They are told and do not lie in the journal; there may be as many of them, and each may be large."""
    queue, other = channel.create("q"), channel.create("other")
    for _ in range(3 * PAGE_ACKS_MAX // many):
        channel.order(client.publish(other, [b"m"]))
    log = channel.manager.state.holds.acknowledgements
    log.wanted_from = 1
    for number in range(1, channel.next):
        log.tell(number, (Consumed(queue, 0, Ranges([(2 * at, 2 * at + 1) for at in range(many)])),))
    shown: list[int] = []
    start, pages = 1, 0
    while start < channel.next:
        some = page(channel, request(start, channel.next, queue, acks=True, page_bytes=100_000))
        assert len(some.acks) <= PAGE_ACKS_MAX
        assert sum(len(ack.numbers) for ack in some.acks) <= max(PAGE_ACKS_MAX, 100_000 // 16)
        assert some.through >= start
        shown += [ack.number for ack in some.acks]
        start, pages = some.through + 1, pages + 1
    assert shown == [*range(1, channel.next)] and pages >= 3


def test_a_page_fits_a_frame_whatever_it_has_of_messages_acknowledgements_and_losses(
    channel: Channel, client: Client
) -> None:
    """A frame that is too long ends a connection, and the next one asks for the same page."""
    queue = channel.create("q")
    log = channel.manager.state.holds.acknowledgements
    log.wanted_from = 1
    sizes = [1, 600_000, 1, 1_000_000, 1_040_000, 1, 300_000, 1_048_576]
    expected: list[int] = []
    for size in sizes:
        expected.append(channel.order(client.publish(queue, [bytes(size)])))
        number = channel.order(client.publish(channel.create(f"other-{size}-{channel.next}"), [b""]))
        log.tell(number, (Consumed(queue, 0, Ranges([(2 * at, 2 * at + 1) for at in range(20_000)])),))
    shown: list[int] = []
    acks: list[int] = []
    start = 1
    while start < channel.next:
        channel.say(request(start, channel.next, queue, acks=True, page_bytes=1 << 20))
        (reply,) = replies(channel)
        assert sum(map(len, reply.page)) <= (1 << 20) + 4_096
        some = decode_page(b"".join(reply.page))
        shown += [piece.first for piece in some.pieces]
        acks += [ack.number for ack in some.acks]
        start = some.through + 1
    assert shown == expected and len(acks) == len(sizes) and acks == sorted(acks)


# -- browsing ----------------------------------------------------------------------------------------


def looked_at(channel: Channel, destination: int, start: int = 1, page_bytes: int = 1 << 20) -> PageContents:
    return page(channel, browse(destination, start, request=7, page_bytes=page_bytes))


def test_an_open_read_shows_what_is_live_and_leaves_it_there(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    shown = looked_at(channel, queue)
    assert numbered(shown) == [(first, b"m0"), (first + 1, b"m1"), (first + 2, b"m2")]
    assert (shown.through, shown.ends) == (channel.manager.applied, ()), "to the end, and no page follows"
    assert looked_at(channel, queue) == shown
    channel.order(client.ack(queue, (first + 1, first + 2)))
    assert numbered(looked_at(channel, queue)) == [(first, b"m0"), (first + 2, b"m2")]


@pytest.mark.parametrize("page_bytes", [1, 500, 1 << 20])
def test_open_pages_put_together_are_everything_in_order(
    channel: Channel, client: Client, page_bytes: int
) -> None:
    queue, other = channel.create("orders"), channel.create("other")
    expected, seen = [], []
    for count in (1, 5, 12):
        first = channel.order(client.publish(queue, bodies(count, f"{count}-")))
        expected += [(first + at, body) for at, body in enumerate(bodies(count, f"{count}-"))]
        channel.order(client.publish(other, bodies(2)))
    start, more = 1, True
    while more:
        shown = looked_at(channel, queue, start, page_bytes)
        assert shown.through >= start
        seen += numbered(shown)
        start, more = shown.through + 1, bool(shown.ends)
    assert seen == expected
    assert start == channel.next


def test_an_open_read_of_a_topic_shows_what_is_kept(channel: Channel, client: Client) -> None:
    topic = channel.create_topic("prices")
    subscription = channel.order(client.subscribe(topic))
    first = channel.order(client.publish(topic, bodies(2)))
    channel.order(client.ack(topic, (first, first + 2), subscription=subscription))
    assert numbered(looked_at(channel, topic)) == [(first, b"m0"), (first + 1, b"m1")]


def test_a_live_read_tells_how_often_a_message_came_back(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(3)))
    channel.order(client.give_back(queue, (first + 1, first + 2)))
    pieces = [(piece.count, piece.redelivery_count) for piece in looked_at(channel, queue).pieces]
    assert pieces == [(1, 0), (1, 1), (1, 0)]
    stored = page(channel, request(1, channel.next, queue))
    assert [(piece.count, piece.redelivery_count) for piece in stored.pieces] == [(3, 0)], "not in another"


def test_an_open_read_of_nothing_is_an_empty_page(channel: Channel) -> None:
    queue = channel.create("orders")
    assert looked_at(channel, queue) == PageContents(channel.manager.applied, 0, (), (), ())
    behind = channel.next + 5
    assert looked_at(channel, queue, behind).through == behind - 1


def test_an_open_read_waits_for_what_was_confirmed_to_the_client(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    number = channel.next
    channel.say(browse(queue, request=7, floor=number))
    assert replies(channel) == []
    channel.order(client.publish(queue, bodies(1)))
    [reply] = replies(channel)
    assert numbered(decode_page(b"".join(reply.page))) == [(number, b"m0")]


def test_a_backup_shows_open_reads_too(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    channel.order(client.publish(queue, bodies(1)))
    channel.claim(2)
    assert not channel.manager.is_primary
    assert len(numbered(looked_at(channel, queue))) == 1


def test_browsing_leaves_out_what_is_early_or_over_and_other_reads_do_not(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("timed")
    channel.pass_time(0)
    first = channel.order(
        client.publish_rows(
            queue,
            {"body": b"early", "deliver_at_ms": channel.wall_ms + 500},
            {"body": b"plain"},
            {"body": b"short", "expires_ms": channel.wall_ms + 500},
        )
    )
    assert numbered(looked_at(channel, queue)) == [(first + 1, b"plain"), (first + 2, b"short")]
    channel.now_ns += 500 * 1_000_000
    assert numbered(looked_at(channel, queue)) == [(first, b"early"), (first + 1, b"plain")]
    whole = request(first, first + 3, queue, live=True)
    assert [number for number, _ in numbered(page(channel, whole))] == [first, first + 1, first + 2]


def test_a_page_of_browsing_looks_at_a_part_of_what_has_times(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reads, "BROWSED_MAX", 4)
    queue = channel.create("timed")
    channel.pass_time(0)
    late = {"deliver_at_ms": channel.wall_ms + 500}
    first = channel.order(client.publish_rows(queue, *[late] * 6, {}, {}))
    found, start = [], 1
    while True:
        told = looked_at(channel, queue, start)
        found += [number for number, _ in numbered(told)]
        if not told.ends:
            break
        start = told.through + 1
    assert found == [first + 6, first + 7]
