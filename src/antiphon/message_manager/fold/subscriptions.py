"""The commands of subscriptions: SUBSCRIBE, UNSUBSCRIBE and SKIP.

A selector is a text here: the primary evaluates it, and proposes by SKIP which messages it does not want.
"""

from __future__ import annotations

from typing import Final

from antiphon.errors import InvalidName
from antiphon.message_manager.fold.destinations import OF_ANOTHER
from antiphon.message_manager.fold.turns import (
    DIFFERS,
    EXISTS,
    NO_DESTINATION,
    REFUSED,
    STALE,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
    admit_numbered,
)
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.family import Family
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.names import check_subscription_name, shown_name
from antiphon.wire.commands import CommandKind, SkipMessages, StartKind, Subscribe, Unsubscribe

SUBSCRIPTIONS_MAX: Final = 10_000
"""Subscriptions of one topic: each of them is asked before a message is trimmed."""


def subscribe(channel: Channel, turn: Turn, wish: Subscribe) -> Verdict | None:
    """A subscription of that name is answered with its id. The session joins one that is not durable."""
    directory = channel.state.directory
    topic = directory.consumable(wish.destination)
    if topic is None:
        return Verdict(NO_DESTINATION)
    known = directory.subscription_named(wish.client_id, wish.name, is_durable=wish.durable)
    refusal = _why_not_subscribe(wish, topic, known, turn) or _why_not_temporary(channel, wish, topic, turn)
    if refusal is not None:
        return Verdict(REFUSED, text=refusal)
    session = turn.header.session
    if known is not None:
        difference = _difference(wish, known)
        if difference is not None:
            return Verdict(DIFFERS, known.id, f"subscription {known.subscriber} {difference}")
        if not known.is_durable:
            directory.join(known, session)
        return Verdict(EXISTS, known.id)
    assert not isinstance(topic, Queue), "a queue is not subscribed to"
    subscription = Subscription(
        id=turn.sequence,
        topic=topic,
        subscriber=wish.name,
        client_id=wish.client_id,
        floor=_start_floor(wish, turn.sequence),
        is_durable=wish.durable,
        is_shared=wish.shared,
        selector=wish.selector,
        no_local=wish.no_local,
        connection=0 if turn.row is None or wish.durable else turn.row.connection,
    )
    directory.subscribe(subscription)
    if not wish.durable:
        directory.join(subscription, session)
    if channel.primary is not None:
        channel.primary.delivery.skim(subscription)
    return None


def _why_not_subscribe(
    wish: Subscribe, topic: Destination | Family, known: Subscription | None, turn: Turn
) -> str | None:
    if isinstance(topic, Queue):
        return f"{topic.name} is a queue; only topics have subscriptions"
    if turn.row is None:
        return "only a session subscribes"
    if wish.client_id != turn.row.client_id:
        return "the session belongs to another client id"
    if wish.durable or wish.shared:
        try:
            check_subscription_name(wish.name)
        except InvalidName as error:
            return error.text
    elif wish.name:
        return "only a durable or shared subscription has a name"
    if wish.shared and wish.no_local:
        return "a shared subscription has the messages of all connections"
    if known is not None and known.is_shared != wish.shared:
        return f"subscription {known.subscriber} is {'shared' if known.is_shared else 'not shared'}"
    if known is None and len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
        return f"{shown_name(topic.name)} has {SUBSCRIPTIONS_MAX:,} subscriptions already"
    return None


def _why_not_temporary(
    channel: Channel, wish: Subscribe, topic: Destination | Family, turn: Turn
) -> str | None:
    """A temporary topic is its connection's, and has no subscription that outlives a connection."""
    temporaries = channel.state.directory.temporaries
    if topic.id not in temporaries or turn.row is None:
        return None
    if not temporaries.may_use(topic.id, turn.row):
        return f"{topic.name} {OF_ANOTHER}"
    return f"{topic.name} is temporary: no subscription to it is durable" if wish.durable else None


def _difference(wish: Subscribe, known: Subscription) -> str | None:
    """What is other in a subscription of that name."""
    if known.destination != wish.destination:
        return f"is one to {shown_name(known.topic.name)}"
    if known.selector != wish.selector:
        return "has another selector"
    if known.no_local != wish.no_local:
        return f"{'leaves out' if known.no_local else 'has'} what its own client id publishes"
    return None


def _start_floor(wish: Subscribe, sequence: int) -> int:
    match wish.start:
        case StartKind.EARLIEST:
            return 0
        case StartKind.NUMBER:
            return max(0, wish.number - 1)
    return sequence


def unsubscribe(channel: Channel, turn: Turn, wish: Unsubscribe) -> Verdict | None:
    """A session ends durable subscriptions of its client id, and leaves others; the node may end all."""
    subscription, row = channel.state.directory.subscription(wish.subscription), turn.row
    if subscription is None or (row is not None and not subscription.belongs_to(row.id, row.client_id)):
        return Verdict(REFUSED, text=f"there is no subscription {wish.subscription} here")
    if row is not None and subscription.is_durable and subscription.id in channel.state.locks:
        return Verdict(REFUSED, text=f"a transaction has messages of {subscription.name}")
    if row is not None and not subscription.is_durable:
        has_left = channel.state.directory.leave(subscription, row.id)
        if subscription.members:
            if has_left and channel.primary is not None:
                channel.primary.delivery.left(subscription, row.id)
            return None
    end_subscription(channel, subscription)
    return None


def leave_all(channel: Channel, session: int) -> None:
    """End what a session's end ends: the subscriptions in which no other session has consumers (SBS4)."""
    for subscription in channel.state.directory.leave_all(session):
        if not subscription.members:
            end_subscription(channel, subscription)


def end_subscription(channel: Channel, subscription: Subscription) -> None:
    channel.state.directory.unsubscribe(subscription)
    if channel.primary is not None:
        channel.primary.delivery.subscription_ended(subscription)
        if isinstance(subscription.topic, Family) and not subscription.topic.subscriptions:
            # A family without a subscription ends at a mark of log time.
            channel.primary.proposals.due_ms = channel.state.due_ms()


def skip(channel: Channel, turn: Turn, wish: SkipMessages) -> Verdict | None:
    """Void in another term, of which the primary may have given the messages to a consumer."""
    if wish.term != channel.state.term:
        return Verdict(STALE)
    subscription = channel.state.directory.subscription(wish.subscription)
    if subscription is None:
        return Verdict(NO_DESTINATION)
    locked = channel.state.locks.get(subscription.id)
    skipped = subscription.skip(wish.ranges.difference(locked) if locked else wish.ranges)
    if channel.primary is not None:
        channel.primary.delivery.skipped(subscription.id, skipped, wish.ranges)
    return None


RULES: Final = (
    CommandRule(CommandKind.SUBSCRIBE, admit_numbered, Subscribe.decode, subscribe),
    CommandRule(CommandKind.UNSUBSCRIBE, admit_numbered, Unsubscribe.decode, unsubscribe),
    CommandRule(CommandKind.SKIP, admit_any, SkipMessages.decode, skip),
)
