"""The commands of families: the CREATE of a name with a pattern, and MATCH.

A pattern is a text here. The primary evaluates names, and proposes by MATCH which topics belong to a family.
"""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.turns import (
    DUPLICATE,
    NO_DESTINATION,
    REFUSED,
    STALE,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
)
from antiphon.message_manager.state.destinations.family import FAMILIES_MAX, Family
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import Session
from antiphon.names import shown_name
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, MatchTopics


def create_family(channel: Channel, turn: Turn, name: str) -> Verdict | None:
    """A family that exists is answered with its id, as a duplicate."""
    directory = channel.state.directory
    known = directory.family_named(name)
    if known is not None:
        return Verdict(DUPLICATE, known.id)
    if directory.family_count >= FAMILIES_MAX:
        text = f"{shown_name(name)}: there are {FAMILIES_MAX:,} patterns with subscriptions already"
        return Verdict(REFUSED, text=text)
    directory.create_family(turn.sequence, name)
    if channel.primary is not None:
        # A family to which nobody subscribes ends at a mark of log time.
        channel.primary.proposals.due_ms = channel.state.due_ms()
    return None


def match(channel: Channel, turn: Turn, wish: MatchTopics) -> Verdict | None:
    """Void in another term, or if the family was decided otherwise meanwhile."""
    state, primary = channel.state, channel.primary
    if wish.term != state.term:
        return Verdict(STALE)
    family = state.directory.family(wish.family)
    if primary is not None:
        primary.matching.settled(wish.family)
    if family is None:
        return Verdict(NO_DESTINATION)
    if wish.after != family.decided_through or wish.through <= wish.after:
        return Verdict(STALE)
    back = state.directory.decide(family, wish.through, wish.topics)
    if primary is not None:
        for subscription, numbers in back.items():
            primary.delivery.regained(subscription, numbers)
    return None


def tell_families(channel: Channel, topic: Topic, publisher: Session | None, start: int, stop: int) -> None:
    """Tell of new messages of a topic, numbers start ... stop-1, to its families."""
    if publisher is not None:
        for family in topic.undecided.of(topic):
            family.publishes_itself(publisher, start, stop)
    for family in topic.families:
        if channel.primary is not None:
            for first, end in family.live.clip(start, stop):
                channel.primary.delivery.published(family.id, first, end)
        if family.no_local and publisher is not None:
            pass_over_own(channel, family, publisher, start, stop)


def pass_over_own(
    channel: Channel, origin: Topic | Family, publisher: Session, start: int, stop: int
) -> None:
    """Take new messages from the subscriptions that leave out those of their own."""
    for subscription in origin.no_local.values():
        if subscription.is_own(publisher):
            skipped = subscription.skip(Ranges([(start, stop)]))
            if channel.primary is not None:
                channel.primary.delivery.passed_over(subscription.id, skipped)


RULES: Final = (CommandRule(CommandKind.MATCH, admit_any, MatchTopics.decode, match),)
