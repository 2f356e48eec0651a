"""Turns: what applying a command has in common, whatever it does.

Where it sits
    FOLD = turns, with the commands of transactions, with all others

What it promises
    E1  A command of a session is held against the session's row: its generation, and the number it has.
    E2  What became of it is noted once: in the row, and in the outcomes if it did not do what it asked.

What it leaves to others
    What the command does.
"""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.primary import Primary
from antiphon.message_manager.sessions import Owner, Session
from antiphon.message_manager.state import ChannelState
from antiphon.wire.commands import NODE_SESSION, CommandHeader, Outcome, OutcomeCode

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
OUTDATED: Final = int(OutcomeCode.OUTDATED)


class Turn:
    """One command while it is being applied: who says it, under which numbers, and what of it is new."""

    __slots__ = ("header", "offset", "owner", "row", "sequence", "skip")

    def __init__(
        self,
        header: CommandHeader,
        sequence: int,
        offset: int,
        owner: Owner,
        row: Session | None = None,
        skip: int = 0,
    ) -> None:
        self.header = header
        self.sequence = sequence
        self.offset = offset
        self.owner = owner
        self.row = row
        # Of a publish: so many of its rows were applied before, under other numbers.
        self.skip = skip


class Turns:
    """The state, and who may change it; `primary` is told if this replica is the one."""

    __slots__ = ("primary", "state")

    def __init__(self) -> None:
        self.state = ChannelState()
        self.primary: Primary | None = None

    def _note(self, first: int, count: int, code: int, original: int, text: str) -> None:
        self.state.outcomes.note(Outcome(first, count, code, original, text[:TEXT_MAX]))

    def _admit(self, turn: Turn) -> bool:
        """May this command be applied, and which part of it? If not, what there is to tell is told."""
        header = turn.header
        if header.session == NODE_SESSION:
            return True
        row = self.state.sessions.get(header.session)
        if row is None:
            return self._deny(turn, SESSION_UNKNOWN)
        if header.generation != row.generation:
            return self._deny(turn, STALE)
        if row.owner != turn.owner:
            # The client manager had to open itself to the bus anew, but the session never left it.
            self._take_over(row, row.generation, turn.owner)
        if header.confirmed_through > row.confirmed_through:
            row.confirm(header.confirmed_through)
        known = row.last + 1 - header.number
        if known < 0:
            return self._deny(turn, GAP)
        turn.row = row
        if known:
            turn.skip = min(known, header.count)
            for outcome in row.recall(header.number, turn.skip, turn.sequence):
                self.state.outcomes.note(outcome)
            return turn.skip < header.count
        return True

    def _admit_unnumbered(self, turn: Turn) -> bool:
        """Does whoever says this have the session? It leaves no trace in the session's row."""
        header = turn.header
        row = self.state.sessions.get(header.session)
        if row is None:
            return self._deny(turn, SESSION_UNKNOWN)
        if header.generation != row.generation:
            return self._deny(turn, STALE)
        if row.owner != turn.owner:
            self._take_over(row, row.generation, turn.owner)
        return True

    def _deny(self, turn: Turn, code: int, text: str = "") -> bool:
        self._note(turn.sequence, turn.header.count, code, 0, text)
        return False

    def _settle(self, turn: Turn, code: int = APPLIED, original: int = 0, text: str = "") -> None:
        """An admitted command is done; its session remembers how it went."""
        sequence = turn.sequence + turn.skip
        count = turn.header.count - turn.skip
        if turn.row is not None:
            turn.row.note(count, code, sequence if code == APPLIED else original, text[:TEXT_MAX])
        if code != APPLIED:
            self._note(sequence, count, code, original, text)

    def _take_over(self, row: Session, generation: int, owner: Owner) -> None:
        """The session goes on under this owner; consumers of the former one are void."""
        if self.primary is not None:
            if generation != row.generation:
                self.primary.delivery.session_lost(row.id)
            self.primary.proposals.attached(row.id)
        row.generation = generation
        row.owner = owner
