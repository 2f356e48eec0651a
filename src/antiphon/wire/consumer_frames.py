"""Frames about consumers, without the deliveries."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.wire.layout import U32, U64, U128, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOpen:
    """Ask for deliveries; Done answers. Credit is absolute: totals since the consumer was opened.

    A consumer of a topic names its subscription, which is 0 for a queue. A consumer of a queue may have a
    selector; that of a topic is the subscription's.
    """

    request: U32
    session: U128
    consumer: U32
    channel: Text
    destination: U64
    subscription: U64 = 0
    selector: Text = ""
    credit_messages: U64
    credit_bytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerClose:
    """End a consumer, whose application saw no delivery behind number `seen_through`."""

    request: U32
    session: U128
    consumer: U32
    seen_through: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCheck:
    """Ask whether a consumer still has its deliveries; Done answers once that is sure, after any loss."""

    request: U32
    session: U128
    consumer: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDrain:
    """Deliver the present messages, up to `messages` and `bytes` as in Credit. Done answers.

    By then all of them have been delivered, and the rest of the credit is taken back.
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
    """The consumer has ended without the client's request, and why."""

    session: U128
    consumer: U32
    code: Text
    text: Text
