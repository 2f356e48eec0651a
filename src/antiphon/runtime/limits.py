"""What all peers together may take: many small ones must not add up to a large one."""

from __future__ import annotations

import resource
from collections.abc import Iterator

DESCRIPTORS_RESERVED = 256
"""What a node opens besides its clients' connections: the files of its journal above all. A node that
could open none of those would have to stop."""


def connections_possible(connections_max: int) -> int:
    """How many connections the process has descriptors for; asks for more of them if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + DESCRIPTORS_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, soft - DESCRIPTORS_RESERVED))


class Arrivals:
    """Connections in the order in which they came; when there are too many, the first has to go."""

    __slots__ = ("_conns", "_count_max")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._conns: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._conns)

    def enter(self, conn: int) -> int | None:
        """Stand at the end; returns who has to go for that."""
        self._conns[conn] = None
        return next(iter(self._conns)) if len(self._conns) > self._count_max else None

    def leave(self, conn: int) -> None:
        self._conns.pop(conn, None)


class KeptBytes:
    """Bytes that are kept for connections, and how many that is for all of them."""

    __slots__ = ("_by_conn", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_conn: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """The connections for which anything is kept, the one that `began` longest ago first."""
        return iter(list(self._by_conn))

    def note(self, conn: int, size: int, *, began: bool = False) -> None:
        """So many bytes are kept for this one now; `began`: and they are others than before."""
        before = self._by_conn.get(conn, 0)
        if began or not size:
            self._by_conn.pop(conn, None)
        if size:
            self._by_conn[conn] = size
        self.total += size - before

    @property
    def oldest(self) -> int:
        return next(iter(self._by_conn))

    @property
    def largest(self) -> int:
        return max(self._by_conn, key=self._by_conn.__getitem__)
