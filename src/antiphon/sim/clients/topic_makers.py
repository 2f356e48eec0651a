"""Topic makers: rude producers that make topics, publish to them, and delete some of them again."""

from __future__ import annotations

from antiphon.sim.clients.queues import RudeProducer
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, ConfirmItem, DeleteDestination


class RudeTopicMaker(RudeProducer):
    """Publishes its share to one topic after the other; `towns` are the beginnings of their names."""

    def __init__(
        self, client: RudeClient, town: str, share: int, settings: str, *, topics: int, deletes: float
    ) -> None:
        super().__init__(client, f"topic:{town}.0", share, settings)
        self._town = town
        self._made = 0
        self._topics = topics
        self._deletes = deletes
        # A topic ends when so much of the share is left.
        self._each = max(1, share // topics)
        self._share = share

    def on_settled(self, item: ConfirmItem) -> None:
        super().on_settled(item)
        self._look_at_next()

    def _look_at_next(self) -> None:
        """Go to the next topic, when enough was published to this one and everything has its outcome."""
        is_due = self._share - self._publishing.left >= self._each * (self._made + 1)
        if not self.is_ready or self.has_unconfirmed or not is_due or self._made + 1 >= self._topics:
            return
        if self.chance.random() < self._deletes:
            self.is_ready = False
            account = self.account
            wish = DeleteDestination(destination=account.destination)
            pause_ns = self.chance.randrange(20 * MILLISECOND_NS)
            life, session = self.client.life, self.id

            def delete() -> None:
                if (self.client.life, self.id) == (life, session):
                    self.order(account.channel, CommandKind.DELETE, wish.encode(), 1, lambda _: self._go())

            self.world.after(pause_ns, delete)
        else:
            self._go()

    def _go(self) -> None:
        """Make the next topic."""
        self._made += 1
        self.account.name = f"topic:{self._town}.{self._made}"
        self.account.destination = 0
        self.is_ready = False
        self._find(0)
