"""Which channel a message to a destination of several channels goes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.client.core.receipts import Receipts, SpanningReceipts
from antiphon.client.core.spanning import Turns, place_of


@pytest.mark.parametrize(
    ("key", "places"),
    [("", (0, 1, 2)), ("orders", (1, 0, 59)), ("é", (1, 0, 51)), ("key1", (0, 2, 34))],
)
def test_the_channel_of_a_key_never_changes(key: str, places: tuple[int, ...]) -> None:
    """Clients of other versions, and other programs, send messages of the same keys."""
    assert tuple(place_of(key, None, count) for count in (2, 3, 64)) == places


def test_a_key_counts_more_than_an_id_and_a_message_with_neither_may_go_anywhere() -> None:
    assert place_of("key1", "orders", 2) == place_of("key1", None, 2)
    assert place_of(None, "orders", 2) == place_of(None, b"orders", 2) == place_of("orders", None, 2)
    assert place_of(None, None, 2) is None


def test_channels_take_turns_and_one_that_is_not_fit_is_passed_over() -> None:
    turns = Turns(3)
    assert [turns.next(lambda place: True) for _ in range(4)] == [0, 1, 2, 0]
    assert [turns.next(lambda place: place != 2) for _ in range(3)] == [1, 0, 1]
    assert turns.next(lambda place: False, lambda place: place == 0) == 0
    assert turns.next(lambda place: False) == 1, "if none is fit, it is the next one's turn all the same"


@given(st.integers(1, 100), st.integers(1, 6).flatmap(lambda n: st.sets(st.integers(0, n - 1), min_size=1)))
def test_shares_are_consecutive_and_about_even(count: int, fit: set[int]) -> None:
    turns = Turns(max(fit) + 1)
    for _ in range(3):
        shares = turns.shares(count, sorted(fit))
        assert {place for place, _, _ in shares} <= fit
        assert [start for _, start, _ in shares] == [0, *(stop for _, _, stop in shares[:-1])]
        assert shares[-1][2] == count
        sizes = [stop - start for _, start, stop in shares]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
        assert len(shares) == min(count, len(fit))


def test_single_messages_take_turns_as_shares_do() -> None:
    turns = Turns(2)
    assert [turns.shares(1, [0, 1])[0][0] for _ in range(4)] == [0, 1, 0, 1]


@given(st.lists(st.integers(0, 2), max_size=30), st.tuples(*[st.integers(0, 12)] * 3))
def test_receipts_of_several_channels_are_in_the_order_of_the_messages(
    places: list[int], stored: tuple[int, ...]
) -> None:
    """What is stored in a channel is stored from its first message on; the receipts go to the first gap."""
    parts = [Receipts(7, channel) for channel in "abc"]
    receipts = SpanningReceipts(7, parts)
    for place in places:
        receipts._share(place, 1)
    wanted: list[tuple[str, int]] = []
    is_whole = True
    sent = [0, 0, 0]
    for place in places:
        sent[place] += 1
        is_whole = is_whole and sent[place] <= stored[place]
        if is_whole:
            wanted.append(("abc"[place], 100 + sent[place]))
    for place, part in enumerate(parts):
        if count := min(stored[place], sent[place]):
            part._add(1, 101, count)
    receipts._count()
    found = [(receipt.channel, receipt.sequence) for receipt in receipts]
    assert found == wanted
    assert len(receipts) == len(wanted)
    assert [(one.channel, one.sequence) for one in map(receipts.__getitem__, range(len(receipts)))] == wanted
    assert receipts[1:3] == list(receipts)[1:3]
    with pytest.raises(IndexError):
        receipts[len(wanted)]


def test_receipts_of_several_channels_count_duplicates_and_show_themselves() -> None:
    parts = [Receipts(7, channel) for channel in "ab"]
    receipts = SpanningReceipts(7, parts)
    receipts._share(0, 2)
    receipts._share(1, 1)
    parts[0]._add(1, 101, 2, duplicate=True)
    parts[1]._add(1, 101, 1)
    receipts._count()
    assert receipts.duplicates == 2
    assert repr(receipts) == "<3 receipts on a, b>"
