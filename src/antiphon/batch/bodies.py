"""The types of bodies, and their bytes."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

from antiphon.batch.layout import BODY_BYTES_MAX
from antiphon.errors import InvalidMessage, MessageTooLarge, ProtocolError
from antiphon.values import (
    Value,
    decode_list,
    decode_map,
    decode_text,
    encode_counted,
    encode_text,
)

Body: TypeAlias = bytes | str | dict[str, Value] | list[Value] | None
"""The types of a received body."""

Sendable: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | None
"""The types of a body to be sent. To a type checker a `dict[str, int]` is no `dict[str, Value]`."""


class BodyKind(IntEnum):
    """How to read the bytes of a body."""

    BYTES = 0
    STR = 1
    MAP = 2
    LIST = 3
    NONE = 4


def encode_body(body: Sendable) -> tuple[BodyKind, bytes, int]:
    """Kind, bytes and number of values of a body; bytes-like objects arrive as bytes."""
    values = 0
    match body:
        case bytes():
            kind, data = BodyKind.BYTES, body
        case bytearray() | memoryview():
            kind, data = BodyKind.BYTES, bytes(body)
        case str():
            kind, data = BodyKind.STR, encode_text(body, "body")
        case dict():
            kind, (data, values) = BodyKind.MAP, encode_counted(body)
        case list():
            kind, (data, values) = BodyKind.LIST, encode_counted(body)
        case None:
            kind, data = BodyKind.NONE, b""
        case _:
            raise InvalidMessage(
                f"body is of type {type(body).__name__}; allowed are bytes, str, dict, list and None"
            )
    if len(data) > BODY_BYTES_MAX:
        raise MessageTooLarge(f"body of {len(data):,} bytes is larger than the {BODY_BYTES_MAX:,} allowed")
    return kind, data, values


def decode_body(kind: int, data: memoryview) -> Body:
    match kind:
        case BodyKind.BYTES:
            return bytes(data)
        case BodyKind.STR:
            return decode_text(data)
        case BodyKind.MAP:
            return decode_map(data)
        case BodyKind.LIST:
            return decode_list(data)
        case BodyKind.NONE:
            if data:
                raise ProtocolError(f"a message without a body has one of {len(data)} bytes")
            return None
    raise ProtocolError(f"no body is of kind {kind}")
