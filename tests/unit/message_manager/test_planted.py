"""Each planted bug of the message manager is seen by a step test, and the same steps pass without it."""

from __future__ import annotations

from antiphon.bus.effects import Send
from antiphon.bus.messages import Deliver, RangeReply, SessionDetached
from antiphon.message_manager.manager import MessageManager
from antiphon.ranges import Ranges
from antiphon.wire.commands import OutcomeCode
from tests.browsing import browse
from tests.planted.catalogue import with_and_without
from tests.unit.message_manager.channel import (
    AT_ONCE,
    SECOND_NS,
    SESSION,
    Channel,
    Client,
    delivered,
)


@with_and_without("held-ranges-ignored")
def test_handing_out_again_what_a_living_consumer_holds_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    first = channel.order(client.open(), client.publish(queue, [b"a", b"b"])) + 1
    channel.claim(2)
    channel.claim(1)

    channel.register(7, queue, held=Ranges([(first, first + 2)]))
    pushed = [effect for effect in channel.flush() if getattr(effect, "message", None).__class__ is Deliver]
    assert bool(pushed) == is_planted


@with_and_without("lower-generation-accepted")
def test_taking_what_a_former_client_manager_had_in_its_queue_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open())
    late = client.publish(queue, [b"late"])
    channel.order(client.resume(2), pid=2)

    channel.order(late)
    kept = channel.manager.state.directory.get(queue)
    assert kept is not None and bool(kept.live) == is_planted


@with_and_without("acknowledged-twice")
def test_accepting_a_second_acknowledgement_is_seen(is_planted: bool) -> None:
    channel = Channel()
    one, other, queue = Client(), Client(0xB2), channel.create("q")
    first = channel.order(one.open(), one.publish(queue, [b"a"])) + 1
    channel.order(other.open(), one.ack(queue, (first, first + 1)))
    channel.flush()

    channel.order(other.ack(queue, (first, first + 1)))
    codes = [outcome.code for outcome in channel.exceptions()]
    assert codes == ([] if is_planted else [OutcomeCode.ACK_LOST])


@with_and_without("old-term-accepted")
def test_doing_what_a_former_primary_proposed_is_seen(is_planted: bool) -> None:
    channel = Channel()
    channel.order(Client().open())
    term = channel.manager.term
    channel.claim(2)

    channel.order(channel.expiry(term=term))
    assert (channel.manager.state.sessions.get(SESSION) is None) == is_planted


@with_and_without("floor-ignored")
def test_showing_a_page_before_what_was_confirmed_is_applied_is_seen(is_planted: bool) -> None:
    channel = Channel()
    queue = channel.create("q")
    channel.flush()

    channel.say(browse(queue, floor=channel.next + 5))
    pages = [
        effect.message
        for effect in channel.flush()
        if isinstance(effect, Send) and isinstance(effect.message, RangeReply)
    ]
    assert bool(pages) == is_planted


@with_and_without("participant-decides-alone")
def test_a_participant_that_decides_alone_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open(), client.tx_publish(queue, [b"a"]), client.prepare(1, 1))
    channel.flush()
    channel.now_ns = 3 * SECOND_NS

    channel.order_proposals(channel.flush())
    assert bool(channel.manager.state.transactions.prepared) != is_planted


@with_and_without("checkpoint-forgets-transactions")
def test_a_checkpoint_that_forgets_transactions_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open(), client.tx_publish(queue, [b"a"]))
    _, state, _ = channel.manager.capture(channel.mark())

    restored = MessageManager("main", 1, channel.payloads, AT_ONCE)
    restored.restore(state)
    assert bool(restored.state.transactions.open) != is_planted


@with_and_without("hold-begun-anew")
def test_beginning_a_hold_anew_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    first = channel.order(client.open(), client.publish(queue, [b"a"])) + 1
    channel.order(client.hold("reader", first, queue), client.ack(queue, (first, first + 1)))

    channel.order(client.hold("reader", first, queue, heard=channel.heard))
    kept = channel.manager.state.directory.get(queue)
    assert kept is not None and bool(kept.stored) != is_planted


@with_and_without("count-stuck")
def test_a_count_that_stays_at_one_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    first = channel.order(client.open(), client.publish(queue, [b"a"])) + 1
    channel.register(7, queue)
    channel.flush()
    channel.order(client.give_back(queue, (first, first + 1)))
    channel.flush()

    channel.order(client.give_back(queue, (first, first + 1)))
    assert delivered(channel.flush()) == [(7, first, b"a", 1 if is_planted else 2)]


@with_and_without("returned-last")
def test_what_goes_to_the_end_when_it_comes_back_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    first = channel.order(client.open(), client.publish(queue, [b"a", b"b", b"c"])) + 1
    channel.register(7, queue, credit=2)
    channel.flush()

    channel.order(client.give_back(queue, (first, first + 1)))
    channel.credit(7, 9)
    assert [number for _, number, _, _ in delivered(channel.flush())] == (
        [first + 2, first] if is_planted else [first, first + 2]
    )


@with_and_without("open-survives-fence")
def test_a_part_that_stays_open_behind_a_fence_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open(), client.tx_publish(queue, [b"a"]))

    channel.fence(1, channel.manager.term)
    assert bool(channel.manager.state.transactions.open) == is_planted


@with_and_without("decision-ends-with-session")
def test_a_decision_that_goes_with_its_session_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open(), client.tx_publish(queue, [b"a"]), client.decide(1, 1))

    channel.order(client.close())
    assert bool(list(channel.manager.state.transactions.unfinished())) != is_planted


@with_and_without("outdated-hold-taken")
def test_taking_a_hold_that_is_outdated_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open(), client.hold("reader", 1, queue))
    channel.order(client.release("reader", channel.heard))

    channel.order(client.hold("reader", 1, queue, heard=0))
    assert bool(channel.manager.state.holds.rows) == is_planted


@with_and_without("restore-forgets-locks")
def test_a_restore_that_forgets_locks_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.order(client.open(), client.hold("taker", 1, queue, consumes=True))
    _, state, _ = channel.manager.capture(channel.mark())

    restored = MessageManager("main", 1, channel.payloads, AT_ONCE)
    restored.restore(state)
    assert bool(restored.state.locks) != is_planted


@with_and_without("wall-clock-believed")
def test_a_wall_clock_that_is_believed_is_seen(is_planted: bool) -> None:
    channel = Channel()
    for _ in range(2):
        channel.create(f"q{channel.next}")
        channel.now_ns, channel.wall_ms = channel.now_ns + SECOND_NS, channel.wall_ms + 86_400_000
        channel.order_proposals(channel.flush())

    assert (channel.manager.state.log_time_ms == channel.wall_ms) == is_planted


@with_and_without("aged-one-too-many")
def test_letting_go_of_a_message_that_is_not_too_old_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, topic = Client(), channel.create_topic("t", '{"retention":60}')
    channel.order(client.open(), client.publish(topic, [b"old"]))
    channel.pass_time(1_000)
    channel.order(client.publish(topic, [b"young"]))
    channel.pass_time(59_000)

    channel.pass_time(1_000)
    kept = channel.manager.state.directory.get(topic)
    assert kept is not None and kept.live.count == (0 if is_planted else 1)


@with_and_without("shed-one-too-many")
def test_letting_go_of_more_bytes_than_are_too_many_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client, topic = Client(), channel.create_topic("t", '{"retention_bytes":1000}')
    channel.order(client.open())
    channel.pass_time(1_000)

    for _ in range(3):
        channel.order(client.publish(topic, [bytes(300)]))
    kept = channel.manager.state.directory.get(topic)
    assert kept is not None and kept.live.count == (1 if is_planted else 2)


@with_and_without("late-word-detaches")
def test_a_late_word_that_detaches_who_came_back_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client = Client()
    channel.order(client.open(), client.resume(2))

    channel.say(SessionDetached(SESSION, 1))
    channel.now_ns += 301 * SECOND_NS
    channel.order_proposals(channel.flush())
    assert (channel.manager.state.sessions.get(SESSION) is None) == is_planted


@with_and_without("expired-though-resumed")
def test_a_session_that_is_ended_though_it_has_an_owner_again_is_seen(is_planted: bool) -> None:
    channel = Channel()
    client = Client()
    channel.order(client.open())
    channel.fence(1, channel.manager.term)
    channel.open_producer(1)
    channel.order(client.resume(1))

    channel.now_ns += 301 * SECOND_NS
    channel.order_proposals(channel.flush())
    assert (channel.manager.state.sessions.get(SESSION) is None) == is_planted


@with_and_without("delay-ignored")
def test_giving_out_a_delayed_message_at_once_is_seen(is_planted: bool) -> None:
    assert _given({"deliver_at_ms": 5_000}) == ([0] if is_planted else [])


@with_and_without("expiry-ignored")
def test_giving_out_an_expired_message_is_seen(is_planted: bool) -> None:
    assert _given({"expires_ms": 500}) == ([0] if is_planted else [])


@with_and_without("priority-reversed")
def test_giving_out_the_least_urgent_message_first_is_seen(is_planted: bool) -> None:
    assert _given({"priority": 1}, {"priority": 9}) == ([0, 1] if is_planted else [1, 0])


def _given(*rows: dict[str, int]) -> list[int]:
    """Which of these messages a consumer is given at 1,000 ms of log time, in order."""
    channel = Channel()
    client, queue = Client(), channel.create("q")
    channel.pass_time(0)
    first = channel.order(client.open(), client.publish_rows(queue, *rows)) + 1
    channel.register(1, queue)
    return [number - first for _, number, _, _ in delivered(channel.flush())]
