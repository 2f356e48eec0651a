"""Who is given what: credit, turns, returns, and what a term forgets."""

from __future__ import annotations

import pytest

from antiphon.batch import Batch
from antiphon.bus.effects import Alarm
from antiphon.bus.messages import ConsumerEnded, DeliverHead, Registered, Unregistered
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, Publish, Return, read_command
from tests.unit.message_manager.channel import (
    SECOND_NS,
    SESSION,
    Channel,
    Client,
    answers,
    batch_of,
    bodies,
    delivered,
    delivers,
    numbers_to,
    proposals,
    sent,
)


@pytest.fixture
def queue(channel: Channel, client: Client) -> int:
    destination = channel.create("orders")
    channel.flush()
    return destination


def check_conservation(channel: Channel, queue: int) -> None:
    """live = ready + in flight, without overlap (DSP1)."""
    primary = channel.manager.primary
    assert primary is not None
    dispatcher = primary.delivery.dispatcher(queue)
    stored = channel.manager.state.directory.get(queue)
    if dispatcher is None or stored is None:
        return
    parts = [dispatcher.ready.all(), dispatcher.returning, dispatcher.unreadable]
    parts += [consumer.in_flight for consumer in dispatcher.consumers.values()]
    together = Ranges()
    for part in parts:
        together.add_all(part)
    assert sum(part.count for part in parts) == together.count == stored.live.count
    assert together == stored.live


# -- giving ------------------------------------------------------------------------------------


def test_a_consumer_gets_what_is_stored_in_order(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(3, "a")), client.publish(queue, bodies(2, "b")))
    channel.register(1, queue)
    effects = channel.flush()
    assert delivered(effects) == [
        (1, first + at, body, 0) for at, body in enumerate([b"a0", b"a1", b"a2", b"b0", b"b1"])
    ]
    check_conservation(channel, queue)


def test_a_registration_is_answered_before_anything_is_delivered(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.publish(queue, bodies(1)))
    channel.register(1, queue)
    messages = sent(channel.flush())
    assert messages[0] == Registered(consumer=1, term=channel.manager.term, stream=2, number=1)
    assert [message.first_delivery for message in delivers(channel.flush())] == []


def test_a_message_published_later_reaches_a_waiting_consumer(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    assert delivered(channel.flush()) == []
    first = channel.order(client.publish(queue, bodies(1)))
    assert numbers_to(channel.flush(), 1) == [first]


def test_a_message_is_given_once(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    assert len(delivered(channel.flush())) == 3
    channel.credit(1, 5_000)
    assert delivered(channel.flush()) == []


def test_deliveries_are_numbered_without_gaps(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue)
    seen = 0
    for count in (3, 1, 4):
        channel.order(client.publish(queue, bodies(count)))
        for deliver in delivers(channel.flush()):
            assert deliver.targets[0].takers[0].first_delivery == seen + 1
            seen += sum(piece.count for piece in deliver.pieces)
    assert seen == 8


def test_messages_to_one_client_manager_are_numbered_as_one_stream(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.register(2, queue)
    numbers = []
    for _ in range(3):
        channel.order(client.publish(queue, bodies(4)))
        numbers += [deliver.targets[0].number for deliver in delivers(channel.flush())]
    # Behind the answers to the registrations.
    assert numbers == list(range(3, len(numbers) + 3))


def test_pieces_of_a_batch_are_slices_of_it(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(10)))
    channel.register(1, queue, credit=4)
    [deliver] = delivers(channel.flush())
    batch = batch_of(deliver.pieces[0].buffers)
    assert (batch.bodies(), batch.producer, batch.first_number) == (bodies(4), SESSION, 1)
    channel.credit(1, 10)
    [deliver] = delivers(channel.flush())
    batch = batch_of(deliver.pieces[0].buffers)
    assert (batch.bodies(), batch.first_number) == (bodies(10)[4:], 5)


def test_what_is_delivered_as_soon_as_it_is_applied_is_not_read_again(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.flush()
    channel.order(client.publish(queue, bodies(2)), client.publish(queue, bodies(1)))
    assert sum(deliver.pieces[0].count for deliver in delivers(channel.flush())) >= 2
    assert channel.payloads.reads == 0


def test_batches_that_lie_in_one_record_are_read_together(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(*(client.publish(queue, bodies(1)) for _ in range(5)))
    channel.order(client.publish(queue, bodies(1)))
    channel.register(1, queue)
    channel.flush()
    assert channel.payloads.reads == 2


def test_a_batch_taken_in_several_steps_is_read_once(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(10)))
    # Another one is the last that was applied.
    channel.order(client.publish(queue, bodies(1)))
    channel.register(1, queue, credit=1)
    channel.flush()
    for credit in range(2, 11):
        channel.credit(1, credit)
        channel.flush()
    assert channel.payloads.reads == 1


# -- credit ------------------------------------------------------------------------------------


def test_nobody_gets_more_messages_than_the_credit_allows(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.publish(queue, bodies(10)))
    channel.register(1, queue, credit=3)
    assert len(delivered(channel.flush())) == 3
    assert delivered(channel.flush()) == []
    channel.credit(1, 5)
    assert len(delivered(channel.flush())) == 2


def test_a_word_about_credit_that_comes_late_takes_nothing_back(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=5)
    channel.credit(1, 2)
    channel.order(client.publish(queue, bodies(10)))
    assert len(delivered(channel.flush())) == 5


def test_bytes_of_bodies_count_against_the_credit(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, [bytes(100)] * 10))
    channel.register(1, queue, credit_bytes=350)
    given = len(delivered(channel.flush()))
    assert 3 <= given <= 4
    channel.credit(1, 1_000, 1_000)
    assert given + len(delivered(channel.flush())) == 10


def test_a_message_larger_than_the_credit_is_given_alone(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.publish(queue, [bytes(1_000), bytes(1_000)]))
    channel.register(1, queue, credit_bytes=10)
    assert len(delivered(channel.flush())) == 1
    channel.credit(1, 1_000, 1_010)
    assert len(delivered(channel.flush())) == 1


def test_one_wake_up_gives_out_only_so_much(client: Client) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, flush_bytes_max=1_000))
    channel.order(client.open())
    queue = channel.create("orders")
    for _ in range(10):
        channel.order(client.publish(queue, [bytes(100)] * 10))
    channel.register(1, queue)
    counts = []
    while not counts or counts[-1]:
        counts.append(len(delivered(channel.flush())))
        if sum(counts) < 100:
            assert channel.manager.next_deadline_ns() == channel.now_ns, "the rest wants to go on at once"
    assert sum(counts) == 100
    assert max(counts) <= 11


def test_a_deliver_message_fits_a_frame(client: Client) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=0, deliver_bytes_max=10_000))
    channel.order(client.open())
    queue = channel.create("orders")
    for _ in range(10):
        channel.order(client.publish(queue, [bytes(1_000)] * 3))
    channel.register(1, queue)
    effects = channel.flush()
    sizes = [sum(len(b) for piece in d.pieces for b in piece.buffers) for d in delivers(effects)]
    assert len(delivered(effects)) == 30
    assert len(sizes) > 3
    assert max(sizes) <= 10_000


# -- taking turns --------------------------------------------------------------------------------


def test_consumers_get_equal_parts(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(9)))
    for consumer in (1, 2, 3):
        channel.register(consumer, queue)
    effects = channel.flush()
    assert [len(numbers_to(effects, consumer)) for consumer in (1, 2, 3)] == [3, 3, 3]
    check_conservation(channel, queue)


def test_what_one_cannot_take_the_others_get(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(10)))
    channel.register(1, queue, credit=2)
    channel.register(2, queue)
    channel.register(3, queue, credit=0)
    effects = channel.flush()
    assert [len(numbers_to(effects, consumer)) for consumer in (1, 2, 3)] == [2, 8, 0]


def test_single_messages_go_round(channel: Channel, client: Client, queue: int) -> None:
    for consumer in (1, 2, 3):
        channel.register(consumer, queue)
    channel.flush()
    order = []
    for _ in range(6):
        channel.order(client.publish(queue, bodies(1)))
        order += [who for who, *_ in delivered(channel.flush())]
    assert order == [1, 2, 3, 1, 2, 3]


def test_consumers_of_different_client_managers_compete_alike(
    channel: Channel, client: Client, queue: int
) -> None:
    other = Client(session=0xB2)
    channel.order(other.open(), pid=7)
    channel.order(client.publish(queue, bodies(4)))
    channel.register(1, queue)
    channel.register(1, queue, session=0xB2, sender=7)
    per_node = {}
    for effect in channel.flush():
        for deliver in delivers([effect]):
            per_node[effect.to] = sum(piece.count for piece in deliver.pieces)  # type: ignore[union-attr]
    assert per_node == {1: 2, 7: 2}


# -- acknowledging and giving back ------------------------------------------------------------------


def test_an_acknowledged_message_is_in_flight_no_longer(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue)
    channel.flush()
    assert channel.manager.destinations()[0]["in_flight"] == 5
    channel.order(client.ack(queue, (first, first + 2)))
    row = channel.manager.destinations()[0]
    assert (row["in_flight"], row["messages"], row["consumers"]) == (3, 3, 1)
    check_conservation(channel, queue)


def test_a_message_acknowledged_while_ready_is_not_given(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue, credit=1)
    channel.flush()
    channel.order(client.ack(queue, (first + 1, first + 2)))
    channel.credit(1, 10)
    assert numbers_to(channel.flush(), 1) == [first + 2]


def test_a_message_acknowledged_by_another_leaves_its_holder(
    channel: Channel, client: Client, queue: int
) -> None:
    other = Client(session=0xB2)
    channel.order(other.open())
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    channel.order(other.ack(queue, (first, first + 3)))
    assert channel.manager.destinations()[0]["in_flight"] == 0
    check_conservation(channel, queue)


def test_what_a_departed_consumer_never_saw_is_ready_at_once(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue)
    channel.flush()
    channel.register(2, queue)
    channel.unregister(1, seen_through=0)
    effects = channel.flush()
    assert delivered(effects) == [(2, first + at, body, 0) for at, body in enumerate(bodies(5))]
    assert not [p for p in proposals(effects) if kind(p.command) == CommandKind.RETURN]


def kind(command: bytes) -> int:
    return read_command(command)[0].kind


def test_what_a_departed_consumer_saw_waits_for_its_return(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue)
    channel.flush()
    channel.register(2, queue)
    channel.unregister(1, seen_through=2)
    effects = channel.flush()
    assert numbers_to(effects, 2) == [first + 2, first + 3, first + 4]
    check_conservation(channel, queue)
    [proposal] = [p for p in proposals(effects) if kind(p.command) == CommandKind.RETURN]
    wish = Return.decode(read_command(proposal.command)[1])
    assert (wish.destination, wish.counted, list(wish.ranges)) == (queue, True, [(first, first + 2)])
    channel.order(proposal.command)
    assert delivered(channel.flush()) == [(2, first, b"m0", 1), (2, first + 1, b"m1", 1)]
    check_conservation(channel, queue)


def test_what_was_seen_and_acknowledged_meanwhile_is_not_returned(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    channel.register(1, queue)
    channel.flush()
    channel.unregister(1, seen_through=2)
    effects = channel.flush()
    channel.order(client.ack(queue, (first, first + 1)))
    assert channel.order_proposals(effects) >= 1
    channel.register(2, queue)
    assert delivered(channel.flush()) == [(2, first + 1, b"m1", 1)]


def test_messages_come_back_in_the_order_of_their_numbers(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(6)))
    channel.register(1, queue, credit=3)
    channel.flush()
    channel.register(2, queue, credit=0)
    channel.unregister(1, seen_through=1)
    channel.order_proposals(channel.flush())
    channel.credit(2, 100)
    given = delivered(channel.flush())
    assert [number for _, number, _, _ in given] == [first + at for at in range(6)]
    assert [count for *_, count in given] == [1, 0, 0, 0, 0, 0]


def test_a_session_gives_back_what_it_holds(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 2)))
    assert delivered(channel.flush()) == [(1, first, b"m0", 1), (1, first + 1, b"m1", 1)]
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.order(client.give_back(queue, (first + 2, first + 3), counted=False))
    assert delivered(channel.flush()) == [(1, first, b"m0", 2), (1, first + 2, b"m2", 0)]
    check_conservation(channel, queue)


def test_a_session_cannot_give_back_what_another_holds(channel: Channel, client: Client, queue: int) -> None:
    other = Client(session=0xB2)
    channel.order(other.open())
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    channel.order(other.give_back(queue, (first, first + 3)))
    assert delivered(channel.flush()) == []
    assert channel.manager.destinations()[0]["in_flight"] == 3


def test_a_message_seen_in_a_second_delivery_is_told_from_its_first(
    channel: Channel, client: Client, queue: int
) -> None:
    """Delivery 1 was given back, delivery 3 of the same message was never seen."""
    first = channel.order(client.publish(queue, bodies(2)))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.flush()
    channel.unregister(1, seen_through=2)
    effects = channel.flush()
    [proposal] = [p for p in proposals(effects) if kind(p.command) == CommandKind.RETURN]
    assert list(Return.decode(read_command(proposal.command)[1]).ranges) == [(first + 1, first + 2)]


def test_a_long_lived_consumer_with_one_old_message_is_cheap(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue, credit=1 << 40)
    stuck = channel.order(client.publish(queue, bodies(1)))
    channel.flush()
    for _ in range(200):
        first = channel.order(client.publish(queue, bodies(1)))
        channel.flush()
        channel.order(client.ack(queue, (first, first + 1)))
    primary = channel.manager.primary
    assert primary is not None
    [consumer] = primary.delivery.dispatcher(queue).consumers.values()  # type: ignore[union-attr]
    assert len(consumer._runs) < 40
    assert list(consumer.unseen(0)) == [(stuck, stuck + 1)]


# -- registrations ------------------------------------------------------------------------------------


def test_a_registration_that_cannot_be_is_answered(channel: Channel, client: Client, queue: int) -> None:
    channel.register(1, queue, session=0xBAD)
    channel.register(2, queue, generation=7)
    channel.register(3, 999)
    channel.register(4, queue, sender=9)
    codes = [(a.consumer, a.code) for a in answers(channel.flush())]
    assert codes == [
        (1, "local.session_closed"),
        (2, "local.session_closed"),
        (3, "destination.unknown"),
        (4, "local.session_closed"),
    ]


def test_a_repeated_registration_is_answered_and_changes_nothing(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue, credit=3)
    channel.flush()
    channel.register(1, queue, credit=3)
    effects = channel.flush()
    assert [a.code for a in answers(effects)] == [""]
    assert delivered(effects) == []
    assert channel.manager.destinations()[0]["in_flight"] == 3


def test_a_consumer_that_nobody_knows_is_detached_at_once(
    channel: Channel, client: Client, queue: int
) -> None:
    channel.register(1, queue)
    channel.flush()
    channel.credit(99, 5)
    channel.unregister(99, 0)
    unregistered, head = sent(channel.flush())
    assert unregistered == Unregistered(99, channel.manager.term)
    assert isinstance(head, DeliverHead) and head.credits_heard == 1


def test_a_queue_without_consumers_costs_nothing(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue)
    channel.flush()
    channel.unregister(1, seen_through=0)
    channel.flush()
    primary = channel.manager.primary
    assert primary is not None and primary.delivery.dispatcher(queue) is None


def test_consumers_of_a_deleted_destination_are_told(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(5)))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.delete(queue))
    assert [(type(a), a.code) for a in answers(channel.flush())] == [(ConsumerEnded, "destination.deleted")]
    channel.credit(1, 100)
    assert delivered(channel.flush()) == []


def test_consumers_of_a_session_that_moved_are_void(channel: Channel, client: Client, queue: int) -> None:
    """Nobody can tell what they saw, so it is told as redelivered; but it does not count."""
    first = channel.order(client.publish(queue, bodies(2)))
    channel.register(1, queue)
    channel.flush()
    channel.order(client.resume(2), pid=7)
    assert [type(a) for a in answers(channel.flush())] == [ConsumerEnded]
    channel.register(5, queue, generation=2, sender=7)
    assert delivered(channel.flush()) == [(5, first, b"m0", 1), (5, first + 1, b"m1", 1)]
    stored = channel.manager.state.directory.get(queue)
    assert stored is not None and not stored.counts


def test_only_what_may_have_been_seen_is_told_as_redelivered(
    channel: Channel, client: Client, queue: int
) -> None:
    """Rows of one batch: the second was given out before, the others were not."""
    first = channel.order(client.publish(queue, bodies(4)))
    channel.register(1, queue, credit=2)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 1), counted=False))
    channel.order(client.resume(2), pid=7)
    channel.register(5, queue, generation=2, sender=7)
    assert [(number - first, count) for _, number, _, count in delivered(channel.flush())] == [
        (0, 0),
        (1, 1),
        (2, 0),
        (3, 0),
    ]


def test_a_dead_client_managers_messages_go_to_others(channel: Channel, client: Client, queue: int) -> None:
    other = Client(session=0xB2)
    channel.order(other.open(), pid=7)
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    channel.register(1, queue, session=0xB2, sender=7)
    channel.open_producer(1)
    assert [number for _, number, _, _ in delivered(channel.flush())] == [first, first + 1, first + 2]
    check_conservation(channel, queue)


def test_a_batch_that_does_not_decode_holds_up_nobody(channel: Channel, client: Client, queue: int) -> None:
    """The door looks at every batch; should one slip through, an operator must know."""
    good = Batch.of_bodies(bodies(2), SESSION, 1, 0).encode()
    bad = good[:48] + b"\xee" * (len(good) - 48)
    first = channel.order(
        client.raw(CommandKind.PUBLISH, Publish(queue, 1, 0, bad).encode(), count=2),
        client.publish(queue, bodies(1)),
    )
    channel.register(1, queue)
    effects = channel.flush()
    assert numbers_to(effects, 1) == [first + 2]
    assert len([effect for effect in effects if isinstance(effect, Alarm)]) == 1
    check_conservation(channel, queue)
    channel.order(client.ack(queue, (first, first + 3)))
    assert channel.manager.destinations()[0]["messages"] == 0


# -- terms ----------------------------------------------------------------------------------------------


def test_a_new_term_knows_no_consumers(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.flush()
    channel.claim(1)
    assert channel.manager.destinations()[0]["in_flight"] == 0
    channel.register(1, queue, held=Ranges([(first, first + 2)]))
    assert numbers_to(channel.flush(), 1) == [first + 2]
    assert channel.manager.destinations()[0]["in_flight"] == 3
    check_conservation(channel, queue)


def test_what_an_earlier_primary_may_have_given_out_comes_again_as_redelivered(
    channel: Channel, client: Client, queue: int
) -> None:
    first = channel.order(client.publish(queue, bodies(1)))
    channel.claim(1)
    channel.register(1, queue)
    second = channel.order(client.publish(queue, bodies(1)))
    assert [(number, count) for _, number, _, count in delivered(channel.flush())] == [
        (first, 1),
        (second, 0),
    ]
    stored = channel.manager.state.directory.get(queue)
    assert stored is not None and not stored.counts


def test_what_two_claim_to_hold_stays_with_the_first(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(3)))
    channel.claim(1)
    channel.register(1, queue, credit=0, held=Ranges([(first, first + 2)]))
    channel.register(2, queue, credit=0, held=Ranges([(first + 1, first + 3), (9_000, 9_001)]))
    channel.flush()
    check_conservation(channel, queue)


def test_what_was_held_counts_as_seen(channel: Channel, client: Client, queue: int) -> None:
    first = channel.order(client.publish(queue, bodies(2)))
    channel.claim(1)
    channel.register(1, queue, held=Ranges([(first, first + 1)]))
    channel.flush()
    channel.unregister(1, seen_through=0)
    [proposal] = [p for p in proposals(channel.flush()) if kind(p.command) == CommandKind.RETURN]
    assert list(Return.decode(read_command(proposal.command)[1]).ranges) == [(first, first + 1)]


def test_a_backup_delivers_nothing(client: Client) -> None:
    channel = Channel(node=2, begin=False)
    channel.claim(1)
    channel.order(client.open())
    queue = channel.create("orders")
    channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    assert channel.flush() == []
    assert channel.manager.next_deadline_ns() is None


def test_who_loses_the_claim_falls_silent(channel: Channel, client: Client, queue: int) -> None:
    channel.order(client.publish(queue, bodies(3)))
    channel.register(1, queue)
    channel.claim(2)
    assert channel.flush() == []


def test_a_new_primary_waits_for_those_who_may_hold_messages(client: Client) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=300))
    channel.order(client.open())
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(2)))
    channel.claim(1)
    channel.register(1, queue)
    assert delivered(channel.flush()) == []
    channel.register(2, queue, credit=0, held=Ranges([(first, first + 1)]))
    channel.flush()
    channel.acknowledge(2)
    channel.flush()
    assert channel.manager.next_deadline_ns() == 3 * SECOND_NS // 10
    channel.now_ns = 3 * SECOND_NS // 10
    assert numbers_to(channel.flush(), 1) == [first + 1]


def test_a_new_primary_waits_from_when_client_managers_can_know_of_it(client: Client) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=300))
    channel.order(client.open())
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(1)))
    term = channel.claim(1, is_announced=False)
    channel.register(1, queue)
    channel.flush()
    channel.acknowledge(1)
    channel.now_ns = SECOND_NS
    assert delivered(channel.flush()) == [], "nobody has heard of it"

    channel.manager.announced(SECOND_NS, term - 1)
    assert channel.manager.next_deadline_ns() is None
    channel.manager.announced(SECOND_NS, term)
    channel.manager.announced(2 * SECOND_NS, term)  # the first time counts
    channel.flush()
    assert channel.manager.next_deadline_ns() == 13 * SECOND_NS // 10
    channel.now_ns = 13 * SECOND_NS // 10
    assert numbers_to(channel.flush(), 1) == [first]


def test_a_primary_that_nobody_can_hold_anything_of_serves_at_once(client: Client) -> None:
    channel = Channel(MessageManagerSettings(registration_wait_ms=300))
    channel.order(client.open())
    queue = channel.create("orders")
    channel.order(client.publish(queue, bodies(2)), client.close())
    channel.claim(1)
    channel.open_producer(1)
    other = Client(session=0xB2)
    channel.order(other.open())
    first = channel.order(other.publish(queue, bodies(2)))
    channel.register(1, queue, session=0xB2)
    assert numbers_to(channel.flush(), 1)[-2:] == [first, first + 1]


def test_a_restarted_node_waits_for_the_clients_of_its_former_life(client: Client) -> None:
    """Its client manager is gone with it, but not the clients: they look for it, with what they hold."""
    channel = Channel(MessageManagerSettings(registration_wait_ms=300))
    channel.order(client.open())
    queue = channel.create("orders")
    first = channel.order(client.publish(queue, bodies(2)))
    channel.claim(1)
    channel.open_producer(1)
    other = Client(session=0xB2)
    channel.order(other.open())
    channel.register(1, queue, session=0xB2)
    assert delivered(channel.flush()) == []

    channel.order(client.resume(2))
    channel.register(2, queue, generation=2, credit=0, held=Ranges([(first, first + 1)]))
    channel.now_ns = 3 * SECOND_NS // 10
    assert numbers_to(channel.flush(), 1) == [first + 1]
