"""Topics at the door: destinations with settings, subscriptions, and consumers that have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.bus.effects import EnvelopeCommitted
from antiphon.bus.messages import Deliver, Piece, Register, Registered, Taker, Target
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    Acknowledge,
    CommandKind,
    ConfirmItem,
    CreateDestination,
    Outcome,
    OutcomeCode,
    StartKind,
    Subscribe,
    Unsubscribe,
    iterate_commands,
)
from tests.unit.client_manager.stage import KNOWN, OF_TOPIC, Stage, command, kinds


def staged(client_id: str = "desk") -> tuple[Stage, int]:
    stage = Stage()
    stage.connect(client_id=client_id)
    return stage, stage.open_session()


def subscribe(destination: int = KNOWN) -> Subscribe:
    return Subscribe(
        destination=destination,
        durable=True,
        shared=False,
        name="audit",
        client_id="desk",
        start=StartKind.LATEST,
        number=0,
    )


# -- destinations ------------------------------------------------------------------------------------


def create(request: int, settings: str, name: str = "topic:prices") -> frames.DestinationCreate:
    return frames.DestinationCreate(request=request, name=name, settings=settings)


def created(stage: Stage) -> list[CreateDestination]:
    return [
        CreateDestination.decode(payload)
        for envelope in stage.submitted
        for header, payload, _ in iterate_commands(envelope.payload)
        if header.kind == CommandKind.CREATE
    ]


def test_a_topic_is_opened_like_a_queue() -> None:
    stage, _ = staged()
    stage.say(1, frames.DestinationOpen(request=9, name="topic:prices", create=True))
    assert created(stage) == [CreateDestination(kind=2, name="prices", settings="{}")]
    stage.confirm()
    (opened,) = stage.heard_of(frames.DestinationOpened)
    assert opened.destination == 101


def test_settings_are_ordered_although_the_destination_is_known() -> None:
    """Whether it is set so, only the fold knows."""
    stage, _ = staged()
    stage.say(1, create(9, '{"retention":60}', name="queue:known"))
    assert created(stage) == [CreateDestination(kind=1, name="known", settings='{"retention":60}')]
    stage.confirm(Outcome(0, 1, OutcomeCode.REFUSED, 0, "its retention is consumed, not 60"))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.request, failed.code) == (9, "destination.refused")
    assert failed.text == "its retention is consumed, not 60"
    stage.say(1, create(10, "{}", name="queue:known"))
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, KNOWN))
    (opened,) = stage.heard_of(frames.DestinationOpened)
    assert (opened.request, opened.destination) == (10, KNOWN)


def test_the_same_wish_is_ordered_once_and_another_for_itself() -> None:
    stage, _ = staged()
    stage.say(1, create(1, "{}"), create(2, "{}"), create(3, '{"retention":60}'))
    stage.say(1, frames.DestinationOpen(request=4, name="topic:prices", create=True))
    # It waits for the two that are under way.
    (first,) = stage.submitted
    stage.tell(EnvelopeCommitted(first.tag, stage.next_sequence, first.count))
    assert [kinds(envelope) for envelope in stage.submitted] == [
        [CommandKind.CREATE] * 2,
        [CommandKind.CREATE],
    ]
    stage.confirm()
    stage.confirm(Outcome(0, 1, OutcomeCode.DUPLICATE, 101))
    answers = {opened.request: opened.destination for opened in stage.heard_of(frames.DestinationOpened)}
    assert answers == {1: 101, 2: 101, 3: 102, 4: 101}


def test_a_name_that_cannot_be_is_refused_before_anything_is_ordered() -> None:
    stage, _ = staged()
    stage.say(1, create(1, "{}", name="topic:_LOG"), create(2, "{}", name="prices"))
    assert [failed.code for failed in stage.heard_of(frames.Failed)] == ["local.invalid_name"] * 2
    assert stage.submitted == []


# -- subscriptions -----------------------------------------------------------------------------------


def test_a_subscription_is_a_command_of_its_session() -> None:
    stage, session = staged()
    stage.say(1, command(session, 1, subscribe()))
    assert kinds(stage.submitted[0]) == [CommandKind.SESSION_OPEN, CommandKind.SUBSCRIBE]
    stage.confirm(Outcome(1, 1, OutcomeCode.EXISTS, 77))
    (confirm,) = stage.heard_of(frames.Confirm)
    assert confirm.items == (ConfirmItem(1, 1, OutcomeCode.EXISTS, 77),)


def test_the_place_of_a_new_subscription_is_its_id() -> None:
    stage, session = staged()
    stage.say(1, command(session, 1, subscribe()))
    stage.confirm()
    (confirm,) = stage.heard_of(frames.Confirm)
    assert confirm.items == (ConfirmItem(1, 1, OutcomeCode.APPLIED, 102),)


def test_a_subscription_with_a_selector_that_is_none_is_a_breach() -> None:
    stage, session = staged()
    stage.say(1, command(session, 1, replace(subscribe(), selector="n = ")))
    assert "column 5" in stage.goodbye().text
    assert CommandKind.SUBSCRIBE not in [kind for envelope in stage.submitted for kind in kinds(envelope)]


def test_whether_there_is_such_a_topic_the_channel_says() -> None:
    stage, session = staged()
    stage.say(1, command(session, 1, subscribe(destination=999)))
    stage.confirm(Outcome(1, 1, OutcomeCode.NO_DESTINATION))
    (confirm,) = stage.heard_of(frames.Confirm)
    assert (confirm.items[0].number, confirm.items[0].code) == (1, OutcomeCode.NO_DESTINATION)


def test_unsubscribing_names_no_destination() -> None:
    stage, session = staged()
    stage.say(1, command(session, 1, Unsubscribe(subscription=77)))
    assert kinds(stage.submitted[0]) == [CommandKind.SESSION_OPEN, CommandKind.UNSUBSCRIBE]


AUDIT = {
    "subscription": 77,
    "destination": KNOWN,
    **OF_TOPIC,
    "channel": "a",
    "consumers": [],
    "locked": False,
}


def find(session: int, name: str = "audit", *, ends: bool = True) -> frames.SubscriptionFind:
    return frames.SubscriptionFind(request=9, session=session, name=name, ends=ends)


def test_a_durable_subscription_is_found_by_name_and_client_id() -> None:
    stage, session = staged()
    stage.subscriptions["desk", "audit"] = AUDIT
    stage.say(1, find(session))
    stage.confirm_all()  # the channel must know the session that will unsubscribe
    (found,) = stage.heard_of(frames.SubscriptionFound)
    assert found == frames.SubscriptionFound(
        request=9, subscription=77, destination=KNOWN, channel="a", topic="topic:prices"
    )
    stage.connect(2, client_id="lab")
    stage.say(2, find(stage.open_session(2)))
    (failed,) = stage.heard_of(frames.Failed, 2)
    assert failed.code == "subscription.unknown"


@pytest.mark.parametrize("use", [{"consumers": [[2, 5]]}, {"locked": True}], ids=str)
def test_a_subscription_that_is_used_is_found_but_not_to_be_ended(use: dict[str, Any]) -> None:
    stage, session = staged()
    stage.subscriptions["desk", "audit"] = AUDIT | use
    stage.say(1, find(session))
    (failed,) = stage.heard_of(frames.Failed)
    assert failed.code == "subscription.in_use"
    stage.say(1, find(session, ends=False))
    stage.confirm_all()
    assert len(stage.heard_of(frames.SubscriptionFound)) == 1


def test_a_consumer_that_the_primary_is_told_to_detach_does_not_count() -> None:
    stage, session = staged()
    key = open_consumer(stage, session, 1, 77)
    there = {"subscription": 77, "destination": KNOWN, **OF_TOPIC, "channel": "a", "locked": False}
    stage.subscriptions["desk", "audit"] = there | {"consumers": [[1, key]]}
    stage.say(1, find(session))
    assert [failed.code for failed in stage.heard_of(frames.Failed)] == ["subscription.in_use"]
    stage.say(1, frames.ConsumerClose(request=10, session=session, consumer=1, seen_through=0))
    stage.say(1, find(session))
    assert len(stage.heard_of(frames.SubscriptionFound)) == 1
    # A consumer of another client manager with the same key does.
    stage.subscriptions["desk", "audit"] = there | {"consumers": [[2, key]]}
    stage.say(1, find(session))
    assert len(stage.heard_of(frames.Failed)) == 2


# -- consumers ---------------------------------------------------------------------------------------


def open_consumer(stage: Stage, session: int, consumer: int, subscription: int) -> int:
    stage.say(1, stage.consumer_open(session, consumer, subscription=subscription))
    stage.confirm_all()
    register = stage.to_primary(Register)[-1]
    assert register.subscription == subscription
    stage.tell(Registered(consumer=register.consumer, term=1))
    return register.consumer


def deliver(key: int, first: int, count: int) -> Deliver:
    target = Target(1, 0, (Taker(key, 1),))
    return Deliver(1, KNOWN, (target,), (Piece(first, count, 0, [b"rows"]),))


def test_two_subscriptions_of_one_session_hold_the_same_messages_each_for_itself() -> None:
    stage, session = staged()
    one, two = (open_consumer(stage, session, number, 70 + number) for number in (1, 2))
    stage.tell(deliver(one, 50, 4), deliver(two, 50, 4))
    acknowledge = Acknowledge(destination=KNOWN, subscription=71, ranges=Ranges([(50, 53)]))
    stage.say(1, command(session, 1, acknowledge))
    stage.confirm_all()
    stage.new_term(2)
    held = {register.subscription: register.held for register in stage.to_primary(Register)[-2:]}
    assert held == {71: Ranges([(53, 54)]), 72: Ranges([(50, 54)])}


def test_why_a_subscription_cannot_be_consumed_is_told() -> None:
    stage, session = staged()
    stage.say(1, stage.consumer_open(session, 1, subscription=71))
    stage.confirm_all()
    register = stage.to_primary(Register)[-1]
    stage.tell(Registered(register.consumer, 1, "subscription.in_use", "it has a consumer already"))
    (failed,) = stage.heard_of(frames.Failed)
    assert (failed.code, failed.text) == ("subscription.in_use", "it has a consumer already")
