"""Steps of a checkpoint server."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.checkpoint_server import CheckpointServer, CheckpointState, KeptCheckpoint
from antiphon.bus.effects import (
    Alarm,
    CheckpointFailed,
    CheckpointWritten,
    Learned,
    Received,
    RoleEffect,
    RoleEvent,
    Send,
    StateCaptured,
    WriteCheckpoint,
)
from antiphon.bus.entries import StableDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.errors import ProtocolError
from antiphon.ids import Mid, make_epoch

EPOCH = make_epoch(1, 1)
LEDGER = Ledger().encode()
STATE = CheckpointState(8, LEDGER, b"m" * 16, b"the queues")


def beat(epoch: int = EPOCH) -> Received:
    return Received(epoch & 0xFFFF, m.Heartbeat(epoch, 8, 0, 1, 8, True))


def stable(n: int, digest: bytes) -> Learned:
    detail = StableDetail(n, digest, (1,)).encode()
    entry = Entry(9, 1, EntryKind.CHECKPOINT_STABLE, Mid(1, EPOCH, 9), 0, NO_DIGEST, detail)
    return Learned((), (entry,), ())


def a_server() -> CheckpointServer:
    server = CheckpointServer(GroupConfig.of("main", (1,), checkpoint_report_beats=3), 1)
    server.step(0, [beat()])
    return server


def step(server: CheckpointServer, *events: RoleEvent) -> list[RoleEffect]:
    return server.step(0, list(events))


def written(server: CheckpointServer) -> list[RoleEffect]:
    assert server.begin(8, LEDGER)
    step(server, StateCaptured(8, b"m" * 16, b"the queues", (3,)))
    return step(server, CheckpointWritten(8))


def test_a_checkpoint_holds_ledger_and_state_and_its_digest_covers_both() -> None:
    server = a_server()
    assert server.begin(8, LEDGER)
    effects = step(server, StateCaptured(8, b"m" * 16, b"the queues", (3,)))
    assert effects == [WriteCheckpoint(8, STATE.digest, STATE.encode(), (3,))]
    assert CheckpointState(8, b"other", b"m" * 16, b"").digest != STATE.digest
    assert CheckpointState(8, LEDGER, b"n" * 16, b"").digest != STATE.digest
    assert CheckpointState(8, LEDGER, b"m" * 16, b"elsewhere").digest == STATE.digest, "logical state only"


def test_it_is_reported_only_when_it_is_durable() -> None:
    report = Send(1, m.CheckpointReport(8, STATE.digest, 0))
    assert written(a_server()) == [report]


def test_it_is_reported_again_with_every_nth_heartbeat_and_to_a_new_sequencer() -> None:
    server = a_server()
    (report,) = written(server)
    assert step(server, beat()) == []
    assert step(server, beat()) == [report]
    later = step(server, beat(make_epoch(2, 3)))
    assert later == [Send(3, m.CheckpointReport(8, STATE.digest, 0))]


def test_a_stable_one_is_not_reported_any_more() -> None:
    server = a_server()
    written(server)
    step(server, stable(8, STATE.digest))
    assert step(server, beat(), beat(), beat(), beat(make_epoch(2, 3))) == []


def test_one_is_taken_at_a_time() -> None:
    server = a_server()
    assert server.begin(8, LEDGER)
    assert not server.begin(9, LEDGER)
    step(server, StateCaptured(8, b"m" * 16, b"", ()), CheckpointWritten(8))
    assert not server.begin(8, LEDGER), "that one is there"
    assert server.begin(10, LEDGER)


def test_a_fold_that_differs_from_the_stable_one_raises_an_alarm_and_tells_the_sequencer() -> None:
    server = a_server()
    (report,) = written(server)
    effects = step(server, stable(8, b"other digest 16."))
    assert isinstance(effects[0], Alarm) and "DIVERGENCE" in effects[0].text
    assert effects[1] == report


def test_a_state_that_nobody_asked_for_stops_the_node() -> None:
    with pytest.raises(AssertionError, match="nobody asked"):
        step(a_server(), StateCaptured(8, b"m" * 16, b"", ()))


def test_its_bytes_come_back_and_others_are_refused() -> None:
    back = CheckpointState.decode(STATE.encode())
    assert back == STATE
    with pytest.raises(ProtocolError):
        CheckpointState.decode(STATE.encode() + b"x")
    with pytest.raises(ProtocolError):
        CheckpointState.decode(b"no checkpoint at all")


def test_one_for_which_there_was_no_room_is_written_again_after_a_while() -> None:
    server = a_server()
    assert server.begin(8, LEDGER)
    (write,) = step(server, StateCaptured(8, b"m" * 16, b"the queues", (3,)))
    assert server.step(5 * MS, [CheckpointFailed(8)]) == []
    assert not server.begin(9, LEDGER), "it is still under way"
    assert server.next_deadline_ns() == 1_005 * MS
    assert server.step(1_005 * MS, []) == [write]
    report = Send(1, m.CheckpointReport(8, STATE.digest, 20))
    assert server.step(1_025 * MS, [CheckpointWritten(8, 20)]) == [report]
    assert server.begin(9, LEDGER) and server.next_deadline_ns() is None


def test_one_that_others_made_stable_before_it_was_written_here_is_known_to_be_stable() -> None:
    server = a_server()
    assert server.begin(8, LEDGER)
    step(server, StateCaptured(8, b"m" * 16, b"the queues", (3,)), stable(8, STATE.digest))
    assert server.stable is None, "it is not here yet"
    assert step(server, CheckpointWritten(8)) == [], "nobody needs to hear of it"
    assert server.stable == KeptCheckpoint(8, STATE.digest, len(STATE.encode()))


def test_one_that_differs_from_what_others_made_stable_before_raises_an_alarm_when_it_is_written() -> None:
    server = a_server()
    assert server.begin(8, LEDGER)
    step(server, StateCaptured(8, b"m" * 16, b"the queues", (3,)), stable(8, b"other digest 16."))
    alarm, report = step(server, CheckpointWritten(8))
    assert isinstance(alarm, Alarm) and "DIVERGENCE" in alarm.text
    assert report == Send(1, m.CheckpointReport(8, STATE.digest, 0))
    assert server.stable is None


def test_it_knows_the_newest_of_its_own_that_is_stable() -> None:
    server = a_server()
    assert server.stable is None
    written(server)
    assert server.stable is None
    step(server, stable(8, STATE.digest))
    assert server.stable == KeptCheckpoint(8, STATE.digest, len(STATE.encode()))
    step(server, stable(20, b"of another node."))
    assert server.stable is not None and server.stable.n == 8, "it has no newer one"


def test_a_node_falls_back_on_the_one_before_the_newest() -> None:
    """The records that it refers to are kept for as long as that is so."""
    server = a_server()
    written(server)
    assert (server.newest_n, server.fallback_n) == (8, 0)
    assert server.begin(16, LEDGER)
    step(server, StateCaptured(16, b"m" * 16, b"the queues", (3,)), CheckpointWritten(16))
    assert (server.newest_n, server.fallback_n) == (16, 8)


def test_what_an_earlier_life_left_may_be_stable_though_the_newest_is_not() -> None:
    older, newer = KeptCheckpoint(8, STATE.digest, 10), KeptCheckpoint(16, b"n" * 16, 10)
    server = CheckpointServer(GroupConfig.of("main", (1,)), 1, (older, newer), 8)
    assert server.stable == older
    assert (server.newest_n, server.fallback_n) == (16, 8)
    (report,) = step(server, beat())
    assert isinstance(report, Send) and report.message == m.CheckpointReport(16, b"n" * 16, 0)
    step(server, stable(16, b"n" * 16))
    assert server.stable == newer


def test_one_that_differs_from_the_stable_one_is_never_given() -> None:
    server = a_server()
    written(server)
    step(server, stable(8, b"other digest 16."))
    assert server.stable is None


def test_one_that_was_called_stable_before_its_mark_was_applied_here_is_known_to_be_stable() -> None:
    """The order is often known before the payloads are here."""
    server = a_server()
    step(server, stable(8, STATE.digest))
    step(server, stable(20, b"a later one . .."))
    assert written(server) == [], "nobody needs to hear of it"
    assert server.stable == KeptCheckpoint(8, STATE.digest, len(STATE.encode()))


def test_what_the_log_begins_with_can_be_given() -> None:
    server = a_server()
    written(server)
    server.note_base(7)
    assert server.stable is None
    server.note_base(8)
    assert server.stable == KeptCheckpoint(8, STATE.digest, len(STATE.encode()))


def test_what_the_log_lacks_is_told_again_under_another_configuration() -> None:
    server = a_server()
    server.need(30)
    server.vain_n = 30
    server.reconfigure(GroupConfig.of("main", (1, 2)))
    assert (server.needed_n, server.vain_n) == (0, 0)
