"""The columns against the obvious: random selectors over random rows, evaluated value by value."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import Batch, BatchBuilder
from antiphon.errors import InvalidSelector
from antiphon.selectors import compile_selector
from antiphon.values import Int8, Int32

Row = dict[str, Any]
# An expression is its text and a tuple that the naive evaluator reads.
Tree = tuple[Any, ...]

NAMES = ("a", "b", "c", "t", "u")
TEXTS = ("", "x", "xy", "yx", "x%", "é_")


# -- the obvious -------------------------------------------------------------------


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def naive_value(tree: Tree, row: Row) -> Any:
    match tree:
        case ("literal", value):
            return value
        case ("name", name):
            return row.get(name)
        case ("negative", operand):
            return naive_arithmetic("-", 0, naive_value(operand, row))
        case (sign, left, right):
            return naive_arithmetic(sign, naive_value(left, row), naive_value(right, row))
    raise AssertionError(tree)


def naive_arithmetic(sign: str, left: Any, right: Any) -> Any:
    if not is_number(left) or not is_number(right):
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if sign == "/" and right == 0:
            if left == 0 or math.isnan(left):
                return math.nan
            return math.inf if (left > 0) == (math.copysign(1, right) > 0) else -math.inf
        return (
            {"+": left + right, "-": left - right, "*": left * right}[sign] if sign != "/" else left / right
        )
    if sign == "/":
        if right == 0:
            return None
        whole = abs(left) // abs(right)
        result = whole if (left >= 0) == (right > 0) else -whole
    else:
        result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    return int.from_bytes((result % (1 << 64)).to_bytes(8, "little"), "little", signed=True)


def naive_compare(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if is_number(left) and is_number(right):
        if isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
        return {
            "=": left == right,
            "<>": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[sign]
    alike = (isinstance(left, str) and isinstance(right, str)) or (
        isinstance(left, bool) and isinstance(right, bool)
    )
    if not alike or sign not in ("=", "<>"):
        return False
    return bool(left == right) == (sign == "=")


def naive_like(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive_like(text[at:], pattern[1:]) for at in range(len(text) + 1))
    if not text:
        return False
    if pattern[0] == "!":
        return text[0] == pattern[1] and naive_like(text[1:], pattern[2:])
    return pattern[0] in ("_", text[0]) and naive_like(text[1:], pattern[1:])


def naive_truth(tree: Tree, row: Row) -> bool | None:
    match tree:
        case ("not", operand):
            truth = naive_truth(operand, row)
            return None if truth is None else not truth
        case ("and", left, right):
            both = [naive_truth(left, row), naive_truth(right, row)]
            return False if False in both else None if None in both else True
        case ("or", left, right):
            both = [naive_truth(left, row), naive_truth(right, row)]
            return True if True in both else None if None in both else False
        case ("flag", operand):
            value = naive_value(operand, row)
            return value if isinstance(value, bool) else None
        case ("compare", sign, left, right):
            return naive_compare(sign, naive_value(left, row), naive_value(right, row))
        case ("is null", name):
            return row.get(name) is None
        case ("in", name, texts):
            value = row.get(name)
            return None if value is None else isinstance(value, str) and value in texts
        case ("like", name, pattern):
            value = row.get(name)
            return None if value is None else isinstance(value, str) and naive_like(value, pattern)
    raise AssertionError(tree)


# -- random selectors --------------------------------------------------------------

Piece = tuple[str, Tree]

names = st.sampled_from(NAMES)
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 53]),
    st.sampled_from([0.0, 0.5, 2.0]),
)
texts = st.sampled_from(TEXTS)


def number_piece(value: float) -> Piece:
    # A sign in front of a literal is written with parentheres, so that it may follow another sign.
    return (f"({value!r})" if value < 0 else repr(value)), ("literal", value)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


numeric = st.recursive(
    st.one_of(numbers.map(number_piece), names.map(lambda name: (name, ("name", name)))),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner).map(
            lambda drawn: (
                f"({drawn[1][0]} {drawn[0]} {drawn[2][0]})",
                (drawn[0], drawn[1][1], drawn[2][1]),
            )
        ),
        inner.map(lambda operand: (f"(0 - {operand[0]})", ("negative", operand[1]))),
    ),
    max_leaves=4,
)
values = st.one_of(
    numeric,
    texts.map(lambda text: (quoted(text), ("literal", text))),
    st.booleans().map(lambda flag: (str(flag), ("literal", flag))),
)
patterns = st.lists(st.sampled_from(["%", "_", "x", "y", "é", "!%", "!_", "!!"]), max_size=5).map("".join)


@st.composite
def simple(draw: st.DrawFn) -> Piece:
    kind = draw(st.sampled_from(["compare", "order", "flag", "is null", "in", "like", "between"]))
    name = draw(names)
    if kind == "compare":
        left, right, sign = draw(values), draw(values), draw(st.sampled_from(["=", "<>"]))
        return f"{left[0]} {sign} {right[0]}", ("compare", sign, left[1], right[1])
    if kind == "order":
        left, right, sign = draw(numeric), draw(numeric), draw(st.sampled_from(["<", "<=", ">", ">="]))
        return f"{left[0]} {sign} {right[0]}", ("compare", sign, left[1], right[1])
    if kind == "between":
        value, low, high = draw(numeric), draw(numeric), draw(numeric)
        inside: Tree = (
            "and",
            ("compare", ">=", value[1], low[1]),
            ("compare", "<=", value[1], high[1]),
        )
        return f"{value[0]} BETWEEN {low[0]} AND {high[0]}", inside
    if kind == "flag":
        return name, ("flag", ("name", name))
    if kind == "is null":
        return f"{name} IS NULL", ("is null", name)
    if kind == "in":
        wanted = draw(st.lists(texts, min_size=1, max_size=3))
        return f"{name} IN ({', '.join(map(quoted, wanted))})", ("in", name, wanted)
    pattern = draw(patterns)
    return f"{name} LIKE {quoted(pattern)} ESCAPE '!'", ("like", name, pattern)


conditions = st.recursive(
    simple(),
    lambda inner: st.one_of(
        inner.map(lambda operand: (f"NOT ({operand[0]})", ("not", operand[1]))),
        st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(
            lambda drawn: (
                f"({drawn[1][0]}) {drawn[0]} ({drawn[2][0]})",
                (drawn[0], drawn[1][1], drawn[2][1]),
            )
        ),
    ),
    max_leaves=5,
)

cells = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    texts,
    st.integers(-3, 3).map(Int8),
    st.integers(-3, 3).map(Int32),
    st.just(b"x"),
)
mixed_rows = st.lists(st.dictionaries(names, cells, max_size=4), min_size=1, max_size=20)
uniform_rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "a": st.integers(-3, 3),
            "b": st.sampled_from([0.0, 0.5, 2.0, -1.5]),
            "c": st.booleans(),
            "t": texts,
            "u": texts,
        },
    ),
    min_size=1,
    max_size=20,
)


@given(conditions, st.one_of(mixed_rows, uniform_rows), st.integers(0, 19), st.integers(1, 20))
def test_columns_agree_with_the_definition(
    condition: Piece, rows: list[Row], start: int, length: int
) -> None:
    text, tree = condition
    builder = BatchBuilder()
    for row in rows:
        builder.add(b"", row, timestamp_ms=0)
    batch = Batch.decode(builder.build(producer=1, first_number=1).encode())
    start = min(start, len(rows) - 1)
    stop = min(start + length, len(rows))
    found = compile_selector(text).match_rows(batch, start, stop, "a", 100)
    by_definition = [100 + at for at in range(start, stop) if naive_truth(tree, rows[at]) is True]
    assert list(found.numbers()) == by_definition, text
    sliced = compile_selector(text).match_rows(batch.slice(start, stop), 0, stop - start, "a", 100 + start)
    assert sliced == found


@given(conditions, st.one_of(mixed_rows, uniform_rows))
def test_a_condition_is_true_false_or_unknown_and_never_two_of_them(
    condition: Piece, rows: list[Row]
) -> None:
    text, tree = condition
    builder = BatchBuilder()
    for row in rows:
        builder.add(b"", row, timestamp_ms=0)
    batch = builder.build(producer=1, first_number=1)
    false = compile_selector(f"NOT ({text})").match_rows(batch, 0, len(rows), "a")
    assert list(false.numbers()) == [at for at, row in enumerate(rows) if naive_truth(tree, row) is False]


@given(st.text(max_size=60) | st.text(alphabet="ab1'()=<>+-*/,. ANDORTIKELUBW", max_size=60))
def test_any_text_compiles_or_is_refused_with_a_place(text: str) -> None:
    try:
        compile_selector(text)
    except InvalidSelector as error:
        assert 0 <= error.position <= len(text)
