"""Receipts: many of them in a few spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.client.core.receipts import Receipt, Receipts


def test_a_receipt_tells_the_id_and_the_place() -> None:
    receipt = Receipt(0xA1, "main", 7, 40)
    assert receipt.message_id == "ID:000000000000000000000000000000a1-7@main"
    assert (receipt.channel, receipt.sequence) == ("main", 40)
    assert receipt == Receipt(0xA1, "main", 7, 40) != Receipt(0xA1, "main", 8, 41)
    assert "40 on main" in repr(receipt)


def test_what_continues_is_one_span() -> None:
    receipts = Receipts(1, "a")
    receipts._add(1, 100, 5)
    receipts._add(6, 105, 5)
    receipts._add(11, 300, 1)
    assert len(receipts._spans) == 2
    assert len(receipts) == 11
    assert [receipt.sequence for receipt in receipts] == [*range(100, 110), 300]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=8))
def test_they_are_the_list_they_stand_for(parts: list[tuple[int, int]]) -> None:
    receipts = Receipts(1, "a")
    expected: list[Receipt] = []
    number, sequence = 1, 10
    for gap, count in parts:
        sequence += gap
        receipts._add(number, sequence, count)
        expected += [Receipt(1, "a", number + past, sequence + past) for past in range(count)]
        number, sequence = number + count, sequence + count
    assert list(receipts) == expected
    assert len(receipts) == len(expected)
    assert [receipts[place] for place in range(-len(expected), len(expected))] == 2 * expected
    assert receipts[1:-1] == expected[1:-1]
    assert receipts[::-2] == expected[::-2]


@pytest.mark.parametrize("place", [-1, 0, 5])
def test_what_is_not_there_is_an_index_error(place: int) -> None:
    with pytest.raises(IndexError):
        Receipts(1, "a")[place]
