from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from antiphon.errors import ProtocolError
from antiphon.wire.primitives import Reader, Writer


def test_what_is_written_is_read_back_in_order() -> None:
    writer = Writer()
    writer.u8(0xFF)
    writer.u16(0xFFFE)
    writer.u32(0xFFFF_FFFD)
    writer.u64(2**64 - 4)
    writer.i64(-5)
    writer.u128(2**128 - 6)
    writer.bool_(True)
    writer.text("grüße")
    writer.document("{}")
    writer.bytes_(b"abc")
    writer.raw(b"tail")
    reader = Reader(writer.join())
    assert [reader.u8(), reader.u16(), reader.u32(), reader.u64()] == [0xFF, 0xFFFE, 0xFFFF_FFFD, 2**64 - 4]
    assert [reader.i64(), reader.u128(), reader.bool_()] == [-5, 2**128 - 6, True]
    assert [reader.text(), reader.document()] == ["grüße", "{}"]
    assert bytes(reader.bytes_()) == b"abc"
    assert reader.remaining == 4
    assert bytes(reader.rest()) == b"tail"
    reader.finish()


def test_numbers_are_little_endian() -> None:
    writer = Writer()
    writer.u32(1)
    writer.u128(2)
    assert writer.join() == b"\x01\0\0\0" + b"\x02" + bytes(15)
    assert writer.size == 20


READS: list[Callable[[Reader], object]] = [
    Reader.u8,
    Reader.u16,
    Reader.u32,
    Reader.u64,
    Reader.i64,
    Reader.u128,
    Reader.bool_,
    Reader.text,
    Reader.document,
    Reader.bytes_,
    lambda reader: reader.raw(1),
    lambda reader: reader.count(1),
    lambda reader: reader.numbers(struct.Struct("<QI")),
]


@pytest.mark.parametrize("read", READS)
def test_reading_beyond_the_end_is_a_protocol_error(read: Callable[[Reader], object]) -> None:
    with pytest.raises(ProtocolError):
        read(Reader(b""))


def test_a_length_beyond_the_end_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="5 bytes announced"):
        Reader(b"\x05\0abcd").text()
    with pytest.raises(ProtocolError, match="4294967295 bytes announced"):
        Reader(b"\xff\xff\xff\xffabcd").bytes_()


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_anything_is_made() -> None:
    with pytest.raises(ProtocolError, match="3 elements announced"):
        Reader(b"\x03\0\0\0" + bytes(5)).count(2)
    assert Reader(b"\x03\0\0\0" + bytes(6)).count(2) == 3


@pytest.mark.parametrize("data", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x82"])
def test_a_text_that_is_not_strict_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        Reader(bytes((len(data), 0)) + data).text()


def test_a_yes_or_no_is_one_or_nought() -> None:
    assert not Reader(b"\0").bool_()
    assert Reader(b"\x01").bool_()
    with pytest.raises(ProtocolError):
        Reader(b"\x02").bool_()


def test_bytes_after_the_end_are_refused() -> None:
    reader = Reader(b"\x01\x02")
    reader.u8()
    with pytest.raises(ProtocolError, match="1 bytes after the end"):
        reader.finish()


def test_byte_strings_are_read_only_views_of_what_was_given() -> None:
    source = bytearray(b"\x03\0\0\0abc")
    view = Reader(source).bytes_()
    assert view.obj is source
    assert view.readonly


def test_values_without_a_place_in_the_format_are_our_own_mistake() -> None:
    writer = Writer()
    for write, value in [(writer.u8, 256), (writer.u16, -1), (writer.u64, 2**64), (writer.u128, 2**128)]:
        with pytest.raises(ValueError, match="fit"):
            write(value)
    with pytest.raises(ValueError, match="65536 bytes"):
        writer.text("x" * 65536)
    with pytest.raises(ValueError, match="surrogates"):
        writer.text("\ud800")
    assert writer.parts == []
