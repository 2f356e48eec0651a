"""Patterns of names: what matches, what is refused, and that nothing runs away."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidPattern
from antiphon.selectors.name_patterns import compile_pattern

# What `?` and `*` mean in fnmatch; brackets would be more there.
WORDS = st.text(alphabet="ab.*?", max_size=12)
NAMES = st.text(alphabet="ab.", max_size=20)


@given(WORDS, NAMES)
def test_a_glob_agrees_with_fnmatch(pattern: str, name: str) -> None:
    assert compile_pattern("glob", pattern)(name) == fnmatchcase(name, pattern)


def test_everything_but_two_characters_stands_for_itself() -> None:
    matches = compile_pattern("glob", "a[b](c)%_+.*")
    assert matches("a[b](c)%_+.x") and not matches("ab(c)%_+.x")


def test_an_expression_matches_the_whole_name() -> None:
    matches = compile_pattern("regex", "prices[.](eu|us)")
    assert matches("prices.eu")
    assert not matches("prices.eur") and not matches("my.prices.eu")


@pytest.mark.parametrize("match", ["glob", "regex"])
def test_a_hostile_pattern_takes_no_longer_than_another(match: str) -> None:
    """A backtracking matcher would take longer than the universe has been there."""
    pattern = "*a" * 100 if match == "glob" else "(a*)*" * 40 + "b"
    assert not compile_pattern(match, pattern)("a" * 90 + "c")


@pytest.mark.parametrize("pattern", ["(", "[a", "(?=a)", "a" * 3 + "{1000}{1000}"])
def test_what_is_no_expression_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern, match="no regular expression of RE2"):
        compile_pattern("regex", pattern)("x")


def test_without_re2_an_expression_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidPattern, match=r"pip install 'antiphon\[regex\]'"):
        compile_pattern("regex", "without re2")
    assert compile_pattern("glob", "without*")("without re2")
