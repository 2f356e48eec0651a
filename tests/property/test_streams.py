"""A bad network between client managers and a primary: everything is handed over once, and nothing stalls.

A story is drawn: how bad the network is, and what clients, the primary and the sequencer do meanwhile. At
every delivery `tests.tiers` checks that the numbers a client sees have no gaps and keep to its credit. When
the network has healed, every message must reach somebody, and none two at a time.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from antiphon.message_manager.manager import MessageManagerSettings
from tests.tiers import Door, Taken, Tiers

Step = tuple[Any, ...]

WHO = st.integers(0, 7)

BAD = st.sampled_from([0, 50, 150, 300])
"""How many of a thousand messages are lost, come twice, or come late."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), WHO, st.booleans(), st.integers(1, 40)),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3, 30, 300, 1_200])),
        st.tuples(st.just("grant"), WHO, st.integers(1, 50)),
        st.tuples(st.just("grant"), WHO, st.integers(1, 50)),
        st.tuples(st.just("acknowledge"), WHO, st.integers(1, 40)),
        st.tuples(st.just("open"), WHO, st.booleans(), st.integers(0, 30)),
        st.tuples(st.just("close"), WHO, st.integers(0, 5)),
        st.tuples(st.just("claim"), st.integers(0, 3)),
        st.tuples(st.just("fence"), WHO),
    ),
    min_size=4,
    max_size=30,
)

SMALL = MessageManagerSettings(stream_window_bytes=6_000, deliver_bytes_max=1_000)
"""So that a few messages are several, and the window is soon full."""


class Story:
    """Two client managers; a queue, and subscriptions of a topic."""

    def __init__(self, seed: int, lost: int, doubled: int, delayed: int) -> None:
        self.tiers = Tiers(2, seed=seed, settings=SMALL)
        network = self.tiers.network
        network.lost, network.doubled, network.delayed, network.delay_ms_max = lost, doubled, delayed, 60
        for who in (0, 1):
            self._open(who, is_topic=False, credit=10)
            self._open(who, is_topic=True, credit=10)
            self._publish(who, is_topic=True, count=30)
            self._publish(who, is_topic=False, count=30)

    def tell(self, steps: list[Step]) -> None:
        for step in steps:
            getattr(self, f"_{step[0]}")(*step[1:])
            self.tiers.run_ms(1)

    def _door(self, who: int) -> Door:
        return self.tiers.doors[who % 2]

    def _consumer(self, who: int) -> Taken | None:
        consumers = list(self._door(who).consumers.values())
        return consumers[who // 2 % len(consumers)] if consumers else None

    def _publish(self, who: int, is_topic: bool, count: int) -> None:
        self._door(who).publish(self.tiers.topic if is_topic else self.tiers.queue, count)

    def _wait(self, ms: float) -> None:
        self.tiers.run_ms(ms)

    def _grant(self, who: int, more: int) -> None:
        if (taken := self._consumer(who)) is not None:
            self._door(who).grant(taken, more)

    def _acknowledge(self, who: int, count: int) -> None:
        if (taken := self._consumer(who)) is not None:
            self._door(who).acknowledge(taken, count)

    def _open(self, who: int, is_topic: bool, credit: int) -> None:
        door = self._door(who)
        if len(door.consumers) < 4:
            topic = self.tiers.topic if is_topic else 0
            door.open_consumer(credit, door.subscribe(topic) if is_topic else 0, topic)

    def _close(self, who: int, unseen: int) -> None:
        taken = self._consumer(who)
        if taken is not None and not taken.subscription:
            self._door(who).close_consumer(taken, max(0, taken.delivered - unseen))

    def _claim(self, deaf: int) -> None:
        """A new primary; client managers hear of it at once or, one of them, later."""
        self.tiers.change_primary()
        for at, door in enumerate(self.tiers.doors):
            if at != deaf:
                self.tiers.tell_primary(door)

    def _fence(self, who: int) -> None:
        self.tiers.fence(self._door(who))

    def end_well(self) -> None:
        """The network heals, everybody hears who leads, and has credit."""
        tiers = self.tiers
        tiers.network.heal()
        for door in tiers.doors:
            tiers.tell_primary(door)
        tiers.run_ms(5_000)
        check_nobody_with_credit_lacks_anything(self)
        for door in tiers.doors:
            door.open_consumer(10_000)
            for taken in door.consumers.values():
                door.grant(taken, 10_000)
        tiers.run_ms(3_000)


def consumers_of(story: Story) -> list[Taken]:
    return [taken for door in story.tiers.doors for taken in door.consumers.values()]


def check_nobody_with_credit_lacks_anything(story: Story) -> None:
    """Nothing has happened for a while: whoever may be given something has been given what there is."""
    tiers = story.tiers
    consumers = consumers_of(story)
    assert not [taken for taken in consumers if taken.is_gone or not taken.is_open]
    held = {number for taken in consumers if not taken.subscription for number in taken.held}
    if any(taken.delivered < taken.credit and not taken.subscription for taken in consumers):
        missing = [number for number in tiers.live() if number not in held]
        assert not missing, f"in the queue and with nobody: {missing[:5]}"
    directory = tiers.channel.manager.state.directory
    topic = directory.get(tiers.topic)
    assert topic is not None
    for taken in consumers:
        subscription = directory.subscription(taken.subscription)
        if subscription is not None and taken.delivered < taken.credit:
            lacking = set(subscription.needs(topic.live).numbers()) - taken.held
            assert not lacking, f"subscription {subscription.id} lacks {sorted(lacking)[:5]}"


@given(st.integers(0, 2**32), BAD, BAD, BAD, STEPS)
def test_with_one_primary_everything_is_handed_over_once(
    seed: int, lost: int, doubled: int, delayed: int, steps: list[Step]
) -> None:
    note(f"{seed=} {lost=} {doubled=} {delayed=}")
    story = Story(seed, lost, doubled, delayed)
    story.tell([step for step in steps if step[0] not in ("claim", "fence")])
    story.end_well()
    check_nobody_with_credit_lacks_anything(story)
    assert story.tiers.redelivered_while_held == 0
    for door in story.tiers.doors:
        for taken in door.consumers.values():
            numbers = [number for number, is_redelivered in taken.seen if not is_redelivered]
            if taken.subscription:
                assert numbers == sorted(set(numbers)), "in the order of the stream, once each"


@given(st.integers(0, 2**32), BAD, BAD, BAD, STEPS)
def test_whatever_happens_to_primaries_and_client_managers_nothing_stalls(
    seed: int, lost: int, doubled: int, delayed: int, steps: list[Step]
) -> None:
    note(f"{seed=} {lost=} {doubled=} {delayed=}")
    story = Story(seed, lost, doubled, delayed)
    story.tell(steps)
    story.end_well()
    check_nobody_with_credit_lacks_anything(story)


@given(st.integers(0, 2**32), STEPS)
def test_a_failover_hands_out_nothing_that_a_living_consumer_holds(seed: int, steps: list[Step]) -> None:
    """On a network that only takes its time, primaries change, and all client managers hear of it."""
    note(f"{seed=}")
    story = Story(seed, 0, 0, 0)
    story.tell([("claim", 9) if step[0] == "claim" else step for step in steps if step[0] != "fence"])
    story.end_well()
    check_nobody_with_credit_lacks_anything(story)
    assert story.tiers.redelivered_while_held == 0
