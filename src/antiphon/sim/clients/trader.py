"""Trader: takes money from accounts and puts it into others, in transactions, by the core of the library.

A trader has consumers at some accounts; at an account that is a topic, by a durable subscription of the
trader's own. A transfer takes a few messages that have arrived, sends as much
money in others to accounts of any channel, and then commits; or it rolls back on purpose, or its process
dies. A transfer within one channel is committed there, a transfer over several by the client manager. When
the bank closes, a trader takes money out and puts it nowhere.

A trader closes some of its consumers in the middle of a transfer: such a consumer gives back what the trader
has not taken, and stays until the transfer has ended.

A trader does what the library's faces do with the core: parts count the batches that have left, a commit is
asked for when all of them have left on the current connection, and the outcome may be learned on a later one.
Consumers come back by themselves, with the messages that they hold.

A rude trader does not always let them. A rude trader rolls back the transfer that was open when the
connection was lost, or its consumers begin anew and the transfer goes on: then the messages taken may be with
another client, and only one of both can commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from antiphon.batch import Batch
from antiphon.client.core.client import NEVER_NS
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.outcomes import subscription_error
from antiphon.client.core.publication import HEAD_BYTES, Departure, Publication
from antiphon.client.core.session import QUEUE
from antiphon.client.core.transaction import RowNumbers, TakenMessages, TransactedPart, TransactionCore
from antiphon.errors import LocalError, TransactionRolledBack
from antiphon.sim.checkers.bank import Key, Money, amount_of
from antiphon.sim.clients.bank import Branch, Coins
from antiphon.sim.clients.library import AlwaysAwaited, LibraryClient
from antiphon.sim.clients.rude import AGAIN_NS, Account
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import ConfirmItem, OutcomeCode, StartKind, Subscribe
from antiphon.wire.frames import AckMode, DestinationOpened, RangePage, TransactionDecided
from antiphon.wire.range_frames import decode_page
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import CommitTransaction, RollBackTransaction

_STORED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)
_UNKNOWN = (OutcomeCode.STALE, OutcomeCode.SESSION_UNKNOWN, OutcomeCode.GAP, OutcomeCode.FORGOTTEN)


class TransactedChunk(Publication):
    """Money that leaves in a transaction."""

    __slots__ = ("_first_row", "_left", "money", "part")

    def __init__(
        self,
        part: TransactedPart,
        money: Sequence[Money],
        first_row: int,
        opened: DestinationOpened,
        now_ms: int,
        left: Callable[[TransactedChunk], None],
    ) -> None:
        bodies = [one.body for one in money]
        super().__init__(
            bodies,
            HEAD_BYTES + sum(map(len, bodies)),
            AlwaysAwaited(),
            destination=opened.destination,
            settings_version=opened.settings_version,
            timestamp_ms=now_ms,
            deadline_ns=NEVER_NS,
        )
        self.part = part
        self.money = money
        self._first_row = first_row
        self._left = left

    @property
    def is_wanted(self) -> bool:
        return not self.part.is_over

    def leave(self, session: int, generation: int, number: int, confirmed_through: int) -> Departure | None:
        batch = self.build(session, self._first_row)
        if batch is None:
            return None
        self._left(self)
        return self.part.enclose(self, batch, session, generation, number, confirmed_through)


class Trader(LibraryClient):
    """Moves money between accounts, one transfer after the other."""

    ack_mode = AckMode.TRANSACTED

    def __init__(self, name: str, branch: Branch, counters: Sequence[int], *, is_rude: bool) -> None:
        super().__init__(name, branch.hall, branch.habits)
        self.manners = branch.manners
        self.bank = branch.bank
        self._is_rude = is_rude
        self._coins = Coins(self)
        self._accounts = branch.own_accounts()
        self._places: list[DestinationOpened] = []
        self._is_looking = False
        # At which accounts the trader consumes; and its consumers there that are not being closed.
        self._at = counters
        self._consumers: dict[int, ConsumerCore] = {}
        # At which topics the session knows its subscription.
        self._subscriptions: dict[int, int] = {}
        self._opening: set[int] = set()
        self._closing: set[int] = set()
        # Closed in this transfer, and there until it ends.
        self._retired: dict[int, ConsumerCore] = {}
        self._retiring = self.world.random(f"retiring/{name}")
        self._rows = RowNumbers()
        # A transfer is under way up to the moment at which its outcome is known and carried out.
        self._is_busy = False
        self._is_committing = False
        # The client manager decides over several channels.
        self._is_across = False
        self._transaction = TransactionCore(1)
        self._to_send: deque[tuple[int, int]] = deque()
        self._withdrawn = 0
        # Messages taken by consumers that are no more.
        self._orphaned: list[TakenMessages] = []
        self._to_return = 0
        self._transfers = self.manners.transfers

    @property
    def is_idle(self) -> bool:
        if self.session is None:
            return False
        buffered = any(consumer.buffered for consumer in self._consumers.values())
        return self.is_ready and not self._is_busy and not buffered and self.session.is_idle

    @property
    def waits_for(self) -> str:
        return f"transaction {self._transaction.number}, busy {self._is_busy}, ready {self.is_ready}"

    @property
    def _key(self) -> Key:
        return self.live[1].session, self._transaction.number

    def _probe(self, what: str) -> None:
        self.world.probe(f"{'rude_trader' if self._is_rude else 'trader'}.{what}")

    # Living and dying.

    def forget_session(self) -> None:
        if self._is_committing:
            self._probe("left_uncertain")
        super().forget_session()
        self._places = []
        self._is_looking = False
        self._consumers.clear()
        self._retired.clear()
        self._subscriptions.clear()
        self._opening.clear()
        self._closing.clear()
        self._rows = RowNumbers()
        self._end_transfer(TransactionCore(1))

    def pause(self) -> None:
        super().pause()
        is_whole = self.session is not None and self.is_ready and not self._opening
        if self._is_rude and is_whole and self.chance.random() >= self.manners.keep_probability:
            self._abandon_consumers()

    def _abandon_consumers(self) -> None:
        """On the next connection consumers begin anew; messages taken before stay with the transfer."""
        _, session = self.live
        self._probe("left_its_consumers")
        self._orphaned += session.take_consumed()
        for consumer in (*self._consumers.values(), *self._retired.values()):
            session.forget_consumer(consumer.consumer)
        self._consumers.clear()
        self._retired.clear()

    def on_resumed(self) -> None:
        if not self.is_ready:
            return
        for at in self._at:
            if at in self._consumers or at in self._retired:
                self._probe("consumer_came_back")
            elif at not in self._closing:
                self._attach(at)
        if self._is_committing and self._is_across:
            # The core asks what became of the commit.
            self._probe("asked")
        if not self._is_rude or not self._is_busy or self._is_committing or self._to_return:
            return
        if self.chance.random() < self.manners.go_on_probability:
            self._probe("went_on")
        else:
            self._roll_back()

    def _look_at(self, data: bytes) -> None:
        """Nothing: each kind of command tells the bank what leaves."""

    # Accounts: each is made in its channel, opened for the session and, if it is a topic, subscribed to.

    def on_session(self) -> None:
        self._find_accounts()

    def _find_accounts(self) -> None:
        core, _ = self.live
        if len(self._places) == len(self._accounts):
            self.is_ready = True
            for at in self._at:
                self._attach(at)
            self._plan()
            return
        account = self._accounts[len(self._places)]
        request = core.create_destination(account.name, account.settings)
        self.when_answered(request, partial(self._on_made, account))

    def _on_made(self, account: Account, reply: object) -> None:
        if not isinstance(reply, DestinationOpened):
            self.later(AGAIN_NS, self._find_accounts)
            return
        core, session = self.live
        request = core.open_destination(
            account.name, create=False, session=session.session, channel=account.part
        )
        self.when_answered(request, self._on_opened)

    def _on_opened(self, reply: object) -> None:
        if not isinstance(reply, DestinationOpened):
            self.later(AGAIN_NS, self._find_accounts)
            return
        at = len(self._places)
        self._places.append(reply)
        if at in self._at and self._accounts[at].is_topic:
            self._subscribe(at)
        else:
            self._find_accounts()

    def _subscribe(self, at: int) -> None:
        """Begin the subscription of this trader, or find the one that a former session began."""
        place = self._places[at]
        wish = Subscribe(
            destination=place.destination,
            durable=True,
            shared=False,
            name=f"{self.name}.{at}",
            client_id="",
            start=StartKind.LATEST,
            number=0,
        )
        self.live[1].outbox(place.channel).order(wish, partial(self._on_subscribed, at))

    def _on_subscribed(self, at: int, outcomes: list[ConfirmItem]) -> None:
        (outcome,) = outcomes
        if subscription_error(outcome) is not None:
            self.reopen()
            return
        self._probe("subscribed" if outcome.code == OutcomeCode.APPLIED else "found_its_subscription")
        self._subscriptions[at] = outcome.sequence
        self._find_accounts()

    def _attach(self, at: int) -> None:
        self._opening.add(at)
        opened = partial(self._opening.discard, at)
        name, subscription = self._accounts[at].name, self._subscriptions.get(at, QUEUE)
        self._consumers[at] = self.open_consumer(name, self._places[at], opened, subscription)

    def _look(self) -> None:
        """Ask for everything that a queue holds."""
        self._is_looking = True
        place = self.chance.choice(self._places)
        request = self.live[0].browse(place, 1, self.chance.choice((1, 1_000_000)))
        self.when_answered(request, partial(self._on_page, place))

    def _on_page(self, place: DestinationOpened, frame: object) -> None:
        self._is_looking = False
        if isinstance(frame, RangePage):
            page = decode_page(frame.page)
            for piece in page.pieces:
                for row, body in enumerate(Batch.decode(piece.batch).bodies()):
                    self.bank.on_delivered(place.channel, piece.first + row, body)
            self.bank.on_shown(place.channel, place.destination, page.through)

    # A transfer, step by step.

    def _plan(self) -> None:
        self.later(1 + self.idle_pause_ns(self.chance, self.manners.pause_ns), self._begin)

    def _begin(self) -> None:
        if self._is_busy:
            return
        chance, is_closing = self.chance, self.manners.is_closing
        if chance.random() < self.manners.look_probability and not self._is_looking:
            self._look()
        for consumer in self._consumers.values():
            if not consumer.prefetch_messages and not consumer.buffered:
                self.ask(consumer)
        filled = [one for one in self._consumers.values() if one.buffered]
        if filled:
            # Whether its messages are still its own the trader knows for a moment only.
            self.looked_in_vain = 0
        rich = [one for one in filled if self.is_sure(one)]
        if not rich or not (self._transfers or is_closing):
            self._plan()
            return
        self._is_busy = True
        self.looked_in_vain = 0
        self._transfers -= not is_closing
        total = 0
        for consumer in chance.sample(rich, chance.randint(1, len(rich))):
            most = consumer.buffered if is_closing else min(consumer.buffered, self.manners.messages_max)
            total += self._take(consumer, chance.randint(1, most))
        self._withdrawn = total if is_closing else 0
        while total and not is_closing:
            amount = total if chance.random() < 0.5 else chance.randint(1, total)
            self._to_send.append((chance.randrange(len(self._places)), amount))
            total -= amount
        self._close_some()
        self._go_on(self._transaction)

    def _close_some(self) -> None:
        """Close some consumers whose messages the transfer has (CRQ6)."""
        core, session = self.live
        for at, consumer in list(self._consumers.items()):
            is_closed = consumer.held and self._retiring.random() < self.manners.retire_probability
            if is_closed and at not in self._opening:
                self._retired[at] = self._consumers.pop(at)
                self._probe("closed_a_consumer" if consumer.buffered else "closed_an_empty_consumer")
                core.asking.retire(session, consumer)

    def _take(self, consumer: ConsumerCore, count: int) -> int:
        """Take so many messages; their worth."""
        core, session = self.live
        spans = session.take(consumer, count)
        consumer.hold(spans)
        core.asking.leave(session, consumer, self)
        total = 0
        for message in self.taken(consumer, spans):
            body, at = bytes(message.body_bytes), (consumer.channel, session.session, consumer.consumer)
            self.bank.on_delivered(consumer.channel, message.sequence, body)
            self.bank.on_taken(*at, consumer.subscription, message.sequence, message.delivery_count - 1)
            total += amount_of(body)
        return total

    def _go_on(self, ours: TransactionCore) -> None:
        """Send some, or end the transfer one way or another."""
        chance, manners = self.chance, self.manners
        if self._transaction is not ours or self._to_return:
            # The transfer was rolled back meanwhile.
            return
        if ours.fault is not None:
            self._roll_back()
        elif self._to_send:
            self._send(*self._to_send.popleft())
            self.later(chance.randrange(manners.send_pause_ns), partial(self._go_on, ours))
        elif chance.random() < manners.death_probability:
            self._probe("died_before_commit")
            self.crash()
        elif chance.random() < manners.rollback_probability:
            self._probe("rolled_back_on_purpose")
            self._roll_back()
        else:
            self._commit(ours)

    def _send(self, at: int, amount: int) -> None:
        # A message for each piece of it, all in one batch.
        amounts = [amount]
        if amount > 1 and self.chance.random() < 0.3:
            first = self.chance.randint(1, amount - 1)
            amounts = [first, amount - first]
        opened = self._places[at]
        money = [self._coins.coin(opened.destination, one) for one in amounts]
        part = self._transaction.part(opened.channel)
        part.add(len(money), sum(len(one.body) for one in money))
        first_row = self._rows.take(opened.channel, len(money))
        now_ms = self.world.now_ns // MILLISECOND_NS
        chunk = TransactedChunk(part, money, first_row, opened, now_ms, self._on_left)
        self.live[1].submit(opened.channel, chunk)

    def _on_left(self, chunk: TransactedChunk) -> None:
        self.bank.on_sent_within(self._key, chunk.part.channel, chunk.money)

    def on_settled(self, tag: object, outcomes: list[ConfirmItem]) -> None:
        if not isinstance(tag, TransactedChunk):
            super().on_settled(tag, outcomes)
        elif outcomes[0].code not in _STORED and self._transaction.parts.get(tag.part.channel) is tag.part:
            self._probe("doomed")
            self._transaction.doom(LocalError("a batch was not stored"))

    # Its end.

    def _commit(self, ours: TransactionCore) -> None:
        core, session = self.live
        if self._transaction is not ours or self._to_return:
            return
        if ours.fault is not None:
            self._roll_back()
            return
        if not session.is_open or not all(session.outbox(each).has_sent_all for each in ours.parts):
            self.later(MILLISECOND_NS, partial(self._commit, ours))
            return
        taken = session.take_consumed()
        try:
            parts = ours.commitment([*self._orphaned, *taken])
        except TransactionRolledBack:
            self._probe("lost_what_it_took")
            session.hold_again(taken)
            self._roll_back()
            return
        if not parts:
            # The messages taken are with others by now, and nothing was sent.
            self._next()
            return
        self._is_committing, self._is_across = True, len(parts) > 1
        self.bank.on_commit_wished(self._key, [part.channel for part in parts], self._withdrawn)
        if len(parts) == 1:
            (part,) = parts
            wish = CommitTransaction(
                transaction=ours.number, batches=part.batches, messages=part.messages, consumed=part.consumed
            )
            settled = partial(self._on_committed_here, taken)
            session.outbox(part.channel).order(wish, settled, max(1, part.messages))
        else:
            request = core.commit_transaction(session, ours.number, parts)
            self.when_answered(request, partial(self._on_decided, taken))
        ours.end()
        if self.chance.random() < self.manners.death_probability:
            self._probe("died_in_commit")
            self.later(self.chance.randrange(3 * MILLISECOND_NS), self.crash)

    def _on_committed_here(self, taken: list[TakenMessages], outcomes: list[ConfirmItem]) -> None:
        if outcomes[0].code in _UNKNOWN:
            self.reopen()
            return
        is_stored = outcomes[0].code in _STORED
        self._end(taken, TransactionFate.COMMITTED if is_stored else TransactionFate.ROLLED_BACK)

    def _on_decided(self, taken: list[TakenMessages], reply: object) -> None:
        if isinstance(reply, TransactionDecided):
            self._end(taken, reply.fate)
        else:
            # The outcome is unknown; the library tells its application just that.
            self.reopen()

    def _end(self, taken: list[TakenMessages], fate: TransactionFate) -> None:
        self.bank.on_told(self._key, fate)
        self._probe(f"told.{fate.name}")
        self._is_committing = False
        if fate is TransactionFate.ROLLED_BACK:
            self._give_back(taken)
            return
        for consumer, numbers in taken:
            self.bank.finality.settle(consumer.channel, consumer.subscription, numbers)
        self.live[1].release(taken)
        self._next()

    def _roll_back(self) -> None:
        _, session = self.live
        transaction = self._transaction
        transaction.doom(LocalError("it was rolled back"))
        for channel, part in transaction.parts.items():
            if part.batches:
                wish = RollBackTransaction(transaction=transaction.number)
                session.outbox(channel).order(wish, None)
        self._give_back(session.take_consumed())

    def _give_back(self, taken: list[TakenMessages]) -> None:
        """Return the messages taken; when that is confirmed, their consumers begin anew."""
        _, session = self.live
        wishes = session.give_back(taken)
        self._to_return = len(wishes)

        def returned(_: list[ConfirmItem]) -> None:
            self._to_return -= 1
            if not self._to_return:
                self._restart(taken)

        for channel, wish in wishes:
            session.outbox(channel).order(wish, returned)
        if not wishes:
            self._restart(taken)

    def _restart(self, taken: list[TakenMessages]) -> None:
        of_taken = [one.consumer for one in taken]
        for at in [at for at, consumer in self._consumers.items() if consumer in of_taken]:
            self._close(at, self._consumers.pop(at))
        self._next()

    def _close(self, at: int, consumer: ConsumerCore) -> None:
        core, session = self.live
        self._closing.add(at)
        self.when_answered(core.close_consumer(session, consumer), partial(self._on_closed, at))

    def _on_closed(self, at: int, reply: object) -> None:
        self._closing.discard(at)
        self._attach(at)

    def _next(self) -> None:
        while self._retired:
            self._close(*self._retired.popitem())
        self._end_transfer(TransactionCore(self._transaction.number + 1))
        self._plan()

    def _end_transfer(self, following: TransactionCore) -> None:
        self._transaction.end()
        self._transaction = following
        self._is_busy = self._is_committing = False
        self._to_return = 0
        self._to_send.clear()
        self._orphaned.clear()
