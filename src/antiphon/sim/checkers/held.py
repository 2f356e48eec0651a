"""Held queues and topics, and queues with one exclusive consumer, by an obvious model.

- a command from before its hold began, or before a hold was last ended, does nothing
- an exclusive consumer has its queue alone: no other acknowledgement counts, nothing expires, dies or is
  dropped, no primary that knows of the hold delivers, and messages below the position are acknowledged
- all replicas have the holds that the order gives, each from the number on where it began
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.bus.messages import BusMessage, Deliver, Entry
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.sim.checkers.model import Destinations
from antiphon.sim.checkers.watch import PortConsumer
from antiphon.sim.world import World
from antiphon.wire.commands import (
    Acknowledge,
    BuryMessages,
    CommandHeader,
    DropMessages,
    ExpireMessages,
    LogTime,
    Payload,
)
from antiphon.wire.holds import Hold, ReleaseHold


@dataclass(slots=True)
class HoldModel:
    """A hold; `renewed_ms` is None until log time is told."""

    position: int
    limit_ms: int
    destination: int
    consumes: bool
    began: int
    renewed_ms: int | None = None


@dataclass(slots=True)
class Alone:
    """A queue had an exclusive consumer from one number on, and up to another, if that has come."""

    began: int
    ended: int | None = None


class HeldDestinations(Destinations):
    """The destinations of a channel, and their holds."""

    promise = "I20 held destinations"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # Places in the streams to client managers that a delivery had.
        self._told: set[tuple[int, int, int, int]] = set()
        self._holds: dict[str, HoldModel] = {}
        self._hold_ended = 0
        self._alone: dict[int, list[Alone]] = {}
        # Session and number of acknowledgements that an exclusive consumer made void: the message comes
        # again.
        self._in_vain: set[tuple[int, int]] = set()
        # After each entry: position and beginning of every hold.
        self._holds_after: dict[int, dict[str, tuple[int, int]]] = {}

    def on_applied(self, node: int, entry: Entry, payload: memoryview | None) -> None:
        is_first = entry.last > self._folded
        super().on_applied(node, entry, payload)
        if is_first:
            self._holds_after[entry.last] = {
                name: (hold.position, hold.began) for name, hold in sorted(self._holds.items())
            }

    def on_folded(self, node: int, entry: Entry, state: ChannelState) -> None:
        super().on_folded(node, entry, state)
        there = {name: (row.position, row.began) for name, row in sorted(state.holds.rows.items())}
        if there != self._holds_after[entry.last]:
            self.fail(
                f"after {entry.last} node {node} has the holds {there}, and by the order it is "
                f"{self._holds_after[entry.last]}"
            )

    def _do(self, payload: Payload, header: CommandHeader, sequence: int, skip: int) -> None:
        match payload:
            case Hold():
                self._hold(payload, sequence)
            case ReleaseHold(name=name, heard=heard):
                self._let_go_of(name, heard, sequence)
            case LogTime(term=term):
                before_ms = self.log_time_ms
                super()._do(payload, header, sequence, skip)
                if term == self._term and self.log_time_ms > before_ms:
                    self._pass_time(sequence)
            case Acknowledge(destination=destination, subscription=0, ranges=ranges) if (
                self._taker_of(destination) is not None
            ):
                self.world.probe("model.acknowledged_what_is_anothers")
                self._in_vain.update((header.session, number) for number in ranges.numbers())
            case (
                ExpireMessages(destination=destination)
                | DropMessages(destination=destination, subscription=0)
                | BuryMessages(destination=destination, subscription=0)
            ) if self._taker_of(destination) is not None:
                # The exclusive consumer has been promised all there is.
                self.world.probe("model.stayed_for_a_hold")
            case _:
                super()._do(payload, header, sequence, skip)

    def _taker_of(self, queue: int) -> str | None:
        takers = [name for name, one in self._holds.items() if one.consumes and one.destination == queue]
        return takers[0] if takers else None

    def _hold(self, wish: Hold, sequence: int) -> None:
        known = self._holds.get(wish.name)
        if wish.heard < (self._hold_ended if known is None else known.began):
            self.world.probe("model.hold_outdated")
            return
        (destination,) = wish.destinations
        if known is None:
            if wish.consumes and self._taker_of(destination) is not None:
                self.world.probe("model.queue_is_anothers")
                return
            self._holds[wish.name] = HoldModel(
                wish.position, wish.limit_ms, destination, wish.consumes, sequence
            )
            if wish.consumes:
                self.world.probe("model.queue_taken")
                self._alone.setdefault(destination, []).append(Alone(sequence))
            return
        known.renewed_ms, known.limit_ms = None, wish.limit_ms
        if wish.position < known.position:
            return
        before, known.position = known.position, wish.position
        if known.consumes:
            queue = self.queues[destination]
            passed = {number for number in queue.live if before <= number < wish.position}
            self.world.probe("model.consumed_by_a_hold", len(passed))
            self._acknowledge(queue, passed, sequence)

    def _let_go_of(self, name: str, heard: int, sequence: int) -> None:
        known = self._holds.get(name)
        if known is not None and heard < known.began:
            self.world.probe("model.release_outdated")
            return
        self._end(name, sequence)

    def _end(self, name: str, sequence: int) -> None:
        self._hold_ended = sequence
        ended = self._holds.pop(name, None)
        if ended is not None and ended.consumes:
            self._alone[ended.destination][-1].ended = sequence

    def _pass_time(self, sequence: int) -> None:
        now_ms = self.log_time_ms
        for name, hold in sorted(self._holds.items()):
            if hold.renewed_ms is None:
                hold.renewed_ms = now_ms
            elif now_ms > hold.renewed_ms + hold.limit_ms:
                self.world.probe("model.hold_expired")
                self._end(name, sequence)

    def _may_lose(self, other: PortConsumer, holder: PortConsumer, subscription: int, number: int) -> bool:
        is_in_vain = not subscription and (other.session, number) in self._in_vain
        return is_in_vain or super()._may_lose(other, holder, subscription, number)

    def _is_taken_away(self, holder: PortConsumer, number: int) -> bool:
        """A consumer loses its messages once the queue has an exclusive consumer."""
        return super()._is_taken_away(holder, number) and not self._was_anothers(number)

    def _was_anothers(self, number: int) -> bool:
        return any(
            alone.ended is None or alone.ended > number
            for id, times in self._alone.items()
            if number in self.queues[id].live or number in self.queues[id].acknowledged
            for alone in times
        )

    def on_sent(self, node: int, message: BusMessage) -> None:
        if isinstance(message, Deliver):
            places = [(message.term, one.node, one.stream, one.number) for one in message.targets]
            # A repetition in a stream was judged before.
            if not self._told.issuperset(places):
                self._check_alone(node, message.destination)
            self._told.update(places)
        super().on_sent(node, message)

    def _check_alone(self, node: int, queue: int) -> None:
        applied = self._applied.get(node, 0)
        for alone in self._alone.get(queue, ()):
            is_over = alone.ended is not None and alone.ended <= applied
            if alone.began <= applied and not is_over:
                self.fail(
                    f"node {node} hands out messages of queue {queue}, which somebody has alone since "
                    f"{alone.began}"
                )
