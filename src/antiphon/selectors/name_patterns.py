"""Patterns of names: globs, and regular expressions of RE2.

NPT1  A pattern matches a whole name or nothing.
NPT2  A match takes time linear in the name, and bounded memory, whatever a stranger has written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from antiphon.errors import InvalidPattern
from antiphon.selectors.like import PatternPart, compile_like

_MEMORY_BYTES_MAX: Final = 1 << 20

NO_RE2: Final = "patterns of match='regex' need the package google-re2: pip install 'antiphon[regex]'"


@lru_cache(maxsize=1_024)
def compile_pattern(match: str, pattern: str) -> Callable[[str], bool]:
    """A function that says whether a name matches; raises InvalidPattern.

    >>> compile_pattern("glob", "prices.*")("prices.EU.bonds")
    True
    """
    if match == "glob":
        return compile_like(_parts_of_glob(pattern))
    if match == "regex":
        return _compile_regex(pattern)
    raise InvalidPattern(f"match is 'glob' or 'regex'; it was {match!r:.80}")


def _parts_of_glob(pattern: str) -> list[PatternPart]:
    """`*` is any text and `?` one character, dots included; everything else stands for itself."""
    return [[None if character == "?" else character for character in part] for part in pattern.split("*")]


def _compile_regex(pattern: str) -> Callable[[str], bool]:
    try:
        import re2
    except ImportError:
        raise InvalidPattern(NO_RE2) from None
    options: Any = re2.Options()
    options.max_mem = _MEMORY_BYTES_MAX
    options.log_errors = False
    try:
        compiled: Any = re2.compile(pattern, options)
    except (re2.error, UnicodeError) as error:
        text = f"the pattern {pattern!r:.300} is no regular expression of RE2: {error}"
        raise InvalidPattern(text) from None
    return lambda name: compiled.fullmatch(name) is not None
