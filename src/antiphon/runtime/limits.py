"""Limits on all peers together: many small ones must not add up to a large one."""

from __future__ import annotations

import resource
from collections.abc import Iterator

DESCRIPTORS_RESERVED = 256
"""For the files of the journal above all: a node that could not open those would have to stop."""


def connections_possible(connections_max: int) -> int:
    """The connections that the process has descriptors for; raises the soft limit if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + DESCRIPTORS_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, soft - DESCRIPTORS_RESERVED))


class Arrivals:
    """Connections in the order of their arrival; when there are too many, the first has to go."""

    __slots__ = ("_conns", "_count_max")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._conns: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._conns)

    def enter(self, conn: int) -> int | None:
        """Add a connection at the end; returns the connection that has to go for that."""
        self._conns[conn] = None
        return next(iter(self._conns)) if len(self._conns) > self._count_max else None

    def leave(self, conn: int) -> None:
        self._conns.pop(conn, None)


class KeptBytes:
    __slots__ = ("_by_conn", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_conn: dict[int, int] = {}

    def __iter__(self) -> Iterator[int]:
        """The connections for which bytes are kept, in the order in which they `began`."""
        return iter(list(self._by_conn))

    def note(self, conn: int, size: int, *, began: bool = False) -> None:
        """Set the bytes kept for a connection; `began`: they are others than before."""
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
