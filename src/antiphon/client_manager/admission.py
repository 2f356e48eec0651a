"""Admission: is this a command that a client may have ordered, and is it whole?

Everything behind the door trusts what is in an envelope: every replica applies it, and a fault found
there could only be found by all of them at once. So a batch is looked at once, here, in full.
"""

from __future__ import annotations

from antiphon.batch import Batch
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import Acknowledge, CommandHeader, CommandKind, Publish, Return, read_command
from antiphon.wire.primitives import Buffer

_PUBLISH = int(CommandKind.PUBLISH)
_ACK = int(CommandKind.ACK)
_RETURN = int(CommandKind.RETURN)


def check_command(data: Buffer) -> tuple[CommandHeader, int, Ranges | None]:
    """The header, the destination it is for, and what is acknowledged or returned by it."""
    header, payload = read_command(data)
    if header.confirmed_through >= header.number:
        raise ProtocolError(f"command {header.number} says that {header.confirmed_through} is confirmed")
    if header.kind == _PUBLISH:
        return header, _check_publish(header, payload), None
    if header.kind == _ACK:
        acknowledge = Acknowledge.decode(payload)
        return header, acknowledge.destination, acknowledge.ranges
    if header.kind == _RETURN:
        back = Return.decode(payload)
        return header, back.destination, back.ranges
    raise ProtocolError(f"a command of kind {header.kind} is not for a client to send")


def _check_publish(header: CommandHeader, payload: memoryview) -> int:
    publish = Publish.decode(payload)
    batch = Batch.decode(publish.batch)
    if batch.producer != header.session or batch.first_number != header.number or batch.count != header.count:
        raise ProtocolError(
            f"command {header.number} takes {header.count} numbers; its batch is of session "
            f"{batch.producer:032x}, from {batch.first_number}, with {batch.count} rows"
        )
    return publish.destination
