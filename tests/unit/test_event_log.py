"""What becomes of the events of a node: bounds, rates, sums, and envelopes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.event_log import ALL_CODES, EventEnvelope, EventLog, EventLogSettings, EventRow
from antiphon.events import (
    CLIENT_REFUSED,
    EVENTS_LEFT_OUT,
    MESSAGES_DEAD,
    NODE_DOWN,
    NODE_STARTED,
    NODE_UP,
    LoggedEvent,
)
from antiphon.wire.commands import (
    CommandKind,
    LogEvents,
    Outcome,
    OutcomeCode,
    decode_payload,
    iterate_commands,
)

MS = 1_000_000
BEGAN_MS = 1_790_000_000_000
REFUSED = CLIENT_REFUSED(peer="1.2.3.4:5", reason="protocol", problem="nonsense")


class Driven:
    """A log with a clock; its channels take what is published, unless they are closed."""

    def __init__(self, channels: Iterable[str] = ("a",), **settings: Any) -> None:
        self.channels = tuple(channels)
        self.log = EventLog("mm-1", self.channels, 7, EventLogSettings(is_published=True, **settings))
        self.now_ms = 0
        self.closed: list[str] = []

    def note(self, *events: LoggedEvent, channel: str = "", is_public: bool = True) -> None:
        for event in events:
            self.log.note(self.now_ms * MS, BEGAN_MS + self.now_ms, event, channel, is_public=is_public)

    def flush(self) -> list[EventEnvelope]:
        takes = [one for one in self.channels if one not in self.closed].__contains__
        return self.log.flush(self.now_ms * MS, BEGAN_MS + self.now_ms, takes)

    def passes(self, ms: int) -> list[EventEnvelope]:
        """What leaves when so much time is over."""
        self.now_ms += ms
        return self.flush()

    def confirm(self, channel: str = "a", *outcomes: Outcome) -> None:
        self.log.confirmed(self.now_ms * MS, channel, outcomes)

    def sentences(self) -> list[str]:
        return [row.sentence for row in self.log.take_rows()]

    @property
    def due_ms(self) -> int | None:
        due_ns = self.log.next_deadline_ns()
        return None if due_ns is None else due_ns // MS


def batch_of(envelope: EventEnvelope) -> Batch:
    *_, (_, body, _) = iterate_commands(envelope.payload)
    payload = decode_payload(CommandKind.LOG_EVENTS, body)
    assert isinstance(payload, LogEvents)
    return Batch.decode(payload.batch)


def bodies(envelope: EventEnvelope) -> list[object]:
    batch = batch_of(envelope)
    return [batch.body(row) for row in range(batch.count)]


def refusals(count: int) -> list[LoggedEvent]:
    return [CLIENT_REFUSED(peer=f"host:{n}", reason="protocol", problem="no") for n in range(count)]


def test_an_event_is_a_row_for_the_file_and_after_a_moment_a_message() -> None:
    driven = Driven()
    driven.note(NODE_DOWN(member="mm-2", seconds=2.0), channel="a")
    (row,) = driven.log.take_rows()
    assert json.loads(row.as_json()) == {
        "time": "2026-09-21T14:13:20.000+00:00",
        "node": "mm-1",
        "channel": "a",
        "severity": "warning",
        "code": "node.down",
        "text": "nothing has been heard of mm-2 for 2 s",
        "fields": {"member": "mm-2", "seconds": 2.0},
    }
    assert driven.flush() == [] and driven.due_ms == 200, "others may follow"
    driven.note(NODE_UP(member="mm-2", seconds=3.0), channel="a")
    (envelope,) = driven.passes(200)
    assert driven.due_ms is None
    kinds = [header.kind for header, _, _ in iterate_commands(envelope.payload)]
    assert kinds == [CommandKind.CREATE, CommandKind.LOG_EVENTS]
    assert (envelope.channel, envelope.count) == ("a", 3), "the part of the topic takes a number, too"
    batch = batch_of(envelope)
    assert bodies(envelope) == ["nothing has been heard of mm-2 for 2 s", "mm-2 is heard again, after 3 s"]
    assert batch.properties(0) == {
        "member": "mm-2",
        "seconds": 2.0,
        "code": "node.down",
        "severity": "warning",
        "node": "mm-1",
        "channel": "a",
        "time": BEGAN_MS,
    }
    assert batch.timestamp_ms(0) == BEGAN_MS and (batch.producer, batch.first_number) == (7, 1)


def test_one_envelope_of_a_channel_is_on_its_way_and_the_next_needs_no_part() -> None:
    driven = Driven()
    driven.note(NODE_STARTED(role="embedded"))
    assert len(driven.passes(200)) == 1
    driven.note(NODE_UP(member="mm-2", seconds=3.0))
    assert driven.passes(200) == [] and driven.passes(10_000) == []
    driven.confirm("a", Outcome(5, 1, OutcomeCode.DUPLICATE, 3, ""))
    (envelope,) = driven.passes(0)
    assert [header.kind for header, _, _ in iterate_commands(envelope.payload)] == [CommandKind.LOG_EVENTS]
    assert batch_of(envelope).first_number == 2, "the numbers of a life go on"


def test_an_event_goes_to_its_channel_and_elsewhere_while_that_takes_nothing() -> None:
    driven = Driven(("b", "a"))
    driven.note(NODE_STARTED(role="client-manager"))
    driven.note(NODE_DOWN(member="mm-2", seconds=2.0), channel="b")
    assert [(one.channel, len(bodies(one))) for one in driven.passes(200)] == [("a", 1), ("b", 1)]
    driven.confirm("a")
    driven.confirm("b")
    driven.closed = ["b"]
    driven.note(NODE_UP(member="mm-2", seconds=2.0), channel="b")
    assert [one.channel for one in driven.passes(200)] == ["a"]
    driven.confirm("a")
    driven.closed = ["a", "b"]
    driven.note(NODE_UP(member="mm-3", seconds=2.0))
    assert driven.passes(200) == [] and driven.due_ms == driven.now_ms + 1_000, "tried again"
    driven.closed = []
    assert [one.channel for one in driven.passes(1_000)] == ["a"]


def test_a_storm_of_one_code_is_cut_and_its_rest_is_counted() -> None:
    driven = Driven(per_code_max=20, window_ms=10_000)
    driven.note(*refusals(500))
    driven.note(NODE_STARTED(role="embedded"))
    assert len(driven.sentences()) == 21, "other events are not left out for that"
    driven.passes(200)
    driven.confirm()
    assert driven.due_ms == 10_000
    driven.passes(9_800)
    assert driven.sentences() == ["events of client.refused that were left out within 10 s: 480"]
    (envelope,) = driven.passes(200)
    assert bodies(envelope) == ["events of client.refused that were left out within 10 s: 480"]
    driven.confirm()
    assert driven.due_ms is None and driven.passes(100_000) == [], "the log has nothing to say of itself"
    driven.note(*refusals(3))
    assert len(driven.sentences()) == 3, "a new window"


def test_events_of_all_codes_together_are_cut_too() -> None:
    driven = Driven(per_code_max=20, in_all_max=30)
    driven.note(*refusals(20))
    driven.note(*[NODE_UP(member=f"mm-{n}", seconds=1.0) for n in range(20)])
    assert len(driven.sentences()) == 30
    driven.passes(10_000)
    assert driven.sentences() == [f"events of {ALL_CODES} that were left out within 10 s: 10"]


def test_a_window_that_nobody_waited_for_is_told_with_the_next_event() -> None:
    driven = Driven(per_code_max=1)
    driven.note(*refusals(3))
    driven.sentences()
    driven.now_ms += 60_000
    driven.note(NODE_STARTED(role="embedded"))
    assert driven.sentences() == [
        "events of client.refused that were left out within 10 s: 2",
        "mm-1 has started as embedded",
    ]


def test_counts_of_equal_events_are_added_up() -> None:
    driven = Driven()

    def dead(queue: str, count: int) -> LoggedEvent:
        return MESSAGES_DEAD(destination=queue, reason="rejected", count=count)

    driven.note(dead("queue:x", 3), dead("queue:y", 1), channel="a")
    for _ in range(1_000):
        driven.note(dead("queue:x", 2), channel="a")
    assert driven.sentences() == [
        "messages of queue:x have died: 3 (rejected)",
        "messages of queue:y have died: 1 (rejected)",
    ]
    driven.passes(10_000)
    assert driven.sentences() == ["messages of queue:x have died: 2,000 (rejected)"], "and none is left out"


def test_what_no_channel_takes_is_bounded_and_counted() -> None:
    driven = Driven(waiting_rows_max=10, per_code_max=1_000, in_all_max=1_000)
    driven.closed = ["a"]
    driven.note(*refusals(25))
    assert len(driven.sentences()) == 25 and driven.log.waiting == 10
    driven.passes(1_000)
    assert driven.log.waiting == 10
    driven.closed = []
    (envelope,) = driven.passes(1_000)
    assert len(bodies(envelope)) == 10
    driven.confirm()
    (told,) = driven.passes(1_000)
    (said,) = bodies(told)
    assert said == "events of mm-1 that could not be published: 15; its file has them"
    driven.confirm()
    assert driven.due_ms is None and driven.passes(100_000) == []


def test_bytes_that_wait_are_bounded_too() -> None:
    driven = Driven(waiting_bytes_max=2_000, per_code_max=1_000)
    driven.closed = ["a"]
    driven.note(*[CLIENT_REFUSED(peer="p", reason="r", problem="x" * 300) for _ in range(20)])
    assert 0 < driven.log.waiting < 6


def test_many_events_leave_in_several_batches() -> None:
    driven = Driven(batch_rows_max=10, per_code_max=1_000)
    driven.note(*refusals(25))
    sizes = []
    envelopes = driven.passes(200)
    while envelopes:
        (envelope,) = envelopes
        sizes.append(len(bodies(envelope)))
        driven.confirm()
        envelopes = driven.passes(0)
    assert sizes == [10, 10, 5]


def test_a_refused_batch_is_counted_and_the_part_is_made_again() -> None:
    driven = Driven()
    driven.note(NODE_STARTED(role="embedded"))
    driven.passes(200)
    driven.confirm("a", Outcome(7, 1, OutcomeCode.REFUSED, 0, "no such topic"))
    (envelope,) = driven.passes(1_000)
    assert bodies(envelope) == ["events of mm-1 that could not be published: 1; its file has them"]
    first, *_ = [header.kind for header, _, _ in iterate_commands(envelope.payload)]
    assert first == CommandKind.CREATE


def test_an_event_that_is_not_public_is_only_a_row() -> None:
    driven = Driven()
    driven.note(NODE_UP(member="mm-2", seconds=3.0), is_public=False)
    assert len(driven.sentences()) == 1 and driven.due_ms is None and driven.passes(1_000) == []


def test_a_node_that_leaves_publishes_at_once_and_tells_what_was_left_out() -> None:
    driven = Driven(per_code_max=1)
    driven.note(*refusals(3))
    driven.log.leave(driven.now_ms * MS, BEGAN_MS)
    (envelope,) = driven.flush()
    assert bodies(envelope)[1] == "events of client.refused that were left out within 10 s: 2"


def test_a_log_that_is_not_published_has_rows_and_no_envelopes() -> None:
    log = EventLog("node-1", ("a",), 1)
    log.note(0, BEGAN_MS, REFUSED)
    assert len(log.take_rows()) == 1
    assert log.next_deadline_ns() is None and log.flush(10**12, BEGAN_MS, lambda channel: True) == []


@pytest.mark.parametrize("text", ["two\nlines", "{node} {0} %s", "\x1b[31m", "x" * 100_000])
def test_the_text_of_a_peer_is_shown_on_one_short_line_and_is_no_format(text: str) -> None:
    event = CLIENT_REFUSED(peer="p", reason="r", problem=text).shown({})
    row = EventRow(BEGAN_MS, "mm-1", "", event)
    assert row.sentence.isprintable() and len(row.sentence) < 1_100 and "\n" not in row.as_json()
    assert text[:5].encode("unicode_escape").decode() in row.sentence


def test_sums_and_left_out_events_are_declared_as_they_are_used() -> None:
    assert MESSAGES_DEAD.sums == "count"
    assert (
        EVENTS_LEFT_OUT(count=1, of="x", seconds=1.0).text == "events of x that were left out within 1 s: 1"
    )
