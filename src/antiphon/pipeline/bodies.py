"""Bodies in the columns of Spark: bytes and the name of their kind.

A map or list is JSON text, or the stored bytes (`bodyFormat`). The two cannot be confused: stored bytes begin
with a number of 32 bits that is at most 65,536, so that their fourth byte is zero, which no JSON text has.
"""

from __future__ import annotations

from typing import Final

from antiphon.batch.bodies import Body, BodyKind
from antiphon.batch.bodies import decode_body as decode_stored
from antiphon.errors import InvalidMessage, ProtocolError
from antiphon.json_values import parse_json

KINDS: Final = {kind.name.lower(): kind for kind in BodyKind}
"""The values of the column `body_kind`."""

COMPOSED: Final = frozenset({int(BodyKind.MAP), int(BodyKind.LIST)})
"""Kinds that are made of values: their bytes have to be read one by one."""

_TYPES: Final = {BodyKind.MAP: dict, BodyKind.LIST: list}


def decode_body(data: bytes | bytearray | memoryview | str | None, kind: str) -> Body:
    """The object that was sent, from the columns `body` and `body_kind` of a row.

    >>> decode_body(b'{"total":12.5}', "map")
    {'total': 12.5}
    >>> decode_body(b"text", "str")
    'text'
    """
    known = KINDS.get(kind)
    if known is None:
        raise InvalidMessage(f"body_kind is {', '.join(KINDS)}; it was {kind!r}")
    if data is None:
        return None
    data = data.encode() if isinstance(data, str) else bytes(data)
    if known in COMPOSED and data[3:4] != b"\0":
        return _from_json(data, known)
    try:
        return decode_stored(known, memoryview(data))
    except ProtocolError as error:
        raise InvalidMessage(f"a body of kind {kind} is not one: {error}") from None


def _from_json(data: bytes, kind: BodyKind) -> Body:
    try:
        read = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"a body of kind {kind.name.lower()} is not JSON: {error}") from None
    if not isinstance(read, _TYPES[kind]):
        raise InvalidMessage(f"a body of kind {kind.name.lower()} is a JSON {type(read).__name__}")
    return read
