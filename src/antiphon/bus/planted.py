"""Bugs that can be planted on purpose, to see whether the checkers still see.

Each is one marked line in the role it concerns. A simulator that no longer finds one of them has
gone blind; nothing but tests and the simulator ever plants one.
"""

from __future__ import annotations

from typing import Final

ACKNOWLEDGE_BEFORE_FSYNC: Final = "acknowledge-before-fsync"
"""Commit server and data server answer without waiting for the disk."""

RELEASE_BY_EARLIER_SYNC: Final = "release-by-earlier-sync"
"""Any finished sync releases every held reply, also those written after it began."""

DEDUP_OFF: Final = "dedup-off"
"""The sequencer numbers an envelope again when it is reported again."""

FIFO_OFF: Final = "fifo-off"
"""The sequencer numbers the envelopes of a producer in the order in which they are reported."""

NONE: Final[frozenset[str]] = frozenset()
ALL: Final = (ACKNOWLEDGE_BEFORE_FSYNC, RELEASE_BY_EARLIER_SYNC, DEDUP_OFF, FIFO_OFF)
