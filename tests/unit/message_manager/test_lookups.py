"""What a replica answers when a client manager asks for a name or a session."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.bus.effects import Send
from antiphon.bus.messages import Lookup, LookupReply
from antiphon.message_manager import lookups
from antiphon.message_manager.lookups import Lookups
from tests.unit.message_manager.channel import SESSION, Channel, Client


def ask(channel: Channel, request: int = 1, floor: int = 0, anybody: bool = False, **question: Any) -> None:
    channel.say(Lookup(request, floor, json.dumps(question), anybody), sender=9)


def told(channel: Channel) -> dict[int, Any]:
    """Answers by request."""
    sends = [effect for effect in channel.flush() if isinstance(effect, Send)]
    assert all(send.to == 9 for send in sends)
    replies = [send.message for send in sends if isinstance(send.message, LookupReply)]
    assert len(replies) == len({reply.request for reply in replies}), "answered twice"
    return {reply.request: json.loads(reply.answer) for reply in replies}


def test_destinations_subscriptions_and_sessions_are_found() -> None:
    channel, client = Channel(), Client()
    queue, topic = channel.create("orders"), channel.create_topic("prices")
    channel.order(client.open(client_id="desk"))
    subscription = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    ask(channel, 1, question="destination", name="queue:orders")
    ask(channel, 2, question="destination", name="queue:nowhere")
    ask(channel, 3, question="subscription", client_id="desk", name="audit")
    ask(channel, 4, question="session", session=f"{SESSION:032x}")
    ask(channel, 5, question="placement", name="topic:prices")
    answers = told(channel)
    assert answers[1] == {
        "destination": queue,
        "name": "queue:orders",
        "channel": "main",
        "settings_version": 1,
    }
    assert answers[2] == {}
    assert (answers[3]["subscription"], answers[3]["destination"]) == (subscription, topic)
    assert answers[4] == {"generation": 1, "last": 1}
    assert answers[5] == {"channel": "main"}
    assert told(channel) == {}


@pytest.mark.parametrize(
    "question", ["", "{}", "[]", "7", '{"question": "?"}', '{"question": "destination"}']
)
def test_what_is_no_question_has_an_empty_answer(question: str) -> None:
    channel = Channel()
    channel.say(Lookup(1, 0, question), sender=9)
    assert told(channel) == {1: {}}


def test_an_answer_waits_until_what_was_confirmed_is_applied() -> None:
    channel = Channel()
    ask(channel, floor=channel.next, question="destination", name="queue:orders")
    assert told(channel) == {}
    queue = channel.create("orders")
    assert told(channel)[1]["destination"] == queue


def test_whoever_asks_again_before_the_answer_is_answered_once() -> None:
    channel = Channel()
    for _ in range(3):
        ask(channel, floor=channel.next, question="destination", name="queue:orders")
    channel.create("orders")
    assert len(told(channel)) == 1


def test_a_backup_answers_only_who_asks_anybody() -> None:
    channel = Channel(begin=False)
    channel.claim(2)
    queue = channel.create("orders")
    ask(channel, 1, question="destination", name="queue:orders")
    ask(channel, 2, anybody=True, question="destination", name="queue:orders")
    assert {request: answer["destination"] for request, answer in told(channel).items()} == {2: queue}


def test_what_waits_is_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "WAITING_MAX", 2)
    waiting = Lookups({"x": lambda asked: {"is": "there"}})
    for request in (1, 2, 3):
        waiting.ask(9, Lookup(request, 5, '{"question": "x"}'))
    assert waiting.flush(4) == []
    replies = [send.message for send in waiting.flush(5)]
    assert replies == [LookupReply(request, '{"is": "there"}') for request in (2, 3)]


def test_a_backup_does_not_know_who_consumes_a_subscription() -> None:
    channel, client = Channel(), Client()
    topic = channel.create_topic("prices")
    channel.order(client.open())
    channel.order(client.subscribe(topic, "audit"))
    ask(channel, 1, question="subscription", client_id="", name="audit")
    assert told(channel)[1]["sessions"] == []
    channel.claim(2)
    ask(channel, 2, anybody=True, question="subscription", client_id="", name="audit")
    assert told(channel)[2]["sessions"] is None
