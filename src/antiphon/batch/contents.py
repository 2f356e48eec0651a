"""Contents: can every body, text and property of a batch be read?

The columns fit their bytes; this module checks the values in them. Texts are checked for all rows at once: a
column of texts is one text with offsets that cut no character in two. Maps, lists and blobs are checked value
by value, and therefore counted: a batch may not have more than `BATCH_VALUES_MAX` of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress, pairwise, starmap
from typing import Final

from antiphon.batch.bodies import BodyKind
from antiphon.batch.column import Column
from antiphon.batch.layout import (
    BATCH_NAMES_MAX,
    BATCH_VALUES_MAX,
    BODY_KIND_MIXED,
    PROPERTIES_MAX,
    SYSTEM_PROPERTIES_MAX,
    VALUE_BYTES_MAX,
)
from antiphon.errors import ProtocolError
from antiphon.names import NAME_BYTES_MAX, property_name_complaint
from antiphon.values import WIDTHS, ValueType, count_values, decode_text

# 1 for the bytes that continue a character of UTF-8.
_CONTINUES: Final = bytes(0x80 <= byte < 0xC0 for byte in range(256))
# For each kind: 1 for the byte of that kind.
_IS_KIND: Final = {kind: bytes(byte == kind for byte in range(256)) for kind in BodyKind}


def check_bodies(body: Column, kind: int, kinds: Column | None) -> int:
    """Raise unless every body is of its kind; returns the number of values in maps and lists."""
    if kind == BODY_KIND_MIXED:
        assert kinds is not None, "bodies of mixed kinds have a column of them"
        return _check_mixed(body, bytes(kinds.values))
    match kind:
        case BodyKind.STR:
            check_texts(body)
        case BodyKind.NONE if body.values:
            raise ProtocolError(f"messages without a body have one of {len(body.values)} bytes")
        case BodyKind.MAP | BodyKind.LIST:
            return _check_structures(body.values.tobytes(), _extents(body), is_map=kind == BodyKind.MAP)
    return 0


def _check_mixed(body: Column, kinds: bytes) -> int:
    values = body.values.tobytes()
    extents = list(_extents(body))

    def of_kind(kind: BodyKind) -> list[tuple[int, int]]:
        return list(compress(extents, kinds.translate(_IS_KIND[kind])))

    if any(start != stop for start, stop in of_kind(BodyKind.NONE)):
        raise ProtocolError("a message without a body has one")
    texts = of_kind(BodyKind.STR)
    if texts:
        lengths = (stop - start for start, stop in texts)
        _check_utf8(b"".join(map(values.__getitem__, starmap(slice, texts))), accumulate(lengths))
    count = _check_structures(values, of_kind(BodyKind.MAP), is_map=True)
    return count + _check_structures(values, of_kind(BodyKind.LIST), is_map=False)


def _extents(column: Column) -> Iterator[tuple[int, int]]:
    """The start and end of each row's bytes in the column's values."""
    return pairwise(_offsets(column))


def _offsets(column: Column) -> list[int]:
    assert column.offsets is not None, "only texts and bytes are asked for"
    offsets = column.offsets.tolist()
    base = offsets[0]
    return [offset - base for offset in offsets] if base else offsets


def _check_structures(values: bytes, extents: Iterable[tuple[int, int]], *, is_map: bool) -> int:
    """Each map or list counts for one, and for its values."""
    count = 0
    for start, stop in extents:
        count += 1 + count_values(values, start, stop, is_map=is_map)
        check_count(count)
    return count


def check_count(count: int) -> None:
    if count > BATCH_VALUES_MAX:
        raise ProtocolError(f"a batch has more than {BATCH_VALUES_MAX} values in maps, lists and properties")


def check_texts(column: Column) -> None:
    """Raise unless every row is UTF-8."""
    _check_utf8(column.values.tobytes(), _offsets(column))


def check_ids(column: Column, rows: int) -> None:
    """Raise if an id has no bytes."""
    for row, (start, stop) in zip(range(rows), _extents(column), strict=True):
        if start == stop and column.is_present(row):
            raise ProtocolError("an application's id of a message is empty")


def _check_utf8(values: bytes, offsets: Iterable[int]) -> None:
    """If the whole is UTF-8, then so are its parts, unless a part begins inside a character."""
    decode_text(values)
    if not values.isascii():
        # No character begins at the end, and none continues there.
        continues = values.translate(_CONTINUES) + b"\0"
        if any(map(continues.__getitem__, offsets)):
            raise ProtocolError("text is not UTF-8: a character is cut in two")


# -- properties ----------------------------------------------------------------------------

_U32 = struct.Struct("<I")
_BOOL, _STR, _BYTES = int(ValueType.BOOL), int(ValueType.STR), int(ValueType.BYTES)


def check_blobs(blobs: Column) -> int:
    """Raise unless a message may have the properties of each blob; returns their number."""
    values = blobs.values.tobytes()
    names: dict[bytes, None] = {}
    count = 0
    try:
        for start, stop in _extents(blobs):
            if start != stop:
                count += 1 + _check_blob(values, start, stop, names)
                check_count(count)
    except (struct.error, IndexError):
        raise ProtocolError("the properties of a message run over the end of their bytes") from None
    return count


def most_in_blobs(blobs: Column) -> int:
    """The number of properties of the message that has the most; the blobs were checked."""
    values = blobs.values.tobytes()
    counts: list[int] = [
        _U32.unpack_from(values, start)[0] for start, stop in _extents(blobs) if start != stop
    ]
    return max(counts, default=0)


def _check_blob(data: bytes, at: int, stop: int, names: dict[bytes, None]) -> int:
    """The number of one message's properties. `names` are those that were checked before."""
    read_size = _U32.unpack_from
    count: int = read_size(data, at)[0]
    if count > PROPERTIES_MAX + SYSTEM_PROPERTIES_MAX:
        raise ProtocolError(f"{count} properties are more than the {PROPERTIES_MAX} allowed")
    at += 4
    own_names = set()
    for _ in range(count):
        start = at + 4
        at = start + read_size(data, at)[0]
        name = data[start:at]
        if name not in names:
            _check_name(name)
            names[name] = None
            if len(names) > BATCH_NAMES_MAX:
                raise ProtocolError(f"a batch has more than {BATCH_NAMES_MAX} different property names")
        own_names.add(name)
        tag = data[at]
        if WIDTHS[tag]:
            at += WIDTHS[tag]
        elif tag == _BOOL and data[at + 1] <= 1:
            at += 2
        elif tag in (_STR, _BYTES):
            start = at + 5
            at = start + read_size(data, at + 1)[0]
            if at - start > VALUE_BYTES_MAX:
                raise ProtocolError(f"a property of {at - start} bytes, more than {VALUE_BYTES_MAX}")
            if tag == _STR:
                decode_text(data[start:at])
        else:
            raise ProtocolError(f"a property with the tag {tag}, or a bool that is neither 0 nor 1")
    if at != stop:
        raise ProtocolError("the properties of a message do not end where they should")
    if len(own_names) != count:
        raise ProtocolError("a message has the same property twice")
    return count


def _check_name(name: bytes) -> None:
    complaint = property_name_complaint(decode_text(name[: NAME_BYTES_MAX + 1]))
    if complaint:
        raise ProtocolError(f"a property name in a batch {complaint}")
