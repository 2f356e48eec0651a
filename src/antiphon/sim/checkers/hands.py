"""Messages that applications have, and messages that they asked for.

    I30 others    an application works on a message that another began before only if `redelivered` is set
    I31 twice     no consumer has two copies of a message that it neither acknowledged nor gave back
    I32 asked     a consumer is sent no more than its client gave it credit for
        drained   after a client was told that a consumer is drained, nothing follows before new credit
        one       a consumer without a prefetch, whose client acknowledges before it asks, has one message

A message in a client's buffer may be given to others while its client manager is asleep, cut off or taken for
dead, and the client cannot be told. But once the client manager has registered its consumers again, and the
client has heard anything since, the client has been told. So I30 is compared with what the client manager
knew when it sent the last frame that the client received. Credit counts from the step in which the client
manager receives it.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.bus.messages import BusMessage, Deliver, Register, Registered
from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Begun, Checker, PortConsumer, Stand
from antiphon.sim.world import World

Owner = tuple[int, int]
"""A consumer on one connection after the other: its session, and its number there."""


class Hands(Checker):
    """Compares the primaries' deliveries with the messages that applications work on."""

    promise = "I30 hands"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._clock = 0
        # When a message of a queue was last given to each consumer; when a registration was answered first.
        self._given: dict[tuple[str, int], dict[Owner, int]] = {}
        self._registered: dict[tuple[str, Stand], int] = {}
        # The consumers whose application has begun to work on a message.
        self._workers: dict[tuple[str, int], dict[Owner, None]] = {}

    def given(self, channel: str, number: int, owner: Owner) -> None:
        self._clock += 1
        self._given.setdefault((channel, number), {})[owner] = self._clock

    def registered(self, channel: str, stand: Stand) -> None:
        """A primary answers a registration; its earlier deliveries to others are known to be lost."""
        self._clock += 1
        self._registered.setdefault((channel, stand), self._clock)

    def on_begun(self, begun: Begun) -> None:
        holder, channel, subscription, number, redelivered, stand = begun
        if subscription:
            return
        owner = holder.session, holder.consumer
        workers = self._workers.setdefault((channel, number), {})
        others = [one for one in workers if one != owner]
        workers[owner] = None
        if others:
            self.world.probe("hands.worked_on_again")
        if redelivered or not others:
            return
        given = self._given[channel, number]
        ours = given[owner]
        told = 0 if stand is None else self._registered.get((channel, stand), 0)
        for other in others:
            if given[other] < ours:
                self.fail(f"{number} of {channel} came to {owner} without a mark, behind {other}")
            if given[other] < told:
                self.fail(
                    f"{owner} works on {number} of {channel}, which {other} got, and could have been told"
                )
            self.world.probe("hands.could_not_know")


class GivenOut(Checker):
    """Tells `Hands` the messages of the primaries of one channel."""

    promise = "I30 hands"
    hears = (Deliver, Register, Registered)

    def __init__(self, world: World, channel: str, hands: Hands) -> None:
        super().__init__(world)
        self._channel = channel
        self._hands = hands
        # By client manager and key.
        self._owners: dict[tuple[int, int], Owner] = {}

    def on_sent(self, node: int, message: BusMessage) -> None:
        match message:
            case Register():
                self._owners[node, message.consumer] = message.session, message.number
            case Registered() if not message.code:
                self._hands.registered(self._channel, Stand(message.consumer, message.term, message.stream))
            case Deliver():
                for target in message.targets:
                    for taker in target.takers:
                        owner = self._owners[target.node, taker.consumer]
                        for piece in message.pieces:
                            for number in piece.sequences:
                                self._hands.given(self._channel, number, owner)


class OneCopy(Checker):
    promise = "I31 one copy"

    def on_has(self, holder: PortConsumer, channel: str, numbers: Sequence[int]) -> None:
        seen: set[int] = set()
        for number in numbers:
            if number in seen:
                self.fail(f"{holder} has {number} of {channel} twice")
            seen.add(number)


class Asked(Checker):
    """Counts each consumer's credit and the messages sent to it."""

    promise = "I32 asked"

    def __init__(self, world: World, *, is_one_by_one: bool) -> None:
        super().__init__(world)
        # Do clients acknowledge their messages before they ask for more?
        self._is_one_by_one = is_one_by_one
        self._asked: dict[PortConsumer, int] = {}
        self._sent: dict[PortConsumer, int] = {}
        # By consumer without a prefetch, on any connection: messages sent and not acknowledged.
        self._ones: set[tuple[int, int]] = set()
        self._has: dict[PortConsumer, Ranges] = {}
        # By session: messages acknowledged or given back, and not delivered again since.
        self._done: dict[int, Ranges] = {}

    def on_credit(self, node: int, holder: PortConsumer, through: int, sent: int | None) -> None:
        if sent is None:
            # A client that has not heard of its consumer's end yet goes on asking.
            if holder in self._asked:
                self._asked[holder] = max(self._asked[holder], through)
            return
        self._asked[holder], self._sent[holder] = through, sent
        if not through:
            self._ones.add((holder.session, holder.consumer))
        if (holder.session, holder.consumer) in self._ones:
            self._has[holder] = Ranges()

    def on_drained(self, node: int, holder: PortConsumer) -> None:
        if holder in self._asked:
            is_unused = self._asked[holder] > self._sent[holder]
            self.world.probe("asking.drained_unused" if is_unused else "asking.drained_used")
            self._asked[holder] = self._sent[holder]

    def on_sent_through(self, node: int, holder: PortConsumer, delivery: int) -> None:
        asked = self._asked.get(holder)
        if asked is None:
            # The consumer was closed in the same step.
            return
        self._sent[holder] = delivery
        if delivery > asked:
            self.fail(f"{holder} was sent message {delivery}, and its client asked for {asked}")

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        has = self._has.get(holder)
        self._done.setdefault(holder.session, Ranges()).remove(sequence, sequence + count)
        if has is None or not self._is_one_by_one:
            return
        has.add(sequence, sequence + count)
        self.world.probe("asking.one_by_one")
        if has.count > 1:
            self.fail(f"{holder} asks for one message at a time, and has {has} unacknowledged")

    def on_kept(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        if holder in self._has:
            # While the answer was under way, the client may have acknowledged or returned its messages.
            self._has[holder].add_all(numbers.difference(self._done.get(holder.session, Ranges())))

    def on_acknowledged(self, session: int, number: int, subscription: int, ranges: Ranges) -> None:
        self._remove(session, ranges)

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        self._remove(session, numbers)

    def on_lost_told(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        if holder in self._has:
            self._has[holder].remove_all(numbers)

    def on_holder_gone(self, node: int, holder: PortConsumer) -> None:
        for known in (self._asked, self._sent, self._has):
            known.pop(holder, None)

    def _remove(self, session: int, numbers: Ranges) -> None:
        self._done.setdefault(session, Ranges()).add_all(numbers)
        for holder, has in self._has.items():
            if holder.session == session:
                has.remove_all(numbers)
