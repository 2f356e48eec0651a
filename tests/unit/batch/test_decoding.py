"""Bytes that are almost a batch: each lie is found, and named."""

from __future__ import annotations

import struct
from typing import Any
from unittest import mock

import pytest

from antiphon.batch import BATCH_BYTES_MAX, Batch, BatchBuilder, BodyKind, ColumnId
from antiphon.batch.column import Column
from antiphon.batch.decoding import decode_any_parts, lone_fields
from antiphon.batch.layout import ENTRY, HEADER, IDENTIFIED_ROWS_MAX
from antiphon.errors import ProtocolError
from antiphon.values import ValueType


def plain() -> bytearray:
    return bytearray(Batch.of_bodies([b"a", b"bc", b""], producer=7, first_number=1, timestamp_ms=5).encode())


def rich(**extras: Any) -> bytearray:
    builder = BatchBuilder()
    for number in range(3):
        builder.add(b"a", timestamp_ms=5, **extras)
        extras.update(priority=number, key="kä", properties={"color": "red", "n": number})
    return bytearray(builder.build(7, 1).encode())


def refused(data: bytes | bytearray, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        Batch.decode(bytes(data))


@pytest.mark.parametrize(
    ("at", "code", "value", "complaint"),
    [
        (0, "B", 0xB1, "version 0xb1"),
        (1, "B", 1, "rules 0x1 has columns for 0x0"),
        (2, "B", 1, "codec 1"),
        (3, "B", 5, "no body is of kind 5"),
        (3, "B", 255, "kind of bodies is given twice, or not at all"),
        (3, "B", 4, "messages without a body have one of 3 bytes"),
        (3, "B", 2, "runs over the end"),
        (4, "I", 0, "a batch of 0 rows"),
        (4, "I", 65_537, "a batch of 65537 rows"),
        (4, "I", 60_000, "a block that ends at"),
        (4, "I", 1, "the offsets of a column do not divide"),
        (8, "I", 79, "says it has 79 bytes"),
        (12, "B", 0, "bytes follow the last column"),
        (12, "B", 255, "a block that ends at"),
        (13, "B", 8, "first bit 8"),
        (14, "H", 60_000, "a block that ends at"),
        (32, "Q", 2**64 - 2, "do not fit 64 bits"),
        (40, "q", -1, "time -1"),
        (48, "B", 15, "no batch has a column 15 of type 9, flags 0"),
        (48, "B", 11, "has no bodies"),
        (49, "B", 10, "no batch has a column 0 of type 10"),
        (49, "B", 8, "column BODY of a batch is of type STR"),
        (50, "B", 2, "flags 2"),
        (50, "B", 1, "column BODY of a batch is of type BYTES, flags 1"),
        (51, "B", 1, "column BODY"),
        (52, "I", 2**32 - 1, "do not divide its 4294967295 bytes"),
        (56, "i", -1, "do not divide"),
        (60, "i", 7, "do not divide"),
        (68, "i", 4, "do not divide"),
        (75, "B", 1, "not padded with zeros"),
    ],
)
def test_a_lie_in_a_plain_batch_is_found(at: int, code: str, value: int, complaint: str) -> None:
    data = plain()
    struct.pack_into(f"<{code}", data, at, value)
    refused(data, complaint)


def test_nothing_and_too_much_are_no_batch() -> None:
    refused(b"", "0 bytes are no batch")
    refused(bytes(BATCH_BYTES_MAX + 8), "are no batch")


def test_bytes_behind_a_batch_are_refused() -> None:
    data = plain() + bytes(8)
    refused(data, "says it has 80 bytes; it has 88")
    struct.pack_into("<I", data, 8, len(data))
    refused(data, "8 bytes follow the last column")


def entry_of(data: bytearray, id: int) -> int:
    """Where the directory's entry for the column lies; the first of them for properties."""
    return next(
        at for at in range(HEADER.size, HEADER.size + data[12] * ENTRY.size, ENTRY.size) if data[at] == id
    )


@pytest.mark.parametrize(
    ("id", "offset", "value", "complaint"),
    [
        (3, 0, 4, "column EXPIRES of a batch is of type I8"),
        (3, 1, 5, "column PRIORITY of a batch is of type I64"),
        (3, 4, 4, "4 bytes for 3 rows of type I8"),
        (7, 0, 2, "column TIMESTAMP"),
        (7, 0, 3, "column PRIORITY of a batch"),
        (13, 0, 1, "column BODY_KIND"),
        (13, 1, 10, "of type 10"),
        (13, 1, 1, "6 bytes for 3 rows of type BOOL"),
        (13, 3, 4, "not as long as announced"),
        (13, 3, 6, "is not an identifier"),
        (13, 3, 0, "is not an identifier"),
    ],
)
def test_a_lie_in_the_directory_is_found(id: int, offset: int, value: int, complaint: str) -> None:
    data = rich()
    data[entry_of(data, id) + offset] = value
    refused(data, complaint)


@pytest.mark.parametrize(
    ("honest", "lie", "complaint"),
    [
        (b"color", b"c lor", "property name in a batch is not an identifier"),
        (b"color", b"c\xfflor", "not UTF-8"),
        ("käkä".encode(), b"k\xffakaa", "not UTF-8"),
        (b"redred", b"r\xffdred", "not UTF-8"),
        (b"\4\0\1", b"\4\x0a\1", "column PRIORITY of a batch goes beyond 0 to 9"),
        (b"\4\0\1", b"\4\xff\1", "column PRIORITY of a batch goes beyond 0 to 9"),
    ],
)
def test_a_lie_in_a_column_is_found(honest: bytes, lie: bytes, complaint: str) -> None:
    data = bytes(rich())
    assert data.count(honest) == 1
    refused(data.replace(honest, lie[: len(honest)]), complaint)


def test_a_character_cut_in_two_by_an_offset_is_found() -> None:
    builder = BatchBuilder()
    builder.add("ä", timestamp_ms=5)
    builder.add("b", timestamp_ms=5)
    data = bytearray(builder.build(7, 1).encode())
    struct.pack_into("<i", data, 60, 1)
    refused(data, "not UTF-8")


def test_a_property_that_comes_twice_is_found() -> None:
    builder = BatchBuilder()
    for number in range(9):
        builder.add(b"", {"a": number, "b": number}, timestamp_ms=5)
    data = bytes(builder.build(7, 1).encode())
    refused(data.replace(b"ab", b"aa", 1), "two columns for the property 'a'")


@pytest.mark.parametrize(
    ("honest", "lie", "complaint"),
    [
        (b"one", b"o e", "property name in a batch is not an identifier"),
        (b"\x08\3\0\0\0uno", b"\x0a\3\0\0\0\0\0\0", "a property with the tag 10"),
        (b"\x08\3\0\0\0uno", b"\x08\7\0\0\0uno", "do not end where they should"),
    ],
)
def test_a_lie_in_a_blob_is_found(honest: bytes, lie: bytes, complaint: str) -> None:
    builder = BatchBuilder()
    builder.add(b"", {"one": 1}, timestamp_ms=5)
    builder.add(b"", {"one": "uno"}, timestamp_ms=5)
    data = bytes(builder.build(7, 1).encode())
    refused(data.replace(honest, lie), complaint)


def columns(bodies: list[bytes], kind: int, **more: Column) -> bytes:
    """A batch that no builder makes."""
    named = {ColumnId[name]: column for name, column in more.items()}
    body = Column.of_items(ValueType.BYTES, bodies)
    return Batch(len(bodies), 7, 1, 5, kind, 0, body, named, {}).encode()


def test_more_values_than_a_batch_may_have_are_refused() -> None:
    tiny_lists = [struct.pack("<I", 20) + bytes(20)] * 65_000
    refused(columns(tiny_lists, BodyKind.LIST), "more than 126976 values in maps, lists and properties")
    blobs = Column.of_items(ValueType.BYTES, [struct.pack("<II", 1, 1) + b"a\0"] * 65_536)
    refused(columns([b""] * 65_536, BodyKind.NONE, PROPERTIES=blobs), "more than 126976 values")
    half = Column.of_items(ValueType.BYTES, [struct.pack("<II", 1, 1) + b"a\0"] * 40_000)
    lists = [struct.pack("<I", 1) + b"\0"] * 40_000
    refused(columns(lists, BodyKind.LIST, PROPERTIES=half), "more than 126976 values")


def test_more_names_than_a_batch_may_have_are_refused() -> None:
    blobs = [struct.pack("<II", 1, 5) + b"n%04d\0" % number for number in range(4_300)]
    data = columns([b""] * 4_300, BodyKind.NONE, PROPERTIES=Column.of_items(ValueType.BYTES, blobs))
    refused(data, "more than 4232 different property names")


@pytest.mark.parametrize(
    ("blob", "complaint"),
    [
        (struct.pack("<I", 137) + b"\1\0\0\0a\0" * 137, "137 properties are more than the 128 allowed"),
        (struct.pack("<II", 2, 1) + b"a\0\1\0\0\0a\0", "the same property twice"),
        (struct.pack("<II", 1, 1) + b"a\1\2", "neither 0 nor 1"),
        (struct.pack("<II", 1, 1) + b"a\0\0", "do not end where they should"),
        (struct.pack("<II", 2, 1) + b"a\0", "run over the end"),
        (struct.pack("<II", 1, 300) + b"a" * 300 + b"\0", "longer than 255 bytes"),
        (struct.pack("<II", 1, 1) + b"a\x08\1\0\0\0\xff", "not UTF-8"),
        (struct.pack("<II", 1, 1) + b"a\x09\1\0\1\0" + bytes(65_537), "a property of 65537 bytes"),
        (b"\1", "run over the end"),
    ],
)
def test_properties_that_no_message_may_have_are_refused(blob: bytes, complaint: str) -> None:
    data = columns([b""], BodyKind.NONE, PROPERTIES=Column.of_items(ValueType.BYTES, [blob]))
    refused(data, complaint)


@pytest.mark.parametrize(
    ("kind", "body", "complaint"),
    [
        (BodyKind.STR, b"\xff", "not UTF-8"),
        (BodyKind.MAP, b"\1", "runs over the end"),
        (BodyKind.LIST, b"\0\0\0\0\0", "followed by 1 more"),
        (BodyKind.NONE, b"x", "a message without a body has one"),
    ],
)
def test_a_lie_among_bodies_of_mixed_kinds_is_found(kind: BodyKind, body: bytes, complaint: str) -> None:
    honest = [(0, b"\xff"), (1, "ä".encode()), (2, bytes(4)), (3, bytes(4)), (4, b""), (1, b"")]
    for place in range(len(honest) + 1):
        rows = [*honest[:place], (kind, body), *honest[place:]]
        numbers = Column.of_numbers(ValueType.I8, [number for number, _ in rows])
        refused(columns([data for _, data in rows], 255, BODY_KIND=numbers), complaint)
    numbers = Column.of_numbers(ValueType.I8, [number for number, _ in honest])
    assert Batch.decode(columns([data for _, data in honest], 255, BODY_KIND=numbers)).body(1) == "ä"


def test_a_map_that_is_none_is_found_when_it_comes_and_not_looked_for_in_trusted_bytes() -> None:
    data = plain()
    data[3] = 2
    refused(data, "runs over the end")
    trusted = Batch.decode(bytes(data), trusted=True)
    with pytest.raises(ProtocolError, match="runs over the end"):
        trusted.body(0)


def test_offsets_of_a_slice_need_not_start_at_0() -> None:
    part = Batch.of_bodies([b"a", b"bc", b"d"], producer=7, first_number=1, timestamp_ms=5).slice(1, 3)
    data = part.encode()
    assert struct.unpack_from("<3i", data, 56) == (1, 3, 4)
    assert Batch.decode(data).bodies() == [b"bc", b"d"]


def lone_body(data: memoryview) -> tuple[int, int] | None:
    """Producer and number of a batch that is read the short way."""
    fields = lone_fields(data)
    return None if fields is None else (int.from_bytes(fields[9], "little"), fields[10])


def lone_by_definition(data: bytes) -> tuple[int, int] | None:
    try:
        batch = Batch(*decode_any_parts(memoryview(data), trusted=False), encoded=data)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            Batch.decode(data)
        return None
    found = Batch.decode(data)
    assert found == batch and found.bodies() == batch.bodies()
    assert (found.producer, found.first_number, found.timestamp_ms(0), found.body_kind(0)) == (
        batch.producer,
        batch.first_number,
        batch.timestamp_ms(0),
        batch.body_kind(0),
    )
    is_lone = batch.count == 1 and batch.body_kind(0) == BodyKind.BYTES and HEADER.unpack_from(data)[6] == 1
    return (batch.producer, batch.first_number) if is_lone else None


@pytest.mark.parametrize("body", [b"", b"abc", b"eight by", bytes(300)])
def test_a_batch_of_one_body_is_read_as_any_other_whatever_byte_of_it_lies(body: bytes) -> None:
    """The short way against the long one, for every byte of what stands around the body."""
    honest = Batch.of_bodies([body], producer=7, first_number=9, timestamp_ms=5).encode()
    assert lone_body(memoryview(honest)) == (7, 9)
    around = [at for at in range(len(honest)) if not 64 <= at < 64 + len(body)]
    for at in around:
        for flip in (1, 2, 4, 0x10, 0x80, 0xFF):
            lie = bytearray(honest)
            lie[at] ^= flip
            where = f"byte {at} of {len(honest)} is {lie[at]:#x}"
            assert lone_body(memoryview(lie)) == lone_by_definition(bytes(lie)), where


@pytest.mark.parametrize("size", range(1, 80, 3))
def test_less_or_more_than_a_batch_of_one_body_is_none(size: int) -> None:
    honest = Batch.of_bodies([b"abc"], producer=7, first_number=9, timestamp_ms=5).encode()
    assert lone_body(memoryview((honest + bytes(80))[:size])) is None


@pytest.mark.parametrize("other", [plain(), rich()])
def test_other_batches_are_not_taken_for_one_of_one_body(other: bytearray) -> None:
    assert lone_body(memoryview(other)) is None


def identified(*ids: bytes | None) -> bytearray:
    builder = BatchBuilder()
    for id in ids:
        builder.add(b"", timestamp_ms=5, dedup_id=id)
    return bytearray(builder.build(7, 1).encode())


def test_an_id_without_bytes_is_found() -> None:
    data = identified(b"a", None, b"b")
    # The offsets of the ids: row 0 has one byte, row 1 none, row 2 one.
    at = data.index(struct.pack("<4i", 0, 1, 1, 2))
    struct.pack_into("<4i", data, at, 0, 2, 2, 2)
    refused(data, "an application's id of a message is empty")


def test_an_id_that_is_too_long_is_found() -> None:
    data = identified(b"a" * 255, b"b")
    at = data.index(struct.pack("<3i", 0, 255, 256))
    struct.pack_into("<3i", data, at, 0, 256, 256)
    refused(data, "a value in a batch is longer than 255 bytes")


def test_a_batch_of_many_rows_has_no_ids() -> None:
    many = BatchBuilder()
    for _ in range(IDENTIFIED_ROWS_MAX):
        many.add(b"", timestamp_ms=5, dedup_id=b"a")
    assert many.is_full
    with mock.patch("antiphon.batch.builder.IDENTIFIED_ROWS_MAX", IDENTIFIED_ROWS_MAX + 1):
        many.add(b"", timestamp_ms=5, dedup_id=b"a")
    refused(many.build(7, 1).encode(), "a batch of 1025 rows with ids; 1024 are allowed")


def taken() -> bytearray:
    """Rows 1, 3 and 4; their offsets are the last column."""
    batch = Batch.of_bodies([bytes([row]) for row in range(6)], producer=7, first_number=1, timestamp_ms=5)
    return bytearray(batch.take([1, 3, 4]).encode())


OFFSETS_AT = 48 + 2 * 8 + 16 + 8


@pytest.mark.parametrize(
    ("at", "code", "value", "complaint"),
    [
        (OFFSETS_AT, "i", -1, "do not ascend within 65536 rows"),
        (OFFSETS_AT + 4, "i", 3, "do not ascend"),
        (OFFSETS_AT + 4, "i", 0, "do not ascend"),
        (OFFSETS_AT + 8, "i", 65_536, "do not ascend"),
        (32, "Q", 2**64 - 3, "do not fit 64 bits"),
        (57, "B", 5, "column NUMBER_OFFSET of a batch is of type I64"),
        (58, "B", 1, "column NUMBER_OFFSET of a batch is of type I32, flags 1"),
        (59, "B", 1, "column NUMBER_OFFSET"),
        (60, "I", 8, "8 bytes for 3 rows of type I32"),
    ],
)
def test_a_lie_about_numbers_is_found(at: int, code: str, value: int, complaint: str) -> None:
    data = taken()
    assert struct.unpack_from("<3i", data, OFFSETS_AT) == (0, 2, 3)
    struct.pack_into(f"<{code}", data, at, value)
    refused(data, complaint)


def test_the_offsets_of_numbers_come_once_and_last() -> None:
    batch = Batch.decode(bytes(rich())).take([0, 2])
    body, offsets = batch.column(ColumnId.BODY), Column.of_numbers(ValueType.I32, [0, 2])
    assert body is not None
    named = {"n": Column.of_numbers(ValueType.I64, [1, 2])}
    twice = Batch(2, 7, 1, 5, 0, 0, body, {ColumnId.NUMBER_OFFSET: offsets}, {}, offsets)
    refused(twice.encode(), "column NUMBER_OFFSET of a batch is out of order")
    before = Batch(2, 7, 1, 5, 0, 0, body, {ColumnId.NUMBER_OFFSET: offsets}, named)
    refused(before.encode(), "a property of a batch follows the offsets")
    assert not Batch.decode(Batch(2, 7, 1, 5, 0, 0, body, {}, named).encode()).has_gaps
    assert Batch.decode(Batch(2, 7, 1, 5, 0, 0, body, {}, named, offsets).encode()).has_gaps
