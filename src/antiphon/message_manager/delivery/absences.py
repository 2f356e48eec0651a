"""Absences: consumers whose clients were lost, and what is kept for them until they come back.

A client that loses its connection, or whose client manager or node is restarted, looks for another and
goes on with what it holds. For a short while its messages are therefore given to nobody else: an
application that works on them would otherwise not be the only one. Who stays away longer is taken for dead.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey


@dataclass(slots=True)
class Absence:
    """A consumer that is away; None for `seen_through` when nobody can tell what its client saw."""

    consumer: Consumer
    seen_through: int | None
    until_ns: int | None = None


class Absences:
    """The consumers that are away, those that left first in front: all are waited for equally long."""

    __slots__ = ("_absent", "_wait_ns")

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._absent: dict[ConsumerKey, Absence] = {}

    def add(self, consumer: Consumer, seen_through: int | None) -> None:
        consumer.is_away = True
        self._absent[consumer.key] = Absence(consumer, seen_through)

    def remove(self, consumer: Consumer) -> None:
        self._absent.pop(consumer.key, None)

    def take_due(self, now_ns: int) -> list[Absence]:
        """Those that were waited for long enough. Whoever left since the last look is waited for from now."""
        due = []
        for absence in self._absent.values():
            if absence.until_ns is None:
                absence.until_ns = now_ns + self._wait_ns
            if absence.until_ns <= now_ns:
                due.append(absence)
        for absence in due:
            del self._absent[absence.consumer.key]
        return due

    def next_deadline_ns(self, now_ns: int) -> int | None:
        for absence in self._absent.values():
            return now_ns if absence.until_ns is None else absence.until_ns
        return None
