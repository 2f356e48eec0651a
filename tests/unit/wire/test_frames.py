from __future__ import annotations

from typing import get_args

import pytest

from antiphon.errors import ProtocolError, VersionMismatch
from antiphon.ranges import Ranges
from antiphon.wire.buffer import FrameBuffer
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from antiphon.wire.destination_frames import RefusedName
from antiphon.wire.frames import (
    PROTOCOL_VERSION,
    AckMode,
    Answer,
    Ask,
    ClientFrame,
    Command,
    Confirm,
    ConsumerCheck,
    ConsumerClose,
    ConsumerDrain,
    ConsumerGone,
    ConsumerLost,
    ConsumerOpen,
    ConsumerResume,
    ConsumerResumed,
    Credit,
    Deliver,
    DeliverPiece,
    DestinationCreate,
    DestinationOpen,
    DestinationOpened,
    DestinationsCreate,
    DestinationsCreated,
    Done,
    Failed,
    FlowState,
    Frame,
    Goodbye,
    Hello,
    Ping,
    Pong,
    RangeAsk,
    RangePage,
    RangeRead,
    RangeTold,
    ServerFrame,
    SessionClose,
    SessionGone,
    SessionOpen,
    SessionOpened,
    SubscriptionFind,
    SubscriptionFound,
    TransactionAsk,
    TransactionCommit,
    TransactionDecided,
    Welcome,
    command_buffers,
    decode_client_frame,
    decode_frame,
    decode_server_frame,
    deliver_buffers,
    encode_frame,
    lone_confirm_head,
    lone_confirm_tail,
    range_page_buffers,
)
from antiphon.wire.layout import Layout
from antiphon.wire.range_frames import RangeWanted
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import Consumed


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def u128(value: int) -> bytes:
    return value.to_bytes(16, "little")


# Every frame, its type, and its payload written out by hand: the format may not change by accident.
BYTES: list[tuple[Frame, int, bytes]] = [
    (
        Hello(user="eva", password="pw", client_id="desk", connection=9, generation=2),
        1,
        b"ANTI\x0e\x00" + b"\x03\0eva" + b"\x02\0pw" + b"\x04\0desk" + u128(9) + u32(2),
    ),
    (
        Welcome(
            node=1,
            cluster="c",
            servers=("a:1", "b:2"),
            connection=9,
            frame_limit=65536,
            heartbeat_ms=5000,
            sure_ms=125,
        ),
        2,
        b"ANTI\x0e\x00"
        + b"\x01\x00"
        + b"\x01\0c"
        + u32(2)
        + b"\x03\0a:1"
        + b"\x03\0b:2"
        + u128(9)
        + u32(65536)
        + u32(5000)
        + u32(125),
    ),
    (
        TransactionCommit(
            request=3,
            session=9,
            transaction=4,
            parts=(TransactionPart("a", 1, 2, (Consumed(5, 6, Ranges([(7, 9)])),), (8,)),),
            application="job",
            version=12,
        ),
        52,
        u32(3)
        + u128(9)
        + u64(4)
        + u32(1)
        + b"\x01\0a"
        + u32(1)
        + u32(2)
        + u32(1)
        + u64(5)
        + u64(6)
        + u32(16)
        + u64(7)
        + u64(9)
        + u32(1)
        + u128(8)
        + b"\x03\0job"
        + u64(12),
    ),
    (
        TransactionAsk(request=3, session=9, transaction=4, home="a"),
        53,
        u32(3) + u128(9) + u64(4) + b"\x01\0a",
    ),
    (
        TransactionDecided(request=3, fate=TransactionFate.ROLLED_BACK, text="why"),
        54,
        u32(3) + b"\x01" + b"\x03\0why",
    ),
    (Goodbye(code="x", text="why"), 3, b"\x01\0x" + b"\x03\0why"),
    (Ping(nonce=7), 4, u64(7)),
    (Pong(nonce=7), 5, u64(7)),
    (Done(request=3), 6, u32(3)),
    (Failed(request=3, code="x", text="why"), 7, u32(3) + b"\x01\0x" + b"\x03\0why"),
    (
        SessionOpen(
            request=3, session=9, generation=5, ack_mode=AckMode.DUPS_OK, channels=("main",), known=(4,)
        ),
        16,
        u32(3) + u128(9) + u32(5) + b"\x03" + u32(1) + b"\x04\0main" + u32(1) + u32(4),
    ),
    (
        SessionOpened(request=3, session=9, generation=2, window_bytes=1000),
        17,
        u32(3) + u128(9) + u32(2) + u32(1000),
    ),
    (SessionClose(request=3, session=9), 18, u32(3) + u128(9)),
    (SessionGone(session=9, code="x", text="why"), 19, u128(9) + b"\x01\0x" + b"\x03\0why"),
    (
        DestinationOpen(request=3, name="queue:q", create=True, session=9, channel="b"),
        32,
        u32(3) + b"\x07\0queue:q" + b"\x01" + u128(9) + b"\1\0b",
    ),
    (
        DestinationOpened(request=3, destination=5, settings_version=6, channel="main", channels=("a", "b")),
        33,
        u32(3) + u64(5) + u32(6) + b"\x04\0main" + u32(2) + b"\1\0a" + b"\1\0b",
    ),
    (
        DestinationCreate(request=3, name="topic:t", settings="{}"),
        34,
        u32(3) + b"\x07\0topic:t" + b"\x02\0{}",
    ),
    (
        DestinationsCreate(request=3, names=("topic:t", "queue:q"), settings="{}"),
        38,
        u32(3) + u32(2) + b"\x07\0topic:t" + b"\x07\0queue:q" + b"\x02\0{}",
    ),
    (
        DestinationsCreated(request=3, made=Ranges([(0, 2)]), refused=(RefusedName(4, "x", "why"),)),
        39,
        u32(3) + u32(16) + u64(0) + u64(2) + u32(1) + u32(4) + b"\x01\0x" + b"\x03\0why",
    ),
    (
        SubscriptionFind(request=3, session=9, name="audit", durable=False, ends=True, channel="b"),
        36,
        u32(3) + u128(9) + b"\x05\0audit" + b"\x00\x01" + b"\1\0b",
    ),
    (
        SubscriptionFound(
            request=3,
            subscription=5,
            destination=6,
            channel="main",
            topic="topic:prices",
            channels=("a", "b"),
        ),
        37,
        u32(3) + u64(5) + u64(6) + b"\x04\0main" + b"\x0c\0topic:prices" + u32(2) + b"\1\0a" + b"\1\0b",
    ),
    (Command(channel="main", command=b"bytes"), 48, b"\x04\0main" + b"bytes"),
    (
        Confirm(session=9, channel="main", items=(ConfirmItem(1, 2, OutcomeCode.REFUSED, 4, "full"),)),
        49,
        u128(9)
        + b"\x04\0main"
        + u32(1)
        + (u64(1) + u32(2) + b"\x03" + u64(4))
        + u32(1)
        + (u32(0) + b"\x04\0full"),
    ),
    (
        FlowState(channel="main", blocked=True, reason="full"),
        50,
        b"\x04\0main" + b"\x01" + b"\x04\0full",
    ),
    (
        ConsumerOpen(
            request=3,
            session=9,
            consumer=4,
            channel="main",
            destination=5,
            subscription=8,
            selector="a",
            credit_messages=6,
            credit_bytes=7,
        ),
        64,
        u32(3) + u128(9) + u32(4) + b"\x04\0main" + u64(5) + u64(8) + b"\x01\0a" + u64(6) + u64(7),
    ),
    (
        ConsumerClose(request=3, session=9, consumer=4, seen_through=5),
        65,
        u32(3) + u128(9) + u32(4) + u64(5),
    ),
    (ConsumerCheck(request=3, session=9, consumer=4), 78, u32(3) + u128(9) + u32(4)),
    (
        ConsumerDrain(request=3, session=9, consumer=4, messages=6, bytes=7),
        79,
        u32(3) + u128(9) + u32(4) + u64(6) + u64(7),
    ),
    (Credit(session=9, consumer=4, messages=6, bytes=7), 66, u128(9) + u32(4) + u64(6) + u64(7)),
    (
        Deliver(
            session=9,
            destination=5,
            term=6,
            first_delivery=7,
            consumer=4,
            channel="main",
            topics=("topic:a", "topic:b"),
            pieces=(DeliverPiece(100, 0, b"rows"), DeliverPiece(50, 2, b"")),
        ),
        67,
        u128(9)
        + u64(5)
        + u64(6)
        + u64(7)
        + u32(4)
        + b"\x04\0main"
        + u32(2)
        + b"\x07\0topic:a\x07\0topic:b"
        + u32(2)
        + (u64(100) + u32(0) + u32(4) + b"rows")
        + (u64(50) + u32(2) + u32(0)),
    ),
    (
        ConsumerGone(session=9, consumer=4, code="x", text="why"),
        68,
        u128(9) + u32(4) + b"\x01\0x" + b"\x03\0why",
    ),
    (
        ConsumerResume(
            request=3,
            session=9,
            consumer=4,
            channel="main",
            destination=5,
            subscription=8,
            selector="a",
            credit_messages=6,
            credit_bytes=7,
            delivered_messages=2,
            delivered_bytes=1,
            held=Ranges([(40, 50)]),
        ),
        69,
        u32(3)
        + u128(9)
        + u32(4)
        + b"\x04\0main"
        + u64(5)
        + u64(8)
        + b"\x01\0a"
        + u64(6)
        + u64(7)
        + u64(2)
        + u64(1)
        + (u32(16) + u64(40) + u64(50)),
    ),
    (ConsumerResumed(request=3, lost=Ranges([(40, 42)])), 70, u32(3) + u32(16) + u64(40) + u64(42)),
    (
        ConsumerLost(session=9, consumer=4, lost=Ranges([(40, 42)])),
        71,
        u128(9) + u32(4) + u32(16) + u64(40) + u64(42),
    ),
    (
        RangeAsk(request=3, channel="main", floor=5, wait_ms=6, question="{}"),
        74,
        u32(3) + b"\x04\0main" + u64(5) + u32(6) + u32(2) + b"{}",
    ),
    (RangeTold(request=3, answer="{}"), 75, u32(3) + u32(2) + b"{}"),
    (
        RangeRead(
            request=3,
            channel="main",
            start=5,
            stop=6,
            goal=7,
            floor=8,
            page_bytes=9,
            ahead=10,
            ahead_from=11,
            allow_lost=True,
            acks=True,
            live=True,
            destinations=(RangeWanted(12, 13),),
        ),
        76,
        u32(3)
        + b"\x04\0main"
        + (u64(5) + u64(6) + u64(7) + u64(8))
        + (u32(9) + b"\x0a\0" + u64(11) + b"\x01\x01\x01")
        + (u32(1) + u64(12) + u64(13)),
    ),
    (RangePage(request=3, page=b"page"), 77, u32(3) + b"page"),
    (Ask(request=3, question="{}"), 80, u32(3) + u32(2) + b"{}"),
    (Answer(request=3, answer="[]"), 81, u32(3) + u32(2) + b"[]"),
]
FRAMES = [frame for frame, _, _ in BYTES]


def name_of(value: object) -> str:
    return type(value).__name__


def payload_of(frame: Frame) -> memoryview:
    return memoryview(encode_frame(frame))[5:]


def type_of(frame: Frame) -> int:
    return encode_frame(frame)[4]


def test_no_frame_is_missing_from_these_tests() -> None:
    assert sorted(map(name_of, FRAMES)) == sorted(cls.__name__ for cls in get_args(Frame))


@pytest.mark.parametrize(("frame", "kind", "payload"), BYTES, ids=map(name_of, FRAMES))
def test_the_bytes_of_every_frame(frame: Frame, kind: int, payload: bytes) -> None:
    assert encode_frame(frame) == u32(1 + len(payload)) + bytes((kind,)) + payload
    decoded = decode_frame(kind, payload)
    assert decoded == frame
    assert type(decoded) is type(frame)


@pytest.mark.parametrize("frame", FRAMES, ids=name_of)
def test_a_frame_that_ends_early_is_refused(frame: Frame) -> None:
    kind, payload = type_of(frame), payload_of(frame)
    # The end of a Command is the end of its frame; the command's own header tells whether it is whole. So
    # does the digest of a page.
    ends_with_frame = {Command: 6, RangePage: 4}
    sizes = range(ends_with_frame.get(type(frame), len(payload)))
    for size in sizes:
        with pytest.raises(ProtocolError):
            decode_frame(kind, payload[:size])


@pytest.mark.parametrize(
    "frame", [frame for frame in FRAMES if not isinstance(frame, Command | RangePage)], ids=name_of
)
def test_a_frame_that_goes_on_too_long_is_refused(frame: Frame) -> None:
    with pytest.raises(ProtocolError):
        decode_frame(type_of(frame), bytes(payload_of(frame)) + b"\0")


@pytest.mark.parametrize("frame", FRAMES, ids=name_of)
def test_who_may_say_what(frame: Frame) -> None:
    kind, payload = type_of(frame), payload_of(frame)
    if isinstance(frame, ClientFrame):
        assert decode_client_frame(kind, payload) == frame
    else:
        with pytest.raises(ProtocolError, match="not for a client to say"):
            decode_client_frame(kind, payload)
    if isinstance(frame, ServerFrame):
        assert decode_server_frame(kind, payload) == frame
    else:
        with pytest.raises(ProtocolError, match="not for a server to say"):
            decode_server_frame(kind, payload)


@pytest.mark.parametrize("kind", [0, 8, 255])
def test_an_unknown_type_is_refused(kind: int) -> None:
    for decode in (decode_frame, decode_client_frame, decode_server_frame):
        with pytest.raises(ProtocolError, match=f"type {kind} is not known"):
            decode(kind, b"")


def test_a_greeting_of_another_version_is_told_apart_before_the_rest_is_read() -> None:
    with pytest.raises(VersionMismatch, match=r"speaks version 15 .* we speak 14"):
        decode_frame(1, b"ANTI\x0f\x00\xff\xff and nothing else that we could know")
    with pytest.raises(VersionMismatch):
        decode_frame(2, b"ANTI\x0f\x00")
    with pytest.raises(VersionMismatch):
        decode_frame(1, payload_of(Hello(version=PROTOCOL_VERSION + 1, user="", password="", client_id="")))


def test_a_greeting_without_the_mark_is_no_greeting() -> None:
    with pytest.raises(ProtocolError, match="lacks its mark"):
        decode_frame(1, b"AMQP\x00\x00\x09\x01")


def test_a_web_browser_is_refused_by_its_first_four_bytes() -> None:
    with pytest.raises(ProtocolError, match="a frame of 542393671 bytes"):
        list(FrameBuffer().feed(b"GET "))


def test_the_password_is_not_printed() -> None:
    assert "secret" not in repr(Hello(user="eva", password="secret", client_id=""))


def test_an_acknowledge_mode_nobody_knows_is_refused() -> None:
    payload = bytearray(payload_of(SessionOpen(request=1, session=0, generation=0, ack_mode=AckMode.AUTO)))
    payload[24] = 5
    with pytest.raises(ProtocolError, match="mode 5"):
        decode_frame(16, payload)


def test_an_answer_may_be_longer_than_a_text() -> None:
    answer = Answer(request=1, answer="x" * 100_000)
    assert decode_frame(81, payload_of(answer)) == answer


def test_a_command_is_a_view_of_what_arrived() -> None:
    data = encode_frame(Command(channel="main", command=bytes(1000)))
    [(kind, payload)] = FrameBuffer().feed(data)
    frame = decode_frame(kind, payload)
    assert isinstance(frame, Command)
    assert isinstance(frame.command, memoryview)
    assert frame.command.obj is data
    assert frame.command.readonly


def test_command_buffers_are_the_frame_without_a_copy_of_the_command() -> None:
    header, batch = b"header", b"batch"
    buffers = command_buffers("main", [header, batch], len(header) + len(batch))
    assert b"".join(buffers) == encode_frame(Command(channel="main", command=b"headerbatch"))
    assert buffers[1] is header
    assert buffers[2] is batch


def test_deliver_buffers_are_the_frame_without_a_copy_of_the_batches() -> None:
    first, second, third = b"offsets", memoryview(b"bodies"), b"other"
    stream = {"session": 9, "destination": 5, "term": 6, "first_delivery": 7, "consumer": 4}
    buffers = deliver_buffers(**stream, channel="main", pieces=[(100, 0, [first, second]), (50, 2, [third])])
    pieces = (DeliverPiece(100, 0, b"offsetsbodies"), DeliverPiece(50, 2, b"other"))
    assert b"".join(buffers) == encode_frame(Deliver(**stream, channel="main", pieces=pieces))
    topics = ("topic:a", "topic:é")
    named = deliver_buffers(**stream, channel="main", pieces=[(9, 0, [b"x"]), (7, 0, [b"y"])], topics=topics)
    pieces = (DeliverPiece(9, 0, b"x"), DeliverPiece(7, 0, b"y"))
    assert b"".join(named) == encode_frame(Deliver(**stream, channel="main", pieces=pieces, topics=topics))
    for part in (first, second, third):
        assert any(buffer is part for buffer in buffers)


def test_range_page_buffers_are_the_frame_without_a_copy_of_the_page() -> None:
    first, second = b"offsets", memoryview(b"bodies")
    buffers = range_page_buffers(3, [first, second])
    assert b"".join(buffers) == encode_frame(RangePage(request=3, page=b"offsetsbodies"))
    assert buffers[1] is first and buffers[2] is second


def test_values_that_do_not_fit_are_our_own_mistake() -> None:
    for frame in (Ping(nonce=2**64), SessionClose(request=1, session=-1), Goodbye(code="x" * 65536, text="")):
        with pytest.raises(ValueError, match=r"fit|65536"):
            encode_frame(frame)


@pytest.mark.parametrize(
    "items",
    [
        (),
        (ConfirmItem(5, 1, OutcomeCode.APPLIED, 77),),
        (ConfirmItem(5, 3, OutcomeCode.REFUSED, 0, "no"),),
        (ConfirmItem(5, 1, OutcomeCode.APPLIED, 77), ConfirmItem(6, 2, OutcomeCode.APPLIED, 90)),
    ],
)
@pytest.mark.parametrize("channel", ["a", "", "kanal-ä"])
def test_a_confirm_is_written_and_read_as_its_layout_says(
    channel: str, items: tuple[ConfirmItem, ...]
) -> None:
    frame = Confirm(session=1 << 100, channel=channel, items=items)
    data = encode_frame(frame)
    if len(items) == 1 and not items[0].text:
        assert lone_confirm_head(frame.session, channel) + lone_confirm_tail(items[0]) == data
    assert decode_frame(data[4], data[5:]) == Layout(Confirm).decode(data[5:]) == frame


def test_a_confirm_of_one_item_is_refused_as_its_layout_says() -> None:
    """The short way against the long one, for every byte."""
    item = ConfirmItem(5, 1, OutcomeCode.APPLIED, 77)
    honest = encode_frame(Confirm(session=3, channel="main", items=(item,)))
    layout = Layout(Confirm)
    for at in range(5, len(honest)):
        for flip in (1, 2, 0x10, 0x80, 0xFF):
            lie = bytearray(honest)
            lie[at] ^= flip
            payload = bytes(lie[5:])
            try:
                expected = layout.decode(payload)
            except ProtocolError as error:
                with pytest.raises(ProtocolError) as refusal:
                    decode_frame(lie[4], payload)
                assert refusal.value.text == error.text, f"byte {at}"
            else:
                assert decode_frame(lie[4], payload) == expected, f"byte {at}"
