"""Streams: put in order, acknowledged, and what is missing named."""

from __future__ import annotations

from typing import Any

from antiphon.bus.messages import (
    ConsumerEnded,
    Deliver,
    DeliverAck,
    DeliverHead,
    Piece,
    Registered,
    Taker,
    Target,
    Unregister,
)
from antiphon.client_manager.connection import Outbox
from antiphon.client_manager.effects import SendFrames, SendToPrimary
from antiphon.client_manager.settings import ClientManagerSettings
from antiphon.client_manager.streams import Numbered, Streams
from antiphon.ranges import Ranges
from antiphon.wire import frames
from tests.unit.client_manager.stage import CHANNEL, RUN, Stage
from tests.unit.client_manager.test_consumers import attached, deliver, piece

MS = 1_000_000


class Bench:
    """The streams of one channel, with what they take and what they say."""

    def __init__(self, **settings: Any) -> None:
        self.outbox = Outbox()
        self.taken: list[int] = []
        self.begun: list[int] = []
        self.streams = Streams(
            [CHANNEL], ClientManagerSettings(**settings), self.outbox, self._take, self._begin, self._doubt
        )
        self.streams.new_term(CHANNEL, 1)

    def _take(self, channel: str, message: Numbered) -> None:
        assert isinstance(message, Registered)
        self.taken.append(message.number)

    def _begin(self, channel: str, stream: int) -> None:
        self.begun.append(stream)

    def _doubt(self, channel: str, is_anew: bool) -> None:
        raise AssertionError("a stream of a primary in the same process was doubted")

    def arrive(self, *numbers: int, stream: int = RUN, term: int = 1) -> None:
        for number in numbers:
            message = Registered(consumer=1, term=term, stream=stream, number=number)
            self.streams.arrive(CHANNEL, stream, number, message)

    def head(self, number: int, acknowledged: int = 0, stream: int = RUN) -> None:
        self.streams.head(CHANNEL, DeliverHead(1, number, 0, stream, acknowledged))

    def at(self, ms: int) -> list[DeliverAck]:
        """What is said at the end of a step at that time."""
        self.streams.keep_time(ms * MS)
        said = []
        for effect in self.outbox.take():
            assert isinstance(effect, SendToPrimary) and isinstance(effect.message, DeliverAck)
            said.append(effect.message)
        return said


def acknowledged(upto: int, *missing: tuple[int, int], stream: int = RUN) -> DeliverAck:
    return DeliverAck(1, upto, Ranges(missing), stream)


# -- order -------------------------------------------------------------------------------------------


def test_what_comes_in_order_is_taken_at_once_and_acknowledged_a_little_later() -> None:
    bench = Bench(acknowledge_delay_ms=20)
    bench.arrive(1, 2, 3)
    assert bench.taken == [1, 2, 3]
    assert bench.at(5) == []
    assert bench.streams.next_deadline_ns() == 25 * MS
    bench.arrive(4)
    assert bench.at(24) == []
    assert bench.at(25) == [acknowledged(4)]
    assert bench.streams.next_deadline_ns() is None
    assert bench.at(60) == []


def test_much_that_came_is_acknowledged_at_once() -> None:
    bench = Bench(acknowledge_delay_ms=20, acknowledge_bytes=1_000)
    bench.arrive(1, 2, 3)
    assert bench.at(0) == []
    bench.arrive(4)
    assert bench.at(1) == [acknowledged(4)]
    bench.arrive(5)
    assert bench.at(2) == []


def test_what_comes_too_early_is_taken_in_its_turn() -> None:
    bench = Bench()
    bench.arrive(3, 2, 5)
    assert bench.taken == []
    bench.arrive(1)
    assert bench.taken == [1, 2, 3]
    bench.arrive(4)
    assert bench.taken == [1, 2, 3, 4, 5]


def test_what_comes_twice_is_taken_once_and_acknowledged_again() -> None:
    bench = Bench()
    bench.arrive(1, 1, 3, 3, 2, 2)
    assert bench.taken == [1, 2, 3]
    bench.at(0)
    bench.arrive(2)
    assert bench.taken == [1, 2, 3]
    assert bench.at(1) == [acknowledged(3)]


# -- what is missing -----------------------------------------------------------------------------------


def test_a_gap_is_named_after_a_short_while_and_again_until_it_is_closed() -> None:
    bench = Bench(acknowledge_delay_ms=0, missing_delay_ms=20, missing_interval_ms=100)
    bench.arrive(1, 4, 7)
    assert bench.at(5) == [acknowledged(1)]
    assert bench.streams.next_deadline_ns() == 25 * MS
    assert bench.at(24) == []
    assert bench.at(25) == [acknowledged(1, (2, 4), (5, 7))]
    assert bench.streams.next_deadline_ns() == 125 * MS
    bench.arrive(2, 3)
    assert bench.at(50) == [acknowledged(4)]
    assert bench.at(125) == [acknowledged(4, (5, 7))]
    bench.arrive(5, 6)
    assert bench.at(130) == [acknowledged(7)]
    assert bench.streams.next_deadline_ns() is None


def test_what_is_missing_behind_a_gap_that_was_closed_is_named_after_a_short_while_too() -> None:
    """Found by the simulator: with little room for early messages hardly any came through a busy stream."""
    bench = Bench(acknowledge_delay_ms=0, missing_delay_ms=20, missing_interval_ms=100, early_bytes_max=0)
    bench.arrive(1, 3, 4)
    bench.at(5)
    assert bench.at(25) == [acknowledged(1, (2, 5))]
    bench.arrive(2, 4, 3)
    assert bench.at(30) == [acknowledged(3)]
    assert bench.streams.next_deadline_ns() == 50 * MS
    assert bench.at(50) == [acknowledged(3, (4, 5))]
    assert bench.streams.next_deadline_ns() == 150 * MS


def test_what_comes_one_by_one_after_it_was_named_is_not_named_again() -> None:
    bench = Bench(acknowledge_delay_ms=0, missing_delay_ms=20, missing_interval_ms=100)
    bench.arrive(1)
    bench.head(20)
    bench.at(0)
    assert bench.at(20) == [acknowledged(1, (2, 21))]
    for number in range(2, 21):
        bench.arrive(number)
        assert bench.at(10 * number) == [acknowledged(number)]


def test_a_gap_that_was_only_a_matter_of_order_is_not_named() -> None:
    bench = Bench(acknowledge_delay_ms=20, missing_delay_ms=20)
    bench.arrive(2)
    bench.at(0)
    bench.arrive(1)
    assert bench.at(10) == []
    assert bench.at(20) == [acknowledged(2)]
    assert bench.streams.next_deadline_ns() is None


def test_a_lost_end_is_found_when_the_primary_tells_how_long_the_stream_is() -> None:
    bench = Bench()
    bench.arrive(1)
    bench.at(0)
    bench.head(3, acknowledged=1)
    bench.at(100)
    assert bench.at(120) == [acknowledged(1, (2, 4))]


def test_a_primary_that_does_not_know_what_came_is_told_again() -> None:
    bench = Bench(acknowledge_delay_ms=20)
    bench.arrive(1, 2)
    bench.at(0)
    assert bench.at(20) == [acknowledged(2)]
    bench.head(2, acknowledged=2)
    assert bench.at(100) == []
    bench.head(2, acknowledged=1)
    assert bench.at(101) == [acknowledged(2)]


def test_what_is_kept_too_early_is_bounded_and_the_rest_is_missing() -> None:
    bench = Bench(early_bytes_max=600)
    bench.arrive(2, 3, 4, 5)
    bench.at(0)
    assert bench.at(20) == [acknowledged(0, (1, 2), (4, 6))]
    bench.arrive(1)
    assert bench.taken == [1, 2, 3]
    bench.arrive(4, 5)
    assert bench.taken == [1, 2, 3, 4, 5]


def test_so_much_is_named_at_once_and_no_more() -> None:
    bench = Bench()
    bench.arrive(1)
    bench.head(5_000)
    bench.at(0)
    [said] = bench.at(20)
    assert said.missing.count == 256 and said.missing.first == 2


# -- other streams -------------------------------------------------------------------------------------


def test_a_later_run_of_ours_has_another_stream_and_voids_the_former() -> None:
    bench = Bench()
    bench.arrive(1, 2, 4)
    bench.arrive(1, stream=RUN + 1)
    assert bench.begun == [RUN, RUN + 1]
    assert bench.at(0) == []
    assert bench.at(20) == [acknowledged(1, stream=RUN + 1)]
    bench.arrive(3)
    assert bench.taken == [1, 2, 1]
    bench.head(9, stream=RUN)
    assert bench.at(21) == []


def test_a_new_term_begins_with_nothing() -> None:
    bench = Bench()
    bench.arrive(1, 2, 4)
    bench.streams.new_term(CHANNEL, 2)
    assert bench.streams.next_deadline_ns() is None
    assert bench.at(50) == []
    bench.arrive(3)
    bench.arrive(1, term=2)
    assert bench.taken == [1, 2, 1]


# -- in the client manager -------------------------------------------------------------------------------


def test_what_is_for_other_client_managers_is_not_for_us() -> None:
    stage, _, key = attached()
    rows = piece(40, [b"a"])
    other = Target(2, 17, (Taker(key, 1),), 5)
    stage.tell(Deliver(1, 5, (other,), (rows,)))
    assert stage.heard_of(frames.Deliver) == []
    stage.tell(Deliver(1, 5, (other, Target(1, 2, (Taker(key, 1),), RUN)), (rows,)))
    assert len(stage.heard_of(frames.Deliver)) == 1
    stage.wait(20)
    assert stage.to_primary(DeliverAck)[-1] == DeliverAck(1, 2, stream=RUN)


def test_one_message_may_be_for_several_consumers() -> None:
    stage, session, one = attached()
    two = stage.open_consumer(session, consumer=2)
    takers = (Taker(one, 1), Taker(two, 1))
    stage.tell(Deliver(1, 5, (Target(1, 0, takers),), (piece(40, [b"a", b"b"]),)))
    got = [(frame.consumer, frame.first_delivery) for frame in stage.heard_of(frames.Deliver)]
    assert got == [(1, 1), (2, 1)]


def test_the_end_of_a_consumer_comes_behind_what_it_was_sent() -> None:
    stage, _, key = attached()
    ended = ConsumerEnded(key, 1, "destination.deleted", "gone", RUN, 3)
    stage.tell(ended)
    assert stage.heard_of(frames.ConsumerGone) == []
    stage.tell(deliver(key, 1, piece(40, [b"a"]), number=2))
    assert [type(frame) for frame in stage.heard[1][-2:]] == [frames.Deliver, frames.ConsumerGone]


def test_messages_that_were_gone_leave_no_gap_for_the_client_and_give_back_their_credit() -> None:
    stage, _, key = attached()
    stage.tell(deliver(key, 1, piece(40, [b"a", b"b"])))
    stage.tell(deliver(key, 3))  # said a second time, and nothing was left of it
    stage.tell(deliver(key, 6, piece(50, [b"c"])))
    assert [frame.first_delivery for frame in stage.heard_of(frames.Deliver)] == [1, 3]
    consumer = stage.manager._consumers._by_channel[CHANNEL][key]
    assert consumer.base_messages == -3
    assert consumer.credit_left == (1003, 1 << 20)


def test_what_was_gone_gives_back_its_credit_though_nothing_follows() -> None:
    """Found by the simulator: all that its credit allowed was taken by another before it came."""
    stage, _, key = attached()
    target = Target(1, 2, (Taker(key, 3, 20),), RUN)
    stage.tell(Deliver(1, 5, (target,), ()))
    assert stage.heard_of(frames.Deliver) == []
    consumer = stage.manager._consumers._by_channel[CHANNEL][key]
    assert (consumer.base_messages, consumer.base_bytes) == (-2, -20)
    assert consumer.credit_left == (1002, (1 << 20) + 20)


def test_a_consumer_that_the_primary_has_and_nobody_here_is_detached_there() -> None:
    stage = Stage()
    stage.connect()
    effects = stage.tell(Registered(consumer=77, term=1))
    assert stage.to_primary(Unregister) == [Unregister(77, 0, term=1)]
    assert stage.of_kind(SendFrames, effects) == []
    stage.tell(deliver(77, 1, piece(40, [b"a"])))
    assert len(stage.to_primary(Unregister)) == 1, "it has been asked for and not answered"


def test_rows_are_not_copied_on_their_way_to_several() -> None:
    stage, session, one = attached()
    two = stage.open_consumer(session, consumer=2)
    rows = Piece(40, 1, 0, piece(40, [b"a"]).buffers)
    effects = stage.tell(Deliver(1, 5, (Target(1, 0, (Taker(one, 1), Taker(two, 1))),), (rows,)))
    [sent] = stage.of_kind(SendFrames, effects)
    assert sum(buffer is rows.buffers[0] for buffer in sent.buffers) == 2


def test_a_stream_of_which_nothing_has_come_is_asked_for_when_it_is_heard_of() -> None:
    stage, _, _ = attached()
    stage.new_term(2)
    stage.tell(DeliverHead(2, 3, 0, RUN))
    stage.wait(20)
    assert stage.to_primary(DeliverAck)[-1] == DeliverAck(2, 0, Ranges([(1, 4)]), RUN)
