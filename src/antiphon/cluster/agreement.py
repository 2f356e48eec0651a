"""Agreement: a node that starts asks the others whether they have the same `cluster.toml`.

Where it sits
    config_file  ->  AGREEMENT  <->  Query, Reply  <->  the other members

What it promises
    AGR1  A node whose file differs from that of a running node does not start, and names the keys.
    AGR2  Of two nodes that start at the same time with different files at least the one with the higher
          number does not start.
    AGR3  A node does not wait for members that do not answer in time: a cluster starts also while some of it
          is away.
    AGR4  A node that is about to give a disk the id that the file lists knows of every other voter that its
          disk was never written to, or that the channel has a history (`has_history`): then that id may have
          been another disk's. While the node does not know (`unsettled`), it must not.

What it leaves to others
    Sending, receiving and the time. Members whose cluster id, key or addresses differ do not hear each other
    at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

QUESTION: Final = "config"
HISTORY_QUESTION: Final = json.dumps({"question": "status"})
KEYS_NAMED_MAX: Final = 8
PATIENT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigCard:
    """What a node tells of its file."""

    name: str
    number: int
    digest: str
    keys: Mapping[str, str]
    # Was nothing ever written to the disk of this node when it was started?
    is_new: bool = False

    def answer(self, question: Mapping[str, Any], *, is_established: bool) -> dict[str, Any]:
        """The answer to a question; an asker with the same digest need not be told the keys."""
        keys = {} if question.get("digest") == self.digest else dict(self.keys)
        return {
            "digest": self.digest,
            "keys": keys,
            "is_established": is_established,
            "is_new": self.is_new,
        }


class Agreement:
    """The answers of the others so far."""

    def __init__(self, card: ConfigCard, others: Mapping[int, str], voters: Iterable[int] = ()) -> None:
        """`others`: the other members' names; `voters`: those to hear before we give our disk its id."""
        self.card = card
        self._others = dict(others)
        self._heard: dict[int, dict[str, Any]] = {}
        self.has_history = False
        # Voters of which we do not know yet whether they have a history.
        self._unsettled = dict.fromkeys(voters)

    @property
    def question(self) -> str:
        """The question to all members."""
        return json.dumps({"question": QUESTION, "digest": self.card.digest})

    @property
    def unheard(self) -> list[int]:
        """The members that have not answered."""
        return [number for number in sorted(self._others) if number not in self._heard]

    @property
    def unsettled(self) -> list[int]:
        """The voters of which we do not know whether they have a history (AGR4)."""
        return list(self._unsettled)

    @property
    def awaited(self) -> list[int]:
        """The members whose answer is missing."""
        return sorted({*self._unsettled, *self.unheard})

    def is_worth_waiting(
        self, since_s: float, seconds: float, voters_s: float, is_there: Callable[[int], bool]
    ) -> bool:
        """Is an answer missing, and is there time left for it, so long after the first question?

        Every member has `seconds`, a member that has sent anything (`is_there`) at least PATIENT_SECONDS, and
        a voter that must be heard (AGR4) `voters_s`.
        """
        if self._unsettled and not self.has_history and since_s < voters_s:
            return True
        missing = self.awaited
        if since_s < seconds or not missing:
            return bool(missing)
        return since_s < max(seconds, PATIENT_SECONDS) and any(map(is_there, missing))

    def reply(self, question: str) -> str | None:
        """The reply to a member that asks while we are still asking.

        The question settles nothing: it may be an old one, of a member that has a history by now.
        """
        asked = _parse(question)
        if asked is None or asked.get("question") != QUESTION:
            return None
        return json.dumps(self.card.answer(asked, is_established=False))

    def take(self, sender: int, answer: str) -> None:
        """Receive an answer; one that cannot be read is none."""
        said = _parse(answer)
        if said is not None and sender in self._others and isinstance(said.get("digest"), str):
            self._heard[sender] = said
            self._settle(sender, said)

    def _settle(self, voter: int, said: Mapping[str, Any]) -> None:
        """Note what a voter says of its disk. A running node may have written since its disk was new."""
        if voter in self._unsettled and isinstance(said.get("is_new"), bool):
            self.has_history |= not said["is_new"]
            if not said["is_new"] or said.get("is_established") is not True:
                del self._unsettled[voter]

    def take_history(self, sender: int, answer: str) -> None:
        """Receive the standing of a member's channel (AGR4)."""
        said = _parse(answer)
        rows = said.get("channels") if said is not None else None
        if isinstance(rows, list):
            numbers = [row.get("committed") for row in rows if isinstance(row, dict)]
            self.has_history |= any(isinstance(number, int) and number > 0 for number in numbers)
            heard = self._heard.get(sender, {})
            if self.has_history or heard.get("is_new") is True:
                self._unsettled.pop(sender, None)

    def refusal(self) -> str | None:
        """Why this node must not start, in one sentence; None if no answer speaks against it."""
        for number in sorted(self._heard):
            said = self._heard[number]
            is_ours_to_yield = said.get("is_established") is True or number < self.card.number
            if said["digest"] != self.card.digest and is_ours_to_yield:
                return self._sentence(self._others[number], said.get("keys"))
        return None

    def _sentence(self, other: str, theirs: object) -> str:
        differing = self._differing(theirs if isinstance(theirs, dict) else {})
        named = ", ".join(differing[:KEYS_NAMED_MAX])
        more = len(differing) - KEYS_NAMED_MAX
        return (
            f"the cluster file of {self.card.name} is not that of {other}; different are {named}"
            f"{f' and {more} more' if more > 0 else ''}: copy the file that is right to every node"
        )

    def _differing(self, theirs: Mapping[str, object]) -> list[str]:
        ours = self.card.keys
        paths = sorted({*ours, *_texts(theirs)})
        return [path for path in paths if ours.get(path) != theirs.get(path)] or ["nothing that was told"]


def _texts(found: Iterable[object]) -> list[str]:
    return [one for one in found if isinstance(one, str)]


def _parse(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
