"""SessionTransactions: commit and rollback of a session, under asyncio.

Where it sits
    session.commit, rollback  ->  TRANSACTIONS  ->  a command, or a request to the client manager; lanes and
    consumers wait meanwhile

What it promises
    TXN1  A commit that returned is committed; one that raised TransactionRolledBack has left nothing behind,
          and the received messages come again, in their order.
    TXN2  A commit without a known outcome goes on in the background. Nothing new begins before the
          application has heard of it: by `commit` again, or by `rollback`.
    TXN3  Sends and receives during a commit wait, and belong to the next transaction.

What it leaves to others
    core/transaction has the contents of a transaction, transacting the way of its messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from antiphon.client.aio.link import Fate
from antiphon.client.aio.transacting import refusal
from antiphon.client.core.outcomes import STORED
from antiphon.client.core.publication import wake
from antiphon.client.core.session import SessionCore
from antiphon.client.core.transaction import (
    PartCore,
    RowNumbers,
    TakenMessages,
    TransactedPart,
    TransactionCore,
)
from antiphon.errors import (
    AntiphonError,
    CommitUncertain,
    LocalError,
    NotConnected,
    SessionClosed,
    Timeout,
    TransactionRolledBack,
)
from antiphon.wire.commands import ConfirmItem, OutcomeCode
from antiphon.wire.frames import SessionOpened, TransactionDecided
from antiphon.wire.transaction_frames import TransactionFate
from antiphon.wire.transactions import CommitTransaction, RollBackTransaction

if TYPE_CHECKING:
    from antiphon.client.aio.scope import SessionScope

T = TypeVar("T")

Asked: TypeAlias = Fate | int
"""A requested commit: by a command, or by a request."""

ATTEMPTS = 10
"""How often `run_transaction` begins."""

REMEMBERED_S = 3_600.0
"""How long the channels remember the decisions of a session that has ended."""

ASK_AGAIN_S = 0.5

PAUSE_S = 0.05
PAUSE_S_MAX = 2.0

_UNKNOWN = frozenset((int(OutcomeCode.STALE), int(OutcomeCode.SESSION_UNKNOWN), int(OutcomeCode.FORGOTTEN)))


def look_at(task: asyncio.Task[Any]) -> None:
    """The task's result may never be asked for. Then its exception is not to be reported either."""
    if not task.cancelled():
        task.exception()


def pauses(attempts: int) -> Iterator[float]:
    """The pauses before each attempt but the first: longer each time, and drawn."""
    if not (isinstance(attempts, int) and attempts > 0):
        raise LocalError(f"attempts is a number from 1 on; it was {attempts!r}")
    pause = PAUSE_S
    for _ in range(attempts - 1):
        yield pause * random.uniform(0.5, 1)
        pause = min(2 * pause, PAUSE_S_MAX)


class SessionTransactions:
    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self.rows = RowNumbers()
        self._open = TransactionCore(1)
        # The session is over, and so the outcome will never be known.
        self._unknown: CommitUncertain | None = None
        # The task that ends the open transaction, until the application has heard its result (TXN2).
        self._ending: asyncio.Task[None] | None = None
        self._is_commit = False
        # Does the commit still wait for its messages to leave; or for a decision, in its home channel?
        self._is_waiting = False
        self._is_sent = False
        self._home = ""
        self._listeners = 0
        self._hindered: list[asyncio.Future[None]] = []
        # Rolled back already, in these channels; and closed consumers that wait for the end.
        self._drops: dict[str, Fate] = {}
        # Messages that no consumer was given, for the next commit to acknowledge.
        self._named: list[TakenMessages] = []
        self._closings: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._when_rolled_back: list[Callable[[], None]] = []

    # -- for lanes and consumers -----------------------------------------------

    @property
    def is_ending(self) -> bool:
        return self._ending is not None

    async def ended(self) -> None:
        """Wait until the commit or rollback has ended, and the application has heard of it (TXN3)."""
        await self.quiet()
        if self._ending is not None:
            raise self._unheard()

    async def quiet(self) -> None:
        """Wait as long as a caller waits for the commit or rollback."""
        while self._ending is not None and self._listeners:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._hindered.append(mine)
            await mine

    def part(self, channel: str) -> TransactedPart:
        part = self._open.part(channel)
        self.check(part)
        return part

    def check(self, part: PartCore) -> None:
        if self._unknown is not None:
            raise self._unknown
        if self._ending is not None and not self._listeners:
            raise self._unheard()
        if self._open.fault is not None:
            raise _rolled_back(self._open.fault)
        if part.is_over:
            # Another task ended the transaction meanwhile, with a part of this.
            raise LocalError("its transaction was ended before everything was sent")

    def _unheard(self) -> LocalError:
        if self._is_commit:
            return LocalError(
                "what became of the last commit is not known: `commit()` again, or `rollback()`, tells"
            )
        return LocalError("the last rollback is not done: `rollback()` again waits for it")

    def settled(self, part: PartCore, item: ConfirmItem) -> None:
        core = self._scope.opened_core
        assert core is not None, "a message left without a session"
        error = refusal(item, core.session, part.channel)
        if error is not None:
            self.doom(part, error)

    def lost(self, part: PartCore, error: AntiphonError) -> None:
        if self._open.parts.get(part.channel) is part:
            self._open.doom(error)

    def doom(self, part: PartCore, error: AntiphonError) -> None:
        """The transaction cannot be committed any more: its stored messages may go now."""
        if self._open.fault is None and self._open.parts.get(part.channel) is part:
            self._open.doom(error)
            if not self._is_sent:
                self._drop()

    def _drop(self) -> None:
        """Have its stored messages forgotten."""
        core = self._scope.opened_core
        for channel, part in self._open.parts.items():
            if core is not None and part.batches and channel not in self._drops:
                fate = self._drops[channel] = self._scope.new_fate()
                core.outbox(channel).order(RollBackTransaction(transaction=self._open.number), fate)
                self._scope.link.flush_soon()

    def acknowledge_also(self, taken: TakenMessages) -> None:
        """The next commit acknowledges these messages, too, whether or not a consumer was given them."""
        self._named.append(taken)

    def close_later(self, closing: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A consumer was closed, and the transaction is to acknowledge its messages."""
        self._closings.append(closing)

    def when_rolled_back(self, called: Callable[[], None]) -> None:
        """Call this whenever a transaction was rolled back, before its waiter hears of it."""
        self._when_rolled_back.append(called)

    # -- ending one ------------------------------------------------------------

    async def commit(self, timeout_s: float) -> None:
        self._check_open()
        if self._ending is not None and not self._is_commit:
            await self._hear(timeout_s)
        if self._ending is None:
            if self._is_empty:
                return
            self._begin_commit()
        await self._hear(timeout_s)

    async def rollback(self, timeout_s: float) -> None:
        self._check_open()
        if self._ending is not None and self._is_commit:
            try:
                await self._hear(timeout_s)
            except TransactionRolledBack:
                return
            raise LocalError("it cannot be rolled back any more: the transaction was committed")
        if self._ending is None:
            if self._is_empty:
                return
            self._begin(self._roll_back(), is_commit=False)
        await self._hear(timeout_s)

    async def give_up(self, timeout_s: float) -> None:
        """Roll back after a failure, if that is still to be decided.

        Of a commit under way this would only hear the outcome, and keep it from the application (TXN2).
        """
        if self._ending is not None and self._is_commit:
            return
        try:
            await self.rollback(timeout_s)
        except AntiphonError:
            # The earlier failure says more than that of the rollback.
            pass

    async def close(self, timeout_s: float) -> None:
        """The session ends: an open transaction is not committed any more."""
        try:
            if self._ending is not None:
                await self._hear(timeout_s)
        except AntiphonError:
            # The waiter was told.
            pass
        self._open.doom(SessionClosed("the session is closed"))
        await self._close_consumers()

    def _check_open(self) -> None:
        if self._unknown is not None:
            raise self._unknown
        if self._scope.is_closed and self._ending is None:
            raise SessionClosed("the session is closed")

    @property
    def _is_empty(self) -> bool:
        core = self._scope.opened_core
        consumers = () if core is None else core.consumers.values()
        return (
            not self._open.has_sends
            and self._open.fault is None
            and not any(consumer.held or consumer.forfeited for consumer in consumers)
        )

    def _begin(self, ending: Coroutine[Any, Any, None], *, is_commit: bool) -> None:
        self._is_commit = is_commit
        self._ending = asyncio.get_running_loop().create_task(ending)
        self._ending.add_done_callback(look_at)
        self._scope.hindrance = self.ended

    async def _hear(self, timeout_s: float) -> None:
        """Wait for the commit or rollback; its result is the application's then."""
        task = self._ending
        assert task is not None, "there is nothing to wait for"
        self._listeners += 1
        try:
            await asyncio.wait((task,), timeout=timeout_s)
            if not task.done() and self._is_waiting and self._listeners == 1:
                # Nothing was asked for yet, so nothing can have happened.
                await self._call_off(task)
            if task.cancelled():
                raise Timeout("not committed: not all was sent in time. `commit()` tries on")
            if not task.done():
                raise self._late(timeout_s)
            task.result()
        except CommitUncertain as error:
            self._unknown = error if task.done() else None
            raise
        except asyncio.CancelledError:
            if not task.done() and self._is_waiting and self._listeners == 1:
                await self._call_off(task)
            raise
        finally:
            self._listeners -= 1
            if task.done() and self._ending is task:
                self._ending = self._scope.hindrance = None
                self._is_sent = False
            hindered, self._hindered = self._hindered, []
            wake(hindered)

    async def _call_off(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait((task,))

    def _late(self, timeout_s: float) -> Timeout:
        if not self._is_commit:
            return Timeout(f"the rollback was not confirmed within {timeout_s:g} s; it goes on")
        if self._open.fault is not None and not self._is_sent:
            return Timeout(
                f"it cannot be committed: {self._open.fault.text}; that it is rolled back was not confirmed "
                f"within {timeout_s:g} s, and goes on"
            )
        return self._uncertain(f"it was not known within {timeout_s:g} s")

    def _uncertain(self, why: str) -> CommitUncertain:
        core = self._scope.opened_core
        assert core is not None, "a commit without a session"
        name = f"{core.session:032x}:{self._open.number}:{self._home}"
        return CommitUncertain(
            f"whether transaction {name} was committed is not known: {why}", transaction_id=name
        )

    # -- commit ----------------------------------------------------------------

    def _begin_commit(self) -> None:
        """Commit at once if everything has left, or leaves with this turn of the loop."""
        core = self._scope.opened_core
        assert core is not None, "a transaction without a session"
        transaction = self._open
        self._home = ""
        self._scope.submit_gathered()
        wish = None
        if transaction.fault is None and self._has_left(core, transaction):
            try:
                wish = self._ask(core, transaction)
            except AntiphonError as error:
                transaction.doom(error)
        self._begin(self._commit(core, transaction, wish), is_commit=True)

    async def _commit(
        self, core: SessionCore, transaction: TransactionCore, wish: tuple[Asked, list[TakenMessages]] | None
    ) -> None:
        if wish is None:
            try:
                await self._departed(core, transaction)
                if transaction.fault is None:
                    wish = self._ask(core, transaction)
            except AntiphonError as error:
                # There is no connection any more, too much was consumed, or others have got some of it.
                transaction.doom(error)
        if wish is None:
            fault = transaction.fault
            assert fault is not None, "a commit that was neither asked for nor in vain"
            await self._abort(core, core.take_consumed())
            raise fault if isinstance(fault, NotConnected | SessionClosed) else _rolled_back(fault)
        asked, taken = wish
        reason = await self._decided(core, asked)
        if reason is None:
            core.release(taken)
            self._scope.link.flush_soon()
            await self._next()
            return
        text = transaction.fault.text if transaction.fault is not None else reason
        await self._abort(core, taken)
        raise TransactionRolledBack(text)

    def _has_left(self, core: SessionCore, transaction: TransactionCore) -> bool:
        return (
            core.error is None
            and core.is_open
            and all(core.outbox(channel).has_sent_all for channel in transaction.parts)
        )

    async def _departed(self, core: SessionCore, transaction: TransactionCore) -> None:
        """Wait until everything of it has left, on the present connection."""
        link = self._scope.link
        self._is_waiting = True
        try:
            while transaction.fault is None and not self._has_left(core, transaction):
                link.check()
                core.check()
                link.flush()
                await link.news()
        finally:
            self._is_waiting = False

    def _ask(self, core: SessionCore, transaction: TransactionCore) -> tuple[Asked, list[TakenMessages]]:
        """Ask for the commit: one channel by a command, several by a request to the client manager.

        Returns also the taken messages that it acknowledges.
        """
        taken = [*core.take_consumed(), *self._named]
        self._named = []
        try:
            parts = transaction.commitment(taken)
        except AntiphonError:
            core.hold_again(taken)
            raise
        link = self._scope.link
        asked: Asked
        if len(parts) == 1:
            (part,) = parts
            payload = CommitTransaction(
                transaction=transaction.number,
                batches=part.batches,
                messages=part.messages,
                consumed=part.consumed,
            )
            asked = self._scope.new_fate()
            core.outbox(part.channel).order(payload, asked, max(1, part.messages))
        else:
            asked = link.core.commit_transaction(core, transaction.number, parts)
        link.flush_soon()
        # Later sends belong to no transaction.
        transaction.end()
        self._home = parts[0].channel
        self._is_sent = True
        return asked, taken

    async def _decided(self, core: SessionCore, asked: Asked) -> str | None:
        """Why it was rolled back; None if it was committed."""
        try:
            if isinstance(asked, int):
                decided = await self._answer(core, asked)
                is_committed = decided.fate is not TransactionFate.ROLLED_BACK
                return None if is_committed else decided.text or "not all channels could commit it"
            item = await self._scope.outcome(asked)
        except (NotConnected, SessionClosed, Timeout) as error:
            raise self._uncertain(error.text) from error
        except AntiphonError as error:
            # The commit was refused before it was begun.
            self._is_sent = False
            return error.text
        if item.code in _UNKNOWN:
            raise self._uncertain(item.text or "the session has expired, or goes on elsewhere")
        return None if item.code in STORED else item.text or "the channel could not commit it"

    async def _answer(self, core: SessionCore, asked: int) -> TransactionDecided:
        """The decision; on another connection, this is asked until a server knows."""
        link, generation, begun_s = self._scope.link, core.generation, self._scope.link.loop.time()
        while True:
            try:
                return await link.call(asked, TransactionDecided, None)
            except SessionClosed:
                if link.error is not None or link.loop.time() - begun_s > REMEMBERED_S:
                    raise
                return await self._answer_to_another(core)
            except AntiphonError:
                if link.error is not None or core.generation == generation:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)
            link.check()
            core.check()
            asked = link.core.ask_transaction(core.session, self._open.number, self._home)

    async def _answer_to_another(self, core: SessionCore) -> TransactionDecided:
        """The decision for a session that has expired meanwhile."""
        link = self._scope.link
        request = link.core.adopt_session(core.session, core.generation + 1)
        await link.call(request, SessionOpened, self._scope.timeout)
        try:
            request = link.core.ask_transaction(core.session, self._open.number, self._home)
            return await link.call(request, TransactionDecided, self._scope.timeout)
        except AntiphonError as error:
            raise SessionClosed(error.text) from error
        finally:
            link.core.abandon_request(link.core.close_session(core.session))
            link.flush_soon()

    # -- rollback --------------------------------------------------------------

    async def _roll_back(self) -> None:
        core = await self._scope.core()
        self._open.doom(LocalError("it was rolled back"))
        await self._abort(core, core.take_consumed(), is_wanted=True)

    async def _abort(self, core: SessionCore, taken: list[TakenMessages], *, is_wanted: bool = False) -> None:
        """Have it forgotten, and give back the consumed messages; raises a failure only if `is_wanted`."""
        self._open.end()
        for called in self._when_rolled_back:
            called()
        try:
            core.check()
            if not self._is_sent:
                self._drop()
                for fate in self._drops.values():
                    await self._scope.outcome(fate)
            await self._scope.give_back(core, taken)
        except AntiphonError:
            if is_wanted:
                raise
        finally:
            await self._next()

    async def _next(self) -> None:
        self._open.end()
        self._open = TransactionCore(self._open.number + 1)
        self._drops.clear()
        await self._close_consumers()

    async def _close_consumers(self) -> None:
        closings, self._closings = self._closings, []
        for closing in closings:
            try:
                await closing()
            except AntiphonError:
                # The transaction has ended all the same; the server will see that the client is gone.
                pass


def _rolled_back(fault: AntiphonError) -> TransactionRolledBack:
    return TransactionRolledBack(fault.text)


@asynccontextmanager
async def transaction(transactions: SessionTransactions, timeout_s: float) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await transactions.give_up(timeout_s)
        raise
    await transactions.commit(timeout_s)


async def run(
    transactions: SessionTransactions, attempt: Callable[[], Awaitable[T]], attempts: int, timeout_s: float
) -> T:
    """Try until it is committed, or has been rolled back so often."""
    for pause in pauses(attempts):
        try:
            return await _attempt(transactions, attempt, timeout_s)
        except TransactionRolledBack:
            await asyncio.sleep(pause)
    return await _attempt(transactions, attempt, timeout_s)


async def _attempt(
    transactions: SessionTransactions, attempt: Callable[[], Awaitable[T]], timeout_s: float
) -> T:
    async with transaction(transactions, timeout_s):
        return await attempt()
