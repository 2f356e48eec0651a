"""Tokens: a selector's text as words, literals and signs, each with its place.

TOK1  A text that no selector can have raises InvalidSelector, with the place of the first wrong character.
TOK2  Time and memory are linear in the length of the text.
"""

from __future__ import annotations

import math
import re
import struct
from enum import Enum
from typing import Final, NamedTuple

from antiphon.errors import InvalidSelector
from antiphon.ids import U64_MAX
from antiphon.names import RESERVED_WORDS, identifier_stop


class TokenKind(Enum):
    """What a token is; the value is how an error text calls it."""

    WORD = "a reserved word"
    NAME = "a name"
    EXACT = "a whole number"
    APPROXIMATE = "a number"
    TEXT = "a text"
    SIGN = "a sign"
    END = "the end"


class Token(NamedTuple):
    """A token: `value` is the word in upper case, the name, the number, the text or the sign."""

    kind: TokenKind
    value: str | int | float
    start: int
    stop: int
    is_decimal: bool = False


SPACES: Final = re.compile(r"[ \t\n\r\f\v\x1c-\x1f]+")
_SIGN: Final = re.compile(r"<>|<=|>=|[=<>+\-*/(),]")
_TEXT: Final = re.compile(r"'(?:[^']|'')*+'")
_NUMBER: Final = re.compile(
    r"(?P<approximate>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|[0-9]+[eE][+-]?[0-9]+[fFdD]?|[0-9]+[fFdD])"
    r"|0[xX](?P<hex>[0-9a-fA-F]+)[lL]?"
    r"|(?P<exact>[0-9]+)[lL]?"
)
_F32: Final = struct.Struct("<f")


def tokens_of(text: str) -> list[Token]:
    """All tokens of a text, the last one of kind END."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        spaces = SPACES.match(text, at)
        if spaces:
            at = spaces.end()
            continue
        token = _token_at(text, at)
        tokens.append(token)
        at = token.stop
    tokens.append(Token(TokenKind.END, "", at, at))
    return tokens


def _token_at(text: str, at: int) -> Token:
    sign = _SIGN.match(text, at)
    if sign:
        return Token(TokenKind.SIGN, sign[0], at, sign.end())
    number = _NUMBER.match(text, at)
    if number:
        return _number(text, at, number)
    stop = identifier_stop(text, at)
    if stop > at:
        word = text[at:stop]
        if word.upper() in RESERVED_WORDS:
            return Token(TokenKind.WORD, word.upper(), at, stop)
        return Token(TokenKind.NAME, word, at, stop)
    if text[at] == "'":
        quoted = _TEXT.match(text, at)
        if quoted is None:
            raise InvalidSelector.at(text, at, "a quote that ends the text which begins here")
        return Token(TokenKind.TEXT, quoted[0][1:-1].replace("''", "'"), at, quoted.end())
    if text[at] == '"':
        raise InvalidSelector.at(text, at, "single quotes around a text")
    if text.startswith("!=", at):
        raise InvalidSelector.at(text, at, "<> for 'is not equal'")
    raise InvalidSelector.at(text, at, "a name, a literal or a sign")


def _number(text: str, at: int, found: re.Match[str]) -> Token:
    stop = found.end()
    if stop < len(text) and (text[stop] == "." or identifier_stop(f"_{text[stop]}", 0) == 2):
        raise InvalidSelector.at(text, stop, "the end of the number")
    if found["approximate"] is not None:
        return Token(TokenKind.APPROXIMATE, _approximate(text, at, found["approximate"]), at, stop)
    if found["hex"] is not None:
        return Token(TokenKind.EXACT, _from_bits(text, at, found["hex"], 16), at, stop)
    digits = found["exact"]
    if len(digits) > 1 and digits[0] == "0":
        wrong = re.search("[89]", digits)
        if wrong:
            raise InvalidSelector.at(text, at + wrong.start(), "an octal digit, for the number begins with 0")
        return Token(TokenKind.EXACT, _from_bits(text, at, digits, 8), at, stop)
    # The length is compared first: a number of many thousand digits takes long to read.
    if len(digits) > 19 or int(digits) > 1 << 63:
        raise InvalidSelector.at(text, at, "a whole number of 64 bits")
    return Token(TokenKind.EXACT, int(digits), at, stop, is_decimal=True)


def _approximate(text: str, at: int, digits: str) -> float:
    number = float(digits.rstrip("fFdD"))
    if digits[-1] in "fF":
        try:
            (number,) = _F32.unpack(_F32.pack(number))
        except OverflowError:
            number = math.inf
    if math.isinf(number):
        raise InvalidSelector.at(text, at, "a number that is not too large")
    return number


def _from_bits(text: str, at: int, digits: str, base: int) -> int:
    """A hexadecimal or octal literal says the 64 bits of a long, as in Java."""
    bits = int(digits, base)
    if bits > U64_MAX:
        raise InvalidSelector.at(text, at, "a whole number of 64 bits")
    return bits - (1 << 64) if bits >> 63 else bits
