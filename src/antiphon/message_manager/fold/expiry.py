"""The commands of messages that leave without an acknowledgement: EXPIRE and DROP.

The fold has no clock and knows no consumers: the primary proposes the messages whose time is over by log
time, and the non-persistent ones that a consumer may have seen.
"""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.turns import (
    NO_DESTINATION,
    STALE,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
)
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, DropMessages, ExpireMessages


def expire(channel: Channel, turn: Turn, wish: ExpireMessages) -> Verdict | None:
    """Void in another term. Locked messages stay: a transaction or a hold has been promised them."""
    if wish.term != channel.state.term:
        return Verdict(STALE)
    store = channel.state.directory.get(wish.destination)
    if store is None:
        return Verdict(NO_DESTINATION)
    numbers = _without_locked(channel, store, wish.ranges)
    if isinstance(store, Topic):
        gone = store.expire(numbers)
    else:
        gone = {store.id: store.expire(numbers)}
    if channel.primary is not None:
        channel.primary.delivery.expired(store.id, wish.ranges, gone)
    return None


def drop(channel: Channel, turn: Turn, wish: DropMessages) -> Verdict | None:
    """Void in another term. Locked messages stay."""
    if wish.term != channel.state.term:
        return Verdict(STALE)
    source = channel.state.directory.source(wish.destination, wish.subscription)
    if source is None:
        return Verdict(NO_DESTINATION)
    locked = channel.state.locks.get(source.id)
    gone = source.drop(wish.ranges if locked is None else wish.ranges.difference(locked))
    if channel.primary is not None:
        channel.primary.delivery.dropped(source.id, wish.ranges, gone)
    return None


def _without_locked(channel: Channel, store: Destination, numbers: Ranges) -> Ranges:
    locks = channel.state.locks
    if not locks:
        return numbers
    for source in store.sources if isinstance(store, Topic) else (store,):
        if source.id in locks:
            numbers = numbers.difference(locks[source.id])
    return numbers


RULES: Final = (
    CommandRule(CommandKind.EXPIRE, admit_any, ExpireMessages.decode, expire),
    CommandRule(CommandKind.DROP, admit_any, DropMessages.decode, drop),
)
