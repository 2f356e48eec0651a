"""The buffer, the credit and the gathered acknowledgements of one consumer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import Batch
from antiphon.client.core.consumer import ConsumerCore, Span
from antiphon.client.core.pace import ACK_BYTES
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.frames import Deliver, DeliverPiece


def consumer(messages: int = 1_000, size: int = 1 << 20) -> ConsumerCore:
    return ConsumerCore(
        consumer=1,
        name="queue:a",
        destination=3,
        channel="a",
        prefetch_messages=messages,
        prefetch_bytes=size,
    )


def deliver(first_delivery: int, *pieces: tuple[int, list[bytes]], redelivered: int = 0) -> Deliver:
    return Deliver(
        session=9,
        destination=3,
        term=1,
        first_delivery=first_delivery,
        consumer=1,
        channel="a",
        pieces=tuple(
            DeliverPiece(sequence, redelivered, Batch.of_bodies(bodies, 7, 1, 0).encode())
            for sequence, bodies in pieces
        ),
    )


def numbers(spans: list[Span]) -> list[int]:
    return [message.sequence for span in spans for message in span.messages()]


def test_a_delivery_of_a_family_names_the_topic_of_each_piece() -> None:
    core = consumer()
    frame = deliver(1, (10, [b"a", b"b"]), (20, [b"c"]))
    core.arrive(replace(frame, topics=("topic:one", "topic:two")))
    found = [message.destination for span in core.take(3) for message in span.messages()]
    assert found == ["topic:one", "topic:one", "topic:two"]
    core.arrive(deliver(4, (30, [b"d"])))
    assert [span.message().destination for span in core.take(1)] == ["queue:a"]
    with pytest.raises(ProtocolError, match="2 pieces came with the names of 1 topics"):
        core.arrive(replace(deliver(5, (40, [b"e"]), (41, [b"f"])), topics=("topic:one",)))


def test_messages_are_taken_in_the_order_of_delivery_across_pieces() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a", b"b", b"c"]), (20, [b"d"])))
    core.arrive(deliver(5, (30, [b"e", b"f"])))
    assert numbers(core.take(2)) == [10, 11]
    assert numbers(core.take(3)) == [12, 20, 30]
    assert core.taken_through == 5
    assert numbers(core.take(9)) == [31]
    assert core.take(1) == []
    assert core.buffered == 0


def scattered(first_delivery: int, sequence: int, rows: list[int]) -> Deliver:
    """Rows that were taken here and there from a batch, whose first row has this number."""
    batch = Batch.of_bodies([b"%d" % row for row in range(rows[-1] + 1)], 7, 1, 0).take(rows)
    piece = DeliverPiece(sequence + rows[0], 0, batch.encode())
    return replace(deliver(first_delivery), pieces=(piece,))


def test_rows_that_were_taken_here_and_there_have_their_own_numbers() -> None:
    core = consumer()
    core.arrive(scattered(1, 10, [1, 2, 5, 8]))
    core.arrive(deliver(5, (30, [b"e"])))
    assert core.buffered == 5
    assert core.unconfirmed == Ranges([(11, 13), (15, 16), (18, 19), (30, 31)])
    first = core.take(1)
    [message] = first[0].messages()
    assert (message.body, message.sequence, message.message_id) == (
        b"1",
        11,
        "ID:00000000000000000000000000000007-2@a",
    )
    rest = core.take(9)
    assert [message.body for span in rest for message in span.messages()] == [b"2", b"5", b"8", b"e"]
    assert numbers(rest) == [12, 15, 18, 30]
    assert core.taken_through == 5
    core.put_back(rest)
    assert numbers(core.take(2)) == [12, 15]
    core.gather(0, first)
    core.gather(0, rest[:2])
    assert core.take_gathered() == Ranges([(11, 13), (15, 16)])


def test_rows_that_were_taken_here_and_there_are_lost_one_by_one() -> None:
    core = consumer()
    core.arrive(scattered(1, 10, [0, 1, 2, 5, 8]))
    core.drop(Ranges([(11, 12), (13, 16)]))
    assert core.buffered == 3
    assert numbers(core.take(9)) == [10, 12, 18]
    assert core.unconfirmed == Ranges([(10, 11), (12, 13), (18, 19)])


def test_a_row_that_came_again_among_others_replaces_its_copy() -> None:
    core = consumer()
    core.arrive(scattered(1, 10, [1, 4]))
    core.arrive(scattered(3, 10, [0, 4, 6]))
    assert core.buffered == 4
    assert numbers(core.take(9)) == [11, 10, 14, 16]


def test_a_message_knows_where_it_comes_from() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a", b"b"]), redelivered=2))
    first, second = core.take(2)[0].messages()
    assert (second.body, second.sequence, second.channel, second.destination) == (b"b", 11, "a", "queue:a")
    assert (first.redelivered, first.delivery_count) == (True, 3)
    assert first.message_id == "ID:00000000000000000000000000000007-1@a"


def test_what_is_put_back_is_taken_again_in_order() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a", b"b", b"c"]), (20, [b"d"])))
    taken = core.take(1) + core.take(3)
    core.put_back(taken)
    assert core.buffered == 4
    assert core.taken_through == 0
    assert numbers(core.take(4)) == [10, 11, 12, 20]


def test_credit_is_renewed_when_half_of_the_messages_are_taken() -> None:
    core = consumer(messages=10)
    core.arrive(deliver(1, (1, [b"x"] * 10)))
    assert core.new_credit() is None, "what arrived was not taken"
    core.take(4)
    assert core.new_credit() is None
    core.take(1)
    assert core.new_credit() == (15, (1 << 20) + 5)
    assert core.new_credit() is None


def test_credit_is_renewed_when_half_of_the_bytes_are_taken() -> None:
    core = consumer(size=100)
    core.arrive(deliver(1, (1, [bytes(20)] * 5)))
    core.take(2)
    assert core.new_credit() is None
    core.take(1)
    assert core.new_credit() == (1_003, 160)


def test_credit_does_not_shrink_when_messages_are_put_back() -> None:
    core = consumer(messages=4)
    core.arrive(deliver(1, (1, [b"x"] * 4)))
    taken = core.take(4)
    assert core.new_credit() == (8, (1 << 20) + 4)
    core.put_back(taken)
    core.take(1)
    assert core.new_credit() is None


@pytest.mark.parametrize("first_delivery", [0, 1, 2, 4])
def test_a_delivery_out_of_turn_breaks_the_protocol(first_delivery: int) -> None:
    core = consumer()
    core.arrive(deliver(1, (1, [b"a", b"b"])))
    with pytest.raises(ProtocolError, match="came after delivery 2"):
        core.arrive(deliver(first_delivery, (3, [b"c"])))


def test_more_than_was_allowed_breaks_the_protocol() -> None:
    core = consumer(messages=2)
    with pytest.raises(ProtocolError, match="allowed 2 messages"):
        core.arrive(deliver(1, (1, [b"a", b"b", b"c"])))


def test_far_more_bytes_than_were_allowed_break_the_protocol() -> None:
    core = consumer(size=1_000)
    core.arrive(deliver(1, (1, [bytes(1 << 20)])))
    with pytest.raises(ProtocolError, match="of 1000 bytes"):
        core.arrive(deliver(2, (2, [bytes(1 << 20)])))


def test_bytes_that_are_no_batch_break_the_protocol() -> None:
    frame = Deliver(
        session=9,
        destination=3,
        term=1,
        first_delivery=1,
        consumer=1,
        channel="a",
        pieces=(DeliverPiece(1, 0, b"nonsense"),),
    )
    with pytest.raises(ProtocolError):
        consumer().arrive(frame)


def test_acknowledgements_are_gathered_into_ranges() -> None:
    core = consumer()
    core.arrive(deliver(1, (1, [b"a", b"b"]), (3, [b"c"]), (9, [b"d"])))
    assert not core.gather(5, core.take(2))
    assert not core.gather(6, core.take(2))
    assert core.gathered_since_ns == 5
    assert list(core.take_gathered()) == [(1, 4), (9, 10)]
    assert not core.has_gathered


def test_many_bodies_are_acknowledged_at_once() -> None:
    core = consumer()
    core.arrive(deliver(1, (1, [bytes(ACK_BYTES // 2)] * 3)))
    assert not core.gather(0, core.take(1))
    assert core.gather(0, core.take(1))
    core.take_gathered()
    assert not core.gather(0, core.take(1)), "the count begins anew"


def test_what_is_in_hand_is_done_with_once() -> None:
    core = consumer()
    core.arrive(deliver(1, (4, [b"a", b"b"])))
    first, second = core.take(1), core.take(1)
    core.put_in_hand(first[0])
    core.put_in_hand(second[0])
    assert core.take_from_hand(4)
    assert not core.take_from_hand(4)
    assert core.empty_hand() == second
    assert core.empty_hand() == []


@given(
    st.lists(st.integers(1, 9), max_size=12),
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=30),
)
def test_every_message_is_taken_once_whatever_is_put_back(
    pieces: list[int], takes: list[tuple[int, bool]]
) -> None:
    """The clever against the obvious: spans against a list of numbers."""
    core = consumer()
    expected: list[int] = []
    delivery = 1
    for place, count in enumerate(pieces):
        first = 100 * place
        core.arrive(deliver(delivery, (first, [b"x"] * count)))
        expected += range(first, first + count)
        delivery += count
    got: list[int] = []
    for count, is_put_back in takes:
        spans = core.take(count)
        if is_put_back:
            core.put_back(spans)
        else:
            got += numbers(spans)
        assert core.buffered == len(expected) - len(got)
        assert core.taken_through == len(got)
    assert got == expected[: len(got)]


# -- what others have got meanwhile --------------------------------------------------


def lost(*numbers: int) -> Ranges:
    return Ranges((number, number + 1) for number in numbers)


def test_what_others_got_is_neither_taken_nor_acknowledged() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a"] * 8)))
    core.gather(0, core.take(2))
    core.hold(core.take(2))
    core.put_in_hand(core.take(1)[0])

    core.drop(lost(11, 13, 14, 16))

    assert numbers(core.take(9)) == [15, 17]
    assert core.buffered == 0
    assert core.take_gathered() == lost(10)
    assert core.take_held() == lost(12)
    assert not core.take_from_hand(14)
    assert core.unconfirmed == lost(10, 12, 15, 17)


def test_all_that_was_gathered_may_be_lost() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a"] * 2), (20, [b"b"])))
    core.gather(0, core.take(3))
    core.drop(lost(10, 11))
    assert core.has_gathered
    core.drop(lost(20))
    assert not core.has_gathered and not core.take_gathered()
    core.arrive(deliver(4, (21, [b"c"])))
    core.gather(5, core.take(1))
    assert core.gathered_since_ns == 5
    assert core.take_gathered() == lost(21)


def test_what_comes_again_is_here_once() -> None:
    """The word that others had it is missing; the later copy is the one that says so."""
    core = consumer()
    core.arrive(deliver(1, (10, [b"a", b"b", b"c"])))
    core.hold(core.take(1))

    core.arrive(deliver(4, (10, [b"a", b"b"]), redelivered=1))

    assert core.forfeited == lost(10)
    taken = [message for span in core.take(9) for message in span.messages()]
    assert [(message.sequence, message.redelivered) for message in taken] == [
        (12, False),
        (10, True),
        (11, True),
    ]


def test_a_copy_of_what_turns_out_to_be_acknowledged_is_not_taken() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a"])))
    core.take(1)  # its acknowledgement is on its way
    core.drop(lost(10))
    core.arrive(deliver(2, (10, [b"a"]), (11, [b"b"]), redelivered=1))
    core.release(lost(10))
    assert numbers(core.take(9)) == [11]
    core.release(lost(11))
    assert not core.unconfirmed


def test_what_somebody_took_who_waits_for_more_may_be_lost_too() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a"] * 4)))
    taken = core.take(3)
    core.in_transit.append(taken)
    core.drop(lost(11))
    assert numbers(taken) == [10, 12]
    core.in_transit.clear()
    core.put_back(taken)
    assert numbers(core.take(9)) == [10, 12, 13]


def test_what_is_lost_while_it_is_handed_over_cannot_be_acknowledged() -> None:
    core = consumer()
    core.arrive(deliver(1, (10, [b"a"] * 3)))
    taken = core.take(3)
    core.drop(lost(11))
    core.hold(taken)
    assert (core.held, core.forfeited) == (lost(10, 12), lost(11))


@given(st.lists(st.tuples(st.sampled_from("dthlr"), st.integers(1, 9)), max_size=40))
def test_no_number_is_ever_here_twice(steps: list[tuple[str, int]]) -> None:
    """Whatever is delivered, taken, held, lost and acknowledged, and however often it comes again."""
    core = consumer()
    for step, number in steps:
        match step:
            case "d":
                core.arrive(deliver(core._arrived_through + 1, (number, [b"a"] * 3), redelivered=1))
            case "t" | "h":
                spans = core.take(number)
                if step == "h":
                    core.hold(spans)
                else:
                    core.gather(0, spans)
            case "l":
                core.drop(lost(number))
            case "r":
                core.release(core.take_held())
        waiting = [one for span in core.spans for one in range(*span.numbers)]
        assert len(waiting) == len(set(waiting)) == core.buffered
        assert not any(one in core.held for one in waiting)
        assert core.held.difference(core.unconfirmed).count == 0
