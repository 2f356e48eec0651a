"""Each planted bug is seen by a step test, and the same steps pass without it."""

from __future__ import annotations

import pytest

from antiphon.bus import messages as m
from antiphon.bus.effects import Received, Synced
from antiphon.bus.planted import (
    ACKNOWLEDGE_BEFORE_FSYNC,
    ALL,
    DEDUP_OFF,
    FIFO_OFF,
    NONE,
    RELEASE_BY_EARLIER_SYNC,
)
from antiphon.ids import Mid
from tests.unit.bus.stage import OneNode, data_of, envelope, item_of


def plant(name: str, is_planted: bool) -> frozenset[str]:
    assert name in ALL
    return frozenset({name}) if is_planted else NONE


def opened(planted: frozenset[str]) -> tuple[OneNode, int]:
    """A node that leads, with an open producer; returns it and the producer's pe."""
    node = OneNode(planted=planted)
    node.settle()
    node.step(envelope(0))
    node.settle()
    del node.said[:]
    return node, node.producer.pe


@pytest.mark.parametrize("is_planted", [False, True])
def test_acknowledging_before_the_sync_is_seen(is_planted: bool) -> None:
    node, _ = opened(plant(ACKNOWLEDGE_BEFORE_FSYNC, is_planted))
    node.step(envelope(1))
    assert bool(node.heard(m.DataReport)) == is_planted, "reported and not durable"
    assert bool(node.heard(m.CommitAcknowledge)) == is_planted
    assert not node.disk.synced[-1].index >= node.counter.last


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_reply_released_by_an_earlier_sync_is_seen(is_planted: bool) -> None:
    node, _ = opened(plant(RELEASE_BY_EARLIER_SYNC, is_planted))
    before = node.counter.last
    node.step(envelope(1))
    node.step(Synced(before))
    assert bool(node.heard(m.DataReport)) == is_planted, "a sync that began before it was written"


@pytest.mark.parametrize("is_planted", [False, True])
def test_numbering_an_envelope_twice_is_seen(is_planted: bool) -> None:
    node, pe = opened(plant(DEDUP_OFF, is_planted))
    item = item_of(data_of(Mid(1, pe, 1)))
    last = node.replica.last
    node.step(Received(1, m.DataReport(node.replica.epoch, (item,))))
    assert (node.replica.last > last) == is_planted, "an envelope has one place"


@pytest.mark.parametrize("is_planted", [False, True])
def test_numbering_out_of_order_is_seen(is_planted: bool) -> None:
    node, pe = opened(plant(FIFO_OFF, is_planted))
    last = node.replica.last
    node.step(Received(1, m.DataReport(node.replica.epoch, (item_of(data_of(Mid(1, pe, 3))),))))
    assert (node.replica.last > last) == is_planted, "number 3 of a run that has only one"


@pytest.mark.parametrize("name", [DEDUP_OFF, FIFO_OFF])
def test_the_ledger_is_the_second_line_of_defence(name: str) -> None:
    node, pe = opened(frozenset({name}))
    pseq = 1 if name == DEDUP_OFF else 3
    node.step(Received(1, m.DataReport(node.replica.epoch, (item_of(data_of(Mid(1, pe, pseq))),))))
    with pytest.raises(AssertionError, match="follows 1"):
        node.sync()
