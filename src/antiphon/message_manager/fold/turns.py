"""Turns: the steps that applying any command has in common.

TRN1  A command of a session is checked against the session's row: its generation and its number.
TRN2  The outcome of a command is noted once: in the session's row, and in the outcomes if not "done".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from antiphon.bus.ports import Location
from antiphon.message_manager.delivery.primary import Primary
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.sessions import Owner, Session
from antiphon.wire.commands import NODE_SESSION, CommandHeader, CommandKind, Outcome, OutcomeCode

TEXT_MAX: Final = 200

# Plain numbers: looking up a member of an enum costs as much as a step of the fold.
APPLIED: Final = int(OutcomeCode.APPLIED)
DUPLICATE: Final = int(OutcomeCode.DUPLICATE)
NO_DESTINATION: Final = int(OutcomeCode.NO_DESTINATION)
REFUSED: Final = int(OutcomeCode.REFUSED)
STALE: Final = int(OutcomeCode.STALE)
GAP: Final = int(OutcomeCode.GAP)
TX_ROLLED_BACK: Final = int(OutcomeCode.TX_ROLLED_BACK)
ACK_LOST: Final = int(OutcomeCode.ACK_LOST)
SESSION_UNKNOWN: Final = int(OutcomeCode.SESSION_UNKNOWN)
EXISTS: Final = int(OutcomeCode.EXISTS)
DIFFERS: Final = int(OutcomeCode.DIFFERS)
OUTDATED: Final = int(OutcomeCode.OUTDATED)


class Channel:
    """A replica of a channel, with the primary's part while this replica is the primary."""

    __slots__ = ("name", "primary", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ChannelState()
        self.primary: Primary | None = None


class Envelope(NamedTuple):
    """The fields that all commands of an envelope share."""

    payload: memoryview
    owner: Owner
    digest: bytes
    location: Location


class Turn:
    """A command while it is being applied: its numbers, and the part of it that is new."""

    __slots__ = ("envelope", "header", "offset", "row", "sequence", "skip")

    def __init__(self, header: CommandHeader, sequence: int, offset: int, envelope: Envelope) -> None:
        self.header = header
        self.sequence = sequence
        # Where in the envelope the command begins.
        self.offset = offset
        self.envelope = envelope
        # None: the command has no numbers of a session.
        self.row: Session | None = None
        # Rows of a publish that were applied before, under other numbers.
        self.skip = 0


class Verdict(NamedTuple):
    """The outcome of a command that did not do what it asked, as in `Outcome`."""

    code: int
    original: int = 0
    text: str = ""


class Partly(NamedTuple):
    """Some messages of a publish were stored; the others have these outcomes, in the order of numbers."""

    outcomes: tuple[Outcome, ...]


Wish = TypeVar("Wish")


class CommandRule(NamedTuple, Generic[Wish]):
    """How commands of one kind are applied.

    The handler returns None for "done". A payload that does not decode is refused, after `malformed`.
    """

    kind: CommandKind
    admit: Callable[[Channel, Turn], bool]
    decode: Callable[[memoryview], Wish]
    handler: Callable[[Channel, Turn, Wish], Verdict | Partly | None]
    malformed: Callable[[Channel, Turn], None] | None = None


# -- admission -----------------------------------------------------------------------


def admit_numbered(channel: Channel, turn: Turn) -> bool:
    """Check generation and number, and find the new part of the command (TRN1); else note the outcome."""
    header = turn.header
    if header.session == NODE_SESSION:
        return True
    row = _row_for(channel, turn)
    if row is None:
        return False
    if header.confirmed_through > row.confirmed_through:
        row.confirm(header.confirmed_through)
    known = row.last + 1 - header.number
    if known < 0:
        settle(channel, turn, Verdict(GAP))
        return False
    turn.row = row
    if known:
        turn.skip = min(known, header.count)
        for outcome in row.recall(header.number, turn.skip, turn.sequence):
            channel.state.outcomes.note(outcome)
        return turn.skip < header.count
    return True


def admit_unnumbered(channel: Channel, turn: Turn) -> bool:
    """Check the generation only: the command leaves no trace in the session's row."""
    return _row_for(channel, turn) is not None


def admit_any(channel: Channel, turn: Turn) -> bool:
    return True


def _row_for(channel: Channel, turn: Turn) -> Session | None:
    """The row of the command's session, if the generation is right; else the outcome is noted."""
    header = turn.header
    row = channel.state.sessions.get(header.session)
    if row is None:
        settle(channel, turn, Verdict(SESSION_UNKNOWN))
        return None
    if header.generation != row.generation:
        settle(channel, turn, Verdict(STALE))
        return None
    if row.owner != turn.envelope.owner:
        # The client manager opened itself to the bus anew, but still has the session.
        take_over(channel, turn, row)
    return row


def take_over(channel: Channel, turn: Turn, row: Session) -> None:
    """Give the session to the sender of this command; the consumers of a former generation are void."""
    primary, generation = channel.primary, turn.header.generation
    if primary is not None:
        if generation != row.generation:
            primary.delivery.session_lost(row.id)
        primary.proposals.attached(row.id)
    row.generation = generation
    row.owner = turn.envelope.owner
    row.moved_at = turn.sequence


# -- the end of a turn -----------------------------------------------------------------


def settle(channel: Channel, turn: Turn, verdict: Verdict | Partly | None) -> None:
    """Note the outcome of a command (TRN2)."""
    row, skip = turn.row, turn.skip
    count = turn.header.count - skip
    if verdict is None:
        if row is not None:
            row.note(count, APPLIED, turn.sequence + skip)
        return
    if isinstance(verdict, Partly):
        _settle_partly(channel, turn, verdict.outcomes)
        return
    code, original, text = verdict
    text = text[:TEXT_MAX]
    if row is not None:
        row.note(count, code, original, text)
    channel.state.outcomes.note(Outcome(turn.sequence + skip, count, code, original, text))


def _settle_partly(channel: Channel, turn: Turn, outcomes: tuple[Outcome, ...]) -> None:
    row, sequence, end = turn.row, turn.sequence + turn.skip, turn.sequence + turn.header.count
    for outcome in outcomes:
        first, count, code, original, _ = outcome
        if row is not None:
            if sequence < first:
                row.note(first - sequence, APPLIED, sequence)
            row.note(count, code, original)
        channel.state.outcomes.note(outcome)
        sequence = first + count
    if row is not None and sequence < end:
        row.note(end - sequence, APPLIED, sequence)
