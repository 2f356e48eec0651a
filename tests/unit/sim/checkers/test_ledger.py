"""The ledger of a channel sees what it is there to see, in histories with one thing wrong."""

from __future__ import annotations

import pytest

from antiphon.message_manager.state.transactions import OpenPart
from antiphon.ranges import Ranges
from antiphon.sim.checkers.bank import Bank, Money
from antiphon.sim.checkers.ledger import ChannelLedger
from antiphon.sim.image import Image
from antiphon.sim.world import Violation, World
from antiphon.wire.transactions import Consumed
from tests.planted.catalogue import planted
from tests.unit.message_manager.channel import SESSION, Channel, Client, finish, forget

NODE, DOOR, OTHER_DOOR = 1, 1, 2
KEY = (SESSION, 1)


class Log:
    """A channel with a queue and a session; everything is shown to the ledger."""

    def __init__(self) -> None:
        world = World(1)
        self.bank = Bank(world)
        self.ledger = ChannelLedger(world, "a", self.bank)
        self.ledger.on_started(NODE, Image(), 0)
        self.channel, self.client = Channel(begin=False), Client()
        self.claim()
        self.channel.open_producer(DOOR)
        self.show()
        self.order(self.client.open())
        self.queue = self.channel.create("q")
        self.show()

    @property
    def term(self) -> int:
        return self.channel.manager.term

    def show(self) -> None:
        entry, payload = self.channel.log[-1]
        self.ledger.on_applied(NODE, entry, None if payload is None else memoryview(payload))
        self.ledger.on_folded(NODE, entry, self.channel.manager.state)

    def order(self, *commands: bytes) -> None:
        self.channel.order(*commands)
        self.show()

    def claim(self) -> None:
        self.channel.claim(NODE)
        self.show()

    def fence(self, door: int) -> None:
        self.channel.fence(door, self.term)
        self.show()

    def send(self) -> None:
        self.order(self.client.tx_publish(self.queue, [b"coin:1"]))

    def decide(self) -> None:
        """To commit, with a participant elsewhere."""
        self.bank.on_sent_within(KEY, "a", [Money(self.queue, b"coin:1")])
        self.bank.on_commit_wished(KEY, ["a", "other"])
        self.bank.promised(KEY, "other")
        self.send()
        self.order(self.client.decide(1, 1))


def test_what_was_open_is_rolled_back_by_a_fence_and_by_a_claim() -> None:
    log = Log()
    log.send()
    log.fence(DOOR)
    log.channel.open_producer(DOOR)
    log.show()
    log.order(log.client.resume(2))
    log.send()
    log.claim()


def test_a_part_that_stays_open_behind_a_fence_is_seen() -> None:
    log = Log()
    log.send()
    with (
        planted("open-survives-fence"),
        pytest.raises(Violation, match="has a part open in a, and 1 was fenced"),
    ):
        log.fence(DOOR)


def test_a_part_that_is_open_at_another_client_manager_is_none_of_the_fence() -> None:
    log = Log()
    log.channel.open_producer(OTHER_DOOR)
    log.show()
    log.send()
    log.fence(OTHER_DOOR)
    assert log.channel.manager.state.transactions.open


def test_a_part_that_stays_open_behind_a_claim_is_seen() -> None:
    log = Log()
    log.channel.claim(NODE)
    log.channel.manager.state.transactions.open[SESSION] = OpenPart(1)
    with pytest.raises(Violation, match="behind a claim"):
        log.show()


def test_a_decision_is_kept_beyond_the_end_of_its_session_until_it_is_forgotten() -> None:
    log = Log()
    log.decide()
    log.order(log.client.close())
    log.bank.committed(KEY, "other", 9, 0, is_home=False)
    log.order(forget(*KEY))
    log.order(Client(0xB2).open())


def test_a_decision_that_goes_with_its_session_is_seen() -> None:
    log = Log()
    log.decide()
    with planted("decision-ends-with-session"), pytest.raises(Violation, match="let go of its decision"):
        log.order(log.client.close())


def with_subscriptions() -> Log:
    """A channel whose topic has two subscriptions, and a part to be committed there."""
    log = Log()
    topic = log.channel.create_topic("t")
    log.show()
    for name in ("one", "two"):
        log.order(log.client.subscribe(topic, name))
    log.bank.on_sent_within(KEY, "a", [Money(topic, b"coin:5")])
    log.bank.on_commit_wished(KEY, ["a"])
    log.order(log.client.tx_publish(topic, [b"coin:5"]))
    return log


def test_a_committed_message_is_worth_its_amount_in_every_subscription() -> None:
    log = with_subscriptions()
    log.order(log.client.tx_commit(1, 1))
    with pytest.raises(Violation, match="5 was paid in, and 0 taken out"):
        log.bank.at_quiet({})


def test_a_committed_message_that_a_subscription_lacks_is_seen() -> None:
    log = with_subscriptions()
    log.channel.order(log.client.tx_commit(1, 1))
    (topic,) = log.channel.manager.state.directory.topics
    first, _ = topic.subscriptions.values()
    first.acknowledge(first.needs(first.topic.live))
    with pytest.raises(Violation, match=rf"was stored, and is not in \[\({first.id}, "):
        log.show()


def test_a_message_of_a_topic_that_nobody_committed_is_seen() -> None:
    log = with_subscriptions()
    log.channel.order(log.client.tx_commit(1, 1))
    log.ledger.on_applied(NODE, log.channel.log[-1][0], None)
    with pytest.raises(Violation, match="and no command says so"):
        log.ledger.on_folded(NODE, log.channel.log[-1][0], log.channel.manager.state)


def test_messages_of_a_subscription_that_are_shown_out_of_order_are_seen() -> None:
    bank = Bank(World(1))
    bank.on_taken("a", SESSION, 1, 7, 20, 0)
    bank.on_taken("a", SESSION, 1, 7, 19, 1)
    with pytest.raises(Violation, match="19 is shown behind 20"):
        bank.on_taken("a", SESSION, 1, 7, 19, 0)


class HeldQueue(Log):
    """A queue with one message, for a transaction or for a holder that consumes the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = Client(0xC3)
        self.order(self.holder.open())
        self.bank.on_deposit("a", SESSION, self.client.number, [Money(self.queue, b"coin:3")])
        self.order(self.client.publish(self.queue, [b"coin:3"]))
        self.coin = self.channel.heard

    @property
    def numbers(self) -> Ranges:
        return Ranges([(self.coin, self.coin + 1)])

    def lock(self) -> None:
        """Prepare a transaction that acknowledges the message, and decide elsewhere that it commits."""
        self.bank.on_commit_wished(KEY, ["home", "a"], withdrawn=3)
        self.order(self.client.prepare(0, 0, Consumed(self.queue, 0, self.numbers)))
        self.bank.decided(KEY, True, ["a"])
        self.bank.committed(KEY, "home", 9, 0, is_home=True)

    def hold(self, position: int, heard: int | None = None) -> bytes:
        return self.holder.hold("collector", position, self.queue, consumes=True, heard=heard)


def test_what_the_position_of_a_hold_has_passed_is_taken_out() -> None:
    log = HeldQueue()
    log.order(log.hold(log.coin))
    log.order(log.hold(log.coin + 1))
    log.bank.at_quiet({})


@pytest.mark.parametrize("heard", [0, None], ids=["outdated", "locked"])
@pytest.mark.parametrize("passed", [0, 1])
def test_what_goes_behind_a_hold_that_was_refused_went_by_its_transaction(
    passed: int, heard: int | None
) -> None:
    """FINISH comes behind the HOLD in one envelope."""
    log = HeldQueue()
    log.order(log.holder.release("collector", 0))
    log.lock()
    log.order(log.hold(log.coin + passed, heard), finish(*KEY, commits=True))
    log.bank.at_quiet({})


def test_a_message_that_goes_by_a_hold_that_was_refused_is_seen() -> None:
    log = HeldQueue()
    log.order(log.holder.release("collector", 0))
    log.channel.order(log.hold(log.coin + 1, heard=0))
    source = log.channel.manager.state.directory.source(log.queue, 0)
    assert source is not None and source.acknowledge(log.numbers)
    with pytest.raises(Violation, match="are gone, and no command says so"):
        log.show()


def test_a_locked_message_that_was_consumed_under_a_hold_is_seen() -> None:
    log = HeldQueue()
    log.lock()
    # With its locks, the hold would be refused.
    del log.channel.manager.state.transactions.locks[log.queue]
    log.order(log.hold(log.coin))
    with pytest.raises(Violation, match="was consumed under a hold, and a transaction has it"):
        log.order(log.hold(log.coin + 1))
