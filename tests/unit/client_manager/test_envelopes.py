"""Gathering: order within a lane, fairness between lanes, few bytes on the way and large envelopes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch.layout import IDENTIFIED_ROWS_MAX
from antiphon.client_manager.effects import SubmitEnvelope
from antiphon.client_manager.envelopes import (
    ENVELOPE_WEIGHT_MIN,
    Gatherer,
    items_of,
    outcomes_by_command,
)
from antiphon.client_manager.session import Ordered, SessionLane
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.message_manager.state.outcomes import OUTCOMES_MAX
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode

PUBLISH = int(CommandKind.PUBLISH)
KIB = 1024


def gatherer(**settings: int) -> Gatherer:
    return Gatherer("a", ClientManagerSettings(**settings))


def put(target: Gatherer, lane: SessionLane, number: int, size: int, count: int = 1) -> None:
    target.put(Ordered(lane, PUBLISH, number, count, size), bytes(size))


def numbers(target: Gatherer, envelope: SubmitEnvelope) -> list[tuple[SessionLane, int]]:
    return [(ordered.lane, ordered.number) for ordered in target.confirmed(envelope.tag)]


def test_everything_that_waits_goes_at_once_when_nothing_is_on_the_way() -> None:
    target, lane = gatherer(), SessionLane("a", None)
    for number in range(1, 6):
        put(target, lane, number, 100, count=10)
    (envelope,) = target.gather(0)
    assert (envelope.channel, envelope.tag, envelope.count, len(envelope.payload)) == ("a", 1, 50, 500)
    assert not target.has_waiting
    assert target.gather(0) == []


def test_an_envelope_ends_where_the_next_command_would_not_fit() -> None:
    target, lane = gatherer(envelope_bytes=1000, submitted_bytes_max=100_000), SessionLane("a", None)
    for number in range(1, 6):
        put(target, lane, number, 400)
    assert [len(envelope.payload) for envelope in target.gather(0)] == [800, 800, 400]


def test_an_envelope_takes_no_more_numbers_than_it_may() -> None:
    target, lane = gatherer(envelope_count_max=100), SessionLane("a", None)
    for number in (1, 2, 3):
        put(target, lane, number, 10, count=60)
    assert [envelope.count for envelope in target.gather(0)] == [60, 60, 60]


def test_an_envelope_takes_no_more_commands_than_outcomes_are_kept_of() -> None:
    target, lane = gatherer(envelope_commands_max=2), SessionLane("a", None)
    for number in range(1, 6):
        put(target, lane, number, 10)
    assert [len(numbers(target, one)) for one in target.gather(0)] == [2, 2, 1]


def test_no_more_commands_are_unconfirmed_than_outcomes_are_kept_of() -> None:
    target, lane = gatherer(unconfirmed_commands_max=3), SessionLane("a", None)
    put(target, lane, 1, 10)
    (first,) = target.gather(0)
    for number in range(2, 6):
        put(target, lane, number, 10)
    (second,) = target.gather(0)
    assert second.payload == bytes(20)
    target.committed(first.tag)
    target.committed(second.tag)
    assert target.gather(0) == [], "that they are committed does not tell what became of them"
    assert len(numbers(target, first)) == 1
    (third,) = target.gather(0)
    assert third.payload == bytes(10)


def test_one_large_command_travels_alone_once_nothing_is_on_the_way() -> None:
    target, lane = gatherer(envelope_bytes=1000, submitted_bytes_max=2000), SessionLane("a", None)
    put(target, lane, 1, 10)
    put(target, lane, 2, 5000)
    put(target, lane, 3, 10)
    (first,) = target.gather(0)
    assert len(first.payload) == 10
    target.committed(first.tag)
    (large,) = target.gather(0)
    assert len(large.payload) == 5000
    target.committed(large.tag)
    (last,) = target.gather(0)
    assert len(last.payload) == 10


def test_little_goes_along_only_if_it_is_as_much_as_is_under_way() -> None:
    target, lane = gatherer(turn_bytes=1_000), SessionLane("a", None)
    put(target, lane, 1, 100)
    (first,) = target.gather(0)
    put(target, lane, 2, 100)
    # One more while one is under way: a few clients do not wait for each other.
    (second,) = target.gather(0)
    put(target, lane, 3, 100)
    assert target.gather(0) == []
    put(target, lane, 4, 100)
    (third,) = target.gather(0)
    assert [number for _, number in numbers(target, third)] == [3, 4]
    put(target, lane, 5, 100)
    assert target.gather(0) == []
    target.committed(first.tag)
    assert len(target.gather(0)) == 1
    assert second.tag < third.tag


def test_what_is_much_goes_along_whatever_is_under_way() -> None:
    target, lane = gatherer(turn_bytes=1_000), SessionLane("a", None)
    for number in range(1, 9):
        put(target, lane, number, 10)
    assert len(target.gather(0)) == 1
    put(target, lane, 9, 999)
    assert target.gather(0) == []
    put(target, lane, 10, 1)
    (second,) = target.gather(0)
    assert len(second.payload) == 1_000


def test_what_comes_while_the_window_is_full_is_gathered() -> None:
    target, lane = (
        gatherer(envelope_bytes=10_000, submitted_bytes_max=2 * ENVELOPE_WEIGHT_MIN),
        SessionLane("a", None),
    )
    put(target, lane, 1, 100)
    assert len(target.gather(0)) == 1
    put(target, lane, 2, 100)
    assert len(target.gather(0)) == 1
    for number in range(3, 50):
        put(target, lane, number, 100)
        assert target.gather(0) == []
    target.committed(1)
    target.committed(2)
    (envelope,) = target.gather(0)
    assert envelope.count == 47


def test_a_small_envelope_weighs_what_a_datagram_costs() -> None:
    target, lane = gatherer(), SessionLane("a", None)
    put(target, lane, 1, 100)
    (envelope,) = target.gather(0)
    assert target.submitted_bytes == ENVELOPE_WEIGHT_MIN
    target.committed(envelope.tag)
    assert target.submitted_bytes == 0


def test_a_sliver_of_room_is_not_used_while_much_is_waiting() -> None:
    target, lane = (
        gatherer(envelope_bytes=10 * KIB, submitted_bytes_max=10 * KIB + 2000, turn_bytes=4 * KIB),
        SessionLane("a", None),
    )
    for number in range(1, 101):
        put(target, lane, number, KIB)
    (first,) = target.gather(0)
    assert len(first.payload) == 10 * KIB
    assert target.gather(0) == []
    target.committed(first.tag)
    assert len(target.gather(0)[0].payload) == 10 * KIB


def test_a_confirmation_counts_as_a_commit() -> None:
    target, lane = gatherer(submitted_bytes_max=1), SessionLane("a", None)
    put(target, lane, 1, 100)
    (envelope,) = target.gather(0)
    put(target, lane, 2, 100)
    assert target.gather(0) == []
    assert numbers(target, envelope) == [(lane, 1)]
    assert len(target.gather(0)) == 1


def test_a_large_transfer_delays_another_session_by_one_turn() -> None:
    target = gatherer(envelope_bytes=512 * KIB, turn_bytes=64 * KIB)
    large, small = SessionLane("a", None), SessionLane("a", None)
    for number in range(1, 65):
        put(target, large, number, 60 * KIB)
    put(target, small, 1, 100)
    put(target, small, 2, 100)
    envelope = target.gather(0)[0]
    order = numbers(target, envelope)
    assert order[:4] == [(large, 1), (large, 2), (small, 1), (small, 2)]
    assert set(order[4:]) == {(large, number) for number in range(3, 1 + len(order) - 2)}


def test_many_busy_sessions_get_equal_parts_of_an_envelope() -> None:
    target = gatherer(envelope_bytes=64 * KIB, turn_bytes=4 * KIB, submitted_bytes_max=64 * KIB)
    lanes = [SessionLane("a", None) for _ in range(4)]
    for at, lane in enumerate(lanes):
        for number in range(1, 200):
            put(target, lane, number, KIB * (at + 1) // 2)
    (envelope,) = target.gather(0)
    taken = [0] * 4
    for ordered in target.confirmed(envelope.tag):
        taken[lanes.index(ordered.lane)] += ordered.size
    assert max(taken) - min(taken) <= 4 * KIB + 2 * KIB


def test_a_session_whose_command_did_not_fit_is_first_next_time() -> None:
    target = gatherer(envelope_bytes=1000, turn_bytes=100, submitted_bytes_max=1)
    big, small = SessionLane("a", None), SessionLane("a", None)
    for number in range(1, 20):
        put(target, small, number, 100)
    put(target, big, 1, 950)
    first = target.gather(0)[0]
    assert (big, 1) not in numbers(target, first)
    second = target.gather(0)[0]
    assert numbers(target, second)[0] == (big, 1)


commands = st.lists(
    st.tuples(st.integers(0, 3), st.integers(48, 3000), st.integers(1, 40)), min_size=1, max_size=80
)


rhythms = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 2)), max_size=20)


@given(commands, rhythms)
def test_every_command_comes_out_once_and_in_the_order_of_its_lane(
    arriving: list[tuple[int, int, int]], rhythm: list[tuple[int, int]]
) -> None:
    """However commands arrive between commits, and whatever the limits cut."""
    target = gatherer(envelope_bytes=4000, envelope_count_max=100, submitted_bytes_max=6000, turn_bytes=500)
    lanes = [SessionLane("a", None) for _ in range(4)]
    put_in: list[list[int]] = [[] for _ in lanes]
    came_out: list[list[int]] = [[] for _ in lanes]
    on_the_way: list[SubmitEnvelope] = []
    arriving = arriving[::-1]
    while arriving or on_the_way or target.has_waiting:
        arrivals, commits = rhythm.pop() if rhythm else (10, 2)
        for _ in range(min(len(arriving), arrivals)):
            lane, size, count = arriving.pop()
            put_in[lane].append(len(put_in[lane]) + 1)
            put(target, lanes[lane], put_in[lane][-1], size, count)
        on_the_way += target.gather(0)
        # The window holds, and nothing stands still.
        weights = [max(len(envelope.payload), ENVELOPE_WEIGHT_MIN) for envelope in on_the_way]
        assert target.submitted_bytes == sum(weights)
        assert sum(weights) <= 6000 or len(weights) == 1
        assert on_the_way or not target.has_waiting
        for _ in range(min(len(on_the_way), commits)):
            envelope = on_the_way.pop(0)
            settled = target.confirmed(envelope.tag)
            assert sum(ordered.count for ordered in settled) == envelope.count <= 100
            assert sum(ordered.size for ordered in settled) == len(envelope.payload)
            for ordered in settled:
                came_out[lanes.index(ordered.lane)].append(ordered.number)
    assert came_out == put_in
    assert (target.waiting_bytes, target.submitted_bytes) == (0, 0)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8), st.sampled_from([1, 3, 5])), max_size=5),
)
def test_outcomes_agree_with_one_number_at_a_time(
    counts: list[int], gaps: list[tuple[int, int, int]]
) -> None:
    """Ranges of exceptions over ranges of commands, against a table with a row for every number."""
    lane, first = SessionLane("a", None), 1000
    envelope = [
        Ordered(lane, PUBLISH, number, count, 10)
        for number, count in zip((1 + sum(counts[:at]) for at in range(len(counts))), counts, strict=True)
    ]
    stop = first + sum(counts)
    table = {number: (0, first + number - 1) for number in range(1, 1 + sum(counts))}
    exceptions, at = [], first
    for skip, length, code in gaps:
        at += skip
        length = min(length, stop - at)
        if length <= 0:
            break
        original = at - 900 if code == OutcomeCode.DUPLICATE else 0
        exceptions.append(Outcome(at, length, code, original))
        for sequence in range(at, at + length):
            told = sequence - 900 if code == OutcomeCode.DUPLICATE else sequence
            table[sequence - first + 1] = (code, told)
        at += length

    found = {}
    for ordered, sequence, outcomes in outcomes_by_command(envelope, first, exceptions):
        for item in items_of(ordered, sequence, outcomes):
            for offset in range(item.count):
                assert item.number + offset not in found
                found[item.number + offset] = (item.code, item.sequence + offset)
    assert found == table


def test_a_command_counts_as_many_times_as_it_may_have_outcomes() -> None:
    target = gatherer(envelope_commands_max=10, unconfirmed_commands_max=15)
    lane = SessionLane("a", None)
    for number in range(1, 5):
        ordered = Ordered(lane, PUBLISH, number, 6, 100, outcomes=6)
        target.put(ordered, bytes(100))
    first, second = target.gather(0)
    assert (len(first.payload), len(second.payload)) == (100, 100)
    # Three more outcomes would fit; a confirmation makes room for six.
    assert target.gather(0) == []
    target.confirmed(first.tag)
    (third,) = target.gather(0)
    assert len(third.payload) == 100
    target.confirmed(second.tag)
    target.confirmed(third.tag)
    assert len(target.gather(0)) == 1


def test_a_command_with_more_outcomes_than_an_envelope_may_have_travels_alone() -> None:
    target = gatherer(envelope_commands_max=2, unconfirmed_commands_max=4)
    lane = SessionLane("a", None)
    target.put(Ordered(lane, PUBLISH, 1, 1, 100), bytes(100))
    target.put(Ordered(lane, PUBLISH, 2, 9, 100, outcomes=9), bytes(100))
    (first,) = target.gather(0)
    assert target.gather(0) == []
    target.confirmed(first.tag)
    assert len(target.gather(0)) == 1


def test_an_envelope_has_room_for_every_batch_with_ids_and_the_table_for_every_envelope() -> None:
    # A quarter of the table is kept for the next envelope; what was forgotten is ordered again for ever.
    assert IDENTIFIED_ROWS_MAX <= ClientManagerSettings().envelope_commands_max <= OUTCOMES_MAX // 4


def test_known_ids_that_two_commands_share_are_told_to_each_with_its_own_places() -> None:
    lane = SessionLane("a", None)
    commands = [Ordered(lane, PUBLISH, 1, 2, 10), Ordered(lane, PUBLISH, 3, 2, 10)]
    told = [Outcome(101, 2, OutcomeCode.KNOWN, 50)]
    found = [
        list(items_of(one, at, outcomes)) for one, at, outcomes in outcomes_by_command(commands, 100, told)
    ]
    assert found == [
        [(1, 1, OutcomeCode.APPLIED, 100, ""), (2, 1, OutcomeCode.KNOWN, 50, "")],
        [(3, 1, OutcomeCode.KNOWN, 51, ""), (4, 1, OutcomeCode.APPLIED, 103, "")],
    ]
