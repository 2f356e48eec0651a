"""Burials: moves dead messages to the dead queue of their channel.

Where it sits
    queue, subscription  ->  dispatcher (withholds)  ->  BURIALS  ->  DEAD, ordered  ->  the dead queue

What it promises
    BUR1  A message is dead when it came back more often than its redelivery limit, when a consumer has
          rejected it, or when `dead` is told so. A dead message that no consumer has, and that is not locked,
          leaves its source by one ordered command, once.
    BUR2  One command is on its way at a time. An unordered one is repeated after a while.
    BUR3  A command has a bounded number of messages and bytes; the rest follow in further commands.
    BUR4  The dead queue is made when it is first needed.
    BUR5  Nothing is moved before the primary gives out messages: consumers of a former term may have them.

What it leaves to others
    The fold moves the messages, the state has counts and rejections: a new primary finds them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from antiphon.batch import Batch, BatchBuilder
from antiphon.bus.effects import Alarm
from antiphon.dead import (
    DEAD_REASON,
    DEAD_TIME,
    DELIVERY_COUNT,
    ORIGINAL_CHANNEL,
    ORIGINAL_DESTINATION,
    ORIGINAL_MESSAGE_ID,
    ORIGINAL_SEQUENCE,
)
from antiphon.errors import ProtocolError
from antiphon.events import BATCH_UNREADABLE, MESSAGES_DEAD
from antiphon.ids import format_message_id
from antiphon.message_manager.delivery.delivery import Delivery
from antiphon.message_manager.delivery.proposals import node_command
from antiphon.message_manager.effects import Effect
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.settings import MessageManagerSettings
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import KIND_QUEUE, Destination
from antiphon.message_manager.state.destinations.queue import Queue
from antiphon.message_manager.state.destinations.settings import DEAD_QUEUE_SETTINGS, NOWHERE
from antiphon.message_manager.state.destinations.source import Source
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.names import DEAD_QUEUE_NAME
from antiphon.ranges import Ranges
from antiphon.values import PropertyValue
from antiphon.wire.commands import BuryMessages, CreateDestination, DeadReason

_REPEAT_NS: Final = 1_000 * 1_000_000

REASON_WORDS: Final[Mapping[DeadReason, str]] = {
    DeadReason.LIMIT: "redelivery_limit",
    DeadReason.REJECTED: "rejected",
    DeadReason.EXPIRED: "expired",
}


class _Death(NamedTuple):
    """Messages of one source that are dead for one reason."""

    source: Source
    home: Destination
    numbers: Ranges
    reason: DeadReason


class Burials:
    """The dead messages of a channel in one term of its primary."""

    __slots__ = (
        "_again_ns",
        "_channel",
        "_delivery",
        "_expired",
        "_is_sent",
        "_looked_at",
        "_reader",
        "_settings",
        "_state",
        "_told",
        "_unreadable",
    )

    def __init__(
        self,
        channel: str,
        state: ChannelState,
        reader: BatchReader,
        delivery: Delivery,
        settings: MessageManagerSettings,
    ) -> None:
        self._channel = channel
        self._state = state
        self._settings = settings
        self._reader = reader
        self._delivery = delivery
        # Sources that may have dead messages, in the order in which that became so; by id.
        self._looked_at: dict[int, Source] = {}
        # Messages that `dead` was told of, by source; the state does not know them.
        self._expired: dict[int, Ranges] = {}
        # Batches that do not decode stay in their source.
        self._unreadable: dict[int, Ranges] = {}
        # Events about messages that were moved.
        self._told: list[Effect] = []
        # Is a command on its way (BUR2); and when is the next look, if something hinders this one?
        self._is_sent = False
        self._again_ns: int | None = None
        for destination in state.directory:
            self.look_at_all(destination)
        for family in state.directory.families:
            for subscription in family.subscriptions.values():
                self.look(subscription)

    def look(self, source: Source) -> None:
        """The source may have dead messages."""
        if source.counts:
            self._looked_at[source.id] = source

    def look_at_all(self, destination: Destination) -> None:
        sources: list[Queue | Subscription]
        sources = [*destination.sources] if isinstance(destination, Topic) else [destination]
        for source in sources:
            self.look(source)

    def dead(self, source: Source, numbers: Ranges, reason: DeadReason) -> None:
        """These messages are dead for a reason that the state does not have."""
        assert reason is DeadReason.EXPIRED, "counts and rejections are in the state"
        self._expired.setdefault(source.id, Ranges()).add_all(numbers)
        self._looked_at[source.id] = source

    def settled(self) -> None:
        """A command of this term was applied, or refused."""
        self._is_sent = False
        self._again_ns = None

    def buried(self, source: Source, wish: BuryMessages) -> None:
        """Messages of a source are moved now, or dropped."""
        home = self._of_one_home(source, wish.numbers, wish.reason).home
        words = REASON_WORDS[wish.reason]
        dead = MESSAGES_DEAD(destination=home.name, reason=words, count=wish.numbers.count)
        self._told.append(Alarm(dead))

    def mended(self) -> None:
        if not self._is_sent:
            self._again_ns = None

    def next_deadline_ns(self, now_ns: int) -> int | None:
        if self._delivery.awaited or not (self._looked_at or self._delivery.dying or self._is_sent):
            return None
        return now_ns if self._again_ns is None else self._again_ns

    def flush(self, now_ns: int, wall_ms: int) -> list[Effect]:
        """What was moved, and the next command, if one is due."""
        told, self._told = self._told, []
        return told + self._next_commands(now_ns, wall_ms)

    def _next_commands(self, now_ns: int, wall_ms: int) -> list[Effect]:
        if self._delivery.dying:
            self._looked_at |= self._delivery.dying
            self._delivery.dying.clear()
        for queue, numbers in self._delivery.dead_by_time:
            self.dead(queue, numbers, DeadReason.EXPIRED)
        self._delivery.dead_by_time.clear()
        if not self._looked_at or self._delivery.awaited:
            return []
        if self._again_ns is not None and now_ns < self._again_ns:
            return []
        self._is_sent, self._again_ns = False, None
        effects: list[Effect] = []
        while self._looked_at and not self._is_sent and self._again_ns is None:
            source = next(iter(self._looked_at.values()))
            death = self._next_death(source)
            if death is None:
                del self._looked_at[source.id]
            else:
                effects += self._propose(now_ns, wall_ms, death)
        return effects

    def _next_death(self, source: Source) -> _Death | None:
        """Dead messages of this source that nobody has and that are not locked."""
        there = self._state.directory.source(
            source.destination, 0 if source.id == source.destination else source.id
        )
        if there is not source:
            self._expired.pop(source.id, None)
            return None
        rejected = source.counts.rejected
        expired = source.still(self._expired.pop(source.id, _NONE))
        if expired:
            self._expired[source.id] = expired
        for numbers, reason in (
            (rejected, DeadReason.REJECTED),
            (source.doomed().difference(rejected), DeadReason.LIMIT),
            (expired, DeadReason.EXPIRED),
        ):
            free = self._free_of(source, numbers) if numbers else numbers
            if free:
                return self._of_one_home(source, free, reason)
        return None

    def _of_one_home(self, source: Source, numbers: Ranges, reason: DeadReason) -> _Death:
        """Those of these messages that are of one destination: a family has those of many."""
        family = self._state.directory.family(source.destination)
        if family is not None:
            home, numbers = family.by_topic(numbers)[0]
            return _Death(source, home, numbers, reason)
        found = self._state.directory.get(source.destination)
        assert found is not None, "the source of a message belongs to a destination"
        return _Death(source, found, numbers, reason)

    def _free_of(self, source: Source, numbers: Ranges) -> Ranges:
        dispatcher = self._delivery.dispatcher(source.id)
        for taken in (
            self._state.locks.get(source.id),
            self._unreadable.get(source.id),
            None if dispatcher is None else dispatcher.held(numbers),
        ):
            if taken:
                numbers = numbers.difference(taken)
        return numbers

    def _propose(self, now_ns: int, wall_ms: int, death: _Death) -> list[Effect]:
        source, home, numbers, reason = death
        term, subscription = self._state.term, 0 if source.id == source.destination else source.id
        if home.returns.dead_to == NOWHERE:
            self._sent(now_ns)
            command = BuryMessages(
                destination=source.destination,
                subscription=subscription,
                reason=reason,
                term=term,
                target=0,
                numbers=numbers.take_ranges(0, self._settings.dead_rows_max),
                batch=b"",
            )
            return [node_command(command)]
        queue = self._state.directory.named(DEAD_QUEUE_NAME)
        if queue is None:
            # The next look finds the queue (BUR4).
            self._again_ns = now_ns + _REPEAT_NS
            _, _, name = DEAD_QUEUE_NAME.partition(":")
            return [node_command(CreateDestination(kind=KIND_QUEUE, name=name, settings=DEAD_QUEUE_SETTINGS))]
        built = self._build(now_ns, wall_ms, death)
        if isinstance(built, Alarm):
            return [built]
        if built is None:
            return []
        batch, moved = built
        self._sent(now_ns)
        command = BuryMessages(
            destination=source.destination,
            subscription=subscription,
            reason=reason,
            term=term,
            target=queue.id,
            numbers=moved,
            batch=batch.encode(),
        )
        return [node_command(command, batch.count)]

    def _sent(self, now_ns: int) -> None:
        self._is_sent, self._again_ns = True, now_ns + _REPEAT_NS

    def _build(self, now_ns: int, wall_ms: int, death: _Death) -> tuple[Batch, Ranges] | Alarm | None:
        """A batch of the first of these messages, and their numbers; or an alarm. None: wait for a while."""
        source, _, numbers, _ = death
        builder, moved = BatchBuilder(), Ranges()
        for number in numbers.take(self._settings.dead_rows_max).numbers():
            try:
                found = self._reader.row(source, number)
            except ProtocolError as error:
                stored = source.index.find(number)
                aside = numbers.clip(stored.first, stored.stop)
                self._unreadable.setdefault(source.id, Ranges()).add_all(aside)
                problem = f"{source.name}: the dead messages {aside} cannot be read: {error.text}"
                return Alarm(BATCH_UNREADABLE(problem=problem))
            if found is None:
                # Damaged: the messages before it go now, and it goes when it is mended.
                break
            batch, row = found
            builder.add_row(batch, row, self._origin(death, number, batch, row, wall_ms))
            moved.add(number, number + 1)
            if builder.byte_size > self._settings.dead_bytes_max or builder.is_full:
                break
        if not moved:
            self._again_ns = now_ns + _REPEAT_NS
            return None
        # The next numbers of the channel are the ids of the copies: no two commands find the same ones.
        return builder.build(producer=0, first_number=self._state.applied + 1), moved

    def _origin(
        self, death: _Death, number: int, batch: Batch, row: int, wall_ms: int
    ) -> dict[str, PropertyValue]:
        source, home, _, reason = death
        returns = source.counts.of(number)
        return {
            ORIGINAL_DESTINATION: home.name,
            ORIGINAL_CHANNEL: self._channel,
            ORIGINAL_SEQUENCE: number,
            ORIGINAL_MESSAGE_ID: format_message_id(batch.producer, self._channel, batch.first_number + row),
            DEAD_REASON: REASON_WORDS[reason],
            DEAD_TIME: wall_ms,
            # The delivery at which a message is rejected does not come back as a return.
            DELIVERY_COUNT: returns + 1 if reason is DeadReason.REJECTED else returns,
        }


_NONE: Final = Ranges()
