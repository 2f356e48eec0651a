"""Absences: consumers whose clients were lost, and may come back.

A lost client connects elsewhere and goes on with the messages it holds. For a short while these are given to
no other consumer, so that no two applications work on them. After that the client counts as dead. For as long
the message groups of a consumer that was closed wait for another consumer of its session.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey


@dataclass(slots=True)
class Absence:
    """An absent consumer; `seen_through` is None if it is unknown how far its client saw deliveries.

    A consumer that `is_closed` does not come back; its message groups wait.
    """

    consumer: Consumer
    seen_through: int | None
    is_closed: bool = False
    until_ns: int | None = None


class Absences:
    """The absent consumers, in the order in which they left, which is that of their deadlines."""

    __slots__ = ("_absent", "_wait_ns")

    def __init__(self, wait_ns: int) -> None:
        self._wait_ns = wait_ns
        self._absent: dict[ConsumerKey, Absence] = {}

    def add(self, consumer: Consumer, seen_through: int | None, *, is_closed: bool = False) -> None:
        consumer.is_away = True
        self._absent[consumer.key] = Absence(consumer, seen_through, is_closed)

    def remove(self, consumer: Consumer) -> None:
        self._absent.pop(consumer.key, None)

    def closed_by(self, session: int) -> list[Consumer]:
        """The consumers that a session has closed, and for which their groups wait."""
        there = [one for one in self._absent.values() if one.is_closed]
        return [one.consumer for one in there if one.consumer.session == session]

    def take_due(self, now_ns: int) -> list[Absence]:
        """Remove the absences that are over. An absence begins at the first look after it was added."""
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
