"""Coordination: a transaction in several channels is prepared, decided, carried out and forgotten.

Where it sits
    a client's TransactionCommit or TransactionAsk, a primary's InDoubt or Unfinished
        ->  COORDINATION  ->  ordered commands in the channels  ->  TransactionDecided

    preparing  --all are ready-->  deciding  --the home channel has decided-->  finishing  -->  over
        |  one cannot, or takes too long                                            ^
        +---------------------------------------------------------------------------+

What it promises
    COO1  No channel commits before the home channel is heard to have decided so.
    COO2  A channel rolls back when the home channel is heard to have decided so, or when no decision to
          commit was ever ordered from here, and so none will be.
    COO3  A coordination that has begun is brought to its end, even if its client is gone.
    COO4  A client that asks is told the final outcome, or nothing.
    COO5  A transaction has one coordination at a time.
    COO6  The rest of a session in channels that do not answer is bounded, and counts like its commands.

What it leaves to others
    The folds say whether a part can be committed; the primaries find parts in doubt when this node dies. The
    rules have numbers in docs/design/transactions.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from antiphon.bus.messages import InDoubt, Unfinished
from antiphon.client_manager.admission import (
    check_application,
    check_consumed,
    check_staged,
    check_transaction,
)
from antiphon.client_manager.awaited import HomeRollback, Inquiry, Preparation
from antiphon.client_manager.connection import Connection, Outbox, Refusal
from antiphon.client_manager.ordering import Ordering
from antiphon.client_manager.session import LaneState, Ordered, Session, SessionLane
from antiphon.client_manager.session_service import SessionService
from antiphon.client_manager.settings import LIMIT, ClientManagerSettings
from antiphon.errors import ProtocolError, SessionClosed
from antiphon.wire.commands import CommandKind, Outcome, OutcomeCode
from antiphon.wire.transaction_frames import (
    TransactionAsk,
    TransactionCommit,
    TransactionDecided,
    TransactionFate,
    TransactionPart,
)
from antiphon.wire.transactions import (
    STAGED_MESSAGES_MAX,
    TRANSACTION_MESSAGES_MAX,
    DecideTransaction,
    FinishTransaction,
    ForgetTransaction,
    Participant,
    PrepareTransaction,
    ResolveTransaction,
)

_NS_PER_MS: Final = 1_000_000

_WEIGHT: Final = 512
"""Bytes kept, about, of a question, of a part of a commit, or of one of the sources in it."""

_AS_ASKED: Final = (int(OutcomeCode.APPLIED), int(OutcomeCode.DUPLICATE))
_DUPLICATE: Final = int(OutcomeCode.DUPLICATE)
_ROLLED_BACK: Final = int(OutcomeCode.TX_ROLLED_BACK)
_NOT_OURS: Final = (int(OutcomeCode.STALE), int(OutcomeCode.SESSION_UNKNOWN))


class Key(NamedTuple):
    session: int
    transaction: int


class Stage(IntEnum):
    PREPARING = 0
    """The participants are asked to promise. Nothing is decided, and only this node could have it decided."""
    DECIDING = 1
    """The home channel is asked: to decide, or for its decision."""
    FINISHING = 2
    """The decision is carried out."""


class CommitWaiter(NamedTuple):
    """A client that waits for an answer; and the session that bears the weight of its question, if any."""

    connection: Connection
    request: int
    session: Session | None = None


@dataclass(slots=True, eq=False, repr=False)
class Transaction:
    """A transaction under way: begun here, or asked about."""

    key: Key
    home: str
    participants: dict[str, int]
    """With the count of messages for each."""
    stage: Stage
    fate: TransactionFate = TransactionFate.ROLLED_BACK
    text: str = ""
    waiters: list[CommitWaiter] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    """Channels that have a command of this coordination in their order, and have not answered."""
    has_asked: bool = False
    """Was the home channel asked for its decision, instead of being asked to decide?"""
    is_complete: bool = True
    """Have all participants carried it out, and are all of them known?"""
    # Of a transaction begun here: the client's commit, and the lanes of that moment. A session that is
    # detached meanwhile forgets them.
    commit: TransactionCommit | None = None
    session: Session | None = None
    lanes: dict[str, SessionLane] = field(default_factory=dict)
    weight: int = 0

    def part(self, channel: str) -> TransactionPart:
        """The part in a channel; the home channel of an application may have none."""
        assert self.commit is not None, "only who has begun it knows its parts"
        for part in self.commit.parts:
            if part.channel == channel:
                return part
        return TransactionPart(channel, 0, 0)


class _Patience:
    """Transactions with one common time limit."""

    __slots__ = ("_due", "_fresh", "_wait_ns")

    def __init__(self, wait_ms: int) -> None:
        self._wait_ns = wait_ms * _NS_PER_MS
        # The earliest first.
        self._due: dict[Transaction, int] = {}
        # Of this step: the time is known at its end.
        self._fresh: dict[Transaction, None] = {}

    def begin(self, transaction: Transaction) -> None:
        self._fresh[transaction] = None

    def end(self, transaction: Transaction) -> None:
        self._fresh.pop(transaction, None)
        self._due.pop(transaction, None)

    def next_deadline_ns(self) -> int | None:
        return next(iter(self._due.values()), None)

    def over(self, now_ns: int) -> list[Transaction]:
        """The transactions whose time is over, and which are no longer timed."""
        gone = []
        for transaction, due_ns in self._due.items():
            if due_ns > now_ns:
                break
            gone.append(transaction)
        for transaction in gone:
            del self._due[transaction]
        for transaction in self._fresh:
            self._due[transaction] = now_ns + self._wait_ns
        self._fresh.clear()
        return gone


class Coordination:
    """All transactions in several channels that one client manager coordinates."""

    def __init__(
        self,
        channels: Sequence[str],
        settings: ClientManagerSettings,
        outbox: Outbox,
        ordering: Ordering,
        sessions: SessionService,
    ) -> None:
        self._system = min(channels)
        self._settings = settings
        self._outbox = outbox
        self._ordering = ordering
        self._sessions = sessions
        # The node's own commands are outside of sessions.
        self._own = {channel: SessionLane(channel, None) for channel in channels}
        self._under_way: dict[Key, Transaction] = {}
        # Sessions, in a generation, whose commit is not answered yet; and each session's count of unfinished
        # commits.
        self._busy: set[tuple[int, int]] = set()
        self._unfinished: Counter[int] = Counter()
        self._preparing = _Patience(settings.prepare_wait_ms)
        self._finishing = _Patience(settings.finish_wait_ms)

    def __len__(self) -> int:
        return len(self._under_way)

    # -- what clients ask for --------------------------------------------------

    def commit(self, connection: Connection, wish: TransactionCommit) -> None:
        """Commit a transaction that has parts in several channels."""
        session = self._sessions.of(connection, wish.session)
        key = Key(wish.session, wish.transaction)
        self._check_commit(session, key, wish)
        home = self._system if wish.application else min(part.channel for part in wish.parts)
        others = {part.channel: part.messages for part in wish.parts if part.channel != home}
        transaction = Transaction(key, home, others, Stage.PREPARING)
        transaction.commit = wish
        transaction.session = session
        transaction.lanes = {channel: session.lane(channel) for channel in (home, *others)}
        transaction.waiters.append(CommitWaiter(connection, wish.request))
        transaction.weight = sum(map(_weight_of, wish.parts))
        for lane in transaction.lanes.values():
            if lane.state == LaneState.NEW:
                # The channel has nothing of the session but staged messages, or the decision.
                self._ordering.open_lane(lane, may_create=True)
        self._under_way[key] = transaction
        self._busy.add((session.id, session.generation))
        self._unfinished[session.id] += 1
        self._ordering.burden(session, transaction.weight)
        self._preparing.begin(transaction)
        # Nothing is prepared before the home channel knows the session. Otherwise, if the channel was asked
        # meanwhile for its decision, it could not remember that it said no; and a late command to decide,
        # together with the session's opening, would be obeyed.
        self._ordering.when_opened(transaction.lanes[home], Preparation(transaction))

    def _check_commit(self, session: Session, key: Key, wish: TransactionCommit) -> None:
        check_transaction(wish.transaction)
        check_application(wish.application)
        if (session.id, session.generation) in self._busy or key in self._under_way:
            raise ProtocolError("a session commits one transaction at a time")
        if not wish.parts and not wish.application:
            raise ProtocolError("a commit of nothing")
        names = [part.channel for part in wish.parts]
        if len(set(names)) < len(names):
            raise ProtocolError("a commit names a channel twice")
        for part in wish.parts:
            self._check_part(session, part)
        if self._unfinished[session.id] >= self._settings.transactions_max:
            unfinished = self._unfinished[session.id]
            raise Refusal(LIMIT, f"{unfinished} transactions of the session wait for channels to answer")

    def _check_part(self, session: Session, part: TransactionPart) -> None:
        self._check_channel(part.channel)
        check_consumed(part.consumed)
        check_staged(part.staged)
        lane = session.lanes.get(part.channel)
        if lane is None and (part.consumed or (part.batches and not part.staged)):
            raise ProtocolError(f"the session has nothing in channel {part.channel}")
        if lane is not None and lane.state == LaneState.REFUSED:
            raise Refusal(SessionClosed.code, lane.refusal)
        messages_max = STAGED_MESSAGES_MAX if part.staged else TRANSACTION_MESSAGES_MAX
        if part.messages > messages_max:
            text = f"{part.messages} messages for channel {part.channel} in one transaction"
            raise Refusal(LIMIT, f"{text}; {messages_max} are allowed")

    def _check_channel(self, channel: str) -> None:
        if channel not in self._own:
            raise ProtocolError(f"there is no channel {channel[:80]!r}")

    def ask(self, connection: Connection, wish: TransactionAsk) -> None:
        """Find out the outcome of a commit; one that is not decided is rolled back (rule 10).

        A commit that is under way here is waited for. The system channel may be left unnamed.
        """
        session = self._sessions.of(connection, wish.session)
        check_transaction(wish.transaction)
        home = wish.home or self._system
        self._check_channel(home)
        self._ordering.burden(session, _WEIGHT)
        lane = session.lane(home)
        if lane.state == LaneState.NEW:
            # From then on no command of a former client manager of the session counts in the channel:
            # otherwise the answer would not stay true.
            self._ordering.open_lane(lane, may_create=True)
        waiter = CommitWaiter(connection, wish.request, session)
        self._ordering.when_opened(lane, Inquiry(lane, waiter, wish))

    def inquire(self, inquiry: Inquiry) -> None:
        """The home channel has said whether it knows the session of a client that asks."""
        lane, waiter, wish = inquiry
        key, home = Key(wish.session, wish.transaction), lane.channel
        transaction = self._under_way.get(key)
        if lane.state == LaneState.REFUSED:
            self._refuse(waiter, SessionClosed.code, lane.refusal)
            return
        if transaction is not None and transaction.home != home:
            text = f"the home channel of the transaction is {transaction.home}"
            self._refuse(waiter, ProtocolError.code, text)
            return
        if transaction is None:
            transaction = self._under_way[key] = Transaction(key, home, {}, Stage.DECIDING)
        transaction.waiters.append(waiter)
        if transaction.stage == Stage.FINISHING:
            self._answer(transaction)
        elif transaction.commit is None:
            self._resolve(transaction)

    def _refuse(self, waiter: CommitWaiter, code: str, text: str) -> None:
        self._relieve(waiter)
        self._outbox.refuse(waiter.connection, waiter.request, code, text)

    def _relieve(self, waiter: CommitWaiter) -> None:
        if waiter.session is not None:
            self._ordering.relieve(waiter.session, _WEIGHT)

    # -- what primaries say ----------------------------------------------------

    def in_doubt(self, channel: str, message: InDoubt) -> None:
        """A participant does not know the decision: ask the home, and tell the participant (rule 8)."""
        if message.home not in self._own:
            return
        key = Key(message.session, message.transaction)
        transaction = self._under_way.get(key)
        if transaction is None:
            transaction = self._under_way[key] = Transaction(key, message.home, {}, Stage.DECIDING)
        if transaction.home != message.home:
            # A client asks about it in a channel without a part of it. The part will be in doubt again.
            return
        if transaction.stage == Stage.DECIDING:
            if transaction.commit is None:
                transaction.participants[channel] = message.messages
            # The command to decide may be stuck behind the session's other commands.
            self._resolve(transaction)

    def unfinished(self, channel: str, message: Unfinished) -> None:
        """A decision to commit is not known to be carried out everywhere (rule 8)."""
        key = Key(message.session, message.transaction)
        if key in self._under_way:
            return
        participants = dict(zip(message.channels, message.messages, strict=False))
        if any(name not in self._own for name in participants):
            return
        transaction = self._under_way[key] = Transaction(key, channel, participants, Stage.FINISHING)
        transaction.fate = TransactionFate.COMMITTED
        self._finish(transaction)

    # -- what the channels have done -------------------------------------------

    def settled(self, transaction: Transaction, ordered: Ordered, outcomes: Sequence[Outcome]) -> None:
        """A command for a transaction was applied, except for `outcomes`."""
        channel = ordered.lane.channel
        match ordered.kind:
            case CommandKind.TX_PREPARE:
                self._on_prepared(transaction, channel, outcomes)
            case CommandKind.TX_DECIDE:
                self._on_decided(transaction, outcomes)
            case CommandKind.TX_RESOLVE:
                self._on_resolved(transaction, outcomes)
            case CommandKind.TX_FINISH:
                self._on_finished(transaction, channel, outcomes)
            case CommandKind.TX_FORGET:
                del self._under_way[transaction.key]

    # -- preparing -------------------------------------------------------------

    def prepare(self, transaction: Transaction) -> None:
        """The home channel has said whether it knows the session."""
        if transaction.stage != Stage.PREPARING:
            # The answer took too long.
            return
        lane = transaction.lanes[transaction.home]
        if lane.state == LaneState.REFUSED:
            self._give_up(transaction, lane.refusal)
            return
        if not transaction.participants:
            self._all_are_ready(transaction)
            return
        transaction.awaited = set(transaction.participants)
        for channel in transaction.participants:
            _, batches, messages, consumed, staged = transaction.part(channel)
            prepare = PrepareTransaction(
                transaction=transaction.key.transaction,
                home=transaction.home,
                batches=batches,
                messages=messages,
                consumed=consumed,
                staged=staged,
            )
            self._ordering.order(transaction.lanes[channel], prepare, transaction)

    def _on_prepared(self, transaction: Transaction, channel: str, outcomes: Sequence[Outcome]) -> None:
        transaction.awaited.discard(channel)
        if transaction.stage != Stage.PREPARING:
            # The transaction was given up meanwhile; a part prepared now must hear of that, too.
            self._finish_in(transaction, (channel,))
        elif outcomes and outcomes[0].code not in _AS_ASKED:
            self._give_up(transaction, outcomes[0].text or f"channel {channel} cannot commit it")
        elif not transaction.awaited:
            self._all_are_ready(transaction)

    def _all_are_ready(self, transaction: Transaction) -> None:
        self._preparing.end(transaction)
        transaction.stage = Stage.DECIDING
        self._decide(transaction)

    def _give_up(self, transaction: Transaction, text: str) -> None:
        """A channel cannot prepare. No decision was ordered, so none can be to commit (COO2)."""
        self._preparing.end(transaction)
        self._decided(transaction, TransactionFate.ROLLED_BACK, text)
        # Behind the session's commands there: its part is not prepared, and lies open.
        home = transaction.home
        transaction.awaited.add(home)
        unheard = transaction.awaited - {home}
        self._finish_in(transaction, [each for each in transaction.participants if each not in unheard])
        self._ordering.after_confirmed(transaction.lanes[home], HomeRollback(transaction))

    def roll_back_home(self, transaction: Transaction) -> None:
        """The session's commands in the home channel of an abandoned transaction are confirmed."""
        self._finish_in(transaction, (transaction.home,))

    # -- deciding --------------------------------------------------------------

    def _decide(self, transaction: Transaction) -> None:
        if transaction.stage != Stage.DECIDING:
            # The transaction was held up here, and is rolled back.
            return
        commit = transaction.commit
        assert commit is not None, "only who has begun it may have it decided"
        _, batches, messages, consumed, staged = transaction.part(transaction.home)
        decide = DecideTransaction(
            transaction=transaction.key.transaction,
            batches=batches,
            messages=messages,
            consumed=consumed,
            staged=staged,
            participants=tuple(Participant(*each) for each in transaction.participants.items()),
            application=commit.application,
            version=commit.version,
        )
        lane = transaction.lanes[transaction.home]
        self._ordering.order(lane, decide, transaction, max(1, messages))

    def _on_decided(self, transaction: Transaction, outcomes: Sequence[Outcome]) -> None:
        if transaction.stage != Stage.DECIDING:
            return
        code, text = (outcomes[0].code, outcomes[0].text) if outcomes else (int(OutcomeCode.APPLIED), "")
        assert transaction.commit is not None, "only who has begun it hears a decision"
        if code == _DUPLICATE and transaction.commit.application:
            self._carry_out(transaction, TransactionFate.COMMITTED_BEFORE, text)
        elif code in _AS_ASKED:
            self._carry_out(transaction, TransactionFate.COMMITTED, "")
        elif code in _NOT_OURS:
            # The session has left this node. The channel knows the decision (rule 9).
            self._resolve(transaction)
        else:
            self._carry_out(transaction, TransactionFate.ROLLED_BACK, text)

    def _resolve(self, transaction: Transaction) -> None:
        """Ask the home channel for its decision: once (COO5)."""
        if transaction.has_asked:
            return
        transaction.has_asked = True
        resolve = ResolveTransaction(session=transaction.key.session, transaction=transaction.key.transaction)
        self._ordering.order(self._own[transaction.home], resolve, transaction)

    def _on_resolved(self, transaction: Transaction, outcomes: Sequence[Outcome]) -> None:
        transaction.has_asked = False
        if transaction.stage != Stage.DECIDING:
            return
        if not outcomes or outcomes[0].code == OutcomeCode.APPLIED:
            self._carry_out(transaction, TransactionFate.COMMITTED, "")
        elif outcomes[0].code == _ROLLED_BACK:
            self._carry_out(transaction, TransactionFate.ROLLED_BACK, outcomes[0].text)
        elif transaction.commit is not None or transaction.waiters:
            # The question was lost: ask again.
            self._resolve(transaction)
        else:
            # A participant in doubt asks again.
            self._over(transaction)

    def _decided(self, transaction: Transaction, fate: TransactionFate, text: str) -> None:
        transaction.stage = Stage.FINISHING
        transaction.fate = fate
        transaction.text = text
        session, commit = transaction.session, transaction.commit
        if session is None or commit is None:
            # The other participants are not known here: a waiting client need not wait for them.
            transaction.is_complete = False
            self._answer(transaction)
            return
        self._finishing.begin(transaction)
        if fate == TransactionFate.COMMITTED:
            for part in commit.parts:
                session.release_all(part.channel, part.consumed)

    # -- finishing -------------------------------------------------------------

    def _carry_out(self, transaction: Transaction, fate: TransactionFate, text: str) -> None:
        self._decided(transaction, fate, text)
        self._finish(transaction)

    def _finish(self, transaction: Transaction) -> None:
        if transaction.participants:
            self._finish_in(transaction, transaction.participants)
        else:
            self._finished(transaction)

    def _finish_in(self, transaction: Transaction, channels: Iterable[str]) -> None:
        """Carry the decision out in these channels."""
        commits = transaction.fate == TransactionFate.COMMITTED
        session, number = transaction.key
        for channel in channels:
            transaction.awaited.add(channel)
            messages = transaction.participants.get(channel, 0)
            finish = FinishTransaction(
                session=session, transaction=number, commits=commits, messages=messages
            )
            self._ordering.order(self._own[channel], finish, transaction, max(1, messages) if commits else 1)

    def _on_finished(self, transaction: Transaction, channel: str, outcomes: Sequence[Outcome]) -> None:
        transaction.awaited.discard(channel)
        if outcomes and outcomes[0].code not in _AS_ASKED:
            transaction.is_complete = False
        if not transaction.awaited:
            self._finished(transaction)

    def _finished(self, transaction: Transaction) -> None:
        self._answer(transaction)
        if transaction.fate == TransactionFate.COMMITTED and transaction.is_complete:
            self._forget(transaction)
        else:
            self._over(transaction)

    def _forget(self, transaction: Transaction) -> None:
        """All participants have carried it out: the home channel need not remember its decision.

        Until it has forgotten the decision its primary says that the transaction is unfinished.
        """
        session, number = transaction.key
        forget = ForgetTransaction(session=session, transaction=number)
        self._ordering.order(self._own[transaction.home], forget, transaction)
        self._relieve_session(transaction)

    def _over(self, transaction: Transaction) -> None:
        del self._under_way[transaction.key]
        self._relieve_session(transaction)

    def _relieve_session(self, transaction: Transaction) -> None:
        session = transaction.session
        if session is not None:
            self._ordering.relieve(session, transaction.weight)
            self._unfinished[session.id] -= 1
            if not self._unfinished[session.id]:
                del self._unfinished[session.id]

    def _answer(self, transaction: Transaction) -> None:
        """Tell the waiting clients the decision (COO4)."""
        self._finishing.end(transaction)
        if transaction.session is not None:
            self._busy.discard((transaction.session.id, transaction.session.generation))
        for lane in transaction.lanes.values():
            self._ordering.confirm_now(lane)
        waiters, transaction.waiters = transaction.waiters, []
        for waiter in waiters:
            self._relieve(waiter)
            connection, request, _ = waiter
            answer = TransactionDecided(request=request, fate=transaction.fate, text=transaction.text)
            self._outbox.answer(connection, request, answer)

    # -- time ------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        deadlines = [part.next_deadline_ns() for part in (self._preparing, self._finishing)]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def keep_time(self, now_ns: int) -> None:
        """Give up participants that do not prepare in time; answer clients that have waited long enough."""
        for transaction in self._preparing.over(now_ns):
            silent = ", ".join(sorted(transaction.awaited or {transaction.home}))
            self._give_up(transaction, f"channel {silent} did not answer in time")
        for transaction in self._finishing.over(now_ns):
            self._answer(transaction)


def _weight_of(part: TransactionPart) -> int:
    """The bytes kept for a part of a commit, about."""
    ranges = sum(len(each.numbers) for each in part.consumed)
    return _WEIGHT * (1 + len(part.consumed)) + 16 * (ranges + len(part.staged))
