"""What a transaction counts, numbers and refuses, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.client.core.client import ClientCore
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.events import Refused, RequestAnswered
from antiphon.client.core.outbox import CommandOutbox
from antiphon.client.core.publication import Departure, Publication
from antiphon.client.core.session import SessionCore
from antiphon.client.core.transaction import (
    PartCore,
    RowNumbers,
    StagedPartCore,
    TakenMessages,
    TransactionCore,
)
from antiphon.errors import (
    LocalError,
    ProtocolError,
    SessionClosed,
    TransactionRolledBack,
    TransactionTooLarge,
)
from antiphon.ranges import Ranges
from antiphon.wire.commands import RANGES_MAX, CommandKind, ConfirmItem, OutcomeCode
from antiphon.wire.frames import (
    ConsumerLost,
    Credit,
    Failed,
    SessionOpened,
    TransactionAsk,
    TransactionCommit,
    TransactionDecided,
)
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import (
    TRANSACTED_NUMBER,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
    CommitTransaction,
    Consumed,
)
from tests.unit.client.core.test_client import SESSION, WELCOME, deliver, open_consumer, said, welcome_core
from tests.unit.client.core.test_outbox import Waiting, sent
from tests.unit.client.core.test_resume import known_session


class Stored(Publication):
    """Messages of a part, as a face sends them."""

    __slots__ = ("part", "row")

    def __init__(self, part: PartCore, row: int, *bodies: bytes) -> None:
        size = sum(map(len, bodies))
        super().__init__(
            list(bodies), size, Waiting(), destination=3, settings_version=1, timestamp_ms=0, deadline_ns=0
        )
        self.part = part
        self.row = row

    @property
    def is_wanted(self) -> bool:
        return not self.part.is_over

    def leave(self, session: int, generation: int, number: int, confirmed_through: int) -> Departure | None:
        batch = self.build(session, self.row)
        if batch is None:
            return None
        return self.part.enclose(self, batch, session, generation, number, confirmed_through)


@pytest.fixture
def outbox() -> CommandOutbox:
    return CommandOutbox(session=9, generation=1, channel="a", window_bytes=1_000, output=[])


def consumer(number: int, channel: str = "a", destination: int = 3, subscription: int = 0) -> ConsumerCore:
    return ConsumerCore(
        consumer=number, name="queue:a", destination=destination, channel=channel, subscription=subscription
    )


# -- numbers -----------------------------------------------------------------------------------------


def test_messages_are_numbered_apart_from_commands_in_each_channel() -> None:
    rows = RowNumbers()
    assert rows.take("a", 10) == TRANSACTED_NUMBER | 1
    assert rows.take("a", 1) == TRANSACTED_NUMBER | 11
    assert rows.take("b", 1) == TRANSACTED_NUMBER | 1


def test_numbers_that_were_not_needed_are_used_later_unless_others_were_taken_since() -> None:
    rows = RowNumbers()
    first = rows.take("a", 100)
    rows.give_back("a", first, 100, 3)
    second = rows.take("a", 100)
    assert second == first + 3
    rows.take("a", 5)
    rows.give_back("a", second, 100, 1)
    assert rows.take("a", 1) == second + 105, "no number is ever given twice"


# -- what leaves -------------------------------------------------------------------------------------


def test_a_batch_takes_one_number_whatever_it_holds_and_says_its_place(outbox: CommandOutbox) -> None:
    transaction = TransactionCore(7)
    part = transaction.part("a")
    outbox.submit(Stored(part, TRANSACTED_NUMBER | 1, b"x", b"y", b"z"))
    outbox.submit(Stored(part, TRANSACTED_NUMBER | 4, b"w"))
    commands = sent(outbox)
    assert [(header.kind, header.number, header.count) for header, _ in commands] == [
        (CommandKind.TX_PUBLISH, 1, 1),
        (CommandKind.TX_PUBLISH, 2, 1),
    ]
    assert [(wish.transaction, wish.index, wish.rows, wish.destination) for _, wish in commands] == [
        (7, 0, 3, 3),
        (7, 1, 1, 3),
    ]
    batches = [Batch.decode(wish.batch) for _, wish in commands]
    assert [(batch.producer, batch.first_number, batch.count) for batch in batches] == [
        (9, TRANSACTED_NUMBER | 1, 3),
        (9, TRANSACTED_NUMBER | 4, 1),
    ]
    assert (part.batches, part.messages) == (2, 4)


def test_what_is_staged_names_its_application_and_goes_on_counting(outbox: CommandOutbox) -> None:
    part = StagedPartCore("a", "report", 1 << 100, 60, batches=4)
    outbox.submit(Stored(part, TRANSACTED_NUMBER | 1, b"x", b"y"))
    ((header, wish),) = sent(outbox)
    assert (header.kind, header.count) == (CommandKind.STAGE, 1)
    assert (wish.part, wish.index, wish.rows, wish.seconds, wish.application) == (
        1 << 100,
        4,
        2,
        60,
        "report",
    )
    assert Batch.decode(wish.batch).count == 2
    assert (part.batches, part.batches_new) == (5, 1)


def test_a_commit_takes_as_many_numbers_as_it_makes_messages_visible(outbox: CommandOutbox) -> None:
    payload = CommitTransaction(transaction=1, batches=1, messages=5, consumed=())
    outbox.order(payload, "commit", 5)
    outbox.order(payload, "next")
    assert [(header.number, header.count) for header, _ in sent(outbox)] == [(1, 5), (6, 1)]
    (settled,) = outbox.confirm([ConfirmItem(1, 5, OutcomeCode.TX_ROLLED_BACK, 0, "why")])
    assert settled.tag == "commit" and settled.outcomes[0].text == "why"


def test_what_waits_when_its_transaction_is_over_does_not_leave(outbox: CommandOutbox) -> None:
    transaction = TransactionCore(1)
    part = transaction.part("a")
    outbox.submit(Stored(part, TRANSACTED_NUMBER | 1, b"x" * 900))
    waiting = Stored(part, TRANSACTED_NUMBER | 2, b"y" * 900)
    outbox.submit(waiting)
    assert not outbox.has_sent_all
    transaction.doom(LocalError("the first reason"))
    transaction.doom(LocalError("another one"))
    assert outbox.has_sent_all, "what nobody wants is not waited for"
    outbox.confirm([ConfirmItem(1, 1, OutcomeCode.APPLIED, 100)])
    assert len(sent(outbox)) == 1
    assert waiting.is_settled and not waiting.has_left
    assert transaction.fault is not None and transaction.fault.text == "the first reason"
    assert transaction.part("b").is_over, "nothing of it can begin elsewhere either"


def test_on_another_connection_everything_has_to_leave_once_more(outbox: CommandOutbox) -> None:
    outbox.submit(Stored(TransactionCore(1).part("a"), TRANSACTED_NUMBER | 1, b"x"))
    assert outbox.has_sent_all
    outbox.suspend()
    assert not outbox.has_sent_all
    outbox.resume(2, 1_000)
    assert outbox.has_sent_all
    assert [header.generation for header, _ in sent(outbox)] == [1, 2]


# -- limits ------------------------------------------------------------------------------------------


def test_a_part_has_limits_of_messages_and_bytes() -> None:
    part = TransactionCore(1).part("a")
    part.add(TRANSACTION_MESSAGES_MAX, 0)
    with pytest.raises(TransactionTooLarge, match="131,072 messages"):
        part.add(1, 0)
    assert part.rows == TRANSACTION_MESSAGES_MAX
    other = TransactionCore(1).part("b")
    other.add(1, TRANSACTION_BYTES_MAX)
    with pytest.raises(TransactionTooLarge, match="bytes to channel 'b'"):
        other.add(1, TRANSACTION_BYTES_MAX + 1)


def test_too_many_runs_of_numbers_cannot_be_acknowledged_at_once() -> None:
    gaps = Ranges((2 * number, 2 * number + 1) for number in range(1, RANGES_MAX + 2))
    with pytest.raises(TransactionTooLarge, match="16,384 runs"):
        TransactionCore(1).commitment([TakenMessages(consumer(1), gaps)])


# -- what is committed -------------------------------------------------------------------------------


def test_a_commitment_names_what_was_sent_and_what_was_taken_by_channel(outbox: CommandOutbox) -> None:
    transaction = TransactionCore(1)
    outbox.submit(Stored(transaction.part("b"), TRANSACTED_NUMBER | 1, b"x", b"y"))
    transaction.part("c")  # nothing has left for it
    taken = [
        TakenMessages(consumer(1, "b", 3), Ranges([(5, 7)])),
        TakenMessages(consumer(2, "a", 4, 9), Ranges([(1, 2)])),
        TakenMessages(consumer(3, "b", 3), Ranges([(7, 9), (11, 12)])),
    ]
    assert transaction.commitment(taken) == (
        TransactionPart("a", 0, 0, (Consumed(4, 9, Ranges([(1, 2)])),)),
        TransactionPart("b", 1, 2, (Consumed(3, 0, Ranges([(5, 9), (11, 12)])),)),
    )
    assert TransactionCore(1).commitment([]) == ()


def test_what_was_taken_is_given_back_in_commands_that_count_it() -> None:
    session = known_session(welcome_core())
    taken = [
        TakenMessages(consumer(1), Ranges([(5, 7)])),
        TakenMessages(consumer(2, "b", 4, 9), Ranges([(1, 4)])),
    ]
    taken += [TakenMessages(consumer(3), Ranges([(9, 10)]))]
    # Of the second one others have a part by now, of the third one all.
    for (one, _), ours in zip(taken, ([(5, 7), (20, 30)], [(1, 2)], []), strict=True):
        one.unconfirmed = Ranges(ours)
    commands = session.give_back(taken)
    assert [(channel, one.destination, one.subscription, one.counted) for channel, one in commands] == [
        ("a", 3, 0, True),
        ("b", 4, 9, True),
    ]
    assert [list(one.ranges) for _, one in commands] == [[(5, 7)], [(1, 2)]]


# -- asked of the client manager ---------------------------------------------------------------------

PARTS = (TransactionPart("b", 1, 2), TransactionPart("a", 0, 0, (Consumed(3, 0, Ranges([(1, 2)])),)))


def lose_and_return(core: ClientCore, generation: int = 2) -> list[Any]:
    """Another connection, on which the session is resumed; what was said since."""
    core.lose()
    core.greet()
    said(core)
    core.receive(0, WELCOME)
    (opening,) = said(core)
    core.receive(
        0,
        SessionOpened(
            request=opening.request, session=SESSION, generation=generation, window_bytes=1_000_000
        ),
    )
    return said(core)


def test_a_commit_in_several_channels_is_one_request() -> None:
    core = welcome_core()
    session = known_session(core)
    said(core)
    request = core.commit_transaction(session, 5, PARTS)
    assert said(core) == [TransactionCommit(request=request, session=SESSION, transaction=5, parts=PARTS)]
    decided = TransactionDecided(request=request, fate=TransactionFate.COMMITTED)
    assert core.receive(0, decided) == [RequestAnswered(request=request, reply=decided)]


@pytest.mark.parametrize(("application", "home"), [("", "a"), ("report", "")])
def test_on_another_connection_it_is_only_asked_what_became_of_it(application: str, home: str) -> None:
    core = welcome_core()
    session = known_session(core)
    request = core.commit_transaction(session, 5, PARTS, application, 3)
    said(core)
    question = TransactionAsk(request=request, session=SESSION, transaction=5, home=home)
    assert lose_and_return(core) == [question]
    assert lose_and_return(core, generation=3) == [question], "and again"
    decided = TransactionDecided(request=request, fate=TransactionFate.ROLLED_BACK, text="nobody decided")
    assert core.receive(0, decided) == [RequestAnswered(request=request, reply=decided)]


def test_one_that_is_refused_or_whose_session_ends_has_an_answer_too() -> None:
    core = welcome_core()
    session = known_session(core)
    request = core.commit_transaction(session, 5, PARTS)
    (refused,) = core.receive(0, Failed(request=request, code="limit", text="too many"))
    assert isinstance(refused, Refused) and refused.error.text == "too many"
    request = core.commit_transaction(session, 6, PARTS)
    said(core)
    core.lose()
    core.greet()
    said(core)
    core.receive(0, WELCOME)
    (opening,) = said(core)
    events = core.receive(0, Failed(request=opening.request, code=SessionClosed.code, text="expired"))
    refusals = [event for event in events if isinstance(event, Refused)]
    assert [event.request for event in refusals] == [request]
    assert isinstance(refusals[0].error, SessionClosed)


def taken_and_lost() -> tuple[ClientCore, SessionCore, ConsumerCore]:
    """The application works on message 40, and another consumer got it."""
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 40))
    consumer.hold(session.take(consumer, 1))
    core.receive(0, ConsumerLost(session=SESSION, consumer=1, lost=Ranges([(40, 41)])))
    return core, session, consumer


def test_a_copy_of_a_committed_message_leaves_its_place_in_the_buffer_to_the_next() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session, prefetch_messages=1)
    core.receive(0, deliver(1, 40))
    consumer.hold(session.take(consumer, 1))
    taken = session.take_consumed()
    core.receive(0, ConsumerLost(session=SESSION, consumer=1, lost=Ranges([(40, 41)])))
    core.receive(0, deliver(2, 40))
    said(core)

    session.release(taken)

    assert not consumer.buffered
    assert [frame.messages for frame in said(core) if isinstance(frame, Credit)] == [3]


def test_what_was_given_to_others_and_came_back_cannot_be_committed_as_if_it_had_been_taken_once() -> None:
    core, session, consumer = taken_and_lost()

    core.receive(0, deliver(2, 40))
    consumer.hold(session.take(consumer, 1))

    taken = session.take_consumed()
    with pytest.raises(TransactionRolledBack, match="message 40 was given to another consumer"):
        TransactionCore(1).commitment(taken)
    # It has it now, and gives it back.
    ((_, back),) = session.give_back(taken)
    assert back.ranges == Ranges([(40, 41)])


def test_a_transaction_that_took_nothing_but_what_others_got_is_rolled_back() -> None:
    _, session, consumer = taken_and_lost()

    taken = session.take_consumed()
    assert [(one.consumer, one.numbers) for one in taken] == [(consumer, Ranges())]
    assert session.give_back(taken) == []
    with pytest.raises(TransactionRolledBack):
        TransactionCore(1).commitment(taken)


def test_what_another_consumer_of_the_session_gets_the_first_has_lost() -> None:
    """Two consumers of one queue in one transaction: it would be worked on twice and acknowledged once."""
    core = welcome_core()
    session = known_session(core)
    first = open_consumer(core, session)
    second = open_consumer(core, session)
    core.receive(0, deliver(1, 40, 2))
    first.hold(session.take(first, 1))

    core.receive(0, replace(deliver(1, 40, 2), consumer=2))

    assert first.buffered == 0
    second.hold(session.take(second, 2))
    with pytest.raises(TransactionRolledBack):
        TransactionCore(1).commitment(session.take_consumed())


def test_losses_of_a_consumer_that_is_gone_are_nobodys() -> None:
    core = welcome_core()
    session = known_session(core)
    consumer = open_consumer(core, session)
    session.forget_consumer(consumer.consumer)
    assert core.receive(0, ConsumerLost(session=SESSION, consumer=1, lost=Ranges([(40, 41)]))) == []
    with pytest.raises(ProtocolError):
        core.receive(0, ConsumerLost(session=SESSION, consumer=7, lost=Ranges([(40, 41)])))
