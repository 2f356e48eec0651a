"""Pieces that are cut from stored batches: which rows, how often they came back, and how large."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch import BATCH_BYTES_MAX, ROWS_MAX, Batch
from antiphon.message_manager.reading import BatchReader, Cut
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.ranges import Ranges
from tests.unit.message_manager.channel import Channel, Client

WHOLE = 1 << 40


@pytest.fixture
def queue(channel: Channel, client: Client) -> Queue:
    found = channel.manager.state.directory.get(channel.create("orders"))
    assert isinstance(found, Queue)
    return found


def cut(channel: Channel, queue: Queue, among: Ranges, bytes_max: int = WHOLE, **given: Any) -> Cut:
    reader = BatchReader(channel.payloads, 4)
    found = reader.cut(queue, among.first, among.last + 1, bytes_max, **given, among=among)
    assert found is not None
    return found


def batch_of(found: Cut) -> Batch:
    return Batch.decode(b"".join(found.piece.buffers))


def some(first: int, *rows: int) -> Ranges:
    return Ranges([(first + row, first + row + 1) for row in rows])


def test_a_piece_has_the_rows_among_which_it_was_cut(channel: Channel, client: Client, queue: Queue) -> None:
    first = channel.order(client.publish(queue.id, [b"%d" % at for at in range(10)]))
    channel.order(client.publish(queue.id, [b"next"]))
    found = cut(channel, queue, some(first, 1, 2, 5, 9, 10))
    assert found.piece.sequences == [first + 1, first + 2, first + 5, first + 9]
    assert batch_of(found).bodies() == [b"1", b"2", b"5", b"9"]
    assert (found.stop, found.body_bytes, found.numbers) == (first + 10, 4, some(first, 1, 2, 5, 9))


def test_neighbours_among_which_is_chosen_are_a_slice(channel: Channel, client: Client, queue: Queue) -> None:
    first = channel.order(client.publish(queue.id, [b"%d" % at for at in range(10)]))
    found = cut(channel, queue, some(first, 3, 4, 5))
    assert (found.piece.first_sequence, found.piece.count, found.numbers) == (first + 3, 3, None)
    assert not found.piece.offsets


def test_a_budget_cuts_rows_off(channel: Channel, client: Client, queue: Queue) -> None:
    first = channel.order(client.publish(queue.id, [bytes(100)] * 10))
    wanted = some(first, 0, 2, 4, 6)
    # A row has an offset of its body and one of its number besides.
    assert cut(channel, queue, wanted, 2 * 108).piece.sequences == [first, first + 2]
    least = cut(channel, queue, wanted, 1)
    assert (list(least.piece.sequences), least.piece.offsets) == ([first], b""), "at least one message"


def test_rows_of_a_piece_came_back_equally_often(channel: Channel, client: Client, queue: Queue) -> None:
    first = channel.order(client.publish(queue.id, [b"x"] * 12))
    channel.order(client.give_back(queue.id, (first, first + 1), (first + 2, first + 3)))
    wanted = some(first, 0, 2, 4, 6, 8)
    again = cut(channel, queue, wanted)
    assert (again.piece.sequences, again.piece.redelivery_count) == ([first, first + 2], 1)
    rest = some(first, 4, 6, 8)
    fresh = cut(channel, queue, rest)
    assert (fresh.piece.sequences, fresh.piece.redelivery_count) == ([first + 4, first + 6, first + 8], 0)
    before = cut(channel, queue, rest, given_before=some(first, 4, 5, 6))
    assert (before.piece.sequences, before.piece.redelivery_count) == ([first + 4, first + 6], 1)
    behind = cut(channel, queue, rest, given_before=some(first, 8))
    assert (behind.piece.sequences, behind.piece.redelivery_count) == ([first + 4, first + 6], 0)
    through = cut(channel, queue, rest, given_through=first + 6)
    assert (through.piece.sequences, through.piece.redelivery_count) == ([first + 4, first + 6], 1)


def test_the_largest_batch_without_a_row_is_no_larger_than_a_batch(
    channel: Channel, client: Client, queue: Queue
) -> None:
    """Offsets of numbers come on top of what the rows had."""
    size = BATCH_BYTES_MAX // ROWS_MAX - 5
    first = channel.order(client.publish(queue.id, [bytes(size)] * ROWS_MAX))
    wanted = Ranges([(first, first + ROWS_MAX)])
    wanted.remove(first + 1, first + 2)
    numbers: list[int] = []
    while wanted:
        found = cut(channel, queue, wanted)
        assert batch_of(found).count == found.piece.count
        numbers += found.piece.sequences
        wanted.remove(first, found.stop)
    assert numbers == [first, *range(first + 2, first + ROWS_MAX)]
