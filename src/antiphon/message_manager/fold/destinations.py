"""The commands of destinations: CREATE, CREATE_TEMPORARY, ALTER, PURGE, DELETE and PLACE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from antiphon.errors import DestinationError, InvalidName, ProtocolError
from antiphon.message_manager.fold.audits import note_acknowledged
from antiphon.message_manager.fold.families import create_family
from antiphon.message_manager.fold.turns import (
    DUPLICATE,
    EXISTS,
    NO_DESTINATION,
    REFUSED,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
    admit_numbered,
)
from antiphon.message_manager.state.destinations.directory import KIND_NAMES, KIND_TOPIC, Destination
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.settings import (
    DEAD_QUEUE_SETTINGS,
    LOG_TOPIC_SETTINGS,
    channels_of,
    check_together,
    complete,
    completed,
    difference,
    read_settings,
    spell,
)
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.temporaries import TEMPORARIES_MAX
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.names import (
    DEAD_QUEUE_NAME,
    LOG_TOPIC_NAME,
    parse_destination,
    read_channels,
    spans,
    spell_channels,
)
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    AlterDestination,
    CommandKind,
    CreateDestination,
    CreateTemporary,
    DeleteDestination,
    PlaceDestination,
    PurgeDestination,
)

_NO_NUMBERS: Final = Ranges()
_TOPIC: Final = "topic:"

_OF_THE_SYSTEM: Final = {DEAD_QUEUE_NAME: DEAD_QUEUE_SETTINGS, LOG_TOPIC_NAME: LOG_TOPIC_SETTINGS}
"""The destinations that every channel has a part of, with their settings."""

OF_ANOTHER: Final = "is temporary: only the connection that made it consumes or deletes it"


def create(channel: Channel, turn: Turn, wish: CreateDestination) -> Verdict | None:
    """An existing name with the wanted settings is answered with its id, as a duplicate.

    In the system channel, a name that lives elsewhere is answered with its channel.
    """
    directory = channel.state.directory
    try:
        name = directory.spelled(wish)
    except (ProtocolError, InvalidName) as error:
        return Verdict(REFUSED, text=error.text)
    if parse_destination(name).is_family:
        return create_family(channel, turn, name)
    of_system = _OF_THE_SYSTEM.get(name)
    if of_system is None and not parse_destination(name).can_be_chosen:
        return Verdict(REFUSED, text=f"{name}: names that begin with _ are the system's own")
    known = directory.named(name)
    placed = channel.state.placements.get(name)
    if known is None and placed is not None and channel.name not in read_channels(placed):
        return Verdict(EXISTS, text=placed)
    try:
        if known is None:
            _check_part(channel, wish)
            settings = wish.settings if of_system is None else of_system
            made = directory.create(turn.sequence, wish.kind, name, settings)
            channel.state.holds.destination_made(made)
            if channel.primary is not None and name == DEAD_QUEUE_NAME:
                channel.primary.burials.settled()
            return None
        other = _other_setting(known, wish)
    except DestinationError as error:
        return Verdict(REFUSED, text=f"{name}: {error.text}")
    if other is None:
        return Verdict(DUPLICATE, known.id)
    return Verdict(REFUSED, text=f"{name} exists, and {other}")


def _check_part(channel: Channel, wish: CreateDestination) -> None:
    """Raises DestinationError if this is a part of a destination that has none in this channel."""
    channels = channels_of(completed(wish.settings, is_topic=wish.kind == KIND_TOPIC))
    if channels and channel.name not in channels:
        raise DestinationError(f"channel {channel.name} is none of its channels {spell_channels(channels)}")


def _other_setting(there: Destination, wish: CreateDestination) -> str | None:
    """The first wanted setting that the destination has otherwise."""
    is_topic = wish.kind == KIND_TOPIC
    wanted = read_settings(wish.settings, is_topic=is_topic)
    return difference(wanted, complete(read_settings(there.settings, is_topic=is_topic), is_topic=is_topic))


def create_temporary(channel: Channel, turn: Turn, wish: CreateTemporary) -> Verdict | None:
    """The name follows from the channel and the number, so that its place need not be looked up."""
    directory, row = channel.state.directory, turn.row
    if row is None:
        return Verdict(REFUSED, text="only a session has temporary destinations")
    if wish.kind not in KIND_NAMES:
        return Verdict(REFUSED, text=f"there is no destination of kind {wish.kind}")
    if len(directory.temporaries.of_session(row.id)) >= TEMPORARIES_MAX:
        text = f"a session has at most {TEMPORARIES_MAX:,} temporary destinations: delete some"
        return Verdict(REFUSED, text=text)
    made = directory.create_temporary(turn.sequence, wish.kind, channel.name, row)
    channel.state.holds.destination_made(made)
    return None


def delete(channel: Channel, turn: Turn, wish: DeleteDestination) -> Verdict | None:
    gone = channel.state.directory.get(wish.destination)
    if gone is None:
        return Verdict(NO_DESTINATION)
    if gone.is_reserved:
        return Verdict(
            REFUSED, text=f"{gone.name} belongs to the system, and is not deleted; it can be purged"
        )
    if (refusal := _of_another(channel, turn, gone)) is not None:
        return refusal
    _remove(channel, gone, turn.sequence, f"{gone.name} was deleted")
    return None


def _of_another(channel: Channel, turn: Turn, there: Destination) -> Verdict | None:
    """The refusal, if this is a temporary destination of another connection."""
    if turn.row is None or channel.state.directory.temporaries.may_use(there.id, turn.row):
        return None
    return Verdict(REFUSED, text=f"{there.name} {OF_ANOTHER}")


def _remove(channel: Channel, gone: Destination, number: int, why: str) -> None:
    """Remove a destination by command `number`; its consumers are told why."""
    state = channel.state
    lost = state.directory.delete(gone, number)
    state.holds.destination_deleted(gone.id, number)
    state.known_ids.deleted(gone.id)
    if not spans(state.placements.get(gone.name)):
        # The other parts of a spanning destination may still be there: its name keeps its channels.
        state.placements.free(gone.name)
    if channel.primary is not None:
        channel.primary.delivery.destination_deleted(gone.id, why)
        for subscription, numbers in lost.items():
            channel.primary.delivery.passed_over(subscription, numbers)


def remove_all(channel: Channel, session: int, number: int) -> None:
    """Remove the temporary destinations of a session that ends by command `number` (TMP1)."""
    directory = channel.state.directory
    for id in directory.temporaries.of_session(session):
        gone = directory.get(id)
        assert gone is not None, "a temporary destination is gone, and its owner is not"
        _remove(channel, gone, number, f"{gone.name} went with the session that made it")


def alter(channel: Channel, turn: Turn, wish: AlterDestination) -> Verdict | None:
    """Change settings of a destination; settings that it has already are fine."""
    there = channel.state.directory.get(wish.destination)
    if there is None:
        return Verdict(NO_DESTINATION)
    if there.is_reserved and there.name != LOG_TOPIC_NAME:
        return Verdict(REFUSED, text=f"{there.name} belongs to the system, and its settings stay as they are")
    if (refusal := _of_another(channel, turn, there)) is not None:
        return refusal
    is_topic = isinstance(there, Topic)
    try:
        wanted = read_settings(wish.settings, is_topic=is_topic)
    except DestinationError as error:
        return Verdict(REFUSED, text=f"{there.name}: {error.text}")
    before = complete(read_settings(there.settings, is_topic=is_topic), is_topic=is_topic)
    if wanted.get("channels", before.get("channels")) != before.get("channels"):
        return Verdict(REFUSED, text=f"{there.name} keeps its channels")
    try:
        check_together(before | wanted)
    except DestinationError as error:
        return Verdict(REFUSED, text=f"{there.name}: {error.text}")
    there.alter(spell(before | wanted))
    channel.state.known_ids.altered(there)
    if channel.primary is not None:
        channel.primary.delivery.altered(there.id)
        channel.primary.burials.look_at_all(there)
        # Messages may be too old by now.
        channel.primary.proposals.due_ms = channel.state.due_ms()
    return None


def purge(channel: Channel, turn: Turn, wish: PurgeDestination) -> Verdict | None:
    """Drop all messages that no transaction and no consuming hold has locked."""
    there = channel.state.directory.get(wish.destination)
    if there is None:
        return Verdict(NO_DESTINATION)
    if (refusal := _of_another(channel, turn, there)) is not None:
        return refusal
    locks, primary = channel.state.locks, channel.primary
    sources: Iterable[Queue | Subscription] = there.sources if isinstance(there, Topic) else [there]
    everything = there.live.copy()
    for source in sources:
        free = everything.difference(locks.get(source.id, _NO_NUMBERS))
        note_acknowledged(channel, turn, source, free)
        purged = source.purge(free)
        if purged and primary is not None:
            primary.delivery.acknowledged(source.id, purged, turn.header.session)
    if isinstance(there, Topic):
        there.drop_all()
    return None


def place(channel: Channel, turn: Turn, wish: PlaceDestination) -> Verdict | None:
    """A name that has a placement, or a destination in this channel, keeps it."""
    there = place_of(channel, wish.name)
    if there is not None:
        return Verdict(EXISTS, text=there)
    try:
        # Throws if the parts could not be made like this.
        read_settings(wish.settings, is_topic=wish.name.startswith(_TOPIC))
        channel.state.placements.place(wish.name, wish.channel)
    except (ProtocolError, InvalidName, DestinationError) as error:
        return Verdict(REFUSED, text=error.text)
    if channel.primary is not None:
        channel.primary.placed.append((wish.name, wish.channel))
    return None


def place_of(channel: Channel, name: str) -> str | None:
    """The channel in which a destination of this name lives, or is to live."""
    is_here = channel.state.directory.named(name) is not None
    return channel.state.placements.get(name) or (channel.name if is_here else None)


RULES: Final = (
    CommandRule(CommandKind.CREATE, admit_numbered, CreateDestination.decode, create),
    CommandRule(CommandKind.CREATE_TEMPORARY, admit_numbered, CreateTemporary.decode, create_temporary),
    CommandRule(CommandKind.DELETE, admit_numbered, DeleteDestination.decode, delete),
    CommandRule(CommandKind.ALTER, admit_numbered, AlterDestination.decode, alter),
    CommandRule(CommandKind.PURGE, admit_numbered, PurgeDestination.decode, purge),
    CommandRule(CommandKind.PLACE, admit_any, PlaceDestination.decode, place),
)
