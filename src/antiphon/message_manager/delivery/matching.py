"""Matching: the primary's decisions about which topics belong to which families.

MTC1  Every topic is decided for every family, in the order of the topics' ids, by MATCH.
MTC2  A step evaluates a bounded number of names. A family has one proposal under way, and topics that come
      meanwhile are decided together; a proposal that is lost is made again after a while.
MTC3  A pattern that this node cannot evaluate leaves its topics undecided, which keep their messages, and an
      operator is told once.

A new primary goes on where the log stands.
"""

from __future__ import annotations

from typing import Final

from antiphon.bus.effects import Alarm
from antiphon.errors import InvalidPattern
from antiphon.events import PATTERN_UNDECIDED
from antiphon.message_manager.delivery.proposals import node_command
from antiphon.message_manager.effects import Effect
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.message_manager.state.destinations.family import Family
from antiphon.ranges import Ranges
from antiphon.selectors.name_patterns import compile_pattern
from antiphon.wire.commands import MatchTopics

NAMES_AT_ONCE: Final = 1_024
"""Names evaluated in a step: about ten milliseconds, with the decision of every replica."""

_REPEAT_NS: Final = 1_000 * 1_000_000


class Matching:
    """The families of a channel that have to decide, in one term of its primary."""

    __slots__ = ("_directory", "_due", "_pause_ns", "_term", "_unable")

    def __init__(self, directory: Directory, term: int, pause_ns: int = 0) -> None:
        self._directory = directory
        self._term = term
        # How long new topics are gathered; and when the next proposal of a family is due, also after one that
        # is under way.
        self._pause_ns = pause_ns
        self._due: dict[int, int] = {}
        # Families whose patterns this node cannot evaluate (MTC3).
        self._unable: set[int] = set()

    def settled(self, family: int) -> None:
        """A MATCH of this family was applied, or was void."""
        self._due.pop(family, None)

    def next_deadline_ns(self, now_ns: int) -> int | None:
        earliest: int | None = None
        for family in self._directory.undecided.families:
            if family.id in self._unable:
                continue
            due_ns = self._due.get(family.id, now_ns)
            if earliest is None or due_ns < earliest:
                earliest = due_ns
        return earliest

    def flush(self, now_ns: int) -> list[Effect]:
        """The decisions that are due."""
        effects: list[Effect] = []
        left = NAMES_AT_ONCE
        families = self._directory.undecided.families
        soon_ns = now_ns + self._pause_ns
        # Of families that have ended, or have nothing to decide, nothing is remembered.
        self._due = {one.id: self._due.get(one.id, soon_ns) for one in families if one.id not in self._unable}
        for family in families:
            if left > 0 and self._due.get(family.id, now_ns + 1) <= now_ns:
                left -= self._decide(now_ns, family, left, effects)
        return effects

    def _decide(self, now_ns: int, family: Family, most: int, effects: list[Effect]) -> int:
        """Propose a decision about the next topics of a family; the number of names that were evaluated."""
        try:
            matches = compile_pattern(*family.pattern)
        except InvalidPattern as error:
            self._unable = {id for id in self._unable if self._directory.family(id)} | {family.id}
            effects.append(Alarm(PATTERN_UNDECIDED(pattern=family.shown, problem=error.text)))
            return 0
        topics = self._directory.topics_between(family.decided_through, most=most)
        if not topics:
            return 0
        found = Ranges()
        for topic in topics:
            if matches(topic.name.removeprefix("topic:")):
                found.add(topic.id, topic.id + 1)
        command = MatchTopics(
            family=family.id,
            term=self._term,
            after=family.decided_through,
            through=topics[-1].id,
            topics=found,
        )
        self._due[family.id] = now_ns + _REPEAT_NS
        effects.append(node_command(command))
        return len(topics)
