"""Epochs, unique ids and message ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import ids
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


def test_ids_and_keys_go_on_after_the_counter_ran_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "COUNT_MAX", 3)
    source = IdSource(0xAAAA, 0xBBBBBBBB, port=0xFFFF, start_s=0xDDDDDDDD)
    given_out = [source.next() for _ in range(7)]
    assert f"{given_out[3]:032x}" == "aaaabbbbbbbb0000dddddddd00000001"
    assert f"{given_out[6]:032x}" == "aaaabbbbbbbb0001dddddddd00000001"
    keys = [source.next_key() for _ in range(100)]
    assert len({*given_out}) == 7
    assert keys == sorted({*keys}), "the later of two registrations has the higher key"


def test_a_node_goes_on_after_the_last_id_of_its_first_port() -> None:
    source = IdSource(1, 2, port=7, start_s=9)
    source._counter = U32_MAX - 2
    given_out = [source.next() for _ in range(5)]
    assert [id & U32_MAX for id in given_out] == [U32_MAX - 1, U32_MAX, 1, 2, 3]
    assert [id >> 64 & 0xFFFF for id in given_out] == [7, 7, 8, 8, 8]
    source._counter = U32_MAX - 1
    keys = [source.next_key() for _ in range(3)]
    assert keys == sorted({*keys}) and keys[-1] <= U64_MAX


def test_the_keys_of_two_lives_differ_though_both_went_on_to_other_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ids, "COUNT_MAX", 3)
    lives = [IdSource(1, 2, port, start_s) for port, start_s in ((7, 1), (9, 2))]
    keys = [life.next_key() for life in lives for _ in range(100)]
    assert len({*keys}) == 200


def test_the_last_id_of_a_run_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "COUNT_MAX", 1)
    source = IdSource(1, 2, 3, start_s=100)
    given_out = {source.next() for _ in range(0x10000)}
    assert len(given_out) == 0x10000
    with pytest.raises(AssertionError, match="every id"):
        source.next()


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
