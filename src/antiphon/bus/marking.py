"""Marking: when a sequencer marks a checkpoint.

MRK1  A mark is due after so many entries or bytes (`checkpoint_entries`, `checkpoint_bytes`). The entries
      of checkpoints do not count: checkpoints must not call for checkpoints.
MRK2  While room is low, one mark follows the other, as long as another one frees more.
MRK3  So it does while the journal of a commit server holds segments that checkpoints would free, also
      without traffic; but marks take at most a small part of the time, and without new entries beside those
      of checkpoints there are a few at most for each server until its journal has fewer segments than ever
      before: changes of the quantity fill a journal, too, a page each. For a server that
      took no checkpoint at the last mark the next mark comes later: the server has to catch up before a
      checkpoint helps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from antiphon.bus.group import KIB, MS, GroupConfig
from antiphon.bus.messages import ENTRY_BYTES_MIN
from antiphon.ids import U64_MAX

# The cost of a submit on disk beside its payloads: each 4 KiB of order is written twice, and the data
# that is synced with it begins on a new page.
_ORDER_BLOCK_BYTES: Final = 4 * KIB - 128
_FLUSH_BYTES: Final = 4 * KIB
RECORD_BYTES: Final = 96

MARKS_APART_MS: Final = 1_000
MARKS_APART_TIMES: Final = 16
"""For held space there is no mark for so long after a checkpoint became stable, and for so many times as long
as a server took to write it. A wait for room, or for a server that is down, is no work and does not count."""

MARK_LOST_MS: Final = 5_000
"""A mark whose checkpoint is not stable after so long is in vain: a server that passes several marks at once
takes a checkpoint at the first only, and one that is still writing takes none."""

MARKS_IN_VAIN_MAX: Final = 6
"""Two free what they can, and two more what was copied to empty segments; as little is copied at once, more
may have to follow. A journal that has no fewer segments after so many is not helped by checkpoints."""


class Marking:
    __slots__ = (
        "_apart_until",
        "_entries",
        "_for_held",
        "_marked_at",
        "_marks",
        "_took_ms",
        "bytes",
        "reported",
    )

    def __init__(self, checkpoint_servers: Iterable[int] = ()) -> None:
        self._entries = 0
        # Bytes of the journal; the reign adds those of an envelope when it numbers it.
        self.bytes = 0
        self._marks = (0, 0)
        self._marked_at: int | None = None
        # How long a server took to write a checkpoint, the longest since the last mark.
        self._took_ms = 0
        self._apart_until = 0
        # By server: behind which entry, the fewest segments there, how many marks there were for the space
        # that it holds since it has so few, and when the last one was.
        self._for_held: dict[int, tuple[int, int, int, int]] = {}
        # By server: of which number the last checkpoint is that it reported in this reign. A witness takes
        # none, and is not waited for.
        self.reported = dict.fromkeys(checkpoint_servers, 0)

    @property
    def newest(self) -> int:
        return self._marks[1]

    def adopted(self, *, is_mark: bool) -> None:
        """Count an entry that a former reign has numbered."""
        if is_mark:
            self._entries = self.bytes = 0
        else:
            self._entries += 1
            self.bytes += _FLUSH_BYTES

    def is_due(self, config: GroupConfig, entries: int) -> bool:
        """Count the entries of a submit; whether it is time for a checkpoint (MRK1)."""
        blocks = -(-entries * ENTRY_BYTES_MIN // _ORDER_BLOCK_BYTES)
        self._entries += entries
        self.bytes += _FLUSH_BYTES + 2 * 4 * KIB * blocks
        return self._entries >= config.checkpoint_entries or self.bytes >= config.checkpoint_bytes

    def marked(self, n: int) -> None:
        self._marks = (self._marks[1], n)
        self._marked_at = None
        self._entries = self.bytes = self._took_ms = 0

    def mark_committed(self, now_ns: int) -> None:
        """Note that the last mark is committed, and the servers take their checkpoints."""
        self._marked_at = now_ns

    def on_report(self, server: int, n: int, took_ms: int) -> None:
        self.reported[server] = n
        self._took_ms = max(self._took_ms, took_ms)

    def became_stable(self, now_ns: int) -> None:
        self._apart_until = now_ns + max(MARKS_APART_MS, MARKS_APART_TIMES * self._took_ms) * MS

    def helps_low_space(self, now_ns: int, stable_n: int, data_last: int) -> bool:
        """Whether a mark would free room now (MRK2).

        The log begins at the checkpoint before the last one, so two marks free everything consumed before the
        first. A third would free nothing more.
        """
        return self._is_settled(now_ns, stable_n) and self._marks[0] <= data_last

    def helps_held_space(
        self, now_ns: int, stable_n: int, work_last: int, server: int, segments: int
    ) -> bool:
        """Whether to mark for a commit server whose journal holds space (MRK3). True counts the mark.

        Such a journal was filled by few entries and bytes: lone messages, of which each takes a page of the
        order, or acknowledgements of many messages stored long ago.
        """
        if not self._is_settled(now_ns, stable_n) or now_ns < self._apart_until:
            return False
        behind, fewest, count, marked_ns = self._for_held.get(server, (0, 0, 0, 0))
        took_the_last = self.reported.get(server, U64_MAX) >= self.newest
        if count and not took_the_last and now_ns - marked_ns < MARK_LOST_MS * MS:
            return False
        if behind != work_last or segments < fewest:
            fewest, count = segments, 0
        if count == MARKS_IN_VAIN_MAX:
            return False
        self._for_held[server] = (work_last, fewest, count + 1, now_ns)
        return True

    def _is_settled(self, now_ns: int, stable_n: int) -> bool:
        if stable_n >= self._marks[1]:
            return True
        return self._marked_at is not None and now_ns - self._marked_at >= MARK_LOST_MS * MS
