"""A state of another node takes the place of ours, while the channel runs."""

from __future__ import annotations

import pytest

from antiphon.bus.messages import RangeReply, Registered
from antiphon.bus.ports import Location
from antiphon.message_manager.manager import MessageManager
from tests.browsing import browse, numbered, shown
from tests.unit.message_manager.channel import (
    AT_ONCE,
    Channel,
    Client,
    MemoryPayloads,
    bodies,
    delivered,
    sent,
    show,
)


class Newcomer:
    """Another replica, which keeps bytes in places of its own."""

    def __init__(self, node: int = 2) -> None:
        self.payloads = MemoryPayloads(records_per_segment=3)
        self.payloads.keep(b"something that was here before")
        self.manager = MessageManager("main", node, self.payloads, AT_ONCE)

    def join(
        self, channel: Channel, n: int, term_served: int = 0, claimed_after: int = 0
    ) -> tuple[bytes, tuple[int, ...]]:
        """Take over the state after number n; returns what its own checkpoint would be."""
        digest, state, _ = channel.manager.capture(n)
        opened, places = self.manager.open_state(state)
        assert opened == digest
        moved = {place: self.payloads.keep(bytes(channel.payloads.read(place))) for place in places}
        again, data, segments = self.manager.move_state(moved)
        assert again == digest, "places are no part of what is agreed on"
        self.manager.install_state(0, n, term_served, claimed_after)
        return data, segments


def looked_at(manager: MessageManager, destination: int) -> list[tuple[int, bytes]]:
    manager.receive(0, 1, browse(destination))
    (reply,) = [message for message in sent(manager.flush(0, 0)) if isinstance(message, RangeReply)]
    return numbered(shown(reply))


@pytest.fixture
def channel() -> Channel:
    return Channel(records_per_segment=2)


def fill(channel: Channel, client: Client) -> tuple[int, int]:
    """A queue and a topic with messages, some of them acknowledged or given back."""
    queue, topic = channel.create("orders"), channel.create_topic("news")
    channel.order(client.subscribe(topic, durable="reader"))
    for at in range(4):
        first = channel.order(client.publish(queue, bodies(3, f"{at}.")), client.publish(topic, bodies(2)))
    channel.order(client.ack(queue, (first, first + 2)), client.give_back(queue, (first + 2, first + 3)))
    return queue, topic


def test_an_installed_state_is_equal_and_its_messages_are_read_here(channel: Channel, client: Client) -> None:
    queue, topic = fill(channel, client)
    newcomer = Newcomer()
    newcomer.join(channel, channel.mark())
    assert newcomer.manager.state.digest() == channel.manager.state.digest()
    assert newcomer.manager.destinations() == channel.manager.destinations()
    for destination in (queue, topic):
        assert looked_at(newcomer.manager, destination) == looked_at(channel.manager, destination)


def test_what_follows_is_applied_to_it(channel: Channel, client: Client) -> None:
    queue, _ = fill(channel, client)
    newcomer = Newcomer()
    n = channel.mark()
    newcomer.join(channel, n)
    channel.order(client.publish(queue, bodies(2, "later")), client.ack(queue, (1, n)))
    channel.order(client.publish(queue, bodies(2), number=1))
    for entry, payload in channel.log:
        if entry.first > n:
            show(newcomer.manager, newcomer.payloads, entry, payload)
    assert newcomer.manager.state.digest() == channel.manager.state.digest()
    assert looked_at(newcomer.manager, queue) == looked_at(channel.manager, queue)


def test_its_own_checkpoint_refers_to_its_own_segments(channel: Channel, client: Client) -> None:
    queue, _ = fill(channel, client)
    newcomer = Newcomer()
    data, segments = newcomer.join(channel, channel.mark())
    assert segments == tuple(newcomer.manager.live_bytes_by_segment())
    assert sum(newcomer.manager.live_bytes_by_segment().values()) == sum(
        channel.manager.live_bytes_by_segment().values()
    )
    again = MessageManager("main", 2, newcomer.payloads, AT_ONCE)
    again.restore(data)
    assert looked_at(again, queue) == looked_at(channel.manager, queue)


def test_a_record_that_several_rows_lie_in_is_named_once(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    channel.order(client.publish(queue, bodies(1)), client.publish(queue, bodies(1)))
    _, state, _ = channel.manager.capture(channel.mark())
    _, places = Newcomer().manager.open_state(state)
    assert len(places) == 1


def test_the_present_state_goes_on_until_the_other_is_installed(channel: Channel, client: Client) -> None:
    fill(channel, client)
    n = channel.mark()
    newcomer = Newcomer()
    for entry, payload in channel.log[:4]:
        show(newcomer.manager, newcomer.payloads, entry, payload)
    before = newcomer.manager.state.digest()
    _, places = newcomer.manager.open_state(channel.manager.capture(n)[1])
    newcomer.manager.move_state({place: place for place in places})
    assert newcomer.manager.state.digest() == before
    show(newcomer.manager, newcomer.payloads, *channel.log[4])
    assert newcomer.manager.state.digest() != before


def test_a_state_that_is_dropped_leaves_nothing(channel: Channel, client: Client) -> None:
    fill(channel, client)
    newcomer = Newcomer()
    newcomer.manager.open_state(channel.manager.capture(channel.mark())[1])
    newcomer.manager.drop_state()
    assert newcomer.manager.live_bytes_by_segment() == {}
    with pytest.raises(AssertionError, match="not the one that is open"):
        newcomer.manager.install_state(0, channel.manager.applied)


def test_bytes_that_are_no_state_have_no_digest() -> None:
    assert Newcomer().manager.open_state(b"these are other bytes") == (b"", ())


def test_a_state_never_steps_back(channel: Channel, client: Client) -> None:
    fill(channel, client)
    n = channel.mark()
    state = channel.manager.capture(n)[1]
    channel.manager.open_state(state)
    with pytest.raises(AssertionError, match="takes the place"):
        channel.manager.install_state(0, n)


def test_a_place_that_was_not_copied_stops_the_node(channel: Channel, client: Client) -> None:
    fill(channel, client)
    newcomer = Newcomer()
    newcomer.manager.open_state(channel.manager.capture(channel.mark())[1])
    with pytest.raises(KeyError):
        newcomer.manager.move_state({Location(1, 1, 1, 7): Location(2, 2, 2, 7)})


def test_a_backup_serves_nobody_and_a_node_whose_claim_lies_before_serves(
    channel: Channel, client: Client
) -> None:
    queue, _ = fill(channel, client)
    term = channel.claim(2)
    n = channel.mark()
    backup = Newcomer(node=3)
    backup.join(channel, n)
    assert not backup.manager.is_primary
    leader = Newcomer()
    leader.join(channel, n, term_served=term)
    assert leader.manager.is_primary
    channel.manager = leader.manager
    leader.manager.announced(0, term)
    channel.register(1, queue)
    assert len(delivered(leader.manager.flush(0, 0))) == 10, "all that wait in the queue"


def counts_told(channel: Channel, leader: Newcomer, queue: int) -> list[int]:
    """The redelivery counts of everything that the leader gives to a consumer, in the order of numbers."""
    leader.manager.announced(0, leader.manager.term)
    backup, channel.manager = channel.manager, leader.manager
    channel.register(1, queue)
    channel.manager = backup
    return [count for _, _, _, count in delivered(leader.manager.flush(0, 0))]


def test_only_messages_of_before_the_claim_are_told_as_redelivered(channel: Channel, client: Client) -> None:
    queue = channel.create("orders")
    channel.order(client.publish(queue, bodies(2)))
    claimed_after = channel.mark()
    term = channel.claim(2)
    channel.order(client.publish(queue, bodies(3)))
    leader = Newcomer()
    leader.join(channel, channel.mark(), term, claimed_after)
    assert counts_told(channel, leader, queue) == [1, 1, 0, 0, 0]


def test_a_primary_whose_state_is_replaced_may_have_given_out_all_of_the_former(
    channel: Channel, client: Client
) -> None:
    queue = channel.create("orders")
    claimed_after = channel.mark()
    term = channel.claim(2)
    channel.order(client.publish(queue, bodies(2)))
    leader = Newcomer()
    leader.join(channel, channel.mark(), term, claimed_after)
    assert counts_told(channel, leader, queue) == [0, 0]
    channel.order(client.publish(queue, bodies(3)))
    leader.join(channel, channel.mark(), term, claimed_after)
    assert counts_told(channel, leader, queue) == [1, 1, 0, 0, 0]


def streams_told(leader: Newcomer) -> list[tuple[int, int]]:
    """The names of the streams, and the numbers in them, of the answers to registrations."""
    answers = [one for one in sent(leader.manager.flush(0, 0)) if isinstance(one, Registered)]
    return [(answer.stream, answer.number) for answer in answers]


def test_a_primary_whose_state_is_replaced_begins_another_stream_to_the_same_client_manager(
    channel: Channel, client: Client
) -> None:
    """A client manager would take the numbers of the stream that it knows for repetitions."""
    queue = channel.create("orders")
    term = channel.claim(2)
    leader = Newcomer()
    leader.join(channel, channel.mark(), term)
    channel.manager, backup = leader.manager, channel.manager
    leader.manager.announced(0, term)
    channel.register(1, queue)
    ((before, _),) = streams_told(leader)
    channel.manager = backup
    channel.order(client.publish(queue, bodies(2)))
    n = channel.mark()
    leader.join(channel, n, term)
    channel.manager = leader.manager
    leader.manager.announced(0, term)
    channel.register(2, queue)
    assert streams_told(leader) == [(n, 1)]
    assert n > before
