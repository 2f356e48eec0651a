"""The fold of the order itself: producers and primary."""

from __future__ import annotations

import pytest

from antiphon.bus.entries import FenceDetail, OpenDetail, QuantityDetail, StableDetail, VoidDetail
from antiphon.bus.ledger import Ledger
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.errors import ProtocolError
from antiphon.ids import Mid, make_epoch

RUN_A, RUN_B = b"a" * 16, b"b" * 16
EPOCH = make_epoch(1, 1)


def opened(number: int, pid: int = 7, run: bytes = RUN_A) -> Entry:
    detail = OpenDetail(pid, run).encode()
    return Entry(number, 1, EntryKind.PRODUCER_OPEN, Mid(1, EPOCH, 1), 0, NO_DIGEST, detail)


def data(number: int, pe: int, pseq: int, count: int = 1) -> Entry:
    return Entry(number, count, EntryKind.DATA, Mid(7, pe, pseq), 0, NO_DIGEST)


def fenced(number: int, pe: int, term: int) -> Entry:
    detail = FenceDetail(7, pe, term).encode()
    return Entry(number, 1, EntryKind.PRODUCER_FENCE, Mid(1, EPOCH, 2), 0, NO_DIGEST, detail)


def claim(number: int, epoch: int) -> Entry:
    return Entry(number, 1, EntryKind.PRIMARY_CLAIM, Mid(epoch & 0xFFFF, epoch, 1), 0, NO_DIGEST)


def a_ledger() -> Ledger:
    ledger = Ledger()
    ledger.fold([claim(1, EPOCH), opened(2), data(3, 2, 1, count=4), data(7, 2, 2)])
    return ledger


def test_the_number_of_the_open_names_the_run() -> None:
    row = a_ledger().rows[7]
    assert (row.pe, row.last_pseq, row.last_seq, row.run_id) == (2, 2, 7, RUN_A)


def test_a_gap_in_a_run_stops_the_node() -> None:
    with pytest.raises(AssertionError, match="follows 2"):
        a_ledger().fold([data(8, 2, 4)])
    with pytest.raises(AssertionError, match="follows 2"):
        a_ledger().fold([data(8, 2, 2)])


def test_an_envelope_of_another_run_stops_the_node() -> None:
    with pytest.raises(AssertionError, match="not of the open run"):
        a_ledger().fold([data(8, 1, 3)])
    with pytest.raises(AssertionError, match="never opened"):
        Ledger().fold([data(1, 1, 1)])


def test_a_new_open_keeps_how_far_the_run_before_came() -> None:
    ledger = a_ledger()
    ledger.fold([opened(8, run=RUN_B), data(9, 8, 1)])
    assert ledger.is_committed(Mid(7, 8, 1))
    assert not ledger.is_committed(Mid(7, 8, 2))
    assert ledger.is_committed(Mid(7, 2, 2))
    assert not ledger.is_committed(Mid(7, 2, 3))


def test_a_fence_of_the_current_term_ends_the_run() -> None:
    ledger = a_ledger()
    ledger.fold([fenced(8, 2, EPOCH)])
    assert ledger.rows[7].pe == 8
    assert not ledger.is_committed(Mid(7, 2, 3))


def test_a_fence_of_a_former_term_or_for_a_former_run_is_void() -> None:
    ledger = a_ledger()
    ledger.fold([fenced(8, 2, EPOCH - 1), fenced(9, 1, EPOCH)])
    assert ledger.rows[7].pe == 2


def test_the_term_is_the_epoch_of_the_last_claim() -> None:
    ledger = a_ledger()
    assert (ledger.term, ledger.primary) == (EPOCH, 1)
    later = make_epoch(2, 3)
    ledger.fold([claim(8, later)])
    assert (ledger.term, ledger.primary) == (later, 3)
    with pytest.raises(AssertionError, match="is claimed after"):
        ledger.fold([claim(9, EPOCH)])


def test_its_bytes_do_not_depend_on_the_order_of_the_rows() -> None:
    one, other = Ledger(), Ledger()
    one.fold([opened(1, pid=3), opened(2, pid=9)])
    other.fold([opened(1, pid=3), opened(2, pid=9)])
    other.rows = dict(reversed(other.rows.items()))
    assert one.encode() == other.encode()
    assert Ledger.decode(one.encode()).encode() == one.encode()


def other(number: int, kind: EntryKind, detail: bytes = b"") -> Entry:
    return Entry(number, 1, kind, Mid(1, EPOCH, number), 0, NO_DIGEST, detail)


def test_a_configuration_and_a_quantity_hold_until_the_next() -> None:
    ledger = a_ledger()
    assert (ledger.config, ledger.data_quantity) == (b"", 0), "what the group began with"
    ledger.fold([other(8, EntryKind.QUANTITY, QuantityDetail(1).encode())])
    assert ledger.data_quantity == 1
    ledger.fold([other(9, EntryKind.CONFIG, b"a whole configuration")])
    assert (ledger.config, ledger.data_quantity) == (b"a whole configuration", 0), "it has its own"
    again = Ledger.decode(ledger.encode())
    assert (again.config, again.data_quantity) == (ledger.config, ledger.data_quantity)
    assert again.encode() == ledger.encode()


def test_ticks_checkpoints_and_voids_change_nothing_here() -> None:
    ledger = a_ledger()
    before = ledger.encode()
    ledger.fold(
        [
            other(8, EntryKind.TICK),
            other(9, EntryKind.CHECKPOINT_MARK),
            other(10, EntryKind.CHECKPOINT_STABLE, StableDetail(9, NO_DIGEST, (1,)).encode()),
            other(11, EntryKind.VOID, VoidDetail(3).encode()),
        ]
    )
    assert ledger.encode() == before


def test_a_ledger_cut_short_is_not_read() -> None:
    encoded = a_ledger().encode()
    for length in range(len(encoded)):
        with pytest.raises(ProtocolError):
            Ledger.decode(encoded[:length])


def test_one_ledger_may_become_another_for_all_who_refer_to_it() -> None:
    ledger = Ledger()
    ledger.become(a_ledger())
    assert ledger.encode() == a_ledger().encode()
