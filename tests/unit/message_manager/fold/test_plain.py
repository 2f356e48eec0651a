"""Runs of lone publications: done in one go, and nobody can tell but by the clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.fold import fold
from antiphon.message_manager.fold.plain import take_plain
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.wire.commands import OutcomeCode
from antiphon.wire.primitives import Writer
from tests.unit.message_manager.channel import Channel, Client, bodies, delivered

SESSIONS = (0xA1, 0xA2, 0xA3)

KINDS_OF_ODD = ("topic", "nowhere", "nothing", "ack")

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from((*("publish", "publish", "heard", "heard", "again", "gap", "many"), *KINDS_OF_ODD)),
        st.integers(0, len(SESSIONS) - 1),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=12,
)


class Play:
    """A channel with two queues, a topic and a few sessions, and what was seen of it."""

    def __init__(self) -> None:
        self.channel = Channel()
        self.clients = [Client(session) for session in SESSIONS]
        self.queues = [self.channel.create("queue:one"), self.channel.create("queue:other")]
        self.topic = self.channel.create_topic("topic:news")
        self.channel.order(*(client.open() for client in self.clients))
        self.channel.register(1, self.queues[0])
        self.channel.flush()
        self.seen: list[object] = []

    def command(self, step: Step) -> bytes:
        what, who, where = step
        client, queue = self.clients[who], self.queues[where]
        if what == "heard":
            # Of all that it sent so far; else it hears of nothing for a while.
            client.confirmed_through = client.number - 1
        if what in ("publish", "heard"):
            return client.publish(queue, bodies(1))
        if what == "again":
            client.confirmed_through = 0
            return client.publish(queue, bodies(1), number=1)
        if what == "gap":
            return client.publish(queue, bodies(1), number=10_000)
        if what == "many":
            return client.publish(queue, bodies(3))
        if what == "topic":
            return client.publish(self.topic, bodies(1))
        if what == "nowhere":
            return client.publish(999_999, bodies(1))
        if what == "nothing":
            return client.publish(0, bodies(1))
        return client.ack(queue, (self.channel.next - 1, self.channel.next))

    def order(self, steps: Sequence[Step]) -> None:
        self.channel.order(*(self.command(step) for step in steps))
        self.seen.append(self.channel.flush())

    def told(self) -> list[object]:
        """All that can be seen of the channel, but for the digests of its queues."""
        state = self.channel.manager.state
        rows = []
        for row in state.sessions:
            writer = Writer()
            row.write(writer)
            rows.append(b"".join(writer.parts))
        queues: list[object] = []
        for number in self.queues:
            queue = state.directory.get(number)
            assert isinstance(queue, Queue)
            places = Writer()
            queue.write_places(places)
            queues.append((queue.live.encode(), queue.published, queue.bytes, b"".join(places.parts)))
        outcomes = state.outcomes.page(0, state.applied)
        return [
            rows,
            queues,
            outcomes,
            state.applied,
            self.channel.manager.live_bytes_by_segment(),
            self.seen,
        ]


def take_nothing(channel: object, envelope: object, sequence: int, end: int) -> tuple[int, int]:
    return 0, sequence


@given(st.lists(STEPS, min_size=1, max_size=4))
def test_a_run_does_what_its_commands_do_one_by_one(envelopes: list[list[Step]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "take_plain", take_nothing)
        obvious = Play()
        for steps in envelopes:
            obvious.order(steps)
    clever = Play()
    for steps in envelopes:
        clever.order(steps)
    assert clever.told() == obvious.told()


def test_a_run_is_taken_whole_and_what_follows_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def watch(*arguments: object) -> tuple[int, int]:
        before = arguments[2]
        offset, sequence = take_plain(*arguments)  # type: ignore[arg-type]
        assert isinstance(before, int)
        taken.append(sequence - before)
        return offset, sequence

    play = Play()
    monkeypatch.setattr(fold, "take_plain", watch)
    play.order([("publish", 0, 0), ("publish", 1, 0), ("publish", 0, 1), ("ack", 0, 0), ("publish", 2, 0)])
    assert taken == [3]
    play.order([("again", 0, 0), ("publish", 1, 0)])
    assert taken == [3, 0]


def test_what_is_said_twice_within_a_run_is_stored_once_and_told() -> None:
    play = Play()
    client, queue = play.clients[0], play.queues[0]
    first = play.channel.order(
        client.publish(queue, [b"a"]), client.publish(queue, [b"b"]), client.publish(queue, [b"a"], number=1)
    )
    effects = play.channel.flush()
    assert [body for _, _, body, _ in delivered(effects)] == [b"a", b"b"]
    outcomes = play.channel.manager.state.outcomes.page(0, play.channel.manager.applied)[2]
    assert [(one.first, one.code, one.original) for one in outcomes] == [
        (first + 2, OutcomeCode.DUPLICATE, first)
    ]


@pytest.mark.parametrize("follows", [False, True])
def test_what_is_for_destination_0_goes_nowhere_and_is_refused(follows: bool) -> None:
    play = Play()
    one, other = play.clients[:2]
    commands = [one.publish(0, [b"for nobody"])]
    if follows:
        commands.append(other.publish(play.queues[0], [b"for the queue"]))
    first = play.channel.order(*commands)
    got = [body for _, _, body, _ in delivered(play.channel.flush())]
    assert got == ([b"for the queue"] if follows else [])
    outcomes = play.channel.manager.state.outcomes.page(0, play.channel.manager.applied)[2]
    assert [(each.first, each.code) for each in outcomes] == [(first, OutcomeCode.NO_DESTINATION)]


def test_a_lone_publication_of_a_former_generation_is_void_whoever_says_it() -> None:
    """Also by the client manager that has the session."""
    channel, client = Channel(), Client()
    queue = channel.create("queue:one")
    channel.order(client.open())
    late = client.publish(queue, bodies(1))
    channel.order(client.resume(2))
    outcome = channel.outcome(late)
    assert outcome is not None and outcome.code == OutcomeCode.STALE
    [kept] = [one for one in channel.manager.state.directory if one.id == queue]
    assert not kept.live
