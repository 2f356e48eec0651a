"""Where new destinations are placed, while several client managers place many and hear of the loads late."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from antiphon.client_manager.loads import DESTINATION_LOAD, Loads

CHANNELS = "abc"
ROUNDS = 60
AT_ONCE = 100
LATE_ROUNDS_MAX = 3


@pytest.mark.parametrize("seed", range(8))
def test_channels_differ_by_no_more_than_what_was_placed_and_not_heard_of(seed: int) -> None:
    """Every client manager has the same view, which is some rounds old, and places up to a hundred names."""
    chance = random.Random(seed)
    views = [Loads(CHANNELS) for _ in range(3)]
    placed: Counter[str] = Counter()
    told = [Counter(placed)]
    for view in views:
        for channel in CHANNELS:
            view.changed(channel, 0)
    for _ in range(ROUNDS):
        for view in views:
            for _ in range(chance.choice((0, AT_ONCE // 2, AT_ONCE))):
                placed[view.place()] += 1
        told.append(Counter(placed))
        late = min(len(told), chance.randint(1, LATE_ROUNDS_MAX))
        for channel in CHANNELS:
            if chance.random() < 0.5:
                for view in views:
                    view.changed(channel, told[-late][channel] * DESTINATION_LOAD)
        apart = max(placed[channel] for channel in CHANNELS) - min(placed[channel] for channel in CHANNELS)
        assert apart <= len(views) * AT_ONCE * (LATE_ROUNDS_MAX + 1), f"seed {seed}: {placed}"
    assert placed.total() > 5_000


def test_a_channel_without_a_primary_is_chosen_only_if_no_channel_has_one() -> None:
    loads = Loads(CHANNELS)
    assert loads.place() == "a", "nothing is known of any"
    loads.changed("b", 10 * DESTINATION_LOAD)
    assert loads.place() == "b", "it is the only one that has told its load"
    loads.served("b", is_served=False)
    assert loads.place() == "c"
    loads.served("b", is_served=True)
    assert loads.place() == "b"
