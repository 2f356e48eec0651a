"""TransactionFold: what the commands of transactions do to the state of a channel.

Where it sits
    bus  ->  fold, TRANSACTION FOLD  ->  transactions, destinations; and the primary hears of it

What it promises
    The rules of docs/design/transactions.md, which are numbered there. Above all:
    K1  All of a part becomes visible and counts as acknowledged by one command, or nothing of it does.
    K2  A part that is prepared can be committed, whatever else is in the log, and is left by TX_FINISH only.
    K3  The home decides once.

What it leaves to others
    Who drives a transaction through several channels is the client manager's business; asking after one that
    seems forgotten, the primary's (doubts).
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.bus.ports import Location
from antiphon.errors import ProtocolError
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.transactions import (
    APPLICATIONS_MAX,
    Decision,
    OpenPart,
    PreparedPart,
    StagedPart,
)
from antiphon.message_manager.turns import (
    APPLIED,
    DUPLICATE,
    NO_DESTINATION,
    REFUSED,
    TEXT_MAX,
    TX_ROLLED_BACK,
    Turn,
    Turns,
)
from antiphon.message_manager.uncommitted import Held
from antiphon.wire.commands import COMMAND_HEADER_SIZE, NODE_SESSION
from antiphon.wire.primitives import Buffer
from antiphon.wire.transactions import (
    STAGED_BYTES_MAX,
    STAGED_MESSAGES_MAX,
    STAGED_SECONDS_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
    CommitTransaction,
    Consumed,
    DecideTransaction,
    DropStaged,
    FinishTransaction,
    ForgetTransaction,
    PrepareTransaction,
    ResolveTransaction,
    RollBackTransaction,
    StagedPublish,
    TransactedPublish,
)

Wish = CommitTransaction | PrepareTransaction | DecideTransaction


class TransactionFold(Turns):
    """The handlers of TX_PUBLISH and what follows it, and of what is staged."""

    __slots__ = ("_envelope",)

    # The digest and the place of the envelope that is being applied.
    _envelope: tuple[bytes, Location]

    # -- storing -----------------------------------------------------------------

    def _on_tx_publish(self, turn: Turn, body: memoryview) -> None:
        """Whatever is wrong with it drops the part: a transaction that lacks something can never commit."""
        if not self._admit(turn):
            return
        transactions, session = self.state.transactions, turn.header.session
        try:
            wish = TransactedPublish.decode(body)
        except ProtocolError as error:
            transactions.end_open(session)
            self._settle(turn, REFUSED, text=error.text)
            return
        part = transactions.open.get(session)
        if part is not None and part.transaction > wish.transaction:
            self._settle(turn, TX_ROLLED_BACK, text=f"transaction {part.transaction} has begun since")
            return
        transactions.drop_open(session, wish.transaction - 1)
        part = transactions.open_of(session, wish.transaction) or OpenPart(wish.transaction)
        code, text = self._why_not_store(turn, wish, part)
        if code == APPLIED:
            self._keep(turn, wish)
            part.add(turn.sequence, wish.rows, len(wish.batch))
            transactions.open[session] = part
        else:
            transactions.end_open(session)
        self._settle(turn, code, text=text)

    def _why_not_store(self, turn: Turn, wish: TransactedPublish, part: OpenPart) -> tuple[int, str]:
        if turn.header.session == NODE_SESSION:
            return REFUSED, "only a session has transactions"
        if (turn.header.session, wish.transaction) in self.state.transactions.prepared:
            return REFUSED, "the transaction is being committed already"
        if wish.index != len(part.batches):
            return TX_ROLLED_BACK, f"batch {wish.index} came, and {len(part.batches)} are here"
        if part.messages + wish.rows > TRANSACTION_MESSAGES_MAX:
            return REFUSED, f"a transaction brings at most {TRANSACTION_MESSAGES_MAX:,} messages to a channel"
        if part.bytes + len(wish.batch) > TRANSACTION_BYTES_MAX:
            return REFUSED, f"a transaction brings at most {TRANSACTION_BYTES_MAX:,} bytes to a channel"
        return self._why_not_this(wish.destination, wish.rows, wish.batch)

    def _why_not_this(self, destination: int, rows: int, batch: Buffer) -> tuple[int, str]:
        if self.state.directory.get(destination) is None:
            return NO_DESTINATION, ""
        if not rows or not looks_like_batch(batch, rows):
            return REFUSED, f"this is no batch of {rows} messages"
        return APPLIED, ""

    def _keep(self, turn: Turn, wish: TransactedPublish | StagedPublish) -> None:
        origin, location = self._envelope
        # A batch is the end of its command.
        length = len(wish.batch)
        offset = turn.offset + COMMAND_HEADER_SIZE + turn.header.length - length
        held = Held(wish.destination, wish.rows, origin)
        self.state.transactions.uncommitted.keep(turn.sequence, held, location, offset, length)

    # -- staging -----------------------------------------------------------------

    def _on_stage(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = StagedPublish.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        transactions = self.state.transactions
        part = transactions.staged.get(wish.part)
        if part is not None and (part.is_promised or part.application != wish.application):
            # It is not the writer's to spoil.
            self._settle(turn, REFUSED, text="the part is being committed, or another application's")
            return
        code, text = self._why_not_stage(wish, part)
        if code == APPLIED:
            self._keep(turn, wish)
            part = part or StagedPart(wish.application, wish.seconds)
            part.seconds = wish.seconds
            transactions.stage(wish.part, part, turn.sequence, wish.rows, len(wish.batch))
        else:
            transactions.drop_staged(wish.part)
        self._settle(turn, code, text=text)

    def _why_not_stage(self, wish: StagedPublish, part: StagedPart | None) -> tuple[int, str]:
        batches, messages = (len(part.batches), part.messages) if part is not None else (0, 0)
        if wish.index != batches:
            return TX_ROLLED_BACK, f"batch {wish.index} came, and {batches} are here"
        if not wish.application or wish.seconds > STAGED_SECONDS_MAX:
            return REFUSED, f"what is staged has an application, and lives {STAGED_SECONDS_MAX:,} s at most"
        if messages + wish.rows > STAGED_MESSAGES_MAX:
            return REFUSED, f"at most {STAGED_MESSAGES_MAX:,} messages are staged in a part"
        staged_bytes = self.state.transactions.staged_bytes(wish.application)
        if not staged_bytes and self.state.transactions.staged_applications >= APPLICATIONS_MAX:
            return REFUSED, f"{APPLICATIONS_MAX:,} applications have something staged here"
        if staged_bytes + len(wish.batch) > STAGED_BYTES_MAX:
            return REFUSED, f"{wish.application} has staged {staged_bytes:,} of {STAGED_BYTES_MAX:,} bytes"
        return self._why_not_this(wish.destination, wish.rows, wish.batch)

    def _on_drop_staged(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = DropStaged.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        for id in wish.parts:
            self.state.transactions.drop_staged(id)
        self._settle(turn)

    # -- in one channel ------------------------------------------------------------

    def _on_tx_commit(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        transactions, session = self.state.transactions, turn.header.session
        try:
            wish = CommitTransaction.decode(body)
        except ProtocolError as error:
            transactions.end_open(session)
            self._settle(turn, REFUSED, text=error.text)
            return
        known = transactions.decision(session, wish.transaction)
        if turn.skip:
            why_not: str | None = "a part of its numbers was taken before"
        elif known is not None:
            why_not = f"it was decided before: {known.text or 'it is committed'}"
        else:
            why_not = self._why_not(turn, wish, ())
        if why_not is None:
            self._carry_out(turn, session, transactions.take_open(session, wish.transaction), wish.consumed)
            self._settle(turn)
        else:
            transactions.drop_open(session, wish.transaction)
            self._settle(turn, TX_ROLLED_BACK, text=why_not)

    def _on_tx_rollback(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = RollBackTransaction.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        self.state.transactions.drop_open(turn.header.session, wish.transaction)
        self._settle(turn)

    # -- in several channels ---------------------------------------------------------

    def _on_tx_prepare(self, turn: Turn, body: memoryview) -> None:
        if not self._admit_unnumbered(turn):
            return
        transactions, session = self.state.transactions, turn.header.session
        try:
            wish = PrepareTransaction.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        if (session, wish.transaction) in transactions.prepared:
            return
        why_not = self._why_not(turn, wish, wish.staged)
        if why_not is not None:
            transactions.drop_open(session, wish.transaction)
            self._deny(turn, TX_ROLLED_BACK, why_not)
            return
        own = tuple(transactions.take_open(session, wish.transaction))
        part = PreparedPart(wish.home, own, wish.staged, wish.messages, wish.consumed)
        transactions.prepare(session, wish.transaction, part)
        if self.primary is not None:
            self.primary.doubts.prepared(session, wish.transaction, part)
            for one in part.consumed:
                self.primary.delivery.locked(one.subscription or one.destination, one.numbers)

    def _on_tx_decide(self, turn: Turn, body: memoryview) -> None:
        """The first decision holds, whoever asks for another one later, and for whatever generation."""
        session = turn.header.session
        try:
            wish = DecideTransaction.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        transactions = self.state.transactions
        known = transactions.decision(session, wish.transaction)
        if known is not None:
            self._tell(turn, known)
            return
        if not self._admit_unnumbered(turn):
            return
        if wish.application and transactions.done.get(wish.application, -1) >= wish.version:
            transactions.drop_open(session, wish.transaction)
            for id in wish.staged:
                transactions.drop_staged(id)
            version = transactions.done[wish.application]
            self._deny(turn, DUPLICATE, f"{wish.application} has committed version {version}")
            return
        later = transactions.decided_last(session)
        why_not = f"transaction {later} was decided since" if later > wish.transaction else None
        why_not = why_not or self._why_not(turn, wish, wish.staged)
        if why_not is None:
            self._decide_to_commit(turn, wish)
        else:
            self._decide_to_roll_back(session, wish.transaction, why_not)
            self._deny(turn, TX_ROLLED_BACK, why_not)

    def _decide_to_commit(self, turn: Turn, wish: DecideTransaction) -> None:
        transactions, session = self.state.transactions, turn.header.session
        batches = [
            *transactions.take_open(session, wish.transaction),
            *transactions.take_staged(wish.staged),
        ]
        self._carry_out(turn, session, batches, wish.consumed)
        if wish.application:
            transactions.committed(wish.application, wish.version)
        decision = Decision(True, wish.participants, is_complete=not wish.participants)
        transactions.decide(session, wish.transaction, decision)
        if self.primary is not None and wish.participants:
            self.primary.doubts.decided(session, wish.transaction, decision)

    def _decide_to_roll_back(self, session: int, transaction: int, why: str) -> None:
        """Also for a session that is not known: SESSION_OPEN and DECIDE may still be on their way.

        Below a later decision no mark is needed: DECIDE sees that.
        """
        transactions = self.state.transactions
        transactions.drop_open(session, transaction)
        if transactions.decided_last(session) < transaction:
            decision = Decision(False, text=why[:TEXT_MAX])
            is_known = self.state.sessions.has(session)
            transactions.decide(session, transaction, decision, is_known=is_known)

    def _tell(self, turn: Turn, decision: Decision) -> None:
        if not decision.commits:
            self._deny(turn, TX_ROLLED_BACK, decision.text)

    def _on_tx_resolve(self, turn: Turn, body: memoryview) -> None:
        try:
            wish = ResolveTransaction.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        known = self.state.transactions.decision(wish.session, wish.transaction)
        if known is not None:
            self._tell(turn, known)
            return
        why = "whoever was to decide it did not"
        self._decide_to_roll_back(wish.session, wish.transaction, why)
        self._deny(turn, TX_ROLLED_BACK, why)

    def _on_tx_finish(self, turn: Turn, body: memoryview) -> None:
        try:
            wish = FinishTransaction.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        transactions = self.state.transactions
        part = transactions.prepared.get((wish.session, wish.transaction))
        if part is None:
            # It was finished before; or the home, whose part is not prepared, hears that it came to nothing.
            if not wish.commits and transactions.open_of(wish.session, wish.transaction) is not None:
                transactions.end_open(wish.session)
            return
        if wish.commits and (part.messages, max(1, part.messages)) != (wish.messages, turn.header.count):
            text = f"{wish.messages} messages in {turn.header.count} numbers; {part.messages} are prepared"
            self._deny(turn, REFUSED, text)
            return
        del transactions.prepared[wish.session, wish.transaction]
        transactions.unlock(part)
        if self.primary is not None:
            self.primary.doubts.finished(wish.session, wish.transaction)
        if wish.commits:
            batches = [*part.batches, *transactions.take_staged(part.staged)]
            self._carry_out(turn, wish.session, batches, part.consumed)
        else:
            self._undo(part)

    def _undo(self, part: PreparedPart) -> None:
        """What is staged can be committed another time; what is locked may be given out again."""
        transactions = self.state.transactions
        transactions.uncommitted.drop(part.batches)
        transactions.give_back_staged(part.staged)
        if self.primary is not None:
            for one in part.consumed:
                self.primary.delivery.unlocked(one.subscription or one.destination, one.numbers)

    def _on_tx_forget(self, turn: Turn, body: memoryview) -> None:
        try:
            wish = ForgetTransaction.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        transactions = self.state.transactions
        known = transactions.decision(wish.session, wish.transaction)
        if known is None or not known.commits or known.is_complete:
            return
        known.is_complete = True
        transactions.tidy(wish.session, is_known=self.state.sessions.has(wish.session))
        if self.primary is not None:
            self.primary.doubts.completed(wish.session, wish.transaction)

    # -- what they share ---------------------------------------------------------------

    def _why_not(self, turn: Turn, wish: Wish, staged: tuple[int, ...]) -> str | None:
        """Why this channel cannot commit its part now, if it cannot."""
        transactions, session = self.state.transactions, turn.header.session
        if session == NODE_SESSION:
            return "only a session has transactions"
        part = transactions.open_of(session, wish.transaction)
        batches, messages = (len(part.batches), part.messages) if part is not None else (0, 0)
        for id in staged:
            one = transactions.staged.get(id)
            if one is None or one.is_promised:
                return f"the staged part {id:032x} is not here any more, or another transaction's"
            batches += len(one.batches)
            messages += one.messages
        if len(set(staged)) != len(staged):
            return "a staged part is named twice"
        if (batches, messages) != (wish.batches, wish.messages):
            return (
                f"{wish.messages} messages in {wish.batches} batches were sent, "
                f"{messages} in {batches} are here"
            )
        messages_max = STAGED_MESSAGES_MAX if staged else TRANSACTION_MESSAGES_MAX
        if messages > messages_max:
            return f"a transaction brings at most {messages_max:,} messages to a channel"
        if not isinstance(wish, PrepareTransaction) and turn.header.count != max(1, messages):
            return f"{messages} messages do not take {turn.header.count} numbers"
        return self._why_not_consume(wish.consumed)

    def _why_not_consume(self, consumed: Iterable[Consumed]) -> str | None:
        locks = self.state.transactions.locks
        for destination, subscription, numbers in consumed:
            source = self.state.directory.source(destination, subscription)
            if source is None:
                return "what messages were received from is not here any more"
            lost = numbers.count - source.still(numbers).count
            if lost:
                return f"{lost} of {numbers.count} messages of {source.name} were no longer there"
            name = self.state.holds.consumer_of(source.id) if source.id in locks else None
            if name is not None:
                return f"{source.name} is consumed by {name}"
            locked = locks.get(source.id)
            if locked is not None and locked.intersection(numbers):
                return f"another transaction is about to acknowledge the same of {source.name}"
        return None

    def _carry_out(self, turn: Turn, session: int, batches: list[int], consumed: Iterable[Consumed]) -> None:
        """Make the batches visible under the numbers of this command, and acknowledge what was consumed (K1).

        Rows of a destination that was deleted meanwhile take their numbers, and are gone like all of it.
        """
        directory, uncommitted = self.state.directory, self.state.transactions.uncommitted
        primary, holds = self.primary, self.state.holds
        first = turn.sequence
        for number in batches:
            (destination, rows, origin), stored = uncommitted.look_up(number)
            store = directory.get(destination)
            if store is not None:
                store.publish(first, rows, 0, stored.location, stored.offset, stored.length, origin)
                if primary is not None:
                    primary.delivery.published(destination, first, first + rows)
            first += rows
        uncommitted.drop(batches)
        for destination, subscription, numbers in consumed:
            source = directory.source(destination, subscription)
            removed = source.acknowledge(numbers) if source is not None else None
            if removed and holds.audits(destination):
                # FINISH does not say what it acknowledges, and a commit may be of many destinations.
                holds.acknowledgements.tell(turn.sequence, (Consumed(destination, subscription, removed),))
            if source is not None and removed and primary is not None:
                primary.delivery.acknowledged(source.id, removed, session)
