"""The commands of transactions, and of staged parts.

The rules are in docs/design/transactions.md. Above all:
TRX1  All of a part becomes visible and counts as acknowledged by one command, or nothing of it does.
TRX2  A prepared part can be committed, whatever else is in the log, and is ended by TX_FINISH only.
TRX3  The home decides once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from antiphon.errors import ProtocolError
from antiphon.message_manager.fold.audits import note_acknowledged
from antiphon.message_manager.fold.messages import make_visible, not_for_clients
from antiphon.message_manager.fold.turns import (
    DUPLICATE,
    NO_DESTINATION,
    REFUSED,
    TEXT_MAX,
    TX_ROLLED_BACK,
    Channel,
    CommandRule,
    Turn,
    Verdict,
    admit_any,
    admit_numbered,
    admit_unnumbered,
)
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.state.destinations.rules import DeliveryRules
from antiphon.message_manager.state.known_ids import row_ids
from antiphon.message_manager.state.transactions import (
    APPLICATIONS_MAX,
    Decision,
    OpenPart,
    PreparedPart,
    StagedRows,
)
from antiphon.message_manager.state.uncommitted import Held
from antiphon.wire.commands import COMMAND_HEADER_SIZE, NODE_SESSION, CommandKind
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

CommitWish = CommitTransaction | PrepareTransaction | DecideTransaction

# -- storing -------------------------------------------------------------------------


def end_open_part(channel: Channel, turn: Turn) -> None:
    """Drop an incomplete part: its transaction can never commit."""
    channel.state.transactions.end_open(turn.header.session)


def publish_transacted(channel: Channel, turn: Turn, wish: TransactedPublish) -> Verdict | None:
    """A refused publish drops the part."""
    transactions, session = channel.state.transactions, turn.header.session
    part = transactions.open.get(session)
    if part is not None and part.transaction > wish.transaction:
        return Verdict(TX_ROLLED_BACK, text=f"transaction {part.transaction} has begun since")
    transactions.drop_open(session, wish.transaction - 1)
    part = transactions.open_of(session, wish.transaction) or OpenPart(wish.transaction)
    verdict = _why_not_store(channel, turn, wish, part) or _keep(channel, turn, wish)
    if verdict is None:
        part.add(turn.sequence, wish.rows, len(wish.batch))
        transactions.open[session] = part
    else:
        transactions.end_open(session)
    return verdict


def _why_not_store(channel: Channel, turn: Turn, wish: TransactedPublish, part: OpenPart) -> Verdict | None:
    if turn.header.session == NODE_SESSION:
        return Verdict(REFUSED, text="only a session has transactions")
    if (turn.header.session, wish.transaction) in channel.state.transactions.prepared:
        return Verdict(REFUSED, text="the transaction is being committed already")
    if wish.index != len(part.batches):
        return Verdict(TX_ROLLED_BACK, text=f"batch {wish.index} came, and {len(part.batches)} are here")
    if part.messages + wish.rows > TRANSACTION_MESSAGES_MAX:
        text = f"a transaction brings at most {TRANSACTION_MESSAGES_MAX:,} messages to a channel"
        return Verdict(REFUSED, text=text)
    if part.bytes + len(wish.batch) > TRANSACTION_BYTES_MAX:
        text = f"a transaction brings at most {TRANSACTION_BYTES_MAX:,} bytes to a channel"
        return Verdict(REFUSED, text=text)
    return _why_not_this(channel, wish.destination, wish.rows, wish.batch)


def _why_not_this(channel: Channel, destination: int, rows: int, batch: Buffer) -> Verdict | None:
    store = channel.state.directory.get(destination)
    if store is None:
        return Verdict(NO_DESTINATION)
    if store.is_reserved:
        return Verdict(REFUSED, text=not_for_clients(store.name))
    if not rows or not looks_like_batch(batch, rows):
        return Verdict(REFUSED, text=f"this is no batch of {rows} messages")
    return None


def _keep(channel: Channel, turn: Turn, wish: TransactedPublish | StagedPublish) -> Verdict | None:
    try:
        rules, ids = DeliveryRules.of(wish.batch), row_ids(wish.batch)
    except ProtocolError as error:
        return Verdict(REFUSED, text=error.text)
    if ids and isinstance(wish, StagedPublish):
        return Verdict(
            REFUSED, text="a staged message has no dedup_id: its commit is made once by its version"
        )
    _, _, origin, location = turn.envelope
    # A batch is the end of its command.
    length = len(wish.batch)
    offset = turn.offset + COMMAND_HEADER_SIZE + turn.header.length - length
    held = Held(wish.destination, wish.rows, origin, rules or None, ids)
    channel.state.transactions.uncommitted.keep(turn.sequence, held, location, offset, length)
    return None


# -- staging -------------------------------------------------------------------------


def stage(channel: Channel, turn: Turn, wish: StagedPublish) -> Verdict | None:
    transactions = channel.state.transactions
    part = transactions.staged.get(wish.part)
    if part is not None and (part.is_promised or part.application != wish.application):
        # A writer must not spoil another's part.
        return Verdict(REFUSED, text="the part is being committed, or another application's")
    verdict = _why_not_stage(channel, wish, part) or _keep(channel, turn, wish)
    if verdict is None:
        part = part or StagedRows(wish.application, wish.seconds)
        part.seconds = wish.seconds
        transactions.stage(wish.part, part, turn.sequence, wish.rows, len(wish.batch))
    else:
        transactions.drop_staged(wish.part)
    return verdict


def _why_not_stage(channel: Channel, wish: StagedPublish, part: StagedRows | None) -> Verdict | None:
    transactions, application = channel.state.transactions, wish.application
    batches, messages = (len(part.batches), part.messages) if part is not None else (0, 0)
    if wish.index != batches:
        return Verdict(TX_ROLLED_BACK, text=f"batch {wish.index} came, and {batches} are here")
    staged_bytes = transactions.staged_bytes(application)
    if not application or wish.seconds > STAGED_SECONDS_MAX:
        text = f"what is staged has an application, and lives {STAGED_SECONDS_MAX:,} s at most"
    elif messages + wish.rows > STAGED_MESSAGES_MAX:
        text = f"at most {STAGED_MESSAGES_MAX:,} messages are staged in a part"
    elif not staged_bytes and transactions.staged_applications >= APPLICATIONS_MAX:
        text = f"{APPLICATIONS_MAX:,} applications have something staged here"
    elif staged_bytes + len(wish.batch) > STAGED_BYTES_MAX:
        text = f"{application} has staged {staged_bytes:,} of {STAGED_BYTES_MAX:,} bytes"
    else:
        return _why_not_this(channel, wish.destination, wish.rows, wish.batch)
    return Verdict(REFUSED, text=text)


def drop_staged(channel: Channel, turn: Turn, wish: DropStaged) -> None:
    for id in wish.parts:
        channel.state.transactions.drop_staged(id)


# -- in one channel --------------------------------------------------------------------


def commit(channel: Channel, turn: Turn, wish: CommitTransaction) -> Verdict | None:
    transactions, session = channel.state.transactions, turn.header.session
    known = transactions.decision(session, wish.transaction)
    if turn.skip:
        why_not: str | None = "a part of its numbers was taken before"
    elif known is not None:
        why_not = f"it was decided before: {known.text or 'it is committed'}"
    else:
        why_not = _why_not(channel, turn, wish, ())
    if why_not is not None:
        transactions.drop_open(session, wish.transaction)
        return Verdict(TX_ROLLED_BACK, text=why_not)
    _carry_out(channel, turn, session, transactions.take_open(session, wish.transaction), wish.consumed)
    return None


def roll_back(channel: Channel, turn: Turn, wish: RollBackTransaction) -> None:
    channel.state.transactions.drop_open(turn.header.session, wish.transaction)


# -- in several channels ---------------------------------------------------------------


def prepare(channel: Channel, turn: Turn, wish: PrepareTransaction) -> Verdict | None:
    transactions, session = channel.state.transactions, turn.header.session
    if (session, wish.transaction) in transactions.prepared:
        return None
    why_not = _why_not(channel, turn, wish, wish.staged)
    if why_not is not None:
        transactions.drop_open(session, wish.transaction)
        return Verdict(TX_ROLLED_BACK, text=why_not)
    own = tuple(transactions.take_open(session, wish.transaction))
    part = PreparedPart(wish.home, own, wish.staged, wish.messages, wish.consumed)
    transactions.prepare(session, wish.transaction, part)
    if channel.primary is not None:
        channel.primary.doubts.prepared(session, wish.transaction, part)
        for one in part.consumed:
            channel.primary.delivery.locked(one.subscription or one.destination, one.numbers)
    return None


def decide(channel: Channel, turn: Turn, wish: DecideTransaction) -> Verdict | None:
    """The first decision holds, against any later one and for any generation."""
    transactions, session = channel.state.transactions, turn.header.session
    known = transactions.decision(session, wish.transaction)
    if known is not None:
        return _told(known)
    if not admit_unnumbered(channel, turn):
        return None
    if wish.application and transactions.done.get(wish.application, -1) >= wish.version:
        transactions.drop_open(session, wish.transaction)
        for id in wish.staged:
            transactions.drop_staged(id)
        version = transactions.done[wish.application]
        return Verdict(DUPLICATE, text=f"{wish.application} has committed version {version}")
    later = transactions.decided_last(session)
    why_not = f"transaction {later} was decided since" if later > wish.transaction else None
    why_not = why_not or _why_not(channel, turn, wish, wish.staged)
    if why_not is not None:
        return _decide_to_roll_back(channel, session, wish.transaction, why_not)
    _decide_to_commit(channel, turn, wish)
    return None


def _decide_to_commit(channel: Channel, turn: Turn, wish: DecideTransaction) -> None:
    transactions, session = channel.state.transactions, turn.header.session
    batches = [
        *transactions.take_open(session, wish.transaction),
        *transactions.take_staged(wish.staged),
    ]
    _carry_out(channel, turn, session, batches, wish.consumed)
    if wish.application:
        transactions.committed(wish.application, wish.version)
    decision = Decision(True, wish.participants, is_complete=not wish.participants)
    transactions.decide(session, wish.transaction, decision)
    if channel.primary is not None and wish.participants:
        channel.primary.doubts.decided(session, wish.transaction, decision)


def _decide_to_roll_back(channel: Channel, session: int, transaction: int, why: str) -> Verdict:
    """Roll back, also for an unknown session: SESSION_OPEN and DECIDE may still be on their way.

    Below a later decision no mark is needed: DECIDE sees that.
    """
    transactions = channel.state.transactions
    transactions.drop_open(session, transaction)
    if transactions.decided_last(session) < transaction:
        decision = Decision(False, text=why[:TEXT_MAX])
        transactions.decide(session, transaction, decision, is_known=channel.state.sessions.has(session))
    return Verdict(TX_ROLLED_BACK, text=why)


def _told(decision: Decision) -> Verdict | None:
    return None if decision.commits else Verdict(TX_ROLLED_BACK, text=decision.text)


def resolve(channel: Channel, turn: Turn, wish: ResolveTransaction) -> Verdict | None:
    known = channel.state.transactions.decision(wish.session, wish.transaction)
    if known is not None:
        return _told(known)
    return _decide_to_roll_back(
        channel, wish.session, wish.transaction, "the client manager that was to decide did not"
    )


def finish(channel: Channel, turn: Turn, wish: FinishTransaction) -> Verdict | None:
    transactions = channel.state.transactions
    part = transactions.prepared.get((wish.session, wish.transaction))
    if part is None:
        # Finished before; or a rollback at the home, whose part is never prepared.
        if not wish.commits and transactions.open_of(wish.session, wish.transaction) is not None:
            transactions.end_open(wish.session)
        return None
    if wish.commits and (part.messages, max(1, part.messages)) != (wish.messages, turn.header.count):
        text = f"{wish.messages} messages in {turn.header.count} numbers; {part.messages} are prepared"
        return Verdict(REFUSED, text=text)
    del transactions.prepared[wish.session, wish.transaction]
    transactions.unlock(part)
    if channel.primary is not None:
        channel.primary.doubts.finished(wish.session, wish.transaction)
    if wish.commits:
        batches = [*part.batches, *transactions.take_staged(part.staged)]
        _carry_out(channel, turn, wish.session, batches, part.consumed)
    else:
        _undo(channel, part)
    return None


def _undo(channel: Channel, part: PreparedPart) -> None:
    """Free the staged parts for another commit, and the locked messages for consumers."""
    transactions = channel.state.transactions
    transactions.uncommitted.drop(part.batches)
    transactions.give_back_staged(part.staged)
    if channel.primary is not None:
        for one in part.consumed:
            channel.primary.delivery.unlocked(one.subscription or one.destination, one.numbers)


def forget(channel: Channel, turn: Turn, wish: ForgetTransaction) -> None:
    transactions = channel.state.transactions
    known = transactions.decision(wish.session, wish.transaction)
    if known is None or not known.commits or known.is_complete:
        return
    known.is_complete = True
    transactions.tidy(wish.session, is_known=channel.state.sessions.has(wish.session))
    if channel.primary is not None:
        channel.primary.doubts.completed(wish.session, wish.transaction)


# -- what they share -------------------------------------------------------------------


def _why_not(channel: Channel, turn: Turn, wish: CommitWish, staged: tuple[int, ...]) -> str | None:
    """The reason why this channel cannot commit its part now."""
    transactions, session = channel.state.transactions, turn.header.session
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
            f"{wish.messages} messages in {wish.batches} batches were sent, {messages} in {batches} are here"
        )
    messages_max = STAGED_MESSAGES_MAX if staged else TRANSACTION_MESSAGES_MAX
    if messages > messages_max:
        return f"a transaction brings at most {messages_max:,} messages to a channel"
    if not isinstance(wish, PrepareTransaction) and turn.header.count != max(1, messages):
        return f"{messages} messages do not take {turn.header.count} numbers"
    return _why_not_consume(channel, wish.consumed)


def _why_not_consume(channel: Channel, consumed: Iterable[Consumed]) -> str | None:
    locks = channel.state.transactions.locks
    for destination, subscription, numbers in consumed:
        source = channel.state.directory.source(destination, subscription)
        if source is None:
            return "what messages were received from is not here any more"
        lost = numbers.count - source.still(numbers).count
        if lost:
            return f"{lost} of {numbers.count} messages of {source.name} were no longer there"
        name = channel.state.holds.consumer_of(source.id) if source.id in locks else None
        if name is not None:
            return f"{source.name} is consumed by {name}"
        locked = locks.get(source.id)
        if locked is not None and locked.intersection(numbers):
            return f"another transaction is about to acknowledge the same of {source.name}"
    return None


def _carry_out(
    channel: Channel, turn: Turn, session: int, batches: list[int], consumed: Iterable[Consumed]
) -> None:
    """Publish the batches under the numbers of this command, and acknowledge the consumed messages (TRX1).

    Rows of a destination that was deleted meanwhile take their numbers, as do rows with ids that are known by
    now.
    """
    directory, uncommitted = channel.state.directory, channel.state.transactions.uncommitted
    primary = channel.primary
    publisher = channel.state.sessions.get(session)
    first = turn.sequence
    for number in batches:
        held, stored = uncommitted.look_up(number)
        store = directory.get(held.destination)
        if store is not None:
            make_visible(channel, store, held, stored, publisher, first)
        first += held.rows
    uncommitted.drop(batches)
    for destination, subscription, numbers in consumed:
        source = directory.source(destination, subscription)
        if source is None:
            continue
        # FINISH does not say what it acknowledges, and a commit may be of many destinations.
        note_acknowledged(channel, turn, source, numbers)
        removed = source.acknowledge(numbers)
        if removed and primary is not None:
            primary.delivery.acknowledged(source.id, removed, session)


RULES: Final = (
    CommandRule(
        CommandKind.TX_PUBLISH, admit_numbered, TransactedPublish.decode, publish_transacted, end_open_part
    ),
    CommandRule(CommandKind.TX_COMMIT, admit_numbered, CommitTransaction.decode, commit, end_open_part),
    CommandRule(CommandKind.TX_ROLLBACK, admit_numbered, RollBackTransaction.decode, roll_back),
    CommandRule(CommandKind.TX_PREPARE, admit_unnumbered, PrepareTransaction.decode, prepare),
    # The decision holds for any generation: the handler looks at the session itself.
    CommandRule(CommandKind.TX_DECIDE, admit_any, DecideTransaction.decode, decide),
    CommandRule(CommandKind.TX_FINISH, admit_any, FinishTransaction.decode, finish),
    CommandRule(CommandKind.TX_RESOLVE, admit_any, ResolveTransaction.decode, resolve),
    CommandRule(CommandKind.TX_FORGET, admit_any, ForgetTransaction.decode, forget),
    CommandRule(CommandKind.STAGE, admit_numbered, StagedPublish.decode, stage),
    CommandRule(CommandKind.DROP_STAGED, admit_numbered, DropStaged.decode, drop_staged),
)
