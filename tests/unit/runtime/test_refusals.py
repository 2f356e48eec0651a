"""The log of closed connections: a line stays a line, and a flood does not fill the disk."""

from __future__ import annotations

import logging

import pytest

from antiphon.runtime.refusals import RefusalLog, printable


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refusals(clock: Clock, caplog: pytest.LogCaptureFixture) -> RefusalLog:
    caplog.set_level(logging.INFO, "test.refusals")
    return RefusalLog(logging.getLogger("test.refusals"), lines_per_second=3, clock=clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_closed_connection_is_one_line(refusals: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    refusals.note("10.0.0.1:99", "protocol", "a frame of 0 bytes")
    assert lines(caplog) == ["connection of 10.0.0.1:99 closed: protocol: a frame of 0 bytes"]
    assert caplog.records[0].levelno == logging.INFO


def test_of_a_flood_only_the_number_is_told(
    refusals: RefusalLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1_000):
        refusals.note("p", "c", str(number))
    assert [line.rsplit(" ", 1)[1] for line in lines(caplog)] == ["0", "1", "2"]
    clock.now += 1.0
    refusals.note("p", "c", "later")
    assert lines(caplog)[3:] == [
        "997 more connections were closed and not listed",
        "connection of p closed: c: later",
    ]


def test_a_second_never_has_more_lines_than_it_may(
    refusals: RefusalLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        for _ in range(100):
            refusals.note("p", "c", "t")
        clock.now += 1.0
    assert len(caplog.records) == 10 * 3


def test_the_last_of_a_flood_is_told_when_somebody_looks(
    refusals: RefusalLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        refusals.note("p", "c", "t")
    refusals.settle()
    assert len(caplog.records) == 3
    clock.now += 1.5
    refusals.settle()
    refusals.settle()
    assert lines(caplog)[3:] == ["2 more connections were closed and not listed"]


def test_what_a_peer_said_is_never_a_format(refusals: RefusalLog, caplog: pytest.LogCaptureFixture) -> None:
    refusals.note("%s%n", "{0}", "%(message)s %d 100 %")
    assert lines(caplog) == ["connection of %s%n closed: {0}: %(message)s %d 100 %"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe", "größe"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x00\x7f\x85", r"\x00\x7f\x85"),
        ("\u2028\u202e", r"\u2028\u202e"),
        ("\udc80", r"\udc80"),
        ("x" * 400, "x" * 300 + "... (400 characters)"),
    ],
)
def test_what_cannot_be_printed_is_escaped_and_what_is_long_is_cut(text: str, shown: str) -> None:
    assert printable(text) == shown
