"""Bursts and rates."""

from __future__ import annotations

from antiphon.transport.udp import Pacer

SECOND = 1_000_000_000


def test_a_burst_goes_at_once_and_then_there_is_a_pause() -> None:
    pacer = Pacer(bytes_per_second=1_000, burst_bytes=100)
    pacer.level -= 60
    assert pacer.may_send(0)
    pacer.level -= 60
    assert not pacer.may_send(0)
    assert not pacer.may_send(20 * SECOND // 1_000)
    assert pacer.may_send(21 * SECOND // 1_000)


def test_waiting_as_long_as_told_is_enough() -> None:
    pacer = Pacer(bytes_per_second=1_000, burst_bytes=100)
    pacer.level -= 500
    assert not pacer.may_send(0)
    assert pacer.may_send(pacer.wait_ns())


def test_in_the_long_run_the_rate_is_kept() -> None:
    pacer = Pacer(bytes_per_second=1_000_000, burst_bytes=10_000)
    sent = 0
    for now_ms in range(1_000):
        while pacer.may_send(now_ms * 1_000_000):
            pacer.level -= 700
            sent += 700
    assert 990_000 <= sent <= 1_020_000


def test_a_long_rest_earns_no_more_than_a_burst() -> None:
    pacer = Pacer(bytes_per_second=1_000, burst_bytes=100)
    pacer.level -= 100
    assert pacer.may_send(1_000 * SECOND)
    pacer.level -= 100
    assert not pacer.may_send(1_000 * SECOND)
