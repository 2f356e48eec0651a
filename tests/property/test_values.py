"""The laws of the typed value codec: V1 to V3."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.values import (
    Float32,
    Int8,
    Int16,
    Int32,
    count_values,
    decode_list,
    decode_map,
    encode_list,
    encode_map,
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.integers(-128, 127).map(Int8),
    st.integers(-(2**15), 2**15 - 1).map(Int16),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.floats(width=32, allow_nan=False).map(Float32),
    st.text(max_size=10),
    st.binary(max_size=10),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
maps = st.dictionaries(st.text(max_size=5), values, max_size=5)


def typed(value: Any) -> Any:
    """The value with its types written out, for == does not see them: 1 == True == Int8(1)."""
    match value:
        case list():
            return [typed(item) for item in value]
        case dict():
            return {key: typed(item) for key, item in value.items()}
    return type(value), repr(value)


@given(maps)
def test_a_map_comes_back_with_the_same_types(value: dict[str, Any]) -> None:
    assert typed(decode_map(encode_map(value))) == typed(value)


@given(st.lists(values, max_size=5))
def test_a_list_comes_back_with_the_same_types(value: list[Any]) -> None:
    assert typed(decode_list(encode_list(value))) == typed(value)


@given(maps)
def test_a_map_cut_anywhere_is_refused(value: dict[str, Any]) -> None:
    data = encode_map(value)
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            decode_map(data[:end])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_map_or_a_protocol_error(data: bytes) -> None:
    try:
        value = decode_map(data)
    except ProtocolError:
        return
    assert len(encode_map(value)) == len(data)


@given(maps, st.data())
def test_a_map_with_one_byte_changed_is_a_map_or_a_protocol_error(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode_map(value))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    try:
        decode_map(bytes(encoded))
    except ProtocolError:
        pass


def count_of(value: Any) -> int:
    """How many values are in a map or list, by their definition."""
    inner = list(value.values()) if isinstance(value, dict) else value
    return len(inner) + sum(count_of(item) for item in inner if isinstance(item, dict | list))


def check_that_counting_agrees_with_decoding(data: bytes, before: bytes, behind: bytes) -> None:
    """V3, also for bytes that stand among others: those of neighbours are not read."""
    at, stop = len(before), len(before) + len(data)
    for decode, is_map in ((decode_map, True), (decode_list, False)):
        try:
            expected = count_of(decode(data))
        except ProtocolError:
            with pytest.raises(ProtocolError):
                count_values(before + data + behind, at, stop, is_map=is_map)
        else:
            assert count_values(before + data + behind, at, stop, is_map=is_map) == expected


neighbours = st.binary(max_size=12)


@given(maps.map(encode_map) | st.lists(values, max_size=5).map(encode_list), neighbours, neighbours)
def test_what_can_be_decoded_is_counted(data: bytes, before: bytes, behind: bytes) -> None:
    check_that_counting_agrees_with_decoding(data, before, behind)


@given(st.binary(max_size=60), neighbours, neighbours)
def test_what_cannot_be_decoded_is_not_counted_either(data: bytes, before: bytes, behind: bytes) -> None:
    check_that_counting_agrees_with_decoding(data, before, behind)


@given(maps.map(encode_map) | st.lists(values, max_size=5).map(encode_list), st.data(), neighbours)
def test_counting_damaged_values_agrees_with_decoding_them(
    encoded: bytes, data: st.DataObject, behind: bytes
) -> None:
    damaged = bytearray(encoded)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.sampled_from([0, 1, 8, 10, 11, 255]) | st.integers(0, 255))
    check_that_counting_agrees_with_decoding(bytes(damaged), b"", behind)
