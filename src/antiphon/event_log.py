"""EventLog: what becomes of the events that a node logs.

Where it sits
    machines of the node  ->  EVENT LOG  ->  rows for the file;  envelopes  ->  producer  ->  topic:_LOG

What it promises
    EVL1  Memory is bounded: by rows and bytes that wait to be published, and by the rows of a window of time.
    EVL2  In a window of time there are at most so many events of one code, and so many in all. Of the others
          a later event says how many there were. Counts of equal events (`EventKind.sums`) are added up.
    EVL3  Every event that is not left out is a row for the file, once. It is published once, or a later event
          says how many were not; twice only if the channel forgot the fate of the envelope.
    EVL4  At most one envelope of a channel is on its way, so that a channel that orders nothing keeps no more
          than that, and no event waits behind a client's command or before it for long.
    EVL5  Events about the log are made at the end of a window or when room is found again, never because of
          another event about the log.

What it leaves to others
    The producer gets the envelopes ordered, the fold stores the batches, `runtime` writes the file. Events
    that wait when the node ends are in its file, and nowhere else.

An event of a channel goes to that channel's part of `topic:_LOG`, any other to that of the node's first
channel; while that channel takes nothing, to the first one that does.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from antiphon.batch import BatchBuilder
from antiphon.events import (
    EVENTS_LEFT_OUT,
    EVENTS_UNPUBLISHED,
    EventKind,
    LoggedEvent,
    Severity,
    printable,
)
from antiphon.names import LOG_TOPIC_NAME
from antiphon.values import PropertyValue
from antiphon.wire.commands import (
    NODE_SESSION,
    CreateDestination,
    LogEvents,
    Outcome,
    OutcomeCode,
    Payload,
    encode_command,
    kind_of,
)

_NS_PER_MS: Final = 1_000_000
_KIND_TOPIC: Final = 2
_SENTENCE_MAX: Final = 1_000
_ROW_BYTES: Final = 200
"""What a row takes beside its texts, about."""

COMMON_PROPERTIES: Final = frozenset(("code", "severity", "node", "channel", "time"))
"""The properties of every event; its fields are the others."""

ALL_CODES: Final = "all codes"
"""The `of` of an event about events of all codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogSettings:
    is_published: bool = False
    """Whether events go to `topic:_LOG`; a node of a running system publishes them."""

    window_ms: int = 10_000
    per_code_max: int = 20
    in_all_max: int = 200
    """Events of one code, and of all, in a window."""

    sums_max: int = 100
    """Different sums in a window."""

    gather_ms: int = 200
    """How long the first event waits for others that are published with it."""

    again_ms: int = 1_000
    """When events that no channel takes are tried again."""

    waiting_rows_max: int = 1_000
    waiting_bytes_max: int = 1 << 20
    batch_rows_max: int = 256
    batch_bytes_max: int = 256 << 10


class EventRow(NamedTuple):
    """An event as the file and the topic have it."""

    time_ms: int
    node: str
    channel: str
    event: LoggedEvent

    @property
    def severity(self) -> Severity:
        return self.event.kind.severity

    @property
    def sentence(self) -> str:
        return printable(self.event.sentence(self.node, self.channel), _SENTENCE_MAX)

    def as_json(self) -> str:
        """One line of the file."""
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(self.time_ms / 1_000, UTC).isoformat(timespec="milliseconds"),
            "node": self.node,
            "channel": self.channel,
            "severity": self.severity.word,
            "code": self.event.kind.code,
            "text": self.sentence,
            "fields": dict(self.event.fields),
        }
        return json.dumps(row, ensure_ascii=False)

    def properties(self) -> dict[str, PropertyValue]:
        """The properties of the message, for selectors."""
        return {
            **dict(self.event.fields),
            "code": self.event.kind.code,
            "severity": self.severity.word,
            "node": self.node,
            "channel": self.channel,
            "time": self.time_ms,
        }

    @property
    def weight(self) -> int:
        return _ROW_BYTES + sum([len(str(value)) for _, value in self.event.fields])


class EventEnvelope(NamedTuple):
    """Commands for the producer of a channel, and how many numbers they take."""

    channel: str
    payload: bytes
    count: int  # type: ignore[assignment]  # a tuple has a method of that name


class _Sum(NamedTuple):
    kind: EventKind
    channel: str
    # The fields but for the number.
    others: tuple[tuple[str, PropertyValue], ...]


class _Window:
    """The events since a moment: what was logged, what is added up, and what was left out."""

    __slots__ = ("codes", "end_ns", "in_all", "left_out", "sums")

    def __init__(self, end_ns: int) -> None:
        self.end_ns = end_ns
        self.codes: dict[str, int] = {}
        self.in_all = 0
        self.sums: dict[_Sum, int] = {}
        self.left_out: dict[str, int] = {}

    @property
    def has_more_to_say(self) -> bool:
        return bool(self.left_out) or any(self.sums.values())


class EventLog:
    """The events of one life of a node; `producer` is a number that no other life has."""

    def __init__(
        self,
        node: str,
        channels: Sequence[str],
        producer: int,
        settings: EventLogSettings | None = None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        """`names` are those of the nodes, by number."""
        self._node = node
        self._names = names or {}
        self._channels = tuple(sorted(channels))
        self._producer = producer
        self._settings = settings or EventLogSettings()
        self._window: _Window | None = None
        self._rows: list[EventRow] = []
        # Rows to be published, their bytes, and when the next look at them is.
        self._waiting: deque[EventRow] = deque()
        self._waiting_bytes = 0
        self._due_ns: int | None = None
        self._unpublished = 0
        # Channels with an envelope on its way, and its rows; channels whose part exists.
        self._under_way: dict[str, int] = {}
        self._made: dict[str, None] = {}
        self._published = 0
        self._is_leaving = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    # -- events in -----------------------------------------------------------------------------------

    def note(
        self, now_ns: int, wall_ms: int, event: LoggedEvent, channel: str = "", *, is_public: bool = True
    ) -> None:
        """Log an event; one that is not public is only for the file."""
        window = self._window
        if window is None or now_ns >= window.end_ns:
            window = self._begin_window(now_ns, wall_ms)
        kind = event.kind
        if kind.sums and self._is_added_up(window, event, channel):
            return
        settings = self._settings
        told = window.codes.get(kind.code, 0)
        if told >= settings.per_code_max or window.in_all >= settings.in_all_max:
            of = kind.code if told >= settings.per_code_max else ALL_CODES
            window.left_out[of] = window.left_out.get(of, 0) + 1
            return
        window.codes[kind.code] = told + 1
        window.in_all += 1
        row = EventRow(wall_ms, self._node, channel, event.shown(self._names))
        self._take(now_ns, row, is_public=is_public)

    def _is_added_up(self, window: _Window, event: LoggedEvent, channel: str) -> bool:
        kind, fields = event
        key = _Sum(kind, channel, tuple([field for field in fields if field[0] != kind.sums]))
        if key not in window.sums:
            if len(window.sums) < self._settings.sums_max:
                window.sums[key] = 0
            return False
        window.sums[key] += int(dict(fields)[kind.sums])  # type: ignore[arg-type]
        return True

    def _take(self, now_ns: int, row: EventRow, *, is_public: bool = True) -> None:
        self._rows.append(row)
        settings = self._settings
        if not (settings.is_published and is_public):
            return
        weight = row.weight
        if (
            len(self._waiting) >= settings.waiting_rows_max
            or self._waiting_bytes + weight > settings.waiting_bytes_max
        ):
            self._unpublished += 1
            return
        self._waiting.append(row)
        self._waiting_bytes += weight
        if self._due_ns is None:
            self._due_ns = now_ns + settings.gather_ms * _NS_PER_MS

    def leave(self, now_ns: int, wall_ms: int) -> None:
        """The node is about to end: nothing waits for later events."""
        self._is_leaving = True
        self._end_window(now_ns, wall_ms)
        self._due_ns = now_ns if self._waiting else None

    # -- windows -------------------------------------------------------------------------------------

    def _begin_window(self, now_ns: int, wall_ms: int) -> _Window:
        if self._window is not None:
            self._end_window(now_ns, wall_ms)
        self._window = _Window(now_ns + self._settings.window_ms * _NS_PER_MS)
        return self._window

    def _end_window(self, now_ns: int, wall_ms: int) -> None:
        """Say what the window did not, and how much of it (EVL2); nothing here is left out (EVL5)."""
        window, self._window = self._window, None
        if window is None:
            return
        for (kind, channel, others), count in window.sums.items():
            if count:
                event = LoggedEvent(kind, (*others, (kind.sums, count))).shown(self._names)
                self._take(now_ns, EventRow(wall_ms, self._node, channel, event))
        for of, count in window.left_out.items():
            event = EVENTS_LEFT_OUT(count=count, of=of, seconds=self._settings.window_ms / 1_000)
            self._take(now_ns, EventRow(wall_ms, self._node, "", event))

    # -- out -----------------------------------------------------------------------------------------

    def take_rows(self) -> list[EventRow]:
        """The rows for the file since the last call."""
        rows, self._rows = self._rows, []
        return rows

    def next_deadline_ns(self) -> int | None:
        due_ns, window = self._due_ns, self._window
        if window is not None and window.has_more_to_say and (due_ns is None or window.end_ns < due_ns):
            return window.end_ns
        return due_ns

    def flush(self, now_ns: int, wall_ms: int, takes: Callable[[str], bool]) -> list[EventEnvelope]:
        """The envelopes that are due; `takes` says whether a channel orders messages at the moment."""
        if self._window is not None and now_ns >= self._window.end_ns:
            self._end_window(now_ns, wall_ms)
        if self._due_ns is None or now_ns < self._due_ns:
            return []
        if self._unpublished and len(self._waiting) < self._settings.waiting_rows_max // 2:
            count, self._unpublished = self._unpublished, 0
            self._take(now_ns, EventRow(wall_ms, self._node, "", EVENTS_UNPUBLISHED(count=count)))
        batches = self._choose([one for one in self._channels if takes(one)])
        again_ms = self._settings.again_ms
        self._due_ns = now_ns + again_ms * _NS_PER_MS if self._waiting else None
        return [self._envelope(channel, rows) for channel, rows in batches.items()]

    def _choose(self, open_channels: Sequence[str]) -> dict[str, list[EventRow]]:
        """Take the next rows for each open channel that has no envelope on its way (EVL4)."""
        if not open_channels:
            return {}
        settings = self._settings
        batches: dict[str, list[EventRow]] = {}
        sizes = dict.fromkeys(open_channels, 0)
        left: deque[EventRow] = deque()
        for row in self._waiting:
            channel = row.channel or self._channels[0]
            if channel not in sizes:
                channel = open_channels[0]
            size = sizes[channel] + row.weight
            rows = batches.get(channel, ())
            is_full = len(rows) == settings.batch_rows_max or (rows and size > settings.batch_bytes_max)
            if is_full or channel in self._under_way:
                left.append(row)
                continue
            batches.setdefault(channel, []).append(row)
            sizes[channel] = size
            self._waiting_bytes -= row.weight
        self._waiting = left
        return batches

    def _envelope(self, channel: str, rows: Iterable[EventRow]) -> EventEnvelope:
        builder = BatchBuilder()
        for row in rows:
            builder.add(row.sentence, row.properties(), timestamp_ms=max(0, row.time_ms))
        count = builder.count
        batch = builder.build(self._producer, self._published + 1)
        self._published += count
        self._under_way[channel] = count
        parts = [_command(LogEvents(batch=batch.encode()), count)]
        if channel not in self._made:
            # A part that exists stays as it is.
            _, _, name = LOG_TOPIC_NAME.partition(":")
            parts.insert(0, _command(CreateDestination(kind=_KIND_TOPIC, name=name, settings=""), 1))
        return EventEnvelope(channel, b"".join(parts), count + len(parts) - 1)

    def confirmed(self, now_ns: int, channel: str, outcomes: Iterable[Outcome]) -> None:
        """The envelope of a channel is applied, except for these outcomes."""
        rows = self._under_way.pop(channel, 0)
        if any(outcome.code != OutcomeCode.DUPLICATE for outcome in outcomes):
            self._made.pop(channel, None)
            self._unpublished += rows
        else:
            self._made[channel] = None
        if self._waiting:
            self._due_ns = now_ns
        elif self._unpublished and not self._is_leaving:
            self._due_ns = now_ns + self._settings.again_ms * _NS_PER_MS


def _command(payload: Payload, count: int) -> bytes:
    return encode_command(kind_of(payload), NODE_SESSION, 0, 0, 0, payload.encode(), count)
