"""Rot strikes what it is meant to strike, and nothing beside it."""

from __future__ import annotations

import random

import pytest

from antiphon.errors import Damaged
from antiphon.ids import Mid
from antiphon.journal.format import Settings, payload_digest
from antiphon.journal.journal import Journal
from antiphon.journal.memory_disk import MemoryDisk
from antiphon.journal.opening import Opening
from antiphon.sim.spoiling import rot_envelopes, rot_superblock

_SETTINGS = Settings(segment_bytes=160 * 1024, order_blocks=8, spares_max=2)
_MIDS = [Mid(1, 1, number) for number in range(1, 7)]


def written(*, is_closed: bool) -> MemoryDisk:
    """A journal with six envelopes, synced two by two; only closing it puts the last sync on record."""
    disk = MemoryDisk()
    Journal.format(disk, _SETTINGS, bytes(range(16)), 1, "test")
    journal, _ = Journal.open(disk, _SETTINGS)
    for index, mid in enumerate(_MIDS, 1):
        payload = b"%d" % index * 100
        journal.append_data(index, mid, 0, 1, payload_digest(mid, 0, 1, payload), payload)
        if index % 2 == 0:
            ticket = journal.flush()
            assert ticket is not None
            disk.sync(ticket.files)
            journal.synced(ticket)
    if is_closed:
        journal.close()
    return disk


def found(disk: MemoryDisk) -> set[Mid]:
    return {one.mid for one in Opening(disk, has_peers=True).found.data}


def test_a_rotten_envelope_is_missing_and_the_others_are_not() -> None:
    disk = written(is_closed=True)
    allowed = set(_MIDS[1:4])

    rotten = rot_envelopes(disk, allowed, random.Random(1))

    assert rotten and rotten <= allowed
    assert found(disk) == set(_MIDS) - rotten


def test_an_envelope_stays_whole_where_rot_would_be_taken_for_a_torn_write() -> None:
    disk = written(is_closed=False)

    assert rot_envelopes(disk, _MIDS[-2:-1], random.Random(1)) == set()
    assert found(disk) == set(_MIDS)


def test_rot_under_a_living_node_spares_what_the_node_has_read() -> None:
    disk = MemoryDisk()
    Journal.format(disk, _SETTINGS, bytes(range(16)), 1, "test")
    journal, _ = Journal.open(disk, _SETTINGS)
    payload = b"x" * 60_000
    places = []
    for index, mid in enumerate(_MIDS, 1):
        digest = payload_digest(mid, 0, 1, payload)
        places.append(journal.append_data(index, mid, 0, 1, digest, payload))
        ticket = journal.flush()
        assert ticket is not None
        disk.sync(ticket.files)
        journal.synced(ticket)
    assert journal.end_position.segment == len(_MIDS), "each envelope lies in a segment of its own"
    kept = journal.read(places[0])

    assert rot_envelopes(disk, {_MIDS[0], _MIDS[-1]}, random.Random(1), journal) == {_MIDS[0]}

    assert kept == payload
    with pytest.raises(Damaged):
        journal.read(places[0])
    assert journal.read(places[-1]) == payload


def test_a_rotten_superblock_makes_the_disk_unusable() -> None:
    disk = written(is_closed=True)

    rot_superblock(disk)

    with pytest.raises(Damaged):
        Opening(disk, has_peers=True)
