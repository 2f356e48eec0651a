"""The parts of the codec that one example shows best; the rest is in the property tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.bus import messages as m
from antiphon.bus.codec import VERSION, decode, encode, encode_parts
from antiphon.bus.group import NO_DISK
from antiphon.bus.messages import COUNT_MAX, NO_DIGEST, Entry, EntryKind
from antiphon.errors import ProtocolError
from antiphon.ids import Mid

RUN = b"0123456789abcdef"


def test_a_payload_is_neither_copied_out_nor_in() -> None:
    payload = bytes(100_000)
    data = m.Data(Mid(1, 2, 3), 4, 1, b"d" * 16, payload)
    parts = encode_parts(data, "main", 1, 7, RUN)
    assert any(part is payload for part in parts)
    header, back = decode(b"".join(parts))
    assert header == ("main", 1, 7, RUN, NO_DISK)
    assert isinstance(back, m.Data) and isinstance(back.payload, memoryview)
    assert back == data


@pytest.mark.parametrize("size", [10, 20_000, 100_000])
def test_several_envelopes_come_back_one_by_one_and_small_ones_do_not_keep_each_other(size: int) -> None:
    items = tuple(m.Data(Mid(1, 2, n), n, 1, bytes([n]) * 16, bytes([n]) * (size - n)) for n in range(4))
    parts = encode_parts(m.Envelopes(items), "main", 1, 7, RUN)
    assert all(any(part is item.payload for part in parts) for item in items)
    _, back = decode(b"".join(parts))
    assert isinstance(back, m.Envelopes) and back.items == items
    kinds = {type(item.payload) for item in back.items}
    assert kinds == ({bytes} if size == 10 else {memoryview})


@pytest.mark.parametrize("message", [m.Envelopes, lambda items: m.FetchDataReply(items, ())])
def test_envelopes_that_end_too_early_are_refused(message: Callable[..., m.BusMessage]) -> None:
    items = tuple(m.Data(Mid(1, 2, n), n, 1, b"d" * 16, b"payload") for n in range(3))
    whole = encode(message(items), "main", 1, 1, RUN)
    for end in range(whole.index(b"d" * 16), len(whole)):
        with pytest.raises(ProtocolError):
            decode(whole[:end])


def test_entries_with_and_without_details_stand_side_by_side() -> None:
    entries = (entry(1), entry(2)._replace(detail=b"something"), entry(3), entry(4)._replace(detail=b"!"))
    message = m.Commit(1, entries, 4)
    assert decode(encode(message, "main", 1, 1, RUN))[1] == message


def entry(first: int, count: int = 1) -> Entry:
    return Entry(first, count, EntryKind.TICK, Mid(1, 1, 1), 0, NO_DIGEST)


@pytest.mark.parametrize(
    "entries",
    [(entry(1), entry(3)), (entry(2), entry(1)), (entry(0),), (entry(1, 0),), (entry(1, COUNT_MAX + 1),)],
)
def test_entries_that_do_not_follow_each_other_are_refused(entries: tuple[Entry, ...]) -> None:
    with pytest.raises(ProtocolError):
        decode(encode(m.Commit(1, entries, 3), "main", 1, 1, RUN))


def test_other_versions_types_and_trailing_bytes_are_refused() -> None:
    good = encode(m.PreSeal(1), "main", 1, 1, RUN)
    assert decode(good)[1] == m.PreSeal(1)
    for broken in (
        b"xx" + good[2:],
        good[:2] + bytes([VERSION + 1]) + good[3:],
        good[:3] + b"\xfe" + good[4:],
        good + b"\0",
    ):
        with pytest.raises(ProtocolError):
            decode(broken)


def test_a_value_without_a_place_in_the_format_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        encode(m.PreSeal(1), "main", 1, 1, b"short")
    with pytest.raises(ValueError, match="do not fit"):
        encode(m.PreSeal(1 << 64), "main", 1, 1, RUN)
