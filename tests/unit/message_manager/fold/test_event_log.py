"""The topic of events, as the fold keeps it: who makes it, who publishes to it, and what may be changed."""

from __future__ import annotations

import json

import pytest

from antiphon.batch import Batch, BatchBuilder
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.names import LOG_TOPIC_NAME
from antiphon.wire.commands import (
    AlterDestination,
    CreateDestination,
    DeleteDestination,
    LogEvents,
    OutcomeCode,
    PurgeDestination,
)
from tests.property.restored import RestoredChannel
from tests.unit.message_manager.channel import Channel, Client, of_node

C = OutcomeCode
CREATE = of_node(CreateDestination(kind=2, name="_LOG", settings=""))


@pytest.fixture
def channel() -> Channel:
    channel = RestoredChannel()
    channel.claim(1)
    return channel


def events(*sentences: str, priority: int = 4) -> bytes:
    builder = BatchBuilder()
    for sentence in sentences:
        builder.add(sentence, {"code": "node.up"}, timestamp_ms=1, priority=priority)
    return of_node(LogEvents(batch=builder.build(7, 1).encode()), len(sentences))


def topic(channel: Channel) -> Topic:
    found = channel.manager.state.directory.named(LOG_TOPIC_NAME)
    assert isinstance(found, Topic)
    return found


def test_part_and_events_come_in_one_envelope(channel: Channel) -> None:
    first = channel.order(CREATE, events("one", "two"))
    log = topic(channel)
    assert log.id == first and list(log.live) == [(first + 1, first + 3)] and not channel.exceptions()
    assert json.loads(log.settings) | {"retention": 604_800, "retention_bytes": 64 << 20} == json.loads(
        log.settings
    )
    stored = log.index.find(first + 1)
    record = channel.payloads.read(stored.location)
    batch = Batch.decode(record[stored.offset : stored.offset + stored.length])
    assert [batch.body(row) for row in range(2)] == ["one", "two"], "the index points to the batch"


def test_a_part_that_is_there_stays_as_it_is(channel: Channel) -> None:
    channel.order(CREATE, events("one"))
    log = topic(channel)
    channel.order(of_node(AlterDestination(destination=log.id, settings='{"retention":60}')))
    outcome = channel.outcome(CREATE)
    assert outcome is not None and (outcome.code, outcome.original) == (C.DUPLICATE, log.id)
    assert topic(channel).retention.age_ms == 60_000


@pytest.mark.parametrize(
    "batch", [b"", b"nonsense", events("x", priority=9)[48:]], ids=["empty", "nonsense", "rules"]
)
def test_events_without_a_part_or_without_a_plain_batch_are_refused(channel: Channel, batch: bytes) -> None:
    outcome = channel.outcome(events("one"))
    assert outcome is not None and outcome.code == C.REFUSED and "no topic:_LOG yet" in outcome.text
    channel.order(CREATE)
    outcome = channel.outcome(of_node(LogEvents(batch=batch)))
    assert outcome is not None and outcome.code == C.REFUSED and topic(channel).published == 0


def test_subscribers_are_given_events(channel: Channel) -> None:
    client = Client()
    channel.order(client.open())
    channel.order(CREATE)
    log = topic(channel)
    subscription = channel.order(client.subscribe(log.id))
    number = channel.order(events("one"))
    found = channel.manager.state.directory.subscription(subscription)
    assert found is not None and found.backlog == 1 and log.last == number


def test_no_session_publishes_to_the_topic_or_deletes_it(channel: Channel) -> None:
    client = Client()
    channel.order(client.open())
    channel.order(CREATE)
    log = topic(channel)
    outcome = channel.outcome(client.publish(log.id, [b"x"]))
    assert outcome is not None and outcome.code == C.REFUSED and "belongs to the system" in outcome.text
    assert log.published == 0
    outcome = channel.outcome(of_node(DeleteDestination(destination=log.id)))
    assert outcome is not None and outcome.code == C.REFUSED and "is not deleted" in outcome.text
    channel.order(events("one", "two"))
    channel.order(of_node(PurgeDestination(destination=log.id)))
    assert topic(channel).live.count == 0
