"""The commands of client ids, ordered in the system channel: CLAIM_ID, RELEASE_ID and EXPIRE_ID."""

from __future__ import annotations

from typing import Final

from antiphon.message_manager.fold.turns import (
    EXISTS,
    STALE,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
)
from antiphon.message_manager.state.client_ids import Claim
from antiphon.message_manager.state.sessions import NOBODY
from antiphon.wire.commands import ClaimClientId, CommandKind, ExpireClientId, ReleaseClientId


def claim(channel: Channel, turn: Turn, wish: ClaimClientId) -> Verdict | None:
    """Of two connections the first in the order has the client id; a connection that comes back keeps it."""
    ids, owner = channel.state.client_ids, turn.envelope.owner
    known = ids.get(wish.client_id)
    if known is None:
        ids.add(Claim(wish.client_id, wish.connection, wish.generation, owner))
        return None
    if known.connection != wish.connection:
        text = f"another connection has the client id {wish.client_id!r}"
        return Verdict(EXISTS, int(known.is_lost), text)
    if wish.generation < known.generation:
        return Verdict(STALE)
    known.generation, known.owner = wish.generation, owner
    if channel.primary is not None:
        channel.primary.proposals.client_id_kept(known)
    return None


def release(channel: Channel, turn: Turn, wish: ReleaseClientId) -> Verdict | None:
    known = _current(channel, wish)
    if known is None:
        return Verdict(STALE)
    if not wish.is_lost:
        _free(channel, known)
        return None
    known.owner = NOBODY
    if channel.primary is not None:
        channel.primary.proposals.client_id_lost(known)
    return None


def expire(channel: Channel, turn: Turn, wish: ExpireClientId) -> Verdict | None:
    """Void unless the proposer is the primary and the connection has not come back since."""
    known = _current(channel, wish)
    if known is None or not known.is_lost or wish.term != channel.state.term:
        return Verdict(STALE)
    _free(channel, known)
    return None


def _current(channel: Channel, wish: ReleaseClientId | ExpireClientId) -> Claim | None:
    """The claim of this connection in this generation, if it is the last one."""
    known = channel.state.client_ids.get(wish.client_id)
    is_same = known is not None and (known.connection, known.generation) == (wish.connection, wish.generation)
    return known if is_same else None


def _free(channel: Channel, known: Claim) -> None:
    channel.state.client_ids.free(known.client_id)
    if channel.primary is not None:
        channel.primary.proposals.client_id_kept(known)


RULES: Final = (
    CommandRule(CommandKind.CLAIM_ID, admit_any, ClaimClientId.decode, claim),
    CommandRule(CommandKind.RELEASE_ID, admit_any, ReleaseClientId.decode, release),
    CommandRule(CommandKind.EXPIRE_ID, admit_any, ExpireClientId.decode, expire),
)
