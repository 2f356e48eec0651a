"""How often messages came back."""

from __future__ import annotations

from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer


def test_a_message_that_never_came_back_has_no_count() -> None:
    counts = DeliveryCounts()
    assert not counts
    assert counts.of(5) == 0
    assert counts.run(1, 10) == (0, 10)


def test_every_return_adds_one_where_it_falls() -> None:
    counts = DeliveryCounts()
    counts.raise_(Ranges([(10, 20)]))
    counts.raise_(Ranges([(15, 25)]))
    counts.raise_(Ranges([(15, 16)]))
    assert [counts.of(number) for number in (9, 10, 14, 15, 16, 19, 20, 24, 25)] == [
        0,
        1,
        1,
        3,
        2,
        2,
        1,
        1,
        0,
    ]


def test_a_run_ends_where_the_count_changes() -> None:
    counts = DeliveryCounts()
    counts.raise_(Ranges([(10, 20)]))
    counts.raise_(Ranges([(15, 25)]))
    assert counts.run(5, 100) == (0, 10)
    assert counts.run(10, 100) == (1, 15)
    assert counts.run(12, 14) == (1, 14)
    assert counts.run(15, 100) == (2, 20)
    assert counts.run(20, 100) == (1, 25)
    assert counts.run(25, 100) == (0, 100)


def test_what_is_gone_is_not_counted_any_more() -> None:
    counts = DeliveryCounts()
    counts.raise_(Ranges([(10, 20)]))
    counts.raise_(Ranges([(15, 20)]))
    counts.forget(Ranges([(10, 20)]))
    assert not counts


def test_counts_read_back_as_they_were_written() -> None:
    counts = DeliveryCounts()
    counts.raise_(Ranges([(10, 20), (30, 31)]))
    counts.raise_(Ranges([(15, 16)]))
    writer = Writer()
    counts.write(writer)
    again = DeliveryCounts.read(Reader(writer.join()))
    assert [again.of(n) for n in range(40)] == [counts.of(n) for n in range(40)]
