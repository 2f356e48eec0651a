"""Admission: is this a command that a client may have ordered, and is it whole?

Everything behind the door trusts what is in an envelope: every replica applies it, and a fault found
there could only be found by all of them at once. So a batch is looked at once, here, in full.
"""

from __future__ import annotations

from typing import NamedTuple

from antiphon.batch import Batch
from antiphon.batch.decoding import lone_body
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    RANGES_MAX,
    Acknowledge,
    CommandHeader,
    CommandKind,
    Publish,
    Return,
    Subscribe,
    Unsubscribe,
    read_command,
)
from antiphon.wire.primitives import Buffer

_PUBLISH = int(CommandKind.PUBLISH)
_ACK = int(CommandKind.ACK)
_RETURN = int(CommandKind.RETURN)
# With all that may stand in front of the ranges.
_RANGES_PAYLOAD_MAX = 32 + 16 * RANGES_MAX
_SUBSCRIBE = int(CommandKind.SUBSCRIBE)
_UNSUBSCRIBE = int(CommandKind.UNSUBSCRIBE)


class Admitted(NamedTuple):
    """What there is to know of a command on its way: which destination it names, if it does, and what is
    acknowledged or returned by it."""

    header: CommandHeader
    destination: int
    subscription: int = 0
    ranges: Ranges | None = None


def check_command(data: Buffer) -> Admitted:
    """Raise ProtocolError unless this is one whole command of a client."""
    header, payload = read_command(data)
    if header.confirmed_through >= header.number:
        raise ProtocolError(f"command {header.number} says that {header.confirmed_through} is confirmed")
    if header.kind == _PUBLISH:
        return Admitted(header, _check_publish(header, payload))
    if header.kind in (_ACK, _RETURN) and len(payload) > _RANGES_PAYLOAD_MAX:
        raise ProtocolError(f"a command of {len(payload)} bytes has more than {RANGES_MAX} ranges")
    if header.kind == _ACK:
        acknowledge = Acknowledge.decode(payload)
        return Admitted(header, acknowledge.destination, acknowledge.subscription, acknowledge.ranges)
    if header.kind == _RETURN:
        back = Return.decode(payload)
        return Admitted(header, back.destination, back.subscription, back.ranges)
    if header.kind == _SUBSCRIBE:
        return Admitted(header, Subscribe.decode(payload).destination)
    if header.kind == _UNSUBSCRIBE:
        Unsubscribe.decode(payload)
        return Admitted(header, 0)
    raise ProtocolError(f"a command of kind {header.kind} is not for a client to send")


def _check_publish(header: CommandHeader, payload: memoryview) -> int:
    publish = Publish.decode(payload)
    if header.count == 1 and lone_body(publish.batch) == (header.session, header.number):
        return publish.destination
    batch = Batch.decode(publish.batch)
    if batch.producer != header.session or batch.first_number != header.number or batch.count != header.count:
        raise ProtocolError(
            f"command {header.number} takes {header.count} numbers; its batch is of session "
            f"{batch.producer:032x}, from {batch.first_number}, with {batch.count} rows"
        )
    return publish.destination
