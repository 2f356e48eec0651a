"""Ages: the topics of a channel in which a mark of log time changes something.

AGE1  A mark of log time is told to every topic that has messages since the mark before, or whose oldest
      messages have become too old.
AGE2  Other topics are not looked at: a hundred thousand idle ones cost nothing while time passes, also when
      they keep messages.

All of this follows from the topics, so that no checkpoint has it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.message_manager.state.destinations.topic import Topic


class Ages:
    __slots__ = ("_due", "_heap", "unmarked")

    def __init__(self) -> None:
        # Topics with messages since the last mark of log time, by id.
        self.unmarked: dict[int, Topic] = {}
        # The others that keep messages for their retention, by id, with the log time at which the oldest
        # become too old, or a time before that; and the same as a heap. Entries that differ are void.
        self._due: dict[int, tuple[int, Topic]] = {}
        self._heap: list[tuple[int, int]] = []

    def look(self, topic: Topic) -> None:
        """Take over what has become of a topic."""
        if topic.last > topic.marked:
            self.unmarked[topic.id] = topic
            return
        due_ms = topic.due_ms()
        if due_ms is None:
            self._due.pop(topic.id, None)
            return
        known = self._due.get(topic.id)
        # Where the oldest messages go for want of bytes the time moves with every mark: the entry stays.
        if known is None or due_ms < known[0]:
            self._due[topic.id] = due_ms, topic
            heappush(self._heap, (due_ms, topic.id))

    def watches(self, topic: Topic) -> bool:
        """Is the topic looked at when log time reaches what concerns it, or before?"""
        due_ms = topic.due_ms()
        known = self._due.get(topic.id)
        return topic.id in self.unmarked or due_ms is None or (known is not None and known[0] <= due_ms)

    def deleted(self, topic: int) -> None:
        self.unmarked.pop(topic, None)
        self._due.pop(topic, None)

    def time_passed(self, now_ms: int) -> int:
        """Tell the topics that it concerns of a mark of log time (AGE1); returns how many these are."""
        told, self.unmarked = self.unmarked, {}
        while (first := self._first()) is not None and first[0] <= now_ms:
            heappop(self._heap)
            del self._due[first[1].id]
            told[first[1].id] = first[1]
        for topic in told.values():
            topic.time_passed(now_ms)
            self.look(topic)
        return len(told)

    def due_ms(self) -> int | None:
        """The log time at which the first message becomes too old; 0 if log time must be marked first."""
        if any(topic.due_ms() is not None for topic in self.unmarked.values()):
            return 0
        while (first := self._first()) is not None:
            due_ms, topic = first
            if topic.due_ms() == due_ms:
                return due_ms
            # Its oldest messages have gone for another reason.
            heappop(self._heap)
            del self._due[topic.id]
            self.look(topic)
        return None

    def _first(self) -> tuple[int, Topic] | None:
        """The topic with the earliest time; void entries are dropped."""
        while self._heap:
            due_ms, id = self._heap[0]
            known = self._due.get(id)
            if known is not None and known[0] == due_ms:
                return known
            heappop(self._heap)
        return None
