"""What a client may have ordered of a transaction in one channel, and what is kept of it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from antiphon.batch import Batch
from antiphon.bus.effects import SpaceChanged
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    RANGES_MAX,
    CommandKind,
    Outcome,
    OutcomeCode,
    Payload,
    encode_command,
    iterate_commands,
    kind_of,
)
from antiphon.wire.transactions import (
    STAGED_SECONDS_MAX,
    TRANSACTED_NUMBER,
    CommitTransaction,
    Consumed,
    DecideTransaction,
    DropStaged,
    FinishTransaction,
    PrepareTransaction,
    RollBackTransaction,
    StagedPublish,
    TransactedPublish,
)
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, acknowledge, kinds


def batch(session: int, bodies: Sequence[bytes] = (b"body",), first: int = TRANSACTED_NUMBER | 1) -> bytes:
    return b"".join(Batch.of_bodies(bodies, producer=session, first_number=first, timestamp_ms=1).buffers())


def transacted(
    session: int,
    rows: int = 1,
    transaction: int = 1,
    data: bytes | None = None,
    bodies: Sequence[bytes] = (b"body",),
) -> TransactedPublish:
    return TransactedPublish(
        transaction, 0, rows, KNOWN, 1, 0, batch(session, bodies) if data is None else data
    )


def staged(session: int, seconds: int = 60, application: str = "spark", rows: int = 1) -> StagedPublish:
    return StagedPublish(7, 0, rows, seconds, KNOWN, 1, 0, application, batch(session))


def scattered(session: int) -> bytes:
    """A batch whose rows were taken here and there, as none is stored."""
    return Batch.decode(batch(session, [b"a", b"b", b"c"])).take([0, 2]).encode()


def commit(messages: int = 3, consumed: tuple[Consumed, ...] = (), transaction: int = 1) -> CommitTransaction:
    return CommitTransaction(transaction=transaction, batches=1, messages=messages, consumed=consumed)


def said(session: int, payload: Payload, number: int = 1, count: int = 1) -> frames.Command:
    data = encode_command(kind_of(payload), session, 1, number, 0, payload.encode(), count)
    return frames.Command(channel=CHANNEL, command=data)


def on_stage(**settings: int) -> tuple[Stage, int]:
    stage = Stage(**settings)
    stage.connect()
    return stage, stage.open_session()


def test_all_that_belongs_to_a_transaction_is_ordered_as_it_was_sent() -> None:
    stage, session = on_stage()
    sent = [
        said(session, transacted(session, 2, bodies=(b"a", b"b")), 1),
        said(session, transacted(session), 2),
        said(session, commit(3), 3, count=3),
        said(session, RollBackTransaction(transaction=2), 6),
        said(session, staged(session), 7),
        said(session, DropStaged(parts=(7, 8)), 8),
    ]
    stage.say(1, *sent)
    (envelope,) = stage.submitted
    assert envelope.count == 1 + 5 + 3
    ordered = [envelope.payload[at:] for _, _, at in iterate_commands(envelope.payload)][1:]
    for data, frame in zip(ordered, sent, strict=True):
        assert data.startswith(bytes(frame.command))
    stage.confirm()
    (confirm,) = stage.heard_of(frames.Confirm)
    assert [(item.number, item.count, item.code) for item in confirm.items] == [(1, 8, OutcomeCode.APPLIED)]


MANY = Ranges((2 * at, 2 * at + 1) for at in range(RANGES_MAX // 2 + 1))
PREPARE = PrepareTransaction(transaction=1, home="a", batches=0, messages=0, consumed=())
DECIDE = DecideTransaction(transaction=1, batches=0, messages=0, consumed=(), participants=())
FINISH = FinishTransaction(session=1, transaction=1, commits=True, messages=0)

BREACHES: dict[str, tuple[Callable[[int], frames.Command], str]] = {
    "transaction 0": (lambda s: said(s, transacted(s, transaction=0)), "counted from 1"),
    "other rows": (lambda s: said(s, transacted(s, 2)), "with 1 rows"),
    "other rows than one": (lambda s: said(s, transacted(s, 1, bodies=(b"a", b"b"))), "with 2 rows"),
    "another producer": (lambda s: said(s, transacted(s + 1)._replace(batch=batch(s + 1))), "is of session"),
    "the number of a plain publish": (lambda s: said(s, transacted(s, data=batch(s, first=1))), "from 1,"),
    "no batch": (lambda s: said(s, transacted(s, data=b"")), "no batch"),
    "rows here and there": (lambda s: said(s, transacted(s, 2, data=scattered(s))), "consecutive numbers"),
    "a damaged batch": (lambda s: said(s, transacted(s, data=batch(s)[:-8])), ""),
    "several numbers": (lambda s: renumbered(said(s, transacted(s, 2, bodies=(b"a", b"b"))), 2), "2 numbers"),
    "staged by nobody": (lambda s: said(s, staged(s, application="")), "staged by ''"),
    "staged by a long name": (lambda s: said(s, staged(s, application="x" * 256)), "256 bytes"),
    "staged for no time": (lambda s: said(s, staged(s, 0)), "for 0 seconds"),
    "staged for ever": (lambda s: said(s, staged(s, STAGED_SECONDS_MAX + 1)), "seconds"),
    "staged with other rows": (lambda s: said(s, staged(s, rows=2)), "with 1 rows"),
    "a commit of fewer numbers": (lambda s: said(s, commit(3), count=2), "takes 2 numbers"),
    "a commit of more numbers": (lambda s: said(s, commit(0), count=2), "takes 2 numbers"),
    "a commit of transaction 0": (lambda s: said(s, commit(1, transaction=0)), "counted from 1"),
    "a commit of many ranges": (
        lambda s: said(s, commit(1, (Consumed(KNOWN, 0, MANY), Consumed(KNOWN, 5, MANY)))),
        f"{RANGES_MAX + 2} ranges",
    ),
    "a rollback of transaction 0": (lambda s: said(s, RollBackTransaction(transaction=0)), "counted from 1"),
    "too many parts": (lambda s: said(s, DropStaged(parts=tuple(range(16_385)))), "16385 staged parts"),
    "a preparation": (lambda s: said(s, PREPARE, 0), ""),
    "a decision": (lambda s: said(s, DECIDE, 0), ""),
    "the node's own": (lambda s: raw(of_the_node(s)), "may not ask for this"),
}  # fmt: skip


def renumbered(frame: frames.Command, count: int) -> frames.Command:
    data = bytearray(frame.command)
    data[8:12] = count.to_bytes(4, "little")
    return raw(bytes(data))


def raw(data: bytes) -> frames.Command:
    return frames.Command(channel=CHANNEL, command=data)


def of_the_node(session: int) -> bytes:
    data = bytearray(encode_command(CommandKind.TX_FINISH, 0, 0, 0, 0, FINISH.encode()))
    data[16:24] = (1).to_bytes(8, "little")
    data[32:48] = session.to_bytes(16, "little")
    return bytes(data)


@pytest.mark.parametrize("breach", BREACHES)
def test_what_breaks_the_rules_ends_the_connection(breach: str) -> None:
    make, text = BREACHES[breach]
    stage, session = on_stage()
    stage.say(1, make(session))
    assert stage.goodbye().code == ProtocolError.code
    assert text in stage.goodbye().text
    assert stage.submitted == []


@pytest.mark.parametrize("make", [transacted, staged])
def test_messages_of_a_transaction_count_in_the_window(make: Callable[[int], Payload]) -> None:
    stage, session = on_stage(window_bytes=100)
    stage.say(1, said(session, make(session), 1))
    stage.confirm_all()
    stage.say(1, said(session, make(session), 2))
    stage.say(1, said(session, commit(0), 3))
    stage.say(1, said(session, make(session), 4))
    assert "the window of 100 bytes" in stage.goodbye().text


@pytest.mark.parametrize("make", [transacted, staged])
def test_messages_of_a_transaction_wait_for_room_and_its_commit_behind_them(
    make: Callable[[int], Payload],
) -> None:
    stage, session = on_stage()
    other = stage.open_session()
    stage.say(1, acknowledge(session, 1, (1, 2)), acknowledge(other, 1, (1, 2)))
    stage.confirm_all()
    stage.tell(SpaceChanged(is_low=True, is_tight=True, text="full"))
    stage.say(1, said(session, make(session), 2), said(session, commit(1), 3), acknowledge(other, 2, (2, 3)))
    assert [kinds(envelope) for envelope in stage.submitted] == [[CommandKind.ACK]]
    stage.confirm_all()
    stage.tell(SpaceChanged(is_low=False, is_tight=False, text=""))
    (envelope,) = stage.submitted
    assert kinds(envelope)[1:] == [CommandKind.TX_COMMIT]


def held_after(outcome: OutcomeCode) -> Ranges:
    """What a consumer holds of 10 to 12 when the commit that consumed 10 and 11 has this outcome."""
    stage, session = on_stage()
    stage.open_consumer(session)
    consumer = stage.manager._connections[1].sessions[session].consumers[1]
    consumer.held.add(10, 13)
    consumed = (Consumed(KNOWN, 9, Ranges([(12, 13)])), Consumed(KNOWN, 0, Ranges([(10, 12)])))
    stage.say(1, said(session, commit(2, consumed), 1, count=2))
    assert consumer.held == Ranges([(10, 13)])
    stage.confirm(*([] if outcome == OutcomeCode.APPLIED else [Outcome(0, 2, outcome)]))
    return consumer.held


@pytest.mark.parametrize("outcome", [OutcomeCode.APPLIED, OutcomeCode.DUPLICATE])
def test_what_a_commit_consumed_is_not_held_any_more(outcome: OutcomeCode) -> None:
    assert held_after(outcome) == Ranges([(12, 13)])


@pytest.mark.parametrize("outcome", [OutcomeCode.TX_ROLLED_BACK, OutcomeCode.STALE, OutcomeCode.REFUSED])
def test_what_was_rolled_back_is_still_held(outcome: OutcomeCode) -> None:
    assert held_after(outcome) == Ranges([(10, 13)])


def test_a_destination_that_is_gone_is_asked_for_anew() -> None:
    stage, session = on_stage()
    opened = frames.DestinationOpen(request=90, name="queue:known", create=False)
    stage.say(1, opened)
    stage.say(1, said(session, transacted(session), 1))
    stage.confirm(Outcome(1, 1, OutcomeCode.NO_DESTINATION))
    asked = len(stage.asked)
    stage.say(1, frames.DestinationOpen(request=91, name="queue:known", create=False))
    assert len(stage.asked) == asked + 1
