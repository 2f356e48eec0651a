"""Priority, delay and expiry against an obvious model: sets of numbers, sorted anew for every flush.

The hall of test_message_manager.py, in which messages have rules and time passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from antiphon.message_manager.delivery import dispatcher
from antiphon.ranges import Ranges
from antiphon.wire.commands import CommandKind, ExpireMessages, Return, read_command
from tests.property.test_message_manager import Hall, Step, delivery_steps
from tests.unit.message_manager.channel import delivers, proposals

ruled = st.tuples(
    st.sampled_from([4, 4, 4, 0, 5, 9]),
    st.sampled_from([0, 0, 0, 20, 60]),
    st.sampled_from([0, 0, 0, 10, 50]),
)
steps = st.lists(
    st.one_of(
        *delivery_steps,
        *[st.tuples(st.just("publish_ruled"), st.lists(ruled, min_size=1, max_size=8))] * 3,
        *[st.tuples(st.just("pass_time"), st.integers(1, 30), st.booleans())] * 2,
        st.tuples(st.just("expire")),
    ),
    min_size=25,
    max_size=60,
)


class Rules(NamedTuple):
    priority: int = 4
    expires_ms: int = 0
    deliver_at_ms: int = 0


class RuledHall(Hall):
    """Consumers of one queue whose messages have priorities and times."""

    def __init__(self) -> None:
        self.rules: dict[int, Rules] = {}
        self.expired: set[int] = set()
        # The ends of messages that were proposed and are not ordered yet.
        self.ends: list[bytes] = []
        super().__init__()
        self.channel.pass_time(0)

    @property
    def now_ms(self) -> int:
        return self.channel.manager._log_clock.now_ms(self.channel.now_ns)

    def _publish_ruled(self, drawn: list[tuple[int, int, int]]) -> None:
        wall_ms, rows, noted = self.channel.wall_ms, [], []
        for priority, ttl, delay in drawn:
            noted.append(Rules(priority, ttl and wall_ms + ttl, delay and wall_ms + delay))
            more: dict[str, Any] = noted[-1]._asdict()
            rows.append({"body": bytes(50), **more})
        first = self.channel.order(self.client.publish_rows(self.queue, *rows))
        self.rules.update(enumerate(noted, first))
        self.published += len(rows)

    def _pass_time(self, ms: int, is_marked: bool) -> None:
        if is_marked:
            self.channel.pass_time(ms)
        else:
            self.channel.now_ns += ms * 1_000_000
            self.channel.wall_ms += ms

    def _expire(self) -> None:
        """Order the ends that were proposed."""
        stored = self.channel.manager.state.directory.get(self.queue)
        assert stored is not None
        for command in self.ends:
            wish = ExpireMessages.decode(read_command(command)[1])
            if wish.term == self.channel.manager.term:
                self.expired.update(stored.live.intersection(wish.ranges).numbers())
            self.channel.order(command)
        self.ends.clear()

    def settle(self) -> list[Ranges]:
        now_ms = self.now_ms
        effects = self.channel.flush()
        returned = []
        for proposal in proposals(effects):
            header, payload = read_command(proposal.command)
            if header.kind == CommandKind.RETURN:
                self.returns.append(proposal.command)
                returned.append(Return.decode(payload).ranges)
            elif header.kind == CommandKind.EXPIRE:
                self.ends.append(proposal.command)
                self._check_end(ExpireMessages.decode(payload).ranges, now_ms)
        given = [number for deliver in delivers(effects) for number in self._numbers_of(deliver)]
        free = {*self._free(now_ms)}
        for deliver in delivers(effects):
            self._take_delivery(deliver)
        assert free.issuperset(given), f"{sorted(set(given) - free)} may not be given out"
        left = free.difference(given)
        if given and left:
            assert max(map(self._turn, given)) < min(map(self._turn, left)), "a message was passed over"
        is_able = any(
            one.delivered < one.credit and one.delivered_bytes < one.credit_bytes
            for one in self.holders.values()
        )
        assert not (is_able and left), f"{sorted(left)} are given to nobody"
        self._check_conservation()
        return returned

    def _numbers_of(self, deliver: Any) -> list[int]:
        return [number for piece in deliver.pieces for number in piece.sequences]

    def _turn(self, number: int) -> tuple[int, int]:
        return -self.rules.get(number, Rules()).priority, number

    def _free(self, now_ms: int) -> list[int]:
        stored = self.channel.manager.state.directory.get(self.queue)
        assert stored is not None
        held = {number for holder in self.holders.values() for number in holder.held} | self.kept_back
        return [
            number
            for number in stored.live.numbers()
            if number not in held and self._is_deliverable(self.rules.get(number, Rules()), now_ms)
        ]

    def _is_deliverable(self, rules: Rules, now_ms: int) -> bool:
        is_over = 0 < rules.expires_ms <= now_ms
        return not is_over and rules.deliver_at_ms <= now_ms

    def _check_end(self, numbers: Ranges, now_ms: int) -> None:
        held = {number for holder in self.holders.values() for number in holder.held} | self.kept_back
        for number in numbers.numbers():
            assert 0 < self.rules[number].expires_ms <= now_ms, f"{number} has not expired"
            assert number not in held, f"{number} is with a consumer"

    def _check_conservation(self) -> None:
        primary = self.channel.manager.primary
        stored = self.channel.manager.state.directory.get(self.queue)
        assert primary is not None and stored is not None
        assert stored.live.count == self.published - len(self.acknowledged) - len(self.expired)
        assert stored.published == stored.live.count + stored.acknowledged + stored.expired
        giver = primary.delivery.dispatcher(self.queue)
        if giver is None:
            return
        known = [
            giver.ready.all(),
            giver.ready.waiting,
            giver.expired,
            giver.returning,
            giver.withheld,
            *(c.in_flight for c in giver.consumers.values()),
        ]
        together = Ranges()
        for part in known:
            together.add_all(part)
        assert sum(part.count for part in known) == together.count, "a message is in two places"
        assert not together.difference(stored.live), "a message that is gone is somewhere"

    def _new_term(self) -> None:
        self.ends.clear()
        super()._new_term()

    def drain(self) -> None:
        """Nothing may be stuck: everything is acknowledged or expires."""
        self._attach(0, 0, 0)
        for _ in range(200):
            self._pass_time(10, is_marked=True)
            self._order_returns()
            self._expire()
            for which in range(len(self.holders)):
                self._credit(which, 50, 5_000)
                self.settle()
                self._acknowledge(self._take(which, 1_000))
            self.settle()
            if len(self.acknowledged) + len(self.expired) == self.published:
                return
        raise AssertionError("some messages were never delivered, and never expired")


@given(steps)
def test_the_most_urgent_message_of_its_time_goes_first_and_the_rest_expires(drawn: list[Step]) -> None:
    RuledHall().live(drawn)


@given(steps)
def test_it_does_so_when_little_of_the_backlog_is_looked_at_a_time(drawn: list[Step]) -> None:
    with mock.patch.object(dispatcher, "RANGES_READY", 2):
        RuledHall().live(drawn)


def test_the_hall_meets_every_rule() -> None:
    """Keeps the strategy honest: priorities, delays and expiry all happen."""
    hall = RuledHall()
    hall.live(
        [
            ("publish_ruled", [(9, 20, 0), (0, 0, 50), (4, 20, 0)]),
            ("pass_time", 30, True),
            ("expire",),
            ("credit", 0, 40, 4_000),
            ("publish_ruled", [(4, 20, 0), (9, 60, 10)]),
            ("pass_time", 10, False),
        ]
    )
    assert hall.expired and len(hall.acknowledged) > 20
