"""Awaited: acts of a client manager that wait until a channel has come far enough, as data.

A lane keeps an `Awaited` until everything received before is confirmed, or until the channel has said whether
it knows the session. `ClientManager` executes it, in one `match`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from antiphon.bus.messages import SessionDetached
from antiphon.wire.frames import DestinationOpened, SubscriptionFound, TransactionAsk

if TYPE_CHECKING:
    from antiphon.client_manager.coordination import CommitWaiter, Transaction
    from antiphon.client_manager.destination_service import Waiter
    from antiphon.client_manager.session import Consumer, Session, SessionLane


# -- when everything received before is confirmed ----------------------------------------------------


class Registration(NamedTuple):
    """Register a consumer of a session that came back, if the consumer still waits."""

    consumer: Consumer


class Detachment(NamedTuple):
    """Detach a consumer, and answer the request that wants it closed, if there is one."""

    consumer: Consumer
    seen_through: int
    request: int | None
    is_lost: bool


class LaneClosing(NamedTuple):
    """Close the session in the lane's channel, as a request wants."""

    lane: SessionLane
    request: int


class LaneClosed(NamedTuple):
    """The channel has closed the session; the last channel answers the request."""

    lane: SessionLane
    request: int


class LaneDetached(NamedTuple):
    """The client of the lane's session is gone: tell the primary."""

    lane: SessionLane


class HomeRollback(NamedTuple):
    """Roll a transaction back in its home channel."""

    transaction: Transaction


# -- when the channel has said whether it knows the session -------------------------------------------


class SessionOpening(NamedTuple):
    """Tell the client the outcome of the opening of a session; if a channel refuses the session later, this
    waits for the outcomes of the commands received for that channel."""

    session: Session


class RepeatedAbsence(NamedTuple):
    """Tell the primary again that a former generation has no client, if the next one is refused."""

    lane: SessionLane
    told: SessionDetached


class KnownAnswer(NamedTuple):
    """Answer a request whose client will send commands to the lane's channel."""

    lane: SessionLane
    waiter: Waiter
    answer: DestinationOpened | SubscriptionFound


class Preparation(NamedTuple):
    """Have a transaction prepared."""

    transaction: Transaction


class Inquiry(NamedTuple):
    """Find out the outcome of a commit."""

    lane: SessionLane
    waiter: CommitWaiter
    wish: TransactionAsk


Awaited: TypeAlias = (
    Registration
    | Detachment
    | LaneClosing
    | LaneClosed
    | LaneDetached
    | HomeRollback
    | SessionOpening
    | RepeatedAbsence
    | KnownAnswer
    | Preparation
    | Inquiry
)
