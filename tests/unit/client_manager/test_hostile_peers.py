"""Whatever peers say, in whatever order, the manager goes on, keeps its limits and ends empty."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from antiphon.bus.messages import InDoubt, Register, Registered, Unfinished
from antiphon.client_manager.effects import ConnectionLost, ConnectionOpened, WriteBlocked, WriteUnblocked
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import Acknowledge, Outcome, OutcomeCode
from antiphon.wire.transaction_frames import TransactionPart
from antiphon.wire.transactions import CommitTransaction, Consumed, RollBackTransaction
from tests.unit.client_manager.stage import CHANNEL, KNOWN, Stage, command, publish

REFUSALS = (
    OutcomeCode.NO_DESTINATION,
    OutcomeCode.REFUSED,
    OutcomeCode.GAP,
    OutcomeCode.ACK_LOST,
    OutcomeCode.SESSION_UNKNOWN,
    OutcomeCode.TX_ROLLED_BACK,
    OutcomeCode.STALE,
)

small = st.integers(0, 4)
session_ids = st.integers(0, 3)  # turned into ids of real sessions, and one that is none


def frame_of(kind: int, request: int, session: int, number: int) -> frames.ClientFrame:
    made: dict[int, Callable[[], frames.ClientFrame]] = {
        0: lambda: frames.Hello(user="", password="", client_id=""),
        1: lambda: frames.SessionOpen(
            request=request,
            session=session if number > 2 else 0,
            generation=number if number > 2 else 0,
            ack_mode=frames.AckMode.AUTO,
        ),
        2: lambda: frames.SessionClose(request=request, session=session),
        3: lambda: frames.DestinationOpen(
            request=request, name=f"queue:{'known' if number else 'new'}", create=number > 1
        ),
        4: lambda: publish(session or 1, max(1, number), generation=1),
        5: lambda: command(
            session or 1,
            max(1, number),
            Acknowledge(destination=KNOWN, subscription=0, ranges=Ranges([(1, 1 + number)])),
        ),
        6: lambda: frames.ConsumerOpen(
            request=request,
            session=session,
            consumer=number,
            channel=CHANNEL,
            destination=KNOWN,
            credit_messages=1,
            credit_bytes=1,
        ),
        7: lambda: frames.ConsumerClose(
            request=request, session=session, consumer=number, seen_through=number
        ),
        8: lambda: frames.Credit(session=session, consumer=number, messages=number, bytes=number),
        9: lambda: frames.Ping(nonce=number),
        10: lambda: frames.Goodbye(code="", text=""),
        11: lambda: frames.Ask(request=request, question="{}"),
        12: lambda: frames.TransactionCommit(
            request=request,
            session=session,
            transaction=number,
            parts=tuple(
                TransactionPart(
                    channel, 0, number, (Consumed(KNOWN, 0, Ranges([(1, 2)])),) * (number % 2), ()
                )
                for channel in (CHANNEL, "b")[: number or 1]
            ),
            application="spark" if number == 3 else "",
        ),
        13: lambda: frames.TransactionAsk(
            request=request, session=session, transaction=number, home=CHANNEL if number else ""
        ),
        14: lambda: command(session or 1, max(1, number), RollBackTransaction(transaction=number)),
        15: lambda: command(
            session or 1,
            max(1, number),
            CommitTransaction(transaction=1, batches=0, messages=number // 4, consumed=()),
        ),
        16: lambda: frames.DestinationsCreate(
            request=request,
            names=("queue:new", "queue:known", "queue:new", "no name")[:number],
            settings='{"channel":"b"}' if number == 3 else "{}",
        ),
    }
    return made[kind]()


moves = st.tuples(
    st.sampled_from(
        ["say"] * 12
        + ["confirm"] * 5
        + ["refuse"] * 2
        + ["lose", "block", "unblock", "answer", "term", "doubt"]
    ),
    st.integers(1, 2),
    st.sampled_from([1, 1, 1, *range(17), 4, 4, 4, 6, 6, 12, 12, 12]),
    session_ids,
    small,
)


@given(st.lists(moves, max_size=60))
def test_whatever_peers_say_the_manager_goes_on_and_ends_empty(
    script: list[tuple[str, int, int, int, int]],
) -> None:
    stage = Stage(
        (CHANNEL, "b"),
        sessions_max=2,
        consumers_max=2,
        requests_max=8,
        submitted_bytes_max=1,
        transactions_max=2,
    )
    term = 0
    alive: dict[int, bool] = {}
    next_conn = 10
    conns = {1: 0, 2: 0}
    for request, (what, who, kind, which, number) in enumerate(script):
        if not alive.get(conns[who]):
            next_conn += 1
            conns[who] = next_conn
            alive[next_conn] = True
            stage.step(ConnectionOpened(next_conn, "peer"))
            if kind != 9:
                stage.say(next_conn, frames.Hello(user="", password="", client_id=""))
        conn = conns[who]
        opened = [
            each.session for at in sorted(stage.heard) for each in stage.heard_of(frames.SessionOpened, at)
        ]
        session = opened[-which] if 0 < which <= len(opened) else 0
        match what:
            case "say":
                stage.say(conn, frame_of(kind, request, session, number))
            case "confirm" if stage.submitted:
                stage.confirm()
            case "refuse" if stage.submitted:
                stage.confirm(Outcome(0, 1, REFUSALS[(number + which) % len(REFUSALS)], 0, "no"))
            case "lose":
                stage.step(ConnectionLost(conn))
            case "block":
                stage.step(WriteBlocked(conn))
            case "unblock":
                stage.step(WriteUnblocked(conn))
            case "answer":
                for register in stage.to_primary(Register)[-2:]:
                    code = "x" if number == 0 else ""
                    stage.tell(Registered(consumer=register.consumer, term=term, code=code))
            case "term":
                term += 1
                stage.new_term(term)
            case "doubt" if kind % 2:
                stage.tell(InDoubt(session, number, CHANNEL, number), channel="b")
            case "doubt":
                stage.tell(Unfinished(session, number, ("b",), (number,)))
        alive[conn] = conn in stage.manager._connections
        for connection in stage.manager._connections.values():
            assert len(connection.sessions) <= 2
            assert len(connection.requests) <= 8

    for conn in list(stage.manager._connections):
        stage.step(ConnectionLost(conn))
    stage.confirm_all()
    manager = stage.manager
    assert (manager.connection_count, manager.session_count, manager.consumer_count) == (0, 0, 0)
    assert manager._ordering._unconfirmed_bytes == 0
    coordination = manager._coordination
    assert (len(coordination), len(coordination._busy), len(coordination._unfinished)) == (0, 0, 0)
