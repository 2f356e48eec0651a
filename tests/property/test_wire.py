"""The codec against its laws.

What is encoded decodes to itself. Whatever the bytes, decoding gives a frame or raises
`ProtocolError` or `VersionMismatch`; and a frame has one encoding only, so what decodes is what
its encoding gives. However a stream is cut, the same frames come out of it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError, VersionMismatch
from antiphon.ranges import Ranges
from antiphon.wire import (
    destination_frames,
    frames,
    holds,
    layout,
    range_frames,
    transaction_frames,
    transactions,
)
from antiphon.wire.buffer import FrameBuffer
from antiphon.wire.commands import (
    NODE_SESSION,
    OF_THE_NODE,
    PUBLISH_COUNT_MAX,
    UNNUMBERED,
    BuryMessages,
    CommandKind,
    ConfirmItem,
    DeadReason,
    LogEvents,
    Outcome,
    OutcomeCode,
    Payload,
    Publish,
    RangesToEnd,
    StartKind,
    StartKindField,
    count_of,
    decode_payload,
    encode_command,
    iterate_commands,
    kind_of,
    read_command,
    read_outcomes,
    write_outcomes,
)
from antiphon.wire.frames import Command, Frame, RangePage, decode_frame, encode_frame
from antiphon.wire.primitives import Reader, Writer
from antiphon.wire.transactions import StagedPublish, TransactedPublish


def below(bits: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(0, 3), st.integers(0, 2**bits - 1))


u32s, u64s, u128s = below(32), below(64), below(128)
texts = st.text(max_size=12)
blobs = st.binary(max_size=40)
codes = st.sampled_from(OutcomeCode)
items = st.builds(ConfirmItem, u64s, u32s, codes, u64s, st.one_of(st.just(""), texts))
outcomes = st.builds(Outcome, u64s, u32s, codes, u64s, st.one_of(st.just(""), texts))
refusals = st.lists(st.builds(destination_frames.RefusedName, u32s, texts, texts), max_size=3).map(tuple)
pieces = st.builds(frames.DeliverPiece, u64s, u32s, blobs)
ranges = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=6).map(Ranges)
consumed = st.builds(transactions.Consumed, u64s, u64s, ranges)
participants = st.builds(transactions.Participant, texts, u32s)
parts = st.builds(
    transaction_frames.TransactionPart,
    texts,
    u32s,
    u32s,
    st.lists(consumed, max_size=2).map(tuple),
    st.lists(u128s, max_size=2).map(tuple),
)

VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (layout.U8, below(8)),
    (layout.U16, below(16)),
    (layout.U32, u32s),
    (layout.U64, u64s),
    (layout.U128, u128s),
    (layout.I64, st.integers(-(2**63), 2**63 - 1)),
    (layout.Bool, st.booleans()),
    (layout.Text, texts),
    (layout.Texts, st.lists(texts, max_size=4).map(tuple)),
    (layout.U32s, st.lists(u32s, max_size=4).map(tuple)),
    (layout.Document, texts),
    (layout.Rest, blobs),
    (frames.Version, st.just(frames.PROTOCOL_VERSION)),
    (frames.AckModeField, st.sampled_from(frames.AckMode)),
    (frames.Items, st.lists(items, max_size=5).map(tuple)),
    (frames.Pieces, st.lists(pieces, max_size=4).map(tuple)),
    (frames.SomeRanges, ranges),
    (RangesToEnd, ranges),
    (StartKindField, st.sampled_from(StartKind)),
    (transactions.AllConsumed, st.lists(consumed, max_size=3).map(tuple)),
    (transactions.Participants, st.lists(participants, max_size=3).map(tuple)),
    (transactions.Parts, st.lists(u128s, max_size=3).map(tuple)),
    (transaction_frames.PartsOfChannels, st.lists(parts, max_size=3).map(tuple)),
    (holds.DestinationIds, st.lists(u64s, max_size=3).map(tuple)),
    (range_frames.Wanted, st.lists(st.builds(range_frames.RangeWanted, u64s, u64s), max_size=3).map(tuple)),
    (destination_frames.RefusedNames, refusals),
    (transaction_frames.FateField, st.sampled_from(transaction_frames.TransactionFate)),
]


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a dataclass by its annotations, as the codec itself goes by them."""
    hints = get_type_hints(cls, include_extras=True)

    def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
        return next(strategy for annotation, strategy in VALUES if annotation == hint)

    return st.builds(cls, **{field.name: strategy_of(hints[field.name]) for field in fields(cls)})


FRAME_CLASSES: list[type[Any]] = list(get_args(Frame))
WITH_BATCH = (Publish, TransactedPublish, StagedPublish, BuryMessages, LogEvents)
PAYLOAD_CLASSES: list[type[Any]] = [cls for cls in get_args(Payload) if cls not in WITH_BATCH]

any_frame = st.one_of(*map(instances, FRAME_CLASSES))
any_publish = st.builds(Publish, u64s, u32s, st.just(0), blobs)
any_transacted = st.builds(TransactedPublish, u64s, u32s, u32s, u64s, u32s, st.just(0), blobs)
any_staged = st.builds(StagedPublish, u128s, u32s, u32s, u32s, u64s, u32s, st.just(0), texts, blobs)
any_burial = st.builds(
    BuryMessages,
    destination=u64s,
    subscription=u64s,
    reason=st.sampled_from(DeadReason),
    term=u64s,
    target=u64s,
    numbers=ranges,
    batch=blobs,
)
any_events = st.builds(LogEvents, batch=blobs)
any_payload = st.one_of(any_publish, any_transacted, any_staged, *map(instances, PAYLOAD_CLASSES))


@st.composite
def any_command(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """A command's header fields, and its bytes."""
    payload = draw(any_payload)
    kind = kind_of(payload)
    header: dict[str, Any] = {"kind": kind, "generation": draw(u32s), "confirmed_through": draw(u64s)}
    is_unnumbered = kind in UNNUMBERED
    of_session = is_unnumbered or (kind not in OF_THE_NODE and draw(st.booleans()))
    header["session"] = draw(st.integers(1, 2**128 - 1)) if of_session else NODE_SESSION
    header["number"] = draw(st.integers(1, 2**63)) if of_session and not is_unnumbered else 0
    header["count"] = draw(st.integers(1, PUBLISH_COUNT_MAX)) if kind == CommandKind.PUBLISH else 1
    return header, encode_command(payload=payload.encode(), **header)


@st.composite
def damaged(draw: st.DrawFn, originals: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that were right once: far deeper into a decoder than any made up from nothing."""
    data = bytearray(draw(originals))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        stop = start + draw(st.integers(0, 4))
        data[start:stop] = draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\xff" * 4, bytes(4)])))
    return bytes(data)


@pytest.mark.parametrize("cls", FRAME_CLASSES, ids=lambda cls: str(cls.__name__))
@given(data=st.data())
def test_a_frame_decodes_to_itself(cls: type[Any], data: st.DataObject) -> None:
    frame = data.draw(instances(cls))
    encoded = encode_frame(frame)
    assert int.from_bytes(encoded[:4], "little") == len(encoded) - 4
    decoded = decode_frame(encoded[4], memoryview(encoded)[5:])
    assert decoded == frame
    assert type(decoded) is cls


@given(any_frame, st.data())
def test_a_frame_cut_short_is_refused(frame: Frame, data: st.DataObject) -> None:
    encoded = encode_frame(frame)
    # What ends with its frame can be shorter: a command's header and a page's digest see to that.
    end = len(encoded)
    if isinstance(frame, Command):
        end = 5 + 2 + len(frame.channel.encode())
    elif isinstance(frame, RangePage):
        end = 5 + 4
    size = data.draw(st.integers(5, end - 1)) if end > 5 else 5
    with pytest.raises(ProtocolError):
        decode_frame(encoded[4], encoded[5:size])
    assert list(FrameBuffer().feed(encoded[:-1])) == []


def check_that_it_decodes_or_is_refused(kind: int, payload: bytes) -> None:
    try:
        frame = decode_frame(kind, payload)
    except (ProtocolError, VersionMismatch):
        return
    assert encode_frame(frame) == (1 + len(payload)).to_bytes(4, "little") + bytes((kind,)) + payload


@given(st.integers(0, 90), st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_are_refused(kind: int, payload: bytes) -> None:
    check_that_it_decodes_or_is_refused(kind, payload)


@given(damaged(any_frame.map(lambda frame: encode_frame(frame)[4:])))
def test_damaged_frames_are_another_frame_or_are_refused(data: bytes) -> None:
    if data:
        check_that_it_decodes_or_is_refused(data[0], data[1:])


@given(st.lists(any_frame, max_size=8), st.data())
def test_however_a_stream_is_cut_the_same_frames_come_out(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    buffer = FrameBuffer()
    received = [
        decode_frame(kind, payload)
        for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for kind, payload in buffer.feed(stream[start:stop])
    ]
    assert received == sent
    assert buffer.buffered_bytes == 0


def walk(pieces: list[bytes], limit: int) -> tuple[list[tuple[int, bytes]], bool]:
    """What comes out of a stream, and whether it was refused in the end."""
    buffer = FrameBuffer(limit)
    out = []
    try:
        for piece in pieces:
            for kind, payload in buffer.feed(piece):
                out.append((kind, bytes(payload)))
    except ProtocolError:
        return out, True
    return out, False


small_frames = st.builds(
    lambda n, body: n.to_bytes(4, "little") + body, st.integers(0, 6), st.binary(max_size=7)
)


@given(st.lists(st.one_of(small_frames, st.binary(max_size=9)), max_size=8), st.data())
@example([b"\x00\x00\x00\x00"], None)
def test_however_nonsense_is_cut_it_is_judged_the_same(
    parts: list[bytes], data: st.DataObject | None
) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20))) if data else [2]
    cut = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert walk(cut, limit=5) == walk([stream], limit=5)


@pytest.mark.parametrize("cls", [*PAYLOAD_CLASSES, Publish, BuryMessages], ids=lambda cls: str(cls.__name__))
@given(data=st.data())
def test_a_payload_decodes_to_itself(cls: type[Any], data: st.DataObject) -> None:
    whole = {Publish: any_publish, BuryMessages: any_burial, LogEvents: any_events}
    payload = data.draw(whole[cls] if cls in whole else instances(cls))
    decoded = decode_payload(kind_of(payload), payload.encode())
    assert decoded == payload
    assert type(decoded) is cls


def joined(commands: list[tuple[dict[str, Any], bytes]]) -> bytes:
    return b"".join(command for _, command in commands)


@given(st.lists(any_command(), max_size=5))
def test_an_envelope_gives_back_its_commands(commands: list[tuple[dict[str, Any], bytes]]) -> None:
    envelope = joined(commands)
    walked = list(iterate_commands(envelope))
    assert len(walked) == len(commands)
    for (header, payload, offset), (expected, command) in zip(walked, commands, strict=True):
        assert {name: getattr(header, name) for name in expected} == expected
        assert envelope[offset : offset + len(command)] == command
        assert command.endswith(payload)
        assert read_command(command) == (header, payload)


@given(any_command(), st.data())
def test_a_command_cut_short_is_refused(command: tuple[dict[str, Any], bytes], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(command[1]) - 1))
    with pytest.raises(ProtocolError):
        read_command(command[1][:size])


@given(st.one_of(st.binary(max_size=120), damaged(any_command().map(lambda command: command[1]))))
def test_any_bytes_are_commands_or_are_refused(data: bytes) -> None:
    again = b""
    try:
        for header, payload, _ in iterate_commands(data):
            decoded = decode_payload(header.kind, payload)
            fields_but_length = {name: value for name, value in header._asdict().items() if name != "length"}
            again += encode_command(payload=decoded.encode(), **fields_but_length)
    except ProtocolError:
        return
    assert again == data


@given(st.one_of(st.binary(max_size=120), damaged(st.lists(any_command(), max_size=4).map(joined))))
def test_counting_commands_agrees_with_walking_over_them(data: bytes) -> None:
    try:
        expected = sum(header.count for header, _, _ in iterate_commands(data))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            count_of(data)
    else:
        assert count_of(data) == expected


@given(st.lists(outcomes, max_size=8))
def test_outcomes_decode_to_themselves(rows: list[Outcome]) -> None:
    writer = Writer()
    write_outcomes(writer, rows)
    reader = Reader(writer.join())
    assert read_outcomes(reader, Outcome) == tuple(rows)
    reader.finish()
