"""What destinations and properties may be called."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon import names
from antiphon.errors import InvalidName
from antiphon.names import (
    DestinationName,
    check_property_name,
    check_subscription_name,
    parse_destination,
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
