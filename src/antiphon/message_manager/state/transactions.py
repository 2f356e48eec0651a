"""Transactions: what a channel knows of transactions that are under way, and of those it has decided.

Where it sits
    transaction fold  ->  TRANSACTIONS  ->  uncommitted batches, locks

What it promises
    V1  It is a part of the state: the same on every replica, in its digest and in its checkpoints.
    V2  A session has one open part at most. A prepared part stays until it is finished.
    V3  `locks` has what prepared parts acknowledge, by the id of the queue or subscription, and nothing else.
    V4  Decisions are bounded by living sessions, by commits that somebody has not carried out yet, and by
        what was decided within the last hour for sessions that are not known.
    V5  Every uncommitted batch belongs to one part: an open, a prepared or a staged one.

What it leaves to others
    When a part is opened, prepared or committed is for the fold to say, by the rules of
    docs/design/transactions.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from antiphon.errors import ProtocolError
from antiphon.message_manager.state.destinations.index import SegmentUse
from antiphon.message_manager.state.uncommitted import Uncommitted
from antiphon.ranges import Ranges
from antiphon.wire.primitives import Reader, Writer
from antiphon.wire.transactions import Consumed, Participant, read_consumed, write_consumed

OPEN_MS_MAX: Final = 300_000
"""How long a transaction may be open, by the time of the channel."""

MARK_MS_MAX: Final = 3_600_000
"""How long a decision is kept for a session that the channel does not know, or not any more: its client may
come back and ask, or a client manager that is slow may have SESSION_OPEN and DECIDE in its queues."""

MARKS_MAX: Final = 65_536
"""How many such decisions are kept. Beyond that the older half goes."""

APPLICATIONS_MAX: Final = 65_536
"""Applications that have something staged in a channel; and in the system channel, applications whose highest
version is known. Beyond that, the one that has not committed for longest is forgotten."""

NOT_YET: Final = -1
"""Of what came after the channel's time was last told: its time begins when it is told next."""


@dataclass(slots=True)
class OpenPart:
    """What was stored for a transaction that nothing has been promised for."""

    transaction: int
    batches: list[int] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    since_ms: int = NOT_YET

    def add(self, number: int, rows: int, size: int) -> None:
        self.batches.append(number)
        self.messages += rows
        self.bytes += size


@dataclass(slots=True)
class StagedRows:
    """What an application has staged under one part id; `is_promised` while it is in a prepared part."""

    application: str
    seconds: int
    batches: list[int] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0
    since_ms: int = NOT_YET
    is_promised: bool = False

    @property
    def until_ms(self) -> int:
        return self.since_ms + self.seconds * 1_000


@dataclass(slots=True)
class PreparedPart:
    """It is promised that this can be committed. `messages` counts those of the staged parts too."""

    home: str
    batches: tuple[int, ...]
    staged: tuple[int, ...]
    messages: int
    consumed: tuple[Consumed, ...]


@dataclass(slots=True)
class Decision:
    """What this channel decided as the home of a transaction; `text` says why it was rolled back."""

    commits: bool
    participants: tuple[Participant, ...] = ()
    text: str = ""
    # All participants are known to have carried it out.
    is_complete: bool = False


class Transactions:
    """The transactions of a channel."""

    __slots__ = (
        "_decisions",
        "_marks",
        "_staged_bytes",
        "done",
        "locks",
        "open",
        "prepared",
        "staged",
        "uncommitted",
    )

    def __init__(self, use: SegmentUse) -> None:
        self.uncommitted = Uncommitted(use)
        # By session; by session and transaction; by part id.
        self.open: dict[int, OpenPart] = {}
        self.prepared: dict[tuple[int, int], PreparedPart] = {}
        self.staged: dict[int, StagedRows] = {}
        # By session, then by transaction.
        self._decisions: dict[int, dict[int, Decision]] = {}
        # Sessions that are not known and have a decision that is nobody's to carry out, and since when.
        self._marks: dict[int, int] = {}
        # The highest version that was committed, by application; who committed last is last.
        self.done: dict[str, int] = {}
        # By the id of the source.
        self.locks: dict[int, Ranges] = {}
        self._staged_bytes: dict[str, int] = {}

    # -- open parts ------------------------------------------------------------

    def open_of(self, session: int, transaction: int) -> OpenPart | None:
        """The open part of this transaction."""
        part = self.open.get(session)
        return part if part is not None and part.transaction == transaction else None

    def take_open(self, session: int, transaction: int) -> list[int]:
        """The batches of this transaction's open part, which is open no more; a lower one is dropped."""
        part = self.open_of(session, transaction)
        if part is None:
            self.drop_open(session, transaction)
            return []
        del self.open[session]
        return part.batches

    def drop_open(self, session: int, through: int) -> None:
        """Drop what is open of the session's transactions up to this one."""
        part = self.open.get(session)
        if part is not None and part.transaction <= through:
            self.end_open(session)

    def end_open(self, session: int) -> None:
        """Drop what is open of a session, whichever transaction it is."""
        part = self.open.pop(session, None)
        if part is not None:
            self.uncommitted.drop(part.batches)

    def end_all_open(self) -> None:
        for session in list(self.open):
            self.end_open(session)

    # -- staged parts ------------------------------------------------------------

    @property
    def staged_applications(self) -> int:
        """So many applications have something staged."""
        return len(self._staged_bytes)

    def staged_bytes(self, application: str) -> int:
        return self._staged_bytes.get(application, 0)

    def stage(self, id: int, part: StagedRows, number: int, rows: int, size: int) -> None:
        """Another batch of a part; its time begins anew."""
        self.staged[id] = part
        part.batches.append(number)
        part.messages += rows
        part.bytes += size
        part.since_ms = NOT_YET
        self._staged_bytes[part.application] = self.staged_bytes(part.application) + size

    def unstage(self, id: int) -> list[int]:
        """The part is staged no more; its batches, which go elsewhere."""
        part = self.staged.pop(id)
        left = self._staged_bytes[part.application] - part.bytes
        if left:
            self._staged_bytes[part.application] = left
        else:
            del self._staged_bytes[part.application]
        return part.batches

    def drop_staged(self, id: int) -> None:
        """Drop a part, unless it is promised. One that is not here is fine."""
        part = self.staged.get(id)
        if part is not None and not part.is_promised:
            self.uncommitted.drop(self.unstage(id))

    # -- prepared parts ----------------------------------------------------------

    def prepare(self, session: int, transaction: int, part: PreparedPart) -> None:
        """Promise: what it has staged and what it consumed is spoken for."""
        self.prepared[session, transaction] = part
        for id in part.staged:
            self.staged[id].is_promised = True
        for one in part.consumed:
            if one.numbers:
                self.locks.setdefault(one.subscription or one.destination, Ranges()).add_all(one.numbers)

    def unlock(self, part: PreparedPart) -> None:
        for one in part.consumed:
            source = one.subscription or one.destination
            locked = self.locks.get(source)
            if locked is not None:
                locked.remove_all(one.numbers)
                if not locked:
                    del self.locks[source]

    def take_staged(self, ids: tuple[int, ...]) -> list[int]:
        """The batches of these parts, in this order, which are staged no more."""
        return [number for id in ids for number in self.unstage(id)]

    def give_back_staged(self, ids: tuple[int, ...]) -> None:
        """These parts are as they were before anything was promised; their time begins anew."""
        for id in ids:
            self.staged[id].is_promised = False
            self.staged[id].since_ms = NOT_YET

    # -- decisions ---------------------------------------------------------------

    def decision(self, session: int, transaction: int) -> Decision | None:
        of_session = self._decisions.get(session)
        return of_session.get(transaction) if of_session else None

    def decided_last(self, session: int) -> int:
        """The highest transaction of the session of which a decision is known; 0 if there is none."""
        return max(self._decisions.get(session, ()), default=0)

    def decide(self, session: int, transaction: int, decision: Decision, *, is_known: bool = True) -> None:
        self._decisions.setdefault(session, {})[transaction] = decision
        # The time of an earlier one is not that of this one.
        self._marks.pop(session, None)
        self.tidy(session, is_known=is_known)

    def committed(self, application: str, version: int) -> None:
        """An application's version is done. Of too many applications the oldest goes."""
        self.done.pop(application, None)
        if len(self.done) >= APPLICATIONS_MAX:
            del self.done[next(iter(self.done))]
        self.done[application] = version

    def tidy(self, session: int, *, is_known: bool) -> None:
        """Keep what somebody must still carry out, and the last decision: somebody may still ask for it.

        That of a session that is not known is marked, to be forgotten after a while.
        """
        of_session = self._decisions.get(session)
        if of_session is None:
            return
        last = max(of_session)
        for transaction, decision in list(of_session.items()):
            if decision.commits and not decision.is_complete:
                continue
            if transaction < last:
                del of_session[transaction]
            elif not is_known:
                self._marks.setdefault(session, NOT_YET)
        if len(self._marks) > MARKS_MAX:
            # A function of the marks alone, so all replicas forget the same.
            for oldest in sorted(self._marks, key=self._age_of_mark)[: MARKS_MAX // 2]:
                self._forget_mark(oldest)

    def _age_of_mark(self, session: int) -> tuple[bool, int, int]:
        """What sorts marks, the oldest first."""
        since_ms = self._marks[session]
        return since_ms == NOT_YET, since_ms, session

    def _forget_mark(self, session: int) -> None:
        """Whoever has not asked by now does not get to know any more."""
        del self._marks[session]
        of_session = self._decisions[session]
        for transaction, decision in list(of_session.items()):
            if not decision.commits or decision.is_complete:
                del of_session[transaction]
        if not of_session:
            del self._decisions[session]

    def session_opened(self, session: int) -> None:
        """It is known, perhaps again: what was decided for it is kept for as long as it is here."""
        self._marks.pop(session, None)

    def unfinished(self) -> Iterator[tuple[int, int, Decision]]:
        """Commits that are not known to be carried out everywhere: session, transaction, decision."""
        for session, of_session in sorted(self._decisions.items()):
            for transaction, decision in sorted(of_session.items()):
                if decision.commits and not decision.is_complete:
                    yield session, transaction, decision

    # -- time --------------------------------------------------------------------

    def time_passed(self, now_ms: int) -> None:
        """The channel's time has moved on: let go of what has been open, staged or marked for too long."""
        for session, part in sorted(self.open.items()):
            if part.since_ms == NOT_YET:
                part.since_ms = now_ms
            elif now_ms > part.since_ms + OPEN_MS_MAX:
                self.end_open(session)
        for id, staged in sorted(self.staged.items()):
            if staged.since_ms == NOT_YET:
                staged.since_ms = now_ms
            elif now_ms > staged.until_ms:
                self.drop_staged(id)
        for session, since_ms in sorted(self._marks.items()):
            if since_ms == NOT_YET:
                self._marks[session] = now_ms
            elif now_ms > since_ms + MARK_MS_MAX:
                self._forget_mark(session)

    def due_ms(self) -> int | None:
        """When something will have been here for too long; 0 if time must be told first."""
        due = [
            0 if part.since_ms == NOT_YET else part.since_ms + OPEN_MS_MAX + 1 for part in self.open.values()
        ]
        due += [
            0 if part.since_ms == NOT_YET else part.until_ms + 1
            for part in self.staged.values()
            if not part.is_promised
        ]
        due += [0 if since_ms == NOT_YET else since_ms + MARK_MS_MAX + 1 for since_ms in self._marks.values()]
        return min(due, default=None)

    # -- bytes -----------------------------------------------------------------

    def write_logical(self, writer: Writer) -> None:
        """What every replica agrees on."""
        self.uncommitted.write_logical(writer)
        writer.count(len(self.open))
        for session, part in sorted(self.open.items()):
            writer.u128(session)
            writer.u64(part.transaction)
            _write_stored(writer, part)
        writer.count(len(self.staged))
        for id, staged in sorted(self.staged.items()):
            writer.u128(id)
            writer.text(staged.application)
            writer.u32(staged.seconds)
            _write_stored(writer, staged)
        writer.count(len(self.prepared))
        for (session, transaction), prepared in sorted(self.prepared.items()):
            writer.u128(session)
            writer.u64(transaction)
            _write_prepared(writer, prepared)
        decisions = [
            (session, transaction, decision)
            for session, of_session in sorted(self._decisions.items())
            for transaction, decision in sorted(of_session.items())
        ]
        writer.count(len(decisions))
        for session, transaction, decision in decisions:
            writer.u128(session)
            writer.u64(transaction)
            _write_decision(writer, decision)
        writer.count(len(self._marks))
        for session, since_ms in sorted(self._marks.items()):
            writer.u128(session)
            writer.i64(since_ms)
        writer.count(len(self.done))
        # In their order, which is that of the log.
        for application, version in self.done.items():
            writer.text(application)
            writer.u64(version)

    def write_places(self, writer: Writer) -> None:
        """Where this replica keeps the bytes."""
        self.uncommitted.write_places(writer)

    def read_logical(self, reader: Reader) -> None:
        self.uncommitted.read_logical(reader)
        for _ in range(reader.count(16 + 8 + _STORED_BYTES_MIN)):
            session = reader.u128()
            part = OpenPart(reader.u64())
            _read_stored(reader, part)
            self.open[session] = part
        for _ in range(reader.count(16 + 2 + 4 + _STORED_BYTES_MIN)):
            id = reader.u128()
            staged = StagedRows(reader.text(), reader.u32())
            _read_stored(reader, staged)
            self.staged[id] = staged
            self._staged_bytes[staged.application] = self.staged_bytes(staged.application) + staged.bytes
        for _ in range(reader.count(16 + 8 + 2 + 4 + 4 + 4 + 4)):
            session, transaction = reader.u128(), reader.u64()
            part_prepared = _read_prepared(reader)
            if not self.staged.keys() >= set(part_prepared.staged):
                raise ProtocolError("a prepared part of what is not staged")
            self.prepare(session, transaction, part_prepared)
        for _ in range(reader.count(16 + 8 + 1 + 1 + 2 + 4)):
            session, transaction = reader.u128(), reader.u64()
            self._decisions.setdefault(session, {})[transaction] = _read_decision(reader)
        for _ in range(reader.count(16 + 8)):
            session = reader.u128()
            self._marks[session] = reader.i64()
        for _ in range(reader.count(2 + 8)):
            application = reader.text()
            self.done[application] = reader.u64()

    def read_places(self, reader: Reader, use: SegmentUse) -> None:
        self.uncommitted.read_places(reader, use)


_STORED_BYTES_MIN: Final = 4 + 4 + 8 + 8


def _write_stored(writer: Writer, part: OpenPart | StagedRows) -> None:
    _write_numbers(writer, part.batches)
    writer.u32(part.messages)
    writer.u64(part.bytes)
    writer.i64(part.since_ms)


def _read_stored(reader: Reader, part: OpenPart | StagedRows) -> None:
    part.batches = _read_numbers(reader)
    part.messages = reader.u32()
    part.bytes = reader.u64()
    part.since_ms = reader.i64()


def _write_numbers(writer: Writer, numbers: list[int] | tuple[int, ...]) -> None:
    writer.count(len(numbers))
    for number in numbers:
        writer.u64(number)


def _read_numbers(reader: Reader) -> list[int]:
    return [reader.u64() for _ in range(reader.count(8))]


def _write_prepared(writer: Writer, part: PreparedPart) -> None:
    writer.text(part.home)
    _write_numbers(writer, part.batches)
    writer.count(len(part.staged))
    for id in part.staged:
        writer.u128(id)
    writer.u32(part.messages)
    writer.count(len(part.consumed))
    for one in part.consumed:
        write_consumed(writer, one)


def _read_prepared(reader: Reader) -> PreparedPart:
    home = reader.text()
    batches = tuple(_read_numbers(reader))
    staged = tuple([reader.u128() for _ in range(reader.count(16))])
    messages = reader.u32()
    consumed = tuple([read_consumed(reader) for _ in range(reader.count(20))])
    return PreparedPart(home, batches, staged, messages, consumed)


def _write_decision(writer: Writer, decision: Decision) -> None:
    writer.bool_(decision.commits)
    writer.bool_(decision.is_complete)
    writer.text(decision.text)
    writer.count(len(decision.participants))
    for participant in decision.participants:
        writer.text(participant.channel)
        writer.u32(participant.messages)


def _read_decision(reader: Reader) -> Decision:
    commits, is_complete, text = reader.bool_(), reader.bool_(), reader.text()
    participants = [Participant(reader.text(), reader.u32()) for _ in range(reader.count(6))]
    return Decision(commits, tuple(participants), text, is_complete)
