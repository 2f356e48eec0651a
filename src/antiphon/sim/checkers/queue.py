"""Queues give each message away once (I13), held against an obvious model of the channel.

    - a message has at most one accepted acknowledgement
    - after that it is never handed to a consumer again
    - a message is in the hands of at most one living consumer
    - enqueued = live + acknowledged, and the node's own books say the same

The model folds the committed commands with plain sets, without segments, indexes or ranges. It folds
each number once, the first time any life applies it: what a node delivers is held against all that
was ever ordered, not against what that node remembers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.messages import BusMessage, Deliver, Entry, EntryKind
from antiphon.message_manager.state.sessions import NOBODY, Owner
from antiphon.ranges import Ranges
from antiphon.sim.checkers.watch import Checker, Holder
from antiphon.sim.world import World
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    CommandKind,
    CreateDestination,
    ExpireSession,
    Payload,
    Publish,
    Return,
    decode_payload,
    iterate_commands,
)


@dataclass(slots=True)
class _Session:
    generation: int
    owner: Owner
    last: int = 0


@dataclass(slots=True)
class QueueModel:
    """What a queue holds, said plainly."""

    enqueued: int = 0
    live: set[int] = field(default_factory=set)
    # With the number of the acknowledgement that was accepted.
    acknowledged: dict[int, int] = field(default_factory=dict)


class Queues(Checker):
    """Folds what is applied, and watches what is handed out."""

    promise = "I13 queue"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.queues: dict[int, QueueModel] = {}
        self.place_of: dict[tuple[int, int], int] = {}
        self._folded = 0
        self._term = 0
        # Whose commands are being folded.
        self._owner = NOBODY
        self._names: dict[str, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._holders: dict[int, Holder] = {}
        self._held: dict[Holder, set[int]] = {}

    # The model.

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        if entry.last <= self._folded:
            return
        self._folded = entry.last
        if entry.kind is EntryKind.PRIMARY_CLAIM:
            self._term = max(self._term, entry.mid.pe)
        elif entry.kind is EntryKind.PRODUCER_OPEN:
            self._detach(OpenDetail.decode(entry.detail).pid, entry.first)
        elif entry.kind is EntryKind.PRODUCER_FENCE:
            pid, pe, term = FenceDetail.decode(entry.detail)
            if term == self._term:
                self._detach(pid, pe + 1)
        if payload is None:
            return
        self._owner = Owner(entry.mid.pid, entry.mid.pe)
        sequence = entry.first
        for header, body, _ in iterate_commands(payload):
            self._fold(header, body, sequence)
            sequence += header.count
        if sequence != entry.last + 1:
            self.fail(f"the commands of {entry.first}..{entry.last} take {sequence - entry.first} numbers")

    def _fold(self, header: CommandHeader, body: memoryview, sequence: int) -> None:
        skip = 0
        if header.session and (found := self._rows_to_skip(header, sequence)) is not None:
            skip = found
        elif header.session:
            return
        for row in range(skip, header.count):
            if header.number:
                self.place_of[header.session, header.number + row] = sequence + row
        self._do(decode_payload(header.kind, body), header, sequence, skip)

    def _do(self, payload: Payload, header: CommandHeader, sequence: int, skip: int) -> None:
        """What a command that is admitted does; its first `skip` numbers did it before."""
        match payload:
            case Publish(destination=destination):
                queue = self.queues.get(destination)
                if queue is not None:
                    queue.live.update(range(sequence + skip, sequence + header.count))
                    queue.enqueued += header.count - skip
            case Acknowledge(destination=destination, ranges=ranges):
                queue = self.queues.get(destination)
                if queue is not None:
                    self._acknowledge(queue, set(ranges.numbers()), sequence)
            case Return(ranges=ranges):
                for number in ranges.numbers():
                    self._release(number)
            case CreateDestination(name=name):
                if self._names.setdefault(name, sequence) == sequence:
                    self.queues[sequence] = QueueModel()
            case ExpireSession() as expire:
                session = self._sessions.get(expire.session)
                named = (expire.generation, expire.term)
                if (
                    session is not None
                    and (session.generation, self._term) == named
                    and session.owner in (NOBODY, (expire.pid, expire.pe))
                ):
                    self.world.probe("model.session_expired")
                    self._end_session(expire.session, sequence)

    def _detach(self, pid: int, before: int) -> None:
        for session in self._sessions.values():
            if session.owner.pid == pid and 0 < session.owner.pe < before:
                session.owner = NOBODY

    def _end_session(self, session: int, sequence: int) -> None:
        del self._sessions[session]

    def _rows_to_skip(self, header: CommandHeader, sequence: int) -> int | None:
        """How many of its numbers were applied before; None when it does nothing at all."""
        session = self._sessions.get(header.session)
        if header.kind == CommandKind.SESSION_OPEN and session is None:
            self._sessions[header.session] = _Session(header.generation, self._owner)
            return None
        if session is not None and header.generation < session.generation:
            self.world.probe("model.stale_command")
        if session is None or header.generation < session.generation:
            return None
        if header.kind in (CommandKind.SESSION_OPEN, CommandKind.SESSION_RESUME):
            session.generation, session.owner = header.generation, self._owner
            return None
        if header.kind == CommandKind.SESSION_CLOSE and header.generation == session.generation:
            self._end_session(header.session, sequence)
            return None
        if header.generation > session.generation:
            return None
        session.owner = self._owner
        if header.number > session.last + 1:
            return None
        skip = session.last + 1 - header.number
        if skip:
            self.world.probe("model.duplicate_command")
        if skip >= header.count:
            return None
        session.last = header.number + header.count - 1
        return skip

    def _acknowledge(self, queue: QueueModel, numbers: set[int], sequence: int) -> None:
        accepted = numbers & queue.live
        queue.live -= accepted
        queue.acknowledged.update(dict.fromkeys(accepted, sequence))
        if len(queue.live) + len(queue.acknowledged) != queue.enqueued:
            self.fail("the model itself lost count")

    # What leaves the node.

    def on_sent(self, node: int, message: BusMessage) -> None:
        if not isinstance(message, Deliver):
            return
        queue = self.queues.get(message.destination)
        if queue is None:
            self.fail(f"node {node} delivers from destination {message.destination}, which does not exist")
        for piece in message.pieces:
            for number in range(piece.first_sequence, piece.first_sequence + piece.count):
                at = queue.acknowledged.get(number)
                if at is None and number not in queue.live:
                    self.fail(f"{number} is handed out and is not in queue {message.destination}")
                if at is not None and self._knows(node, at):
                    self.fail(f"{number} is handed out after its acknowledgement was accepted")

    def _knows(self, node: int, number: int) -> bool:
        """Must a node that speaks now go by what was ordered under this number? One that is alone must."""
        return True

    def on_handed_out(self, node: int, holder: Holder, sequence: int, count: int, redelivered: int) -> None:
        held = self._held.setdefault(holder, set())
        for number in range(sequence, sequence + count):
            other = self._holders.get(number)
            if other is not None:
                self.fail(f"{number} is handed to {holder} while {other} holds it")
            self._holders[number] = holder
            held.add(number)

    def on_kept(self, node: int, holder: Holder, numbers: Ranges) -> None:
        self.world.probe("model.consumer_came_back")
        for number in numbers.numbers():
            # What was acknowledged while it came back is held by nobody.
            if not self._is_done(holder, number):
                self.on_handed_out(node, holder, number, 1, 0)

    def _is_done(self, holder: Holder, number: int) -> bool:
        """Is this message acknowledged, where the holder got it?"""
        return any(number in queue.acknowledged for queue in self.queues.values())

    def on_holder_gone(self, node: int, holder: Holder) -> None:
        for number in sorted(self._held.pop(holder, ())):
            del self._holders[number]

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        for number in numbers.numbers() if not subscription else ():
            holder = self._holders.get(number)
            if holder is not None and holder.session == session:
                self._release(number)

    def on_lost_told(self, node: int, holder: Holder, numbers: Ranges) -> None:
        for number in numbers.numbers():
            if self._holders.get(number) == holder:
                self._release(number)

    def _release(self, number: int) -> None:
        holder = self._holders.pop(number, None)
        if holder is not None:
            self._held[holder].discard(number)

    def on_crashed(self, node: int) -> None:
        self._holders.clear()
        self._held.clear()

    # The books.

    def at_quiet(self, facts: dict[int, int]) -> None:
        for destination in self.queues:
            if destination not in facts:
                self.fail(f"the node has forgotten queue {destination}")
        for destination, live in sorted(facts.items()):
            queue = self.queues.get(destination)
            if queue is None:
                self.fail(f"the node has a queue {destination} that was never made")
            if live != len(queue.live):
                self.fail(
                    f"the node counts {live} live messages in queue {destination}, "
                    f"{queue.enqueued} were stored and {len(queue.acknowledged)} acknowledged"
                )
