"""Transactions in one channel: stored and not seen, then all of it at once, or nothing."""

from __future__ import annotations

import pytest

from antiphon.message_manager.fold import transactions as transaction_fold
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.transactions import OPEN_MS_MAX, Transactions
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, OutcomeCode
from antiphon.wire.transactions import CommitTransaction, Consumed, TransactedPublish
from tests.unit.message_manager.channel import (
    AT_ONCE,
    CM,
    SESSION,
    Channel,
    Client,
    MemoryPayloads,
    bodies,
    delivered,
    numbers_to,
    of_node,
    show,
)


class Stage:
    """A session and two queues."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.client = Client()
        self.channel.order(self.client.open())
        self.orders = self.channel.create("orders")
        self.bills = self.channel.create("bills")

    @property
    def transactions(self) -> Transactions:
        return self.channel.manager.state.transactions

    def messages(self, queue: int) -> list[int]:
        stored = self.channel.manager.state.directory.get(queue)
        assert stored is not None
        return list(stored.live.numbers())

    def send(self, count: int, *, transaction: int = 1, index: int = 0, queue: int = 0) -> None:
        command = self.client.tx_publish(
            queue or self.orders, bodies(count, f"{index}-"), transaction=transaction, index=index
        )
        assert self.channel.outcome(command) is None

    def is_clean(self) -> bool:
        """Nothing of any transaction is left."""
        transactions = self.transactions
        return not (
            transactions.open
            or transactions.prepared
            or transactions.locks
            or transactions.uncommitted
            or transactions.uncommitted.live
        )


def consumed(source: int, *pairs: tuple[int, int], subscription: int = 0) -> Consumed:
    return Consumed(source, subscription, Ranges(pairs))


# -- visible together ------------------------------------------------------------------


def test_what_is_sent_in_a_transaction_takes_one_number_and_is_not_seen() -> None:
    stage = Stage()
    stage.channel.register(7, stage.orders)
    before = stage.channel.next
    stage.send(5)
    assert stage.channel.next == before + 1
    assert stage.messages(stage.orders) == []
    assert delivered(stage.channel.flush()) == []
    assert stage.channel.manager.status()["transactions"]["open"] == 1


def test_a_commit_makes_all_of_it_visible_under_its_own_numbers_in_the_order_of_the_sends() -> None:
    stage = Stage()
    stage.channel.register(7, stage.orders)
    stage.channel.register(8, stage.bills)
    stage.send(2)
    stage.send(1, index=1, queue=stage.bills)
    stage.send(3, index=2)
    first = stage.channel.order(stage.client.tx_commit(3, 6))
    assert stage.messages(stage.orders) == [first, first + 1, first + 3, first + 4, first + 5]
    assert stage.messages(stage.bills) == [first + 2]
    assert delivered(stage.channel.flush()) == [
        (7, first, b"0-0", 0),
        (7, first + 1, b"0-1", 0),
        (7, first + 3, b"2-0", 0),
        (7, first + 4, b"2-1", 0),
        (7, first + 5, b"2-2", 0),
        (8, first + 2, b"1-0", 0),
    ]
    assert stage.is_clean()


def test_messages_published_meanwhile_come_before() -> None:
    stage = Stage()
    stage.send(1)
    other = Client(0xB2)
    plain = stage.channel.order(other.open(), other.publish(stage.orders, [b"plain"])) + 1
    first = stage.channel.order(stage.client.tx_commit(1, 1))
    assert stage.messages(stage.orders) == [plain, first]


def test_a_commit_acknowledges_what_was_consumed() -> None:
    stage = Stage()
    other = Client(0xB2)
    got = stage.channel.order(other.open(), other.publish(stage.orders, bodies(3))) + 1
    stage.channel.register(7, stage.orders)
    assert numbers_to(stage.channel.flush(), 7) == [got, got + 1, got + 2]
    stage.send(1, queue=stage.bills)
    commit = stage.client.tx_commit(1, 1, consumed(stage.orders, (got, got + 2)))
    assert stage.channel.outcome(commit) is None
    assert stage.messages(stage.orders) == [got + 2]
    assert len(stage.messages(stage.bills)) == 1
    primary = stage.channel.manager.primary
    assert primary is not None and primary.delivery.in_flight_count(stage.orders) == 1


def test_a_commit_that_only_consumes_takes_one_number() -> None:
    stage = Stage()
    other = Client(0xB2)
    got = stage.channel.order(other.open(), other.publish(stage.orders, bodies(3))) + 1
    before = stage.channel.next
    assert stage.channel.outcome(stage.client.tx_commit(0, 0, consumed(stage.orders, (got, got + 3)))) is None
    assert stage.channel.next == before + 1
    assert stage.messages(stage.orders) == []


def test_a_subscription_is_consumed_from_like_a_queue() -> None:
    stage = Stage()
    topic = stage.channel.create_topic("news")
    subscription = stage.channel.order(stage.client.subscribe(topic))
    got = stage.channel.order(stage.client.publish(topic, bodies(2)))
    commit = stage.client.tx_commit(0, 0, consumed(topic, (got, got + 2), subscription=subscription))
    assert stage.channel.outcome(commit) is None
    found = stage.channel.manager.state.directory.subscription(subscription)
    assert found is not None and found.backlog == 0
    again = stage.client.tx_commit(
        0, 0, consumed(topic, (got, got + 1), subscription=subscription), transaction=2
    )
    outcome = stage.channel.outcome(again)
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK


def test_messages_for_a_destination_that_was_deleted_take_their_numbers_and_are_gone() -> None:
    stage = Stage()
    stage.send(2, queue=stage.bills)
    stage.send(2, index=1)
    stage.channel.order(stage.client.delete(stage.bills))
    first = stage.channel.order(stage.client.tx_commit(2, 4))
    assert stage.messages(stage.orders) == [first + 2, first + 3]
    assert stage.is_clean()
    stage.channel.order(stage.client.ack(stage.orders, (first + 2, first + 4)))
    assert stage.channel.manager.live_bytes_by_segment() == {}


def test_a_commit_that_is_sent_again_is_a_duplicate_of_the_first() -> None:
    stage = Stage()
    number = stage.client.number
    stage.send(2)
    first = stage.channel.order(stage.client.tx_commit(1, 2))
    publish = stage.client.tx_publish(stage.orders, bodies(2), number=number)
    commit = stage.client.tx_commit(1, 2, number=number + 1)
    outcome = stage.channel.outcome(publish)
    assert outcome is not None and (outcome.code, outcome.original) == (OutcomeCode.DUPLICATE, first - 1)
    outcome = stage.channel.outcome(commit)
    assert outcome is not None
    assert (outcome.code, outcome.count, outcome.original) == (OutcomeCode.DUPLICATE, 2, first)
    assert stage.messages(stage.orders) == [first, first + 1]
    assert stage.is_clean()


def test_a_roll_back_that_is_sent_again_is_told_as_such() -> None:
    stage = Stage()
    number = stage.client.number
    outcome = stage.channel.outcome(stage.client.tx_commit(1, 2))
    again = stage.channel.outcome(stage.client.tx_commit(1, 2, number=number))
    assert outcome is not None and again is not None
    assert (again.code, again.text) == (outcome.code, outcome.text) == (6, outcome.text)


# -- or nothing -------------------------------------------------------------------------


@pytest.mark.parametrize(("batches", "messages"), [(1, 2), (3, 4), (2, 5), (0, 0)])
def test_a_part_that_is_not_whole_is_rolled_back(batches: int, messages: int) -> None:
    stage = Stage()
    stage.send(2)
    stage.send(2, index=1)
    outcome = stage.channel.outcome(stage.client.tx_commit(batches, messages))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    assert outcome.count == max(1, messages)
    assert stage.messages(stage.orders) == [] and stage.is_clean()


def test_a_commit_takes_as_many_numbers_as_it_has_messages() -> None:
    stage = Stage()
    stage.send(3)
    outcome = stage.channel.outcome(stage.client.tx_commit(1, 3, count=2))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    assert stage.messages(stage.orders) == [] and stage.is_clean()


def test_what_somebody_else_has_acknowledged_rolls_the_commit_back() -> None:
    stage = Stage()
    other = Client(0xB2)
    got = stage.channel.order(other.open(), other.publish(stage.orders, bodies(3))) + 1
    stage.send(1, queue=stage.bills)
    stage.channel.order(other.ack(stage.orders, (got + 1, got + 2)))
    outcome = stage.channel.outcome(stage.client.tx_commit(1, 1, consumed(stage.orders, (got, got + 3))))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    assert "1 of 3 messages of queue:orders were no longer there" in outcome.text
    assert stage.messages(stage.orders) == [got, got + 2] and stage.messages(stage.bills) == []
    assert stage.is_clean()


def test_what_was_received_from_a_deleted_queue_rolls_the_commit_back() -> None:
    stage = Stage()
    got = stage.channel.order(stage.client.publish(stage.bills, bodies(1)))
    stage.channel.order(stage.client.delete(stage.bills))
    outcome = stage.channel.outcome(stage.client.tx_commit(0, 0, consumed(stage.bills, (got, got + 1))))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK


def test_a_roll_back_leaves_nothing_and_one_of_nothing_is_fine() -> None:
    stage = Stage()
    stage.send(2)
    assert stage.channel.outcome(stage.client.tx_rollback()) is None
    assert stage.is_clean() and stage.channel.manager.live_bytes_by_segment() == {}
    assert stage.channel.outcome(stage.client.tx_rollback()) is None


def test_a_batch_out_of_turn_is_told_so_and_drops_the_part() -> None:
    stage = Stage()
    stage.send(1)
    outcome = stage.channel.outcome(stage.client.tx_publish(stage.orders, bodies(1), index=2))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    assert stage.is_clean()
    outcome = stage.channel.outcome(stage.client.tx_publish(stage.orders, bodies(1), index=1))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    outcome = stage.channel.outcome(stage.client.tx_commit(1, 1))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK


def test_a_later_transaction_drops_what_an_earlier_one_left_and_not_the_other_way_round() -> None:
    stage = Stage()
    stage.send(1, transaction=1)
    stage.send(1, transaction=2)
    assert [part.transaction for part in stage.transactions.open.values()] == [2]
    late = stage.client.tx_publish(stage.orders, bodies(1), transaction=1)
    outcome = stage.channel.outcome(late)
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    assert stage.channel.outcome(stage.client.tx_commit(1, 1, transaction=2)) is None
    assert len(stage.messages(stage.orders)) == 1


def test_one_session_knows_nothing_of_the_transaction_of_another() -> None:
    stage = Stage()
    other = Client(0xB2)
    stage.send(1)
    stage.channel.order(other.open(), other.tx_publish(stage.orders, bodies(2)))
    first = stage.channel.order(other.tx_commit(1, 2))
    assert stage.messages(stage.orders) == [first, first + 1]
    assert stage.channel.outcome(stage.client.tx_commit(1, 1)) is None


@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        ("TRANSACTION_MESSAGES_MAX", 4, "at most 4 messages"),
        ("TRANSACTION_BYTES_MAX", 120, "at most 120 bytes"),
    ],
)
def test_a_transaction_beyond_the_limit_is_refused_and_leaves_nothing(
    limit: str, value: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_fold, limit, value)
    stage = Stage()
    stage.send(2)
    outcome = stage.channel.outcome(stage.client.tx_publish(stage.orders, bodies(3), index=1))
    assert outcome is not None and outcome.code == OutcomeCode.REFUSED and words in outcome.text
    assert stage.is_clean()


def test_a_send_to_a_queue_that_is_not_there_drops_the_part() -> None:
    stage = Stage()
    stage.send(1)
    outcome = stage.channel.outcome(stage.client.tx_publish(99, bodies(1), index=1))
    assert outcome is not None and outcome.code == OutcomeCode.NO_DESTINATION
    assert stage.is_clean()


@pytest.mark.parametrize(
    "kind", [CommandKind.TX_PUBLISH, CommandKind.TX_COMMIT, CommandKind.TX_ROLLBACK, CommandKind.DROP_STAGED]
)
def test_what_does_not_decode_is_refused(kind: CommandKind) -> None:
    stage = Stage()
    stage.send(1)
    outcome = stage.channel.outcome(stage.client.raw(kind, b"\1"))
    assert outcome is not None and outcome.code == OutcomeCode.REFUSED


def test_a_batch_that_is_none_is_refused() -> None:
    stage = Stage()
    for wish in (
        TransactedPublish(1, 0, 0, stage.orders, 1, 0, b""),
        TransactedPublish(1, 0, 1, stage.orders, 1, 0, bytes(100)),
    ):
        outcome = stage.channel.outcome(stage.client.raw(CommandKind.TX_PUBLISH, wish.encode()))
        assert outcome is not None and outcome.code == OutcomeCode.REFUSED


def test_the_node_itself_has_no_transactions() -> None:
    stage = Stage()
    outcome = stage.channel.outcome(
        of_node(CommitTransaction(transaction=1, batches=0, messages=0, consumed=()))
    )
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK


# -- who drops an open part ---------------------------------------------------------------


def test_a_claim_that_is_applied_drops_what_is_open() -> None:
    stage = Stage()
    stage.send(1)
    stage.channel.claim(2)
    assert stage.is_clean()
    outcome = stage.channel.outcome(stage.client.tx_publish(stage.orders, bodies(1), index=1))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK
    outcome = stage.channel.outcome(stage.client.tx_commit(2, 2))
    assert outcome is not None and outcome.code == OutcomeCode.TX_ROLLED_BACK


def test_a_fence_of_its_client_manager_drops_it_and_that_of_another_does_not() -> None:
    stage = Stage()
    other = Client(0xB2)
    stage.channel.order(other.open(), pid=2)
    stage.send(1)
    stage.channel.fence(2, stage.channel.manager.term)
    assert not stage.is_clean()
    stage.channel.fence(CM, stage.channel.manager.term - 1)
    assert not stage.is_clean(), "the word of a former primary"
    stage.channel.fence(CM, stage.channel.manager.term)
    assert stage.is_clean()


def test_the_end_of_its_session_drops_it() -> None:
    stage = Stage()
    stage.send(1)
    stage.channel.order(stage.client.close())
    assert stage.is_clean() and stage.channel.manager.live_bytes_by_segment() == {}


def test_a_session_that_is_resumed_goes_on_with_it() -> None:
    stage = Stage()
    stage.send(1)
    stage.channel.order(stage.client.resume(2), pid=2)
    stage.channel.order(stage.client.tx_publish(stage.orders, bodies(1), index=1), pid=2)
    assert stage.channel.outcome(stage.client.tx_commit(2, 2), pid=2) is None
    assert len(stage.messages(stage.orders)) == 2


def test_what_is_open_for_too_long_is_dropped_by_the_time_of_the_channel() -> None:
    stage = Stage()
    stage.channel.pass_time(10 * OPEN_MS_MAX)
    stage.send(1)
    # The first time that is told behind it is when it began: nobody told the time before.
    stage.channel.pass_time(10 * OPEN_MS_MAX)
    stage.channel.pass_time(OPEN_MS_MAX)
    assert not stage.is_clean()
    stage.channel.pass_time(1)
    assert stage.is_clean()


def test_the_primary_lets_time_move_on_for_the_sake_of_what_is_open() -> None:
    stage = Stage()
    channel = stage.channel
    stage.send(1)
    channel.wall_ms += 5
    assert channel.order_proposals(channel.flush()) == 1
    channel.flush()
    for _ in range(3):
        deadline = channel.manager.next_deadline_ns()
        assert deadline is not None, "there is something to wait for"
        channel.wall_ms += (deadline - channel.now_ns) // 1_000_000
        channel.now_ns = deadline
        channel.order_proposals(channel.flush())
        if stage.is_clean():
            break
    assert stage.is_clean()


# -- in the state -------------------------------------------------------------------------


def test_an_open_part_is_in_the_checkpoint_and_goes_on_behind_it() -> None:
    stage = Stage()
    stage.send(2)
    n = stage.channel.mark()
    digest, data, segments = stage.channel.manager.capture(n)
    assert segments, "the segments of what is not committed are needed too"
    again = MessageManager("main", 1, stage.channel.payloads, AT_ONCE)
    again.restore(data)
    assert again.capture(n) == (digest, data, segments)
    stage.channel.manager = again
    stage.send(1, index=1)
    first = stage.channel.order(stage.client.tx_commit(2, 3))
    assert stage.messages(stage.orders) == [first, first + 1, first + 2]


def test_the_digest_tells_what_is_open() -> None:
    stage, other = Stage(), Stage()
    stage.send(1)
    other.channel.order(other.client.tx_rollback())
    assert stage.channel.next == other.channel.next
    assert stage.channel.manager.state.digest() != other.channel.manager.state.digest()


def test_a_replica_that_keeps_the_bytes_elsewhere_has_the_same_digest() -> None:
    stage = Stage()
    stage.send(2)
    stage.send(1, transaction=2)
    stage.channel.order(stage.client.tx_commit(1, 1, transaction=2))
    stage.send(1, transaction=3)
    payloads = MemoryPayloads(records_per_segment=2)
    replica = MessageManager("main", 9, payloads, AT_ONCE)
    for entry, payload in stage.channel.log:
        show(replica, payloads, entry, payload)
    assert replica.state.digest() == stage.channel.manager.state.digest()


def test_records_of_what_is_not_committed_are_copied_and_read_at_their_new_place() -> None:
    stage = Stage()
    manager, payloads = stage.channel.manager, stage.channel.payloads
    stage.send(2)
    [segment] = manager.live_bytes_by_segment()
    [place] = manager.records_in(segment)
    moved = payloads.keep(bytes(payloads.read(place)))
    manager.relocated(place, moved)
    assert manager.live_bytes_by_segment().keys() == {moved.segment}
    del payloads.records[place.segment, place.offset]
    stage.channel.register(7, stage.orders)
    stage.channel.order(stage.client.tx_commit(1, 2))
    assert [body for _, _, body, _ in delivered(stage.channel.flush())] == [b"0-0", b"0-1"]


def test_a_record_that_was_copied_while_its_batch_was_committed_is_read_at_its_new_place() -> None:
    stage = Stage()
    manager, payloads = stage.channel.manager, stage.channel.payloads
    stage.send(2)
    [segment] = manager.live_bytes_by_segment()
    [place] = manager.records_in(segment)
    stage.channel.order(stage.client.tx_commit(1, 2))
    moved = payloads.keep(bytes(payloads.read(place)))
    manager.relocated(place, moved)
    del payloads.records[place.segment, place.offset]
    stage.channel.register(7, stage.orders)
    assert [body for _, _, body, _ in delivered(stage.channel.flush())] == [b"0-0", b"0-1"]


def test_a_joiner_takes_what_is_not_committed_with_it() -> None:
    stage = Stage()
    stage.send(2)
    n = stage.channel.mark()
    digest, data, _ = stage.channel.manager.capture(n)
    payloads = MemoryPayloads()
    payloads.keep(b"something that lies before it")
    joiner = MessageManager("main", 1, payloads, AT_ONCE)
    opened, places = joiner.open_state(data)
    assert opened == digest and len(places) == 1
    moved = {place: payloads.keep(bytes(stage.channel.payloads.read(place))) for place in places}
    joiner.move_state(moved)
    joiner.install_state(0, n, joiner_term := stage.channel.manager.term)
    assert joiner.term == joiner_term
    stage.channel.manager, stage.channel.payloads = joiner, payloads
    joiner.announced(0, joiner_term)
    stage.channel.register(7, stage.orders)
    stage.channel.order(stage.client.tx_commit(1, 2))
    assert [body for _, _, body, _ in delivered(stage.channel.flush())] == [b"0-0", b"0-1"]


def test_a_session_of_its_own_number_is_all_a_transaction_needs() -> None:
    """The row of the session says so: each command of a transaction has its number and its outcome there."""
    stage = Stage()
    stage.send(2)
    stage.channel.order(stage.client.tx_commit(1, 2))
    row = stage.channel.manager.state.sessions.get(SESSION)
    assert row is not None and row.last == 3
