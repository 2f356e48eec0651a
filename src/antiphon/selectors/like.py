"""The patterns of LIKE: `%` is any text, `_` one character.

LIK1  A match takes time linear in the text: each part of the pattern between two `%` is searched once, from
      where the part before it ended. A part with `_` keeps all beginnings at once, as bits of one number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PATTERN_MAX: Final = 4_096
"""The most characters of a pattern: the bits of a part with `_` are shifted for each character of a text."""

_ANY: Final = None
"""Stands for `_` in a part of a pattern."""

PatternPart = list[str | None]
Search = Callable[[str, int], int]


def parts_of(pattern: str, escape: str | None) -> list[PatternPart]:
    """The parts between the `%`; raise ValueError when the pattern ends with the escape character."""
    parts: list[PatternPart] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            literal = next(characters, None)
            if literal is None:
                raise ValueError("the pattern ends with its escape character")
            parts[-1].append(literal)
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(_ANY if character == "_" else character)
    return parts


def compile_like(parts: list[PatternPart]) -> Callable[[str], bool]:
    """Whether a text matches the parts, in order and with anything between them."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return lambda text: len(text) == len(first) and _fits(first, text, 0)
    searches = [(_search(part), len(part)) for part in parts[1:-1] if part]
    shortest = sum(map(len, parts))

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        if len(text) < shortest or not _fits(first, text, 0) or not _fits(last, text, end):
            return False
        at = len(first)
        for search, length in searches:
            at = search(text, at)
            if at < 0 or at + length > end:
                return False
            at += length
        return True

    return matches


def _fits(part: PatternPart, text: str, at: int) -> bool:
    if _ANY not in part:
        return text.startswith("".join(filter(None, part)), at)
    return all(character in (_ANY, text[at + place]) for place, character in enumerate(part))


def _search(part: PatternPart) -> Search:
    """The first place not before `at` where the part fits, or -1."""
    if _ANY not in part:
        literal = "".join(filter(None, part))
        return lambda text, at: text.find(literal, at)
    anything = sum(1 << place for place, character in enumerate(part) if character is _ANY)
    masks: dict[str, int] = {}
    for place, character in enumerate(part):
        if character is not None:
            masks[character] = masks.get(character, anything) | 1 << place
    whole = 1 << len(part) - 1

    def search(text: str, at: int) -> int:
        begun = 0
        for place in range(at, len(text)):
            begun = (begun << 1 | 1) & masks.get(text[place], anything)
            if begun & whole:
                return place - len(part) + 1
        return -1

    return search
