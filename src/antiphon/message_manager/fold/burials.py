"""The command of dead messages: DEAD.

BUF1  A message is taken from its source and stored in the dead queue by one command, or nothing happens.
BUF2  Only the primary of the term decides which messages are dead; its command is void in any other term.
"""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.audits import note_acknowledged
from antiphon.message_manager.fold.turns import (
    REFUSED,
    STALE,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
)
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.wire.commands import COMMAND_HEADER_SIZE, BuryMessages, CommandKind


def bury(channel: Channel, turn: Turn, wish: BuryMessages) -> Verdict | None:
    state, primary = channel.state, channel.primary
    if wish.term != state.term:
        return Verdict(STALE)
    if primary is not None:
        primary.burials.settled()
    source = state.directory.source(wish.destination, wish.subscription)
    why_not = _why_not(channel, turn, wish, source)
    if why_not is not None or source is None:
        return Verdict(REFUSED, text=why_not or "what the messages died in is not here any more")
    note_acknowledged(channel, turn, source, wish.numbers)
    if primary is not None:
        primary.burials.buried(source, wish)
    source.bury(wish.numbers)
    if primary is not None:
        primary.delivery.buried(source, wish.numbers)
    target = state.directory.get(wish.target)
    if target is not None:
        _, _, origin, location = turn.envelope
        # A batch is the end of its command. Its rows follow no delivery rule any more.
        length = len(wish.batch)
        offset = turn.offset + COMMAND_HEADER_SIZE + turn.header.length - length
        target.publish(turn.sequence, turn.header.count, 0, location, offset, length, origin)
        if primary is not None:
            primary.delivery.published(target.id, turn.sequence, turn.sequence + turn.header.count)
    return None


def _why_not(
    channel: Channel, turn: Turn, wish: BuryMessages, source: Queue | Subscription | None
) -> str | None:
    """The reason why these messages are not moved, in words."""
    state, numbers, rows = channel.state, wish.numbers, turn.header.count
    if source is None or not numbers:
        return "what the messages died in is not here any more"
    lost = numbers.count - source.still(numbers).count
    if lost:
        return f"{lost} of {numbers.count} messages of {source.name} were no longer there"
    locked = state.locks.get(source.id)
    if locked is not None and locked.intersection(numbers):
        return f"a transaction or a hold has locked messages of {source.name}"
    if not wish.target:
        return None if rows == 1 and not wish.batch else "messages without a dead queue have no batch"
    target = state.directory.get(wish.target)
    if not isinstance(target, Queue) or not target.is_reserved:
        return "there is no such dead queue"
    if numbers.count != rows or not looks_like_batch(wish.batch, rows):
        return f"this is no batch of {numbers.count} messages"
    return None


RULES: Final = (CommandRule(CommandKind.DEAD, admit_any, BuryMessages.decode, bury),)
