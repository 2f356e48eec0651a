"""Deadlines: until when publications are to have their outcomes."""

from __future__ import annotations

from collections import deque

from antiphon.client.core_gathering import Publication


class Deadlines:
    """Publications by the time they were given, in the order of sending: the heads expire first."""

    __slots__ = ("_watched",)

    def __init__(self) -> None:
        self._watched: dict[int, deque[Publication]] = {}

    def watch(self, publication: Publication, timeout_ns: int) -> None:
        watched = self._watched.get(timeout_ns)
        if watched is None:
            watched = self._watched[timeout_ns] = deque()
        while watched and watched[0].is_settled:
            watched.popleft()
        watched.append(publication)

    @property
    def is_awaited(self) -> bool:
        """Does anybody wait for the outcome of a publication?"""
        return any(not p.is_settled for watched in self._watched.values() for p in watched)

    def expire(self, now_ns: int) -> tuple[list[Publication], int | None]:
        """Those whose time is over without an outcome, and when the next time is over."""
        expired: list[Publication] = []
        next_ns: int | None = None
        for timeout_ns, watched in list(self._watched.items()):
            while watched and (watched[0].is_settled or watched[0].deadline_ns <= now_ns):
                publication = watched.popleft()
                if not publication.is_settled:
                    expired.append(publication)
            if not watched:
                del self._watched[timeout_ns]
            elif next_ns is None or watched[0].deadline_ns < next_ns:
                next_ns = watched[0].deadline_ns
        return expired, next_ns

    def clear(self) -> None:
        self._watched.clear()
