"""Dispatcher: which consumer of one queue or subscription gets which messages.

DSP1  pending = ready + waiting + expired + in doubt + dying + in flight + returning + withheld + not looked
      at yet, without overlap. Waiting: for a time. Expired, in doubt: to be removed by the log. Dying: dead,
      and no consumer gets the message any more. Returning: the return is being ordered. Withheld: a
      transaction or a hold has locked the message.
DSP2  Ready messages go out by priority, over the whole backlog, and in the order of their numbers within a
      priority; also those that came back.
DSP3  Consumers with credit take turns, and none takes more than an equal part of the ready messages.
DSP4  Only a part of the backlog is looked at, and kept here, at a time.
DSP5  A consumer whose client manager does not keep up is passed over, and those of others go on. While one
      consumer waits for room, no source gives more to its client manager; then the first to wait goes first.
DSP6  A drain ends only when nothing could be given to the consumer now; then its credit is used up.
DSP7  No message is given out before its time, or after it, by log time as the primary knows it.
DSP8  A consumer with a selector gets only messages that match, and messages that do not match keep it from
      none. Without such a consumer nothing is evaluated.
DSP9  A non-persistent message that a consumer may have seen, in this term or before it, is not given out
      again unless its consumer returned it: it is in doubt.
DSP10  A message whose return was counted waits for the redelivery delay of its source, twice as long each
       time. A new primary does not know since when, and gives it out at once.
DSP11  Of the consumers of an exclusive queue the first receives. The others wait in line; the next takes over
       when the first is detached, not while it may come back.
DSP12  Where consumers compete, messages with the same key go to one of them while it is attached, in order
       (`message_groups`). A message that waits for a time is passed by later ones of its group. Without a key
       in the source nothing of this is done.

The primary's term ends all of this: acknowledgements and counted returns are ordered, the rest is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.bus.messages import Piece
from antiphon.errors import ProtocolError
from antiphon.message_manager.delivery.consumers import Consumer, ConsumerKey
from antiphon.message_manager.delivery.message_groups import GroupShare, MessageGroups, read_buckets
from antiphon.message_manager.delivery.ready import PRIORITIES, LogMoment, Ready
from antiphon.message_manager.delivery.views import MATCH_WORK, WORK_BYTES, Found, Skips, View
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.destinations.source import Source
from antiphon.ranges import Ranges

RANGES_READY: Final = 1_024
"""Ranges of ready messages of a priority looked at ahead of their delivery (DSP4). A range is a batch or
more."""

NUMBERS_READY: Final = 16_384
"""Numbers looked at ahead where messages have delivery rules: each of them may have a time of its own."""

_ALL: Final = 1 << 64
_NO_LOCKS: Final[dict[int, Ranges]] = {}
_NONE: Final = Ranges()


@dataclass(slots=True)
class Parcel:
    """The messages given to one consumer at once."""

    consumer: Consumer
    first_delivery: int
    bytes_before: int
    pieces: list[Piece] = field(default_factory=list)
    body_bytes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> tuple[tuple[int, int, int, bytes], ...]:
        return tuple([(*piece[:3], piece.offsets) for piece in self.pieces])


class Dispatcher:
    """The consumers of one source, and the messages that are ready for them."""

    __slots__ = (
        "_able",
        "_channel",
        "_complaints",
        "_given_through",
        "_has_to_pause",
        "_heard",
        "_locks",
        "_looked",
        "_looked_by",
        "_now",
        "_reader",
        "_resting",
        "consumers",
        "dropping",
        "dying",
        "expired",
        "given_before",
        "groups",
        "has_expired",
        "in_doubt",
        "is_held_up",
        "leaving",
        "ready",
        "returning",
        "skips",
        "source",
        "unreadable",
        "views",
        "withheld",
    )

    def __init__(
        self,
        source: Source,
        reader: BatchReader,
        claimed_after: int = 0,
        locks: Mapping[int, Ranges] = _NO_LOCKS,
        *,
        now: LogMoment | None = None,
        leaving: Ranges | None = None,
        channel: str = "",
    ) -> None:
        self.source = source
        self._reader = reader
        self._channel = channel
        # Views by their names; and consumers with credit for which nothing matches at the moment (DSP8). What
        # the selector of a subscription does not want.
        self.views: dict[object, View] = {}
        self._resting: dict[ConsumerKey, Consumer] = {}
        self.skips: Skips | None = None
        # By text of a selector; None while there are no keys, or one consumer receives (DSP12).
        self.groups: dict[str, MessageGroups] | None = {} if self._has_groups else None
        self._now = now or LogMoment()
        self.ready = Ready()
        # Messages whose time is over, which no consumer holds; and whether some of them are new.
        self.expired = Ranges()
        self.has_expired = False
        # Messages in doubt (DSP9), and those of them whose end is being ordered.
        self.in_doubt = Ranges()
        self.dropping = Ranges()
        # Messages of the destination whose end is being ordered.
        self.leaving = leaving if leaving is not None else Ranges()
        # The locked numbers of all sources; and those of this source that no consumer holds.
        self._locks = locks
        self.withheld = Ranges()
        self.dying = Ranges()
        # Pending messages of the default priority through `_looked` have been ready, and of the other
        # priorities through `_looked_by`; the source has messages through `_heard`.
        self._looked = 0
        self._looked_by = dict.fromkeys(source.rules.priorities, 0)
        self._heard = source.last
        # Seen by a consumer that is gone; ready once the return is ordered.
        self.returning = Ranges()
        # Given to a consumer that ended without telling which it saw: redelivered, but not counted.
        self.given_before = Ranges()
        # The same for messages published before this term, which an earlier primary may have given out.
        self._given_through = claimed_after if source.id <= claimed_after else 0
        # Batches that do not decode stay in the source, and hold up no consumer.
        self.unreadable = Ranges()
        # The next message lies in a record that is being mended.
        self.is_held_up = False
        self.consumers: dict[ConsumerKey, Consumer] = {}
        # Consumers with credit, in the order of their turns.
        self._able: dict[ConsumerKey, Consumer] = {}
        # Alarms for an operator.
        self._complaints: list[str] = []
        self._has_to_pause = False
        self._look(NUMBERS_READY)

    @property
    def in_flight(self) -> int:
        return self.returning.count + sum(consumer.in_flight.count for consumer in self.consumers.values())

    @property
    def _has_groups(self) -> bool:
        source = self.source
        return bool(source.rules.keyed) and not (source.is_exclusive or source.is_one_by_one)

    @property
    def is_idle(self) -> bool:
        """Whether everything here could be found out again from the source."""
        return not (
            self.consumers
            or self.returning
            or self.given_before
            or self.unreadable
            or self.in_doubt
            or self.dropping
            # Since when a message waits that came back, only this dispatcher knows (DSP10).
            or (self.ready.waiting and self.source.may_delay)
        )

    @property
    def can_go_on(self) -> bool:
        return bool(self._able) and self._has_ready and not self.is_held_up

    @property
    def _has_ready(self) -> bool:
        """Is a message ready, or may one become so by looking?"""
        if self.returning and self.source.is_one_by_one:
            # The next consumer in line begins with the messages that the one before it had (DSP11).
            return False
        if self.ready or self._looked < self._heard:
            return True
        priorities, looked, heard = self.source.rules.priorities, self._looked_by, self._heard
        return bool(priorities) and any(looked.get(priority, 0) < heard for priority in priorities)

    def _look(self, at_most: int = _ALL) -> bool:
        """Make the next pending messages of the default priority ready; False when there are none.

        Only about `at_most` are looked at; if none of them is ready, the others wait for the next step.
        """
        while self._looked < self._heard and at_most > 0:
            part, through = self.source.pending(self._looked, RANGES_READY)
            if self.source.rules and part.count > NUMBERS_READY:
                part = part.take(NUMBERS_READY)
                through = part.last
            self._looked = self._heard if through is None else through
            at_most -= part.count
            for others in self.source.rules.priorities.values():
                part = part.difference(others)
            if part and self._free_known(part):
                return True
        return False

    def _look_for(self, priority: int) -> bool:
        """Make the next pending messages of another priority ready; False when there are none."""
        source = self.source
        while (looked := self._looked_by.get(priority, 0)) < self._heard:
            numbers = source.rules.priorities.get(priority, _NONE)
            part = numbers.take_ranges(max(looked, source.floor) + 1, RANGES_READY)
            is_cut = len(part) == RANGES_READY or part.count > NUMBERS_READY
            part = part.take(NUMBERS_READY)
            self._looked_by[priority] = part.last if is_cut else self._heard
            part = source.still(part)
            if part and self._free_known(part):
                return True
        return False

    def _look_through(self, number: int) -> None:
        while self._looked < number and self._look():
            pass
        for priority in list(self.source.rules.priorities):
            while self._looked_by.get(priority, 0) < number and self._look_for(priority):
                pass

    def _first(self) -> Ranges | None:
        """The free messages of the highest priority that has any; looks at more where it must (DSP2)."""
        ready, priorities = self.ready, self.source.rules.priorities
        if not priorities and not ready.has_others:
            if ready.plain or self._look(NUMBERS_READY):
                return ready.plain
            self._has_to_pause = self._looked < self._heard
            return None
        for priority in PRIORITIES:
            if ready.has(priority):
                return ready.of(priority)
            if self.look_at(priority):
                return ready.of(priority)
        return None

    def look_at(self, priority: int) -> bool:
        """Make the next pending messages of a priority ready; False when there are none."""
        return self._look() if priority == PRIORITY_DEFAULT else self._look_for(priority)

    def _free_known(self, numbers: Ranges) -> bool:
        """Free messages that are looked at for the first time; an earlier primary may have given them out."""
        if self.source.rules.transient and numbers.first <= self._given_through:
            doubtful = self._doubt(numbers.clip(0, self._given_through + 1))
            numbers = numbers.difference(doubtful)
        return self._free(numbers)

    def _doubt(self, numbers: Ranges) -> Ranges:
        """Take the non-persistent ones of messages that a consumer may have seen; returns them (DSP9)."""
        transient = self.source.rules.transient
        doubtful = transient.intersection(numbers) if transient else _NONE
        self.in_doubt.add_all(doubtful)
        return doubtful

    def _free(self, numbers: Ranges) -> bool:
        """Make these ready, but for locked, dead, expired and waiting ones; False if none is ready."""
        locked = self._locks.get(self.source.id) if self._locks else None
        if locked is not None:
            withheld = numbers.intersection(locked)
            self.withheld.add_all(withheld)
            numbers = numbers.difference(withheld)
        if self.source.counts and numbers:
            dying = numbers.intersection(self.source.doomed())
            self.dying.add_all(dying)
            numbers = numbers.difference(dying)
        if self.views:
            self._stir_views(numbers)
        rules = self.source.rules
        if rules and numbers:
            numbers = self._hold_back(numbers)
            is_free = bool(numbers)
            for priority, others in rules.priorities.items():
                some = numbers.intersection(others)
                if some:
                    self.ready.of(priority).add_all(some)
                    numbers = numbers.difference(some)
            self.ready.plain.add_all(numbers)
            return is_free
        self.ready.plain.add_all(numbers)
        return bool(numbers)

    def _stir_views(self, numbers: Ranges) -> None:
        """Let consumers with selectors look again: these messages may be ready."""
        for view in self.views.values():
            view.freed(numbers)
        self._wake_resting()

    def _wake_resting(self) -> None:
        self._able |= self._resting
        self._resting.clear()

    def _hold_back(self, numbers: Ranges) -> Ranges:
        """Set those aside that have expired or whose time has not come; returns the others (DSP7)."""
        rules, now_ms = self.source.rules, self._now.ms
        if rules.expires and (over := rules.expires.due(numbers, now_ms)):
            self.expired.add_all(over)
            self.has_expired = True
            numbers = numbers.difference(over)
        if rules.deliver_at:
            early = Ranges()
            for time_ms, start, stop in rules.deliver_at.among(numbers):
                if time_ms > now_ms:
                    self.ready.wait(time_ms, start, stop)
                    early.add(start, stop)
            numbers = numbers.difference(early)
        return numbers

    # -- time passes -------------------------------------------------------------

    def wake(self) -> None:
        """Free the messages whose time has come."""
        woken = self.ready.wake(self._now.ms)
        if woken:
            self._free(woken)

    def expire(self, numbers: Ranges) -> None:
        """Set messages aside whose time is over; those that a consumer holds stay there."""
        self.expired.add_all(self.ready.take(numbers))

    def held(self, numbers: Ranges) -> Ranges:
        """Those of these that a consumer holds, or that are locked: they cannot be removed now."""
        held = self.returning.intersection(numbers)
        held.add_all(self.withheld.intersection(numbers))
        for consumer in self.consumers.values():
            held.add_all(consumer.in_flight.intersection(numbers))
        return held

    def altered(self) -> None:
        """Look anew at which messages are dead, and at who receives: the settings are others."""
        if self._has_groups if self.groups is None else self.source.is_one_by_one:
            self._regroup()
        doomed = self.source.doomed()
        free = self.dying.difference(doomed)
        self.dying.remove_all(free)
        self.dying.add_all(self.ready.take(doomed))
        self._free(free)
        for consumer in self.consumers.values():
            if not consumer.is_away:
                self.look_at_credit(consumer)
        self._look_at_line()

    # -- consumers come and go -------------------------------------------------

    def attach(
        self, consumer: Consumer, held: Ranges, doubtful: Ranges, share: GroupShare | None = None
    ) -> None:
        """Take in a consumer, with those of the messages it holds that are still free and not doubtful.

        Messages of a group that another has are free for that one. A locked message stays with its holder:
        the holder's transaction may have acknowledged it. `share`: the consumer's, if it comes back.
        """
        self.consumers[consumer.key] = consumer
        self._join_view(consumer, share)
        self._release_groups()
        if held:
            self._look_through(held.last)
            theirs = held.difference(doubtful).difference(self.leaving)
            consumer.hold(self.ready.take(theirs))
            for kept, some in (
                (self.expired, theirs),
                (self.in_doubt, theirs),
                (self.dying, theirs),
                (self.withheld, held),
            ):
                still = kept.intersection(some)
                kept.remove_all(still)
                consumer.hold(still)
            self._claim(consumer)
        if consumer.in_flight and self.source.is_one_by_one:
            # The consumer was the first in an earlier term.
            self._put_first(consumer)
        self.look_at_credit(consumer)

    def _put_first(self, consumer: Consumer) -> None:
        others = {key: other for key, other in self.consumers.items() if key != consumer.key}
        self.consumers = {consumer.key: consumer, **others}
        self._look_at_line()

    def _is_in_line(self, consumer: Consumer) -> bool:
        """Does the consumer wait until another has left (DSP11)?"""
        return self.source.is_one_by_one and next(iter(self.consumers)) != consumer.key

    def _look_at_line(self) -> None:
        """Let the first consumer of an exclusive queue receive, and no other (DSP11)."""
        if self.source.is_one_by_one:
            self._able.clear()
            self._resting.clear()
            for consumer in self.consumers.values():
                if not consumer.is_away:
                    self.look_at_credit(consumer)

    def _join_view(self, consumer: Consumer, share: GroupShare | None = None) -> None:
        """Give the consumer its view, if it is not to have any message that comes."""
        selector = consumer.selector
        if selector is None and self.groups is None:
            return
        text = _text_of(consumer)
        name: object = text
        if self.groups is not None:
            name = text, consumer.key
            if share is None:
                share = self.groups.setdefault(text, MessageGroups()).join(consumer)
            share.consumer = consumer
        view = self.views.get(name)
        if view is None:
            if selector is not None and self.skips is None and self.source.id != self.source.destination:
                self.skips = Skips()
            skips = None if selector is None else self.skips
            view = self.views[name] = View(name, selector, self._channel, skips=skips, share=share)
        view.consumers += 1
        consumer.view = view

    def _leave_view(self, consumer: Consumer) -> GroupShare | None:
        """Let a consumer have no view any more; returns its share of the groups, if there is one."""
        view = consumer.view
        if view is None:
            return None
        view.consumers -= 1
        if not view.consumers:
            del self.views[view.name]
        return view.share

    def _remove(self, consumer: Consumer) -> GroupShare | None:
        del self.consumers[consumer.key]
        self._stop_giving(consumer)
        return self._leave_view(consumer)

    # -- message groups ----------------------------------------------------------

    def _regroup(self) -> None:
        """Begin or end to keep groups together: the first key has come, or the settings are others."""
        self.groups = {} if self._has_groups else None
        for consumer in self.consumers.values():
            self._leave_view(consumer)
            consumer.view = None
            self._join_view(consumer)
            self._claim(consumer)
        self._wake_resting()

    def _claim(self, consumer: Consumer) -> None:
        """Give a consumer the groups of messages it holds, and free those of groups that another has."""
        share = consumer.view.share if consumer.view else None
        if share is None or not consumer.in_flight:
            return
        buckets, unknown = read_buckets(self.source, self._reader, consumer.in_flight)
        others = share.groups.claim(share, buckets).union(unknown)
        others = others.difference(self._locks.get(self.source.id, _NONE))
        consumer.forget(others)
        others = others.difference(self._doubt(others))
        self.given_before.add_all(others)
        self._free(others)

    def part(self, consumer: Consumer) -> None:
        """The session of a consumer that was detached has not begun it anew."""
        for groups in (self.groups or {}).values():
            groups.part(consumer)
        self._release_groups()

    def _release_groups(self) -> bool:
        """Free the groups of consumers that are gone, if all they held has come back; were there any?"""
        released = False
        for text, groups in list((self.groups or {}).items()):
            if groups.release(self.returning, self.withheld):
                released = True
                for view in self.views.values():
                    view.look_anew()
            if groups.is_idle and self.groups is not None:
                del self.groups[text]
        if released:
            self._wake_resting()
        return released

    def _stop_giving(self, consumer: Consumer) -> None:
        self._able.pop(consumer.key, None)
        self._resting.pop(consumer.key, None)

    def given_to_others(self, numbers: Ranges) -> Ranges:
        """Those that have been returned, or taken from a consumer: others may have been given them since."""
        found = self.given_before.intersection(numbers)
        found.add_all(self.source.counts.among(numbers))
        return found

    def look_at_credit(self, consumer: Consumer) -> None:
        is_resting = consumer.key in self._resting
        if consumer.has_credit and not is_resting and not self._is_in_line(consumer):
            self._able.setdefault(consumer.key, consumer)

    def has_more_for(self, consumer: Consumer) -> bool:
        """Whether the consumer will be given messages, now or when its client manager has room (DSP6)."""
        is_resting = consumer.key in self._resting
        is_its_turn = consumer.has_credit and not is_resting and not self._is_in_line(consumer)
        return is_its_turn and self._has_ready and not self.is_held_up

    def use_up(self, consumer: Consumer) -> int:
        through = consumer.use_up()
        if not consumer.has_credit:
            self._stop_giving(consumer)
        return through

    def suspend(self, consumer: Consumer, seen_through: int | None) -> None:
        """Stop giving to a consumer whose client was lost, and free the messages which that has not seen."""
        self._stop_giving(consumer)
        if seen_through is not None:
            unseen = consumer.unseen(seen_through)
            consumer.forget(unseen)
            self._free(unseen)

    def come_back(self, former: Consumer, consumer: Consumer, held: Ranges, doubtful: Ranges) -> None:
        """Replace a consumer whose client came back; messages that never reached the client are free."""
        is_first = next(iter(self.consumers)) == former.key
        share = self._remove(former)
        if share is not None and _text_of(former) != _text_of(consumer):
            share.groups.leave(share, _NONE, is_kept=False)
            share = None
        self._free(former.in_flight)
        self.attach(consumer, held, doubtful.difference(former.in_flight), share)
        if is_first and self.source.is_one_by_one:
            self._put_first(consumer)

    def detach(self, consumer: Consumer, seen_through: int | None, *, is_kept: bool = False) -> Ranges:
        """Remove a consumer; returns the messages that it saw, for a counted return.

        The others are ready again at once. None for `seen_through`: unknown. The groups of a consumer that
        `is_kept` wait until its session has another, or `part` is called.
        """
        share = self._remove(consumer)
        self._look_at_line()
        seen = Ranges()
        if seen_through is None:
            back = consumer.in_flight.difference(self._doubt(consumer.in_flight))
            self._free(back)
            self.given_before.add_all(back)
        else:
            unseen = consumer.unseen(seen_through)
            self._free(unseen)
            seen = consumer.in_flight.difference(unseen)
            seen = seen.difference(self._doubt(seen))
            self.returning.add_all(seen)
        if share is not None:
            share.groups.leave(share, consumer.in_flight, is_kept=is_kept)
            self._release_groups()
        return seen

    # -- what the log did to the source -----------------------------------------

    def published(self, start: int, stop: int) -> None:
        heard, self._heard = self._heard, stop - 1
        if self._resting:
            self._wake_resting()
        rules = self.source.rules
        has_rules = bool(rules)
        if has_rules:
            if self.groups is None and self._has_groups:
                self._regroup()
            for priority in rules.priorities:
                self._looked_by.setdefault(priority, 0)
        if self._looked >= heard and len(self.ready.plain) < RANGES_READY:
            self._looked = self._heard
            start = max(start, self.source.floor + 1)
            locked = self._locks.get(self.source.id) if self._locks else None
            if has_rules:
                numbers = Ranges([(start, stop)])
                for others in rules.priorities.values():
                    # Other priorities are looked at when it is their turn.
                    numbers = numbers.difference(others)
                self._free(numbers)
            elif locked and locked.last >= start:
                # A hold locks the whole queue, with all that is still to come.
                self._free(Ranges([(start, stop)]))
            else:
                self.ready.plain.add(start, stop)

    def regained(self, numbers: Ranges) -> None:
        """Take in messages, new or old, of topics that have joined the family of the subscription."""
        rules = self.source.rules
        self._heard = max(self._heard, self.source.last)
        for priority in rules.priorities:
            self._looked_by.setdefault(priority, 0)
        if self.groups is None and self._has_groups:
            self._regroup()
        # What lies beyond the messages that were looked at is looked at in its turn.
        behind, plain = Ranges(), numbers
        for priority, others in rules.priorities.items():
            behind.add_all(numbers.intersection(others).clip(0, self._looked_by[priority] + 1))
            plain = plain.difference(others)
        behind.add_all(plain.clip(0, self._looked + 1))
        if behind:
            self._free(behind)
        self._wake_resting()

    def acknowledged(self, numbers: Ranges, holders: list[Consumer]) -> bool:
        """Drop messages that left the source; may messages go out now for which these were waited for?

        `holders` are the consumers of the acknowledging session.
        """
        is_over = False
        left = numbers.count
        for consumer in holders:
            left -= consumer.forget(numbers)
        if left:
            # Returned meanwhile, or the primary changed.
            was_returning = bool(self.returning)
            left -= self.ready.remove_all(numbers)
            for kept in (
                self.expired,
                self.in_doubt,
                self.dropping,
                self.returning,
                self.withheld,
                self.unreadable,
                self.dying,
            ):
                if kept:
                    left -= kept.remove_all(numbers)
            if not self._looked_by:
                left -= numbers.clip(self._looked + 1, numbers.last + 1).count
            for consumer in self.consumers.values():
                if not left:
                    break
                left -= consumer.forget(numbers)
            # Which priority a message had that was not looked at yet is forgotten with the message.
            assert left == 0 or self._looked_by, "an acknowledged message was neither ready nor in flight"
            is_over = was_returning and not self.returning
            is_over = self._release_groups() or is_over
        if self.given_before:
            self.given_before.remove_all(numbers)
        return is_over

    def skipped(self, numbers: Ranges, proposed: Ranges) -> None:
        """Drop messages of a subscription that its selector does not want, of those that were proposed."""
        if self.skips is not None:
            self.skips.applied(proposed)
        if numbers:
            self.acknowledged(numbers, [])

    def drop(self) -> Ranges:
        """The messages in doubt, whose end is now being ordered."""
        doubtful, self.in_doubt = self.in_doubt, Ranges()
        self.dropping.add_all(doubtful)
        return doubtful

    def dropped(self, numbers: Ranges, gone: Ranges) -> None:
        """The log dropped some of these; the others were locked, and are in doubt when they are unlocked."""
        self.acknowledged(gone, [])
        left = self.dropping.intersection(numbers)
        self._doubt_again(left.difference(self._locks.get(self.source.id, _NONE)))

    def _doubt_again(self, numbers: Ranges) -> None:
        """Have the end of these ordered once more."""
        self.dropping.remove_all(numbers)
        self.in_doubt.add_all(numbers)

    def returned(self, numbers: Ranges, holders: list[Consumer], *, is_counted: bool) -> None:
        """Free messages that came back; counted ones after the delay that their source sets (DSP10)."""
        free = self._free_later if is_counted and self.source.may_delay else self._free
        for consumer in holders:
            back = consumer.in_flight.intersection(numbers)
            consumer.forget(back)
            free(back)
        back = self.returning.intersection(numbers)
        self.returning.remove_all(back)
        free(back)
        self._release_groups()

    def _free_later(self, numbers: Ranges) -> None:
        source = self.source
        dying = numbers.intersection(source.doomed())
        self._free(dying)
        for returns, some in source.by_returns(numbers.difference(dying)):
            if not returns.delay_ms:
                self._free(some)
                continue
            for start, stop in some:
                while start < stop:
                    count, end = source.counts.run(start, stop)
                    self.ready.wait(self._now.ms + returns.wait_ms(max(1, count)), start, end)
                    start = end

    def take_back(self, consumer: Consumer, numbers: Ranges) -> None:
        """Free messages that did not reach the consumer, and will not."""
        consumer.forget(numbers)
        self._free(numbers)

    def let_go(self, numbers: Ranges, holders: list[Consumer]) -> None:
        """Take locked messages from their holders; they wait to be acknowledged or unlocked."""
        for consumer in holders:
            back = consumer.in_flight.intersection(numbers)
            consumer.forget(back)
            self.given_before.add_all(back)
            self._free(back)

    def locked(self, numbers: Ranges) -> None:
        self.withheld.add_all(self.ready.take(numbers))
        expired = self.expired.intersection(numbers)
        self.expired.remove_all(expired)
        self.withheld.add_all(expired)

    def unlocked(self, numbers: Ranges) -> None:
        if self.dropping:
            self._doubt_again(self.dropping.intersection(numbers))
        free = self.withheld.intersection(numbers)
        self.withheld.remove_all(free)
        self._free(free)
        self._release_groups()

    # -- giving ----------------------------------------------------------------

    def distribute(self, bytes_max: int) -> tuple[list[Parcel], int, list[str]]:
        """Give out ready messages: parcels, their bytes of bodies, and alarms for an operator."""
        parcels: dict[ConsumerKey, Parcel] = {}
        spent = 0
        able = self._able if self._has_ready else {}
        while able and spent < bytes_max and not self.is_held_up and self._first() is not None:
            turns = len(able)
            share = -(-self.ready.count // turns)
            for _ in range(turns):
                consumer = able.pop(next(iter(able)))
                stream = consumer.stream
                if stream is not None and (stream.room <= 0 or stream.stopped):
                    # The consumer's turn comes again when its client manager has room (DSP5).
                    stream.stopped[consumer.key] = consumer
                    continue
                parcel = parcels.get(consumer.key)
                if parcel is None:
                    parcel = parcels[consumer.key] = Parcel(
                        consumer, consumer.delivered + 1, consumer.delivered_bytes
                    )
                spent += self._give(parcel, share, bytes_max - spent)
                if consumer.has_credit and consumer.key not in self._resting:
                    able[consumer.key] = consumer
                if not self.ready or self.is_held_up or spent >= bytes_max:
                    break
        if self._has_to_pause:
            # So many that were looked at are not ready that the others have to wait for the next step.
            self._has_to_pause, spent = False, max(spent, bytes_max)
        complaints, self._complaints = self._complaints, []
        return [parcel for parcel in parcels.values() if parcel.pieces], spent, complaints

    def _give(self, parcel: Parcel, share: int, bytes_max: int) -> int:
        consumer, view = parcel.consumer, parcel.consumer.view
        left = min(share, consumer.credit_messages - consumer.delivered)
        bytes_left = min(bytes_max, consumer.credit_bytes - consumer.delivered_bytes)
        if consumer.stream is not None:
            bytes_left = min(bytes_left, consumer.stream.room)
        spent = work = 0
        while left > 0 and spent < bytes_left:
            among = None
            if view is None:
                free = self._first()
                if free is None:
                    break
                start, stop = next(iter(free))
                stop = min(stop, start + left)
            else:
                work_left = (bytes_max - spent) // WORK_BYTES - work
                if work and work_left <= 0:
                    break
                found = view.search(self, self._reader, work_left, left)
                work += found.work
                free, among = found.free, found.matching
                if free is None:
                    self._found_nothing(consumer, found)
                    break
                left = min(left, max(1, -(-view.matched_count // view.consumers)))
                among = among.take(left)
                if len(among) > 1:
                    # Neighbours are cut from their batch as they are.
                    among = among.take(max(1, work_left // MATCH_WORK))
                    work += MATCH_WORK * among.count
                start, stop = among.first, among.last + 1
            try:
                cut = self._reader.cut(
                    self.source,
                    start,
                    stop,
                    bytes_left - spent,
                    self.given_before,
                    self._given_through,
                    among,
                )
            except ProtocolError as error:
                self.set_aside(start, error)
                continue
            if cut is None:
                # Messages behind the damaged record would be out of order (DSP2).
                self.is_held_up = True
                break
            if cut.numbers is None:
                free.remove(start, cut.stop)
                consumer.give(start, cut.stop, cut.body_bytes)
            else:
                free.remove_all(cut.numbers)
                consumer.give_some(cut.numbers, cut.body_bytes)
            parcel.pieces.append(cut.piece)
            parcel.body_bytes.append(cut.body_bytes)
            left -= cut.piece.count
            spent += cut.body_bytes
        if consumer.stream is not None:
            consumer.stream.given_bytes += spent
        return spent + work * WORK_BYTES

    def _found_nothing(self, consumer: Consumer, found: Found) -> None:
        self.is_held_up = self.is_held_up or found.is_damaged
        if found.is_over and consumer.has_credit:
            # The consumer's turn comes again when messages become ready (DSP8).
            self._resting[consumer.key] = consumer

    def set_aside(self, number: int, error: ProtocolError) -> None:
        """Set aside a batch that does not decode, although the client manager checked it."""
        stored = self.source.index.find(number)
        aside = self.ready.clip(stored.first, stored.stop)
        self.ready.remove_all(aside)
        self.unreadable.add_all(aside)
        self._complaints.append(
            f"{self.source.name}: the messages {aside} cannot be read and are not delivered: {error.text}"
        )


def _text_of(consumer: Consumer) -> str:
    return "" if consumer.selector is None else consumer.selector.text
