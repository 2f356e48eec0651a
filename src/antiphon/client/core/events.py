"""What the client's core reports to its face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from antiphon.errors import AccessDenied, AntiphonError, NotConnected, RemoteError, error_from_code
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import (
    Answer,
    ConsumerResumed,
    DestinationOpened,
    Done,
    Goodbye,
    RangePage,
    RangeTold,
    SessionOpened,
    SubscriptionFound,
    TransactionDecided,
    Welcome,
)

Reply: TypeAlias = (
    SessionOpened
    | DestinationOpened
    | SubscriptionFound
    | ConsumerResumed
    | TransactionDecided
    | RangeTold
    | RangePage
    | Done
    | Answer
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcomed:
    """The server has let us in: sessions may be opened."""

    welcome: Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswered:
    """A request was carried out."""

    request: int
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A request was not carried out."""

    request: int
    error: AntiphonError


class Settled(NamedTuple):
    """All outcomes of one command are known; `tag` is what it was sent with."""

    tag: object
    outcomes: list[ConfirmItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A consumer has messages."""

    session: int
    consumer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditReturned:
    """A consumer has been drained: what it was sent has arrived."""

    session: int
    consumer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStopped:
    """The server has closed a consumer."""

    session: int
    consumer: int
    error: AntiphonError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnded:
    """A session cannot go on. Its consumers have ended, and `tags` will get no outcome any more."""

    session: int
    error: AntiphonError
    tags: list[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A publication has no outcome yet, and its time is over."""

    publication: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The connection is over: the server said so, or has been silent for too long.

    Another one would not go better if `is_final`.
    """

    error: AntiphonError
    is_final: bool = False
    is_silent: bool = False


Event: TypeAlias = (
    Welcomed
    | RequestAnswered
    | Refused
    | Settled
    | Arrived
    | CreditReturned
    | ConsumerStopped
    | SessionEnded
    | Expired
    | Ended
)


def parting(frame: Goodbye) -> Ended:
    """What the server's last word means."""
    if not frame.code:
        return Ended(error=NotConnected(frame.text or "the server closed the connection"))
    error = error_from_code(frame.code, frame.text)
    # Whoever is told that it broke the protocol, or that it may not be here, would be told so again.
    return Ended(error=error, is_final=isinstance(error, RemoteError | AccessDenied))
