"""Admission: is this a command that a client may have ordered, and is it whole?

Every replica applies the commands of an envelope without further checks, and a fault would stop all replicas
at once. So a batch is decoded once, here, in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from antiphon.batch import BATCH_BYTES_MAX, Batch, BatchRule, ColumnId
from antiphon.batch.contents import most_in_blobs
from antiphon.batch.layout import PROPERTIES_MAX, SYSTEM_BYTES_MAX
from antiphon.errors import InvalidSelector, ProtocolError
from antiphon.ranges import Ranges
from antiphon.selectors import compile_selector
from antiphon.wire.commands import (
    RANGES_MAX,
    Acknowledge,
    AlterDestination,
    CommandHeader,
    CommandKind,
    CreateTemporary,
    DeleteDestination,
    Publish,
    PurgeDestination,
    Return,
    Subscribe,
    Unsubscribe,
    read_command,
)
from antiphon.wire.holds import HELD_DESTINATIONS_MAX, HOLD_MS_MAX, HOLD_NAME_BYTES_MAX, Hold, ReleaseHold
from antiphon.wire.lone import read_lone_publish
from antiphon.wire.primitives import Buffer
from antiphon.wire.transactions import (
    STAGED_SECONDS_MAX,
    TRANSACTED_NUMBER,
    CommitTransaction,
    Consumed,
    DropStaged,
    RollBackTransaction,
    StagedPublish,
    TransactedPublish,
)

# Past the constructor of a NamedTuple: there is one for every command.
_new: Final = tuple.__new__

_DEDUP: Final = int(BatchRule.DEDUP)
_PUBLISH = int(CommandKind.PUBLISH)
_ACK = int(CommandKind.ACK)
_RETURN = int(CommandKind.RETURN)
# With all fields that may stand in front of the ranges.
_RANGES_PAYLOAD_MAX = 32 + 16 * RANGES_MAX
_SUBSCRIBE = int(CommandKind.SUBSCRIBE)
_UNSUBSCRIBE = int(CommandKind.UNSUBSCRIBE)

PUBLICATIONS: Final = frozenset(map(int, (CommandKind.PUBLISH, CommandKind.TX_PUBLISH, CommandKind.STAGE)))
"""Commands with messages: they count in the windows, and wait while there is no room."""

STAGED_PARTS_MAX: Final = 16_384
"""Staged parts that one command names: as many bytes as ranges may have."""

APPLICATION_BYTES_MAX: Final = 255

Consumption = tuple[Consumed, ...]


class Admitted(NamedTuple):
    """A checked command: its destination, if it names one, and the messages that it acknowledges or returns;
    those of a commit may be in several destinations. `outcomes` is how many it may have at most. A
    publication `is_transient` if all its messages are non-persistent."""

    header: CommandHeader
    destination: int
    subscription: int = 0
    ranges: Ranges | Consumption | None = None
    outcomes: int = 1
    is_transient: bool = False


def check_command(data: Buffer) -> Admitted:
    """Raise ProtocolError unless this is one whole command of a client."""
    if (lone := read_lone_publish(data)) is not None:
        header, destination = lone
        return _new(Admitted, (header, destination, 0, None, 1, False))
    header, payload = read_command(data)
    if header.confirmed_through >= header.number:
        raise ProtocolError(f"command {header.number} says that {header.confirmed_through} is confirmed")
    if header.kind == _PUBLISH:
        return _check_publish(header, payload)
    if header.kind in (_ACK, _RETURN) and len(payload) > _RANGES_PAYLOAD_MAX:
        raise ProtocolError(f"a command of {len(payload)} bytes has more than {RANGES_MAX} ranges")
    if header.kind == _ACK:
        acknowledge = Acknowledge.decode(payload)
        return Admitted(header, acknowledge.destination, acknowledge.subscription, acknowledge.ranges)
    if header.kind == _RETURN:
        back = Return.decode(payload)
        return Admitted(header, back.destination, back.subscription, back.ranges)
    if header.kind == _SUBSCRIBE:
        return Admitted(header, _check_subscribe(payload))
    if header.kind == _UNSUBSCRIBE:
        Unsubscribe.decode(payload)
        return Admitted(header, 0)
    check = _OTHERS.get(header.kind)
    if check is not None:
        return check(header, payload)
    raise ProtocolError(f"a command of kind {header.kind} is not for a client to send")


def _check_subscribe(payload: memoryview) -> int:
    wish = Subscribe.decode(payload)
    try:
        compile_selector(wish.selector)
    except InvalidSelector as error:
        raise ProtocolError(f"a subscription with a selector that is none: {error.text}") from None
    return wish.destination


def _check_publish(header: CommandHeader, payload: memoryview) -> Admitted:
    publish = Publish.decode(payload)
    batch = _whole_batch(publish.batch)
    if batch.producer != header.session or batch.first_number != header.number or batch.count != header.count:
        raise ProtocolError(
            f"command {header.number} takes {header.count} numbers; its batch is of session "
            f"{batch.producer:032x}, from {batch.first_number}, with {batch.count} rows"
        )
    outcomes = batch.count if batch.rules & _DEDUP else 1
    return Admitted(header, publish.destination, outcomes=outcomes, is_transient=batch.is_transient)


def _whole_batch(data: Buffer) -> Batch:
    """A batch to be stored: its rows take consecutive numbers, and the system can add to each of them.

    A message that dies gets properties which say where it comes from: it must still be readable with them.
    """
    batch = Batch.decode(data)
    if batch.has_gaps:
        raise ProtocolError("a batch that is sent has consecutive numbers; this one has offsets")
    if batch.count == 1 and len(data) > BATCH_BYTES_MAX - SYSTEM_BYTES_MAX:
        raise ProtocolError(
            f"a message of {len(data)} bytes; a batch has room for more only if it has several"
        )
    blobs = batch.column(ColumnId.PROPERTIES)
    if blobs is not None and (most := most_in_blobs(blobs)) > PROPERTIES_MAX:
        raise ProtocolError(f"{most} properties are more than the {PROPERTIES_MAX} allowed")
    return batch


def check_consumed(all_consumed: Iterable[Consumed]) -> None:
    """Raise ProtocolError if a transaction acknowledges more ranges in one channel than one command may.

    An empty set counts as one range: a command that fits no envelope would stop all others.
    """
    ranges = sum(max(1, len(consumed.numbers)) for consumed in all_consumed)
    if ranges > RANGES_MAX:
        raise ProtocolError(f"a commit acknowledges {ranges} ranges; {RANGES_MAX} are allowed")


def check_application(name: str) -> None:
    size = len(name.encode())
    if size > APPLICATION_BYTES_MAX:
        raise ProtocolError(f"an application's name of {size} bytes; {APPLICATION_BYTES_MAX} are allowed")


def check_staged(parts: tuple[int, ...]) -> None:
    if len(parts) > STAGED_PARTS_MAX:
        raise ProtocolError(f"{len(parts)} staged parts at once; {STAGED_PARTS_MAX} are allowed")


def check_transaction(number: int) -> None:
    if not number:
        raise ProtocolError("transactions are counted from 1")


def _check_transacted(header: CommandHeader, payload: memoryview) -> Admitted:
    publish = TransactedPublish.decode(payload)
    check_transaction(publish.transaction)
    _check_unnumbered_batch(header, publish.batch, publish.rows)
    return Admitted(header, publish.destination)


def _check_stage(header: CommandHeader, payload: memoryview) -> Admitted:
    publish = StagedPublish.decode(payload)
    check_application(publish.application)
    if not publish.application or not 0 < publish.seconds <= STAGED_SECONDS_MAX:
        raise ProtocolError(f"a part staged by {publish.application!r} for {publish.seconds} seconds")
    _check_unnumbered_batch(header, publish.batch, publish.rows)
    return Admitted(header, publish.destination)


def _check_unnumbered_batch(header: CommandHeader, data: Buffer, rows: int) -> None:
    """Check a batch whose command takes one number; its rows are counted apart."""
    batch = _whole_batch(data)
    producer, first, count = batch.producer, batch.first_number, batch.count
    if producer != header.session or not first & TRANSACTED_NUMBER or count != rows:
        raise ProtocolError(
            f"command {header.number} says that it has {rows} rows; its batch is of session "
            f"{producer:032x}, from {first}, with {count} rows"
        )


def _check_commit(header: CommandHeader, payload: memoryview) -> Admitted:
    commit = CommitTransaction.decode(payload)
    check_transaction(commit.transaction)
    check_consumed(commit.consumed)
    if header.count != max(1, commit.messages):
        raise ProtocolError(f"a commit of {commit.messages} messages takes {header.count} numbers")
    return Admitted(header, 0, ranges=commit.consumed)


def _check_rollback(header: CommandHeader, payload: memoryview) -> Admitted:
    check_transaction(RollBackTransaction.decode(payload).transaction)
    return Admitted(header, 0)


def _check_drop(header: CommandHeader, payload: memoryview) -> Admitted:
    check_staged(DropStaged.decode(payload).parts)
    return Admitted(header, 0)


def _check_hold_name(name: str) -> None:
    size = len(name.encode())
    if not 0 < size <= HOLD_NAME_BYTES_MAX:
        raise ProtocolError(f"the name of a hold has {size} bytes; 1 to {HOLD_NAME_BYTES_MAX} are allowed")


def _check_hold(header: CommandHeader, payload: memoryview) -> Admitted:
    hold = Hold.decode(payload)
    _check_hold_name(hold.name)
    if len(hold.destinations) > HELD_DESTINATIONS_MAX:
        raise ProtocolError(
            f"a hold of {len(hold.destinations)} destinations; {HELD_DESTINATIONS_MAX} are allowed"
        )
    if not 0 < hold.limit_ms <= HOLD_MS_MAX:
        raise ProtocolError(f"a hold that lasts {hold.limit_ms} ms")
    return Admitted(header, 0)


def _check_release(header: CommandHeader, payload: memoryview) -> Admitted:
    _check_hold_name(ReleaseHold.decode(payload).name)
    return Admitted(header, 0)


def _check_create_temporary(header: CommandHeader, payload: memoryview) -> Admitted:
    CreateTemporary.decode(payload)
    return Admitted(header, 0)


def _check_delete(header: CommandHeader, payload: memoryview) -> Admitted:
    return Admitted(header, DeleteDestination.decode(payload).destination)


def _check_purge(header: CommandHeader, payload: memoryview) -> Admitted:
    return Admitted(header, PurgeDestination.decode(payload).destination)


def _check_alter(header: CommandHeader, payload: memoryview) -> Admitted:
    return Admitted(header, AlterDestination.decode(payload).destination)


_OTHERS: Final[dict[int, Callable[[CommandHeader, memoryview], Admitted]]] = {
    int(CommandKind.TX_PUBLISH): _check_transacted,
    int(CommandKind.STAGE): _check_stage,
    int(CommandKind.TX_COMMIT): _check_commit,
    int(CommandKind.TX_ROLLBACK): _check_rollback,
    int(CommandKind.DROP_STAGED): _check_drop,
    int(CommandKind.HOLD): _check_hold,
    int(CommandKind.RELEASE): _check_release,
    int(CommandKind.CREATE_TEMPORARY): _check_create_temporary,
    int(CommandKind.DELETE): _check_delete,
    int(CommandKind.PURGE): _check_purge,
    int(CommandKind.ALTER): _check_alter,
}
