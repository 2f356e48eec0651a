"""Sharers: rude subscribers that share subscriptions, durable ones and such as end with the last of them."""

from __future__ import annotations

import random
from collections.abc import Iterable

from antiphon.sim.clients.process import ClientHabits, ClientHall, ClientProcess
from antiphon.sim.clients.queues import RudeSubscriber
from antiphon.sim.clients.rude import RudeClient

SHARING = "Sharing"
"""The name under which a run can leave out the sharers."""

Kinds = tuple[bool, ...]
"""The shared subscriptions of each topic: whether each is durable."""

_MEMBERS = 3


def draw_sharing(chance: random.Random) -> Kinds:
    """In a third of the runs topics have shared subscriptions."""
    return chance.choice(((), (), (), (), (True,), (False,), (True, False)))


def sharers(
    hall: ClientHall, habits: ClientHabits, topics: Iterable[tuple[str, str]], kinds: Kinds
) -> list[ClientProcess]:
    """The sharers of these topics, each with its settings."""
    clients: list[ClientProcess] = []
    for topic, settings in topics:
        for is_durable in kinds:
            # A durable subscription and one that is not may have the same name.
            name = f"crew of {topic}"
            for at in range(_MEMBERS):
                client = RudeClient(f"{'durable' if is_durable else 'passing'}.{topic}.{at}", hall, habits)
                RudeSubscriber(client, topic, settings, name, is_durable=is_durable, is_shared=True)
                clients.append(client)
    return clients
