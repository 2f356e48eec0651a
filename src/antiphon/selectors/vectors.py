"""Vectors: the values of many rows, by kind, and Java's arithmetic and comparisons on them.

VEC1  A row has a value of at most one kind; a row of no kind is null, and what is computed of it is unknown.
VEC2  Whole numbers are Java's long: they wrap at 64 bits, a division cuts toward zero, and one by zero is
      unknown. With an approximate number both are doubles.
VEC3  A comparison of unlike kinds is false, also `<>`. Texts and booleans are only equal or not.

A set of rows is an int, row r its bit r: the three-valued logic of a thousand rows is then one operation on
two such ints.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import compress, repeat
from typing import Any, Final, NamedTuple

_DIGITS: Final = bytes.maketrans(b"\0\1", b"01")
_BITS: Final = bytes.maketrans(b"01", b"\0\1")
_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1
_U64: Final = (1 << 64) - 1


class ValueKind(IntEnum):
    """The kinds that a selector tells apart. OTHER is what no selector can compare: bytes."""

    EXACT = 0
    APPROXIMATE = 1
    TEXT = 2
    FLAG = 3
    OTHER = 4


# Looking a member up in its enum is slow before Python 3.12.
EXACT: Final = ValueKind.EXACT
APPROXIMATE: Final = ValueKind.APPROXIMATE
TEXT: Final = ValueKind.TEXT
FLAG: Final = ValueKind.FLAG
OTHER: Final = ValueKind.OTHER


class Truth(NamedTuple):
    """For which rows a condition is true, and for which false; for the others it is unknown."""

    true: int
    false: int


class Cells(NamedTuple):
    """The rows that have a value of one kind, and the values: one for every row, or one for all.

    Texts are UTF-8. Values of FLAG are a set of rows, those of OTHER nothing.
    """

    rows: int
    values: Any
    is_constant: bool = False


Vector = dict[ValueKind, Cells]


def pack_rows(flags: bytes) -> int:
    """The set of rows whose byte is 1; the others are 0."""
    return int(flags[::-1].translate(_DIGITS), 2) if flags else 0


def unpack_rows(rows: int, count: int) -> bytes:
    """A byte for each row: 1 when the row is in the set."""
    return format(rows, f"0{count}b").encode()[::-1].translate(_BITS)


# -- comparing ---------------------------------------------------------------------

COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compare(sign: str, left: Vector, right: Vector, everything: int) -> Truth:
    """Compare two vectors, row by row (VEC1, VEC3)."""
    true = false = 0
    for left_kind, mine in left.items():
        for right_kind, yours in right.items():
            rows = mine.rows & yours.rows
            if rows:
                found = rows & _compared(sign, left_kind, mine, right_kind, yours, everything)
                true |= found
                false |= rows ^ found
    return Truth(true, false)


def _compared(
    sign: str, left_kind: ValueKind, mine: Cells, right_kind: ValueKind, yours: Cells, everything: int
) -> int:
    is_numeric = left_kind <= APPROXIMATE and right_kind <= APPROXIMATE
    if is_numeric:
        if left_kind is not right_kind:
            mine, yours = _approximated(left_kind, mine), _approximated(right_kind, yours)
    elif left_kind is not right_kind or sign not in ("=", "<>") or left_kind is OTHER:
        return 0
    elif left_kind is FLAG:
        differ: int = mine.values ^ yours.values
        return differ if sign == "<>" else everything ^ differ
    compared = COMPARISONS[sign]
    if mine.is_constant and yours.is_constant:
        return everything if compared(mine.values, yours.values) else 0
    return pack_rows(bytes(map(compared, _each(mine), _each(yours))))


def _each(cells: Cells) -> Iterable[Any]:
    return repeat(cells.values) if cells.is_constant else cells.values


def _approximated(kind: ValueKind, cells: Cells) -> Cells:
    if kind is APPROXIMATE:
        return cells
    values = float(cells.values) if cells.is_constant else list(map(float, cells.values))
    return cells._replace(values=values)


# -- computing ---------------------------------------------------------------------


def compute(sign: str, left: Vector, right: Vector, count: int) -> Vector:
    """Arithmetic on two vectors, row by row (VEC2). What is no number gives null."""
    result: Vector = {}
    exact = 0
    if EXACT in left and EXACT in right:
        mine, yours = left[EXACT], right[EXACT]
        exact = mine.rows & yours.rows
        if exact:
            result[EXACT] = _exact(sign, mine, yours, exact, count)
    rows = _numeric(left) & _numeric(right) & ~exact
    if rows:
        result[APPROXIMATE] = _inexact(sign, _doubles(left, count), _doubles(right, count), rows)
    return result


def negative(vector: Vector, count: int) -> Vector:
    """The vector with its signs turned."""
    result: Vector = {}
    if EXACT in vector:
        zero = Cells(vector[EXACT].rows, 0, is_constant=True)
        result[EXACT] = _exact("-", zero, vector[EXACT], zero.rows, count)
    if APPROXIMATE in vector:
        cells = vector[APPROXIMATE]
        values = -cells.values if cells.is_constant else list(map(operator.neg, cells.values))
        result[APPROXIMATE] = cells._replace(values=values)
    return result


def _numeric(vector: Vector) -> int:
    return (vector[EXACT].rows if EXACT in vector else 0) | (
        vector[APPROXIMATE].rows if APPROXIMATE in vector else 0
    )


def _doubles(vector: Vector, count: int) -> Cells:
    """All numbers of the vector as doubles."""
    exact, approximate = vector.get(EXACT), vector.get(APPROXIMATE)
    if exact is None or approximate is None:
        found = exact or approximate
        assert found is not None, "the vector has numbers"
        return _approximated(EXACT if exact else APPROXIMATE, found)
    values = [
        float(mine) if is_exact else yours
        for is_exact, mine, yours in zip(
            unpack_rows(exact.rows, count), _each(exact), _each(approximate), strict=False
        )
    ]
    return Cells(exact.rows | approximate.rows, values)


def _exact(sign: str, mine: Cells, yours: Cells, rows: int, count: int) -> Cells:
    if sign == "/":
        return _quotients(mine, yours, rows, count)
    work = _WORK[sign]
    if mine.is_constant and yours.is_constant:
        return Cells(rows, _wrapped(work(mine.values, yours.values)), is_constant=True)
    values = list(map(work, _each(mine), _each(yours)))
    if max(values) > _LONG_MAX or min(values) < _LONG_MIN:
        values = list(map(_wrapped, values))
    return Cells(rows, values)


_WORK: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def _wrapped(number: int) -> int:
    return (number - _LONG_MIN & _U64) + _LONG_MIN


def _quotients(mine: Cells, yours: Cells, rows: int, count: int) -> Cells:
    values = []
    zeros = bytearray(count)
    for row, dividend, divisor in zip(range(count), _each(mine), _each(yours), strict=False):
        if divisor == 0:
            zeros[row] = 1
            values.append(0)
            continue
        quotient = abs(dividend) // abs(divisor)
        values.append(_wrapped(quotient if (dividend < 0) == (divisor < 0) else -quotient))
    return Cells(rows & ~pack_rows(bytes(zeros)), values)


def _inexact(sign: str, mine: Cells, yours: Cells, rows: int) -> Cells:
    work = _WORK.get(sign, _divided)
    if mine.is_constant and yours.is_constant:
        return Cells(rows, work(mine.values, yours.values), is_constant=True)
    return Cells(rows, list(map(work, _each(mine), _each(yours))))


def _divided(dividend: float, divisor: float) -> float:
    """A quotient of doubles, where Python has no answer as Java gives it."""
    if divisor:
        return dividend / divisor
    if not dividend or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


# -- making ------------------------------------------------------------------------


def constant(value: float | str | bool, everything: int) -> Vector:
    """A literal, the same for every row."""
    if isinstance(value, bool):
        return {FLAG: Cells(everything, everything if value else 0)}
    if isinstance(value, str):
        return {TEXT: Cells(everything, value.encode(), is_constant=True)}
    kind = EXACT if isinstance(value, int) else APPROXIMATE
    return {kind: Cells(everything, value, is_constant=True)}


def vector_of(values: list[Any]) -> Vector:
    """Values of any kinds, None for null: properties of rows that have little in common."""
    kinds = [_KINDS.get(type(value)) or _kind_of(value) for value in values]
    result: Vector = {}
    for kind in ValueKind:
        flags = bytes([found is kind for found in kinds])
        rows = pack_rows(flags)
        if not rows:
            continue
        if kind is FLAG:
            result[kind] = Cells(rows, pack_rows(bytes([value is True for value in values])))
        elif kind is OTHER:
            result[kind] = Cells(rows, None)
        else:
            convert, absent = _CONVERSIONS[kind]
            result[kind] = Cells(
                rows, [convert(value) if flag else absent for flag, value in zip(flags, values, strict=True)]
            )
    return result


_CONVERSIONS: Final[dict[ValueKind, tuple[Callable[[Any], Any], Any]]] = {
    EXACT: (int, 0),
    APPROXIMATE: (float, 0.0),
    TEXT: (lambda text: text.encode(), b""),
}
_KINDS: Final[dict[type, ValueKind]] = {
    bool: FLAG,
    float: APPROXIMATE,
    str: TEXT,
    bytes: OTHER,
}


def _kind_of(value: object) -> ValueKind | None:
    if isinstance(value, int):
        return EXACT
    return APPROXIMATE if isinstance(value, float) else None


def rows_where(rows: int, choice: Callable[[Any], bool], cells: Cells, count: int) -> int:
    """Those of the rows whose value the choice wants; each different value is asked about once."""
    if cells.is_constant:
        return rows if choice(cells.values) else 0
    wanted = dict.fromkeys(compress(cells.values, unpack_rows(rows, count)))
    for value in wanted:
        wanted[value] = choice(value)
    return rows & pack_rows(bytes([bool(wanted.get(value)) for value in cells.values]))
