"""Frames: the messages between a client and its client manager.

On the wire a frame is `[u32 length][u8 type][payload]`, see buffer.py; its payload is the fields of its class
in their order, see layout.py. Any other bytes are a `ProtocolError`, and the connection is over.

The client opens with Hello. Its first six bytes, "ANTI" and the version, are the same in every version, and
so is Goodbye: a peer of another version can say so, and be understood. Nothing behind a wrong version is
interpreted.

`request` is a number the client chooses; the answer repeats it. Failed answers any request. A session is a
u128, a consumer a number the client chooses in its session.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeAlias, cast

from antiphon.errors import ProtocolError, VersionMismatch
from antiphon.wire.admin_frames import Answer as Answer
from antiphon.wire.admin_frames import Ask as Ask
from antiphon.wire.commands import ConfirmItem, read_outcomes, write_outcomes
from antiphon.wire.consumer_frames import ConsumerCheck as ConsumerCheck
from antiphon.wire.consumer_frames import ConsumerClose as ConsumerClose
from antiphon.wire.consumer_frames import ConsumerDrain as ConsumerDrain
from antiphon.wire.consumer_frames import ConsumerGone as ConsumerGone
from antiphon.wire.consumer_frames import ConsumerOpen as ConsumerOpen
from antiphon.wire.consumer_frames import Credit as Credit
from antiphon.wire.destination_frames import DestinationsCreate as DestinationsCreate
from antiphon.wire.destination_frames import DestinationsCreated as DestinationsCreated
from antiphon.wire.layout import U16, U32, U64, U128, Bool, Field, Layout, Rest, Text, Texts, U32s
from antiphon.wire.layout import SomeRanges as SomeRanges
from antiphon.wire.lone import LONE_ITEM, read_lone_confirm
from antiphon.wire.primitives import Buffer, Reader, Writer, encode_text, encode_u128, pack
from antiphon.wire.range_frames import RangeAsk as RangeAsk
from antiphon.wire.range_frames import RangePage as RangePage
from antiphon.wire.range_frames import RangeRead as RangeRead
from antiphon.wire.range_frames import RangeTold as RangeTold
from antiphon.wire.transaction_frames import TransactionAsk as TransactionAsk
from antiphon.wire.transaction_frames import TransactionCommit as TransactionCommit
from antiphon.wire.transaction_frames import TransactionDecided as TransactionDecided

MAGIC = b"ANTI"
PROTOCOL_VERSION = 14

_HEAD = struct.Struct("<IB")
_TEXT_LENGTH = struct.Struct("<H")
_COUNT = struct.Struct("<I")
_PIECE_HEAD = struct.Struct("<QII")
_DELIVER_STREAM = struct.Struct("<QQQI")


class AckMode(IntEnum):
    AUTO = 0
    CLIENT = 1
    INDIVIDUAL = 2
    DUPS_OK = 3
    TRANSACTED = 4


_ACK_MODE_MAX = max(AckMode)


class DeliverPiece(NamedTuple):
    """Rows with the same redelivery count. Their numbers are consecutive, unless the batch has offsets."""

    first_sequence: int
    redelivery_count: int
    batch: Buffer


def _write_version(writer: Writer, version: int) -> None:
    writer.raw(MAGIC)
    writer.u16(version)


def _read_version(reader: Reader) -> int:
    if reader.raw(len(MAGIC)) != MAGIC:
        raise ProtocolError("this is not an Antiphon client or node: the greeting lacks its mark")
    version = reader.u16()
    if version != PROTOCOL_VERSION:
        raise VersionMismatch(
            f"the peer speaks version {version} of the protocol, we speak {PROTOCOL_VERSION}"
        )
    return version


def _read_ack_mode(reader: Reader) -> AckMode:
    mode = reader.u8()
    if mode > _ACK_MODE_MAX:
        raise ProtocolError(f"acknowledge mode {mode} is not known")
    return AckMode(mode)


def _read_items(reader: Reader) -> tuple[ConfirmItem, ...]:
    return read_outcomes(reader, ConfirmItem)


def _write_pieces(writer: Writer, pieces: Sequence[DeliverPiece]) -> None:
    writer.count(len(pieces))
    for first_sequence, redelivery_count, batch in pieces:
        writer.raw(pack(_PIECE_HEAD, first_sequence, redelivery_count, len(batch)))
        writer.raw(batch)


def _read_pieces(reader: Reader) -> tuple[DeliverPiece, ...]:
    pieces = []
    for _ in range(reader.count(_PIECE_HEAD.size)):
        first_sequence, redelivery_count, size = reader.numbers(_PIECE_HEAD)
        pieces.append(DeliverPiece(first_sequence, redelivery_count, reader.raw(size)))
    return tuple(pieces)


Version = Annotated[int, Field(_write_version, _read_version)]
AckModeField = Annotated[AckMode, Field(Writer.u8, _read_ack_mode)]
Items = Annotated[tuple[ConfirmItem, ...], Field(write_outcomes, _read_items)]
Pieces = Annotated[tuple[DeliverPiece, ...], Field(_write_pieces, _read_pieces)]


# Greeting, parting, and the answers that fit every request.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of a client. A connection that comes back names itself, and counts: `generation` is
    higher than before. A new one has 0 for both."""

    version: Version = PROTOCOL_VERSION
    user: Text
    password: Text = field(repr=False)
    client_id: Text
    connection: U128 = 0
    generation: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The answer to Hello. From here on frames of up to `frame_limit` bytes may be sent.

    `connection` names the connection, also when it comes back elsewhere.

    Deliveries are the consumer's own for `sure_ms`, counted from the last delivery that came within the time
    of the one before, or from the last answer to a ConsumerCheck. Then the client has to ask.
    """

    version: Version = PROTOCOL_VERSION
    node: U16
    cluster: Text
    servers: Texts
    connection: U128
    frame_limit: U32
    heartbeat_ms: U32
    sure_ms: U32 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """The last frame of either side, and why."""

    code: Text
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Either side may ask whether the other is there."""

    nonce: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    nonce: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The request was carried out."""

    request: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request was not carried out; `code` is that of an error in errors.py."""

    request: U32
    code: Text
    text: Text


# Sessions and destinations.


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpen:
    """Open a session, or resume one: session and generation are 0 for a new one.

    `channels` know the session that is resumed. It is opened when the first of them has resumed it; if
    another one does not know it, SessionGone says so later. `known` has for each channel, in this order, a
    generation under which it is said to know the session; empty for a client that cannot tell.
    """

    request: U32
    session: U128
    generation: U32
    ack_mode: AckModeField
    channels: Texts = ()
    known: U32s = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    request: U32
    session: U128
    generation: U32
    window_bytes: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClose:
    """End a session in all its channels. Done answers."""

    request: U32
    session: U128


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGone:
    """The session has left this connection without the client's request, and why."""

    session: U128
    code: Text
    text: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationOpen:
    """Find a destination by its name, and make it first with `create`.

    With a `session`, the answer comes when the destination's channel knows the session: only then can the
    client tell an expired session from one that the channel never heard of. A queue of the system is in every
    channel, and a spanning destination in several: a `channel` asks for the part that is there. `queue:_TEMP`
    or `topic:_TEMP` asks for the channel in which the session is to make a temporary destination: the answer
    has no id.
    """

    request: U32
    name: Text
    create: Bool
    session: U128 = 0
    channel: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationOpened:
    """The place of a destination: commands to it go to `channel`.

    A spanning destination has `channels` instead, and a part in each of them, which is opened by itself.
    """

    request: U32
    destination: U64
    settings_version: U32
    channel: Text
    channels: Texts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationCreate:
    """Make a destination with these settings, a JSON object. DestinationOpened answers.

    An existing destination is fine if it has the given settings.
    """

    request: U32
    name: Text
    settings: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFind:
    """Find a subscription of this client id by its name; `ends` refuses one that has a consumer.

    It is `durable`, or else a shared one. With a `channel`, only that one is asked.
    """

    request: U32
    session: U128
    name: Text
    durable: Bool = True
    ends: Bool = False
    channel: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFound:
    """The place of a subscription: commands about it go to `channel`.

    `topic` is the name of its topic or family. One to a spanning topic or a family has a part in each of its
    `channels`.
    """

    request: U32
    subscription: U64
    destination: U64
    channel: Text
    topic: Text
    channels: Texts = ()


# Commands and their confirmation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One ordered command, byte for byte as it goes into the envelope."""

    channel: Text
    command: Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """The outcomes of commands, gathered over one wake-up."""

    session: U128
    channel: Text
    items: Items


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """Whether publishing in the channel is blocked; sent at changes, and to new connections while it is."""

    channel: Text
    blocked: Bool
    reason: Text


# Consumers.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerResume:
    """Attach a consumer of a resumed session again, on another connection. ConsumerResumed answers.

    Delivery numbers and credit count on from `delivered_messages` and `delivered_bytes`, which the client
    got. Of these deliveries `held` are not acknowledged, or not known to be, and stay the consumer's own.
    """

    request: U32
    session: U128
    consumer: U32
    channel: Text
    destination: U64
    subscription: U64
    selector: Text = ""
    credit_messages: U64
    credit_bytes: U64
    delivered_messages: U64
    delivered_bytes: U64
    held: SomeRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerResumed:
    """The consumer is attached. Of the held messages, `lost` are gone, or another's."""

    request: U32
    lost: SomeRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Messages for a consumer: delivery numbers count on from `first_delivery` over all pieces.

    Of a family `topics` are the names of the pieces' topics; otherwise there are none.
    """

    session: U128
    destination: U64
    term: U64
    first_delivery: U64
    consumer: U32
    channel: Text
    topics: Texts = ()
    pieces: Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLost:
    """Of the consumer's deliveries, `lost` are gone, or another's.

    The primary changed, or took the client manager for dead. Those that come again are delivered anew.
    """

    session: U128
    consumer: U32
    lost: SomeRanges


_Both: TypeAlias = Goodbye | Ping | Pong
ClientFrame: TypeAlias = (
    Hello
    | SessionOpen
    | SessionClose
    | DestinationOpen
    | DestinationCreate
    | DestinationsCreate
    | SubscriptionFind
    | Command
    | ConsumerOpen
    | ConsumerResume
    | ConsumerClose
    | ConsumerCheck
    | ConsumerDrain
    | Credit
    | TransactionCommit
    | TransactionAsk
    | RangeAsk
    | RangeRead
    | Ask
    | _Both
)
ServerFrame: TypeAlias = (
    Welcome
    | SessionOpened
    | SessionGone
    | DestinationOpened
    | DestinationsCreated
    | SubscriptionFound
    | Confirm
    | FlowState
    | ConsumerResumed
    | Deliver
    | ConsumerLost
    | ConsumerGone
    | TransactionDecided
    | RangeTold
    | RangePage
    | Answer
    | Done
    | Failed
    | _Both
)
Frame: TypeAlias = ClientFrame | ServerFrame

_FROM_CLIENT, _FROM_SERVER = 1, 2

# type: (class, who may send it). Numbers are never given to another frame; the gaps are for later ones.
_TYPES: dict[int, tuple[type[Any], int]] = {
    1: (Hello, _FROM_CLIENT),
    2: (Welcome, _FROM_SERVER),
    3: (Goodbye, _FROM_CLIENT | _FROM_SERVER),
    4: (Ping, _FROM_CLIENT | _FROM_SERVER),
    5: (Pong, _FROM_CLIENT | _FROM_SERVER),
    6: (Done, _FROM_SERVER),
    7: (Failed, _FROM_SERVER),
    16: (SessionOpen, _FROM_CLIENT),
    17: (SessionOpened, _FROM_SERVER),
    18: (SessionClose, _FROM_CLIENT),
    19: (SessionGone, _FROM_SERVER),
    32: (DestinationOpen, _FROM_CLIENT),
    33: (DestinationOpened, _FROM_SERVER),
    34: (DestinationCreate, _FROM_CLIENT),
    36: (SubscriptionFind, _FROM_CLIENT),
    37: (SubscriptionFound, _FROM_SERVER),
    38: (DestinationsCreate, _FROM_CLIENT),
    39: (DestinationsCreated, _FROM_SERVER),
    48: (Command, _FROM_CLIENT),
    49: (Confirm, _FROM_SERVER),
    50: (FlowState, _FROM_SERVER),
    52: (TransactionCommit, _FROM_CLIENT),
    53: (TransactionAsk, _FROM_CLIENT),
    54: (TransactionDecided, _FROM_SERVER),
    64: (ConsumerOpen, _FROM_CLIENT),
    65: (ConsumerClose, _FROM_CLIENT),
    66: (Credit, _FROM_CLIENT),
    67: (Deliver, _FROM_SERVER),
    68: (ConsumerGone, _FROM_SERVER),
    69: (ConsumerResume, _FROM_CLIENT),
    70: (ConsumerResumed, _FROM_SERVER),
    71: (ConsumerLost, _FROM_SERVER),
    74: (RangeAsk, _FROM_CLIENT),
    75: (RangeTold, _FROM_SERVER),
    76: (RangeRead, _FROM_CLIENT),
    77: (RangePage, _FROM_SERVER),
    78: (ConsumerCheck, _FROM_CLIENT),
    79: (ConsumerDrain, _FROM_CLIENT),
    80: (Ask, _FROM_CLIENT),
    81: (Answer, _FROM_SERVER),
}
_LAYOUTS: dict[int, Layout[Any]] = {kind: Layout(cls) for kind, (cls, _) in _TYPES.items()}
_TYPE_OF: dict[type[Any], int] = {cls: kind for kind, (cls, _) in _TYPES.items()}
_COMMAND, _CONFIRM = _TYPE_OF[Command], _TYPE_OF[Confirm]
_DELIVER, _RANGE_PAGE = _TYPE_OF[Deliver], _TYPE_OF[RangePage]
_new, _set_channel, _set_command = object.__new__, Command.channel.__set__, Command.command.__set__  # type: ignore
CONFIRM = _CONFIRM
"""The kind of a frame that `read_lone_confirm` may know how to read."""


def encode_frame(frame: Frame) -> bytes:
    """The frame with its length in front."""
    kind = _TYPE_OF[type(frame)]
    writer = Writer()
    _LAYOUTS[kind].write(writer, frame)
    return b"".join((pack(_HEAD, 1 + writer.size, kind), *writer.parts))


def decode_frame(kind: int, payload: Buffer) -> Frame:
    """A frame of either direction, from the bytes of a `FrameBuffer`."""
    if kind == _COMMAND:
        return _decode_command(payload)
    if kind == _CONFIRM:
        return _decode_confirm(payload)
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise ProtocolError(f"frame type {kind} is not known")
    return cast(Frame, layout.decode(payload))


def _decode_command(payload: Buffer) -> Command:
    """As its layout would, in half the time: no other frame is read so often."""
    view = payload if type(payload) is memoryview else memoryview(payload)
    size = len(view)
    start = _TEXT_LENGTH.size + (view[0] | view[1] << 8) if size >= _TEXT_LENGTH.size else size + 1
    if start > size:
        raise ProtocolError(f"a command frame of {size} bytes ends inside the name of its channel")
    try:
        channel = str(view[_TEXT_LENGTH.size : start], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the name of a command's channel is not UTF-8: {error.reason}") from None
    # Past the constructor: a frozen one takes twice as long.
    command = _new(Command)
    _set_channel(command, channel)
    _set_command(command, view[start:] if view.readonly else view[start:].toreadonly())
    return command


def _decode_confirm(payload: Buffer) -> Confirm:
    """As its layout would; a lone item without a text, the usual case, in a third of the time."""
    lone = read_lone_confirm(payload)
    if lone is not None:
        session, channel, item = lone
        return Confirm(session=session, channel=channel, items=(item,))
    return cast(Confirm, _LAYOUTS[_CONFIRM].decode(payload))


def lone_confirm_head(session: int, channel: str) -> bytes:
    """The beginning of all Confirm frames of a session and a channel with one item and no text."""
    name = encode_text(channel)
    return pack(_HEAD, 1 + 16 + len(name) + LONE_ITEM.size, _CONFIRM) + encode_u128(session) + name


def lone_confirm_tail(item: ConfirmItem) -> bytes:
    """The rest of such a frame: head and tail equal `encode_frame` of a Confirm of the item."""
    number, count, code, sequence, _ = item
    return LONE_ITEM.pack(1, number, count, code, sequence, 0)


def decode_client_frame(kind: int, payload: Buffer) -> ClientFrame:
    """A frame that a client may send; any other breaks the protocol."""
    if kind == _COMMAND:
        return _decode_command(payload)
    if kind in _TYPES and not _TYPES[kind][1] & _FROM_CLIENT:
        raise ProtocolError(f"{_TYPES[kind][0].__name__} is not for a client to say")
    return cast(ClientFrame, decode_frame(kind, payload))


def decode_server_frame(kind: int, payload: Buffer) -> ServerFrame:
    """A frame that a client manager may send; any other breaks the protocol."""
    if kind in _TYPES and not _TYPES[kind][1] & _FROM_SERVER:
        raise ProtocolError(f"{_TYPES[kind][0].__name__} is not for a server to say")
    return cast(ServerFrame, decode_frame(kind, payload))


def command_buffers(channel: str, command: Sequence[Buffer], size: int) -> list[Buffer]:
    """A Command frame around the buffers of one command of so many bytes, which are not copied."""
    name = _channel_name(channel)
    return [_HEAD.pack(1 + len(name) + size, _COMMAND) + name, *command]


@lru_cache(maxsize=64)
def _channel_name(channel: str) -> bytes:
    return encode_text(channel)


def deliver_buffers(
    *,
    session: int,
    destination: int,
    term: int,
    first_delivery: int,
    consumer: int,
    channel: str,
    pieces: Iterable[tuple[int, int, Sequence[Buffer]]],
    topics: tuple[str, ...] = (),
) -> list[Buffer]:
    """A Deliver frame around batches that are not copied, equal to `encode_frame` of the same Deliver.

    A piece is (first_sequence, redelivery_count, the buffers of its batch).
    """
    head = b"".join(
        (
            encode_u128(session),
            pack(_DELIVER_STREAM, destination, term, first_delivery, consumer),
            encode_text(channel),
            pack(_COUNT, len(topics)),
            *map(encode_text, topics),
        )
    )
    buffers: list[Buffer] = [b""]
    length = count = 0
    for first_sequence, redelivery_count, batch in pieces:
        size = sum(map(len, batch))
        buffers.append(pack(_PIECE_HEAD, first_sequence, redelivery_count, size))
        buffers.extend(batch)
        length += _PIECE_HEAD.size + size
        count += 1
    head += pack(_COUNT, count)
    buffers[0] = pack(_HEAD, 1 + len(head) + length, _DELIVER) + head
    return buffers


def range_page_buffers(request: int, page: Sequence[Buffer]) -> list[Buffer]:
    """A RangePage frame around the bytes of a page, which are not copied."""
    head = pack(_COUNT, request)
    return [pack(_HEAD, 1 + len(head) + sum(map(len, page)), _RANGE_PAGE) + head, *page]
