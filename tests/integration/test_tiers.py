"""Client managers and a primary on different nodes: what clients see when one of them is away for a while."""

from __future__ import annotations

from antiphon.bus.messages import BusMessage, Deliver, DeliverAck, DeliverHead, Register
from antiphon.message_manager.manager import MessageManagerSettings
from tests.tiers import PRIMARY, Door, Taken, Tiers


def numbers(taken: Taken) -> list[int]:
    return [number for number, _ in taken.seen]


def two_doors() -> tuple[Tiers, Taken, Taken]:
    """A consumer of the queue at each of two client managers."""
    tiers = Tiers(2)
    one, two = (door.open_consumer(1_000) for door in tiers.doors)
    tiers.run_ms(10)
    assert one.is_open and two.is_open
    return tiers, one, two


# -- topics ------------------------------------------------------------------------------------------


def test_a_topic_message_for_several_client_managers_leaves_once_and_who_misses_it_gets_it_alone() -> None:
    tiers = Tiers(3)
    takers = []
    for door in tiers.doors:
        for _ in range(2):
            takers.append(door.open_consumer(1_000, door.subscribe(tiers.topic), tiers.topic))
    tiers.run_ms(10)
    tiers.network.is_cut = lambda sender, to, message: isinstance(message, Deliver) and to == 3
    tiers.doors[0].publish(tiers.topic, 20)
    tiers.run_ms(10)
    assert len(tiers.multicasts) == 1 and len(tiers.multicasts[0].targets) == 3
    assert [len(taken.seen) for taken in takers] == [20, 20, 0, 0, 20, 20]

    tiers.network.heal()
    before = len(tiers.said)
    tiers.run_ms(500)
    assert [len(taken.seen) for taken in takers] == [20] * 6
    assert len(tiers.multicasts) == 1
    again = [to for sender, to, message in tiers.said[before:] if isinstance(message, Deliver)]
    assert again == [3]


def test_under_load_the_way_of_topic_messages_does_not_grow_with_client_managers() -> None:
    tiers = Tiers(4)
    takers = [
        door.open_consumer(100_000, door.subscribe(tiers.topic), tiers.topic)
        for door in tiers.doors
        for _ in range(3)
    ]
    tiers.run_ms(10)
    for _ in range(50):
        tiers.doors[0].publish(tiers.topic, 10)
        tiers.run_ms(1)
    tiers.run_ms(50)
    assert [len(taken.seen) for taken in takers] == [500] * 12
    assert len(tiers.multicasts) == 50
    alone = [message for message in tiers.kinds_said(Deliver) if len(message.targets) == 1]
    assert alone == []


# -- a primary is followed by another --------------------------------------------------------------------


def test_a_failover_takes_as_long_as_it_takes_all_client_managers_to_come() -> None:
    tiers, one, two = two_doors()
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(20)
    assert sorted(numbers(one) + numbers(two)) == tiers.live()
    tiers.change_primary()
    tiers.tell_primary(tiers.doors[0])
    tiers.doors[0].publish(tiers.queue, 2)
    tiers.run_ms(100)
    assert len(one.seen) + len(two.seen) == 10, "the other may hold something"
    tiers.tell_primary(tiers.doors[1])
    tiers.run_ms(10)
    assert sorted(numbers(one) + numbers(two)) == tiers.live(), "nothing came twice"
    assert not [number for number, is_redelivered in one.seen + two.seen if is_redelivered]


def test_a_client_manager_that_stays_away_loses_what_its_consumers_hold_to_others() -> None:
    tiers, one, two = two_doors()
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(20)
    lost = numbers(two)
    assert lost
    tiers.change_primary()
    tiers.tell_primary(tiers.doors[0])
    tiers.run_ms(310)
    assert sorted(numbers(one)) == tiers.live()
    assert [number for number, is_redelivered in one.seen if is_redelivered] == lost


# -- a client manager is away ----------------------------------------------------------------------------


def away(tiers: Tiers, door: Door) -> None:
    def is_cut(sender: int, to: int, message: BusMessage) -> bool:
        return door.node in (sender, to)

    tiers.network.is_cut = is_cut


def test_a_short_absence_costs_nothing_but_time() -> None:
    tiers, one, two = two_doors()
    away(tiers, tiers.doors[1])
    for _ in range(20):
        tiers.doors[0].publish(tiers.queue, 4)
        tiers.run_ms(20)
    assert len(one.seen) == 40 and not two.seen
    tiers.network.heal()
    tiers.run_ms(1_500)
    assert sorted(numbers(one) + numbers(two)) == tiers.live()
    assert numbers(two) == sorted(numbers(two))
    assert tiers.redelivered_while_held == 0


def test_a_client_manager_that_is_away_fills_its_window_and_the_others_get_the_rest() -> None:
    tiers = Tiers(2, settings=MessageManagerSettings(stream_window_bytes=8_000))
    one, two = (door.open_consumer(100_000) for door in tiers.doors)
    tiers.run_ms(10)
    away(tiers, tiers.doors[1])
    for _ in range(100):
        tiers.doors[0].publish(tiers.queue, 10)
        tiers.run_ms(2)
    assert len(one.seen) > 900, "only the window of the other one is with it"
    tiers.network.heal()
    tiers.run_ms(1_500)
    assert sorted(numbers(one) + numbers(two)) == tiers.live()


def test_one_that_was_fenced_meanwhile_goes_on_and_its_client_notices_nothing() -> None:
    tiers, one, two = two_doors()
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(20)
    held = set(two.held)
    away(tiers, tiers.doors[1])
    tiers.fence(tiers.doors[1])
    tiers.run_ms(200)
    tiers.network.heal()
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(2_000)
    assert not two.is_gone
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(50)
    assert len(two.held) > len(held), "it is given messages again"
    live = tiers.live()
    assert set(live) == one.held | two.held


def test_what_a_fenced_client_manager_still_holds_after_a_short_while_stays_with_it() -> None:
    tiers, _, two = two_doors()
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(20)
    held = set(two.held)
    tiers.fence(tiers.doors[1])
    tiers.run_ms(2_000)
    assert two.held == held and tiers.redelivered_while_held == 0


def test_a_restarted_client_manager_begins_a_stream_of_its_own() -> None:
    tiers, one, _ = two_doors()
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(20)
    former = tiers.doors[1]
    former.is_down = True
    # The last words to the former life reach the new one, and those of the former life the primary.
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.channel.open_producer(former.node)
    late = [(sender, to, message) for sender, to, message in tiers.said if former.node in (sender, to)]
    door = tiers.doors[1] = Door(tiers, former.node, life=2)
    tiers.tell_primary(door)
    door.connect()
    taken = door.open_consumer(1_000)
    for sender, to, message in late:
        tiers.send(sender, to, message)
    tiers.run_ms(1_500)
    assert taken.is_open and not taken.is_gone
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(1_500)
    assert sorted(one.held | taken.held) == tiers.live()
    assert not one.held & taken.held


def test_quiet_client_managers_say_little() -> None:
    tiers, _, _ = two_doors()
    tiers.run_ms(1_000)
    before = len(tiers.said)
    tiers.run_ms(10_000)
    per_second = (len(tiers.said) - before) / 10 / len(tiers.doors)
    assert per_second <= 2, "one question and one answer"


def test_a_lost_answer_is_asked_for_again() -> None:
    tiers = Tiers(1)
    tiers.network.is_cut = lambda sender, to, message: sender == PRIMARY
    taken = tiers.doors[0].open_consumer(100)
    tiers.doors[0].publish(tiers.queue, 10)
    tiers.run_ms(450)
    assert len(tiers.kinds_said(Register)) == 3 and not taken.is_open
    tiers.network.heal()
    tiers.run_ms(200)
    assert taken.is_open, "said again, it is answered again, beside the stream"
    tiers.run_ms(300)
    assert taken.is_open and len(taken.seen) == 10
    assert tiers.kinds_said(DeliverAck)[-1].upto == tiers.kinds_said(DeliverHead)[-1].number
