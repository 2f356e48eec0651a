"""Bugs at the disk: in what is written first, in which space is used again, and in what a start reads."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from pytest import MonkeyPatch

from antiphon import startup
from antiphon.journal import recovery
from antiphon.journal.checkpoint_line import CheckpointLine
from antiphon.journal.journal import Journal
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.index import SegmentUse
from antiphon.message_manager.state.transactions import Transactions

_EVERYTHING = 1 << 62


def checkpoint_before_records(patch: MonkeyPatch) -> None:
    """The file of a checkpoint is written while records that it refers to are on their way to the disk."""
    due = CheckpointLine.due
    patch.setattr(CheckpointLine, "due", lambda self, durable_index: due(self, _EVERYTHING))


def fallback_segments_freed(patch: MonkeyPatch) -> None:
    """Segments that only the older checkpoint refers to are used again."""
    release = CheckpointLine.release

    def keep_the_newest(self: Any, before: int) -> set[int]:
        release(self, before)
        segments = self._files | self._asked
        return set(segments[max(segments)]) if segments else set()

    patch.setattr(CheckpointLine, "release", keep_the_newest)


def references_ignored(patch: MonkeyPatch) -> None:
    """A segment is used again when its order is covered, whatever is live in it."""
    release = Journal.release
    patch.setattr(Journal, "release", lambda self, base, referenced: release(self, base, ()))


def dead_keep_segments(patch: MonkeyPatch) -> None:
    """A segment in which something was live when space was released is never used again."""
    release = Journal.release
    once_live: WeakKeyDictionary[Journal, set[int]] = WeakKeyDictionary()

    def keep_for_ever(self: Journal, base: int, referenced: Collection[int]) -> int:
        once_live.setdefault(self, set()).update(referenced)
        return release(self, base, once_live[self])

    patch.setattr(Journal, "release", keep_for_ever)


def kept_without_data(patch: MonkeyPatch) -> None:
    """Order that was not synced comes back without the data that it is bound to."""
    patch.setattr(recovery, "BOUND", 0)


def misread_puts_aside(patch: MonkeyPatch) -> None:
    """At start a checkpoint that verifies and does not read is taken for a ruined disk."""
    open_disk, start = startup.open_disk, startup._start
    opened_with: list[Any] = []

    def open_and_remember(*arguments: Any, **options: Any) -> startup.OpenedDisk:
        opened_with[:] = arguments, options
        return open_disk(*arguments, **options)

    def distrust(opened: startup.OpenedDisk, journal: Any, identity: Any, settings: Any) -> Any:
        if opened.has_peers:
            opened.choose(partial(startup._read_state, opened, settings))
            if problems := opened.opening.found.checkpoint_problems:
                arguments, options = opened_with
                opened = open_disk(*arguments, **{**options, "distrusted": problems[0]})
        return start(opened, journal, identity, settings)

    patch.setattr(startup, "open_disk", open_and_remember)
    patch.setattr(startup, "_start", distrust)


def old_disk_id_kept(patch: MonkeyPatch) -> None:
    """A node that has put its files aside begins anew under the id of the disk that they were."""
    make, first = Journal.format, {}

    def make_as_before(disk: Any, settings: Any, disk_id: bytes, node_id: int, cluster: str) -> None:
        make(disk, settings, first.setdefault(node_id, disk_id), node_id, cluster)

    patch.setattr(Journal, "format", make_as_before)


def checkpoint_forgets_transactions(patch: MonkeyPatch) -> None:
    """A checkpoint holds nothing of transactions: a state that begins with it knows of none under way."""
    capture = ChannelState.capture

    def capture_without(self: Any) -> tuple[bytes, bytes]:
        under_way, self.transactions = self.transactions, Transactions(SegmentUse())
        try:
            return capture(self)
        finally:
            self.transactions = under_way

    patch.setattr(ChannelState, "capture", capture_without)


def restore_forgets_locks(patch: MonkeyPatch) -> None:
    """A state that was restored does not lock the queues that somebody has for himself."""
    read_places = ChannelState._read_places

    def read_and_unlock(self: Any, reader: Any) -> None:
        read_places(self, reader)
        self.locks.clear()

    patch.setattr(ChannelState, "_read_places", read_and_unlock)


BUGS = (
    checkpoint_before_records,
    fallback_segments_freed,
    references_ignored,
    dead_keep_segments,
    kept_without_data,
    misread_puts_aside,
    old_disk_id_kept,
    checkpoint_forgets_transactions,
    restore_forgets_locks,
)
