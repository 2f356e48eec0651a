"""Temporary destinations as the log makes and ends them: each lives with the session that made it."""

from __future__ import annotations

import pytest

from antiphon.bus.effects import Send
from antiphon.bus.messages import ConsumerEnded, Registered
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations import temporaries
from antiphon.wire.commands import AlterDestination, PurgeDestination
from antiphon.wire.commands import OutcomeCode as C
from tests.unit.message_manager.channel import CM, Channel, Client, bodies

MINE, OTHERS = 0xC1, 0xC2
OTHER_MANAGER = CM + 1


@pytest.fixture
def channel() -> Channel:
    return Channel()


def opened(channel: Channel, session: int, connection: int = MINE) -> Client:
    client = Client(session)
    channel.order(client.open(connection=connection))
    return client


@pytest.fixture
def client(channel: Channel) -> Client:
    return opened(channel, 0xA1)


def names(channel: Channel) -> list[str]:
    return [destination.name for destination in channel.manager.state.directory]


def refusal(channel: Channel, *commands: bytes) -> str:
    outcome = channel.outcome(*commands)
    assert outcome is not None and outcome.code == C.REFUSED
    return outcome.text


def registered(channel: Channel) -> Registered:
    sends = [effect for effect in channel.flush() if isinstance(effect, Send)]
    (answer,) = [one.message for one in sends if isinstance(one.message, Registered)]
    return answer


def test_the_name_says_channel_and_number_and_a_repetition_makes_nothing_new(
    channel: Channel, client: Client
) -> None:
    queue = channel.order(client.create_temporary())
    topic = channel.order(client.create_temporary(kind=2))
    assert names(channel) == [f"queue:_TEMP.main.{queue}", f"topic:_TEMP.main.{topic}"]
    repeated = channel.outcome(client.create_temporary(number=1))
    assert repeated is not None and (repeated.code, repeated.original) == (C.DUPLICATE, queue)
    assert len(names(channel)) == 2


def test_it_goes_with_its_session_with_all_that_is_in_it(channel: Channel, client: Client) -> None:
    other = opened(channel, 0xB2)
    channel.create("stays")
    queue = channel.order(client.create_temporary())
    channel.order(other.create_temporary(kind=2))
    channel.order(other.publish(queue, bodies(3)))
    channel.order(client.close())
    assert names(channel) == ["queue:stays", f"topic:_TEMP.main.{queue + 1}"]
    late = channel.outcome(other.publish(queue, bodies(1)))
    assert late is not None and late.code == C.NO_DESTINATION
    channel.order(other.close())
    assert names(channel) == ["queue:stays"] and not len(channel.manager.state.directory.temporaries)


def test_it_lives_over_a_fence_and_a_resume_and_goes_when_the_session_expires(
    channel: Channel, client: Client
) -> None:
    queue = channel.order(client.create_temporary())
    channel.fence(CM, channel.manager.term)
    channel.order(client.resume(2), pid=OTHER_MANAGER)
    channel.order(client.publish(queue, bodies(1)), pid=OTHER_MANAGER)
    assert names(channel) == [f"queue:_TEMP.main.{queue}"]
    channel.fence(OTHER_MANAGER, channel.manager.term)
    channel.claim(1)
    assert names(channel) == [f"queue:_TEMP.main.{queue}"], "another primary, and nobody has the session"
    channel.order(channel.expiry(client.session, 2))
    assert names(channel) == []


def test_sessions_of_its_connection_consume_it_and_others_do_not(channel: Channel, client: Client) -> None:
    mine, others = opened(channel, 0xB2), opened(channel, 0xB3, OTHERS)
    queue = channel.order(client.create_temporary())
    channel.flush()
    channel.register(1, queue, session=mine.session)
    assert registered(channel).code == ""
    channel.register(2, queue, session=others.session)
    refused = registered(channel)
    assert refused.code == "destination.refused" and "only the connection that made it" in refused.text


def test_sessions_that_named_no_connection_are_alone(channel: Channel) -> None:
    one, other = opened(channel, 0xB2, 0), opened(channel, 0xB3, 0)
    queue = channel.order(one.create_temporary())
    channel.flush()
    channel.register(1, queue, session=one.session)
    assert registered(channel).code == ""
    channel.register(2, queue, session=other.session)
    assert registered(channel).code == "destination.refused"


def test_a_temporary_topic_has_subscriptions_of_its_connection_and_none_that_stays(
    channel: Channel, client: Client
) -> None:
    others = opened(channel, 0xB3, OTHERS)
    topic = channel.order(client.create_temporary(kind=2))
    assert channel.outcome(client.subscribe(topic)) is None
    assert "only the connection that made it" in refusal(channel, others.subscribe(topic))
    assert "no subscription to it is durable" in refusal(
        channel, client.subscribe(topic, "audit", shared=True)
    )


def test_its_connection_deletes_it_and_others_do_not(channel: Channel, client: Client) -> None:
    mine, others = opened(channel, 0xB2), opened(channel, 0xB3, OTHERS)
    queue = channel.order(client.create_temporary())
    assert "only the connection that made it" in refusal(channel, others.delete(queue))
    assert channel.outcome(mine.delete(queue)) is None
    assert names(channel) == [] and not len(channel.manager.state.directory.temporaries)
    assert channel.outcome(client.close()) is None


def test_its_connection_purges_and_changes_it_and_others_do_not(channel: Channel, client: Client) -> None:
    """Its name can be guessed."""
    others = opened(channel, 0xB3, OTHERS)
    queue = channel.order(client.create_temporary())
    channel.order(client.publish(queue, bodies(2)))
    purge = PurgeDestination(destination=queue)
    change = AlterDestination(destination=queue, settings='{"redelivery_limit":1}')
    for wish in (purge, change):
        assert "only the connection that made it" in refusal(channel, others.command(wish))
    assert channel.manager.destinations()[0]["messages"] == 2
    assert channel.outcome(client.command(change)) is None
    assert channel.outcome(client.command(purge)) is None
    assert channel.manager.destinations()[0]["messages"] == 0


def test_consumers_in_other_sessions_are_told_when_it_goes(channel: Channel, client: Client) -> None:
    mine = opened(channel, 0xB2)
    queue = channel.order(client.create_temporary())
    channel.flush()
    channel.register(1, queue, session=mine.session)
    channel.flush()
    channel.order(client.close())
    told = [effect.message for effect in channel.flush() if isinstance(effect, Send)]
    (ended,) = [one for one in told if isinstance(one, ConsumerEnded)]
    assert (ended.code, ended.text) == (
        "destination.deleted",
        f"queue:_TEMP.main.{queue} went with the session that made it",
    )


def test_nobody_chooses_such_a_name_and_nothing_holds_it(channel: Channel, client: Client) -> None:
    outcome = channel.outcome(client.create_temporary(kind=3))
    assert outcome is not None and outcome.text == "there is no destination of kind 3"
    channel.create("_TEMP.main.7")
    assert names(channel) == []
    queue = channel.order(client.create_temporary())
    assert "nothing holds it" in refusal(channel, client.hold("h", 0, queue))


def test_a_session_has_a_bounded_number_of_them(
    channel: Channel, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.message_manager.fold.destinations.TEMPORARIES_MAX", 2)
    first = channel.order(client.create_temporary())
    channel.order(client.create_temporary())
    assert "at most 2 temporary destinations" in refusal(channel, client.create_temporary())
    channel.order(client.delete(first))
    assert channel.outcome(client.create_temporary()) is None
    assert temporaries.TEMPORARIES_MAX == 1_000


def test_they_are_restored_with_their_owners_and_leave_the_directory_version_alone(
    channel: Channel, client: Client
) -> None:
    channel.create("q")
    version = channel.manager.state.directory.version
    channel.order(client.create_temporary())
    gone = channel.order(client.create_temporary(kind=2))
    channel.order(client.delete(gone))
    assert channel.manager.state.directory.version == version
    digest, data = channel.manager.state.capture()
    restored = ChannelState.restore(data)
    assert restored.digest() == digest and restored.directory.version == version
    assert list(restored.directory.temporaries) == list(channel.manager.state.directory.temporaries)
    channel.order(client.close())
    assert channel.replica(data, channel.manager.applied - 1).state.digest() == channel.manager.state.digest()
