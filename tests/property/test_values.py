"""The laws of the typed value codec: V1 and V2."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import ProtocolError
from antiphon.values import Float32, Int8, Int16, Int32, decode_list, decode_map, encode_list, encode_map

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
