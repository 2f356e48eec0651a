from __future__ import annotations

from dataclasses import dataclass

import pytest

from antiphon.errors import ProtocolError
from antiphon.wire.layout import U8, U16, Layout, Text, Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    guests: U16
    name: Text
    rooms: Texts
    stars: U8 = 3


VISIT = Visit(guests=258, name="Inn", rooms=("a", ""))
VISIT_BYTES = b"\x02\x01" + b"\x03\0Inn" + b"\x02\0\0\0" + b"\x01\0a" + b"\0\0" + b"\x03"


def test_fields_are_written_in_the_order_in_which_they_stand() -> None:
    assert Layout(Visit).encode(VISIT) == VISIT_BYTES
    assert Layout(Visit).decode(VISIT_BYTES) == VISIT


def test_nothing_may_follow_the_last_field() -> None:
    with pytest.raises(ProtocolError, match="after the end"):
        Layout(Visit).decode(VISIT_BYTES + b"\0")


def test_a_list_longer_than_its_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="4294967295 elements"):
        Layout(Visit).decode(b"\x02\x01" + b"\x03\0Inn" + b"\xff\xff\xff\xff" + bytes(100))


def test_a_field_without_a_wire_format_is_noticed_when_the_layout_is_made() -> None:
    @dataclass(frozen=True)
    class Plain:
        size: int

    with pytest.raises(AssertionError, match=r"Plain\.size has no wire format"):
        Layout(Plain)
