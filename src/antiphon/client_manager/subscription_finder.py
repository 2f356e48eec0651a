"""Subscription finder: in which channel a durable subscription is, by client id and name.

No channel keeps a list of them all, so all are asked at once, and the first that has it decides. That
there is none is said only when every channel has said so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from antiphon.client_manager.asking import Answer, Asking
from antiphon.client_manager.connection import Refusal
from antiphon.client_manager.session import Session
from antiphon.errors import SubscriptionInUse

NO_SUBSCRIPTION = "subscription.unknown"
UNAVAILABLE = "subscription.unavailable"


class FoundSubscription(NamedTuple):
    """Where a durable subscription lives."""

    id: int
    destination: int
    channel: str


Then = Callable[[FoundSubscription | Refusal], None]


class _Hunt:
    """One question to all channels."""

    __slots__ = ("name", "session", "silent", "then", "unheard")

    def __init__(self, session: Session, name: str, channels: Sequence[str], then: Then) -> None:
        self.session = session
        self.name = name
        self.then: Then | None = then
        self.unheard = set(channels)
        # Those that gave no answer in time.
        self.silent: list[str] = []

    def end(self, result: FoundSubscription | Refusal) -> None:
        assert self.then is not None, "a question was answered twice"
        then, self.then = self.then, None
        then(result)


class SubscriptionFinder:
    """Finds the subscriptions that clients want to end."""

    __slots__ = ("_asking", "_channels")

    def __init__(self, channels: Sequence[str], asking: Asking) -> None:
        self._channels = tuple(channels)
        self._asking = asking

    def find(self, session: Session, name: str, then: Then) -> None:
        """A durable subscription of the session's client id that nobody else consumes; or why not."""
        hunt = _Hunt(session, name, self._channels, then)
        question = {"question": "subscription", "client_id": session.client_id, "name": name}
        for channel in self._channels:
            self._asking.look_up(channel, question, partial(self._on_answer, hunt, channel))

    def _on_answer(self, hunt: _Hunt, channel: str, answer: Answer | None) -> None:
        if hunt.then is None:
            return
        hunt.unheard.remove(channel)
        if answer is None:
            hunt.silent.append(channel)
        elif "subscription" in answer:
            hunt.end(_judge(hunt, answer, channel))
            return
        if hunt.unheard:
            return
        shown = f"{hunt.name[:80]!r}"
        if hunt.silent:
            who = f"channel {hunt.silent[0]} does not answer at the moment"
            hunt.end(Refusal(UNAVAILABLE, f"{who}, so subscription {shown} is not found"))
        else:
            hunt.end(Refusal(NO_SUBSCRIPTION, f"there is no durable subscription {shown}"))


def _judge(hunt: _Hunt, answer: Answer, channel: str) -> FoundSubscription | Refusal:
    if answer["sessions"] is None:
        text = f"channel {channel} has no primary at the moment, which would know who consumes it"
        return Refusal(UNAVAILABLE, text)
    if any(other != hunt.session.id for other in answer["sessions"]):
        text = f"another session has a consumer of subscription {hunt.name[:80]!r}"
        return Refusal(SubscriptionInUse.code, text)
    return FoundSubscription(answer["subscription"], answer["destination"], channel)
