"""The commands of destinations: CREATE, DELETE and PLACE."""

from __future__ import annotations

from typing import Final

from antiphon.errors import DestinationError, InvalidName, ProtocolError
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
from antiphon.message_manager.state.destinations.directory import KIND_TOPIC, Destination
from antiphon.message_manager.state.destinations.settings import complete, difference, read_settings
from antiphon.wire.commands import CommandKind, CreateDestination, DeleteDestination, PlaceDestination


def create(channel: Channel, turn: Turn, wish: CreateDestination) -> Verdict | None:
    """An existing name with the wanted settings is answered with its id, as a duplicate.

    In the system channel, a name that lives elsewhere is answered with its channel.
    """
    directory = channel.state.directory
    try:
        name = directory.spelled(wish)
    except (ProtocolError, InvalidName) as error:
        return Verdict(REFUSED, text=error.text)
    known = directory.named(name)
    placed = channel.state.placements.get(name)
    if known is None and placed is not None and placed != channel.name:
        return Verdict(EXISTS, text=placed)
    try:
        if known is None:
            directory.create(turn.sequence, wish.kind, name, wish.settings)
            channel.state.holds.destination_made()
            return None
        other = _other_setting(known, wish)
    except DestinationError as error:
        return Verdict(REFUSED, text=f"{name}: {error.text}")
    if other is None:
        return Verdict(DUPLICATE, known.id)
    return Verdict(REFUSED, text=f"{name} exists, and {other}")


def _other_setting(there: Destination, wish: CreateDestination) -> str | None:
    """The first wanted setting that the destination has otherwise."""
    is_topic = wish.kind == KIND_TOPIC
    wanted = read_settings(wish.settings, is_topic=is_topic)
    return difference(wanted, complete(read_settings(there.settings, is_topic=is_topic), is_topic=is_topic))


def delete(channel: Channel, turn: Turn, wish: DeleteDestination) -> Verdict | None:
    state = channel.state
    gone = state.directory.get(wish.destination)
    if gone is None:
        return Verdict(NO_DESTINATION)
    state.directory.delete(gone, turn.sequence)
    state.holds.destination_deleted(gone.id, turn.sequence)
    state.placements.free(gone.name)
    if channel.primary is not None:
        channel.primary.delivery.destination_deleted(gone.id, gone.name)
    return None


def place(channel: Channel, turn: Turn, wish: PlaceDestination) -> Verdict | None:
    """A name that has a placement, or a destination in this channel, keeps it."""
    there = place_of(channel, wish.name)
    if there is not None:
        return Verdict(EXISTS, text=there)
    try:
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
    CommandRule(CommandKind.DELETE, admit_numbered, DeleteDestination.decode, delete),
    CommandRule(CommandKind.PLACE, admit_any, PlaceDestination.decode, place),
)
