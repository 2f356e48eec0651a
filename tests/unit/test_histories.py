"""The judge of histories: what must not happen is seen, what may happen is not held against anybody."""

from __future__ import annotations

from tests.histories import Event, Operation, Phase, judge

QUEUE = "queue:judged"


def publish(phase: Phase, *bodies: str, at: int = 0) -> Event:
    """Confirmed ones stand from `at` on."""
    numbers = tuple(range(at, at + len(bodies))) if phase is Phase.OK else ()
    return Event(
        process="p",
        operation=Operation.PUBLISH,
        phase=phase,
        destination=QUEUE,
        bodies=bodies,
        sequences=numbers,
    )


def sent(*bodies: str, at: int) -> list[Event]:
    return [publish(Phase.INVOKE, *bodies), publish(Phase.OK, *bodies, at=at)]


def received(*rows: tuple[str, int], by: str = "c", marked: bool = False) -> Event:
    return Event(
        process=by,
        operation=Operation.RECEIVE,
        phase=Phase.OK,
        destination=QUEUE,
        bodies=tuple(body for body, _ in rows),
        sequences=tuple(number for _, number in rows),
        redelivered=(marked,) * len(rows),
    )


def acknowledged(*bodies: str, phase: Phase = Phase.OK) -> Event:
    return Event(process="c", operation=Operation.ACKNOWLEDGE, phase=phase, destination=QUEUE, bodies=bodies)


def complaints(*events: Event, alone: bool = False) -> list[str]:
    found = judge(events, alone=[QUEUE] if alone else []).complaints
    return [complaint.partition(": ")[0] for complaint in found]


def test_a_good_history_has_nothing_wrong() -> None:
    verdict = judge(
        [
            *sent("p/0", "p/1", at=7),
            received(("p/0", 7), ("p/1", 8)),
            acknowledged("p/0", "p/1"),
            *sent("p/2", at=20),
            received(("p/2", 20)),
        ],
        alone=[QUEUE],
    )
    assert verdict.complaints == []
    assert (verdict.confirmed, verdict.received, verdict.recovered, verdict.duplicates) == (3, 3, 0, 0)


def test_a_confirmed_message_that_never_came_is_lost() -> None:
    assert complaints(*sent("p/0", "p/1", at=1), received(("p/0", 1))) == ["confirmed and lost"]


def test_a_message_of_unknown_fate_may_come_or_not() -> None:
    unsure = [publish(Phase.INVOKE, "p/0", "p/1"), publish(Phase.INFO, "p/0", "p/1")]
    verdict = judge([*unsure, received(("p/0", 1))])
    assert verdict.complaints == [] and verdict.recovered == 1


def test_a_message_that_nobody_sent_is_unexpected() -> None:
    assert complaints(received(("p/0", 1))) == ["received and never sent"]


def test_a_message_of_another_destination_is_unexpected() -> None:
    (invoke, ok) = sent("p/0", at=1)
    elsewhere = [
        Event(process="p", operation=one.operation, phase=one.phase, destination="queue:b", bodies=one.bodies)
        for one in (invoke,)
    ]
    assert complaints(*elsewhere, received(("p/0", 1))) == ["received and never sent"]
    assert complaints(invoke, ok, received(("p/0", 1))) == []


def test_a_refused_message_must_not_come() -> None:
    refused = [publish(Phase.INVOKE, "p/0"), publish(Phase.FAIL, "p/0")]
    assert complaints(*refused) == []
    assert complaints(*refused, received(("p/0", 1))) == ["received and refused"]


def test_a_delivery_after_the_confirmed_acknowledgement_is_seen() -> None:
    start = [*sent("p/0", at=1), received(("p/0", 1))]
    again = received(("p/0", 1), marked=True)
    assert complaints(*start, acknowledged("p/0"), again) == ["delivered after its confirmed acknowledgement"]
    assert complaints(*start, acknowledged("p/0", phase=Phase.INFO), again) == []
    assert complaints(*start, again, acknowledged("p/0")) == []


def test_a_second_delivery_has_to_be_marked() -> None:
    start = [*sent("p/0", at=1), received(("p/0", 1))]
    assert complaints(*start, received(("p/0", 1), by="d")) == ["delivered again without saying so"]
    verdict = judge([*start, received(("p/0", 1), by="d", marked=True)])
    assert verdict.complaints == [] and verdict.duplicates == 1


def test_two_accepted_acknowledgements_are_one_too_many() -> None:
    start = [*sent("p/0", at=1), received(("p/0", 1))]
    assert complaints(*start, acknowledged("p/0"), acknowledged("p/0")) == ["acknowledged twice"]


def test_a_message_under_two_numbers_is_stored_twice() -> None:
    assert complaints(*sent("p/0", at=1), received(("p/0", 1)), received(("p/0", 9), marked=True)) == [
        "stored twice"
    ]


def test_a_number_belongs_to_one_message() -> None:
    events = [*sent("p/0", at=1), *sent("q/0", at=1), received(("p/0", 1), ("q/0", 1))]
    assert complaints(*events) == ["two messages under one number"]


def test_numbers_rise_with_the_count_of_a_producer() -> None:
    events = [*sent("p/0", at=5), *sent("p/1", at=3), received(("p/1", 3), marked=True), received(("p/0", 5))]
    assert complaints(*events) == [f"stored out of order, p to {QUEUE}"]


def test_disorder_at_a_consumer_is_seen_producer_by_producer() -> None:
    events = [*sent("p/0", "p/1", at=1), *sent("q/0", at=3)]
    assert complaints(*events, received(("p/0", 1), ("q/0", 3), ("p/1", 2)), alone=True) == []
    assert complaints(*events, received(("p/1", 2), ("q/0", 3), ("p/0", 1)), alone=True) == [
        f"out of order at c, {QUEUE}"
    ]


def test_what_was_anothers_may_come_late_where_several_share() -> None:
    late = [*sent("p/0", "p/1", at=1), received(("p/1", 2)), received(("p/0", 1), marked=True)]
    assert complaints(*late) == []
    assert judge(late).overtaken == 1
    assert complaints(*late, alone=True) == [f"out of order at c, {QUEUE}"]


def test_a_second_delivery_is_no_disorder() -> None:
    events = [*sent("p/0", "p/1", at=1), received(("p/0", 1), ("p/1", 2)), received(("p/0", 1), marked=True)]
    assert complaints(*events, alone=True) == []
