"""Lagging: what waits for each kind of reader, how old it is, and what is an alarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.client.aio.holds import HoldReport
from antiphon.errors import LocalError
from antiphon.pipeline.jobs.lagging import Lagging, LagLimits, ReaderLag, prometheus_text
from antiphon.pipeline.patience import PatientRanges, RetryPolicy
from tests.unit.pipeline.broker import ROW_BYTES, Broker

SENT_MS = 1_700_000_000_000
"""The broker's message n was sent n ms after that."""


def lagging(broker: Broker, now_ms: int = SENT_MS + 60_000, rows: list[Any] | None = None) -> Lagging:
    ranges = PatientRanges(broker.reached, RetryPolicy(1, 0.1, sleep=lambda s: None))
    return Lagging(ranges, lambda: rows or [], wall_s=lambda: now_ms / 1000)


def report(name: str, position: int, rows: int, *destinations: str, channel: str = "a") -> HoldReport:
    return HoldReport(name, channel, position, rows, rows * ROW_BYTES, 1.0, 60.0, False, False, destinations)


def checkpoint(folder: Path, **said: Any) -> Path:
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text("v1\n{}\n" + json.dumps({"v": 2, **said}) + "\n")
    return folder


def test_a_hold_is_as_far_behind_as_its_oldest_message_is_old() -> None:
    broker = Broker()
    broker.create("topic:x")
    broker.create("topic:other")
    broker.publish("topic:other", 10)
    (first, *_) = broker.publish("topic:x", 5)
    broker.reports = [report("nightly", 3, 5, "topic:x"), report("done", first + 5, 0, "topic:x")]
    done, nightly = lagging(broker).lags()
    assert (nightly.rows, nightly.bytes, nightly.position) == (5, 500, 3)
    assert nightly.seconds == pytest.approx((60_000 - first) / 1000, abs=0.1)
    assert (done.rows, done.bytes, done.seconds) == (0, 0, 0.0), "though its position is from long ago"


@pytest.mark.parametrize("marks_s", [(10, 50), (10,), (50,)])
def test_a_wrong_clock_of_a_sender_is_held_within_the_marks_of_log_time(marks_s: tuple[int, ...]) -> None:
    """The message says 1_700_000_000; log time says that it came 10 s to 50 s after 1_800_000_000."""
    base_ms = 1_800_000_000_000
    broker = Broker()
    broker.create("topic:x")
    if 10 in marks_s:
        broker.mark("a", base_ms + 10_000)
    broker.publish("topic:x", 1)
    if 50 in marks_s:
        broker.mark("a", base_ms + 50_000)
    broker.reports = [report("nightly", 1, 1, "topic:x")]
    (lag,) = lagging(broker, base_ms + 100_000).lags()
    assert lag.seconds is not None
    if 10 in marks_s:
        assert lag.seconds == pytest.approx(90, abs=2), "not older than the mark before it"
    else:
        assert lag.seconds > 1_000_000, "nothing says more"
    (lag,) = lagging(broker, SENT_MS - 5_000).lags()
    assert lag.seconds == 0.0, "a message of the future is new"


def test_a_checkpoint_counts_what_its_query_has_not_read(tmp_path: Path) -> None:
    broker = Broker("a", "b")
    broker.create("topic:x")
    broker.create("topic:y")
    broker.create("topic:z", "b")
    first = broker.publish("topic:x", 10)
    late = broker.publish("topic:y", 4)
    broker.publish("topic:z", 3)
    place = checkpoint(
        tmp_path / "c",
        cluster="c1",
        channels={"a": late[2], "b": 4},
        subscribed="topic:x,topic:y,topic:z",
        behind={"topic:x": first[7]},
    )
    a, b = lagging(broker).lags(checkpoints=[place])
    assert (a.kind, a.channel, a.rows, a.bytes) == ("checkpoint", "a", 3 + 2, 500)
    assert (b.rows, b.bytes) == (1, 100)
    assert a.seconds == pytest.approx((60_000 - first[7]) / 1000, abs=0.1)


def test_a_checkpoint_of_another_cluster_is_refused(tmp_path: Path) -> None:
    broker = Broker()
    broker.create("topic:x")
    other = checkpoint(tmp_path / "c", cluster="c9", channels={"a": 1}, subscribed="topic:x")
    with pytest.raises(LocalError, match="belongs to cluster c9, and this is cluster c1"):
        lagging(broker).lags(checkpoints=[other])
    old = checkpoint(tmp_path / "old", channels={"a": 1})
    with pytest.raises(LocalError, match="too old"):
        lagging(broker).lags(checkpoints=[old])


def test_subscriptions_are_found_by_name_and_what_is_not_known_is_not_zero() -> None:
    rows = [
        {
            "name": "topic:x",
            "channel": "a",
            "subscriptions": [
                {"name": "audit", "client_id": "c", "durable": True, "shared": False, "backlog": 7},
                {"name": "idle", "client_id": "c", "durable": True, "shared": False, "backlog": 0},
                {"name": "", "client_id": "", "durable": False, "shared": False, "backlog": 3},
            ],
        }
    ]
    (lag,) = lagging(Broker(), rows=rows).lags(["audit"])
    assert lag == ReaderLag("subscription", "audit", "a", None, 7, None, None, ("topic:x",))
    assert [one.name for one in lagging(Broker(), rows=rows).lags()] == ["audit", "idle"]
    with pytest.raises(LocalError, match="neither a hold nor a subscription 'nobody'"):
        lagging(Broker(), rows=rows).lags(["audit", "nobody"])


def test_of_a_spanning_destination_each_part_has_a_line() -> None:
    part = {"name": "topic:x", "subscriptions": [{"name": "audit", "durable": True, "shared": False}]}
    parts = [
        {**part, "channel": channel, "subscriptions": [{**part["subscriptions"][0], "backlog": backlog}]}  # type: ignore[dict-item]
        for channel, backlog in (("a", 3), ("b", 4))
    ]
    rows = [{"name": "topic:x", "channel": ["a", "b"], "subscriptions": [], "parts": parts}]
    found = lagging(Broker(), rows=rows).lags(["audit"])
    assert [(lag.channel, lag.rows) for lag in found] == [("a", 3), ("b", 4)]


def test_each_measure_has_an_alarm_of_its_own() -> None:
    lags = [
        ReaderLag("hold", "nightly", "a", 3, 5, 500, 12.5),
        ReaderLag("subscription", "audit", "a", None, 7, None, None, ("topic:x",)),
    ]
    assert LagLimits().alarms(lags) == []
    assert LagLimits(rows=7, bytes=500, seconds=12.5).alarms(lags) == []
    assert LagLimits(rows=6).alarms(lags) == [
        "subscription audit on channel a is 7 messages behind, and 6 are allowed"
    ]
    assert LagLimits(bytes=100, seconds=10).alarms(lags) == [
        "hold nightly on channel a is 500 bytes behind, and 100 are allowed",
        "hold nightly on channel a is 12.5 s behind, and 10 are allowed",
    ]


def test_prometheus_text_has_a_line_for_each_known_measure() -> None:
    lags = [
        ReaderLag("hold", 'say "hi"\\\n', "a", 3, 5, 500, 12.5),
        ReaderLag("subscription", "audit", "a", None, 7, None, None, ("topic:x",)),
    ]
    assert prometheus_text(lags).splitlines() == [
        "# HELP antiphon_lag_messages Messages that wait for a reader.",
        "# TYPE antiphon_lag_messages gauge",
        'antiphon_lag_messages{kind="hold",name="say \\"hi\\"\\\\\\n",channel="a"} 5',
        'antiphon_lag_messages{kind="subscription",name="audit",channel="a",destination="topic:x"} 7',
        "# HELP antiphon_lag_bytes Bytes that wait for a reader.",
        "# TYPE antiphon_lag_bytes gauge",
        'antiphon_lag_bytes{kind="hold",name="say \\"hi\\"\\\\\\n",channel="a"} 500',
        "# HELP antiphon_lag_seconds Age of the oldest message that waits for a reader.",
        "# TYPE antiphon_lag_seconds gauge",
        'antiphon_lag_seconds{kind="hold",name="say \\"hi\\"\\\\\\n",channel="a"} 12.5',
    ]
