"""Frames come together again, or are let go."""

from __future__ import annotations

import pytest

from antiphon.errors import ProtocolError
from antiphon.transport.reassembly import Assembler


def assembler(*, bytes_max: int = 1_000, frame_bytes_max: int = 500) -> Assembler:
    return Assembler(bytes_max=bytes_max, frame_bytes_max=frame_bytes_max, keep_ns=100)


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
