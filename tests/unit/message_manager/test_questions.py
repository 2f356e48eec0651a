"""What a replica answers when a client manager asks for a name or a session."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.bus.effects import Send
from antiphon.bus.messages import About, Query, Reply
from antiphon.message_manager import questions
from antiphon.message_manager.manager import MessageManagerSettings
from antiphon.message_manager.questions import Questions
from antiphon.message_manager.state.channel_state import ChannelState
from tests.unit.message_manager.channel import NODE, SESSION, Channel, Client


def ask(channel: Channel, request: int = 1, floor: int = 0, anybody: bool = False, **question: Any) -> None:
    channel.say(Query(request, About.NAMES, json.dumps(question), floor, anybody=anybody), sender=9)


def told(channel: Channel) -> dict[int, Any]:
    """Answers by request."""
    sends = [effect for effect in channel.flush() if isinstance(effect, Send)]
    assert all(send.to == 9 for send in sends)
    replies = [send.message for send in sends if isinstance(send.message, Reply)]
    assert len(replies) == len({reply.request for reply in replies}), "answered twice"
    return {reply.request: json.loads(reply.answer) for reply in replies}


def test_destinations_subscriptions_and_sessions_are_found() -> None:
    channel, client = Channel(), Client()
    queue, topic = channel.create("orders"), channel.create_topic("prices")
    channel.order(client.open(client_id="desk"))
    subscription = channel.order(client.subscribe(topic, "audit", client_id="desk"))
    ask(channel, 1, question="destination", name="queue:orders")
    ask(channel, 2, question="destination", name="queue:nowhere")
    ask(channel, 3, question="subscription", client_id="desk", name="audit", durable=True)
    ask(channel, 4, question="session", session=f"{SESSION:032x}")
    ask(channel, 5, question="placement", name="topic:prices")
    answers = told(channel)
    assert answers[1] == {
        "destination": queue,
        "name": "queue:orders",
        "channel": "main",
        "settings_version": 1,
        "settings": channel.manager.state.directory.named("queue:orders").settings,
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
    channel.say(Query(1, About.NAMES, question), sender=9)
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
    monkeypatch.setattr(questions, "WAITING_MAX", 2)
    waiting = Questions({"x": lambda asked: {"is": "there"}})
    for request in (1, 2, 3):
        waiting.ask(0, 9, Query(request, About.NAMES, '{"question": "x"}', 5))
    state = ChannelState()
    assert waiting.flush(0, state, is_primary=True) == []
    state.applied = 5
    replies = [send.message for send in waiting.flush(0, state, is_primary=True)]
    assert replies == [Reply(request, About.NAMES, '{"is": "there"}') for request in (2, 3)]


def test_what_is_not_applied_is_waited_for_a_second_and_no_longer() -> None:
    for is_primary in (True, False):
        waiting = Questions({"x": lambda asked: {"is": "there"}})
        waiting.ask(0, 9, Query(1, About.NAMES, '{"question": "x"}', 5))
        assert waiting.next_deadline_ns(4) == questions.TOO_EARLY_NS
        said = waiting.flush(questions.TOO_EARLY_NS, ChannelState(), is_primary=is_primary)
        assert [send.message.code for send in said] == [questions.UNAVAILABLE] * is_primary
        assert not waiting.is_busy


def test_a_client_s_question_about_ranges_does_not_reach_what_is_known_of_names() -> None:
    channel = Channel()
    channel.create("orders")
    channel.say(Query(1, About.RANGES, '{"question": "destination", "name": "queue:orders"}'), sender=9)
    (reply,) = [send.message for send in channel.flush() if isinstance(send, Send)]
    assert isinstance(reply, Reply) and (reply.answer, reply.code) == ("", "remote.protocol")


def test_a_backup_does_not_know_who_consumes_a_subscription() -> None:
    channel, client = Channel(), Client()
    topic = channel.create_topic("prices")
    channel.order(client.open())
    channel.order(client.subscribe(topic, "audit"))
    ask(channel, 1, question="subscription", client_id="", name="audit", durable=True)
    assert told(channel)[1]["consumers"] == []
    channel.claim(2)
    ask(channel, 2, anybody=True, question="subscription", client_id="", name="audit", durable=True)
    assert told(channel)[2]["consumers"] is None


def test_a_new_primary_does_not_say_who_consumes_a_subscription_before_it_serves() -> None:
    channel, client = Channel(MessageManagerSettings(registration_wait_ms=300)), Client()
    topic = channel.create_topic("prices")
    channel.order(client.open())
    channel.order(client.subscribe(topic, "audit"))
    channel.claim(NODE)
    ask(channel, 1, question="subscription", client_id="", name="audit", durable=True)
    (reply,) = [send.message for send in channel.flush() if isinstance(send, Send)]
    assert isinstance(reply, Reply) and reply.code and "waits for its consumers" in reply.text
    channel.now_ns += 300_000_000
    channel.flush()
    ask(channel, 2, question="subscription", client_id="", name="audit", durable=True)
    assert told(channel)[2]["consumers"] == []
