"""Fold: what each command of the log does to the state of a channel.

Where it sits
    bus  ->  manager  ->  FOLD  ->  sessions, destinations; and the primary's delivery hears of it

What it promises
    F1  Only what is in the log and in the state decides: every replica does the same, the primary too.
    F2  A command is first held against its session (numbers, generation), and only then done.
    F3  Whatever a client may have put into a command, applying it never fails. What cannot be done has
        an outcome, and takes its numbers.

What it leaves to others
    Clocks and consumers: the primary's parts are told what happened, and decide nothing here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from antiphon.bus.messages import Entry
from antiphon.bus.ports import Location
from antiphon.errors import InvalidName, ProtocolError
from antiphon.message_manager.destinations.directory import KIND_QUEUE
from antiphon.message_manager.destinations.queue import Queue
from antiphon.message_manager.primary import Primary
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.sessions import Owner, Session
from antiphon.message_manager.state import ChannelState
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    NODE_SESSION,
    PUBLISH_BATCH_OFFSET,
    CommandHeader,
    CommandKind,
    CreateDestination,
    DeleteDestination,
    ExpireSession,
    LogTime,
    OpenSession,
    Outcome,
    OutcomeCode,
    Publish,
    Return,
    iterate_commands,
)

EXCEPTIONS_KEPT: Final = 65_536
"""Outcomes a backup keeps at least, so that it can tell them again should it become the primary: more
than the commands that the windows of many client managers hold on their way."""

_TEXT_MAX: Final = 200

_ACKNOWLEDGE_HEAD = struct.Struct("<QQ")

# Plain numbers: looking up a member of an enum costs as much as a step of the fold.
_PUBLISH: Final = int(CommandKind.PUBLISH)
_ACK: Final = int(CommandKind.ACK)
_LOG_TIME: Final = int(CommandKind.LOG_TIME)
_APPLIED: Final = int(OutcomeCode.APPLIED)
_DUPLICATE: Final = int(OutcomeCode.DUPLICATE)
_NO_DESTINATION: Final = int(OutcomeCode.NO_DESTINATION)
_REFUSED: Final = int(OutcomeCode.REFUSED)
_STALE: Final = int(OutcomeCode.STALE)
_GAP: Final = int(OutcomeCode.GAP)
_ACK_LOST: Final = int(OutcomeCode.ACK_LOST)
_SESSION_UNKNOWN: Final = int(OutcomeCode.SESSION_UNKNOWN)

Handler = Callable[["_Turn", memoryview], None]


def read_acknowledge(body: memoryview) -> tuple[int, int, Ranges]:
    """What `Acknowledge.decode` reads, in a third of the time: there is one for every few publishes."""
    if len(body) < _ACKNOWLEDGE_HEAD.size:
        raise ProtocolError(f"an acknowledgement of {len(body)} bytes")
    destination, subscription = _ACKNOWLEDGE_HEAD.unpack_from(body)
    return destination, subscription, Ranges.decode(body[_ACKNOWLEDGE_HEAD.size :])


class _Turn:
    """One command while it is being applied: who says it, under which numbers, and what of it is new."""

    __slots__ = ("header", "offset", "owner", "row", "sequence", "skip")

    def __init__(
        self,
        header: CommandHeader,
        sequence: int,
        offset: int,
        owner: Owner,
        row: Session | None = None,
        skip: int = 0,
    ) -> None:
        self.header = header
        self.sequence = sequence
        self.offset = offset
        self.owner = owner
        self.row = row
        # Of a publish: so many of its rows were applied before, under other numbers.
        self.skip = skip


class Fold:
    """Applies commands to `state`; `primary` is told if this replica is the one."""

    __slots__ = ("_handlers", "exceptions", "primary", "state")

    def __init__(self) -> None:
        self.state = ChannelState()
        self.primary: Primary | None = None
        # What did not do what it asked, since this was last told.
        self.exceptions: list[Outcome] = []
        self._handlers: dict[int, Handler] = {
            CommandKind.SESSION_OPEN: self._on_session_open,
            CommandKind.SESSION_RESUME: self._on_session_resume,
            CommandKind.SESSION_CLOSE: self._on_session_close,
            CommandKind.SESSION_EXPIRE: self._on_session_expire,
            CommandKind.RETURN: self._on_return,
            CommandKind.CREATE: self._on_create,
            CommandKind.DELETE: self._on_delete,
            CommandKind.LOG_TIME: self._on_log_time,
        }

    def apply(self, entry: Entry, payload: memoryview, location: Location) -> None:
        """Apply the commands of one envelope, in their order."""
        sequence = entry.first
        end = sequence + entry.count
        owner = Owner(entry.mid.pid, entry.mid.pe)
        handlers = self._handlers
        has_traffic = False
        try:
            for header, body, offset in iterate_commands(payload):
                upto = sequence + header.count
                if upto > end:
                    raise ProtocolError("the commands of an envelope take more numbers than it has")
                turn = _Turn(header, sequence, offset, owner)
                kind = header.kind
                if kind == _PUBLISH:
                    self._on_publish(turn, body, entry.digest, location)
                elif kind == _ACK:
                    self._on_ack(turn, body)
                else:
                    handlers[kind](turn, body)
                has_traffic = has_traffic or kind != _LOG_TIME
                sequence = upto
        except ProtocolError as error:
            # Only a door that does not look lets this happen; replicas agree on it all the same (F3).
            self.exceptions.append(Outcome(sequence, end - sequence, _REFUSED, 0, error.text[:_TEXT_MAX]))
        if self.primary is None:
            if len(self.exceptions) > 2 * EXCEPTIONS_KEPT:
                del self.exceptions[:-EXCEPTIONS_KEPT]
        elif has_traffic:
            self.primary.proposals.has_traffic = True

    def _admit(self, turn: _Turn) -> bool:
        """May this command be applied, and which part of it? If not, what there is to tell is told."""
        header = turn.header
        if header.session == NODE_SESSION:
            return True
        row = self.state.sessions.get(header.session)
        if row is None:
            return self._deny(turn, _SESSION_UNKNOWN)
        if header.generation != row.generation:
            return self._deny(turn, _STALE)
        if row.owner != turn.owner:
            # The client manager had to open itself to the bus anew, but the session never left it.
            self._take_over(row, row.generation, turn.owner)
        if header.confirmed_through > row.confirmed_through:
            row.confirm(header.confirmed_through)
        known = row.last + 1 - header.number
        if known < 0:
            return self._deny(turn, _GAP)
        turn.row = row
        if known:
            turn.skip = min(known, header.count)
            self.exceptions.extend(row.recall(header.number, turn.skip, turn.sequence))
            return turn.skip < header.count
        return True

    def _deny(self, turn: _Turn, code: int, text: str = "") -> bool:
        self.exceptions.append(Outcome(turn.sequence, turn.header.count, code, 0, text[:_TEXT_MAX]))
        return False

    def _settle(self, turn: _Turn, code: int = _APPLIED, original: int = 0, text: str = "") -> None:
        """An admitted command is done; its session remembers how it went."""
        sequence = turn.sequence + turn.skip
        count = turn.header.count - turn.skip
        if turn.row is not None:
            turn.row.note(count, code, sequence if code == _APPLIED else original, text[:_TEXT_MAX])
        if code != _APPLIED:
            self.exceptions.append(Outcome(sequence, count, code, original, text[:_TEXT_MAX]))

    # -- messages ----------------------------------------------------------------

    def _on_publish(self, turn: _Turn, body: memoryview, digest: bytes, location: Location) -> None:
        if not self._admit(turn):
            return
        try:
            destination, _, _, batch = Publish.decode(body)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        queue = self.state.directory.get(destination)
        count = turn.header.count
        if queue is None:
            self._settle(turn, _NO_DESTINATION)
        elif not looks_like_batch(batch, count):
            self._settle(turn, _REFUSED, text=f"this is no batch of {count} messages")
        else:
            first, skip = turn.sequence, turn.skip
            queue.publish(
                first, count, skip, location, turn.offset + PUBLISH_BATCH_OFFSET, len(batch), digest
            )
            self._settle(turn)
            if self.primary is not None:
                self.primary.delivery.published(destination, first + skip, first + count)

    def _on_ack(self, turn: _Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            destination, subscription, numbers = read_acknowledge(body)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        queue = self.state.directory.get(destination)
        if queue is None or subscription:
            self._refuse_missing(turn, queue)
            return
        removed = queue.acknowledge(numbers)
        lost = numbers.count - removed.count
        if lost:
            text = f"{lost} of {numbers.count} were no longer there"
            self._settle(turn, _ACK_LOST, numbers.difference(removed).first, text)
        else:
            self._settle(turn)
        if removed and self.primary is not None:
            self.primary.delivery.acknowledged(queue.id, removed, turn.header.session)

    def _on_return(self, turn: _Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = Return.decode(body)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        queue = self.state.directory.get(wish.destination)
        if queue is None or wish.subscription:
            self._refuse_missing(turn, queue)
            return
        back = queue.return_(wish.ranges, is_counted=wish.counted)
        self._settle(turn)
        if back and self.primary is not None:
            self.primary.delivery.returned(queue.id, back, turn.header.session)

    def _refuse_missing(self, turn: _Turn, queue: Queue | None) -> None:
        if queue is None:
            self._settle(turn, _NO_DESTINATION)
        else:
            self._settle(turn, _REFUSED, text=f"{queue.name} has no subscriptions")

    # -- destinations --------------------------------------------------------------

    def _on_create(self, turn: _Turn, body: memoryview) -> None:
        """An existing name is answered with its id, as a duplicate of the command that made it."""
        if not self._admit(turn):
            return
        directory = self.state.directory
        try:
            wish = CreateDestination.decode(body)
            name = directory.spelled(wish)
        except (ProtocolError, InvalidName) as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        known = directory.named(name)
        if known is not None:
            self._settle(turn, _DUPLICATE, known.id)
        elif wish.kind != KIND_QUEUE:
            self._settle(turn, _REFUSED, text="topics are not built yet, only queues are")
        else:
            directory.create(turn.sequence, name, wish.settings)
            self._settle(turn)

    def _on_delete(self, turn: _Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            queue = self.state.directory.get(DeleteDestination.decode(body).destination)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        if queue is None:
            self._settle(turn, _NO_DESTINATION)
            return
        self.state.directory.delete(queue)
        self._settle(turn)
        if self.primary is not None:
            self.primary.delivery.destination_deleted(queue)

    # -- sessions ----------------------------------------------------------------------

    def _on_session_open(self, turn: _Turn, body: memoryview) -> None:
        header = turn.header
        row = self.state.sessions.get(header.session)
        if row is not None:
            # Said again; or a former client manager's word came first, and this is a resumption.
            self._resume(turn, row)
            return
        try:
            wish = OpenSession.decode(body)
        except ProtocolError as error:
            self._deny(turn, _REFUSED, error.text)
            return
        self.state.sessions.add(
            Session(
                id=header.session,
                generation=header.generation,
                owner=turn.owner,
                user=wish.user,
                client_id=wish.client_id,
            )
        )

    def _on_session_resume(self, turn: _Turn, body: memoryview) -> None:
        row = self.state.sessions.get(turn.header.session)
        if row is None:
            self._deny(turn, _SESSION_UNKNOWN)
        else:
            self._resume(turn, row)

    def _resume(self, turn: _Turn, row: Session) -> None:
        generation = turn.header.generation
        if generation < row.generation:
            self._deny(turn, _STALE)
        elif generation == row.generation:
            self._deny(turn, _DUPLICATE)
        else:
            self._take_over(row, generation, turn.owner)

    def _take_over(self, row: Session, generation: int, owner: Owner) -> None:
        """The session goes on under this owner; consumers of the former one are void."""
        if self.primary is not None:
            if generation != row.generation:
                self.primary.delivery.session_left(row.id)
            self.primary.proposals.attached(row.id)
        row.generation = generation
        row.owner = owner

    def _on_session_close(self, turn: _Turn, body: memoryview) -> None:
        row = self.state.sessions.get(turn.header.session)
        if row is None:
            self._deny(turn, _SESSION_UNKNOWN)
        elif turn.header.generation != row.generation:
            self._deny(turn, _STALE)
        else:
            self._end_session(row)

    def _on_session_expire(self, turn: _Turn, body: memoryview) -> None:
        """Void unless the proposer still is the primary and the session was not resumed since."""
        try:
            expire = ExpireSession.decode(body)
        except ProtocolError as error:
            self._deny(turn, _REFUSED, error.text)
            return
        row = self.state.sessions.get(expire.session)
        if row is not None and expire.term == self.state.term and expire.generation == row.generation:
            self._end_session(row)
        else:
            self._deny(turn, _STALE)

    def _end_session(self, row: Session) -> None:
        self.state.sessions.remove(row.id)
        if self.primary is not None:
            self.primary.delivery.session_left(row.id)
            self.primary.proposals.attached(row.id)

    def _on_log_time(self, turn: _Turn, body: memoryview) -> None:
        """The channel's time never goes back, and only the primary moves it."""
        try:
            time = LogTime.decode(body)
        except ProtocolError as error:
            self._deny(turn, _REFUSED, error.text)
            return
        if time.term == self.state.term:
            self.state.log_time_ms = max(self.state.log_time_ms, time.time_ms)
        else:
            self._deny(turn, _STALE)

    def producer_gone(self, now_ns: int, pid: int, before: int) -> None:
        """Lives of this client manager that began before number `before` are over: so are its attachments."""
        for row in self.state.sessions.detach(pid, before):
            if self.primary is not None:
                self.primary.delivery.session_left(row.id)
                self.primary.proposals.detached(now_ns, row)
