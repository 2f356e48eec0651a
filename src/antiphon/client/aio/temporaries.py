"""Temporary destinations: made and deleted for a session, which they live with."""

from __future__ import annotations

from antiphon.client.aio.scope import SessionScope
from antiphon.client.core.outcomes import destination_error
from antiphon.errors import DestinationInUse, LocalError
from antiphon.names import TEMPORARY, DestinationKind, parse_destination, temporary_name
from antiphon.wire.commands import CreateTemporary, DeleteDestination

_KINDS: dict[DestinationKind, int] = {"queue": 1, "topic": 2}


async def make_temporary(scope: SessionScope, kind: DestinationKind) -> str:
    """Make a destination that lives with this session; returns its name."""
    place = await scope.open_destination(f"{kind}:{TEMPORARY}")
    made = await scope.order(place.channel, CreateTemporary(kind=_KINDS[kind]))
    error = destination_error(made, f"{kind}:{TEMPORARY}")
    if error is not None:
        raise error
    return temporary_name(kind, place.channel, made.sequence)


async def delete_temporary(scope: SessionScope, name: str) -> None:
    """Delete a temporary destination that no consumer of the connection has. Others have no consumers."""
    if not parse_destination(name).is_temporary:
        raise LocalError(f"{name} is not temporary: an administrator deletes it, `connection.admin().delete`")
    opened = await scope.open_destination(name, create=False)
    if scope.link.has_receiver(opened.channel, opened.destination):
        raise DestinationInUse(f"{name} has a consumer: close it first")
    deleted = await scope.order(opened.channel, DeleteDestination(destination=opened.destination))
    error = destination_error(deleted, name)
    if error is not None:
        raise error
