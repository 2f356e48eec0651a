"""The delivery rules of messages, noted from their batches and forgotten with them."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch import Batch, BatchRule
from antiphon.errors import ProtocolError
from antiphon.message_manager.state.destinations.rules import PLAIN, DeliveryRules, TimedRanges, TimedRun
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer
from tests.unit.message_manager.channel import rows_of


def batch(*rows: dict[str, Any]) -> bytes:
    return rows_of(rows).build(7, 1).encode()


def restored(rules: DeliveryRules) -> DeliveryRules:
    writer = Writer()
    rules.write(writer)
    reader = Reader(writer.join())
    again = DeliveryRules.read(reader)
    reader.finish()
    return again


MIXED = (
    {"priority": 9},
    {"priority": 9, "expires_ms": 500},
    {"expires_ms": 500},
    {"deliver_at_ms": 300, "priority": 0},
    {"persistent": False, "key": "k"},
    {},
)


def test_a_plain_batch_has_no_rules() -> None:
    assert DeliveryRules.of(batch({}, {"type": "t"})) is None
    assert DeliveryRules.of(Batch.of_bodies([b"a"], 7, 1, 0).encode()) is None


def test_the_rules_of_rows_are_noted_under_their_numbers() -> None:
    rows = DeliveryRules.of(batch(*MIXED))
    assert rows is not None
    rules = PLAIN.note(rows, 100)
    assert rules.priorities == {9: Ranges([(100, 102)]), 0: Ranges([(103, 104)])}
    assert list(rules.expires) == [TimedRun(500, 101, 103)]
    assert list(rules.deliver_at) == [TimedRun(300, 103, 104)]
    assert (rules.transient, rules.keyed) == (Ranges([(104, 105)]), Ranges([(104, 105)]))


def test_rows_that_are_stored_already_are_left_out() -> None:
    rows = DeliveryRules.of(batch(*MIXED))
    assert rows is not None
    rules = PLAIN.note(rows, 100, skip=2)
    assert rules.priorities == {0: Ranges([(103, 104)])}
    assert list(rules.expires) == [TimedRun(500, 102, 103)]


def test_rules_are_forgotten_with_their_messages() -> None:
    rows = DeliveryRules.of(batch(*MIXED))
    assert rows is not None
    rules = PLAIN.note(rows, 100)
    rules.forget(Ranges([(100, 102), (104, 106)]))
    assert rules.priorities == {0: Ranges([(103, 104)])}
    assert list(rules.expires) == [TimedRun(500, 102, 103)] and not rules.keyed
    rules = rules.forget(Ranges([(1, 200)]))
    assert not rules


def test_what_is_written_reads_as_it_was() -> None:
    rows = DeliveryRules.of(batch(*MIXED))
    assert rows is not None
    rules = PLAIN.note(rows, 100)
    rules.forget(Ranges([(102, 103)]))
    again = restored(rules)
    assert (again.priorities, list(again.expires)) == (rules.priorities, list(rules.expires))
    assert len(again.expires) == len(rules.expires) and again.keyed == rules.keyed
    assert not restored(DeliveryRules())


def test_a_batch_that_lies_about_its_rules_is_no_batch() -> None:
    lie = bytearray(batch({"priority": 9}))
    assert lie[1] == BatchRule.PRIORITY
    lie[1] = BatchRule.EXPIRES
    with pytest.raises(ProtocolError, match="rules 0x2 has columns for 0x1"):
        DeliveryRules.of(bytes(lie))


def test_times_of_messages_that_are_gone_are_dropped_together() -> None:
    timed = TimedRanges()
    for number in range(1, 1_001):
        timed.add(10_000 - number, number, number + 1)
    timed.forget(Ranges([(1, 995)]))
    assert len(timed) == 6 and next(iter(timed)) == TimedRun(9_005, 995, 996)
    assert timed.due(Ranges([(1, 2_000)]), 9_001) == Ranges([(999, 1_001)])
    timed.forget(Ranges([(1, 2_000)]))
    assert not timed and len(timed) == 0


def test_neighbours_with_one_time_are_one_entry() -> None:
    timed = TimedRanges()
    timed.add(5, 1, 3)
    timed.add(5, 3, 9)
    assert len(timed) == 1
    timed.forget(Ranges([(4, 5)]))
    assert list(timed.among(Ranges([(2, 7)]))) == [TimedRun(5, 2, 4), TimedRun(5, 5, 7)]
