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
from antiphon.bus.planted import ACKNOWLEDGED_TWICE, LOWER_GENERATION_ACCEPTED, NONE, OLD_TERM_ACCEPTED
from antiphon.bus.ports import Location
from antiphon.errors import DestinationError, InvalidName, ProtocolError
from antiphon.message_manager.destinations.directory import KIND_TOPIC, Destination
from antiphon.message_manager.destinations.settings import complete, difference, read_settings
from antiphon.message_manager.destinations.subscription import Subscription
from antiphon.message_manager.destinations.topic import Topic
from antiphon.message_manager.primary import Primary
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.sessions import Owner, Session
from antiphon.message_manager.state import ChannelState
from antiphon.names import check_subscription_name
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
    PlaceDestination,
    Publish,
    Return,
    StartKind,
    Subscribe,
    Unsubscribe,
    iterate_commands,
)

SUBSCRIPTIONS_MAX: Final = 10_000
"""Subscriptions of one topic: every one of them is asked before a message goes."""

LOST: Final = "the data servers lost it, and an operator gave it up"
"""What is told of the numbers of an envelope that went on without its payload."""

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
_EXISTS: Final = int(OutcomeCode.EXISTS)

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

    __slots__ = ("_channel", "_handlers", "_planted", "primary", "state")

    def __init__(self, channel: str, planted: frozenset[str] = NONE) -> None:
        self._channel = channel
        self._planted = planted
        self.state = ChannelState()
        self.primary: Primary | None = None
        self._handlers: dict[int, Handler] = {
            CommandKind.SESSION_OPEN: self._on_session_open,
            CommandKind.SESSION_RESUME: self._on_session_resume,
            CommandKind.SESSION_CLOSE: self._on_session_close,
            CommandKind.SESSION_EXPIRE: self._on_session_expire,
            CommandKind.RETURN: self._on_return,
            CommandKind.CREATE: self._on_create,
            CommandKind.DELETE: self._on_delete,
            CommandKind.LOG_TIME: self._on_log_time,
            CommandKind.SUBSCRIBE: self._on_subscribe,
            CommandKind.UNSUBSCRIBE: self._on_unsubscribe,
            CommandKind.PLACE: self._on_place,
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
            if sequence < end:
                self._note(sequence, end - sequence, _REFUSED, 0, error.text)
        if has_traffic and self.primary is not None:
            self.primary.proposals.has_traffic = True

    def apply_void(self, entry: Entry) -> None:
        """An envelope whose payload is lost for good: its numbers stay empty, and that is what is told."""
        self._note(entry.first, entry.count, _REFUSED, 0, LOST)

    def _note(self, first: int, count: int, code: int, original: int, text: str) -> None:
        self.state.outcomes.note(Outcome(first, count, code, original, text[:_TEXT_MAX]))

    def _admit(self, turn: _Turn) -> bool:
        """May this command be applied, and which part of it? If not, what there is to tell is told."""
        header = turn.header
        if header.session == NODE_SESSION:
            return True
        row = self.state.sessions.get(header.session)
        if row is None:
            return self._deny(turn, _SESSION_UNKNOWN)
        if header.generation != row.generation and not self._is_taken_anyway(header, row):
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
            for outcome in row.recall(header.number, turn.skip, turn.sequence):
                self.state.outcomes.note(outcome)
            return turn.skip < header.count
        return True

    def _is_taken_anyway(self, header: CommandHeader, row: Session) -> bool:
        """Never; planted: whatever a former client manager still had."""
        return LOWER_GENERATION_ACCEPTED in self._planted and header.generation < row.generation

    def _deny(self, turn: _Turn, code: int, text: str = "") -> bool:
        self._note(turn.sequence, turn.header.count, code, 0, text)
        return False

    def _settle(self, turn: _Turn, code: int = _APPLIED, original: int = 0, text: str = "") -> None:
        """An admitted command is done; its session remembers how it went."""
        sequence = turn.sequence + turn.skip
        count = turn.header.count - turn.skip
        if turn.row is not None:
            turn.row.note(count, code, sequence if code == _APPLIED else original, text[:_TEXT_MAX])
        if code != _APPLIED:
            self._note(sequence, count, code, original, text)

    # -- messages ----------------------------------------------------------------

    def _on_publish(self, turn: _Turn, body: memoryview, digest: bytes, location: Location) -> None:
        if not self._admit(turn):
            return
        try:
            destination, _, _, batch = Publish.decode(body)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        store = self.state.directory.get(destination)
        count = turn.header.count
        if store is None:
            self._settle(turn, _NO_DESTINATION)
        elif not looks_like_batch(batch, count):
            self._settle(turn, _REFUSED, text=f"this is no batch of {count} messages")
        else:
            first, skip = turn.sequence, turn.skip
            store.publish(
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
        source = self.state.directory.source(destination, subscription)
        if source is None:
            self._refuse_missing(turn, destination, subscription)
            return
        removed = source.acknowledge(numbers)
        lost = numbers.count - removed.count
        if lost and ACKNOWLEDGED_TWICE not in self._planted:  # planted: what is gone is acknowledged
            text = f"{lost} of {numbers.count} were no longer there"
            self._settle(turn, _ACK_LOST, numbers.difference(removed).first, text)
        else:
            self._settle(turn)
        if removed and self.primary is not None:
            self.primary.delivery.acknowledged(source.id, removed, turn.header.session)

    def _on_return(self, turn: _Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = Return.decode(body)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        source = self.state.directory.source(wish.destination, wish.subscription)
        if source is None:
            self._refuse_missing(turn, wish.destination, wish.subscription)
            return
        back = source.return_(wish.ranges, is_counted=wish.counted)
        self._settle(turn)
        if back and self.primary is not None:
            self.primary.delivery.returned(source.id, back, turn.header.session)

    def _refuse_missing(self, turn: _Turn, destination: int, subscription: int) -> None:
        there = self.state.directory.get(destination)
        if there is None:
            self._settle(turn, _NO_DESTINATION)
        elif not isinstance(there, Topic):
            self._settle(turn, _REFUSED, text=f"{there.name} is a queue and has no subscriptions")
        elif not subscription:
            self._settle(turn, _REFUSED, text=f"{there.name} is a topic: its subscriptions have messages")
        else:
            self._settle(turn, _REFUSED, text=f"{there.name} has no subscription {subscription}")

    # -- destinations --------------------------------------------------------------

    def _on_create(self, turn: _Turn, body: memoryview) -> None:
        """An existing name is answered with its id, if it is set as this one wants it.

        It counts as a duplicate of the command that made it. In the system channel, a name whose place is
        elsewhere is answered with that: whoever asks went by what was true before.
        """
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
        placed = self.state.placements.get(name)
        if known is None and placed is not None and placed != self._channel:
            self._settle(turn, _EXISTS, text=placed)
            return
        try:
            if known is None:
                directory.create(turn.sequence, wish.kind, name, wish.settings)
                self._settle(turn)
                return
            other = _other_setting(known, wish)
        except DestinationError as error:
            self._settle(turn, _REFUSED, text=f"{name}: {error.text}")
            return
        if other is None:
            self._settle(turn, _DUPLICATE, known.id)
        else:
            self._settle(turn, _REFUSED, text=f"{name} exists, and {other}")

    def _on_delete(self, turn: _Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            gone = self.state.directory.get(DeleteDestination.decode(body).destination)
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        if gone is None:
            self._settle(turn, _NO_DESTINATION)
            return
        self.state.directory.delete(gone)
        self.state.placements.free(gone.name)
        self._settle(turn)
        if self.primary is not None:
            self.primary.delivery.destination_deleted(gone.id, gone.name)

    def _on_place(self, turn: _Turn, body: memoryview) -> None:
        """A name keeps the place it has; and so does a destination that was made here without one."""
        try:
            wish = PlaceDestination.decode(body)
            there = self.place_of(wish.name)
            if there is None:
                self.state.placements.place(wish.name, wish.channel)
        except (ProtocolError, InvalidName, DestinationError) as error:
            self._deny(turn, _REFUSED, error.text)
            return
        if there is not None:
            self._deny(turn, _EXISTS, there)
        elif self.primary is not None:
            self.primary.placed.append((wish.name, wish.channel))

    def place_of(self, name: str) -> str | None:
        """The channel in which a destination of this name lives, or is to live."""
        return self.state.placements.get(name) or (
            self._channel if self.state.directory.named(name) is not None else None
        )

    # -- subscriptions -----------------------------------------------------------------

    def _on_subscribe(self, turn: _Turn, body: memoryview) -> None:
        """A durable one of that name is answered with its id, wherever it stands by now."""
        if not self._admit(turn):
            return
        try:
            wish = Subscribe.decode(body)
            if wish.durable:
                check_subscription_name(wish.name)
        except (ProtocolError, InvalidName) as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        topic = self.state.directory.get(wish.destination)
        if topic is None:
            self._settle(turn, _NO_DESTINATION)
            return
        known = self.state.directory.durable(wish.client_id, wish.name) if wish.durable else None
        refusal = _why_not_subscribe(wish, topic, known, turn)
        if refusal is not None:
            self._settle(turn, _REFUSED, text=refusal)
        elif known is not None:
            self._settle(turn, _EXISTS, known.id)
        else:
            assert isinstance(topic, Topic), "only a topic is subscribed to"
            self.state.directory.subscribe(
                Subscription(
                    id=turn.sequence,
                    topic=topic,
                    session=0 if wish.durable else turn.header.session,
                    subscriber=wish.name,
                    client_id=wish.client_id,
                    floor=_start_floor(wish, turn.sequence),
                )
            )
            self._settle(turn)

    def _on_unsubscribe(self, turn: _Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            id = Unsubscribe.decode(body).subscription
        except ProtocolError as error:
            self._settle(turn, _REFUSED, text=error.text)
            return
        subscription = self.state.directory.subscription(id)
        if subscription is None or not _may_unsubscribe(turn.row, subscription):
            self._settle(turn, _REFUSED, text=f"there is no subscription {id} here")
            return
        self._end_subscription(subscription)
        self._settle(turn)

    def _end_subscription(self, subscription: Subscription) -> None:
        self.state.directory.unsubscribe(subscription)
        if self.primary is not None:
            self.primary.delivery.subscription_ended(subscription)

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
            if row.owner != turn.owner:
                # Its client manager was taken for dead, and says that it still has it.
                self._take_over(row, generation, turn.owner)
            self._deny(turn, _DUPLICATE)
        else:
            self._take_over(row, generation, turn.owner)

    def _take_over(self, row: Session, generation: int, owner: Owner) -> None:
        """The session goes on under this owner; consumers of the former one are void."""
        if self.primary is not None:
            if generation != row.generation:
                self.primary.delivery.session_lost(row.id)
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
        is_current = expire.term == self.state.term
        is_current = is_current or OLD_TERM_ACCEPTED in self._planted  # planted: any primary's word counts
        if row is not None and is_current and expire.generation == row.generation:
            self._end_session(row)
        else:
            self._deny(turn, _STALE)

    def _end_session(self, row: Session) -> None:
        self.state.sessions.remove(row.id)
        if self.primary is not None:
            self.primary.delivery.session_ended(row.id)
            self.primary.proposals.attached(row.id)
        for subscription in self.state.directory.of_session(row.id):
            self._end_subscription(subscription)

    def _on_log_time(self, turn: _Turn, body: memoryview) -> None:
        """The channel's time never goes back, and only the primary moves it."""
        try:
            time = LogTime.decode(body)
        except ProtocolError as error:
            self._deny(turn, _REFUSED, error.text)
            return
        if time.term != self.state.term:
            self._deny(turn, _STALE)
            return
        directory = self.state.directory
        self.state.log_time_ms = max(self.state.log_time_ms, time.time_ms)
        for topic in directory.topics:
            topic.time_passed(self.state.log_time_ms)
        if self.primary is not None:
            self.primary.proposals.due_ms = directory.due_ms()

    def producer_gone(self, now_ns: int, pid: int, before: int) -> None:
        """Lives of this client manager that began before number `before` are over: so are its attachments."""
        if self.primary is not None:
            self.primary.delivery.client_manager_gone(pid, before)
        for row in self.state.sessions.detach(pid, before):
            if self.primary is not None:
                self.primary.delivery.session_lost(row.id)
                self.primary.proposals.detached(now_ns, row)


def _other_setting(there: Destination, wish: CreateDestination) -> str | None:
    """What of the settings that are asked for is another one at a destination that exists."""
    is_topic = wish.kind == KIND_TOPIC
    wanted = read_settings(wish.settings, is_topic=is_topic)
    return difference(wanted, complete(read_settings(there.settings, is_topic=is_topic), is_topic=is_topic))


def _why_not_subscribe(
    wish: Subscribe, topic: Destination, known: Subscription | None, turn: _Turn
) -> str | None:
    if not isinstance(topic, Topic):
        return f"{topic.name} is a queue; only topics have subscriptions"
    if turn.row is None:
        return "only a session subscribes"
    if wish.client_id != turn.row.client_id:
        return "the session belongs to another client id"
    if wish.shared:
        return "shared subscriptions are not known here"
    if wish.name and not wish.durable:
        return "only a durable subscription has a name"
    if known is not None and known.topic is not topic:
        return f"subscription {known.subscriber} is one to {known.topic.name}; unsubscribe it first"
    if known is None and len(topic.subscriptions) >= SUBSCRIPTIONS_MAX:
        return f"{topic.name} has {SUBSCRIPTIONS_MAX:,} subscriptions already"
    return None


def _start_floor(wish: Subscribe, sequence: int) -> int:
    """Messages up to here are not for a subscription that begins at `sequence`."""
    match wish.start:
        case StartKind.EARLIEST:
            return 0
        case StartKind.NUMBER:
            return max(0, wish.number - 1)
    return sequence


def _may_unsubscribe(row: Session | None, subscription: Subscription) -> bool:
    """A durable subscription is its client id's, any other its session's; the node may end all."""
    if row is None:
        return True
    if subscription.is_durable:
        return subscription.client_id == row.client_id
    return subscription.session == row.id
