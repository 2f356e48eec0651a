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
from antiphon.errors import DestinationError, InvalidName, ProtocolError
from antiphon.message_manager.destinations.directory import KIND_TOPIC, Destination
from antiphon.message_manager.destinations.settings import complete, difference, read_settings
from antiphon.message_manager.destinations.subscription import Subscription
from antiphon.message_manager.destinations.topic import Topic
from antiphon.message_manager.hold_fold import HoldFold
from antiphon.message_manager.publishing import Envelope, take_plain
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.sessions import NOBODY, Owner, Session
from antiphon.message_manager.turns import (
    ACK_LOST,
    DUPLICATE,
    EXISTS,
    NO_DESTINATION,
    REFUSED,
    SESSION_UNKNOWN,
    STALE,
    Turn,
)
from antiphon.names import check_subscription_name
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    PUBLISH_BATCH_OFFSET,
    CommandKind,
    CreateDestination,
    DeleteDestination,
    ExpireSession,
    LogTime,
    OpenSession,
    PlaceDestination,
    Publish,
    ResumeSession,
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

_ACKNOWLEDGE_HEAD = struct.Struct("<QQ")

# Plain numbers: looking up a member of an enum costs as much as a step of the fold.
_PUBLISH: Final = int(CommandKind.PUBLISH)
_ACK: Final = int(CommandKind.ACK)
_LOG_TIME: Final = int(CommandKind.LOG_TIME)

Handler = Callable[[Turn, memoryview], None]


def read_acknowledge(body: memoryview) -> tuple[int, int, Ranges]:
    """What `Acknowledge.decode` reads, in a third of the time: there is one for every few publishes."""
    if len(body) < _ACKNOWLEDGE_HEAD.size:
        raise ProtocolError(f"an acknowledgement of {len(body)} bytes")
    destination, subscription = _ACKNOWLEDGE_HEAD.unpack_from(body)
    return destination, subscription, Ranges.decode(body[_ACKNOWLEDGE_HEAD.size :])


class Fold(HoldFold):
    """Applies commands to `state`; `primary` is told if this replica is the one."""

    __slots__ = ("_channel", "_handlers")

    def __init__(self, channel: str) -> None:
        super().__init__()
        self._channel = channel
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
            CommandKind.TX_PUBLISH: self._on_tx_publish,
            CommandKind.TX_COMMIT: self._on_tx_commit,
            CommandKind.TX_ROLLBACK: self._on_tx_rollback,
            CommandKind.TX_PREPARE: self._on_tx_prepare,
            CommandKind.TX_DECIDE: self._on_tx_decide,
            CommandKind.TX_FINISH: self._on_tx_finish,
            CommandKind.TX_RESOLVE: self._on_tx_resolve,
            CommandKind.TX_FORGET: self._on_tx_forget,
            CommandKind.STAGE: self._on_stage,
            CommandKind.DROP_STAGED: self._on_drop_staged,
            CommandKind.HOLD: self._on_hold,
            CommandKind.RELEASE: self._on_release,
        }

    def apply(self, entry: Entry, payload: memoryview, location: Location) -> None:
        """Apply the commands of one envelope, in their order."""
        sequence = entry.first
        end = sequence + entry.count
        owner = Owner(entry.mid.pid, entry.mid.pe)
        handlers = self._handlers
        self._envelope = (entry.digest, location)
        envelope = Envelope(payload, owner, entry.digest, location)
        taken, sequence = take_plain(self.state, self.primary, envelope, sequence, end)
        has_traffic = taken > 0
        try:
            for header, body, offset in iterate_commands(payload, taken):
                upto = sequence + header.count
                if upto > end:
                    raise ProtocolError("the commands of an envelope take more numbers than it has")
                turn = Turn(header, sequence, offset, owner)
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
                self._note(sequence, end - sequence, REFUSED, 0, error.text)
        if has_traffic and self.primary is not None:
            self.primary.proposals.has_traffic = True

    def apply_void(self, entry: Entry) -> None:
        """An envelope whose payload is lost for good: its numbers stay empty, and that is what is told."""
        self._note(entry.first, entry.count, REFUSED, 0, LOST)

    # -- messages ----------------------------------------------------------------

    def _on_publish(self, turn: Turn, body: memoryview, digest: bytes, location: Location) -> None:
        if not self._admit(turn):
            return
        try:
            destination, _, _, batch = Publish.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        store = self.state.directory.get(destination)
        count = turn.header.count
        if store is None:
            self._settle(turn, NO_DESTINATION)
        elif not looks_like_batch(batch, count):
            self._settle(turn, REFUSED, text=f"this is no batch of {count} messages")
        else:
            first, skip = turn.sequence, turn.skip
            store.publish(
                first, count, skip, location, turn.offset + PUBLISH_BATCH_OFFSET, len(batch), digest
            )
            self._settle(turn)
            if self.primary is not None:
                self.primary.delivery.published(destination, first + skip, first + count)

    def _on_ack(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            destination, subscription, numbers = read_acknowledge(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        source = self.state.directory.source(destination, subscription)
        if source is None:
            self._refuse_missing(turn, destination, subscription)
            return
        locked = self.state.locks.get(source.id) if self.state.locks else None
        # What a prepared transaction is about to acknowledge is lost to everybody else; and so is all of a
        # queue that somebody holds to consume it.
        removed = source.acknowledge(numbers if locked is None else numbers.difference(locked))
        lost = numbers.count - removed.count
        if lost:
            text = f"{lost} of {numbers.count} were no longer there"
            self._settle(turn, ACK_LOST, numbers.difference(removed).first, text)
        else:
            self._settle(turn)
        if self.state.holds.is_audited and self.state.holds.audits(destination):
            self._audit(turn, destination, subscription, numbers, removed)
        if removed and self.primary is not None:
            self.primary.delivery.acknowledged(source.id, removed, turn.header.session)
        if locked is not None and self.primary is not None:
            # Its consumer has done with it. If the transaction is rolled back, somebody else gets it.
            self.primary.delivery.let_go(source.id, numbers.intersection(locked), turn.header.session)

    def _on_return(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            wish = Return.decode(body)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        source = self.state.directory.source(wish.destination, wish.subscription)
        if source is None:
            self._refuse_missing(turn, wish.destination, wish.subscription)
            return
        back = source.return_(wish.ranges, is_counted=wish.counted)
        self._settle(turn)
        if back and self.primary is not None:
            self.primary.delivery.returned(source.id, back, turn.header.session)

    def _refuse_missing(self, turn: Turn, destination: int, subscription: int) -> None:
        there = self.state.directory.get(destination)
        if there is None:
            self._settle(turn, NO_DESTINATION)
        elif not isinstance(there, Topic):
            self._settle(turn, REFUSED, text=f"{there.name} is a queue and has no subscriptions")
        elif not subscription:
            self._settle(turn, REFUSED, text=f"{there.name} is a topic: its subscriptions have messages")
        else:
            self._settle(turn, REFUSED, text=f"{there.name} has no subscription {subscription}")

    # -- destinations --------------------------------------------------------------

    def _on_create(self, turn: Turn, body: memoryview) -> None:
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
            self._settle(turn, REFUSED, text=error.text)
            return
        known = directory.named(name)
        placed = self.state.placements.get(name)
        if known is None and placed is not None and placed != self._channel:
            self._settle(turn, EXISTS, text=placed)
            return
        try:
            if known is None:
                directory.create(turn.sequence, wish.kind, name, wish.settings)
                self.state.holds.destination_made()
                self._settle(turn)
                return
            other = _other_setting(known, wish)
        except DestinationError as error:
            self._settle(turn, REFUSED, text=f"{name}: {error.text}")
            return
        if other is None:
            self._settle(turn, DUPLICATE, known.id)
        else:
            self._settle(turn, REFUSED, text=f"{name} exists, and {other}")

    def _on_delete(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            gone = self.state.directory.get(DeleteDestination.decode(body).destination)
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        if gone is None:
            self._settle(turn, NO_DESTINATION)
            return
        self.state.directory.delete(gone, turn.sequence)
        self.state.holds.destination_deleted(gone.id, turn.sequence)
        self.state.placements.free(gone.name)
        self._settle(turn)
        if self.primary is not None:
            self.primary.delivery.destination_deleted(gone.id, gone.name)

    def _on_place(self, turn: Turn, body: memoryview) -> None:
        """A name keeps the place it has; and so does a destination that was made here without one."""
        try:
            wish = PlaceDestination.decode(body)
            there = self.place_of(wish.name)
            if there is None:
                self.state.placements.place(wish.name, wish.channel)
        except (ProtocolError, InvalidName, DestinationError) as error:
            self._deny(turn, REFUSED, error.text)
            return
        if there is not None:
            self._deny(turn, EXISTS, there)
        elif self.primary is not None:
            self.primary.placed.append((wish.name, wish.channel))

    def place_of(self, name: str) -> str | None:
        """The channel in which a destination of this name lives, or is to live."""
        return self.state.placements.get(name) or (
            self._channel if self.state.directory.named(name) is not None else None
        )

    # -- subscriptions -----------------------------------------------------------------

    def _on_subscribe(self, turn: Turn, body: memoryview) -> None:
        """A durable one of that name is answered with its id, wherever it stands by now."""
        if not self._admit(turn):
            return
        try:
            wish = Subscribe.decode(body)
            if wish.durable:
                check_subscription_name(wish.name)
        except (ProtocolError, InvalidName) as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        topic = self.state.directory.get(wish.destination)
        if topic is None:
            self._settle(turn, NO_DESTINATION)
            return
        known = self.state.directory.durable(wish.client_id, wish.name) if wish.durable else None
        refusal = _why_not_subscribe(wish, topic, known, turn)
        if refusal is not None:
            self._settle(turn, REFUSED, text=refusal)
        elif known is not None:
            self._settle(turn, EXISTS, known.id)
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

    def _on_unsubscribe(self, turn: Turn, body: memoryview) -> None:
        if not self._admit(turn):
            return
        try:
            id = Unsubscribe.decode(body).subscription
        except ProtocolError as error:
            self._settle(turn, REFUSED, text=error.text)
            return
        subscription = self.state.directory.subscription(id)
        if subscription is None or not _may_unsubscribe(turn.row, subscription):
            self._settle(turn, REFUSED, text=f"there is no subscription {id} here")
            return
        self._end_subscription(subscription)
        self._settle(turn)

    def _end_subscription(self, subscription: Subscription) -> None:
        self.state.directory.unsubscribe(subscription)
        if self.primary is not None:
            self.primary.delivery.subscription_ended(subscription)

    # -- sessions ----------------------------------------------------------------------

    def _on_session_open(self, turn: Turn, body: memoryview) -> None:
        header = turn.header
        row = self.state.sessions.get(header.session)
        if row is not None:
            # Said again; or a former client manager's word came first, and this is a resumption.
            self._resume(turn, row)
            return
        try:
            wish = OpenSession.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
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
        self.state.transactions.session_opened(header.session)

    def _on_session_resume(self, turn: Turn, body: memoryview) -> None:
        try:
            known = ResumeSession.decode(body).known
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        row = self.state.sessions.get(turn.header.session)
        if row is None or row.generation < known:
            # The one that was known here has ended. An opening that came late may have made another, whose
            # numbers begin anew: what the first has applied would be applied again.
            self._deny(turn, SESSION_UNKNOWN)
        else:
            self._resume(turn, row)

    def _resume(self, turn: Turn, row: Session) -> None:
        generation = turn.header.generation
        if generation < row.generation:
            self._deny(turn, STALE)
        elif generation == row.generation:
            if row.owner != turn.owner:
                # Its client manager was taken for dead, and says that it still has it.
                self._take_over(row, generation, turn.owner)
            self._deny(turn, DUPLICATE)
        else:
            self._take_over(row, generation, turn.owner)

    def _on_session_close(self, turn: Turn, body: memoryview) -> None:
        row = self.state.sessions.get(turn.header.session)
        if row is None:
            self._deny(turn, SESSION_UNKNOWN)
        elif turn.header.generation != row.generation:
            self._deny(turn, STALE)
        else:
            self._end_session(row)

    def _on_session_expire(self, turn: Turn, body: memoryview) -> None:
        """Void unless the proposer still is the primary and the session was not resumed since."""
        try:
            expire = ExpireSession.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        row = self.state.sessions.get(expire.session)
        is_current = expire.term == self.state.term
        # A client manager that was fenced and is back has resumed the session in the same generation.
        is_same = row is not None and row.owner in (NOBODY, Owner(expire.pid, expire.pe))
        if row is not None and is_same and is_current and expire.generation == row.generation:
            self._end_session(row)
        else:
            self._deny(turn, STALE)

    def _end_session(self, row: Session) -> None:
        self.state.sessions.remove(row.id)
        self.state.transactions.end_open(row.id)
        self.state.transactions.tidy(row.id, is_known=False)
        if self.primary is not None:
            self.primary.delivery.session_ended(row.id)
            self.primary.proposals.attached(row.id)
        for subscription in self.state.directory.of_session(row.id):
            self._end_subscription(subscription)

    def _on_log_time(self, turn: Turn, body: memoryview) -> None:
        """The channel's time never goes back, and only the primary moves it."""
        try:
            time = LogTime.decode(body)
        except ProtocolError as error:
            self._deny(turn, REFUSED, error.text)
            return
        if time.term != self.state.term:
            self._deny(turn, STALE)
            return
        directory = self.state.directory
        self.state.log_time_ms = max(self.state.log_time_ms, time.time_ms)
        for topic in directory.topics:
            topic.time_passed(self.state.log_time_ms)
        self.state.transactions.time_passed(self.state.log_time_ms)
        self.state.times.mark(turn.sequence, self.state.log_time_ms)
        for queue in self.state.holds.time_passed(self.state.log_time_ms, turn.sequence):
            self._freed(queue)
        if self.primary is not None:
            self.primary.proposals.due_ms = self.state.due_ms()

    def primary_claimed(self) -> None:
        """What nobody has promised ends with the term of the primary that took it."""
        self.state.transactions.end_all_open()

    def producer_gone(self, now_ns: int, pid: int, before: int, *, is_fenced: bool = False) -> None:
        """Lives of this client manager that began before number `before` are over: so are its attachments.

        If it was fenced, so is what its sessions had open: nobody can say that it is still being worked on.
        """
        if self.primary is not None:
            self.primary.delivery.client_manager_gone(pid, before)
        for row in self.state.sessions.detach(pid, before):
            if is_fenced:
                self.state.transactions.end_open(row.id)
            if self.primary is not None:
                self.primary.delivery.session_lost(row.id)
                self.primary.proposals.detached(now_ns, row)


def _other_setting(there: Destination, wish: CreateDestination) -> str | None:
    """What of the settings that are asked for is another one at a destination that exists."""
    is_topic = wish.kind == KIND_TOPIC
    wanted = read_settings(wish.settings, is_topic=is_topic)
    return difference(wanted, complete(read_settings(there.settings, is_topic=is_topic), is_topic=is_topic))


def _why_not_subscribe(
    wish: Subscribe, topic: Destination, known: Subscription | None, turn: Turn
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
