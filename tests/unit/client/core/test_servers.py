"""Urls and durations, as applications write them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from antiphon.client.aio.block import seconds
from antiphon.client.core.route import Server, parse_url
from antiphon.errors import ConnectionFailed, LocalError


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("antiphon://127.0.0.1:7420", ["127.0.0.1:7420"]),
        ("antiphon://a:1,b:2", ["a:1", "b:2"]),
        ("antiphon://a,b:2/", ["a:7420", "b:2"]),
        ("antiphon://[::1]:7421,[fe80::1]", ["[::1]:7421", "[fe80::1]:7420"]),
    ],
)
def test_a_url_names_servers_in_order(url: str, servers: list[str]) -> None:
    assert [str(server) for server in parse_url(url)] == servers


def test_an_address_of_version_six_loses_its_brackets() -> None:
    assert parse_url("antiphon://[::1]:7421") == [Server("::1", 7421)]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:7420",
        "http://a:1",
        "antiphon://",
        "antiphon://:7420",
        "antiphon://a:",
        "antiphon://a:x",
        "antiphon://a:0",
        "antiphon://a:65536",
        "antiphon://a:-1",
        "antiphon://a:1,",
        "antiphon://user@a:1",
        "antiphon://a:1/queue",
        "antiphon://[::1:7420",
    ],
)
def test_a_url_that_is_none_is_refused_with_its_text(url: str) -> None:
    with pytest.raises(ConnectionFailed) as refused:
        parse_url(url)
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize("url", [5, None, b"antiphon://a:1"])
def test_a_url_that_is_no_text_is_refused_at_once(url: object) -> None:
    with pytest.raises(LocalError, match=r"a url is a text such as antiphon://127\.0\.0\.1:7420; it was"):
        parse_url(url)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0.0), (2, 2.0), (0.5, 0.5), (timedelta(minutes=1), 60.0)]
)
def test_a_duration_is_seconds_or_a_timedelta(value: float | timedelta, expected: float) -> None:
    assert seconds(value, "timeout") == expected


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, timedelta(seconds=-1)])
def test_what_cannot_be_waited_for_is_refused(value: float) -> None:
    with pytest.raises(LocalError, match="timeout is"):
        seconds(value, "timeout")
