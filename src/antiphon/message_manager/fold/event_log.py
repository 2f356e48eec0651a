"""The command of events: LOG_EVENTS.

LGE1  A node's events are stored as messages in the channel's part of `topic:_LOG`, or nothing happens.
LGE2  The batch is the node's own, and follows no delivery rule.
"""

from __future__ import annotations

from typing import Final

from antiphon.batch.layout import RULES_AT
from antiphon.message_manager.fold.turns import REFUSED, Channel, CommandRule, Turn, Verdict, admit_any
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.names import LOG_TOPIC_NAME
from antiphon.wire.commands import COMMAND_HEADER_SIZE, CommandKind, LogEvents


def log_events(channel: Channel, turn: Turn, wish: LogEvents) -> Verdict | None:
    topic, count, length = channel.state.directory.named(LOG_TOPIC_NAME), turn.header.count, len(wish.batch)
    if not isinstance(topic, Topic):
        return Verdict(REFUSED, text=f"this channel has no {LOG_TOPIC_NAME} yet")
    if not looks_like_batch(wish.batch, count) or wish.batch[RULES_AT]:
        return Verdict(REFUSED, text=f"this is no batch of {count} events")
    _, _, origin, location = turn.envelope
    # The batch is the whole payload.
    offset = turn.offset + COMMAND_HEADER_SIZE
    topic.publish(turn.sequence, count, 0, location, offset, length, origin)
    if channel.primary is not None:
        channel.primary.delivery.published(topic.id, turn.sequence, turn.sequence + count)
    return None


RULES: Final = (CommandRule(CommandKind.LOG_EVENTS, admit_any, LogEvents.decode, log_events),)
