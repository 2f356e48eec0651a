from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.wire.buffer import HANDSHAKE_FRAME_BYTES_MAX, FrameBuffer

Frames = list[tuple[int, bytes]]


def framed(kind: int, payload: bytes) -> bytes:
    return (1 + len(payload)).to_bytes(4, "little") + bytes((kind,)) + payload


def feed(buffer: FrameBuffer, data: bytes) -> Frames:
    return [(kind, bytes(payload)) for kind, payload in buffer.feed(data)]


def test_frames_of_one_piece_come_out_in_order() -> None:
    assert feed(FrameBuffer(), framed(1, b"one") + framed(2, b"") + framed(3, b"three")) == [
        (1, b"one"),
        (2, b""),
        (3, b"three"),
    ]


def test_a_frame_fed_byte_by_byte_comes_out_with_its_last_byte() -> None:
    buffer = FrameBuffer()
    stream = framed(9, b"slowly")
    for index, byte in enumerate(stream[:-1]):
        assert feed(buffer, bytes((byte,))) == []
        assert buffer.buffered_bytes == index + 1
    assert feed(buffer, stream[-1:]) == [(9, b"slowly")]
    assert buffer.buffered_bytes == 0


def test_a_frame_within_one_piece_is_a_view_of_it() -> None:
    data = framed(1, b"payload")
    [(_, payload)] = FrameBuffer().feed(data)
    assert payload.obj is data


def test_a_gathered_frame_is_not_touched_by_what_follows() -> None:
    buffer = FrameBuffer()
    stream = framed(1, b"first") + framed(2, b"second")
    kept = [*buffer.feed(stream[:7]), *buffer.feed(stream[7:15]), *buffer.feed(stream[15:])]
    assert [(kind, bytes(payload)) for kind, payload in kept] == [(1, b"first"), (2, b"second")]
    assert all(payload.readonly for _, payload in kept)


def test_a_frame_at_the_limit_passes_and_one_beyond_is_refused() -> None:
    assert feed(FrameBuffer(8), framed(1, b"1234567")) == [(1, b"1234567")]
    with pytest.raises(ProtocolError, match="9 bytes; allowed are 1 to 8"):
        feed(FrameBuffer(8), framed(1, b"12345678"))


def test_before_the_handshake_the_limit_is_64_kib() -> None:
    assert FrameBuffer().limit == HANDSHAKE_FRAME_BYTES_MAX == 65536


def test_the_length_is_judged_when_its_fourth_byte_arrives() -> None:
    buffer = FrameBuffer(100)
    assert feed(buffer, b"\xff\xff\xff") == []
    with pytest.raises(ProtocolError):
        feed(buffer, b"\xff")
    assert buffer.buffered_bytes == 0


def test_a_frame_without_a_type_is_refused() -> None:
    with pytest.raises(ProtocolError, match="a frame of 0 bytes"):
        feed(FrameBuffer(), bytes(4))


def test_frames_before_a_broken_one_still_come_out() -> None:
    walk = FrameBuffer(8).feed(framed(1, b"good") + b"\xff\xff\xff\xff")
    assert next(walk)[0] == 1
    with pytest.raises(ProtocolError):
        next(walk)


def test_after_an_error_nothing_more_is_taken() -> None:
    buffer = FrameBuffer(8)
    with pytest.raises(ProtocolError):
        feed(buffer, b"\xff\xff\xff\xff")
    with pytest.raises(ProtocolError):
        feed(buffer, framed(1, b"good"))
    assert buffer.buffered_bytes == 0


def test_a_limit_raised_between_two_frames_holds_for_the_second() -> None:
    buffer = FrameBuffer(8)
    kinds = []
    for kind, _ in buffer.feed(framed(1, b"hello") + framed(2, bytes(100))):
        kinds.append(kind)
        buffer.limit = 1000
    assert kinds == [1, 2]


def test_an_announcement_alone_costs_no_memory() -> None:
    buffer = FrameBuffer(2**31)
    assert feed(buffer, (2**31).to_bytes(4, "little") + b"\x01") == []
    assert buffer.buffered_bytes == 5


def test_a_walk_that_is_left_early_is_taken_up_by_the_next_feed() -> None:
    buffer = FrameBuffer()
    stream = framed(1, b"one") + framed(2, b"two") + framed(3, b"three")
    for kind, _ in buffer.feed(stream[:-2]):
        assert kind == 1
        break
    assert feed(buffer, stream[-2:]) == [(2, b"two"), (3, b"three")]


def test_bytes_nobody_walked_over_are_kept() -> None:
    buffer = FrameBuffer()
    buffer.feed(framed(1, b"one"))
    assert feed(buffer, framed(2, b"two")) == [(1, b"one"), (2, b"two")]
