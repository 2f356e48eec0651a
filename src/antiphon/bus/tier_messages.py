"""What client managers and message managers say to each other, and nodes about themselves.

It goes the same way as what the roles of the bus say (`messages.py`, which names all of it). None of this is
ordered: what must survive is a command in an envelope.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.ranges import Ranges


@dataclass(frozen=True, slots=True)
class Register:
    """A client manager attaches a consumer at the primary; repeated on a new term.

    Its client knows it under `number` in its session, and `resumes` it after its connection was lost.
    """

    consumer: int
    session: int
    generation: int
    destination: int
    subscription: int
    selector: str
    credit_messages: int
    credit_bytes: int
    held: Ranges = field(default_factory=Ranges)
    number: int = 0
    resumes: bool = False
    # For the primary of this term and no other: what is held, and the credit, hold for it alone.
    term: int = 0


@dataclass(frozen=True, slots=True)
class Registered:
    """The primary's answer; `code` is empty when the consumer is attached.

    Of what it held, it does not have `lost` any more: gone, or another's. Told of an attachment for the
    first time it has a number in the stream of its client manager, so that it comes before the messages.
    """

    consumer: int
    term: int
    code: str = ""
    text: str = ""
    lost: Ranges = field(default_factory=Ranges)
    stream: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Unregister:
    """A client manager detaches a consumer; deliveries above `seen_through` never reached the application.

    A client that `is_lost` may come back: what it holds is kept for it for a short while.
    """

    consumer: int
    seen_through: int
    is_lost: bool = False
    term: int = 0


@dataclass(frozen=True, slots=True)
class Unregistered:
    """The primary's answer to `Unregister`: it has no such consumer any more."""

    consumer: int
    term: int


@dataclass(frozen=True, slots=True)
class SessionDetached:
    """A client manager lost the client of a session; the primary lets it expire after a while."""

    session: int
    generation: int


@dataclass(frozen=True, slots=True)
class SessionDetachedHeard:
    """The primary's answer to `SessionDetached`; one that `is_over` has ended or goes on elsewhere."""

    session: int
    generation: int
    is_over: bool = False


class ConsumerCredit(NamedTuple):
    """How far the primary may deliver to a consumer, absolutely: deliveries and body bytes from its start.

    A consumer that `drains` wants what is there now, and is answered by `Drained`.
    """

    consumer: int
    messages: int
    bytes: int
    drains: bool = False


@dataclass(frozen=True, slots=True)
class Credits:
    """A client manager to the primary: the credit of these consumers. Said again until it is heard of.

    Without items it asks whether the primary still knows the client manager's stream. One that
    `is_settled` was here in an earlier term, and has attached again whoever it had. A primary that has not
    applied everything through `floor`, which was confirmed to clients, does not know yet what is there.
    """

    term: int
    number: int
    items: tuple[ConsumerCredit, ...]
    stream: int = 0
    is_settled: bool = False
    floor: int = 0


class Piece(NamedTuple):
    """Rows of one stored batch with consecutive numbers; `buffers` joined are the bytes of a batch."""

    first_sequence: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    redelivery_count: int
    buffers: list[bytes | memoryview]


class Taker(NamedTuple):
    """A consumer that gets what is delivered, and the number that the first message is to it.

    With the last one it has been given so many bytes of bodies since it was attached.
    """

    consumer: int
    first_delivery: int
    bytes_through: int = 0


class Target(NamedTuple):
    """A client manager, which number in its stream this is, and who there gets it."""

    node: int
    number: int
    takers: tuple[Taker, ...]
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Deliver:
    """The primary to one client manager or to several: messages of one destination.

    Each client manager has a stream of its own, numbered 1, 2, 3 … within a term, whichever way its parts
    come. Several that need the same rows are told at once, each under its own number. A stream is named
    after the run of its client manager, by the number of its PRODUCER_OPEN: another run, another stream.
    """

    term: int
    destination: int
    targets: tuple[Target, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class DeliverHead:
    """The primary to a client manager: how long its stream is, and which `Credits` were heard of.

    Said when its end has not been acknowledged for a while, and in answer to `Credits`. Of a stream that
    `is_void` nothing comes any more, and the consumers it was for are not attached. `sure` is the last of the
    `Credits` after whose arrival a quorum has said that it goes by no later primary.
    """

    term: int
    number: int
    credits_heard: int
    stream: int = 0
    acknowledged: int = 0
    is_void: bool = False
    sure: int = 0


@dataclass(frozen=True, slots=True)
class DeliverAck:
    """A client manager to the primary: its stream came whole through `upto`; beyond, these are missing."""

    term: int
    upto: int
    missing: Ranges = field(default_factory=Ranges)
    stream: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerEnded:
    """The primary closed a consumer (its destination or session went away)."""

    consumer: int
    term: int
    code: str
    text: str
    stream: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Drained:
    """The primary's answer to a credit that `drains`: there was no more for the consumer.

    Its credit through delivery number `through` is used up, though perhaps nothing came under the last ones.
    """

    consumer: int
    term: int
    through: int
    stream: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class BrowseRequest:
    """A client manager asks a replica for stored messages above number `after`, to look at.

    `floor` is the highest number that client manager confirmed to anybody: who asks sees what it wrote.
    """

    request: int
    floor: int
    destination: int
    after: int
    limit: int


@dataclass(frozen=True, slots=True)
class BrowseReply:
    """A replica's answer: everything through `through` was looked at. `code` is empty when it went well."""

    request: int
    through: int
    more: bool
    pieces: tuple[Piece, ...] = ()
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A client manager asks a replica for what is stored of some destinations between two numbers.

    `since` goes with `destinations`: what of each had been lost before is no loss. For the rest see the
    frame `RangeRead`.
    """

    request: int
    floor: int
    start: int
    stop: int
    goal: int
    page_bytes: int
    ahead: int
    ahead_from: int
    allow_lost: bool
    acks: bool
    destinations: tuple[int, ...]
    since: tuple[int, ...]
    live: bool = False


@dataclass(frozen=True, slots=True)
class RangeReply:
    """A replica's answer: the bytes of a page, for the client alone. `code` is empty when it went well."""

    request: int
    page: list[bytes | memoryview]
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class RangeAsk:
    """A client manager puts a client's question about what is stored to a replica, as JSON.

    Answered from a state not before `floor`; after `wait_ms`, or as soon as there is news.
    """

    request: int
    floor: int
    wait_ms: int
    question: str


@dataclass(frozen=True, slots=True)
class RangeTold:
    """A replica's answer, as JSON; `code` is empty when it went well."""

    request: int
    answer: str
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A client manager asks a replica what it knows of a destination or a subscription, as JSON.

    Whoever has not applied everything through `floor` waits until it has. Unless `anybody` may answer, only
    the primary does: what others do not know of may yet exist.
    """

    request: int
    floor: int
    question: str
    anybody: bool = False


@dataclass(frozen=True, slots=True)
class LookupReply:
    """A replica's answer, as JSON; an empty object if there is no such thing."""

    request: int
    answer: str


@dataclass(frozen=True, slots=True)
class Advertised:
    """The system channel's primary to all client managers: these names live in these channels from now on.

    Who does not hear it asks when it needs to know.
    """

    names: tuple[str, ...]
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A participant's primary to all client managers: this transaction has been prepared here for a while.

    Whoever hears it asks channel `home` what was decided, and has it carried out here.
    """

    session: int
    transaction: int
    home: str
    messages: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The home channel's primary to all client managers: this commit has not been heard to be complete.

    Whoever hears it has it carried out in `channels`, which get so many `messages`, and then says that it is.
    """

    session: int
    transaction: int
    channels: tuple[str, ...]
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdminAsk:
    """A node asks another about itself, as JSON; answered by whoever lives."""

    request: int
    question: str


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """What a node says about itself, as JSON; `name` is its own."""

    request: int
    name: str
    answer: str
