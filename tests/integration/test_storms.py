"""Commands that fail in large numbers are ordered once, however few outcomes a channel keeps.

What became of a command is kept in a table, and the oldest rows go. An envelope whose outcomes are gone is
ordered once more, and each of its commands then takes a row again: what is repeated pushes out others.
"""

from __future__ import annotations

import pytest

from antiphon.message_manager.state import outcomes
from antiphon.wire.commands import count_of
from tests.nodes import Cluster
from tests.unit.message_manager.channel import Client

ENVELOPES, COMMANDS = 40, 10


def order_what_fails(cluster: Cluster, node: int, at_once: int) -> int:
    """Have commands of a session that nobody knows ordered, some envelopes at once; numbers that it takes."""
    life, producer = cluster.lives[node], cluster.lives[node].parts.producer
    assert cluster.run_ms(5_000, lambda: cluster.leader() == 1)
    cluster.run_ms(100)
    before = life.manager.applied
    stranger = Client(0xDEAD)
    for _ in range(0, ENVELOPES, at_once):
        for _ in range(at_once):
            payload = b"".join([stranger.tx_rollback(number) for number in range(1, COMMANDS + 1)])
            life.submit(payload, count_of(payload))
        assert cluster.run_ms(5_000, lambda: producer.unconfirmed > 0)
        assert cluster.run_ms(20_000, lambda: producer.unconfirmed == 0)
    return life.manager.applied - before


def test_what_is_more_than_the_table_holds_is_ordered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 64)
    assert order_what_fails(Cluster(5, 1), node=1, at_once=ENVELOPES) < ENVELOPES * COMMANDS + 20


def test_who_has_half_a_table_under_way_repeats_next_to_nothing_though_much_of_what_is_said_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outcomes, "OUTCOMES_MAX", 64)
    cluster = Cluster(5, 3)
    cluster.loss = 0.2
    taken = order_what_fails(cluster, node=2, at_once=64 // 2 // COMMANDS)
    assert taken < 1.3 * ENVELOPES * COMMANDS
