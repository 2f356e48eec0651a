"""The checkers see what they are there to see, and nothing else.

A checker that never complains proves nothing; each gets a history with one thing wrong in it, next to
the same history without.
"""

from __future__ import annotations

import itertools

import pytest

from antiphon.bus.effects import DataRecord, OrderRecord, SuperblockRecord
from antiphon.bus.messages import (
    NO_DIGEST,
    CheckpointReport,
    Commit,
    CommitAcknowledge,
    Data,
    DataReport,
    Deliver,
    Entry,
    EntryKind,
    EpochStart,
    Piece,
    ReportItem,
    Seal,
    SealOk,
    Taker,
    Target,
)
from antiphon.bus.records import EntriesAppended, EpochStarted, encode_order
from antiphon.ids import Mid
from antiphon.ranges import Ranges
from antiphon.sim.checkers.acknowledgement import Acknowledgements, FinalAcknowledgements
from antiphon.sim.checkers.history import TotalQueue
from antiphon.sim.checkers.model import Queues
from antiphon.sim.checkers.order import Checkpoints, Durability, Monotone, Order
from antiphon.sim.checkers.watch import Checker, PortConsumer, Watch
from antiphon.sim.checkers.write_before_send import WriteBeforeSend
from antiphon.sim.image import Image
from antiphon.sim.world import Violation, World
from antiphon.wire.commands import (
    Acknowledge,
    CommandKind,
    CreateDestination,
    OpenSession,
    OutcomeCode,
    Publish,
    encode_command,
)

NODE = 1
SESSION = 77
WORLD = World(1)
HOLDER, OTHER = PortConsumer(1, SESSION, 1), PortConsumer(2, 78, 1)


def entry(first: int, pseq: int, count: int = 1) -> Entry:
    return Entry(first, count, EntryKind.DATA, Mid(1, 1, pseq), 0, bytes([pseq] * 16))


def sent(pseq: int) -> Data:
    return Data(mid=Mid(1, 1, pseq), ts=0, count=1, digest=bytes([pseq] * 16), payload=b"")


def commit(*entries: Entry) -> Commit:
    return Commit(epoch=1, entries=entries, committed_upto=entries[-1].last)


def started(checker: Checker) -> None:
    checker.on_started(NODE, Image(), 0)


# One order.


def order_with(*pseqs: int) -> Order:
    order = Order(WORLD)
    started(order)
    for pseq in pseqs:
        order.on_sent(NODE, sent(pseq))
    return order


def test_an_order_without_faults_passes() -> None:
    order = order_with(1, 2)
    order.on_sent(NODE, commit(entry(1, 1), entry(2, 2)))
    order.on_applied(NODE, entry(1, 1), None)
    started(order)
    order.on_applied(NODE, entry(1, 1), None)
    order.on_applied(NODE, entry(2, 2), None)

    assert order.committed_upto == 2
    assert order.covering(2) == entry(2, 2)
    assert order.covering(3) is None


def test_another_entry_at_a_committed_number_is_seen() -> None:
    order = order_with(1, 2)
    order.on_sent(NODE, commit(entry(1, 1)))
    with pytest.raises(Violation, match="number 1 was DATA"):
        order.on_applied(NODE, entry(1, 2), None)


def test_a_gap_in_what_is_applied_is_seen() -> None:
    order = order_with(1, 2)
    order.on_sent(NODE, commit(entry(1, 1), entry(2, 2)))
    with pytest.raises(Violation, match="applied 2 after 0"):
        order.on_applied(NODE, entry(2, 2), None)


def test_an_envelope_nobody_sent_is_seen() -> None:
    with pytest.raises(Violation, match="never sent"):
        order_with(1).on_sent(NODE, commit(entry(1, 2)))


def test_an_envelope_with_two_places_is_seen() -> None:
    order = order_with(1)
    with pytest.raises(Violation, match="two places, 1 and 2"):
        order.on_sent(NODE, commit(entry(1, 1), entry(2, 1)))


def test_envelopes_out_of_order_are_seen() -> None:
    order = order_with(1, 2)
    with pytest.raises(Violation, match="behind number 0 of its run"):
        order.on_sent(NODE, commit(entry(1, 2)))


# What only grows.


def test_an_epoch_that_goes_back_is_seen() -> None:
    monotone = Monotone(WORLD)
    started(monotone)
    monotone.on_sent(NODE, SealOk(epoch=5, log_epoch=3, base=0, last=0, committed_upto=0))
    with pytest.raises(Violation, match="promised of node 1 went back"):
        started(monotone)


def test_an_epoch_claimed_in_two_lives_is_seen() -> None:
    monotone = Monotone(WORLD)
    started(monotone)
    monotone.on_sent(NODE, Seal(epoch=5, candidate_committed=0))
    monotone.on_sent(NODE, Seal(epoch=5, candidate_committed=0))
    started(monotone)
    with pytest.raises(Violation, match="again in another life"):
        monotone.on_sent(NODE, Seal(epoch=5, candidate_committed=0))


# Write before send.


def disk_with(*records: DataRecord | OrderRecord | SuperblockRecord) -> WriteBeforeSend:
    checker = WriteBeforeSend(WORLD)
    started(checker)
    for index, record in enumerate(records, start=1):
        checker.on_appended(NODE, index, record)
    return checker


def order_record(body: EntriesAppended | EpochStarted) -> OrderRecord:
    return OrderRecord(encode_order(body), highest=0)


LOG = (
    order_record(EpochStarted(epoch=7, keep_through=0, entries=())),
    order_record(EntriesAppended(log_epoch=7, prev=0, entries=(entry(1, 1),))),
)


def test_an_acknowledgement_of_what_is_durable_passes() -> None:
    checker = disk_with(*LOG)
    checker.on_durable(NODE, 2)
    checker.on_sent(NODE, CommitAcknowledge(epoch=7, last=1))


def test_an_acknowledgement_before_the_sync_is_seen() -> None:
    checker = disk_with(*LOG)
    checker.on_durable(NODE, 1)
    with pytest.raises(
        Violation, match="acknowledges epoch 0x7 through 1, its disk holds epoch 0x7 through 0"
    ):
        checker.on_sent(NODE, CommitAcknowledge(epoch=7, last=1))


def test_a_report_before_the_sync_is_seen() -> None:
    record = DataRecord(mid=Mid(1, 1, 1), ts=0, count=1, digest=NO_DIGEST, payload=b"")
    report = DataReport(epoch_hint=0, items=(ReportItem(Mid(1, 1, 1), 0, 1, NO_DIGEST),))
    checker = disk_with(record)
    with pytest.raises(Violation, match="which its disk does not hold"):
        checker.on_sent(NODE, report)
    checker.on_durable(NODE, 1)
    checker.on_sent(NODE, report)


def test_a_promise_before_the_sync_is_seen() -> None:
    checker = disk_with(SuperblockRecord(promised=9, epoch_claimed=9))
    ok = SealOk(epoch=9, log_epoch=0, base=0, last=0, committed_upto=0)
    with pytest.raises(Violation, match="promises epoch 0x9"):
        checker.on_sent(NODE, ok)
    checker.on_durable(NODE, 1)
    checker.on_sent(NODE, ok)


def test_a_life_that_finds_less_than_was_durable_is_seen() -> None:
    checker = disk_with(*LOG)
    checker.on_durable(NODE, 2)
    checker.on_crashed(NODE)
    with pytest.raises(Violation, match="forgot a promise or a claim"):
        started(checker)


# Queues.

DESTINATION = 2


def command(kind: CommandKind, number: int, payload: bytes, count: int = 1) -> bytes:
    return encode_command(kind, SESSION, 1, number, 0, payload, count)


def publish(number: int, count: int) -> bytes:
    payload = Publish(DESTINATION, 1, 0, b"batch").encode()
    return command(CommandKind.PUBLISH, number, payload, count)


def acknowledge(number: int, *pairs: tuple[int, int]) -> bytes:
    payload = Acknowledge(destination=DESTINATION, subscription=0, ranges=Ranges(pairs)).encode()
    return command(CommandKind.ACK, number, payload)


def queue_with(*commands: bytes) -> Queues:
    """A channel with session 77, queue 2, and these commands from number 3 on, one envelope each."""
    queues = Queues(World(1))
    opening = command(CommandKind.SESSION_OPEN, 0, OpenSession(user="a", client_id="").encode())
    creation = CreateDestination(kind=1, name="q", settings="{}").encode()
    create = encode_command(CommandKind.CREATE, 0, 0, 0, 0, creation)
    first = 1
    for pseq, payload in enumerate((opening, create, *commands), start=1):
        count = int.from_bytes(payload[8:12], "little")
        queues.on_applied(NODE, entry(first, pseq, count), memoryview(payload))
        first += count
    return queues


NUMBERS = itertools.count(1)
"""Of a stream: what is said under a number that was used before is no second delivery."""


def deliver(first: int, count: int) -> Deliver:
    return Deliver(1, DESTINATION, (Target(1, next(NUMBERS), (Taker(1, 1),)),), (Piece(first, count, 0, []),))


def test_the_model_counts_a_repeated_publish_once() -> None:
    queues = queue_with(publish(1, 3), publish(1, 3), publish(2, 3))
    model = queues.queues[DESTINATION]

    # 3..5 are new, 6..8 repeat them, of 9..11 only the last is new.
    assert sorted(model.live) == [3, 4, 5, 11]
    assert queues.place_of[SESSION, 4] == 11


def test_delivering_what_is_live_passes_and_what_is_acknowledged_is_seen() -> None:
    queues = queue_with(publish(1, 3), acknowledge(4, (3, 5)))
    queues.on_sent(NODE, deliver(5, 1))
    with pytest.raises(Violation, match="4 is handed out after it was acknowledged"):
        queues.on_sent(NODE, deliver(4, 2))
    with pytest.raises(Violation, match="9 is handed out and is not in queue"):
        queues.on_sent(NODE, deliver(9, 1))


def test_a_message_in_two_hands_is_seen() -> None:
    queues = queue_with(publish(1, 2))
    queues.on_handed_out(NODE, HOLDER, 3, 2, 0)
    with pytest.raises(Violation, match=r"4 is handed to .* while"):
        queues.on_handed_out(NODE, OTHER, 4, 1, 0)


def test_a_message_may_pass_to_another_when_its_holder_is_gone() -> None:
    queues = queue_with(publish(1, 2))
    queues.on_handed_out(NODE, HOLDER, 3, 2, 0)
    queues.on_holder_gone(NODE, HOLDER)
    queues.on_handed_out(NODE, OTHER, 4, 1, 0)


def test_books_that_differ_are_seen() -> None:
    queues = queue_with(publish(1, 3), acknowledge(4, (3, 5)))
    queues.at_quiet({DESTINATION: 1})
    with pytest.raises(Violation, match="the node counts 0 live messages"):
        queues.at_quiet({DESTINATION: 0})
    with pytest.raises(Violation, match="has forgotten queue 2"):
        queues.at_quiet({})


def test_two_accepted_acknowledgements_are_seen() -> None:
    checker = Acknowledgements(WORLD)
    checker.on_acknowledged(SESSION, 1, 0, Ranges([(3, 5)]))
    checker.on_acknowledged(78, 1, 0, Ranges([(4, 5)]))
    checker.on_confirm_left(NODE, SESSION, 1, 1, OutcomeCode.APPLIED, 9)
    checker.on_confirm_left(NODE, SESSION, 1, 1, OutcomeCode.DUPLICATE, 9)
    checker.on_confirm_left(NODE, 78, 1, 1, OutcomeCode.ACK_LOST, 4)
    with pytest.raises(Violation, match="two acknowledgements of 4"):
        checker.on_confirm_left(NODE, 78, 1, 1, OutcomeCode.APPLIED, 10)


def test_a_message_that_leaves_after_its_acknowledgement_was_confirmed_is_seen() -> None:
    checker = FinalAcknowledgements(WORLD)
    checker.on_acknowledged(SESSION, 1, 0, Ranges([(3, 5)]))
    checker.on_handed_out(NODE, OTHER, 3, 2, 1)
    checker.on_confirm_left(NODE, SESSION, 1, 1, OutcomeCode.APPLIED, 9)
    with pytest.raises(Violation, match="4 leaves for"):
        checker.on_handed_out(NODE, OTHER, 4, 1, 1)


# Durability.


def test_a_confirmation_of_another_place_is_seen() -> None:
    order = order_with(*range(1, 6))
    order.on_sent(NODE, commit(*(entry(number, number) for number in range(1, 6))))
    checker = Durability(WORLD, order, queue_with(publish(1, 3)))
    checker.on_confirmed(SESSION, 1, 3, OutcomeCode.APPLIED, 3)
    with pytest.raises(Violation, match="confirmed at 4, and the order has it at 3"):
        checker.on_confirmed(SESSION, 1, 1, OutcomeCode.APPLIED, 4)


def test_a_life_without_what_was_committed_is_seen() -> None:
    order = order_with(1)
    checker = Durability(WORLD, order, Queues(WORLD))
    started(checker)
    order.on_sent(NODE, commit(entry(1, 1)))
    with pytest.raises(Violation, match="a log through 0, 1 was committed"):
        started(checker)


def test_an_epoch_that_begins_without_what_was_committed_is_seen() -> None:
    order = order_with(1, 2)
    order.on_sent(NODE, commit(entry(1, 1), entry(2, 2)))
    checker = Durability(WORLD, order, Queues(WORLD))
    checker.on_sent(NODE, EpochStart(epoch=9, from_seq=2, entries=(entry(2, 2),), committed_upto=1))
    checker.on_sent(NODE, EpochStart(epoch=9, from_seq=3, entries=(), committed_upto=2))
    with pytest.raises(Violation, match="begins with a log through 1, 2 was committed"):
        checker.on_sent(NODE, EpochStart(epoch=9, from_seq=1, entries=(entry(1, 1),), committed_upto=0))
    with pytest.raises(Violation, match="another entry at 2"):
        checker.on_sent(NODE, EpochStart(epoch=9, from_seq=2, entries=(entry(2, 3),), committed_upto=1))


def test_two_states_after_one_number_are_seen() -> None:
    checker = Checkpoints(World(1))
    checker.on_sent(NODE, CheckpointReport(seq=9, digest=b"a", took_ms=1))
    checker.on_sent(NODE, CheckpointReport(seq=9, digest=b"a", took_ms=1))
    with pytest.raises(Violation, match="another state after 9"):
        checker.on_sent(NODE, CheckpointReport(seq=9, digest=b"b", took_ms=1))


# The history of a queue.


def history() -> TotalQueue:
    checker = TotalQueue(WORLD)
    checker.on_published(SESSION, 1, [b"one", b"two"])
    return checker


def test_a_whole_history_passes() -> None:
    checker = history()
    checker.on_confirmed(SESSION, 1, 2, OutcomeCode.APPLIED, 5)
    checker.on_received(HOLDER, 5, b"one", 0)
    checker.on_received(OTHER, 5, b"one", 1)
    checker.on_received(HOLDER, 6, b"two", 0)
    checker.at_quiet({})

    assert checker.figures["redelivered"] == 1


def test_a_message_that_came_back_too_often_need_not_have_arrived() -> None:
    checker = history()
    checker.on_confirmed(SESSION, 1, 2, OutcomeCode.APPLIED, 5)
    checker.on_received(HOLDER, 5, b"one", 0)
    checker.worn_out = {6}
    checker.at_quiet({})


def test_a_lost_message_is_seen() -> None:
    checker = history()
    checker.on_confirmed(SESSION, 1, 2, OutcomeCode.APPLIED, 5)
    checker.on_received(HOLDER, 5, b"one", 0)
    with pytest.raises(Violation, match="1 confirmed messages were never delivered, the first is 6"):
        checker.at_quiet({})


def test_an_unconfirmed_message_may_be_missing_or_appear_once() -> None:
    checker = history()
    checker.on_received(HOLDER, 5, b"one", 0)
    checker.at_quiet({})
    with pytest.raises(Violation, match="stored twice, as 5 and as 7"):
        checker.on_received(HOLDER, 7, b"one", 0)


def test_an_invented_message_is_seen() -> None:
    with pytest.raises(Violation, match="never published"):
        history().on_received(HOLDER, 5, b"three", 0)


def test_a_refused_message_that_appears_is_seen() -> None:
    checker = history()
    checker.on_confirmed(SESSION, 1, 2, OutcomeCode.REFUSED, 5)
    with pytest.raises(Violation, match="was refused and arrived"):
        checker.on_received(HOLDER, 5, b"one", 0)


def test_a_repetition_that_does_not_say_so_is_seen() -> None:
    checker = history()
    checker.on_received(HOLDER, 5, b"one", 0)
    with pytest.raises(Violation, match="comes again without saying so"):
        checker.on_received(HOLDER, 5, b"one", 0)


def test_the_first_copy_may_be_overtaken_by_a_repetition() -> None:
    checker = history()
    checker.on_received(HOLDER, 5, b"one", 1)
    checker.on_received(HOLDER, 5, b"one", 0)
    with pytest.raises(Violation, match="comes again without saying so"):
        checker.on_received(HOLDER, 5, b"one", 0)


# The fan-out.


def test_a_hook_reaches_every_checker_that_wants_it() -> None:
    order, queues = order_with(), Queues(World(1))
    watch = Watch([order, queues, Acknowledgements(WORLD)])

    order.on_sent(NODE, sent(1))
    watch.on_applied(NODE, entry(1, 1), None)
    watch.on_crashed(NODE)
    watch.at_quiet({})

    assert order.committed_upto == 1


def test_what_is_said_again_under_its_number_must_not_be_acknowledged_either() -> None:
    queues = queue_with(publish(1, 3))
    said = deliver(3, 3)
    queues.on_sent(NODE, said)
    queues.on_sent(NODE, said)
    queues.on_applied(NODE, entry(6, 4, 1), memoryview(acknowledge(4, (3, 5))))
    queues.on_sent(NODE, deliver(5, 1))
    with pytest.raises(Violation, match="3 is handed out after it was acknowledged"):
        queues.on_sent(NODE, said)
