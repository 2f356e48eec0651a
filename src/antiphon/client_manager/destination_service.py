"""Destination service: from the name of a destination, or of a subscription, to its id and its channel.

What is known is kept; what is not is asked of the node, whose message managers hold the directory.
A destination that does not exist and may be made is created by an ordered command, so that two
client managers never create one name twice: the second is told the first one's id.

What it promises
    D1  However many ask for a missing name at once, one CREATE is ordered, and all get its answer; one
        more for everybody who asks for other settings.
    D2  An id that was known stays known when its destination is deleted: who still uses it did
        nothing wrong, and is told by the outcome of the command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from antiphon.client_manager.connection import Connection, Refusal
from antiphon.client_manager.session import Creation, Session
from antiphon.errors import InvalidName, SubscriptionInUse
from antiphon.names import DestinationName, parse_destination

KIND_CODES = {"queue": 1, "topic": 2}
SETTINGS_VERSION = 1

UNKNOWN = "destination.unknown"
REFUSED = "destination.refused"
NO_SUBSCRIPTION = "subscription.unknown"

Ask = Callable[[str], str]


class Destination(NamedTuple):
    """Where a destination lives."""

    id: int
    channel: str
    settings_version: int


class Subscription(NamedTuple):
    """Where a durable subscription lives."""

    id: int
    destination: int
    channel: str


class Waiter(NamedTuple):
    """Who asked for a destination that is being made, and for which session if it is for one."""

    connection: Connection
    request: int
    session: int = 0


class DestinationService:
    """What one client manager knows of destinations."""

    __slots__ = ("_ask", "_being_made", "_by_id", "_by_name", "_channel", "_names")

    def __init__(self, channel: str, ask: Ask) -> None:
        self._channel = channel
        self._ask = ask
        self._by_name: dict[str, Destination] = {}
        self._by_id: dict[int, Destination] = {}
        self._names: dict[int, str] = {}
        self._being_made: dict[Creation, list[Waiter]] = {}

    def parse(self, text: str) -> DestinationName:
        """The name a client gave, or an error that says what is wrong with it."""
        try:
            name = parse_destination(text)
        except InvalidName as error:
            raise Refusal(error.code, error.text) from None
        if name.is_reserved:
            raise Refusal(InvalidName.code, f"{text}: names that begin with _ are the system's own")
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

    def wait(self, creation: Creation, waiter: Waiter) -> bool:
        """Somebody wants a destination to be made. Must it be ordered, or is it already (D1)?"""
        waiters = self._being_made.setdefault(creation, [])
        waiters.append(waiter)
        return len(waiters) == 1

    def made(self, creation: Creation, destination: int) -> tuple[Destination, list[Waiter]]:
        """The directory has the name under this id, since now or since long."""
        found = Destination(destination, self._channel, SETTINGS_VERSION)
        self._remember(creation.name, found)
        return found, self._being_made.pop(creation, [])

    def not_made(self, creation: Creation) -> list[Waiter]:
        return self._being_made.pop(creation, [])

    def find_subscription(self, session: Session, name: str) -> Subscription:
        """A durable subscription of the session's client id that nobody else consumes; or a Refusal."""
        question = {"question": "subscription", "client_id": session.client_id, "name": name}
        answer = json.loads(self._ask(json.dumps(question)))
        if not answer.get("subscription"):
            raise Refusal(NO_SUBSCRIPTION, f"there is no durable subscription {name[:80]!r}")
        if any(other != session.id for other in answer["sessions"]):
            raise Refusal(
                SubscriptionInUse.code, f"another session has a consumer of subscription {name[:80]!r}"
            )
        return Subscription(answer["subscription"], answer["destination"], answer["channel"])

    def retire(self, destination: int) -> None:
        """The destination is gone: its name may be given to another, its id never is (D2)."""
        name = self._names.pop(destination, None)
        known = self._by_name.get(name) if name is not None else None
        if name is not None and known is not None and known.id == destination:
            del self._by_name[name]

    def _remember(self, name: str, found: Destination) -> None:
        self._by_name[name] = self._by_id[found.id] = found
        self._names[found.id] = name
