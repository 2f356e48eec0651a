"""The commands of sessions and of log time; and the end of client managers."""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.destinations import remove_all
from antiphon.message_manager.fold.holds import free_queue
from antiphon.message_manager.fold.subscriptions import leave_all
from antiphon.message_manager.fold.turns import (
    DUPLICATE,
    SESSION_UNKNOWN,
    STALE,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
    take_over,
)
from antiphon.message_manager.state.sessions import NOBODY, Owner, Session
from antiphon.wire.commands import (
    CloseSession,
    CommandKind,
    ExpireSession,
    LogTime,
    OpenSession,
    ResumeSession,
)


def open_session(channel: Channel, turn: Turn, wish: OpenSession) -> Verdict | None:
    header, sessions = turn.header, channel.state.sessions
    row = sessions.get(header.session)
    if row is not None:
        # Repeated; or the command of a former client manager came first, and this is a resumption.
        return _resume(channel, turn, row)
    sessions.add(
        Session(
            id=header.session,
            generation=header.generation,
            owner=turn.envelope.owner,
            user=wish.user,
            client_id=wish.client_id,
            connection=wish.connection,
        )
    )
    channel.state.transactions.session_opened(header.session)
    return None


def resume_session(channel: Channel, turn: Turn, wish: ResumeSession) -> Verdict | None:
    row = channel.state.sessions.get(turn.header.session)
    if row is None or row.generation < wish.known:
        # The session that the client manager knew has ended. A late SESSION_OPEN may have made another, whose
        # numbers begin anew: commands would be applied twice.
        return Verdict(SESSION_UNKNOWN)
    return _resume(channel, turn, row)


def _resume(channel: Channel, turn: Turn, row: Session) -> Verdict | None:
    generation = turn.header.generation
    if generation < row.generation:
        return Verdict(STALE)
    if generation > row.generation:
        take_over(channel, turn, row)
        return None
    if row.owner != turn.envelope.owner:
        # A client manager that was taken for dead still has the session.
        take_over(channel, turn, row)
    return Verdict(DUPLICATE)


def close_session(channel: Channel, turn: Turn, wish: CloseSession) -> Verdict | None:
    row = channel.state.sessions.get(turn.header.session)
    if row is None:
        return Verdict(SESSION_UNKNOWN)
    if turn.header.generation != row.generation:
        return Verdict(STALE)
    _end_session(channel, row, turn.sequence)
    return None


def expire_session(channel: Channel, turn: Turn, wish: ExpireSession) -> Verdict | None:
    """Void unless the proposer is the primary and the session was not resumed since."""
    row = channel.state.sessions.get(wish.session)
    is_current = wish.term == channel.state.term
    # A client manager that was fenced and is back has resumed the session in the same generation.
    is_same = row is not None and row.owner in (NOBODY, Owner(wish.pid, wish.pe))
    if row is None or not is_same or not is_current or wish.generation != row.generation:
        return Verdict(STALE)
    _end_session(channel, row, turn.sequence)
    return None


def _end_session(channel: Channel, row: Session, number: int) -> None:
    state, primary = channel.state, channel.primary
    state.sessions.remove(row.id)
    state.transactions.end_open(row.id)
    state.transactions.tidy(row.id, is_known=False)
    if primary is not None:
        primary.delivery.session_ended(row.id)
        primary.proposals.attached(row.id)
    leave_all(channel, row.id)
    remove_all(channel, row.id, number)


def move_log_time(channel: Channel, turn: Turn, wish: LogTime) -> Verdict | None:
    state = channel.state
    if wish.term != state.term:
        return Verdict(STALE)
    if wish.time_ms <= state.log_time_ms:
        # A late command: what was published meanwhile must not be taken for as old as the last mark.
        return None
    time_ms = state.log_time_ms = wish.time_ms
    state.directory.ages.time_passed(time_ms)
    state.directory.end_idle_families(time_ms)
    state.transactions.time_passed(time_ms)
    state.known_ids.time_passed(time_ms)
    state.times.mark(turn.sequence, time_ms)
    for queue in state.holds.time_passed(time_ms, turn.sequence):
        free_queue(channel, queue)
    if channel.primary is not None:
        channel.primary.proposals.due_ms = state.due_ms()
    return None


def producer_gone(channel: Channel, now_ns: int, pid: int, before: int, *, is_fenced: bool = False) -> None:
    """End the attachments of runs of a client manager that began before number `before`.

    If the client manager was fenced, the open parts of its sessions end, too: no client can go on with them.
    """
    state, primary = channel.state, channel.primary
    if primary is not None:
        primary.delivery.client_manager_gone(pid, before)
    for row in state.sessions.detach(pid, before):
        if is_fenced:
            state.transactions.end_open(row.id)
        if primary is not None:
            primary.delivery.session_lost(row.id)
            primary.proposals.detached(now_ns, row)
    for claim in state.client_ids.detach(pid, before):
        if primary is not None:
            primary.proposals.client_id_lost(claim)


RULES: Final = (
    CommandRule(CommandKind.SESSION_OPEN, admit_any, OpenSession.decode, open_session),
    CommandRule(CommandKind.SESSION_RESUME, admit_any, ResumeSession.decode, resume_session),
    CommandRule(CommandKind.SESSION_CLOSE, admit_any, CloseSession.decode, close_session),
    CommandRule(CommandKind.SESSION_EXPIRE, admit_any, ExpireSession.decode, expire_session),
    CommandRule(CommandKind.LOG_TIME, admit_any, LogTime.decode, move_log_time),
)
