"""Epochs, unique ids and message ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidName
from antiphon.ids import (
    U32_MAX,
    U64_MAX,
    IdSource,
    MessageId,
    Mid,
    epoch_counter,
    epoch_node,
    format_message_id,
    make_epoch,
    parse_message_id,
)


@given(st.integers(0, 2**48 - 1), st.integers(0, 0xFFFF))
def test_an_epoch_is_made_of_its_counter_and_its_node(counter: int, node: int) -> None:
    epoch = make_epoch(counter, node)
    assert (epoch_counter(epoch), epoch_node(epoch)) == (counter, node)
    assert epoch <= U64_MAX


def test_a_later_counter_beats_any_node() -> None:
    assert make_epoch(2, 0) > make_epoch(1, 0xFFFF)


def test_envelopes_of_one_producer_sort_by_epoch_then_number() -> None:
    assert sorted([Mid(1, 2, 1), Mid(1, 1, 9)]) == [Mid(1, 1, 9), Mid(1, 2, 1)]


def test_an_id_shows_its_parts() -> None:
    source = IdSource(site=0xAAAA, address=0xBBBBBBBB, port=0xCCCC, start_s=0xDDDDDDDD)
    assert f"{source.next():032x}" == "aaaabbbbbbbbccccdddddddd00000001"
    assert f"{source.next():032x}" == "aaaabbbbbbbbccccdddddddd00000002"


def test_no_id_is_zero() -> None:
    assert IdSource(0, 0, 0, 0).next() != 0


def test_each_life_counts_its_questions_from_elsewhere() -> None:
    lives = [(address, port, start) for address in (100, 101) for port in (3, 4) for start in (0, 1)]
    firsts = {IdSource(1, *life).first_number for life in lives}
    assert all(0 < first <= U64_MAX for first in firsts)
    # A second of difference, or another number drawn, is enough; nor does a long count come to another's.
    assert len({IdSource(1, *life).first_number for life in ((100, 3, 0), (101, 3, 0), (100, 4, 0))}) == 3
    assert min(abs(one - other) for one in firsts for other in firsts if one != other) > U32_MAX


def test_ids_go_on_after_the_counter_ran_out_and_was_renewed() -> None:
    source = IdSource(1, 2, 3, start_s=100)
    source._counter = U32_MAX - 1
    last = source.next()
    assert source.is_exhausted
    with pytest.raises(AssertionError, match="run out"):
        source.next()
    source.renew(101)
    assert source.next() > last


def test_an_id_source_is_not_renewed_with_a_start_it_had() -> None:
    source = IdSource(1, 2, 3, start_s=100)
    with pytest.raises(AssertionError, match="not after"):
        source.renew(100)


@given(st.integers(0, 2**128 - 1), st.text(min_size=1), st.integers(0, U64_MAX))
def test_a_message_id_can_be_parsed(session: int, channel: str, number: int) -> None:
    text = format_message_id(session, channel, number)
    assert text.startswith("ID:")
    assert parse_message_id(text) == MessageId(session, channel, number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ID:",
        "ID:1-7@main",
        "id:000000000000000000000000000000a1-7@main",
        "ID:000000000000000000000000000000A1-7@main",
        "ID:000000000000000000000000000000a1-07@main",
        "ID:000000000000000000000000000000a1--7@main",
        "ID:000000000000000000000000000000a1-18446744073709551616@main",
        "ID:000000000000000000000000000000a1-7@",
        " ID:000000000000000000000000000000a1-7@main",
    ],
)
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="is not a message id"):
        parse_message_id(text)
