"""Entries that know their bytes, and the portions in which they are submitted and told."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import (
    Entries,
    Entry,
    EntryKind,
    encode_entries,
    read_entries,
    write_entries,
)
from antiphon.bus.reign import Portions
from antiphon.ids import Mid
from antiphon.wire.primitives import Reader, Writer


def rows(first: int, count: int, detail: bytes = b"") -> tuple[Entry, ...]:
    kind = EntryKind.PRODUCER_OPEN if detail else EntryKind.DATA
    return tuple(
        [
            Entry(number, 1, kind, Mid(1, 2, number), 0, b"d" * 16, detail)
            for number in range(first, first + count)
        ]
    )


def read_back(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    writer = Writer()
    write_entries(writer, entries)
    reader = Reader(writer.join())
    found = read_entries(reader)
    reader.finish()
    return found


@pytest.mark.parametrize(
    "entries", [(), rows(1, 1), rows(7, 300), rows(3, 2, b"detail"), rows(3, 2) + rows(5, 1, b"x")]
)
def test_entries_come_back_and_are_encoded_as_they_came(entries: tuple[Entry, ...]) -> None:
    assert read_back(entries) == entries
    assert encode_entries(read_back(entries)) == encode_entries(entries) == Entries.of(entries).encoded


def test_a_piece_of_entries_has_bytes_of_its_own() -> None:
    entries = Entries.of(rows(1, 5))
    assert encode_entries(entries[1:3]) == encode_entries(rows(2, 2))


def test_the_same_bytes_give_the_same_entries_and_others_others() -> None:
    assert read_back(rows(1, 20)) is read_back(rows(1, 20))
    assert read_back(rows(2, 20)) == rows(2, 20)


def test_what_was_submitted_is_told_in_the_same_portions() -> None:
    portions = Portions(100)
    cut = portions.cut(rows(1, 250))
    assert [len(one) for one in cut] == [100, 100, 50]
    cut += portions.cut(rows(251, 30))
    told = portions.take(rows(1, 200))
    assert [id(one) for one in told] == [id(one) for one in cut[:2]]
    assert list(portions.take(rows(201, 80))) == cut[2:]


@pytest.mark.parametrize("upto", [1, 60, 99, 101, 149, 150])
def test_what_is_told_in_other_portions_is_told_whole_and_once(upto: int) -> None:
    """A commit server that was sent something again may have acknowledged up to anywhere."""
    portions = Portions(100)
    portions.cut(rows(1, 100))
    portions.cut(rows(101, 50))
    before = [entry for one in portions.take(rows(1, upto)) for entry in one]
    behind = [entry for one in portions.take(rows(upto + 1, 150 - upto)) for entry in one]
    assert before == list(rows(1, upto)) and behind == list(rows(upto + 1, 150 - upto))
    cut = portions.cut(rows(151, 40))
    assert list(portions.take(rows(151, 40))) == cut


def test_many_small_portions_are_told_as_one() -> None:
    portions = Portions(100)
    (alone,) = portions.cut(rows(1, 2))
    assert portions.take(rows(1, 2))[0] is alone
    portions = Portions(100)
    for number in range(1, 151):
        portions.cut(rows(number, 1))
    assert list(portions.take(rows(1, 150))) == [rows(1, 100), rows(101, 50)]


def test_what_was_not_submitted_here_is_told_too() -> None:
    """What a reign adopts is committed before it has submitted anything."""
    portions = Portions(100)
    assert list(portions.take(rows(1, 150))) == [rows(1, 100), rows(101, 50)]
    assert list(portions.take(())) == []
