"""The quantities of a group are what the proof of the protocol requires."""

from __future__ import annotations

import pytest

from antiphon.bus.group import GroupConfig


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
