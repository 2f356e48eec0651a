"""What destinations and properties may be called."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import names
from antiphon.errors import InvalidName
from antiphon.names import (
    DestinationName,
    check_property_name,
    check_stored,
    check_subscription_name,
    family_name,
    parse_destination,
    pattern_of,
    shown_name,
)


@pytest.mark.parametrize(
    "name", ["orders", "a" * 255, "prices.eu", "mit Leerzeichen", "größe", "注文", "a:b", "_DMQ"]
)
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_destination_is_spelled_with_its_kind(kind: str, name: str) -> None:
    destination = parse_destination(f"{kind}:{name}")
    assert destination == (kind, name)
    assert str(destination) == f"{kind}:{name}"


def test_names_with_an_underscore_are_reserved() -> None:
    assert DestinationName("queue", "_DMQ").is_reserved
    assert not DestinationName("queue", "DMQ_").is_reserved


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("orders", "neither queue: nor topic:"),
        ("Queue:orders", "neither queue: nor topic:"),
        ("", "neither queue: nor topic:"),
        ("queue:", "0 bytes"),
        ("queue:" + "a" * 256, "256 bytes"),
        ("queue:" + "é" * 128, "256 bytes"),
        ("queue:a\nb", "control character"),
        ("queue:a\x7fb", "control character"),
        ("queue:a\x85b", "control character"),
        ("queue: a", "whitespace"),
        ("topic:a\u00a0", "whitespace"),
        ("queue:e\u0301", "NFC"),
        ("queue:\ud800", "UTF-8"),
        ("topic:prices.*", "wildcard"),
        ("queue:a?", "wildcard"),
        (None, "of type NoneType"),
    ],
)
def test_a_bad_destination_is_refused_with_the_rule_it_breaks(text: Any, complaint: str) -> None:
    with pytest.raises(InvalidName, match=complaint):
        parse_destination(text)


@pytest.mark.parametrize("pattern", ["prices.*", "a", "a.b.c", "?", "a" * 240])
@pytest.mark.parametrize("match", ["glob", "regex"])
def test_a_pattern_has_a_name_of_its_own(match: str, pattern: str) -> None:
    name = family_name(match, f"topic:{pattern}")
    assert pattern_of(name) == (match, pattern)
    assert shown_name(name) == f"topic:{pattern} ({match})"
    assert shown_name("topic:plain") == "topic:plain"
    parsed = parse_destination(name)
    assert str(parsed) == name
    assert (parsed.is_family, parsed.has_parts, parsed.can_be_chosen) == (True, True, False)
    with pytest.raises(InvalidName, match="only consumed"):
        check_stored(parsed)


@pytest.mark.parametrize(
    ("match", "pattern", "complaint"),
    [
        ("like", "topic:a", "match is 'glob' or 'regex'"),
        ("glob", "queue:a", "a pattern of queues"),
        ("glob", "a*", "does not start with topic:"),
        ("glob", "topic:", "a pattern of 0 bytes"),
        ("glob", "topic:" + "a" * 241, "a pattern of 241 bytes"),
        ("glob", "topic: a", "whitespace"),
        ("regex", "topic:e\u0301", "NFC"),
        ("glob", 7, "of type int"),
    ],
)
def test_a_bad_pattern_is_refused(match: str, pattern: Any, complaint: str) -> None:
    with pytest.raises(InvalidName, match=complaint):
        family_name(match, pattern)


@pytest.mark.parametrize("name", ["_MATCH.", "_MATCH.glob", "_MATCH.glob.", "_MATCH.like.a"])
def test_a_name_of_a_family_has_a_pattern(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_destination(f"topic:{name}")


def test_the_complaint_about_a_huge_name_is_short() -> None:
    with pytest.raises(InvalidName) as caught:
        parse_destination("queue:" + "a" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["region", "_x", "$y", "a1", "JMSXGroupID", "größe", "注文", "ANDY", "€"])
def test_a_property_may_have_any_java_identifier(name: str) -> None:
    check_property_name(name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "not an identifier"),
        ("1a", "not an identifier"),
        ("a-b", "not an identifier"),
        ("a.b", "not an identifier"),
        ("a b", "not an identifier"),
        ("a\n", "not an identifier"),
        ("\ud800", "not an identifier"),
        ("And", "reserved word"),
        ("NULL", "reserved word"),
        ("escape", "reserved word"),
        ("a" * 256, "longer than 255"),
        ("é" * 128, "longer than 255"),
        (7, "of type int"),
    ],
)
def test_a_bad_property_name_is_refused_with_the_rule_it_breaks(name: object, complaint: str) -> None:
    with pytest.raises(InvalidName, match=complaint):
        check_property_name(name)


@pytest.mark.parametrize("name", ["audit", "a" * 255, "with space", "_own"])
def test_a_subscription_is_called_as_a_destination_may_be(name: str) -> None:
    check_subscription_name(name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("", "0 bytes"), ("a" * 256, "256 bytes"), ("a\nb", "control"), (" a", "whitespace"), (5, "type int")],
)
def test_what_a_subscription_may_not_be_called(name: object, complaint: str) -> None:
    with pytest.raises(InvalidName, match=complaint):
        check_subscription_name(name)


@pytest.mark.parametrize(
    ("text", "at", "stop"),
    [
        ("a1 b", 0, 2),
        ("a1 b", 2, 2),
        ("1a", 0, 0),
        ("1a", 1, 2),
        ("größe=", 0, 5),
        ("ü", 0, 1),
        ("$_x.y", 0, 3),
    ],
)
def test_where_an_identifier_ends(text: str, at: int, stop: int) -> None:
    assert names.identifier_stop(text, at) == stop
