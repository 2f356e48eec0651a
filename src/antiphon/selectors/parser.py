"""Parser: the tokens of a selector become one condition, by recursive descent.

SPR1  A text that is no selector raises InvalidSelector with the place of the first token that cannot stand
      there, and what could.
SPR2  Parentheses, NOT and signs nest to a limited depth, and the number of parts is limited: a stranger's
      selector takes neither the stack nor an unlimited time for each message.

From the weakest to the strongest: OR; AND; NOT; comparisons, BETWEEN, IN, LIKE, IS; + -; * /; unary + -.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, NoReturn

from antiphon.errors import InvalidSelector
from antiphon.selectors.conditions import (
    AllOf,
    AnyOf,
    Arithmetic,
    Comparison,
    Condition,
    Expression,
    Flag,
    IsNull,
    Listed,
    Literal,
    Name,
    Negative,
    Not,
    Positive,
)
from antiphon.selectors.like import PATTERN_MAX, compile_like, parts_of
from antiphon.selectors.rows import HEADERS, TEXT_HEADERS
from antiphon.selectors.tokens import Token, TokenKind, tokens_of
from antiphon.selectors.vectors import COMPARISONS

BYTES_MAX: Final = 65_535
DEPTH_MAX: Final = 64
PARTS_MAX: Final = 1_024


class _Sort(Enum):
    """What is known of a part before any message is seen."""

    CONDITION = "a condition"
    NUMBER = "a number"
    TEXT = "a text"
    FLAG = "TRUE or FALSE"
    NAME = "a name"


class _Parsed(NamedTuple):
    """A part of a selector: a condition or an expression, and the place where it begins."""

    sort: _Sort
    start: int
    expression: Expression | None = None
    condition: Condition | None = None


class Parsed(NamedTuple):
    """A parsed selector: its condition, and how many parts it has."""

    condition: Condition
    parts: int


def parse(text: str) -> Parsed:
    """The condition of a selector that is not blank; raise InvalidSelector (SPR1)."""
    size = len(text.encode())
    if size > BYTES_MAX:
        raise InvalidSelector(f"a selector of {size:,} bytes; {BYTES_MAX:,} are allowed")
    parser = _Parser(text)
    return Parsed(parser.whole(), parser.parts)


class _Parser:
    """The tokens of one text, and how far they are parsed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0
        self.parts = 0

    def whole(self) -> Condition:
        condition = self._condition(self._either())
        if self._next.kind is not TokenKind.END:
            self._fail("AND, OR or the end of the selector")
        return condition

    # -- tokens ----------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _takes(self, *values: str) -> str | None:
        """Take the next token if it is one of these words or signs."""
        token = self._next
        if token.kind in (TokenKind.WORD, TokenKind.SIGN) and token.value in values:
            self._at += 1
            return str(token.value)
        return None

    def _need(self, value: str) -> None:
        if self._takes(value) is None:
            self._fail(value)

    def _fail(self, expected: str, at: int | None = None) -> NoReturn:
        raise InvalidSelector.at(self._text, self._next.start if at is None else at, expected)

    def _count(self, start: int) -> None:
        self.parts += 1
        if self.parts > PARTS_MAX:
            self._fail(f"no more than {PARTS_MAX:,} names, literals and operators", start)

    def _deeper(self, by: int) -> None:
        self._depth += by
        if self._depth > DEPTH_MAX:
            self._fail(f"no more than {DEPTH_MAX} levels of parentheses, NOT and signs")

    # -- conditions ------------------------------------------------------------

    def _either(self) -> _Parsed:
        first = self._both()
        if self._next.value != "OR" or self._next.kind is not TokenKind.WORD:
            return first
        operands = [self._condition(first)]
        while self._takes("OR"):
            operands.append(self._condition(self._both()))
        return self._conditional(first.start, AnyOf(tuple(operands)))

    def _both(self) -> _Parsed:
        first = self._negated()
        if self._next.value != "AND" or self._next.kind is not TokenKind.WORD:
            return first
        operands = [self._condition(first)]
        while self._takes("AND"):
            operands.append(self._condition(self._negated()))
        return self._conditional(first.start, AllOf(tuple(operands)))

    def _negated(self) -> _Parsed:
        start = self._next.start
        if not self._takes("NOT"):
            return self._compared()
        self._deeper(1)
        operand = self._condition(self._negated())
        self._deeper(-1)
        return self._conditional(start, Not(operand))

    def _conditional(self, start: int, condition: Condition) -> _Parsed:
        self._count(start)
        return _Parsed(_Sort.CONDITION, start, condition=condition)

    def _condition(self, parsed: _Parsed) -> Condition:
        if parsed.condition is not None:
            return parsed.condition
        assert parsed.expression is not None, "a part is a condition or an expression"
        if parsed.sort in (_Sort.FLAG, _Sort.NAME):
            return Flag(parsed.expression)
        if self._next.kind is TokenKind.END:
            self._fail("a comparison")
        self._fail(f"a condition, and not {parsed.sort.value}", parsed.start)

    def _compared(self) -> _Parsed:
        left = self._sum()
        token = self._next
        if token.kind is TokenKind.SIGN and token.value in COMPARISONS:
            return self._comparison(left, str(self._take().value), token.start)
        if self._takes("IS"):
            is_negative = self._takes("NOT") is not None
            self._need("NULL")
            return self._test(IsNull(self._name(left)), is_negative, left.start)
        is_negative = self._takes("NOT") is not None
        if self._takes("BETWEEN"):
            return self._between(left, is_negative)
        if self._takes("IN"):
            return self._in(left, is_negative)
        if self._takes("LIKE"):
            return self._like(left, is_negative)
        if is_negative:
            self._fail("BETWEEN, IN or LIKE")
        return left

    def _test(self, condition: Condition, is_negative: bool, start: int) -> _Parsed:
        return self._conditional(start, Not(condition) if is_negative else condition)

    def _comparison(self, left: _Parsed, sign: str, sign_at: int) -> _Parsed:
        right = self._sum()
        if sign not in ("=", "<>"):
            for side in (left, right):
                if side.sort in (_Sort.TEXT, _Sort.FLAG):
                    self._fail(f"= or <>, for {side.sort.value} has no order", sign_at)
        condition = Comparison(self._value(left), sign, self._value(right))
        return self._conditional(left.start, condition)

    def _between(self, left: _Parsed, is_negative: bool) -> _Parsed:
        value = self._number(left)
        low = self._number(self._sum())
        self._need("AND")
        high = self._number(self._sum())
        self._count(left.start)
        if is_negative:
            outside = (Comparison(value, "<", low), Comparison(value, ">", high))
            return self._conditional(left.start, AnyOf(outside))
        inside = (Comparison(value, ">=", low), Comparison(value, "<=", high))
        return self._conditional(left.start, AllOf(inside))

    def _in(self, left: _Parsed, is_negative: bool) -> _Parsed:
        name = self._name(left)
        self._need("(")
        texts = []
        while True:
            self._count(self._next.start)
            texts.append(self._text_literal("a text in single quotes").encode())
            if not self._takes(","):
                break
        if not self._takes(")"):
            self._fail(", or )")
        return self._test(Listed(name, frozenset(texts).__contains__), is_negative, left.start)

    def _like(self, left: _Parsed, is_negative: bool) -> _Parsed:
        name = self._name(left)
        at = self._next.start
        pattern = self._text_literal("a pattern in single quotes")
        if len(pattern) > PATTERN_MAX:
            self._fail(f"a pattern of no more than {PATTERN_MAX:,} characters", at)
        escape = None
        if self._takes("ESCAPE"):
            escape_at = self._next.start
            escape = self._text_literal("one character in single quotes")
            if len(escape) != 1:
                self._fail("one character in single quotes", escape_at)
        try:
            parts = parts_of(pattern, escape)
        except ValueError:
            self._fail("a pattern that does not end with its escape character", at)
        matches = compile_like(parts)
        chosen = Listed(name, lambda text: matches(text.decode()))
        return self._test(chosen, is_negative, left.start)

    def _text_literal(self, expected: str) -> str:
        if self._next.kind is not TokenKind.TEXT:
            self._fail(expected)
        return str(self._take().value)

    # -- expressions -----------------------------------------------------------

    def _value(self, parsed: _Parsed) -> Expression:
        if parsed.expression is None:
            self._fail("a value, and not a condition", parsed.start)
        return parsed.expression

    def _number(self, parsed: _Parsed) -> Expression:
        value = self._value(parsed)
        is_text = isinstance(value, Name) and value.name in TEXT_HEADERS
        if parsed.sort in (_Sort.TEXT, _Sort.FLAG) or is_text:
            self._fail("a number", parsed.start)
        return value

    def _name(self, parsed: _Parsed) -> Name:
        if not isinstance(parsed.expression, Name):
            self._fail("the name of a property or a header", parsed.start)
        return parsed.expression

    def _sum(self) -> _Parsed:
        first = self._product()
        rest = []
        while sign := self._takes("+", "-"):
            rest.append((sign, self._number(self._product())))
        return self._computed(first, rest)

    def _product(self) -> _Parsed:
        first = self._signed()
        rest = []
        while sign := self._takes("*", "/"):
            rest.append((sign, self._number(self._signed())))
        return self._computed(first, rest)

    def _computed(self, first: _Parsed, rest: list[tuple[str, Expression]]) -> _Parsed:
        if not rest:
            return first
        expression = Arithmetic(self._number(first), tuple(rest))
        return _Parsed(_Sort.NUMBER, first.start, expression)

    def _signed(self) -> _Parsed:
        start = self._next.start
        sign = self._takes("+", "-")
        if sign is None:
            return self._primary()
        token = self._next
        if sign == "-" and token.kind is TokenKind.EXACT and token.is_decimal:
            # The lowest whole number has no positive counterpart.
            self._take()
            self._count(start)
            return _Parsed(_Sort.NUMBER, start, Literal(-int(token.value)))
        self._deeper(1)
        operand = self._number(self._signed())
        self._deeper(-1)
        self._count(start)
        return _Parsed(_Sort.NUMBER, start, Negative(operand) if sign == "-" else Positive(operand))

    def _primary(self) -> _Parsed:
        token = self._next
        self._count(token.start)
        match token.kind:
            case TokenKind.EXACT if token.is_decimal and int(token.value) >> 63:
                self._fail("a whole number of 64 bits")
            case TokenKind.EXACT | TokenKind.APPROXIMATE:
                return _Parsed(_Sort.NUMBER, token.start, Literal(self._take().value))
            case TokenKind.TEXT:
                return _Parsed(_Sort.TEXT, token.start, Literal(self._take().value))
            case TokenKind.NAME:
                return _Parsed(_Sort.NAME, token.start, self._identifier())
            case TokenKind.WORD if token.value in ("TRUE", "FALSE"):
                return _Parsed(_Sort.FLAG, token.start, Literal(self._take().value == "TRUE"))
            case TokenKind.WORD if token.value == "NULL":
                self._fail("IS NULL or IS NOT NULL: a value does not compare with NULL")
        self._need_parenthesis()
        self._deeper(1)
        inner = self._either()
        self._deeper(-1)
        if not self._takes(")"):
            self._fail(")")
        return inner._replace(start=token.start)

    def _need_parenthesis(self) -> None:
        if not self._takes("("):
            self._fail("a name, a literal or (")

    def _identifier(self) -> Name:
        token = self._take()
        name = str(token.value)
        if name.startswith("JMS") and name not in HEADERS and not name.startswith(("JMSX", "JMS_")):
            self._fail(f"one of the headers {', '.join(HEADERS)}", token.start)
        return Name(name)
