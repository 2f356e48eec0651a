"""Frames into bodies and out again; cut frames come together, or are dropped."""

from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.transport import packing as p


def pack(capacity: int, *frames: bytes) -> list[bytes]:
    packer = p.Packer(capacity, 10_000)
    for frame in frames:
        packer.add([frame[:3], frame[3:]])
    return packer.take()


def test_small_frames_share_a_body() -> None:
    (body,) = pack(100, b"one", b"", b"three")
    assert [bytes(frame) for frame in p.unpack_frames(body)] == [b"one", b"", b"three"]


def test_a_body_is_never_larger_than_its_datagram() -> None:
    bodies = pack(100, *(b"x" * size for size in range(1, 250)))
    assert max(map(len, bodies)) <= 100


def test_a_frame_that_does_not_fit_any_more_begins_the_next_body() -> None:
    bodies = pack(100, b"x" * 60, b"y" * 60)
    assert [[len(frame) for frame in p.unpack_frames(body)] for body in bodies] == [[60], [60]]


def test_a_frame_that_just_fits_is_not_cut() -> None:
    assert len(pack(100, b"x" * 95)) == 1
    assert len(pack(100, b"x" * 96)) == 2


def test_the_parts_of_a_frame_follow_each_other() -> None:
    frame = bytes(range(256))
    bodies = pack(100, b"before", frame, b"after")
    assert [body[0] for body in bodies] == [p.FRAMES, p.PART, p.PART, p.PART, p.FRAMES]
    parts = [p.unpack_part(body) for body in bodies[1:-1]]
    assert [(index, count) for index, count, _ in parts] == [(0, 3), (1, 3), (2, 3)]
    assert b"".join(piece for _, _, piece in parts) == frame


def test_a_frame_that_nobody_would_take_is_not_cut() -> None:
    assert pack(100, b"x" * 10_000)
    with pytest.raises(ValueError, match="10001 bytes"):
        pack(100, b"x" * 10_001)


def test_nothing_added_nothing_taken() -> None:
    packer = p.Packer(100, 10_000)
    assert packer.take() == []
    packer.add([b"x"])
    assert len(packer.take()) == 1
    assert packer.take() == []


def test_what_members_say_to_each_other_is_read_back() -> None:
    heads = [(1, 2, 3), (0x1_0007, 0, 1 << 60)]
    assert p.unpack_heads(p.pack_heads(heads)) == heads
    assert p.unpack_heads(p.pack_heads([])) == []
    assert p.unpack_ask(p.pack_ask(3, 1, [(5, 6), (7, 1)])) == (3, 1, [(5, 6), (7, 1)])
    assert p.unpack_nonce(p.pack_nonce(p.ECHO, b"n" * 16)) == b"n" * 16


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (p.unpack_frames, bytes([p.FRAMES, 1, 0, 0])),
        (p.unpack_frames, bytes([p.FRAMES, 2, 0, 0, 0, 1])),
        (p.unpack_frames, bytes([p.FRAMES, 255, 255, 255, 255, 1])),
        (p.unpack_part, bytes([p.PART, 0, 0, 0, 0, 1, 0, 0, 0])),
        (p.unpack_part, bytes([p.PART, 1, 0, 0, 0, 1, 0, 0, 0, 7])),
        (p.unpack_part, bytes([p.PART, 0, 0, 0, 0, 255, 255, 255, 255, 7])),
        (p.unpack_heads, bytes([p.HEADS, 1])),
        (p.unpack_ask, bytes([p.ASK, 1, 0])),
        (p.unpack_ask, p.pack_ask(1, 1, [(1, 1)])[:-1]),
        (p.unpack_nonce, bytes([p.ECHO])),
    ],
)
def test_a_body_that_makes_no_sense_is_refused(read: object, body: bytes) -> None:
    assert callable(read)
    with pytest.raises(ProtocolError):
        read(body)


# -- parts ------------------------------------------------------------------------------------------


def assembler(*, bytes_max: int = 1_000, frame_bytes_max: int = 500) -> p.Assembler:
    return p.Assembler(bytes_max=bytes_max, frame_bytes_max=frame_bytes_max, keep_ns=100)


def piece(text: str) -> memoryview:
    return memoryview(text.encode())


def test_parts_come_together_in_any_order() -> None:
    frames = assembler()
    assert frames.add(1, (0, 5), 2, 3, piece("c")) is None
    assert frames.add(1, (0, 5), 0, 3, piece("aa")) is None
    assert frames.add(1, (0, 5), 1, 3, piece("bb")) == b"aabbc"
    assert len(frames) == 0 and frames.bytes == 0


def test_frames_do_not_mix() -> None:
    frames = assembler()
    frames.add(1, (0, 5), 0, 2, piece("a"))
    frames.add(1, (1, 5), 0, 2, piece("x"))
    assert frames.add(1, (1, 5), 1, 2, piece("y")) == b"xy"
    assert frames.add(1, (0, 5), 1, 2, piece("b")) == b"ab"


def test_what_does_not_move_is_let_go() -> None:
    frames = assembler()
    frames.add(1, (0, 0), 0, 3, piece("a"))
    frames.add(90, (0, 9), 0, 3, piece("a"))
    frames.expire(101)
    assert (len(frames), frames.given_up) == (1, 1)
    frames.add(180, (0, 9), 1, 3, piece("b"))
    frames.expire(200)
    assert len(frames) == 1, "it moved"


def test_the_oldest_goes_when_there_is_too_much() -> None:
    frames = assembler(bytes_max=25)
    for base in range(3):
        frames.add(1, (0, base), 0, 2, piece("x" * 10))
    assert (len(frames), frames.bytes, frames.given_up) == (2, 20, 1)
    assert frames.add(1, (0, 2), 1, 2, piece("y")) is not None


def test_a_frame_has_its_limit_however_many_parts_it_claims() -> None:
    frames = assembler(frame_bytes_max=25)
    frames.add(1, (0, 0), 0, 60_000, piece("x" * 20))
    with pytest.raises(ProtocolError, match="larger"):
        frames.add(1, (0, 0), 1, 60_000, piece("x" * 20))
    assert frames.bytes == 0


def test_parts_that_contradict_each_other_are_refused() -> None:
    frames = assembler()
    frames.add(1, (0, 0), 0, 3, piece("a"))
    with pytest.raises(ProtocolError):
        frames.add(1, (0, 0), 1, 4, piece("b"))
