"""What is no selector is refused, with the place of the first wrong character."""

from __future__ import annotations

import pytest

from antiphon.batch import Batch
from antiphon.errors import InvalidSelector, LocalError, error_from_code
from antiphon.selectors import compile_selector
from antiphon.selectors.like import PATTERN_MAX
from antiphon.selectors.parser import BYTES_MAX, DEPTH_MAX, PARTS_MAX

# The caret stands below the character that is named.
WRONG = r"""
a = 1 AND
         ^ a name, a literal or (
a = 1 AND AND b = 2
          ^ a name, a literal or (
a = 1 b = 2
      ^ AND, OR or the end
a =
   ^ a name, a literal or (
= 1
^ a name, a literal or (
a = 1)
     ^ AND, OR or the end
(a = 1
      ^ )
((a = 1)
        ^ )
()
 ^ a name, a literal or (
a = = 1
    ^ a name, a literal or (
a == 1
   ^ a name, a literal or (
a != 1
  ^ <>
a = 1 = 2
      ^ AND, OR or the end
a < b < c
      ^ AND, OR or the end
a = "x"
    ^ single quotes
a = 'x
    ^ a quote that ends
a = 'x''
    ^ a quote that ends
a > 'x'
  ^ = or <>
'x' <= a
    ^ = or <>
a < TRUE
  ^ = or <>
5
 ^ a comparison
'x'
   ^ a comparison
5 AND a
^ a condition, and not a number
a AND 'x' OR b
      ^ a condition, and not a text
NOT 5
     ^ a comparison
a + 1
     ^ a comparison
(a + 1) OR b
^ a condition, and not a number
(a = 1) = TRUE
^ a value, and not a condition
TRUE = (a = 1)
       ^ a value, and not a condition
(a = 1) + 1 = 2
^ a value, and not a condition
1 + 'x' = 2
    ^ a number
'x' * 2 = 2
^ a number
TRUE + 1 = 2
^ a number
-'x' = 2
 ^ a number
JMSType + 1 = 2
^ a number
a = NULL
    ^ IS NULL
NULL = a
^ IS NULL
a IS
    ^ NULL
a IS NOT
        ^ NULL
a IS TRUE
     ^ NULL
5 IS NULL
^ the name of
'x' IS NULL
^ the name of
a + 1 IS NULL
^ the name of
a BETWEEN 1
           ^ AND
a BETWEEN 1 OR 2
            ^ AND
a BETWEEN 'x' AND 'y'
          ^ a number
a BETWEEN 1 AND TRUE
                ^ a number
'x' BETWEEN 1 AND 2
^ a number
a NOT 1
      ^ BETWEEN, IN or LIKE
a NOT
     ^ BETWEEN, IN or LIKE
a IN
    ^ (
a IN 'x'
     ^ (
a IN ()
      ^ a text in single quotes
a IN ('x'
         ^ , or )
a IN ('x' 'y')
          ^ , or )
a IN ('x',)
          ^ a text in single quotes
a IN (1, 2)
      ^ a text in single quotes
a IN (b)
      ^ a text in single quotes
5 IN ('x')
^ the name of
'x' IN ('x')
^ the name of
a LIKE
      ^ a pattern
a LIKE 5
       ^ a pattern
a LIKE b
       ^ a pattern
5 LIKE 'x'
^ the name of
a + 1 LIKE 'x'
^ the name of
a LIKE 'x' ESCAPE
                 ^ one character
a LIKE 'x' ESCAPE ''
                  ^ one character
a LIKE 'x' ESCAPE 'xy'
                  ^ one character
a LIKE 'x!' ESCAPE '!'
       ^ a pattern that does not end
a ESCAPE 'x'
  ^ AND, OR or the end
a = 08
     ^ an octal digit
a = 0779
       ^ an octal digit
a = 9223372036854775808
    ^ a whole number of 64 bits
a = -9223372036854775809
     ^ a whole number of 64 bits
a = -(9223372036854775808)
      ^ a whole number of 64 bits
a = 99999999999999999999999999
    ^ a whole number of 64 bits
a = 0x10000000000000000
    ^ a whole number of 64 bits
a = 02000000000000000000000
    ^ a whole number of 64 bits
a = 0x
     ^ the end of the number
a = 1e999
    ^ a number that is not too large
a = 1e39f
    ^ a number that is not too large
a = 1x
     ^ the end of the number
a = 1_000
     ^ the end of the number
a = 1.5.5
       ^ the end of the number
a = 1.5e
       ^ the end of the number
a = 7LL
      ^ the end of the number
a.b = 1
 ^ a name, a literal or a sign
a # b
  ^ a name, a literal or a sign
a = 1;
     ^ a name, a literal or a sign
a = ?
    ^ a name, a literal or a sign
[a] = 1
^ a name, a literal or a sign
a -- note
         ^ a comparison
a /* note */ = 1
   ^ a name, a literal or (
AND
^ a name, a literal or (
LIKE = 1
^ a name, a literal or (
between = 1
^ a name, a literal or (
JMSDestination = 'x'
^ one of the headers
JMSReplyTo IS NULL
^ one of the headers
JMSExpiration > 1
^ one of the headers
JMSRedelivered
^ one of the headers
JMSDeliveryTime > 1
^ one of the headers
a = 1 AND JMSfoo = 2
          ^ one of the headers
JMS = 2
^ one of the headers
"""


def wrong() -> list[tuple[str, int, str]]:
    lines = WRONG.splitlines()[1:]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [(text, caret.index("^"), caret.partition("^ ")[2]) for text, caret in pairs]


@pytest.mark.parametrize(("text", "position", "expected"), wrong())
def test_an_error_points_at_the_first_wrong_character(text: str, position: int, expected: str) -> None:
    with pytest.raises(InvalidSelector) as caught:
        compile_selector(text)
    error = caught.value
    assert (error.position, expected in error.text) == (position, True), error.text
    sentence, shown, caret = error.text.split("\n")
    assert f"column {position + 1}:" in sentence
    assert shown[caret.index("^") :] == text[position : position + 30]


def test_an_invalid_selector_is_the_callers_mistake_and_keeps_its_type_on_the_wire() -> None:
    with pytest.raises(LocalError) as caught:
        compile_selector("a = ")
    again = error_from_code(caught.value.code, caught.value.text)
    assert isinstance(again, InvalidSelector)
    assert again.text == caught.value.text


def test_the_place_in_a_long_text_is_shown_in_an_excerpt() -> None:
    text = "a = 1 AND\n" * 100 + "b ! 2" + " OR c = 3" * 100
    with pytest.raises(InvalidSelector) as caught:
        compile_selector(text)
    _, shown, caret = caught.value.text.split("\n")
    assert shown[caret.index("^")] == "!"
    assert len(shown) < 100


def nested(levels: int) -> list[str]:
    return [
        "(" * levels + "a = 1" + ")" * levels,
        "NOT " * levels + "a",
        "- " * levels + "a = 1",
    ]


@pytest.mark.parametrize("text", nested(DEPTH_MAX))
def test_parts_nest_to_a_depth(text: str) -> None:
    batch = Batch.of_bodies([b""], producer=1, first_number=1, timestamp_ms=0)
    assert not compile_selector(text).matches(batch, 0, "a")


@pytest.mark.parametrize("text", [*nested(DEPTH_MAX + 1), *nested(10_000)])
def test_what_nests_deeper_is_refused(text: str) -> None:
    with pytest.raises(InvalidSelector, match="levels"):
        compile_selector(text)


@pytest.mark.parametrize("text", ["a = 1" + " + 1" * (PARTS_MAX - 10), "a OR " * (PARTS_MAX - 10) + "b"])
def test_a_chain_is_not_deep(text: str) -> None:
    batch = Batch.of_bodies([b""], producer=1, first_number=1, timestamp_ms=0)
    assert not compile_selector(text).matches(batch, 0, "a")


@pytest.mark.parametrize(
    "text", ["a = 1" + " OR a = 1" * PARTS_MAX, f"a IN ({','.join([repr('x')] * (PARTS_MAX + 1))})"]
)
def test_the_number_of_parts_is_limited(text: str) -> None:
    with pytest.raises(InvalidSelector, match="no more than 1,024"):
        compile_selector(text)


def test_the_text_and_the_pattern_are_limited() -> None:
    with pytest.raises(InvalidSelector, match="bytes"):
        compile_selector("a = 1" + " " * BYTES_MAX)
    with pytest.raises(InvalidSelector, match="pattern of no more"):
        compile_selector(f"a LIKE '{'_' * (PATTERN_MAX + 1)}'")


def test_text_that_utf8_cannot_express_is_refused() -> None:
    with pytest.raises(InvalidSelector) as caught:
        compile_selector("a = '\ud800'")
    assert caught.value.position == 5


def test_a_selector_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidSelector, match="type int"):
        compile_selector(5)  # type: ignore[arg-type]
