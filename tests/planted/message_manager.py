"""Bugs of the message manager: in what the fold applies, and in what the primary hands out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

from antiphon.bus.effects import Multicast
from antiphon.bus.messages import InDoubt, RangeRequest, SessionDetached
from antiphon.message_manager import manager
from antiphon.message_manager.delivery.delivery import Delivery
from antiphon.message_manager.delivery.dispatcher import Dispatcher
from antiphon.message_manager.delivery.doubts import Doubts
from antiphon.message_manager.delivery.log_clock import LogClock
from antiphon.message_manager.delivery.proposals import node_command
from antiphon.message_manager.fold import sessions, transactions, turns
from antiphon.message_manager.fold.fold import RULES
from antiphon.message_manager.fold.turns import ACK_LOST, Channel, Turn, Verdict
from antiphon.message_manager.manager import MessageManager
from antiphon.message_manager.state.destinations.counts import DeliveryCounts
from antiphon.message_manager.state.destinations.topic import Topic
from antiphon.message_manager.state.holds import Holds
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
        fresh = Ranges([one for one in self.ready if not self.source.counts.of(one[0])])
        if not fresh:
            return give(self, *arguments)
        returned, self.ready = self.ready.difference(fresh), fresh
        spent = give(self, *arguments)
        self.ready.add_all(returned)
        return spent

    patch.setattr(Dispatcher, "_give", give_fresh_first)


def expired_though_resumed(patch: MonkeyPatch) -> None:
    """A primary ends a session that was without an owner for a while, though it has one again."""

    def take_over(channel: Channel, row: Any, generation: int, owner: Any) -> None:
        if channel.primary is not None and generation != row.generation:
            channel.primary.delivery.session_lost(row.id)
        row.generation, row.owner = generation, owner

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

    def end_decisions(channel: Channel, row: Any) -> None:
        for session, _, decision in list(channel.state.transactions.unfinished()):
            decision.is_complete = session == row.id
        end_session(channel, row)

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


BUGS = (
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
