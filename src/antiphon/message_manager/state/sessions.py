"""Sessions: the rows by which a channel recognises repeated commands.

A client numbers the commands of a session 1, 2, 3, … and repeats those that were not confirmed. The row says
how far the channel came, and has the outcomes that the client has not confirmed to have heard of.

SES1  A number is applied at most once, and never before the number below it.
SES2  A repeated number gets the outcome of the first, with its sequence numbers, or FORGOTTEN. A command that
      may have been refused is never answered as stored.
SES3  A command of a lower generation does nothing: a former client manager's commands are void.
SES4  Rows are bounded by living sessions and their unconfirmed commands, not by history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from antiphon.wire.commands import Outcome, OutcomeCode
from antiphon.wire.primitives import Reader, Writer

RECORDS_MAX: Final = 16_384
"""Outcomes kept for one session. If a client confirms nothing for longer, the oldest are forgotten."""

_COUNT_MAX: Final = 0xFFFF_FFFF

_APPLIED: Final = int(OutcomeCode.APPLIED)
_DUPLICATE: Final = int(OutcomeCode.DUPLICATE)
_KNOWN: Final = int(OutcomeCode.KNOWN)
_FORGOTTEN: Final = int(OutcomeCode.FORGOTTEN)
_FORGOTTEN_TEXT: Final = "what became of it was forgotten before its client had heard"


# Past the constructor of a tuple with names, which takes longer than all the rest.
_new: Final = tuple.__new__


class OutcomeRow(NamedTuple):
    """The outcome of the numbers number … number+count-1 of a session.

    `sequence` is their first number in the log if they were applied, else the `original` of the outcome; of
    known ids it is the first of as many.
    """

    number: int
    count: int  # type: ignore[assignment]  # a tuple has a method of that name
    code: int
    sequence: int
    text: str


class Owner(NamedTuple):
    """A client manager in one of its runs; `NOBODY` while a session is detached."""

    pid: int
    pe: int


NOBODY: Final = Owner(0, 0)


class Ownership(NamedTuple):
    """Who has a session, under which generation, and since which number: 0 if the owner opened it."""

    generation: int
    owner: Owner
    moved_at: int


class Session:
    __slots__ = (
        "_numbers",
        "_records",
        "client_id",
        "confirmed_through",
        "connection",
        "generation",
        "id",
        "last",
        "moved_at",
        "owner",
        "user",
    )

    def __init__(
        self, *, id: int, generation: int, owner: Owner, user: str, client_id: str, connection: int = 0
    ) -> None:
        self.id = id
        self.generation = generation
        self.owner = owner
        # The number of the command that gave the session to its owner; 0: the owner opened the session.
        self.moved_at = 0
        self.user = user
        self.client_id = client_id
        self.connection = connection
        self.last = 0
        self.confirmed_through = 0
        # The first number of each record, for bisection.
        self._numbers: list[int] = []
        self._records: list[OutcomeRow] = []

    @property
    def ownership(self) -> Ownership:
        return Ownership(self.generation, self.owner, self.moved_at)

    @property
    def records(self) -> tuple[OutcomeRow, ...]:
        return tuple(self._records)

    def confirm(self, through: int) -> None:
        """Drop the outcomes through `through`: the client has heard of them."""
        # A client cannot have heard of later numbers.
        through = min(through, self.last)
        if through <= self.confirmed_through:
            return
        self.confirmed_through = through
        records = self._records
        if through == self.last:
            # The usual case of a client that sends one by one.
            records.clear()
            self._numbers.clear()
            return
        heard = bisect_right(self._numbers, through)
        if heard and records[heard - 1].number + records[heard - 1].count > through + 1:
            heard -= 1
        if heard:
            del records[:heard]
            del self._numbers[:heard]

    def note(self, count: int, code: int, sequence: int, text: str = "") -> None:
        """Note the outcome of the next `count` numbers."""
        number = self.last + 1
        self.last += count
        records = self._records
        if records and code == _APPLIED:
            first, length, before, where, _ = records[-1]
            if before == _APPLIED and where + length == sequence and length + count <= _COUNT_MAX:
                records[-1] = OutcomeRow(first, length + count, _APPLIED, where, "")
                return
        if len(records) == RECORDS_MAX:
            del records[: RECORDS_MAX // 2]
            del self._numbers[: RECORDS_MAX // 2]
        self._numbers.append(number)
        records.append(OutcomeRow(number, count, code, sequence, text))

    def note_next(self, confirmed_through: int, sequence: int) -> None:
        """`confirm` and `note` of one applied command."""
        last = self.last
        if confirmed_through == last:
            # The usual case of a client that sends one by one.
            self.confirmed_through = last
            self.last = last + 1
            self._numbers = [last + 1]
            self._records = [_new(OutcomeRow, (last + 1, 1, _APPLIED, sequence, ""))]
            return
        if confirmed_through > self.confirmed_through:
            self.confirm(confirmed_through)
        self.note(1, _APPLIED, sequence)

    def recall(self, number: int, count: int, sequence: int) -> Iterator[Outcome]:
        """The outcomes of numbers that are repeated, now under `sequence`."""
        stop = number + count
        at = max(bisect_right(self._numbers, number) - 1, 0)
        while number < stop:
            record = self._records[at] if at < len(self._records) else None
            if record is not None and record.number + record.count <= number:
                at += 1
            elif record is None or number < record.number:
                upto = stop if record is None else min(stop, record.number)
                if number <= self.confirmed_through:
                    # The client has confirmed this number, and cannot need the answer.
                    upto = min(upto, self.confirmed_through + 1)
                    yield Outcome(sequence, upto - number, _DUPLICATE)
                else:
                    yield Outcome(sequence, upto - number, _FORGOTTEN, 0, _FORGOTTEN_TEXT)
                sequence += upto - number
                number = upto
            else:
                upto = min(stop, record.number + record.count)
                if record.code == _APPLIED:
                    original = record.sequence + number - record.number
                    yield Outcome(sequence, upto - number, _DUPLICATE, original)
                elif record.code == _KNOWN:
                    original = record.sequence + number - record.number
                    yield Outcome(sequence, upto - number, _KNOWN, original)
                else:
                    yield Outcome(sequence, upto - number, record.code, record.sequence, record.text)
                sequence += upto - number
                number = upto

    # -- bytes -----------------------------------------------------------------

    def write(self, writer: Writer) -> None:
        writer.u128(self.id)
        writer.u32(self.generation)
        writer.u64(self.last)
        writer.u64(self.confirmed_through)
        writer.u16(self.owner.pid)
        writer.u64(self.owner.pe)
        writer.u64(self.moved_at)
        writer.text(self.user)
        writer.text(self.client_id)
        writer.u128(self.connection)
        writer.count(len(self._records))
        for record in self._records:
            writer.u64(record.number)
            writer.u32(record.count)
            writer.u8(record.code)
            writer.u64(record.sequence)
            writer.text(record.text)

    @classmethod
    def read(cls, reader: Reader) -> Session:
        id, generation, last, confirmed = reader.u128(), reader.u32(), reader.u64(), reader.u64()
        owner, moved_at = Owner(reader.u16(), reader.u64()), reader.u64()
        row = cls(
            id=id,
            generation=generation,
            owner=owner,
            user=reader.text(),
            client_id=reader.text(),
            connection=reader.u128(),
        )
        row.moved_at = moved_at
        row.last = last
        row.confirmed_through = confirmed
        for _ in range(reader.count(8 + 4 + 1 + 8 + 2)):
            record = OutcomeRow(reader.u64(), reader.u32(), reader.u8(), reader.u64(), reader.text())
            row._numbers.append(record.number)
            row._records.append(record)
        return row


class Sessions:
    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Session]:
        """By id, so that the order is the same on every replica."""
        return iter([self._rows[id] for id in sorted(self._rows)])

    def get(self, id: int) -> Session | None:
        return self._rows.get(id)

    def has(self, id: int) -> bool:
        return id in self._rows

    def add(self, row: Session) -> None:
        assert row.id not in self._rows, "a session was opened twice"
        self._rows[row.id] = row

    def remove(self, id: int) -> None:
        del self._rows[id]

    def detach(self, pid: int, before: int) -> list[Session]:
        """Detach the sessions of a client manager's runs before `before`, and return them."""
        left = [row for row in self if row.owner.pid == pid and 0 < row.owner.pe < before]
        for row in left:
            row.owner = NOBODY
        return left
