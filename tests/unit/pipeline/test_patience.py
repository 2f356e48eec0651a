"""A cluster that is away for a while: a query waits for it, says so, and goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from antiphon.errors import AccessDenied, ConnectionFailed, DestinationError, NotConnected, Timeout
from antiphon.pipeline.options import ConnectionOptions
from antiphon.pipeline.patience import PatientRanges, RetryPolicy
from tests.unit.pipeline.broker import Broker
from tests.unit.pipeline.test_planning import Clock, orders, plan


def away(count: int) -> list[Any]:
    return [NotConnected("the connection is over")] + [ConnectionFailed("refused")] * (count - 1)


def test_a_server_that_was_away_for_more_than_ten_seconds_ended_the_query(caplog: Any) -> None:
    broker, clock = orders(), Clock()
    planner = plan(broker, clock)
    start = planner.initial("latest")
    broker.publish("topic:orders", 3)
    broker.away = away(90)
    with caplog.at_level(logging.WARNING):
        for _ in range(90):
            # The query goes on and finds nothing new; it can be stopped meanwhile.
            assert planner.latest(start) == start
            assert (planner.waiting is not None and planner.waiting.endswith("refused")) or clock.now_s < 2
        assert clock.now_s >= 89
        assert planner.latest(start).channels == {"a": 5}
    assert planner.waiting is None
    assert [record.getMessage() for record in caplog.records] == [
        "the cluster does not answer; it is asked again every 1 s for at most 600 s: the connection is over",
        "the cluster has not answered for 30 s: refused",
        "the cluster has not answered for 60 s: refused",
        "the cluster answers again after 90 s",
    ]


def test_a_cluster_that_stays_away_ends_the_query_when_its_timeout_is_over() -> None:
    broker, clock = orders(), Clock()
    planner = plan(broker, clock, timeout="20", retryInterval="5")
    start = planner.initial("latest")
    broker.away = away(100)
    for _ in range(4):
        planner.latest(start)
    assert clock.now_s == 20
    with pytest.raises(ConnectionFailed, match="refused"):
        planner.latest(start)
    # Who has no patience hears of it at once.
    broker.away = []
    planner = plan(broker, clock, timeout="0")
    start = planner.initial("latest")
    broker.away = [Timeout("silent")]
    with pytest.raises(Timeout, match="silent"):
        planner.latest(start)


def test_a_run_that_ends_by_itself_waits_instead_of_finding_nothing() -> None:
    broker, clock = orders(), Clock()
    planner = plan(broker, clock)
    start = planner.initial("latest")
    broker.publish("topic:orders", 3)
    planner.cap()
    broker.away = away(30)
    assert planner.latest(start).channels == {"a": 5}
    broker.away = away(30)
    assert len(planner.spans(start, planner.latest(start))) == 1
    assert clock.now_s == 60


def test_a_wrong_address_is_told_at_once_and_so_is_any_other_error() -> None:
    broker, clock = orders(), Clock()
    for error in (ConnectionFailed("refused"), AccessDenied("no"), DestinationError("there is none")):
        broker.away = [error]
        with pytest.raises(type(error)):
            plan(broker, clock).initial("latest")
    assert clock.now_s == 0


def test_a_task_goes_on_behind_the_last_page_that_came() -> None:
    clock = Clock()
    broker = orders()
    broker.publish("topic:orders", 10)  # 2 to 11

    class Failing(Broker):
        """Gives two numbers in each page, and every second page fails."""

        failures = 0

        def read(self, channel: str, start: int, stop: int, *words: Any, **more: Any) -> Any:
            for at in range(start, stop, 2):
                if at > start:
                    self.failures += 1
                    raise Timeout("silent")
                yield from broker.read(channel, at, min(stop, at + 2), *words, **more)

    failing = Failing()
    patience = RetryPolicy(600, 1, now_s=clock.now, sleep=clock.sleep)
    ranges = PatientRanges(lambda: failing, patience)  # type: ignore[arg-type,return-value]
    wanted = broker.destinations(["topic:orders"])
    pages = list(ranges.read("a", 2, 12, wanted))
    assert [piece.first for page in pages for piece in page.pieces] == [*range(2, 12)]
    assert failing.failures == 4 and clock.now_s == 4


def test_a_worker_that_starts_while_the_cluster_is_away_waits_too() -> None:
    clock, broker = Clock(), orders()
    broker.away = away(5)
    ranges = PatientRanges(broker.reached, RetryPolicy(600, 1, now_s=clock.now, sleep=clock.sleep))
    assert ranges.cluster() == "c1"
    assert clock.now_s == 5


def test_the_defaults_survive_a_rolling_restart() -> None:
    options = ConnectionOptions("h:1")
    assert options.timeout_s >= 300 and options.retry_s <= 5
