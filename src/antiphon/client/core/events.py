"""Events of the client's core for its face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from antiphon.errors import (
    AccessDenied,
    AntiphonError,
    ClientIdInUse,
    NotConnected,
    RemoteError,
    error_from_code,
)
from antiphon.wire.commands import ConfirmItem
from antiphon.wire.frames import (
    Answer,
    ConsumerResumed,
    DestinationOpened,
    DestinationsCreated,
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
    | DestinationsCreated
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
    """The server has admitted the client: sessions may be opened."""

    welcome: Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAnswered:
    request: int
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    request: int
    error: AntiphonError


class Settled(NamedTuple):
    """All outcomes of one command are known, the one sent with `tag`.

    Or the server has taken its non-persistent messages: then the item is TAKEN, and the outcomes follow.
    """

    tag: object
    outcomes: list[ConfirmItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A consumer has messages."""

    session: int
    consumer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditReturned:
    """A consumer has been drained: everything it was sent has arrived."""

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
class Unheard:
    """A failure that no call of the application raises."""

    error: AntiphonError


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """A publication has no outcome yet, and its time is over."""

    publication: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The connection is over: the server said so, or has been silent for too long.

    If `is_final`, another connection would end alike.
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
    | Unheard
    | Expired
    | Ended
)


def parting(frame: Goodbye) -> Ended:
    """The event of a server's Goodbye."""
    if not frame.code:
        return Ended(error=NotConnected(frame.text or "the server closed the connection"))
    error = error_from_code(frame.code, frame.text)
    # After a breach of the protocol, or a refusal of who we are, another attempt would end alike.
    return Ended(error=error, is_final=isinstance(error, RemoteError | AccessDenied | ClientIdInUse))
