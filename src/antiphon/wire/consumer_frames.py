"""What a client and its client manager say to each other about consumers, besides what was delivered."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.wire.layout import U32, U64, U128, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOpen:
    """Ask for deliveries. Credit is absolute: totals since the consumer was opened. Answered by Done.

    A consumer of a topic names its subscription; one of a queue has 0 there.
    """

    request: U32
    session: U128
    consumer: U32
    channel: Text
    destination: U64
    subscription: U64 = 0
    credit_messages: U64
    credit_bytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerClose:
    """End a consumer. What it was sent after delivery number `seen_through`, nobody has seen."""

    request: U32
    session: U128
    consumer: U32
    seen_through: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCheck:
    """Is what was delivered to a consumer still its own? Answered by Done once that is sure.

    What it has lost, it has been told before.
    """

    request: U32
    session: U128
    consumer: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDrain:
    """Deliver what is there now, up to `messages` and `bytes` as of Credit. Answered by Done.

    By then all of that has been delivered, and the rest of the credit is taken back.
    """

    request: U32
    session: U128
    consumer: U32
    messages: U64
    bytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Deliver up to delivery number `messages`, and up to `bytes` in total."""

    session: U128
    consumer: U32
    messages: U64
    bytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGone:
    """The consumer has ended without having asked to, and why."""

    session: U128
    consumer: U32
    code: Text
    text: Text
