"""The commands of holds: HOLD and RELEASE, by the rules HOL1 to HOL5."""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.turns import (
    NO_DESTINATION,
    OUTDATED,
    REFUSED,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_numbered,
)
from antiphon.message_manager.state.holds import everything
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.transactions import Consumed


def hold(channel: Channel, turn: Turn, wish: Hold) -> Verdict | None:
    """A destination that does not exist is passed over, unless there is no other."""
    holds, directory = channel.state.holds, channel.state.directory
    floor = holds.heard_floor(wish.name)
    if wish.heard < floor:
        return Verdict(OUTDATED, floor, f"a hold has begun or ended since, at number {floor:,}")
    ids = tuple([id for id in sorted(set(wish.destinations)) if directory.get(id) is not None])
    if wish.destinations and not ids:
        return Verdict(NO_DESTINATION)
    if any(id in directory.temporaries for id in ids):
        return Verdict(REFUSED, text="a temporary destination goes with its session: nothing holds it")
    why_not = holds.why_not(wish, ids, turn.sequence)
    if why_not is not None:
        return Verdict(REFUSED, text=why_not)
    is_new = wish.name not in holds.rows
    consumed = holds.hold(wish, ids, turn.sequence)
    if wish.consumes:
        _consume(channel, turn, ids[0], consumed, is_new=is_new)
    return None


def _consume(channel: Channel, turn: Turn, queue: int, numbers: Ranges, *, is_new: bool) -> None:
    """Lock the queue of a new hold, and drop the messages that the holder has consumed."""
    holds, primary = channel.state.holds, channel.primary
    if numbers and holds.audits(queue):
        holds.acknowledgements.tell(turn.sequence, (Consumed(queue, 0, numbers),))
    if primary is not None and is_new:
        primary.delivery.locked(queue, everything())
    if primary is not None and numbers:
        primary.delivery.acknowledged(queue, numbers, turn.header.session)


def release(channel: Channel, turn: Turn, wish: ReleaseHold) -> Verdict | None:
    holds = channel.state.holds
    row = holds.rows.get(wish.name)
    if row is not None and wish.heard < row.began:
        return Verdict(OUTDATED, row.began, f"the hold has begun since, at number {row.began:,}")
    freed = holds.release(wish.name, turn.sequence)
    if freed is not None:
        free_queue(channel, freed)
    return None


def free_queue(channel: Channel, queue: int) -> None:
    """Give the queue back to its consumers."""
    if channel.primary is not None:
        channel.primary.delivery.unlocked(queue, everything())


RULES: Final = (
    CommandRule(CommandKind.HOLD, admit_numbered, Hold.decode, hold),
    CommandRule(CommandKind.RELEASE, admit_numbered, ReleaseHold.decode, release),
)
