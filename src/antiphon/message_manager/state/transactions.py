"""Transactions: the parts of a channel's transactions, and its decisions as a home.

TXS1  Transactions are a part of the state: the same on every replica, in its digest and its checkpoints.
TXS2  A session has at most one open part. A prepared part stays until it is finished.
TXS3  `locks` has the messages that prepared parts and consuming holds acknowledge, by source.
TXS4  Decisions are bounded by living sessions, incomplete commits, and an hour for unknown sessions.
TXS5  Every uncommitted batch belongs to one part: an open, a prepared or a staged one.

The fold opens, prepares and commits parts, by the rules of docs/design/transactions.md.
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
"""How long a transaction may be open, in log time."""

MARK_MS_MAX: Final = 3_600_000
"""How long a decision is kept for an unknown session: its client may come back and ask, or a slow client
manager may still send SESSION_OPEN and DECIDE."""

MARKS_MAX: Final = 65_536
"""How many such decisions are kept. Beyond that the older half goes."""

APPLICATIONS_MAX: Final = 65_536
"""Applications with staged parts in a channel; and in the system channel, applications whose highest version
is known, the latest to commit."""

NOT_YET: Final = -1
"""The age of something begins when log time moves next."""


@dataclass(slots=True)
class OpenPart:
    """The batches of a transaction before its commit."""

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
    """The batches that an application has staged under one part id; promised while in a prepared part."""

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
    """A part that can be committed for certain. `messages` includes those of the staged parts."""

    home: str
    batches: tuple[int, ...]
    staged: tuple[int, ...]
    messages: int
    consumed: tuple[Consumed, ...]


@dataclass(slots=True)
class Decision:
    """The decision of this channel as the home of a transaction; `text` says why it was rolled back."""

    commits: bool
    participants: tuple[Participant, ...] = ()
    text: str = ""
    # Whether all participants are known to have carried the decision out.
    is_complete: bool = False


class Transactions:
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
        # Unknown sessions with a decision that needs no more work, and since when.
        self._marks: dict[int, int] = {}
        # The highest committed version, by application, in the order of their last commits.
        self.done: dict[str, int] = {}
        # By the id of the source.
        self.locks: dict[int, Ranges] = {}
        self._staged_bytes: dict[str, int] = {}

    # -- open parts ------------------------------------------------------------

    def open_of(self, session: int, transaction: int) -> OpenPart | None:
        part = self.open.get(session)
        return part if part is not None and part.transaction == transaction else None

    def take_open(self, session: int, transaction: int) -> list[int]:
        """End the open part of this transaction and return its batches; a lower transaction's is dropped."""
        part = self.open_of(session, transaction)
        if part is None:
            self.drop_open(session, transaction)
            return []
        del self.open[session]
        return part.batches

    def drop_open(self, session: int, through: int) -> None:
        part = self.open.get(session)
        if part is not None and part.transaction <= through:
            self.end_open(session)

    def end_open(self, session: int) -> None:
        part = self.open.pop(session, None)
        if part is not None:
            self.uncommitted.drop(part.batches)

    def end_all_open(self) -> None:
        for session in list(self.open):
            self.end_open(session)

    # -- staged parts ------------------------------------------------------------

    @property
    def staged_applications(self) -> int:
        return len(self._staged_bytes)

    def staged_bytes(self, application: str) -> int:
        return self._staged_bytes.get(application, 0)

    def stage(self, id: int, part: StagedRows, number: int, rows: int, size: int) -> None:
        """Add a batch to a part, and begin its time anew."""
        self.staged[id] = part
        part.batches.append(number)
        part.messages += rows
        part.bytes += size
        part.since_ms = NOT_YET
        self._staged_bytes[part.application] = self.staged_bytes(part.application) + size

    def unstage(self, id: int) -> list[int]:
        """End a staged part and return its batches."""
        part = self.staged.pop(id)
        left = self._staged_bytes[part.application] - part.bytes
        if left:
            self._staged_bytes[part.application] = left
        else:
            del self._staged_bytes[part.application]
        return part.batches

    def drop_staged(self, id: int) -> None:
        """Drop a part, if it exists and is not promised."""
        part = self.staged.get(id)
        if part is not None and not part.is_promised:
            self.uncommitted.drop(self.unstage(id))

    # -- prepared parts ----------------------------------------------------------

    def prepare(self, session: int, transaction: int, part: PreparedPart) -> None:
        """Add a prepared part, and promise its staged parts and consumed messages to it."""
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
        return [number for id in ids for number in self.unstage(id)]

    def give_back_staged(self, ids: tuple[int, ...]) -> None:
        """End the promise of these parts, and begin their time anew."""
        for id in ids:
            self.staged[id].is_promised = False
            self.staged[id].since_ms = NOT_YET

    # -- decisions ---------------------------------------------------------------

    def decision(self, session: int, transaction: int) -> Decision | None:
        of_session = self._decisions.get(session)
        return of_session.get(transaction) if of_session else None

    def decided_last(self, session: int) -> int:
        """The highest transaction of the session with a known decision; 0 if there is none."""
        return max(self._decisions.get(session, ()), default=0)

    def decide(self, session: int, transaction: int, decision: Decision, *, is_known: bool = True) -> None:
        self._decisions.setdefault(session, {})[transaction] = decision
        # The mark of an earlier decision has another time.
        self._marks.pop(session, None)
        self.tidy(session, is_known=is_known)

    def committed(self, application: str, version: int) -> None:
        """Note an application's version; of too many applications the oldest goes."""
        self.done.pop(application, None)
        if len(self.done) >= APPLICATIONS_MAX:
            del self.done[next(iter(self.done))]
        self.done[application] = version

    def tidy(self, session: int, *, is_known: bool) -> None:
        """Keep incomplete commits, and the last decision, for which a participant or client may ask.

        The decision for an unknown session is marked, to be forgotten after a while.
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
        since_ms = self._marks[session]
        return since_ms == NOT_YET, since_ms, session

    def _forget_mark(self, session: int) -> None:
        del self._marks[session]
        of_session = self._decisions[session]
        for transaction, decision in list(of_session.items()):
            if not decision.commits or decision.is_complete:
                del of_session[transaction]
        if not of_session:
            del self._decisions[session]

    def session_opened(self, session: int) -> None:
        """Keep the decisions of a session that is known (again)."""
        self._marks.pop(session, None)

    def unfinished(self) -> Iterator[tuple[int, int, Decision]]:
        """Commits that are not known to be complete: session, transaction, decision."""
        for session, of_session in sorted(self._decisions.items()):
            for transaction, decision in sorted(of_session.items()):
                if decision.commits and not decision.is_complete:
                    yield session, transaction, decision

    # -- time --------------------------------------------------------------------

    def time_passed(self, now_ms: int) -> None:
        """Drop parts and decisions that are too old by log time."""
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
        """The log time at which something becomes too old; 0 if log time must move first."""
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
        """The part that is equal on all replicas."""
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
        # In the order of the log.
        for application, version in self.done.items():
            writer.text(application)
            writer.u64(version)

    def write_places(self, writer: Writer) -> None:
        """The places of this replica."""
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
