"""The quantities of a group are what the proof of the protocol requires."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.bus.group import GroupConfig
from antiphon.errors import ProtocolError


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_the_default_quantities_are_majorities_and_two_copies(size: int, quorum: int) -> None:
    config = GroupConfig.of("main", tuple(range(1, size + 1)))
    assert (config.commit_quantity, config.seal_quantity) == (quorum, quorum)
    assert config.data_quantity == config.checkpoint_quantity == min(size, 2)


def test_a_seal_quorum_that_could_miss_a_commit_quorum_is_refused() -> None:
    with pytest.raises(AssertionError, match="a seal quorum must meet every commit quorum"):
        GroupConfig.of("main", (1, 2, 3), commit_quantity=2, seal_quantity=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data_quantity": 2}, "cannot be reached"),
        ({"commit_servers": (1, 1)}, "listed twice"),
        ({"data_servers": (7,)}, "no node of the group"),
        ({"data_failures": 1}, "must survive the failures"),
        ({"checkpoint_failures": 1}, "must survive the failures"),
        ({"min_copies": 2}, "fewer copies"),
        ({"disk_ids": (bytes(16), bytes(16))}, "each node has one disk"),
        ({"disk_ids": (b"short",)}, "a disk id of 5 bytes"),
    ],
)
def test_what_cannot_work_is_refused_in_words(settings: dict[str, object], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        GroupConfig.of("main", (1,), **settings)


def test_only_a_commit_server_with_data_may_stand() -> None:
    with pytest.raises(AssertionError, match="must be one of the commit servers"):
        GroupConfig.of("main", (1, 2), commit_servers=(1,), commit_quantity=1, seal_quantity=1)
    with pytest.raises(AssertionError, match="its own data server"):
        GroupConfig.of("main", (1, 2), data_servers=(1,), data_quantity=1)


def test_a_group_comes_back_from_its_bytes() -> None:
    config = GroupConfig.of(
        "main",
        (1, 7, 300),
        config_id=9,
        generation=2,
        disk_ids=(b"a" * 16, bytes(16), b"c" * 16),
        lifetime=77,
    )
    assert GroupConfig.decode(config.encode()) == config
    assert GroupConfig.decode(config.encode()).digest == config.digest
    assert replace(config, check_ms=501).digest != config.digest


def test_bytes_that_are_no_group_or_one_that_cannot_work_are_refused() -> None:
    good = GroupConfig.of("main", (1, 2, 3)).encode()
    for broken in (b"", good[:-1], good + b"\0", b"\x09" + good[1:]):
        with pytest.raises(ProtocolError):
            GroupConfig.decode(broken)
    unsafe = good.replace(b"\x01\0\x02\0\x03\0", b"\x01\0\x02\0\x09\0", 1)
    with pytest.raises(ProtocolError, match="cannot work"):
        GroupConfig.decode(unsafe)


def test_a_disk_that_is_not_listed_is_not_looked_at() -> None:
    assert GroupConfig.of("main", (1, 2)).disk_of(1) == b""
    config = GroupConfig.of("main", (1, 2), disk_ids=(b"a" * 16, bytes(16)))
    assert (config.disk_of(1), config.disk_of(2), config.disk_of(3)) == (b"a" * 16, b"", b"")
