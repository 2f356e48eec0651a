"""Conditions and expressions: the parts of a selector, evaluated for many rows at once.

An expression has a value, a condition is true, false or unknown. Java's and SQL's rules on values are those
of `vectors`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from antiphon.selectors.rows import RowValues
from antiphon.selectors.vectors import (
    FLAG,
    TEXT,
    Truth,
    Vector,
    compare,
    compute,
    constant,
    negative,
    rows_where,
)


class Expression(Protocol):
    """A part of a selector that has a value for each row."""

    def values(self, rows: RowValues) -> Vector: ...


class Condition(Protocol):
    """A part of a selector that is true, false or unknown for each row."""

    def truth(self, rows: RowValues) -> Truth: ...


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, TRUE or FALSE."""

    value: int | float | str | bool

    def values(self, rows: RowValues) -> Vector:
        return constant(self.value, rows.everything)


@dataclass(frozen=True, slots=True)
class Name:
    """A header or a property."""

    name: str

    def values(self, rows: RowValues) -> Vector:
        return rows.vector(self.name)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Sums or products, from left to right: a long chain is no deep tree."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]

    def values(self, rows: RowValues) -> Vector:
        result = self.first.values(rows)
        for sign, operand in self.rest:
            result = compute(sign, result, operand.values(rows), rows.count)
        return result


@dataclass(frozen=True, slots=True)
class Negative:
    """An expression behind a minus."""

    operand: Expression

    def values(self, rows: RowValues) -> Vector:
        return negative(self.operand.values(rows), rows.count)


@dataclass(frozen=True, slots=True)
class Positive:
    """An expression behind a plus: a number stays, the rest is null."""

    operand: Expression

    def values(self, rows: RowValues) -> Vector:
        return {kind: cells for kind, cells in self.operand.values(rows).items() if kind < TEXT}


@dataclass(frozen=True, slots=True)
class Flag:
    """A boolean that stands for itself; a value of another kind is unknown."""

    operand: Expression

    def truth(self, rows: RowValues) -> Truth:
        cells = self.operand.values(rows).get(FLAG)
        if cells is None:
            return Truth(0, 0)
        return Truth(cells.rows & cells.values, cells.rows & ~cells.values)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two expressions with one of the six signs."""

    left: Expression
    sign: str
    right: Expression

    def truth(self, rows: RowValues) -> Truth:
        return compare(self.sign, self.left.values(rows), self.right.values(rows), rows.everything)


@dataclass(frozen=True, slots=True)
class Listed:
    """IN and LIKE: is the text of a name one of those that are wanted? A value of another kind is not."""

    name: Name
    choice: Callable[[bytes], bool]

    def truth(self, rows: RowValues) -> Truth:
        true = false = 0
        for kind, cells in self.name.values(rows).items():
            if kind is TEXT:
                true = rows_where(cells.rows, self.choice, cells, rows.count)
                false |= cells.rows ^ true
            else:
                false |= cells.rows
        return Truth(true, false)


@dataclass(frozen=True, slots=True)
class IsNull:
    """IS NULL, which is never unknown."""

    name: Name

    def truth(self, rows: RowValues) -> Truth:
        present = 0
        for cells in self.name.values(rows).values():
            present |= cells.rows
        return Truth(rows.everything ^ present, present)


@dataclass(frozen=True, slots=True)
class Not:
    """NOT: unknown stays unknown."""

    operand: Condition

    def truth(self, rows: RowValues) -> Truth:
        true, false = self.operand.truth(rows)
        return Truth(false, true)


@dataclass(frozen=True, slots=True)
class AllOf:
    """AND of all operands: false as soon as one is."""

    operands: tuple[Condition, ...]

    def truth(self, rows: RowValues) -> Truth:
        true, false = rows.everything, 0
        for operand in self.operands:
            truth = operand.truth(rows)
            true &= truth.true
            false |= truth.false
            if false == rows.everything:
                break
        return Truth(true, false)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """OR of all operands: true as soon as one is."""

    operands: tuple[Condition, ...]

    def truth(self, rows: RowValues) -> Truth:
        true, false = 0, rows.everything
        for operand in self.operands:
            truth = operand.truth(rows)
            true |= truth.true
            false &= truth.false
            if true == rows.everything:
                break
        return Truth(true, false)
