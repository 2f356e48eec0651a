"""Notes for the holds that ask for acknowledgements: which messages a command has acknowledged."""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.turns import Channel, Turn
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.ranges import Ranges
from antiphon.wire.commands import COMMAND_HEADER_SIZE
from antiphon.wire.transactions import Consumed

_NONE: Final = Ranges()


def note_acknowledged(
    channel: Channel, turn: Turn, source: Queue | Subscription, wanted: Ranges, *, is_named: bool = False
) -> None:
    """Note messages that are about to be acknowledged, if a hold asks for them: those that are there.

    `is_named`: the bytes of the command name these messages, and the source.
    """
    holds = channel.state.holds
    numbers = source.still(wanted) if holds.is_audited else _NONE
    if not numbers:
        return
    consumed = [one for one in _consumed_from(source, numbers) if holds.audits(one.destination)]
    is_whole = is_named and numbers.count == wanted.count
    if is_whole and [one.destination for one in consumed] == [source.destination]:
        length = COMMAND_HEADER_SIZE + turn.header.length
        holds.acknowledgements.keep(turn.sequence, turn.envelope.location, turn.offset, length)
    else:
        holds.acknowledgements.tell(turn.sequence, tuple(consumed))


def _consumed_from(source: Queue | Subscription, numbers: Ranges) -> list[Consumed]:
    """Messages of a source; those of a family are their topics'."""
    if isinstance(source, Queue):
        return [Consumed(source.id, 0, numbers)]
    if isinstance(source.topic, Family):
        return [Consumed(topic.id, source.id, some) for topic, some in source.topic.by_topic(numbers)]
    return [Consumed(source.destination, source.id, numbers)]
