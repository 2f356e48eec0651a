"""What a prepared transaction has locked is given to nobody and lost to nobody, whatever consumers do.

The hall of test_message_manager.py, in which some messages are locked for a while.
"""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from antiphon.bus.messages import Deliver
from antiphon.message_manager.delivery import dispatcher
from antiphon.ranges import Ranges
from antiphon.wire.commands import OutcomeCode
from antiphon.wire.transactions import Consumed
from tests.property.test_message_manager import Hall, Step, delivery_steps, few
from tests.unit.message_manager.channel import SESSION, finish

steps = st.lists(
    st.one_of(
        *delivery_steps,
        st.tuples(st.just("prepare"), st.integers(0, 30), st.integers(1, 8), st.integers(1, 3)),
        st.tuples(st.just("prepare"), st.integers(0, 30), st.integers(1, 8), st.integers(1, 3)),
        st.tuples(st.just("finish"), few, st.booleans()),
    ),
    min_size=25,
    max_size=60,
)


class LockedHall(Hall):
    """Consumers of one queue, and transactions that have prepared to acknowledge some of its messages."""

    def __init__(self) -> None:
        # By transaction.
        self.locked: dict[int, set[int]] = {}
        self.transaction = 0
        super().__init__()

    @property
    def _all_locked(self) -> set[int]:
        return {number for numbers in self.locked.values() for number in numbers}

    def _take_delivery(self, deliver: Deliver) -> None:
        for piece in deliver.pieces:
            rows = piece.sequences
            assert not self._all_locked.intersection(rows), "what is locked was given out"
        super()._take_delivery(deliver)

    def _live(self) -> list[int]:
        stored = self.channel.manager.state.directory.get(self.queue)
        assert stored is not None
        return list(stored.live.numbers())

    def _leave(self, numbers: set[int]) -> None:
        """These are acknowledged, whoever has them."""
        self.acknowledged.update(numbers)
        for holder in self.holders.values():
            for number in numbers:
                holder.held.pop(number, None)

    def _prepare(self, at: int, count: int, stride: int) -> None:
        """Lock some messages: with a consumer, coming back, ready, or not looked at yet."""
        numbers = [number for number in self._live()[at::stride] if number not in self._all_locked][:count]
        self.transaction += 1
        consumed = Consumed(self.queue, 0, Ranges((number, number + 1) for number in numbers))
        assert self.channel.outcome(self.client.prepare(0, 0, consumed, transaction=self.transaction)) is None
        self.locked[self.transaction] = set(numbers)

    def _finish(self, which: int, commits: bool) -> None:
        if not self.locked:
            return
        transaction = list(self.locked)[which % len(self.locked)]
        numbers = self.locked.pop(transaction)
        assert self.channel.outcome(finish(SESSION, transaction, commits=commits)) is None
        if commits:
            self._leave(numbers)
            self.kept_back -= numbers

    def _ack(self, which: int, count: int, is_latest_first: bool) -> None:
        """A consumer acknowledges what it holds; what of that is locked is lost to it, and nobody's."""
        key = self._pick(which)
        if key is None:
            return
        held = self.holders[key].held
        numbers = sorted(held, reverse=is_latest_first)[:count]
        if not numbers:
            return
        kept = self._all_locked.intersection(numbers)
        outcome = self.channel.outcome(self.client.ack(self.queue, *Ranges((n, n + 1) for n in numbers)))
        assert (outcome is not None and outcome.code == OutcomeCode.ACK_LOST) == bool(kept)
        self._leave(set(numbers) - kept)
        self._let_go(kept)

    def _let_go(self, numbers: set[int]) -> None:
        for holder in self.holders.values():
            for number in numbers.intersection(holder.held):
                del holder.held[number]
                self.let_go.add(number)

    def _steal(self, back: int, count: int) -> None:
        first = max(1, self.channel.next - back)
        wanted = set(range(first, first + count)).intersection(self._live())
        self.channel.order(self.client.ack(self.queue, (first, first + count)))
        self._leave(wanted - self._all_locked)
        self._let_go(wanted & self._all_locked)
        self.kept_back -= wanted - self._all_locked

    def drain(self) -> None:
        while self.locked:
            self._finish(0, False)
        super().drain()


@given(steps)
def test_what_is_locked_waits_and_in_the_end_everything_reaches_somebody(drawn: list[Step]) -> None:
    LockedHall().live(drawn)


@given(steps)
def test_it_does_so_when_little_of_the_backlog_is_looked_at_a_time(drawn: list[Step]) -> None:
    with mock.patch.object(dispatcher, "RANGES_READY", 2):
        LockedHall().live(drawn)


def test_the_hall_meets_locks_wherever_a_message_can_be() -> None:
    """Keeps the strategy honest: held, coming back, ready, and locked before anybody looks."""
    hall = LockedHall()
    drawn: list[Step] = [
        ("prepare", 0, 8, 1),
        ("ack", 0, 8, False),
        ("detach", 0, 2),
        ("prepare", 8, 8, 1),
        ("order_returns",),
        ("give_back", 0, 8, True),
        ("new_term",),
        ("attach", 0, 12, 600),
        ("finish", 0, True),
        ("finish", 0, False),
    ]
    for step in drawn:
        hall.act(step)
    assert len(hall.acknowledged) >= 8 and not hall.locked
    hall.drain()
