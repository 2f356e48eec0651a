"""Groups: the layout of a run's channel over its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antiphon.bus.group import NO_DISK, GroupConfig


def group_of(
    channel: str,
    shape: str,
    voters: Sequence[int],
    others: Sequence[int],
    new_disk_id: Callable[[], bytes],
    *,
    spares: Sequence[int] = (),
    **settings: Any,
) -> GroupConfig:
    """A group in which all voters keep messages, except a witness; spares have a disk and no role yet.

    Only with a witness can numbering go on with one copy, so `min_copies` is for those groups.
    """
    if shape != "witness":
        settings.pop("min_copies", None)
    keepers = tuple(voters[:2] if shape == "witness" else voters)
    with_disk = (*voters, *spares)
    majority = len(voters) // 2 + 1
    return GroupConfig(
        group=channel,
        nodes=(*with_disk, *others),
        disk_ids=(*[new_disk_id() for _ in with_disk], *[NO_DISK for _ in others]),
        commit_servers=tuple(voters),
        data_servers=keepers,
        checkpoint_servers=keepers,
        candidates=keepers,
        data_quantity=min(len(keepers), 2),
        commit_quantity=majority,
        seal_quantity=majority,
        checkpoint_quantity=min(len(keepers), 2),
        **settings,
    )
