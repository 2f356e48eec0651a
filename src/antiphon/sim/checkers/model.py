"""Queues and topics of a channel, compared with an obvious model (I13).

    - a message of a queue or of a subscription has at most one accepted acknowledgement; after that it is
      never delivered there again
    - at most one living consumer has the message
    - a message delivered to a subscription was published to its topic, at or after the subscription's start;
      new messages come to a consumer in the order of their numbers
    - enqueued = live + acknowledged + expired (or dropped), a topic keeps what a subscription needs, and the
      node's own counts agree, on every replica after every entry

The model folds the committed commands with plain sets, each number once, when any life first applies it:
deliveries are compared with everything ever ordered, not with a node's memory. With several replicas
(`Destinations`) a node is compared only with what it has applied, and a delivery from before an
acknowledgement may arrive behind it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from antiphon.batch import Batch, BatchRule
from antiphon.batch.layout import RULES_AT
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.messages import BusMessage, Deliver, Entry, EntryKind, Register
from antiphon.message_manager.reading import looks_like_batch
from antiphon.message_manager.state import known_ids
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations import settings
from antiphon.message_manager.state.destinations.directory import KIND_TOPIC
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.sessions import NOBODY, Owner
from antiphon.names import LOG_TOPIC_NAME
from antiphon.ranges import Ranges
from antiphon.sim.checkers.commands import commands_of
from antiphon.sim.checkers.watch import Checker, PortConsumer
from antiphon.sim.image import Image
from antiphon.sim.world import World
from antiphon.wire.commands import (
    Acknowledge,
    BuryMessages,
    CommandHeader,
    CommandKind,
    CreateDestination,
    DeadReason,
    DropMessages,
    ExpireMessages,
    ExpireSession,
    LogEvents,
    LogTime,
    Payload,
    Publish,
    ResumeSession,
    Return,
    SkipMessages,
    StartKind,
    Subscribe,
    Unsubscribe,
)
from antiphon.wire.primitives import Buffer

Books = tuple[int, int, tuple[tuple[int, int], ...]]
"""Term, number of sessions, and how many messages each queue and each subscription still has."""


_, _, _LOG = LOG_TOPIC_NAME.partition(":")


@dataclass(slots=True)
class _Session:
    generation: int
    owner: Owner
    last: int = 0


@dataclass(slots=True)
class IdsModel:
    """The ids that a destination remembers, in the order in which their messages were stored."""

    window_ms: int
    number_of: dict[bytes, int] = field(default_factory=dict)
    # The first mark of log time behind the message; None: there was none yet.
    since_ms: dict[bytes, int | None] = field(default_factory=dict)

    def look_up(self, id: bytes, number: int) -> int | None:
        """The earlier message with this id; if there is none, this one is remembered."""
        if not self.window_ms or id in self.number_of:
            return self.number_of.get(id)
        self.number_of[id], self.since_ms[id] = number, None
        if len(self.number_of) > known_ids.IDS_MAX:
            self._forget(next(iter(self.number_of)))
        return None

    def pass_time(self, now_ms: int) -> None:
        for id, since_ms in list(self.since_ms.items()):
            if since_ms is None:
                self.since_ms[id] = since_ms = now_ms
            if now_ms - since_ms >= self.window_ms:
                self._forget(id)

    def _forget(self, id: bytes) -> None:
        del self.number_of[id], self.since_ms[id]


@dataclass(slots=True)
class QueueModel:
    """The contents of a queue."""

    enqueued: int = 0
    live: set[int] = field(default_factory=set)
    # With the number of the acknowledgement that was accepted.
    acknowledged: dict[int, int] = field(default_factory=dict)
    # With the number of the DEAD that was accepted.
    dead: dict[int, int] = field(default_factory=dict)
    # The same for the command that ended it because its time was over.
    expired: dict[int, int] = field(default_factory=dict)


class Queues(Checker):
    """Folds the applied commands, and watches deliveries."""

    promise = "I13 queue"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.queues: dict[int, QueueModel] = {}
        self.place_of: dict[tuple[int, int], int] = {}
        # All messages with rules of their own, all that expired, and the last mark of log time.
        self.ruled: set[int] = set()
        self.expired: set[int] = set()
        # Messages that died because they came back too often: they may have been lost on each way.
        self.worn_out: set[int] = set()
        self.log_time_ms = 0
        # Messages that are not stored, and the number of the earlier message with the same id.
        self.known: dict[int, int] = {}
        self._ids: dict[int, IdsModel] = {}
        self._folded = 0
        self._term = 0
        # The client manager whose commands are being folded.
        self._owner = NOBODY
        self._names: dict[str, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._holders: dict[int, PortConsumer] = {}
        self._held: dict[PortConsumer, set[int]] = {}

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
        for header, wish, first in commands_of(entry, payload):
            self._fold(header, wish, first)
            sequence = first + header.count
        if sequence != entry.last + 1:
            self.fail(f"the commands of {entry.first}..{entry.last} take {sequence - entry.first} numbers")

    def _fold(self, header: CommandHeader, payload: Payload, sequence: int) -> None:
        skip = 0
        if header.session and (found := self._rows_to_skip(header, payload, sequence)) is not None:
            skip = found
        elif header.session:
            return
        for row in range(skip, header.count):
            if header.number:
                self.place_of[header.session, header.number + row] = sequence + row
        self._do(payload, header, sequence, skip)

    def _do(self, payload: Payload, header: CommandHeader, sequence: int, skip: int) -> None:
        """The effect of an admitted command; its first `skip` numbers had theirs before."""
        match payload:
            case Publish(destination=destination, batch=batch):
                self._note_rules(batch, sequence, header.count)
                queue = self.queues.get(destination)
                if queue is not None:
                    new = self._new_rows(destination, batch, sequence, skip, header.count)
                    queue.live.update(new)
                    queue.enqueued += len(new)
            case Acknowledge(destination=destination, ranges=ranges):
                queue = self.queues.get(destination)
                if queue is not None:
                    self._acknowledge(queue, set(ranges.numbers()), sequence)
            case Return(ranges=ranges):
                for number in ranges.numbers():
                    self._release(number)
            case BuryMessages():
                self._bury(payload, header, sequence)
            case LogEvents():
                # As a message of a queue: the topic keeps everything for longer than a run lasts.
                self.world.probe("model.events_logged")
                log = self.queues[self._names[_LOG]]
                log.live.update(range(sequence, sequence + header.count))
                log.enqueued += header.count
            case ExpireMessages(destination=destination, term=term, ranges=ranges) if term == self._term:
                self._expire(destination, set(ranges.numbers()), sequence)
            case DropMessages(destination=destination, subscription=id, term=term, ranges=ranges):
                if term == self._term:
                    self._drop(destination, id, set(ranges.numbers()), sequence)
            case LogTime(time_ms=time_ms, term=term) if term == self._term and time_ms > self.log_time_ms:
                self.log_time_ms = time_ms
                for ids in self._ids.values():
                    ids.pass_time(self.log_time_ms)
            case CreateDestination(name=name):
                if self._names.setdefault(name, sequence) == sequence:
                    self.queues[sequence] = QueueModel()
                    self._note_window(sequence, payload)
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

    def _bury(self, wish: BuryMessages, header: CommandHeader, sequence: int) -> None:
        """Move dead messages of a queue, if all of them are there."""
        queue, target = self.queues.get(wish.destination), self.queues.get(wish.target)
        numbers = set(wish.numbers.numbers())
        if queue is None or target is None or wish.term != self._term or not numbers <= queue.live:
            return
        for number in numbers:
            self._release(number)
        queue.live -= numbers
        queue.dead.update(dict.fromkeys(numbers, sequence))
        if wish.reason is DeadReason.LIMIT:
            self.worn_out |= numbers
        target.live.update(range(sequence, sequence + header.count))
        target.enqueued += header.count

    def _detach(self, pid: int, before: int) -> None:
        for session in self._sessions.values():
            if session.owner.pid == pid and 0 < session.owner.pe < before:
                session.owner = NOBODY

    def _end_session(self, session: int, sequence: int) -> None:
        del self._sessions[session]

    def _rows_to_skip(self, header: CommandHeader, payload: Payload, sequence: int) -> int | None:
        """How many numbers of the command were applied before; None when the command has no effect."""
        session = self._sessions.get(header.session)
        if header.kind == CommandKind.SESSION_OPEN and session is None:
            self._sessions[header.session] = _Session(header.generation, self._owner)
            return None
        if session is not None and header.generation < session.generation:
            self.world.probe("model.stale_command")
        if session is None or header.generation < session.generation:
            return None
        if isinstance(payload, ResumeSession) and payload.known > session.generation:
            # The session has ended since, and a late opening has made another one.
            self.world.probe("model.session_of_a_late_opening")
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
        gone = len(queue.acknowledged) + len(queue.expired) + len(queue.dead)
        if len(queue.live) + gone != queue.enqueued:
            self.fail("the model itself lost count")

    def stored_counts(self) -> dict[int, int]:
        """How many messages each destination has ever stored."""
        return {id: queue.enqueued for id, queue in self.queues.items()}

    def _note_window(self, destination: int, wish: CreateDestination) -> None:
        given = json.loads(wish.settings or "{}")
        self._ids[destination] = IdsModel(round(given.get("dedup_window", settings.DEDUP_WINDOW_S) * 1_000))

    def _new_rows(self, destination: int, batch: Buffer, first: int, skip: int, count: int) -> list[int]:
        """The numbers of a publish's messages whose ids the destination does not remember, if they have any;
        the first `skip` had theirs before."""
        numbers = list(range(first + skip, first + count))
        if not looks_like_batch(batch, count) or not batch[RULES_AT] & BatchRule.DEDUP:
            return numbers
        rows, ids = Batch.decode(batch), self._ids[destination]
        for number in numbers:
            id = rows.dedup_id(number - first)
            before = None if id is None else ids.look_up(id, number)
            if before is not None:
                self.world.probe("model.id_known")
                self.known[number] = before
        return [number for number in numbers if number not in self.known]

    def _note_rules(self, batch: Buffer, first: int, count: int) -> None:
        if len(batch) > RULES_AT and batch[RULES_AT] & ~BatchRule.DEDUP:
            self.ruled.update(range(first, first + count))

    def _expire(self, destination: int, numbers: set[int], sequence: int) -> None:
        if not numbers <= self.ruled:
            self.fail(f"{sorted(numbers - self.ruled)[:3]} are to expire and have no time")
        queue = self.queues.get(destination)
        gone = numbers & queue.live if queue is not None else set()
        if queue is not None and gone:
            self.world.probe("model.message_expired")
            queue.live -= gone
            queue.expired.update(dict.fromkeys(gone, sequence))
        self.expired |= numbers

    def _drop(self, destination: int, subscription: int, numbers: set[int], sequence: int) -> None:
        """Non-persistent messages that a consumer may have seen leave as expired ones do."""
        self.world.probe("model.message_dropped")
        self._expire(destination, numbers, sequence)

    def on_sent(self, node: int, message: BusMessage) -> None:
        if not isinstance(message, Deliver):
            return
        queue = self.queues.get(message.destination)
        if queue is None:
            self.fail(f"node {node} delivers from destination {message.destination}, which does not exist")
        for piece in message.pieces:
            for number in piece.sequences:
                at, over = queue.acknowledged.get(number) or queue.dead.get(number), queue.expired.get(number)
                if over is not None and self._knows(node, over):
                    self.fail(f"{number} is handed out after it expired")
                if at is None and over is None and number not in queue.live:
                    self.fail(f"{number} is handed out and is not in queue {message.destination}")
                if at is not None and self._knows(node, at):
                    self.fail(f"{number} is handed out after it was acknowledged, or died")

    def _knows(self, node: int, number: int) -> bool:
        """Must a node go by the command under this number now? A lone node must."""
        return True

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        held = self._held.setdefault(holder, set())
        for number in range(sequence, sequence + count):
            other = self._holders.get(number)
            if other is not None:
                self.fail(f"{number} is handed to {holder} while {other} holds it")
            self._holders[number] = holder
            held.add(number)

    def on_kept(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        self.world.probe("model.consumer_came_back")
        for number in numbers.numbers():
            # A message acknowledged while its consumer came back has no holder.
            if not self._is_done(holder, number):
                self.on_handed_out(node, holder, number, 1, 0)

    def _is_done(self, holder: PortConsumer, number: int) -> bool:
        """Is this message acknowledged, where the holder got it?"""
        return any(
            number in queue.acknowledged or number in queue.expired or number in queue.dead
            for queue in self.queues.values()
        )

    def on_holder_gone(self, node: int, holder: PortConsumer) -> None:
        for number in sorted(self._held.pop(holder, ())):
            del self._holders[number]

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        for number in numbers.numbers() if not subscription else ():
            holder = self._holders.get(number)
            if holder is not None and holder.session == session:
                self._release(number)

    def on_lost_told(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
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
                    f"{queue.enqueued} were stored, {len(queue.acknowledged)} acknowledged, "
                    f"{len(queue.expired)} expired"
                )


Held = tuple[int, int]
"""A message of a subscription: the subscription, and the message's number."""


@dataclass(slots=True)
class SubscriptionModel:
    """The messages that a subscription wanted, and those it has acknowledged."""

    topic: int
    start: int
    is_shared: bool
    # How often each session has joined a subscription that is not durable.
    members: dict[int, int] = field(default_factory=dict)
    wanted: set[int] = field(default_factory=set)
    # With the number of the acknowledgement that was accepted.
    done: dict[int, int] = field(default_factory=dict)


class Topics(Queues):
    """Folds the applied commands of topics, too, and watches their deliveries."""

    promise = "I13 topic"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.subscriptions: dict[int, SubscriptionModel] = {}
        self.stored: dict[int, set[int]] = {}
        # By topic and number, in order of arrival: the bytes that each message counts for.
        self.sizes: dict[int, dict[int, int]] = {}
        # By the consumer's number in its session, and by its key at the primary.
        self.subscription_of: dict[tuple[int, int], int] = {}
        self._subscription_at: dict[tuple[int, int], int] = {}
        # The last contents of each ended subscription, and the number of its end.
        self._ended: dict[int, tuple[SubscriptionModel, int]] = {}
        # By whether they are durable, client id and name.
        self._named: dict[tuple[bool, str, str], int] = {}
        self._fresh_through: dict[tuple[PortConsumer, int], int] = {}
        self._holding: dict[Held, PortConsumer] = {}
        self._in_hand: dict[PortConsumer, set[Held]] = {}

    def _do(self, payload: Payload, header: CommandHeader, sequence: int, skip: int) -> None:
        match payload:
            case Publish(destination=destination, batch=batch) if destination in self.stored:
                self._note_rules(batch, sequence, header.count)
                numbers = self._new_rows(destination, batch, sequence, skip, header.count)
                self.sizes[destination].update(dict.fromkeys(numbers, len(batch) // header.count))
                self.stored[destination].update(numbers)
                for subscription in self.wanting(destination):
                    subscription.wanted.update(n for n in numbers if n >= subscription.start)
            case Acknowledge(subscription=id, ranges=ranges) if id:
                if id in self.subscriptions:
                    subscription = self.subscriptions[id]
                    for number in sorted(subscription.wanted.intersection(ranges.numbers())):
                        subscription.done.setdefault(number, sequence)
            case LogEvents(batch=batch):
                self.world.probe("model.events_logged")
                log, numbers = self._names[_LOG], list(range(sequence, sequence + header.count))
                self.sizes[log].update(dict.fromkeys(numbers, len(batch) // header.count))
                self.stored[log].update(numbers)
                for subscription in self.subscriptions.values():
                    if subscription.topic == log:
                        subscription.wanted.update(n for n in numbers if n >= subscription.start)
            case BuryMessages(subscription=id) if id:
                self._bury_of(id, payload, header, sequence)
            case SkipMessages(subscription=id, ranges=ranges):
                if id in self.subscriptions:
                    self.subscriptions[id].wanted.difference_update(ranges.numbers())
            case Return(subscription=id, ranges=ranges) if id:
                for number in ranges.numbers():
                    self._let_go((id, number))
            case CreateDestination(kind=kind, name=name) if kind == KIND_TOPIC:
                if self._names.setdefault(name, sequence) == sequence:
                    self.stored[sequence] = set()
                    self.sizes[sequence] = {}
                    self._note_window(sequence, payload)
            case Subscribe():
                self._subscribe(payload, header.session, sequence)
            case Unsubscribe(subscription=id) if id in self.subscriptions:
                self._unsubscribe(id, header.session, sequence)
            case _:
                super()._do(payload, header, sequence, skip)

    def wanting(self, topic: int) -> list[SubscriptionModel]:
        """The subscriptions that the messages of a topic are for."""
        return [one for one in self.subscriptions.values() if one.topic == topic]

    def may_be_wanted(self, topic: int, number: int) -> bool:
        """Must the topic keep this message for a subscription?"""
        return any(number in one.wanted and number not in one.done for one in self.wanting(topic))

    def _needed_now(self, one: SubscriptionModel) -> int:
        """How many messages a replica counts that the subscription needs."""
        return len(one.wanted) - len(one.done)

    def stored_counts(self) -> dict[int, int]:
        return super().stored_counts() | {id: len(stored) for id, stored in self.stored.items()}

    def _bury_of(self, id: int, wish: BuryMessages, header: CommandHeader, sequence: int) -> None:
        """Move dead messages of a subscription, if it needs all of them."""
        subscription, target = self.subscriptions.get(id), self.queues.get(wish.target)
        numbers = set(wish.numbers.numbers())
        if subscription is None or target is None or wish.term != self._term:
            return
        if numbers <= subscription.wanted and not numbers & subscription.done.keys():
            subscription.done.update(dict.fromkeys(numbers, sequence))
            target.live.update(range(sequence, sequence + header.count))
            target.enqueued += header.count
            for number in numbers:
                self._let_go((id, number))

    def _subscribe(self, wish: Subscribe, session: int, sequence: int) -> None:
        key = (wish.durable, wish.client_id, wish.name)
        id = self._named.get(key, sequence) if wish.name else sequence
        if id == sequence:
            assert wish.start == StartKind.LATEST, "the workload begins with what comes"
            self.subscriptions[id] = SubscriptionModel(wish.destination, sequence + 1, wish.shared)
            if wish.name:
                self._named[key] = id
        else:
            self.world.probe(f"model.subscription_{'shared' if wish.shared else 'exists'}")
        if not wish.durable:
            members = self.subscriptions[id].members
            members[session] = members.get(session, 0) + 1

    def _unsubscribe(self, id: int, session: int, sequence: int) -> None:
        members = self.subscriptions[id].members
        if members:
            members[session] -= 1
            if not members[session]:
                del members[session]
        if not members:
            self._end_subscription(id, sequence)

    def _expire(self, destination: int, numbers: set[int], sequence: int) -> None:
        super()._expire(destination, numbers, sequence)
        for subscription in self.wanting(destination):
            for number in sorted(subscription.wanted.intersection(numbers)):
                subscription.done.setdefault(number, sequence)

    def _drop(self, destination: int, subscription: int, numbers: set[int], sequence: int) -> None:
        if not subscription:
            super()._drop(destination, subscription, numbers, sequence)
        elif subscription in self.subscriptions:
            one = self.subscriptions[subscription]
            for number in sorted(one.wanted.intersection(numbers)):
                one.done.setdefault(number, sequence)
            # Other subscriptions still get the messages, and are judged by what they need.
            self.expired |= numbers

    def _end_subscription(self, id: int, sequence: int) -> None:
        ended = self.subscriptions.pop(id, None)
        if ended is not None:
            self.world.probe("model.subscription_ended")
            self._ended[id] = ended, sequence
            self._named = {key: known for key, known in self._named.items() if known != id}

    def _end_session(self, session: int, sequence: int) -> None:
        super()._end_session(session, sequence)
        for id in [id for id, known in self.subscriptions.items() if session in known.members]:
            del self.subscriptions[id].members[session]
            if not self.subscriptions[id].members:
                self._end_subscription(id, sequence)

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Register):
            self.subscription_of[message.session, message.number] = message.subscription
            self._subscription_at[node, message.consumer] = message.subscription
        elif isinstance(message, Deliver) and message.destination in self.stored:
            for target in message.targets:
                for taker in target.takers:
                    self._check_delivery(node, self._subscription_at[target.node, taker.consumer], message)
        else:
            super().on_sent(node, message)

    def _check_delivery(self, node: int, id: int, message: Deliver) -> None:
        subscription = self.subscriptions.get(id)
        if subscription is None:
            subscription, ended_at = self._ended[id]
            if self._knows(node, ended_at):
                self.fail(f"node {node} delivers to subscription {id}, which has ended")
        for piece in message.pieces:
            for number in piece.sequences:
                at = subscription.done.get(number)
                if at is not None and self._knows(node, at):
                    self.fail(f"{number} is handed to subscription {id} after it was acknowledged there")
                if number not in subscription.wanted:
                    self.fail(f"{number} is handed to subscription {id}, which it is not for")

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        id = self.subscription_of[holder.session, holder.consumer]
        if not id:
            super().on_handed_out(node, holder, sequence, count, redelivered)
            return
        in_hand = self._in_hand.setdefault(holder, set())
        for number in range(sequence, sequence + count):
            other = self._holding.get((id, number))
            if other is not None:
                self.fail(f"{number} of subscription {id} is handed to {holder} while {other} holds it")
            self._holding[id, number] = holder
            in_hand.add((id, number))
        is_shared = id in self.subscriptions and self.subscriptions[id].is_shared
        if not redelivered and not is_shared:
            # Messages that a consumer did not see are fresh for the next one; for one consumer numbers only
            # rise, unless it shares the subscription and gets what another has given back.
            line = holder, self._line_of(sequence)
            before = self._fresh_through.get(line, 0)
            if sequence in self.ruled:
                # Urgent messages overtake others, and delayed ones come behind.
                return
            if sequence <= before:
                self.fail(f"{sequence} comes to {holder} of subscription {id} behind {before}")
            self._fresh_through[line] = sequence + count - 1

    def _line_of(self, number: int) -> int:
        """Messages of one line come in their order; others may come from another line before them."""
        return 0

    def on_holder_gone(self, node: int, holder: PortConsumer) -> None:
        super().on_holder_gone(node, holder)
        for held in sorted(self._in_hand.pop(holder, ())):
            del self._holding[held]

    def _is_done(self, holder: PortConsumer, number: int) -> bool:
        id = self.subscription_of[holder.session, holder.consumer]
        if not id:
            return super()._is_done(holder, number)
        return id not in self.subscriptions or number in self.subscriptions[id].done

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        super().on_given_back(node, session, subscription, numbers)
        for number in numbers.numbers() if subscription else ():
            holder = self._holding.get((subscription, number))
            if holder is not None and holder.session == session:
                self._let_go((subscription, number))

    def on_lost_told(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        id = self.subscription_of[holder.session, holder.consumer]
        if not id:
            super().on_lost_told(node, holder, numbers)
            return
        for number in numbers.numbers():
            if self._holding.get((id, number)) == holder:
                self._let_go((id, number))

    def _let_go(self, held: Held) -> None:
        holder = self._holding.pop(held, None)
        if holder is not None:
            self._in_hand[holder].discard(held)

    def on_crashed(self, node: int) -> None:
        super().on_crashed(node)
        self._holding.clear()
        self._in_hand.clear()

    def at_quiet(self, facts: dict[int, int]) -> None:
        for id, subscription in self.subscriptions.items():
            if len(subscription.wanted) != len(subscription.done):
                missing = sorted(subscription.wanted.difference(subscription.done))
                self.fail(f"subscription {id} still needs {missing[:3]}")
        for topic, stored in self.stored.items():
            if facts.get(topic, -1) not in range(len(stored) + 1):
                self.fail(
                    f"the node keeps {facts.get(topic)} messages of topic {topic}; {len(stored)} were stored"
                )
        super().at_quiet({id: live for id, live in facts.items() if id not in self.stored})


class Destinations(Topics):
    """Queues and topics of a channel with several replicas."""

    promise = "I13 destinations"
    hears = (Deliver, Register)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Is a message given to no other while a living consumer has it? Not if client managers are cut off.
        self.is_exclusive = False
        self._applied: dict[int, int] = {}
        self._books: dict[int, Books] = {}
        self._node_of: dict[PortConsumer, int] = {}
        # All returns: session, subscription and number.
        self._given_back: set[tuple[int, int, int]] = set()

    def on_started(self, node: int, found: Image, checkpoint: int) -> None:
        self._applied[node] = checkpoint

    def on_restored(self, node: int, n: int) -> None:
        self._applied[node] = n

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        is_first = entry.last > self._folded
        super().on_applied(node, entry, payload)
        self._applied[node] = entry.last
        if is_first:
            self._books[entry.last] = self._model_books()

    def _knows(self, node: int, number: int) -> bool:
        return number <= self._applied.get(node, 0)

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        books, model = _books_of(state), self._books[entry.last]
        if books[2] != model[2]:
            self.fail(f"after {entry.last} node {node} holds {books[2]}, and by the order it is {model[2]}")
        if books[:2] != model[:2]:
            self.fail(
                f"I14: after {entry.last} node {node} has term {books[0]:#x} and {books[1]} sessions, by the "
                f"order it is {model[0]:#x} and {model[1]}"
            )

    def _model_books(self) -> Books:
        held = [(id, len(queue.live)) for id, queue in self.queues.items()]
        held += [(id, self._needed_now(one)) for id, one in self.subscriptions.items()]
        return self._term, len(self._sessions), tuple(sorted(held))

    def on_handed_out(
        self, node: int, holder: PortConsumer, sequence: int, count: int, redelivered: int
    ) -> None:
        self._node_of[holder] = node
        id = self.subscription_of[holder.session, holder.consumer]
        for number in range(sequence, sequence + count):
            other = self._holding.get((id, number)) if id else self._holders.get(number)
            if other is not None and self._may_lose(other, holder, id, number):
                self.world.probe("model.handed_out_again")
                if id:
                    self._let_go((id, number))
                else:
                    self._release(number)
        super().on_handed_out(node, holder, sequence, count, redelivered)

    def _may_lose(self, other: PortConsumer, holder: PortConsumer, subscription: int, number: int) -> bool:
        """May a message of one consumer come to another, or once more to the same?

        A new primary is not told of returned messages as held. If it delivers one before the return is
        ordered, it delivers the message again behind it. And a client that moved has left its former
        connection, though that connection's client manager may not have heard of it yet.
        """
        if (other.session, subscription, number) in self._given_back:
            return True
        if other.session == holder.session and other.connection < holder.connection:
            return True
        return other != holder and not self.is_exclusive

    def on_given_back(self, node: int, session: int, subscription: int, numbers: Ranges) -> None:
        super().on_given_back(node, session, subscription, numbers)
        self._given_back.update((session, subscription, number) for number in numbers.numbers())

    def on_lost_told(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        if self.is_exclusive:
            taken = [number for number in numbers.numbers() if self._is_taken_away(holder, number)]
            if taken:
                self.fail(f"{taken[:3]} were taken from {holder}, which lives")
        super().on_lost_told(node, holder, numbers)

    def _is_taken_away(self, holder: PortConsumer, number: int) -> bool:
        """Does a consumer have this message, with no acknowledgement of it?"""
        id = self.subscription_of[holder.session, holder.consumer]
        other = self._holding.get((id, number)) if id else self._holders.get(number)
        return other == holder and not self._is_done(holder, number)

    def on_kept(self, node: int, holder: PortConsumer, numbers: Ranges) -> None:
        self._node_of[holder] = node
        super().on_kept(node, holder, numbers)

    def on_crashed(self, node: int) -> None:
        """Consumers of a crashed client manager have nothing any more; other nodes deliver nothing."""
        for holder in [holder for holder, at in self._node_of.items() if at == node]:
            self.on_holder_gone(node, holder)

    def on_holder_gone(self, node: int, holder: PortConsumer) -> None:
        self._node_of.pop(holder, None)
        super().on_holder_gone(node, holder)


def _books_of(state: ChannelState) -> Books:
    held: list[tuple[int, int]] = []
    for destination in state.directory:
        if isinstance(destination, Topic):
            held += [(one.id, one.backlog) for one in destination.subscriptions.values()]
        else:
            held.append((destination.id, destination.live.count))
    for family in state.directory.families:
        held += [(one.id, one.backlog) for one in family.subscriptions.values()]
    return state.term, len(state.sessions), tuple(sorted(held))
