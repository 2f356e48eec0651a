"""The commands of subscriptions: SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

from typing import Final

from antiphon.errors import InvalidName
from antiphon.message_manager.fold.turns import (
    EXISTS,
    NO_DESTINATION,
    REFUSED,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_numbered,
)
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import Session
from antiphon.names import check_subscription_name
from antiphon.wire.commands import CommandKind, StartKind, Subscribe, Unsubscribe

SUBSCRIPTIONS_MAX: Final = 10_000
"""Subscriptions of one topic: each of them is asked before a message is trimmed."""


def subscribe(channel: Channel, turn: Turn, wish: Subscribe) -> Verdict | None:
    """A durable subscription that exists is answered with its id."""
    directory = channel.state.directory
    try:
        if wish.durable:
            check_subscription_name(wish.name)
    except InvalidName as error:
        return Verdict(REFUSED, text=error.text)
    topic = directory.get(wish.destination)
    if topic is None:
        return Verdict(NO_DESTINATION)
    known = directory.durable(wish.client_id, wish.name) if wish.durable else None
    refusal = _why_not_subscribe(wish, topic, known, turn)
    if refusal is not None:
        return Verdict(REFUSED, text=refusal)
    if known is not None:
        return Verdict(EXISTS, known.id)
    assert isinstance(topic, Topic), "only a topic is subscribed to"
    directory.subscribe(
        Subscription(
            id=turn.sequence,
            topic=topic,
            session=0 if wish.durable else turn.header.session,
            subscriber=wish.name,
            client_id=wish.client_id,
            floor=_start_floor(wish, turn.sequence),
        )
    )
    return None


def _why_not_subscribe(
    wish: Subscribe, topic: Destination, known: Subscription | None, turn: Turn
) -> str | None:
    if not isinstance(topic, Topic):
        return f"{topic.name} is a queue; only topics have subscriptions"
    if turn.row is None:
        return "only a session subscribes"
    if wish.client_id != turn.row.client_id:
        return "the session belongs to another client id"
    if wish.shared:
        return "shared subscriptions are not known here"
    if wish.name and not wish.durable:
        return "only a durable subscription has a name"
    if known is not None and known.topic is not topic:
        return f"subscription {known.subscriber} is one to {known.topic.name}; unsubscribe it first"
    if known is None and len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
        return f"{topic.name} has {SUBSCRIPTIONS_MAX:,} subscriptions already"
    return None


def _start_floor(wish: Subscribe, sequence: int) -> int:
    match wish.start:
        case StartKind.EARLIEST:
            return 0
        case StartKind.NUMBER:
            return max(0, wish.number - 1)
    return sequence


def unsubscribe(channel: Channel, turn: Turn, wish: Unsubscribe) -> Verdict | None:
    subscription = channel.state.directory.subscription(wish.subscription)
    if subscription is None or not _may_unsubscribe(turn.row, subscription):
        return Verdict(REFUSED, text=f"there is no subscription {wish.subscription} here")
    end_subscription(channel, subscription)
    return None


def _may_unsubscribe(row: Session | None, subscription: Subscription) -> bool:
    """A session may end its own subscriptions and the durable ones of its client id; the node may end all."""
    if row is None:
        return True
    if subscription.is_durable:
        return subscription.client_id == row.client_id
    return subscription.session == row.id


def end_subscription(channel: Channel, subscription: Subscription) -> None:
    channel.state.directory.unsubscribe(subscription)
    if channel.primary is not None:
        channel.primary.delivery.subscription_ended(subscription)


RULES: Final = (
    CommandRule(CommandKind.SUBSCRIBE, admit_numbered, Subscribe.decode, subscribe),
    CommandRule(CommandKind.UNSUBSCRIBE, admit_numbered, Unsubscribe.decode, unsubscribe),
)
