"""Destination service: from the name of a destination to its id and its channel.

What is known is kept; what is not is asked of the node, whose message managers hold the directory.
A destination that does not exist and may be made is created by an ordered command, so that two
client managers never create one name twice: the second is told the first one's id.

What it promises
    D1  However many ask for a missing name at once, one CREATE is ordered, and all get its answer.
    D2  An id that was known stays known when its destination is deleted: who still uses it did
        nothing wrong, and is told by the outcome of the command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from antiphon.client_manager.connection import Connection, Refusal
from antiphon.errors import InvalidName
from antiphon.names import DestinationName, parse_destination

KIND_CODES = {"queue": 1, "topic": 2}
SETTINGS_VERSION = 1

UNSUPPORTED = "destination.unsupported"
UNKNOWN = "destination.unknown"
REFUSED = "destination.refused"

Ask = Callable[[str], str]


class Destination(NamedTuple):
    """Where a destination lives."""

    id: int
    channel: str
    settings_version: int


class Waiter(NamedTuple):
    """Who asked for a destination that is being made."""

    connection: Connection
    request: int


class DestinationService:
    """What one client manager knows of destinations."""

    __slots__ = ("_ask", "_being_made", "_by_id", "_by_name", "_channel", "_names")

    def __init__(self, channel: str, ask: Ask) -> None:
        self._channel = channel
        self._ask = ask
        self._by_name: dict[str, Destination] = {}
        self._by_id: dict[int, Destination] = {}
        self._names: dict[int, str] = {}
        self._being_made: dict[str, list[Waiter]] = {}

    def parse(self, text: str) -> DestinationName:
        """The name a client gave, or an error that says what is wrong with it."""
        try:
            name = parse_destination(text)
        except InvalidName as error:
            raise Refusal(error.code, error.text) from None
        if name.is_reserved:
            raise Refusal(InvalidName.code, f"{text}: names that begin with _ are the system's own")
        if name.kind == "topic":
            raise Refusal(UNSUPPORTED, f"{text}: topics are not built yet, only queues are")
        return name

    def find(self, name: DestinationName) -> Destination | None:
        spelled = str(name)
        known = self._by_name.get(spelled)
        if known is None:
            known = self._inquire({"question": "destination", "name": spelled})
            if known is not None:
                self._remember(spelled, known)
        return known

    def find_id(self, destination: int) -> Destination | None:
        known = self._by_id.get(destination)
        return known or self._inquire({"question": "destination", "id": destination})

    def _inquire(self, question: dict[str, str | int]) -> Destination | None:
        answer = json.loads(self._ask(json.dumps(question)))
        if not answer.get("destination"):
            return None
        found = Destination(
            answer["destination"],
            answer.get("channel", self._channel),
            answer.get("settings_version", SETTINGS_VERSION),
        )
        self._by_id[found.id] = found
        return found

    def wait(self, name: DestinationName, waiter: Waiter) -> bool:
        """Somebody wants a destination to be made. Must it be ordered, or is it already (D1)?"""
        waiters = self._being_made.setdefault(str(name), [])
        waiters.append(waiter)
        return len(waiters) == 1

    def made(self, name: str, destination: int) -> tuple[Destination, list[Waiter]]:
        """The directory has the name under this id, since now or since long."""
        found = Destination(destination, self._channel, SETTINGS_VERSION)
        self._remember(name, found)
        return found, self._being_made.pop(name, [])

    def not_made(self, name: str) -> list[Waiter]:
        return self._being_made.pop(name, [])

    def retire(self, destination: int) -> None:
        """The destination is gone: its name may be given to another, its id never is (D2)."""
        name = self._names.pop(destination, None)
        known = self._by_name.get(name) if name is not None else None
        if name is not None and known is not None and known.id == destination:
            del self._by_name[name]

    def _remember(self, name: str, found: Destination) -> None:
        self._by_name[name] = self._by_id[found.id] = found
        self._names[found.id] = name
