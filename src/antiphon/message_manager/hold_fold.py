"""HoldFold: what the commands of holds do to the state of a channel.

Where it sits
    bus  ->  fold, HOLD FOLD  ->  holds, destinations; and the primary's delivery hears of it

What it promises
    The rules of holds (H1 to H5), whatever a client may have put into a command.

What it leaves to others
    Reading what is held: any replica does that (range reads).
"""

from __future__ import annotations

from antiphon.errors import ProtocolError
from antiphon.message_manager.holds import everything
from antiphon.message_manager.transaction_fold import TransactionFold
from antiphon.message_manager.turns import NO_DESTINATION, OUTDATED, REFUSED, Turn
from antiphon.ranges import Ranges
from antiphon.wire.commands import COMMAND_HEADER_SIZE
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.transactions import Consumed


class HoldFold(TransactionFold):
    """The handlers of HOLD and RELEASE, and what is kept of acknowledgements for holders who ask."""

    __slots__ = ()

    def _on_hold(self, turn: Turn, body: memoryview) -> None:
        """A destination that is not here, or not any more, is passed over; unless there is no other."""
        if not self._admit(turn):
            return
        try:
            wish = Hold.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        state = self.state
        floor = state.holds.heard_floor(wish.name)
        if wish.heard < floor:
            self._settle(turn, OUTDATED, floor, f"a hold has begun or ended since, at number {floor:,}")
            return
        ids = tuple([id for id in sorted(set(wish.destinations)) if state.directory.get(id) is not None])
        if wish.destinations and not ids:
            self._settle(turn, NO_DESTINATION)
            return
        why_not = state.holds.why_not(wish, ids, turn.sequence)
        if why_not is not None:
            self._settle(turn, REFUSED, text=why_not)
            return
        is_new = wish.name not in state.holds.rows
        consumed = state.holds.hold(wish, ids, turn.sequence)
        self._settle(turn)
        if wish.consumes:
            self._consumed(turn, ids[0], consumed, is_new=is_new)

    def _consumed(self, turn: Turn, queue: int, numbers: Ranges, *, is_new: bool) -> None:
        """Somebody has this queue for himself, and has just done with these numbers of it."""
        if numbers and self.state.holds.audits(queue):
            self.state.holds.acknowledgements.tell(turn.sequence, (Consumed(queue, 0, numbers),))
        if self.primary is None:
            return
        if is_new:
            self.primary.delivery.locked(queue, everything())
        if numbers:
            self.primary.delivery.acknowledged(queue, numbers, turn.header.session)

    def _on_release(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = ReleaseHold.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        row = self.state.holds.rows.get(wish.name)
        if row is not None and wish.heard < row.began:
            self._settle(turn, OUTDATED, row.began, f"the hold has begun since, at number {row.began:,}")
            return
        freed = self.state.holds.release(wish.name, turn.sequence)
        self._settle(turn)
        if freed is not None:
            self._freed(freed)

    def _freed(self, queue: int) -> None:
        """Nobody has this queue for himself any more: its consumers get what is there."""
        if self.primary is not None:
            self.primary.delivery.unlocked(queue, everything())

    def _audit(self, turn: Turn, destination: int, subscription: int, wanted: Ranges, done: Ranges) -> None:
        """An acknowledgement was carried out, in a destination where somebody asks for that."""
        if not done:
            return
        acknowledgements = self.state.holds.acknowledgements
        if done.count == wanted.count:
            _, location = self._envelope
            length = COMMAND_HEADER_SIZE + turn.header.length
            acknowledgements.keep(turn.sequence, location, turn.offset, length)
        else:
            acknowledgements.tell(turn.sequence, (Consumed(destination, subscription, done),))
