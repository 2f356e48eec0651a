"""LibraryTrader: a trader around the pure core of the client library.

It does what the library's faces do with the core: parts count what has left, a commit is asked for when all
of it has left on the connection that there is, and what became of it is learned from whichever connection
there is then. Consumers come back by themselves, with what they hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from antiphon.client.core.client import NEVER_NS
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.events import (
    Answered,
    Arrived,
    CreditReturned,
    Refused,
    SessionEnded,
    Settled,
    Welcomed,
)
from antiphon.client.core.events import ConsumerEnded as ConsumerClosed
from antiphon.client.core.publication import HEAD_BYTES, Chunk, Departure
from antiphon.client.core.transaction import RowNumbers, TakenMessages, TransactedPart, TransactionCore
from antiphon.errors import LocalError, TransactionRolledBack
from antiphon.sim.checkers.bank import Key, Money, amount_of
from antiphon.sim.workloads.library import LibraryClient, Ticket, ask
from antiphon.sim.workloads.teller import AGAIN_NS, Account, Branch
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from antiphon.wire.frames import AckMode, DestinationOpened, SessionOpened, TransactionDecided
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import CommitTransaction, RollBackTransaction

_STORED = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)
_UNKNOWN = (OutcomeCode.STALE, OutcomeCode.SESSION_UNKNOWN, OutcomeCode.GAP, OutcomeCode.FORGOTTEN)

Reply = Callable[[object], None]
Outcomes = Callable[[list[ConfirmItem]], None]


class TransactedChunk(Chunk):
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
            Ticket(),
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


class LibraryTrader(LibraryClient):
    """Moves money between accounts by the client library."""

    def __init__(self, name: str, branch: Branch, counters: Sequence[int]) -> None:
        super().__init__(name, branch.hall, branch.habits, "")
        self.manners = branch.manners
        self.bank = branch.bank
        self.is_ready = False
        self._accounts = branch.accounts
        self._at = counters
        self._places: list[DestinationOpened] = []
        self._replies: dict[int, Reply] = {}
        self._consumers: dict[int, ConsumerCore] = {}
        self._rows = RowNumbers()
        self._transaction = TransactionCore(1)
        self._to_send: deque[tuple[int, int]] = deque()
        # A transfer is under way, up to the moment at which its outcome is known and carried out.
        self._is_busy = False
        self._to_return = 0
        self._withdrawn = 0
        self._transfers = self.manners.transfers

    @property
    def is_idle(self) -> bool:
        if self._session is None:
            return False
        buffered = any(consumer.buffered for consumer in self._consumers.values())
        return self.is_ready and not self._is_busy and not buffered and self._session.is_idle

    @property
    def waits_for(self) -> str:
        return f"transaction {self._transaction.number}, busy {self._is_busy}, ready {self.is_ready}"

    @property
    def _key(self) -> Key:
        assert self._session is not None, "a transaction without a session"
        return self._session.session, self._transaction.number

    # Living and dying.

    def _forget_session(self) -> None:
        super()._forget_session()
        self.is_ready = self._is_busy = False
        self._places = []
        self._replies.clear()
        self._consumers.clear()
        self._rows = RowNumbers()
        self._transaction = TransactionCore(1)
        self._to_send.clear()

    def _start_again(self) -> None:
        """Requests without an answer are asked again by the core; what we had planned goes on."""

    def _look_at(self, data: bytes) -> None:
        """The bank is told what leaves by whoever lets it leave."""

    def _later(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do something after a while, in the same session, whichever connection there is then."""
        session = self._session

        def act() -> None:
            if self._session is session and session is not None:
                action()
                self._flush()

        self.world.after(delay_ns, act)

    def _on_event(self, event: object) -> None:
        core = self._core
        if core is None:
            # What came before in the same frame made us begin anew.
            return
        match event:
            case Welcomed():
                if self._session is None:
                    self._replies.clear()
                    core.open_session(AckMode.TRANSACTED)
            case SessionEnded():
                self.world.probe("library.session_ended")
                self._forget_session()
                core.open_session(AckMode.TRANSACTED)
            case Answered(reply=SessionOpened() as opened):
                if self._session is None:
                    self._session = core.sessions[opened.session]
                    self._find_accounts()
            case Answered(request=request, reply=reply):
                self._on_reply(request, reply)
            case Refused(request=request):
                self.world.probe(f"library.refused.{event.error.code}")
                self._on_reply(request, event.error)
            case Settled(tag=TransactedChunk() as chunk, outcomes=outcomes):
                if outcomes[0].code not in _STORED:
                    self._doom(chunk.part)
            case Settled(tag=tag, outcomes=outcomes):
                if callable(tag):
                    tag(outcomes)
            case ConsumerClosed():
                self._reopen()
            case Arrived():
                self._look_at_hands(event.consumer)
            case CreditReturned():
                self._on_credit_returned(event.consumer)

    def _on_reply(self, request: int, reply: object) -> None:
        wanted = self._replies.pop(request, None)
        if wanted is not None:
            wanted(reply)

    # Accounts: each is made in its channel, and then opened for the session.

    def _find_accounts(self) -> None:
        assert self._core is not None and self._session is not None, "accounts without a session"
        if len(self._places) == len(self._accounts):
            self.is_ready = True
            for at in self._at:
                self._attach_at(at)
            self._plan()
            return
        account = self._accounts[len(self._places)]
        wish = f'{{"channel": "{account.channel}"}}'
        request = self._core.create_destination(f"queue:{account.name}", wish)
        self._replies[request] = lambda reply: self._on_made(account, reply)

    def _on_made(self, account: Account, reply: object) -> None:
        assert self._core is not None, "an answer without a connection"
        if self._session is None:
            return
        if not isinstance(reply, DestinationOpened):
            self._later(AGAIN_NS, self._find_accounts)
            return
        name = f"queue:{account.name}"
        request = self._core.open_destination(name, create=False, session=self._session.session)
        self._replies[request] = self._on_opened

    def _on_opened(self, reply: object) -> None:
        if isinstance(reply, DestinationOpened):
            self._places.append(reply)
            self._find_accounts()
        else:
            self._later(AGAIN_NS, self._find_accounts)

    def _attach_at(self, at: int) -> None:
        assert self._core is not None and self._session is not None, "a consumer without a session"
        prefetch = self.chance.randint(1, self.habits.credit_messages)
        if self.is_without_prefetch():
            prefetch = 0
        name = f"queue:{self._accounts[at].name}"
        consumer = self._session.new_consumer(name, self._places[at], prefetch_messages=prefetch)
        self._consumers[at] = consumer
        request = self._core.open_consumer(self._session, consumer)
        self._replies[request] = self._on_attached

    def _on_attached(self, reply: object) -> None:
        if isinstance(reply, Exception):
            self._reopen()

    # A transfer, step by step.

    def _plan(self) -> None:
        self._later(self.chance.randrange(1, self.manners.pause_ns), self._begin)

    def _begin(self) -> None:
        session, chance = self._session, self.chance
        assert session is not None, "a transfer without a session"
        core, now_ns = self._core, self.world.now_ns
        assert core is not None, "a transfer without a connection"
        for consumer in self._consumers.values():
            if not consumer.prefetch_messages and not consumer.buffered:
                ask(self.asking, core, session, consumer, self)
        buffering = [one for one in self._consumers.values() if one.buffered]
        rich = [one for one in buffering if core.sureness.is_sure(now_ns, session, one)]
        is_closing = self.manners.is_closing
        if self._is_busy or not rich or not (self._transfers or is_closing):
            self._plan()
            return
        self._is_busy = True
        self._transfers -= not is_closing
        total = 0
        for consumer in chance.sample(rich, chance.randint(1, len(rich))):
            most = consumer.buffered if is_closing else min(consumer.buffered, self.manners.messages_max)
            spans = session.take(consumer, chance.randint(1, most))
            consumer.hold(spans)
            core.asking.leave(session, consumer, self)
            for message in self._tell_taken(consumer, spans):
                body = bytes(message.body_bytes)
                self.bank.on_delivered(consumer.channel, message.sequence, body)
                told = message.delivery_count - 1
                at = (consumer.channel, session.session, consumer.consumer)
                self.bank.on_taken(*at, message.sequence, told)
                total += amount_of(body)
        self._withdrawn = total if is_closing else 0
        while total and not is_closing:
            amount = total if chance.random() < 0.5 else chance.randint(1, total)
            self._to_send.append((chance.randrange(len(self._places)), amount))
            total -= amount
        self._go_on()

    def _go_on(self) -> None:
        if self._transaction.fault is not None:
            self._roll_back()
        elif self._to_send:
            self._send(*self._to_send.popleft())
            self._later(self.chance.randrange(self.manners.send_pause_ns), self._go_on)
        elif self.chance.random() < self.manners.death_probability:
            self.world.probe("library_trader.died")
            self.crash()
        elif self.chance.random() < self.manners.rollback_probability:
            self.world.probe("library_trader.rolled_back_on_purpose")
            self._roll_back()
        else:
            self._commit()

    def _send(self, at: int, amount: int) -> None:
        assert self._session is not None, "money without a session"
        opened = self._places[at]
        self._bodies += 1
        name = f"{self.name}.{self._bodies}:{amount}".encode()
        money = [Money(opened.destination, name.ljust(self.chance.randrange(60), b"."))]
        part = self._transaction.part(opened.channel)
        part.add(len(money), len(name))
        first_row = self._rows.take(opened.channel, len(money))
        now_ms = self.world.now_ns // MILLISECOND_NS
        chunk = TransactedChunk(part, money, first_row, opened, now_ms, self._on_left)
        self._session.submit(opened.channel, chunk)

    def _on_left(self, chunk: TransactedChunk) -> None:
        self.bank.on_sent_within(self._key, chunk.part.channel, chunk.money)

    def _doom(self, part: TransactedPart) -> None:
        if self._transaction.parts.get(part.channel) is part:
            self.world.probe("library_trader.doomed")
            self._transaction.doom(LocalError("a batch was not stored"))

    # Its end.

    def _commit(self) -> None:
        session, transaction = self._session, self._transaction
        assert self._core is not None and session is not None, "a commit without a session"
        if transaction.fault is not None:
            self._roll_back()
            return
        if not session.is_open or not all(session.outbox(each).has_sent_all for each in transaction.parts):
            self._later(MILLISECOND_NS, self._commit)
            return
        taken = session.take_consumed()
        try:
            parts = transaction.commitment(taken)
        except TransactionRolledBack:
            self.world.probe("library_trader.lost_what_it_took")
            session.hold_again(taken)
            self._roll_back()
            return
        if not parts:
            # What it took is with others by now, and it sent nothing.
            self._next()
            return
        self.bank.on_commit_wished(self._key, [part.channel for part in parts], self._withdrawn)
        if len(parts) == 1:
            (part,) = parts
            wish = CommitTransaction(
                transaction=transaction.number,
                batches=part.batches,
                messages=part.messages,
                consumed=part.consumed,
            )
            outbox = session.outbox(part.channel)
            outbox.order(wish, self._outcome_of(taken), max(1, part.messages))
        else:
            request = self._core.commit_transaction(session, transaction.number, parts)
            self._replies[request] = lambda reply: self._on_decided(taken, reply)
        transaction.end()
        if self.chance.random() < self.manners.death_probability:
            self.world.probe("library_trader.died_in_commit")
            self._later(self.chance.randrange(3 * MILLISECOND_NS), self.crash)

    def _outcome_of(self, taken: list[TakenMessages]) -> Outcomes:
        def settled(outcomes: list[ConfirmItem]) -> None:
            if outcomes[0].code in _UNKNOWN:
                self.world.probe("library_trader.left_uncertain")
                self._reopen()
                return
            is_stored = outcomes[0].code in _STORED
            self._end(taken, TransactionFate.COMMITTED if is_stored else TransactionFate.ROLLED_BACK)

        return settled

    def _on_decided(self, taken: list[TakenMessages], reply: object) -> None:
        if isinstance(reply, TransactionDecided):
            self._end(taken, reply.fate)
        else:
            # Nobody can say; the library tells its application just that.
            self.world.probe("library_trader.left_uncertain")
            self._reopen()

    def _end(self, taken: list[TakenMessages], fate: TransactionFate) -> None:
        assert self._session is not None, "an outcome without a session"
        self.bank.on_told(self._key, fate)
        self.world.probe(f"library_trader.told.{fate.name}")
        if fate is TransactionFate.ROLLED_BACK:
            self._give_back(taken)
        else:
            for consumer, numbers in taken:
                self.bank.finality.settle(consumer.channel, consumer.subscription, numbers)
            self._session.release(taken)
            self._next()

    def _roll_back(self) -> None:
        session, transaction = self._session, self._transaction
        assert session is not None, "a roll back without a session"
        transaction.doom(LocalError("it was rolled back"))
        for channel, part in transaction.parts.items():
            if part.batches:
                wish = RollBackTransaction(transaction=transaction.number)
                session.outbox(channel).order(wish, None)
        self._give_back(session.take_consumed())

    def _give_back(self, taken: list[TakenMessages]) -> None:
        """Return what was taken; when that is heard, its consumers begin anew."""
        session = self._session
        assert session is not None, "money is given back without a session"
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
        assert self._core is not None and self._session is not None, "consumers without a session"
        of_taken = [one.consumer for one in taken]
        again = [at for at, consumer in self._consumers.items() if consumer in of_taken]
        for at in again:
            request = self._core.close_consumer(self._session, self._consumers.pop(at))
            self._replies[request] = partial(self._on_closed, at)
        self._next()

    def _on_closed(self, at: int, reply: object) -> None:
        self._attach_at(at)

    def _next(self) -> None:
        self._transaction.end()
        self._transaction = TransactionCore(self._transaction.number + 1)
        self._to_send.clear()
        self._is_busy = False
        self._plan()
