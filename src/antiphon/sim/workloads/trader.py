"""Trader: takes money from accounts and puts it into others, in transactions.

It has consumers at some accounts. A transfer takes a few messages that have arrived, sends as much money in
others to accounts of any channel, and then commits; or it rolls back on purpose, or its process dies. What is
all in one channel is committed there, what is in several by the client manager.

If the connection is lost while a commit is under way, the next client manager is asked what became of it. If
it is lost before, the transaction is rolled back, or it goes on. Its consumers come again with what they
hold, or begin anew: then what it took may be with somebody else, and only one of them can commit.

When the bank closes, it takes money out and puts it nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from antiphon.batch import Batch
from antiphon.ranges import Ranges
from antiphon.sim.checkers.bank import Money, amount_of
from antiphon.sim.checkers.watch import Begun, Holder
from antiphon.sim.workloads.committer import Committer, Undertaking
from antiphon.sim.workloads.teller import Account, Branch
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, ConfirmItem, OutcomeCode, Return
from antiphon.wire.frames import (
    ConsumerClose,
    ConsumerDrain,
    ConsumerGone,
    ConsumerLost,
    ConsumerOpen,
    ConsumerResume,
    ConsumerResumed,
    Credit,
    Deliver,
    Failed,
    ServerFrame,
)
from antiphon.wire.transaction_frames import TransactionFate, TransactionPart
from antiphon.wire.transactions import (
    CommitTransaction,
    Consumed,
    RollBackTransaction,
    TransactedPublish,
)


@dataclass(slots=True)
class Coin:
    """A message that has arrived."""

    delivery: int
    sequence: int
    body: bytes
    redelivered: int


@dataclass(slots=True)
class Part:
    """What a transaction has in one channel."""

    batches: int = 0
    messages: int = 0


@dataclass(slots=True)
class Transfer(Undertaking):
    """Money that is on its way from some accounts to others."""

    taken: dict[str, list[Coin]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    # What is still to be sent: account and amount.
    to_send: deque[tuple[Account, int]] = field(default_factory=deque)
    # The client manager decides over several channels.
    is_across: bool = False
    # Its consumers are not those that took its messages any more.
    is_orphan: bool = False


class Counter:
    """A consumer at one account."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.consumer = 0
        self.is_attached = False
        self.arrived: deque[Coin] = deque()
        self.delivered = 0
        self.seen_through = 0
        # Without a prefetch: how far it has asked, and is it being drained?
        self.is_asking = False
        self.asked_through = 0
        self.is_draining = False
        # Before its connection was lost it was attached.
        self.may_come_back = False

    def clear(self) -> None:
        """Whatever had arrived comes again, to us or to others."""
        self.is_attached = self.may_come_back = False
        self.arrived.clear()
        self.delivered = self.seen_through = self.asked_through = 0
        self.is_draining = False


class Trader(Committer[Transfer]):
    """Moves money between accounts."""

    def __init__(self, name: str, branch: Branch, counters: Sequence[int]) -> None:
        super().__init__(name, branch)
        self.left = self.manners.transfers
        self._counters = {self.accounts[at].name: Counter(self.accounts[at]) for at in counters}
        self._last_consumer = 0

    @property
    def is_idle(self) -> bool:
        arrived = any(one.arrived for one in self._counters.values())
        return self.under_way is None and not self.has_unconfirmed and not arrived

    @property
    def waits_for(self) -> str:
        words = [f"{len(lane.unconfirmed)} outcomes in {channel}" for channel, lane in self.lanes.items()]
        if self.under_way is not None:
            words.append(f"transaction {self.under_way.number}")
        return ", ".join(words)

    @property
    def names_channels(self) -> bool:
        return self.under_way is not None

    # Living and dying.

    def start(self) -> None:
        keeps = self.chance.random() < self.manners.keep_probability
        if self.under_way is not None and not keeps:
            self.under_way.is_orphan = True
        for counter in self._counters.values():
            if keeps and counter.may_come_back:
                self._come_back(counter)
            else:
                self._attach(counter)
        if self.under_way is None:
            self._plan()
        elif not self.under_way.is_committing:
            self._take_up(self.under_way)

    def stop(self) -> None:
        for counter in self._counters.values():
            counter.may_come_back = counter.may_come_back or counter.is_attached
            counter.is_attached = False

    def resumed(self) -> None:
        transfer = self.under_way
        if transfer is not None and transfer.is_committing and transfer.is_across:
            self.world.probe("trader.asked")
            self.ask_about(transfer)

    def abandoned(self) -> None:
        if self.under_way is not None and self.under_way.is_committing:
            self.world.probe("trader.left_uncertain")
        for counter in self._counters.values():
            counter.clear()
        self._last_consumer = 0
        super().abandoned()

    def _take_up(self, transfer: Transfer) -> None:
        """The connection was lost before we wished to commit."""
        if self.chance.random() < self.manners.go_on_probability:
            self.world.probe("trader.went_on")
            self._go_on()
        else:
            self._roll_back()

    def _plan(self) -> None:
        self.later(self.chance.randrange(1, self.manners.pause_ns), self._begin)

    # Consuming.

    def _attach(self, counter: Counter) -> None:
        counter.clear()
        self._last_consumer += 1
        counter.consumer = self._last_consumer
        counter.is_attached = True
        counter.is_asking = self.is_without_prefetch()
        credit = self.chance.randint(1, self.habits.credit_messages)
        wish = ConsumerOpen(
            request=self.next_request(self._on_attached),
            session=self.session,
            consumer=counter.consumer,
            channel=counter.account.channel,
            destination=counter.account.destination,
            credit_messages=0 if counter.is_asking else credit,
            credit_bytes=self.habits.credit_bytes,
        )
        self.say(wish)

    def _on_attached(self, frame: ServerFrame) -> None:
        if isinstance(frame, Failed):
            self.replace_session()

    def _come_back(self, counter: Counter) -> None:
        """Attach the consumer again, with everything that it holds."""
        self.world.probe("trader.consumer_came_back")
        counter.is_attached = True
        counter.may_come_back = counter.is_draining = False
        credit = self.chance.randint(1, self.habits.credit_messages)
        counter.asked_through = counter.delivered
        wish = ConsumerResume(
            request=self.next_request(lambda frame: self._on_come_back(counter, frame)),
            session=self.session,
            consumer=counter.consumer,
            channel=counter.account.channel,
            destination=counter.account.destination,
            subscription=0,
            credit_messages=counter.delivered + (0 if counter.is_asking else credit),
            credit_bytes=self.habits.credit_bytes,
            delivered_messages=counter.delivered,
            delivered_bytes=0,
            held=_numbers([*self._taken_at(counter), *counter.arrived]),
        )
        self.say(wish)

    def _taken_at(self, counter: Counter) -> list[Coin]:
        """What the transfer that is under way took from a consumer that is still the same."""
        transfer = self.under_way
        is_ours = transfer is not None and not transfer.is_orphan
        return transfer.taken.get(counter.account.name, []) if transfer is not None and is_ours else []

    def _holder(self, counter: Counter) -> Holder:
        connection = self.connection
        return Holder(connection.number if connection else 0, self.session, counter.consumer)

    def _on_come_back(self, counter: Counter, frame: ServerFrame) -> None:
        if not isinstance(frame, ConsumerResumed):
            self.replace_session()
            return
        self._lose_coins(counter, frame.lost)

    def on_consumer_lost(self, frame: ConsumerLost) -> None:
        for counter in self._counters.values():
            if counter.consumer == frame.consumer and counter.is_attached:
                self._lose_coins(counter, frame.lost)

    def _lose_coins(self, counter: Counter, lost: Ranges) -> None:
        """Others have got these. What took some of them, and is not to be committed yet, is rolled back."""
        if not lost:
            return
        self.world.probe("trader.lost_what_it_held")
        counter.arrived = deque(coin for coin in counter.arrived if coin.sequence not in lost)
        transfer = self.under_way
        if transfer is None or transfer.is_committing or transfer.is_orphan:
            return
        taken = transfer.taken.get(counter.account.name, [])
        left = [coin for coin in taken if coin.sequence not in lost]
        if len(left) < len(taken):
            self.world.probe("trader.lost_what_it_took")
            transfer.taken[counter.account.name] = left
            self._roll_back()

    def on_gone(self, frame: ConsumerGone) -> None:
        for counter in self._counters.values():
            if counter.consumer == frame.consumer and counter.is_attached:
                self._attach_soon(counter)

    def _attach_soon(self, counter: Counter) -> None:
        counter.clear()

        def attach() -> None:
            if not counter.is_attached:
                self._attach(counter)

        self.later(MILLISECOND_NS, attach)

    def on_deliver(self, frame: Deliver) -> None:
        counter = next(
            (one for one in self._counters.values() if one.consumer == frame.consumer and one.is_attached),
            None,
        )
        delivery = frame.first_delivery
        for piece in frame.pieces:
            for row, body in enumerate(Batch.decode(piece.batch).bodies()):
                sequence = piece.first_sequence + row
                self.bank.on_delivered(frame.channel, sequence, body)
                if counter is not None:
                    count = piece.redelivery_count
                    self.bank.on_taken(frame.channel, frame.session, frame.consumer, sequence, count)
                    counter.arrived.append(Coin(delivery, sequence, body, count))
                    counter.delivered = delivery
                delivery += 1
        if counter is not None:
            has = [coin.sequence for coin in (*counter.arrived, *self._taken_at(counter))]
            self.watch.on_has(self._holder(counter), frame.channel, has)

    # A transfer, step by step.

    def _begin(self) -> None:
        """Take some of what has arrived, and plan where it goes."""
        if self.under_way is not None:
            return
        if self.chance.random() < self.manners.look_probability:
            self.look_at(self.chance.choice(self.accounts))
        for counter in self._counters.values():
            if counter.is_asking and counter.is_attached and not counter.arrived:
                self._ask(counter)
        rich = [one for one in self._counters.values() if one.arrived]
        is_closing = self.manners.is_closing
        if not rich or not (self.left or is_closing):
            self._plan()
            return
        self.last_transaction += 1
        transfer = self.under_way = Transfer(self.last_transaction)
        if not is_closing:
            self.left -= 1
        total = 0
        for counter in self.chance.sample(rich, self.chance.randint(1, len(rich))):
            most = (
                len(counter.arrived) if is_closing else min(len(counter.arrived), self.manners.messages_max)
            )
            coins = [counter.arrived.popleft() for _ in range(self.chance.randint(1, most))]
            transfer.taken[counter.account.name] = coins
            holder, channel = self._holder(counter), counter.account.channel
            stand = self.stand(self.session, counter.consumer)
            for coin in coins:
                self.watch.on_begun(Begun(holder, channel, 0, coin.sequence, coin.redelivered, stand))
            total += sum(amount_of(coin.body) for coin in coins)
            self._see(counter, coins[-1].delivery)
        if not is_closing:
            while total:
                amount = total if self.chance.random() < 0.5 else self.chance.randint(1, total)
                transfer.to_send.append((self.chance.choice(self.accounts), amount))
                total -= amount
        self._go_on()

    def _see(self, counter: Counter, delivery: int) -> None:
        counter.seen_through = delivery
        if counter.is_asking:
            return
        messages = delivery + len(counter.arrived) + self.chance.randint(1, self.habits.credit_messages)
        self.say(
            Credit(session=self.session, consumer=counter.consumer, messages=messages, bytes=messages << 16)
        )

    def _ask(self, counter: Counter) -> None:
        """Ask for the next message, or for what is there now; or no longer wait for one."""
        if counter.is_draining:
            return
        is_waiting = counter.asked_through > counter.delivered
        counter.asked_through = counter.delivered + 1
        at, through = (self.session, counter.consumer), counter.asked_through
        if self.asking.random() < 0.5:
            if not is_waiting:
                self.say(Credit(session=at[0], consumer=at[1], messages=through, bytes=1 << 60))
            return

        def drained(_: ServerFrame) -> None:
            if (self.session, counter.consumer) == at:
                counter.is_draining = False
                counter.asked_through = counter.delivered

        self.world.probe("trader.drained_waiting" if is_waiting else "trader.drained_at_once")
        counter.is_draining = True
        request = self.next_request(drained)
        self.say(
            ConsumerDrain(request=request, session=at[0], consumer=at[1], messages=through, bytes=1 << 60)
        )

    def _go_on(self) -> None:
        """Send some, or end the transaction one way or another."""
        transfer = self.under_way
        if transfer is None or transfer.is_committing:
            return
        if transfer.to_send:
            self._send(transfer)
            self.later(self.chance.randrange(self.manners.send_pause_ns), self._go_on)
            return
        if self.chance.random() < self.manners.death_probability:
            self.world.probe("trader.died_before_commit")
            self.crash()
        elif self.chance.random() < self.manners.rollback_probability:
            self.world.probe("trader.rolled_back_on_purpose")
            self._roll_back()
        else:
            self._commit(transfer)

    def _send(self, transfer: Transfer) -> None:
        account, amount = transfer.to_send.popleft()
        # A message for each piece of it, all in one batch.
        amounts = [amount]
        if amount > 1 and self.chance.random() < 0.3:
            first = self.chance.randint(1, amount - 1)
            amounts = [first, amount - first]
        money: list[Money] = [self.coin(account, one) for one in amounts]
        channel = account.channel
        part = transfer.parts.setdefault(channel, Part())
        batch = self.transacted(channel, money)
        wish = TransactedPublish(
            transfer.number,
            part.batches,
            len(money),
            account.destination,
            account.settings_version,
            0,
            batch,
        )
        part.batches += 1
        part.messages += len(money)
        self.bank.on_sent_within(self.key, channel, money)
        self.order(channel, CommandKind.TX_PUBLISH, wish.encode())

    # Its end.

    def _commit(self, transfer: Transfer) -> None:
        consumed = self._consumed(transfer)
        channels = sorted({*transfer.parts, *consumed})
        transfer.is_committing = True
        transfer.home = channels[0]
        gone = sum(amount_of(coin.body) for coins in transfer.taken.values() for coin in coins)
        sent = sum(part.messages for part in transfer.parts.values())
        self.bank.on_commit_wished(self.key, channels, 0 if sent else gone)
        if len(channels) > 1:
            transfer.is_across = True
            self._wish_across(transfer, channels, consumed)
        else:
            self._commit_here(transfer, channels[0], consumed)
        if self.chance.random() < self.manners.death_probability:
            self.world.probe("trader.died_in_commit")
            self.world.after(self.chance.randrange(3 * MILLISECOND_NS), self._die(transfer))

    def _die(self, transfer: Transfer) -> Callable[[], None]:
        def die() -> None:
            if self.under_way is transfer:
                self.crash()

        return die

    def _consumed(self, transfer: Transfer) -> dict[str, tuple[Consumed, ...]]:
        consumed: dict[str, tuple[Consumed, ...]] = {}
        for name, coins in sorted(transfer.taken.items()):
            account = self._counters[name].account
            numbers = _numbers(coins)
            consumed[account.channel] = (
                *consumed.get(account.channel, ()),
                Consumed(account.destination, 0, numbers),
            )
        return consumed

    def _commit_here(
        self, transfer: Transfer, channel: str, consumed: dict[str, tuple[Consumed, ...]]
    ) -> None:
        part = transfer.parts.get(channel, Part())
        wish = CommitTransaction(
            transaction=transfer.number,
            batches=part.batches,
            messages=part.messages,
            consumed=consumed.get(channel, ()),
        )
        count = max(1, part.messages)
        self.order(channel, CommandKind.TX_COMMIT, wish.encode(), count, self._on_committed_here)

    def _on_committed_here(self, item: ConfirmItem) -> None:
        is_committed = item.code in (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)
        self.decided(TransactionFate.COMMITTED if is_committed else TransactionFate.ROLLED_BACK)

    def _wish_across(
        self, transfer: Transfer, channels: list[str], consumed: dict[str, tuple[Consumed, ...]]
    ) -> None:
        parts = []
        for channel in channels:
            part = transfer.parts.get(channel, Part())
            parts.append(TransactionPart(channel, part.batches, part.messages, consumed.get(channel, ())))
        self.commit_across(transfer, parts)

    def decided(self, fate: TransactionFate) -> None:
        transfer = self.under_way
        assert transfer is not None, "nobody waits for this"
        self.bank.on_told(self.key, fate)
        self.under_way = None
        if fate is TransactionFate.ROLLED_BACK:
            self._give_back(transfer)
        if self.is_ready:
            self._plan()

    def _roll_back(self) -> None:
        """Drop what was sent, and give back what was taken."""
        transfer = self.under_way
        assert transfer is not None, "there is nothing to roll back"
        for channel in transfer.parts:
            wish = RollBackTransaction(transaction=transfer.number)
            self.order(channel, CommandKind.TX_ROLLBACK, wish.encode())
        if transfer.parts:
            self.bank.on_told(self.key, TransactionFate.ROLLED_BACK)
        self.under_way = None
        self._give_back(transfer)
        self._plan()

    def _give_back(self, transfer: Transfer) -> None:
        """Everything comes again in its order: to consumers that begin anew."""
        if transfer.is_orphan:
            return
        for name, coins in transfer.taken.items():
            counter = self._counters[name]
            account = counter.account
            if coins:
                back = Return(
                    destination=account.destination, subscription=0, counted=True, ranges=_numbers(coins)
                )
                self.order(account.channel, CommandKind.RETURN, back.encode())
            if counter.is_attached:
                self._close(counter)

    def _close(self, counter: Counter) -> None:
        seen, consumer = counter.seen_through, counter.consumer
        counter.clear()
        wish = ConsumerClose(
            request=self.next_request(lambda frame: self._on_closed(counter)),
            session=self.session,
            consumer=consumer,
            seen_through=seen,
        )
        self.say(wish)

    def _on_closed(self, counter: Counter) -> None:
        if not counter.is_attached and self.is_ready:
            self._attach(counter)


def _numbers(coins: Iterable[Coin]) -> Ranges:
    return Ranges((number, number + 1) for number in sorted(coin.sequence for coin in coins))
