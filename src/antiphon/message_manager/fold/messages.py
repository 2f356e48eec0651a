"""The commands of messages: PUBLISH, ACK and RETURN."""

from __future__ import annotations

import struct
from typing import Final

from antiphon.batch.layout import RULES_AT
from antiphon.errors import ProtocolError
from antiphon.message_manager.fold.audits import note_acknowledged
from antiphon.message_manager.fold.families import pass_over_own, tell_families
from antiphon.message_manager.fold.turns import (
    ACK_LOST,
    NO_DESTINATION,
    REFUSED,
    Channel,
    CommandRule,
    Partly,
    Turn,
    Verdict,
    admit_numbered,
)
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.state.destinations.directory import Destination
from antiphon.message_manager.state.destinations.index import StoredBatch
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.rules import DeliveryRules
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.known_ids import row_ids
from antiphon.message_manager.state.sessions import Session
from antiphon.message_manager.state.uncommitted import Held
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    PUBLISH_BATCH_OFFSET,
    CommandKind,
    Outcome,
    Publish,
    Return,
)

_ACKNOWLEDGE_HEAD = struct.Struct("<QQ")


def read_acknowledge(body: memoryview) -> tuple[int, int, Ranges]:
    """`Acknowledge.decode` in a third of the time: there is an ACK for every few publishes."""
    if len(body) < _ACKNOWLEDGE_HEAD.size:
        raise ProtocolError(f"an acknowledgement of {len(body)} bytes")
    destination, subscription = _ACKNOWLEDGE_HEAD.unpack_from(body)
    return destination, subscription, Ranges.decode(body[_ACKNOWLEDGE_HEAD.size :])


def not_for_clients(name: str) -> str:
    return f"{name} belongs to the system, and clients do not publish to it"


def publish(channel: Channel, turn: Turn, wish: Publish) -> Verdict | Partly | None:
    destination, _, _, batch = wish
    store = channel.state.directory.get(destination)
    first, skip, count = turn.sequence, turn.skip, turn.header.count
    if store is None:
        return Verdict(NO_DESTINATION)
    if store.is_reserved:
        return Verdict(REFUSED, text=not_for_clients(store.name))
    if not looks_like_batch(batch, count):
        return Verdict(REFUSED, text=f"this is no batch of {count} messages")
    _, _, digest, location = turn.envelope
    offset, size = turn.offset + PUBLISH_BATCH_OFFSET, len(batch)
    if not batch[RULES_AT]:
        store.publish(first, count, skip, location, offset, size, digest)
        if channel.primary is not None:
            channel.primary.delivery.published(destination, first + skip, first + count)
        if type(store) is Topic:
            _pass_on(channel, store, turn.row, first + skip, first + count)
        return None
    try:
        rules, ids = DeliveryRules.of(batch), row_ids(batch)
    except ProtocolError as error:
        return Verdict(REFUSED, text=error.text)
    held = Held(destination, count, digest, rules, ids)
    place = StoredBatch(first, count, location, offset, size)
    known = make_visible(channel, store, held, place, turn.row, first, skip)
    return Partly(known) if known else None


def make_visible(
    channel: Channel,
    store: Destination,
    held: Held,
    place: StoredBatch,
    publisher: Session | None,
    first: int,
    skip: int = 0,
) -> tuple[Outcome, ...]:
    """Store the rows of a batch under the numbers from `first` on, but for the first `skip`.

    Returns the outcomes of rows that are not stored because the destination knows their ids.
    """
    _, count, origin, rules, ids = held
    end, primary = first + count, channel.primary
    outcomes = channel.state.known_ids.sift(store, ids, first, skip) if ids else ()
    known = Ranges([(one.first, one.first + one.count) for one in outcomes]) if outcomes else None
    store.publish(first, count, skip, place.location, place.offset, place.length, origin, rules, known)
    if primary is not None:
        if rules is not None:
            primary.delivery.note_rules(store.id, first + skip, end)
        if known:
            for start, stop in Ranges([(first + skip, end)]).difference(known):
                primary.delivery.published(store.id, start, stop)
        else:
            primary.delivery.published(store.id, first + skip, end)
    if type(store) is Topic:
        _pass_on(channel, store, publisher, first + skip, end)
    return outcomes


def _pass_on(channel: Channel, topic: Topic, publisher: Session | None, start: int, stop: int) -> None:
    """Tell of new messages to the families of their topic, and to subscriptions that leave out their own."""
    if topic.no_local and publisher is not None:
        pass_over_own(channel, topic, publisher, start, stop)
    if topic.families or topic.undecided.families:
        tell_families(channel, topic, publisher, start, stop)


def acknowledge(channel: Channel, turn: Turn, wish: tuple[int, int, Ranges]) -> Verdict | None:
    destination, subscription, numbers = wish
    state, primary, session = channel.state, channel.primary, turn.header.session
    source = state.directory.source(destination, subscription)
    if source is None:
        return _why_missing(channel, destination, subscription)
    locked = state.locks.get(source.id) if state.locks else None
    # Messages that a prepared transaction or a consuming hold has locked are lost to every other session.
    wanted = numbers if locked is None else numbers.difference(locked)
    if state.holds.is_audited:
        note_acknowledged(channel, turn, source, wanted, is_named=locked is None)
    removed = source.acknowledge(wanted)
    if removed and primary is not None:
        primary.delivery.acknowledged(source.id, removed, session)
    if locked is not None and primary is not None:
        # The consumer is done with the message; after a rollback another gets it.
        primary.delivery.let_go(source.id, numbers.intersection(locked), session)
    lost = numbers.count - removed.count
    if lost:
        text = f"{lost} of {numbers.count} were no longer there"
        return Verdict(ACK_LOST, numbers.difference(removed).first, text)
    return None


def give_back(channel: Channel, turn: Turn, wish: Return) -> Verdict | None:
    source = channel.state.directory.source(wish.destination, wish.subscription)
    if source is None:
        return _why_missing(channel, wish.destination, wish.subscription)
    if wish.rejected:
        return _reject(channel, turn, source, wish.ranges)
    back = source.return_(wish.ranges, is_counted=wish.counted)
    if back and channel.primary is not None:
        session = turn.header.session
        channel.primary.delivery.returned(source.id, back, session, is_counted=wish.counted)
        channel.primary.burials.look(source)
    return None


def _reject(channel: Channel, turn: Turn, source: Queue | Subscription, numbers: Ranges) -> Verdict | None:
    """Mark messages as dead; the primary has them moved. A dead message is not rejected once more."""
    if isinstance(source, Queue) and source.is_reserved:
        return Verdict(REFUSED, text=f"{source.name} has dead messages: acknowledge, move or retry them")
    rejected = source.reject(numbers)
    if rejected and channel.primary is not None:
        channel.primary.delivery.returned(source.id, rejected, turn.header.session)
        channel.primary.burials.look(source)
    lost = numbers.count - rejected.count
    if lost:
        text = f"{lost} of {numbers.count} were no longer there"
        return Verdict(ACK_LOST, numbers.difference(rejected).first, text)
    return None


def _why_missing(channel: Channel, destination: int, subscription: int) -> Verdict:
    there = channel.state.directory.consumable(destination)
    if there is None:
        return Verdict(NO_DESTINATION)
    if isinstance(there, Queue):
        return Verdict(REFUSED, text=f"{there.name} is a queue and has no subscriptions")
    if not subscription:
        return Verdict(REFUSED, text=f"{there.name} is a topic: its subscriptions have messages")
    return Verdict(REFUSED, text=f"{there.name} has no subscription {subscription}")


RULES: Final = (
    CommandRule(CommandKind.PUBLISH, admit_numbered, Publish.decode, publish),
    CommandRule(CommandKind.ACK, admit_numbered, read_acknowledge, acknowledge),
    CommandRule(CommandKind.RETURN, admit_numbered, Return.decode, give_back),
)
