"""The log of events against plain counting: nothing is lost without being told, and nothing grows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import Batch
from antiphon.event_log import EventLog, EventLogSettings
from antiphon.events import CLIENT_REFUSED, MESSAGES_DEAD, NODE_UP, LoggedEvent
from antiphon.wire.commands import CommandKind, LogEvents, Outcome, OutcomeCode, iterate_commands

MS = 1_000_000
CHANNELS = ("a", "b")
SETTINGS = EventLogSettings(
    is_published=True,
    window_ms=100,
    per_code_max=5,
    in_all_max=8,
    sums_max=2,
    gather_ms=10,
    again_ms=20,
    waiting_rows_max=6,
    batch_rows_max=3,
)

events = st.one_of(
    st.builds(
        CLIENT_REFUSED, peer=st.sampled_from(("x", "y")), reason=st.just("r"), problem=st.text(max_size=9)
    ),
    st.builds(NODE_UP, member=st.integers(1, 3), seconds=st.just(1.0)),
    st.builds(
        MESSAGES_DEAD,
        destination=st.sampled_from(("queue:x", "queue:y", "queue:z")),
        reason=st.just("rejected"),
        count=st.integers(1, 9),
    ),
)
acts = st.lists(
    st.one_of(
        st.tuples(st.just("note"), events, st.sampled_from(("", *CHANNELS))),
        st.tuples(st.just("pass"), st.integers(1, 150)),
        st.tuples(st.just("confirm"), st.sampled_from(CHANNELS), st.booleans()),
        st.tuples(st.just("open"), st.sampled_from(CHANNELS)),
        st.tuples(st.just("close"), st.sampled_from(CHANNELS)),
    ),
    max_size=80,
)


class Counted:
    """A log, its channels, and everything that came out of it."""

    def __init__(self) -> None:
        self.log = EventLog("mm-1", CHANNELS, 7, SETTINGS)
        self.now_ms = 0
        self.open = set(CHANNELS)
        self.noted: Counter[str] = Counter()
        self.dead = 0
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.published: list[tuple[str, dict[str, Any]]] = []
        self.refused = 0
        self.numbers: list[int] = []
        self.under_way: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def note(self, event: LoggedEvent, channel: str) -> None:
        self.noted[event.kind.code] += 1
        self.dead += dict(event.fields).get("count", 0)  # type: ignore[operator]
        self.log.note(self.now_ms * MS, self.now_ms, event, channel)

    def flush(self) -> None:
        for channel, payload, count in self.log.flush(self.now_ms * MS, self.now_ms, self.open.__contains__):
            assert channel in self.open and channel not in self.under_way
            assert count == sum(header.count for header, _, _ in iterate_commands(payload))
            for header, body, _ in iterate_commands(payload):
                if header.kind == CommandKind.LOG_EVENTS:
                    batch = Batch.decode(LogEvents.decode(body).batch)
                    assert batch.count <= SETTINGS.batch_rows_max
                    self.numbers += range(batch.first_number, batch.first_number + batch.count)
                    self.under_way[channel] = [
                        (str(batch.properties(row)["code"]), dict(batch.properties(row)))
                        for row in range(batch.count)
                    ]
        self.rows += [(row.event.kind.code, dict(row.event.fields)) for row in self.log.take_rows()]
        assert self.log.waiting <= SETTINGS.waiting_rows_max

    def confirm(self, channel: str, *, is_refused: bool) -> None:
        if channel not in self.under_way:
            return
        rows = self.under_way.pop(channel)
        refusal = (Outcome(1, 1, OutcomeCode.REFUSED, 0, "no"),) if is_refused else ()
        self.log.confirmed(self.now_ms * MS, channel, refusal)
        if not is_refused:
            self.published += rows
        else:
            self.refused += len(rows)

    def count(self, rows: list[tuple[str, dict[str, Any]]], code: str) -> int:
        return sum(fields["count"] for of, fields in rows if of == code)


@given(acts)
def test_every_event_is_a_row_or_counted_and_every_row_is_published_or_counted(script: list[Any]) -> None:
    counted = Counted()
    for what, *about in script:
        match what:
            case "note":
                counted.note(*about)
            case "pass":
                counted.now_ms += about[0]
            case "confirm":
                counted.confirm(about[0], is_refused=about[1])
            case "open":
                counted.open.add(about[0])
            case "close":
                counted.open.discard(about[0])
        counted.flush()
    # Then everything is in order, until the log has nothing more to say.
    counted.open = set(CHANNELS)
    for _ in range(1_000):
        for channel in CHANNELS:
            counted.confirm(channel, is_refused=False)
        due_ns = counted.log.next_deadline_ns()
        if due_ns is None and not counted.under_way:
            break
        counted.now_ms = max(counted.now_ms, (due_ns or 0) // MS)
        counted.flush()
    assert due_ns is None and not counted.under_way, "the log goes on for ever"
    rows, published = counted.rows, counted.published
    about_log = {"log.left_out", "log.unpublished"}
    single = [code for code, fields in rows if code not in about_log and "count" not in fields]
    noted = sum(count for code, count in counted.noted.items() if code != "messages.dead")
    sums_left_out = sum(
        fields["count"] for code, fields in rows if code == "log.left_out" and fields["of"] == "messages.dead"
    )
    left_out = counted.count(rows, "log.left_out")
    assert len(single) <= noted <= len(single) + left_out
    if not sums_left_out and not left_out:
        assert counted.count(rows, "messages.dead") == counted.dead and len(single) == noted
    assert len(rows) == len(published) + counted.count(rows, "log.unpublished")
    assert counted.count(rows, "log.unpublished") >= counted.refused
    assert counted.numbers == sorted(set(counted.numbers)), "no number twice"
