"""A state installed at another replica is that of a replica that was always there."""

from __future__ import annotations

from hypothesis import given

from antiphon.message_manager.manager import MessageManager
from tests.property import test_message_manager as queues
from tests.property import test_topic_fold as topics
from tests.unit.message_manager.channel import Channel, show
from tests.unit.message_manager.test_installing import Newcomer, looked_at


def check_joined(newcomer: Newcomer, channel: Channel, n: int) -> None:
    """Whatever is applied behind the checkpoint, both stand at the same state and have the same messages."""
    for entry, payload in channel.log:
        if entry.first > n:
            show(newcomer.manager, newcomer.payloads, entry, payload)
    assert newcomer.manager.state.digest() == channel.manager.state.digest()
    assert newcomer.manager.destinations() == without_consumers(channel.manager)
    for destination in channel.manager.state.directory:
        assert looked_at(newcomer.manager, destination.id) == looked_at(channel.manager, destination.id)


def without_consumers(manager: MessageManager) -> list[dict[str, object]]:
    return [{**row, "in_flight": 0, "consumers": 0} for row in manager.destinations()]


@given(queues.steps, queues.steps)
def test_queues_and_sessions(before: list[queues.Step], after: list[queues.Step]) -> None:
    story = queues.Story()
    story.tell(before)
    n = story.channel.mark()
    newcomer = Newcomer(node=9)
    newcomer.join(story.channel, n)
    story.tell(after)
    check_joined(newcomer, story.channel, n)


@given(topics.steps, topics.steps)
def test_topics_and_subscriptions(before: list[topics.Step], after: list[topics.Step]) -> None:
    story = topics.Story()
    story.tell(before)
    n = story.channel.mark()
    newcomer = Newcomer(node=9)
    newcomer.join(story.channel, n)
    story.tell(after)
    check_joined(newcomer, story.channel, n)
