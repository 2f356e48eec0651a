"""Selectors by example: one message, and what each expression says of it.

T, F and U are true, false and unknown. A message matches an expression only if it is true; NOT tells false
from unknown.
"""

from __future__ import annotations

import pytest

from antiphon.batch import Batch, BatchBuilder
from antiphon.selectors import compile_selector
from antiphon.values import Float32, Int8, Int16, Int32, PropertyValue

PROPERTIES: dict[str, PropertyValue] = {
    "i": 7,
    "n": -7,
    "two": 2,
    "zero": 0,
    "most": (1 << 63) - 1,
    "least": -(1 << 63),
    "i8": Int8(8),
    "i16": Int16(16),
    "i32": Int32(32),
    "odd": (1 << 53) + 1,
    "d": 2.5,
    "f": Float32(1.5),
    "d0": 0.0,
    "inf": float("inf"),
    "nan": float("nan"),
    "s": "EU",
    "s2": "EU",
    "lower": "eu",
    "empty": "",
    "digits": "7",
    "apos": "it's",
    "percent": "50% off",
    "under": "a_b",
    "back": "a\\b",
    "city": "Zürich",
    "lines": "one\ntwo",
    "word": "mississippi",
    "yes": True,
    "no": False,
    "raw": b"EU",
    "nul": None,
    "größe": 3,
    "$x_1": 4,
    "JMSXGroupSeq": 5,
    "JMS_ANTIPHON_x": "v",
    "andy": 1,
}

TABLE = r"""
# comparisons of whole numbers
T  i = 7
F  i = 8
F  i <> 7
T  i <> 8
T  i > 6
F  i > 7
T  i >= 7
F  i >= 8
T  i < 8
F  i < 7
T  i <= 7
F  i <= 6
T  7 = i
T  6 < i
T  i = two + 5
T  i8 = 8
T  i16 = 16
T  i32 = 32
T  i8 < i16
T  most > least
T  1 = 1
F  1 = 2
T  i=7
T  (i)=(7)
# approximate numbers
T  d = 2.5
T  d > 2
T  d < 3
T  2 < d
T  f = 1.5
T  f + d = 4.0
T  i = 7.0
T  7.0 = i
F  i <> 7.0
T  d0 = 0
T  d0 = -0.0
T  odd = 9007199254740993
F  odd = 9007199254740992
T  odd = 9007199254740992.0
T  inf > 1e308
T  inf = inf
F  nan = nan
T  nan <> nan
F  nan > 1
F  nan < 1
# literals
T  i = 07
T  i = 0x7
T  i = 0X7L
T  i = 7L
T  i = 7l
T  7. = i
T  7.0 = i
T  7E0 = i
T  70e-1 = i
T  .7E1 = i
T  0.7e+1 = i
T  7f = i
T  7.0d = i
T  7D = i
T  1.5F = f
F  0.1f = 0.1
T  d = +2.5
T  n = -7
T  -57.9E2 = -5790
T  +6.2 > 6
T  -95.7 < -95
T  7E3 = 7000
T  0x10 = 16
T  010 = 8
T  0777 = 511
T  00 = 0
T  0 = zero
T  09.5 = 9.5
T  0xFFFFFFFFFFFFFFFF = -1
T  0xFFFFFFFF = 4294967295
T  01777777777777777777777 = -1
T  9223372036854775807 = most
T  -9223372036854775808 = least
T  'it''s' = apos
T  '' = empty
T  empty = ''
T  '''' <> apos
T  city = 'Zürich'
# texts
T  s = 'EU'
F  s = 'eu'
T  s <> 'eu'
F  s <> 'EU'
T  s = s2
F  s = lower
T  s <> lower
T  'EU' = s
T  'a' = 'a'
F  'a' = 'b'
T  'a' <> 'b'
F  s = 'EU '
F  s > s2
F  s >= s2
F  s < lower
F  s <= lower
# booleans
T  yes
F  no
T  yes = TRUE
F  yes = FALSE
T  yes <> FALSE
F  no = true
T  no = False
T  TRUE
F  FALSE
T  NOT no
F  NOT yes
T  TRUE = yes
T  yes <> no
F  yes = no
T  TRUE <> FALSE
F  yes > no
T  (yes)
T  yes AND TRUE
# unlike kinds are false, also for <>
F  i = 'a'
F  i = '7'
F  i <> '7'
F  digits = 7
F  digits <> 7
F  digits > 6
F  digits < 8
F  s = TRUE
F  s <> TRUE
F  yes = 1
F  yes <> 1
F  yes = 'true'
F  i = TRUE
F  i <> FALSE
F  i = s
F  i <> s
F  i > s
F  s < i
F  raw = 'EU'
F  raw <> 'EU'
F  raw = raw
F  raw = 1
F  1 = 'a'
F  1 <> 'a'
F  TRUE = 1
U  s
U  i
U  NOT s
U  raw
# null is unknown
U  none
U  NOT none
U  none = 1
U  none <> 1
U  none > 1
U  none = 'a'
U  none = none
U  none <> none
U  none = TRUE
U  none + 1 = 2
U  1 + none = 2
U  -none = 2
U  nul = 1
U  nul
U  none = s
U  raw + 1 = 2
U  s + 1 = 2
U  digits + 1 = 8
U  yes * 2 = 2
U  -s = 1
U  +s = 'EU'
T  +i = 7
# IS NULL
T  none IS NULL
F  none IS NOT NULL
T  nul IS NULL
F  nul IS NOT NULL
F  i IS NULL
T  i IS NOT NULL
F  empty IS NULL
F  raw IS NULL
T  no IS NOT NULL
T  (none) is null
# three-valued logic
T  yes AND yes
F  yes AND no
U  yes AND none
F  no AND yes
F  no AND no
F  no AND none
U  none AND yes
F  none AND no
U  none AND none
T  yes OR yes
T  yes OR no
T  yes OR none
T  no OR yes
F  no OR no
U  no OR none
T  none OR yes
U  none OR no
U  none OR none
U  NOT (none AND yes)
T  NOT (none AND no)
F  NOT (none OR yes)
U  NOT (none OR no)
T  NOT (i = 8)
T  NOT NOT yes
F  NOT NOT NOT yes
T  none IS NULL OR none = 1
T  none = 1 OR i = 7
F  none = 1 AND i = 8
# precedence
T  yes OR yes AND no
F  (yes OR yes) AND no
T  no AND no OR yes
F  no AND (no OR yes)
F  NOT yes AND no
T  NOT (yes AND no)
T  NOT no OR yes
T  NOT i = 8
T  NOT i = 8 AND yes
T  1 + 2 * 3 = 7
F  (1 + 2) * 3 = 7
T  (1 + 2) * 3 = 9
T  10 - 2 - 3 = 5
T  10 - (2 - 3) = 11
T  100 / 10 / 2 = 5
T  100 / (10 / 2) = 20
T  2 * 3 / 4 = 1
T  2 * (3 / 4) = 0
T  - 2 * 3 = -6
T  -(2 + 3) = -5
T  2 - -3 = 5
T  2 - - 3 = 5
T  - - 2 = 2
T  + - 2 = -2
T  2 + 3 > 4
T  i + 1 = 8 AND n - 1 = -8
T  1-1=0
T  i-7=0
# whole numbers as in Java
T  7 / 2 = 3
T  -7 / 2 = -3
T  7 / -2 = -3
T  -7 / -2 = 3
T  i / two = 3
T  n / two = -3
T  1 / 2 = 0
T  1 / 2.0 = 0.5
T  1.0 / 2 = 0.5
T  i / 2.0 = 3.5
T  most + 1 = least
T  least - 1 = most
T  most * 2 = -2
T  -least = least
T  least / -1 = least
T  9223372036854775807 + 1 = -9223372036854775808
T  i * n = -49
U  i / 0 = 1
U  i / zero = 1
U  1 / 0 = 1
U  i / zero <> 1
U  0 / 0 = 0
U  i / (two - 2) > 0
U  i / none = 1
T  i / 0.0 > 1e300
T  1 / d0 = inf
T  -1 / d0 < -1e300
T  0 / 0.0 <> 1
F  0 / 0.0 = 0
T  i / d0 = inf
T  1e308 * 10 = inf
T  most + 1.0 > 9e18
T  i / zero = 1 OR yes
# BETWEEN
T  i BETWEEN 7 AND 7
T  i BETWEEN 6 AND 8
F  i BETWEEN 8 AND 9
F  i BETWEEN 8 AND 6
F  i NOT BETWEEN 6 AND 8
T  i NOT BETWEEN 8 AND 9
T  d BETWEEN 2 AND 3
T  i BETWEEN 6.5 AND 7.5
T  i + 1 BETWEEN two * 4 AND 8
U  none BETWEEN 1 AND 2
U  i BETWEEN none AND 8
U  i BETWEEN 6 AND none
F  i BETWEEN none AND 6
F  i BETWEEN 8 AND none
U  none NOT BETWEEN 1 AND 2
T  i NOT BETWEEN 8 AND none
F  s BETWEEN 1 AND 2
F  s NOT BETWEEN 1 AND 2
F  digits BETWEEN 1 AND 9
T  i BETWEEN 6 AND 8 AND yes
T  yes AND i BETWEEN 6 AND 8
T  NOT i BETWEEN 8 AND 9
T  5 BETWEEN 1 AND 9
T  i BETWEEN n AND i
# IN
T  s IN ('EU')
T  s IN ('US', 'EU')
F  s IN ('US', 'eu')
F  s NOT IN ('US', 'EU')
T  s NOT IN ('US', 'eu')
U  none IN ('EU')
U  none NOT IN ('EU')
F  i IN ('7')
T  i NOT IN ('7')
F  raw IN ('EU')
T  empty IN ('')
T  apos IN ('it''s')
T  s in('EU')
T  NOT s IN ('US')
T  city IN ('Bern', 'Zürich')
F  yes IN ('true')
# LIKE
T  s LIKE 'EU'
F  s LIKE 'eu'
T  s LIKE 'E%'
T  s LIKE '%U'
T  s LIKE '%'
T  s LIKE '__'
F  s LIKE '_'
F  s LIKE '___'
T  s LIKE 'E_'
T  s LIKE '_U'
T  s LIKE '%E%U%'
T  s LIKE '%%'
T  s LIKE '%_'
T  s LIKE '_%_'
F  s LIKE '_%__'
F  s LIKE ''
T  empty LIKE ''
T  empty LIKE '%'
F  empty LIKE '_'
F  s NOT LIKE 'E%'
T  s NOT LIKE 'U%'
U  none LIKE '%'
U  none NOT LIKE '%'
F  i LIKE '7'
T  i NOT LIKE '7'
F  raw LIKE 'EU'
T  word LIKE 'm%i'
T  word LIKE '%iss%iss%'
F  word LIKE '%iss%iss%iss%'
T  word LIKE '%s_i%p_'
T  word LIKE '%s__s%'
F  word LIKE '%s__z%'
T  word LIKE '_i%_p_'
F  word LIKE 'mississippi_'
F  word LIKE 'missi'
F  word LIKE '%ippi%i'
T  percent LIKE '50!% %' ESCAPE '!'
F  s LIKE '50!%%' ESCAPE '!'
T  percent LIKE '%!%%' ESCAPE '!'
F  word LIKE '%!%%' ESCAPE '!'
T  under LIKE 'a!_b' ESCAPE '!'
F  s LIKE '!_U' ESCAPE '!'
T  under LIKE 'a\_b' ESCAPE '\'
T  back LIKE 'a\\b' ESCAPE '\'
T  back LIKE 'a\b'
T  under LIKE 'axab' ESCAPE 'x' OR yes
T  s LIKE '!E!U' ESCAPE '!'
T  apos LIKE 'it''_'
T  apos LIKE 'it''''s' ESCAPE ''''
T  city LIKE 'Z_rich'
T  city LIKE '%ü%'
T  lines LIKE 'one_two'
T  lines LIKE 'one%'
F  percent LIKE '50[%]%'
F  word LIKE '.*'
T  NOT s LIKE 'U%'
# headers
T  JMSPriority = 6
T  JMSPriority >= 4
T  JMSPriority BETWEEN 5 AND 9
T  JMSTimestamp = 1700000000123
T  JMSTimestamp > 1.6e12
T  JMSType = 'order'
T  JMSType LIKE 'ord%'
T  JMSCorrelationID = 'c-1'
T  JMSCorrelationID IS NOT NULL
T  JMSDeliveryMode = 'NON_PERSISTENT'
F  JMSDeliveryMode = 'PERSISTENT'
T  JMSDeliveryMode IN ('PERSISTENT', 'NON_PERSISTENT')
T  JMSMessageID = 'ID:000000000000000000000000000000a1-{number}@main'
F  JMSMessageID = 'ID:000000000000000000000000000000a1-1@main'
T  JMSMessageID LIKE 'ID:%@main'
F  JMSMessageID = 5
F  JMSType = 5
F  JMSType > 5
T  JMSXGroupID = 'k1'
T  JMSXGroupSeq = 5
U  JMSXUserID = 'x'
T  JMS_ANTIPHON_x = 'v'
# names and spelling
T  größe = 3
T  $x_1 = 4
U  I = 7
T  andy = 1
T  i = 7 and s = 'EU'
T  i = 7 AnD nOt s = 'US'
T  S IS NULL
T  i IS   NOT   NULL
T  (((i = 7)))
T  ((i) = ((7)))
U  NULLABLE = 1
U  TRUEST
T  Andy IS NULL
"""


def cases() -> list[tuple[str, str]]:
    lines = [line for line in TABLE.splitlines() if line and not line.startswith("#")]
    return [(line[0], line[3:]) for line in lines]


def add(builder: BatchBuilder, properties: dict[str, PropertyValue]) -> None:
    builder.add(
        b"",
        properties,
        timestamp_ms=1_700_000_000_123,
        priority=6,
        type="order",
        correlation_id="c-1",
        key="k1",
        persistent=False,
    )


def alone(properties: dict[str, PropertyValue]) -> tuple[Batch, int]:
    builder = BatchBuilder()
    add(builder, properties)
    return builder.build(producer=0xA1, first_number=7), 0


def among_others(properties: dict[str, PropertyValue]) -> tuple[Batch, int]:
    """In columns with presence bits, behind a slice that begins within a byte."""
    builder = BatchBuilder()
    for row in range(23):
        if row % 4:
            add(builder, properties)
        else:
            builder.add(b"", None, timestamp_ms=5)
    batch = builder.build(producer=0xA1, first_number=100)
    assert set(batch.property_names) == set(properties), "the properties are columns"
    return Batch.decode(batch.slice(3, 21).encode()), 10


def in_blobs(properties: dict[str, PropertyValue]) -> tuple[Batch, int]:
    builder = BatchBuilder()
    builder.add(b"", {**properties, "kind": 1}, timestamp_ms=5)
    add(builder, {**properties, "kind": "changed"})
    batch = builder.build(producer=0xA1, first_number=30)
    assert not batch.property_names, "the properties are blobs"
    return batch, 1


STAGES = {make.__name__: make for make in (alone, among_others, in_blobs)}


def test_the_table_is_long() -> None:
    assert len(cases()) >= 300


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("truth", "text"), cases())
def test_an_expression_is_true_false_or_unknown(truth: str, text: str, stage: str) -> None:
    named = {name: value for name, value in PROPERTIES.items() if name in text}
    batch, row = STAGES[stage](named)
    text = text.replace("{number}", str(batch.first_number + row))
    is_true = compile_selector(text).matches(batch, row, "main")
    is_false = compile_selector(f"NOT ({text})").matches(batch, row, "main")
    assert not (is_true and is_false), text
    assert ("T" if is_true else "F" if is_false else "U") == truth, text


@pytest.mark.parametrize("text", ["", " ", "\t\n\r\f  ", None])
def test_a_blank_selector_matches_everything(text: str | None) -> None:
    batch, _ = among_others({"i": 7})
    selector = compile_selector(text)
    assert selector.text == ""
    assert list(selector.match_rows(batch, 0, batch.count, "main", 50)) == [(50, 50 + batch.count)]


def test_rows_are_told_by_their_numbers() -> None:
    batch, _ = among_others({"i": 7})
    rows = [row for row in range(batch.count) if (row + 3) % 4]
    found = compile_selector("i = 7").match_rows(batch, 2, 15, "main", 1000)
    assert list(found.numbers()) == [1000 + row for row in rows if 2 <= row < 15]


def test_one_text_is_compiled_once() -> None:
    assert compile_selector("i = 1") is compile_selector("i = 1")


def test_a_message_without_a_mode_of_its_own_is_persistent() -> None:
    batch = Batch.of_bodies([b"a", b"b"], producer=1, first_number=1, timestamp_ms=12)
    for text in ("JMSDeliveryMode = 'PERSISTENT'", "JMSPriority = 4", "JMSTimestamp = 12", "JMSType IS NULL"):
        assert compile_selector(text).match_rows(batch, 0, 2, "a").count == 2, text
