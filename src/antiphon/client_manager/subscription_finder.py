"""Subscription finder: the channel of a subscription, by client id and name.

No channel has a list of all subscriptions, so all channels are asked at once, and the first that has it
decides. "None" is answered only when every channel has said so. A subscription to a family has a part in
every channel: a client asks for the others one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from antiphon.client_manager.asking import Answer, Asking
from antiphon.client_manager.connection import Refusal
from antiphon.client_manager.destination_service import Waiter
from antiphon.errors import SubscriptionInUse, SubscriptionUnavailable
from antiphon.names import parse_destination
from antiphon.wire.frames import SubscriptionFind, SubscriptionFound

NO_SUBSCRIPTION = "subscription.unknown"


@dataclass(slots=True)
class Hunt:
    """One question to all channels, for one waiter."""

    waiter: Waiter
    name: str
    ends: bool
    """Is the subscription to be ended, so that it must have no consumer?"""
    unheard: set[str]
    silent: list[str] = field(default_factory=list)
    """The channels that gave no answer in time."""
    is_over: bool = False


class SubscriptionFinder:
    """`is_mine_and_leaving` tells whether a consumer that a primary still has is about to leave it."""

    def __init__(
        self, channels: Sequence[str], asking: Asking, is_mine_and_leaving: Callable[[str, int, int], bool]
    ) -> None:
        self._channels = tuple(channels)
        self._asking = asking
        self._is_mine_and_leaving = is_mine_and_leaving

    def find(self, client_id: str, wish: SubscriptionFind, waiter: Waiter) -> None:
        """Find a subscription of a client id, in whichever channel it is, or in a given one."""
        if wish.channel and wish.channel not in self._channels:
            raise Refusal(NO_SUBSCRIPTION, f"there is no channel {wish.channel[:80]!r}")
        channels = (wish.channel,) if wish.channel else self._channels
        hunt = Hunt(waiter, wish.name, wish.ends, set(channels))
        question = {
            "question": "subscription",
            "client_id": client_id,
            "name": wish.name,
            "durable": wish.durable,
        }
        for channel in channels:
            self._asking.look_up(channel, question, hunt)

    def told(self, hunt: Hunt, channel: str, answer: Answer | None) -> SubscriptionFound | Refusal | None:
        """A channel has answered, or has not in time; the result, as soon as it is known."""
        if hunt.is_over:
            return None
        hunt.unheard.remove(channel)
        if answer is None:
            hunt.silent.append(channel)
        elif "subscription" in answer:
            hunt.is_over = True
            return self._judge(hunt, answer, channel)
        if hunt.unheard:
            return None
        shown = f"{hunt.name[:80]!r}"
        if hunt.silent:
            who = f"channel {hunt.silent[0]} does not answer at the moment"
            return Refusal(SubscriptionUnavailable.code, f"{who}, so subscription {shown} is not found")
        return Refusal(NO_SUBSCRIPTION, f"there is no subscription {shown}")

    def _judge(self, hunt: Hunt, answer: Answer, channel: str) -> SubscriptionFound | Refusal:
        if hunt.ends and answer["consumers"] is None:
            text = f"channel {channel} has no primary at the moment, which would know who consumes it"
            return Refusal(SubscriptionUnavailable.code, text)
        if hunt.ends and self._is_used(answer, channel):
            text = f"subscription {hunt.name[:80]!r} has a consumer, or a transaction has messages of it"
            return Refusal(SubscriptionInUse.code, text)
        is_family = parse_destination(answer["topic"]).is_family
        return SubscriptionFound(
            request=hunt.waiter.request,
            subscription=answer["subscription"],
            destination=answer["destination"],
            channel=channel,
            topic=answer["topic"],
            channels=self._channels if is_family else tuple(answer["channels"]),
        )

    def _is_used(self, answer: Answer, channel: str) -> bool:
        return answer["locked"] or not all(
            self._is_mine_and_leaving(channel, node, consumer) for node, consumer in answer["consumers"]
        )
