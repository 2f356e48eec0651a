"""Bugs of the message manager: in what the fold applies, and in what the primary hands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import InDoubt, RangeRequest, SessionDetached
from antiphon.message_manager import manager, reading
from antiphon.message_manager.delivery import dispatcher, matching, views
from antiphon.message_manager.delivery.delivery import Delivery
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.delivery.doubts import Doubts
from antiphon.message_manager.delivery.log_clock import LogClock
from antiphon.message_manager.delivery.message_groups import MessageGroups
from antiphon.message_manager.delivery.proposals import node_command
from antiphon.message_manager.delivery.ready import Ready
from antiphon.message_manager.fold import sessions, transactions, turns
from antiphon.message_manager.fold.fold import RULES
from antiphon.message_manager.fold.turns import ACK_LOST, Channel, Turn, Verdict
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state import known_ids
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.directory import Directory
from antiphon.message_manager.state.destinations.family import Undecided
from antiphon.message_manager.state.destinations.subscription import Subscription
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.holds import Holds
from antiphon.message_manager.state.known_ids import KnownIds
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, ExpireSession
from antiphon.wire.transactions import FinishTransaction

_NS_PER_MS = 1_000_000


def held_ranges_ignored(patch: MonkeyPatch) -> None:
    """A new primary does not listen to what consumers that live still hold, and hands it out again."""
    register = Delivery.register

    def register_empty_handed(self: Any, sender: int, message: Any, sessions: Any) -> None:
        register(self, sender, replace(message, held=Ranges()), sessions)

    patch.setattr(Delivery, "register", register_empty_handed)


def lower_generation_accepted(patch: MonkeyPatch) -> None:
    """The fold takes commands of a session that a former client manager still had in its queues."""
    row_for = turns._row_for

    def row_for_any_generation(channel: Channel, turn: Turn) -> Any:
        row = channel.state.sessions.get(turn.header.session)
        if row is not None and turn.header.generation < row.generation:
            turn.header = turn.header._replace(generation=row.generation)
        return row_for(channel, turn)

    patch.setattr(turns, "_row_for", row_for_any_generation)


def _replace_handler(patch: MonkeyPatch, kind: CommandKind, make: Callable[[Any], Any]) -> None:
    rule = RULES[kind]
    patch.setitem(RULES, int(kind), rule._replace(handler=make(rule.handler)))


def acknowledged_twice(patch: MonkeyPatch) -> None:
    """The fold accepts an acknowledgement of what somebody has acknowledged before."""

    def accept(acknowledge: Any) -> Any:
        def acknowledge_well(channel: Channel, turn: Turn, wish: Any) -> Verdict | None:
            verdict: Verdict | None = acknowledge(channel, turn, wish)
            return None if verdict is not None and verdict.code == ACK_LOST else verdict

        return acknowledge_well

    _replace_handler(patch, CommandKind.ACK, accept)


def old_term_accepted(patch: MonkeyPatch) -> None:
    """The fold does what a primary proposed that is none any more."""

    def in_any_term(expire: Any) -> Any:
        def expire_in_any_term(channel: Channel, turn: Turn, wish: ExpireSession) -> Verdict | None:
            term, channel.state.term = channel.state.term, wish.term
            verdict: Verdict | None = expire(channel, turn, wish)
            channel.state.term = term
            return verdict

        return expire_in_any_term

    _replace_handler(patch, CommandKind.SESSION_EXPIRE, in_any_term)


def floor_ignored(patch: MonkeyPatch) -> None:
    """A replica shows a page before it has applied what was confirmed to whoever asks."""
    receive = MessageManager.receive

    def receive_without_floor(self: Any, now_ns: int, sender: int, message: Any) -> None:
        if isinstance(message, RangeRequest):
            message = replace(message, floor=0)
        receive(self, now_ns, sender, message)

    patch.setattr(MessageManager, "receive", receive_without_floor)


def late_word_detaches(patch: MonkeyPatch) -> None:
    """A primary takes the word that a client is gone for true under any generation of its session."""
    receive = MessageManager.receive

    def receive_as_current(self: Any, now_ns: int, sender: int, message: Any) -> None:
        if isinstance(message, SessionDetached):
            row = self.state.sessions.get(message.session)
            if row is not None:
                message = replace(message, generation=row.generation)
        receive(self, now_ns, sender, message)

    patch.setattr(MessageManager, "receive", receive_as_current)


def loss_forgotten(patch: MonkeyPatch) -> None:
    """A new primary does not say which messages that a consumer holds it has given to others."""
    patch.setattr(Delivery, "_lost", lambda self, message, consumer: Ranges())


def count_stuck(patch: MonkeyPatch) -> None:
    """What is given back a second time counts as given back once."""
    raise_ = DeliveryCounts.raise_

    def begin_anew(self: Any, numbers: Ranges) -> None:
        self.forget(numbers)
        raise_(self, numbers)

    patch.setattr(DeliveryCounts, "raise_", begin_anew)


def returned_last(patch: MonkeyPatch) -> None:
    """What was given back goes out behind everything that was not."""
    give = Dispatcher._give

    def give_fresh_first(self: Any, *arguments: Any) -> int:
        plain = self.ready.plain
        fresh = Ranges([one for one in plain if not self.source.counts.of(one[0])])
        if not fresh:
            return give(self, *arguments)
        returned, self.ready.plain = plain.difference(fresh), fresh
        spent = give(self, *arguments)
        self.ready.plain.add_all(returned)
        return spent

    patch.setattr(Dispatcher, "_give", give_fresh_first)


def expired_though_resumed(patch: MonkeyPatch) -> None:
    """A primary ends a session that was without an owner for a while, though it has one again."""

    def take_over(channel: Channel, turn: Any, row: Any) -> None:
        generation = turn.header.generation
        if channel.primary is not None and generation != row.generation:
            channel.primary.delivery.session_lost(row.id)
        row.generation, row.owner, row.moved_at = generation, turn.envelope.owner, turn.sequence

    patch.setattr(turns, "take_over", take_over)
    patch.setattr(sessions, "take_over", take_over)


def wall_clock_believed(patch: MonkeyPatch) -> None:
    """The channel's time is what the wall clock of its primary says, unless that is earlier than before."""
    tell = LogClock.tell

    def believe(self: Any, now_ns: int, wall_ms: int) -> int:
        if self._time_ns:
            self._time_ns, self._at_ns = max(wall_ms * _NS_PER_MS, self._time_ns), now_ns
        return tell(self, now_ns, wall_ms)

    patch.setattr(LogClock, "tell", believe)


def aged_one_too_many(patch: MonkeyPatch) -> None:
    """When messages of a topic are too old, the one behind them goes with them."""
    patch.setattr(Topic, "time_passed", _one_too_many(Topic.time_passed))


def shed_one_too_many(patch: MonkeyPatch) -> None:
    """When a topic keeps too many bytes, one message more goes than must."""
    patch.setattr(Topic, "_shed", _one_too_many(Topic._shed))


def _one_too_many(method: Any) -> Any:
    def and_the_next(self: Any, argument: int) -> None:
        horizon = self.horizon
        method(self, argument)
        later = self.live.clip(self.horizon + 1, self.last + 1)
        if self.horizon > horizon and later:
            self._move_horizon(later.first)

    return and_the_next


def participant_decides_alone(patch: MonkeyPatch) -> None:
    """The primary of a participant rolls back what it has prepared when nobody has come for a while."""
    flush = Doubts.flush

    def decide(effect: Multicast) -> Any:
        said = effect.message
        if not isinstance(said, InDoubt):
            return effect
        return node_command(
            FinishTransaction(session=said.session, transaction=said.transaction, commits=False, messages=0)
        )

    patch.setattr(Doubts, "flush", lambda self, now_ns: [decide(one) for one in flush(self, now_ns)])


def open_survives_fence(patch: MonkeyPatch) -> None:
    """What was open at a client manager that is fenced stays open."""

    def gone_in_peace(
        channel: Channel, now_ns: int, pid: int, before: int, *, is_fenced: bool = False
    ) -> None:
        sessions.producer_gone(channel, now_ns, pid, before)

    patch.setattr(manager, "producer_gone", gone_in_peace)


def decision_ends_with_session(patch: MonkeyPatch) -> None:
    """A home takes a decision for carried out when the session ends, though participants still have to."""
    end_session = sessions._end_session

    def end_decisions(channel: Channel, row: Any, number: int) -> None:
        for session, _, decision in list(channel.state.transactions.unfinished()):
            decision.is_complete = session == row.id
        end_session(channel, row, number)

    patch.setattr(sessions, "_end_session", end_decisions)


def committed_not_offered(patch: MonkeyPatch) -> None:
    """The messages of a part that is committed are not offered to the subscriptions of their topic."""
    carry_out, published = transactions._carry_out, Delivery.published

    def carry_out_quietly(channel: Channel, *arguments: Any) -> None:
        topics = [one.id for one in channel.state.directory.topics]

        def offer(self: Delivery, destination: int, start: int, stop: int) -> None:
            if destination not in topics:
                published(self, destination, start, stop)

        with MonkeyPatch.context() as quiet:
            quiet.setattr(Delivery, "published", offer)
            carry_out(channel, *arguments)

    patch.setattr(transactions, "_carry_out", carry_out_quietly)


def hold_begun_anew(patch: MonkeyPatch) -> None:
    """A HOLD that is said again begins anew: what was kept for its holder until then goes."""
    hold = Holds.hold

    def release_and_hold(self: Any, wish: Any, ids: Any, sequence: int) -> Ranges:
        self.release(wish.name, sequence)
        return hold(self, wish, ids, sequence)

    patch.setattr(Holds, "hold", release_and_hold)


def outdated_hold_taken(patch: MonkeyPatch) -> None:
    """The fold takes a HOLD that was said before the hold of this name ended."""
    patch.setattr(Holds, "heard_floor", lambda self, name: 0)


def delay_ignored(patch: MonkeyPatch) -> None:
    """A delayed message goes out at once."""
    patch.setattr(Ready, "wait", lambda self, until_ms, start, stop: self.plain.add(start, stop))


def expiry_ignored(patch: MonkeyPatch) -> None:
    """A message that has expired goes out all the same, until the log ends it."""
    patch.setattr(Dispatcher, "expire", lambda self, numbers: None)
    hold_back = Dispatcher._hold_back

    def hold_back_early(self: Any, numbers: Ranges) -> Ranges:
        over = numbers.difference(hold_back(self, numbers)).intersection(self.expired)
        self.expired.remove_all(over)
        return numbers.difference(self.ready.waiting)

    patch.setattr(Dispatcher, "_hold_back", hold_back_early)
    patch.setattr(Delivery, "take_expired", lambda self: [])


def priority_reversed(patch: MonkeyPatch) -> None:
    """The least urgent message goes first."""
    patch.setattr(dispatcher, "PRIORITIES", dispatcher.PRIORITIES[::-1])


def shared_ends_with_one(patch: MonkeyPatch) -> None:
    """The end of one session ends a subscription that others share with it."""
    leave_all = Directory.leave_all

    def leave_and_forget_the_others(self: Directory, session: int) -> list[Subscription]:
        left = leave_all(self, session)
        for subscription in left:
            for other in list(subscription.members):
                while not self.leave(subscription, other):
                    pass
        return left

    patch.setattr(Directory, "leave_all", leave_and_forget_the_others)


def ids_not_captured(patch: MonkeyPatch) -> None:
    """Checkpoints leave out the ids that destinations remember."""
    patch.setattr(KnownIds, "write", lambda self, writer: writer.count(0))


def ids_for_ever(patch: MonkeyPatch) -> None:
    """Ids are remembered whatever the window is."""
    patch.setattr(known_ids, "dedup_window_of", lambda settings: 10**12)


def batch_left_out(patch: MonkeyPatch) -> None:
    """Of a batch with a known id no row is stored."""
    sift = KnownIds.sift

    def sift_all(self: Any, store: Any, ids: bytes, first: int, skip: int) -> Any:
        outcomes = sift(self, store, ids, first, skip)
        count = len(ids) // known_ids.ID_BYTES - skip
        return (outcomes[0]._replace(first=first + skip, count=count),) if outcomes else ()

    patch.setattr(KnownIds, "sift", sift_all)


def rows_renumbered(patch: MonkeyPatch) -> None:
    """Rows that were taken here and there are told as neighbours."""
    patch.setattr(reading, "offsets_of", lambda numbers: b"")


def all_rows_match(patch: MonkeyPatch) -> None:
    """Whatever lies between two matches of a batch is given out with them."""
    evaluate = views.evaluate

    def evaluate_roughly(*arguments: Any) -> views.Evaluated:
        done = evaluate(*arguments)
        found = done.found
        return done._replace(found=Ranges([(found.first, found.last + 1)])) if found else done

    patch.setattr(views, "evaluate", evaluate_roughly)


def undecided_not_kept(patch: MonkeyPatch) -> None:
    """A topic does not wait until the families have decided: its first messages go as its retention says."""
    patch.setattr(Undecided, "kept_from", lambda self, topic: None)


def joins_above_the_floor(patch: MonkeyPatch) -> None:
    """A topic that joins brings only messages above those that the subscription has passed."""
    regain = Subscription.regain

    def regain_above(self: Subscription, joined: Ranges, gone: Ranges) -> Ranges:
        return regain(self, joined, gone.union(joined.clip(0, self.floor + 1)))

    patch.setattr(Subscription, "regain", regain_above)


def joined_not_given(patch: MonkeyPatch) -> None:
    """The primary does not look below what it has looked at when a topic joins."""
    patch.setattr(Delivery, "regained", lambda self, subscription, numbers: None)


def every_name_matches(patch: MonkeyPatch) -> None:
    """A primary takes every topic for one that matches."""
    patch.setattr(matching, "compile_pattern", lambda match, pattern: lambda name: True)


def groups_not_noted(patch: MonkeyPatch) -> None:
    """The primary does not remember which consumer has a key."""
    patch.setattr(MessageGroups, "assign", lambda self, bucket, by: by)


def groups_of_holders_forgotten(patch: MonkeyPatch) -> None:
    """A new primary does not look which keys the messages have that consumers hold."""
    patch.setattr(Dispatcher, "_claim", lambda self, consumer: None)


def groups_go_on_early(patch: MonkeyPatch) -> None:
    """The groups of a consumer that is gone do not wait until what it saw has come back."""
    leave = MessageGroups.leave

    def leave_with_nothing(self: Any, share: Any, held: Ranges, *, is_kept: bool) -> None:
        leave(self, share, Ranges(), is_kept=False)

    patch.setattr(MessageGroups, "leave", leave_with_nothing)


BUGS = (
    rows_renumbered,
    all_rows_match,
    undecided_not_kept,
    joins_above_the_floor,
    joined_not_given,
    every_name_matches,
    groups_not_noted,
    groups_of_holders_forgotten,
    groups_go_on_early,
    shared_ends_with_one,
    ids_not_captured,
    ids_for_ever,
    batch_left_out,
    delay_ignored,
    expiry_ignored,
    priority_reversed,
    held_ranges_ignored,
    lower_generation_accepted,
    acknowledged_twice,
    old_term_accepted,
    floor_ignored,
    late_word_detaches,
    loss_forgotten,
    count_stuck,
    returned_last,
    expired_though_resumed,
    wall_clock_believed,
    aged_one_too_many,
    shed_one_too_many,
    participant_decides_alone,
    open_survives_fence,
    decision_ends_with_session,
    committed_not_offered,
    hold_begun_anew,
    outdated_hold_taken,
)
