"""Typed values: which Python values travel, as what, and what is refused."""

from __future__ import annotations

import enum
import math
import struct
from typing import Any

import pytest

from antiphon.errors import InvalidMessage, ProtocolError
from antiphon.values import (
    DEPTH_MAX,
    VALUES_MAX,
    Float32,
    Int8,
    Int16,
    Int32,
    ValueType,
    count_values,
    decode_list,
    decode_map,
    encode_list,
    encode_map,
    scalar_type,
)


class Color(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, ValueType.NULL),
        (True, ValueType.BOOL),
        (Int8(-128), ValueType.I8),
        (Int16(32767), ValueType.I16),
        (Int32(-1), ValueType.I32),
        (-(2**63), ValueType.I64),
        (Color.RED, ValueType.I64),
        (Float32(0.5), ValueType.F32),
        (0.1, ValueType.F64),
        ("größe", ValueType.STR),
        (b"\0\xff", ValueType.BYTES),
    ],
)
def test_a_value_travels_as_the_type_its_class_asks_for(value: Any, kind: ValueType) -> None:
    assert scalar_type(value) is kind
    data = encode_list([value])
    assert data[4] == kind
    (again,) = decode_list(data)
    assert again == value
    assert type(again) is (int if isinstance(value, Color) else type(value))


@pytest.mark.parametrize("cls", [Int8, Int16, Int32])
def test_a_narrow_int_refuses_what_does_not_fit(cls: type[Int8 | Int16 | Int32]) -> None:
    limit = 1 << cls._bits - 1
    assert (cls(-limit), cls(limit - 1)) == (-limit, limit - 1)
    for value in (-limit - 1, limit):
        with pytest.raises(InvalidMessage, match=f"does not fit {cls.__name__}"):
            cls(value)


def test_a_narrow_value_is_a_plain_one_again_after_arithmetic() -> None:
    assert type(Int8(100) + 100) is int
    assert type(Float32(0.5) * 2) is float


def test_a_float32_is_rounded_when_it_is_made() -> None:
    assert Float32(0.1) == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert math.isinf(Float32(math.inf)) and math.isnan(Float32(math.nan))
    with pytest.raises(InvalidMessage, match="does not fit Float32"):
        Float32(1e300)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({"when": {1}}, r"body\['when'\] is of type set; allowed are bool, int"),
        ({"a": [0, {"b": (1,)}]}, r"body\['a'\]\[1\]\['b'\] is of type tuple"),
        ({"a": {7: 1}}, r"body\['a'\] has a key of type int; keys are str"),
        ({"a": 2**63}, r"body\['a'\] does not fit 64 bits"),
        ({"a": "\ud800"}, r"body\['a'\] has characters that UTF-8 cannot express"),
        ({"\ud800": 1}, r"body\['\\ud800'\] has characters that UTF-8 cannot express"),
    ],
)
def test_what_cannot_travel_is_refused_and_the_way_to_it_named(body: Any, complaint: str) -> None:
    with pytest.raises(InvalidMessage, match=complaint):
        encode_map(body)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_lists_nest_down_to_the_limit_and_no_deeper() -> None:
    assert decode_list(encode_list(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(InvalidMessage, match="nested deeper than 16"):
        encode_list(nested(DEPTH_MAX + 1))
    too_deep = b"\1\0\0\0\x0a" * DEPTH_MAX + b"\0\0\0\0"
    with pytest.raises(ProtocolError, match="nested deeper than 16"):
        decode_list(too_deep)


def test_a_list_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidMessage, match="nested deeper"):
        encode_list(endless)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "runs over the end"),
        (b"\xff\xff\xff\xff\0", "a list of 4294967295 values has 1 bytes"),
        (b"\1\0\0\0\x0c", "tag 12"),
        (b"\1\0\0\0\1\2", "a bool of 2"),
        (b"\1\0\0\0\x08\5\0\0\0abc", "5 bytes of text or bytes are announced, 3 follow"),
        (b"\1\0\0\0\x08\1\0\0\0\xff", "not UTF-8"),
        (b"\0\0\0\0\0", "followed by 1 more"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode_list(data)


def test_a_map_with_the_same_key_twice_is_refused() -> None:
    once = encode_map({"a": None})[4:]
    with pytest.raises(ProtocolError, match="same key twice"):
        decode_map(struct.pack("<I", 2) + once + once)


@pytest.mark.parametrize(
    "body",
    [
        [None] * VALUES_MAX,
        [[None] * (VALUES_MAX // 2 - 1)] * 2,
        {"a": [True] * (VALUES_MAX - 2), "b": {}},
    ],
)
def test_so_many_values_are_allowed_and_not_one_more(body: Any) -> None:
    encode = encode_map if isinstance(body, dict) else encode_list
    data = encode(body)
    assert count_values(data, 0, len(data), is_map=isinstance(body, dict)) == VALUES_MAX
    more = {**body, "one": "more"} if isinstance(body, dict) else [*body, "more"]
    with pytest.raises(InvalidMessage, match=r"body has 65,537 values.* at most 65,536 are allowed"):
        encode(more)


def test_too_many_values_are_refused_before_they_are_looked_at() -> None:
    count = VALUES_MAX + 1
    flat = struct.pack("<I", count) + b"\xff" * count
    nested = struct.pack("<IBI", 1, ValueType.LIST, VALUES_MAX) + b"\xff" * VALUES_MAX
    for data in (flat, nested):
        with pytest.raises(ProtocolError, match="more than 65536 values"):
            count_values(data, 0, len(data), is_map=False)
