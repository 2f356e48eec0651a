"""Numbers, windows and outcomes of one session on one channel."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.client.core.outbox import ROOM_MAX, CommandOutbox, UnconfirmedCommand
from antiphon.client.core.pace import LINGER_COMMANDS
from antiphon.client.core.publication import Publication
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    ConfirmItem,
    OutcomeCode,
    Publish,
    decode_payload,
    read_command,
)
from antiphon.wire.frames import Command, decode_client_frame


class Waiting:
    """Somebody who waits, until told otherwise."""

    def __init__(self) -> None:
        self.is_done = False

    def done(self) -> bool:
        return self.is_done


def chunk(*bodies: bytes, size: int | None = None, ticket: Waiting | None = None) -> Publication:
    return Publication(
        list(bodies),
        sum(map(len, bodies)) if size is None else size,
        ticket or Waiting(),
        destination=3,
        settings_version=1,
        timestamp_ms=0,
        deadline_ns=0,
    )


def acknowledge(outbox: CommandOutbox, tag: object, *numbers: int) -> None:
    ranges = Ranges((number, number + 1) for number in numbers)
    outbox.acknowledge(Acknowledge(destination=3, subscription=0, ranges=ranges), tag)


def applied(number: int, count: int = 1, sequence: int = 100) -> ConfirmItem:
    return ConfirmItem(number, count, OutcomeCode.APPLIED, sequence)


def sent(outbox: CommandOutbox) -> list[tuple[CommandHeader, Any]]:
    """The commands in the output since the last look."""
    commands = []
    for kind, payload in FrameBuffer(FRAME_BYTES_MAX).feed(b"".join(outbox._output)):
        frame = decode_client_frame(kind, payload)
        assert isinstance(frame, Command)
        header, content = read_command(frame.command)
        commands.append((header, decode_payload(header.kind, content)))
    outbox._output.clear()
    return commands


@pytest.fixture
def outbox() -> CommandOutbox:
    return CommandOutbox(session=9, generation=1, channel="a", window_bytes=1_000, output=[])


def test_numbers_count_messages_and_acknowledgements_without_gaps(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a", b"b", b"c"))
    acknowledge(outbox, "ack", 7)
    outbox.submit(chunk(b"d"))
    assert [(header.number, header.count) for header, _ in sent(outbox)] == [(1, 3), (4, 1), (5, 1)]


def test_the_batch_names_the_session_and_its_first_number(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a"))
    outbox.submit(chunk(b"b", b"c"))
    _, (_, second) = sent(outbox)
    assert isinstance(second, Publish)
    batch = Batch.decode(second.batch)
    assert (batch.producer, batch.first_number, batch.bodies()) == (9, 2, [b"b", b"c"])
    assert (second.destination, second.settings_version) == (3, 1)


def test_commands_tell_how_far_they_are_confirmed(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a", b"b"))
    outbox.submit(chunk(b"c"))
    outbox.confirm([applied(1, 2)])
    outbox.submit(chunk(b"d"))
    assert [header.confirmed_through for header, _ in sent(outbox)] == [0, 0, 2]
    assert outbox.confirmed_through == 2


def test_an_outcome_settles_its_command(outbox: CommandOutbox) -> None:
    publication = chunk(b"a", b"b")
    outbox.submit(publication)
    (settled,) = outbox.confirm([applied(1, 2, sequence=40)])
    assert settled == (publication, [applied(1, 2, sequence=40)])
    assert publication.is_settled
    assert outbox.is_idle


def test_one_item_may_settle_several_commands(outbox: CommandOutbox) -> None:
    first, second = chunk(b"a", b"b"), chunk(b"c")
    outbox.submit(first)
    acknowledge(outbox, "ack", 1)
    outbox.submit(second)
    settled = outbox.confirm([applied(1, 4, sequence=40)])
    assert settled == [
        (first, [applied(1, 2, 40)]),
        ("ack", [applied(3, 1, 42)]),
        (second, [applied(4, 1, 43)]),
    ]


def test_a_command_may_be_settled_in_pieces(outbox: CommandOutbox) -> None:
    publication = chunk(b"a", b"b", b"c")
    outbox.submit(publication)
    duplicate = ConfirmItem(1, 1, OutcomeCode.DUPLICATE, 7)
    assert outbox.confirm([duplicate]) == []
    assert outbox.confirm([applied(2, 2, 50)]) == [(publication, [duplicate, applied(2, 2, 50)])]


def test_what_is_confirmed_twice_counts_once(outbox: CommandOutbox) -> None:
    publication = chunk(b"a", b"b", b"c")
    outbox.submit(publication)
    outbox.confirm([applied(1, 2, 50)])
    assert outbox.confirm([applied(1, 2, 50)]) == []
    assert outbox.confirm([applied(1, 3, 50)]) == [(publication, [applied(1, 2, 50), applied(3, 1, 52)])]
    assert outbox.confirm([applied(1, 3, 50)]) == []


def test_a_later_command_may_be_settled_before_an_earlier_one(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a"))
    second = chunk(b"b")
    outbox.submit(second)
    assert [tag for tag, _ in outbox.confirm([applied(2)])] == [second]
    assert outbox.confirmed_through == 0
    outbox.confirm([applied(1)])
    assert outbox.confirmed_through == 2
    assert outbox.is_idle


@pytest.mark.parametrize("item", [applied(0), applied(3), applied(1, 3), applied(2, 0), applied(1 << 64)])
def test_what_was_never_sent_cannot_be_confirmed(outbox: CommandOutbox, item: ConfirmItem) -> None:
    outbox.submit(chunk(b"a", b"b"))
    with pytest.raises(ProtocolError, match="confirmed"):
        outbox.confirm([item])


def test_publications_wait_for_the_window(outbox: CommandOutbox) -> None:
    for body in b"abc":
        outbox.submit(chunk(bytes([body]) * 600))
    assert len(sent(outbox)) == 1
    outbox.confirm([applied(1)])
    assert [header.number for header, _ in sent(outbox)] == [2]
    assert not outbox.is_idle


def test_a_publication_larger_than_the_window_travels_alone(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(bytes(5_000)))
    outbox.submit(chunk(b"small"))
    assert len(sent(outbox)) == 1
    outbox.confirm([applied(1)])
    assert len(sent(outbox)) == 1


def test_acknowledgements_do_not_wait_for_the_window(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(bytes(900)))
    outbox.submit(chunk(bytes(900)))
    acknowledge(outbox, "ack", 1)
    assert [header.number for header, _ in sent(outbox)] == [1, 2]
    outbox.confirm([applied(1)])
    outbox.confirm([applied(2)])
    assert [header.number for header, _ in sent(outbox)] == [3]


def test_small_publications_linger_while_the_server_is_busy() -> None:
    outbox = CommandOutbox(session=9, generation=1, channel="a", window_bytes=1 << 20, output=[])
    for _ in range(LINGER_COMMANDS + 1):
        outbox.submit(chunk(b"a"))
    assert len(sent(outbox)) == LINGER_COMMANDS
    outbox.confirm([applied(1)])
    assert len(sent(outbox)) == 1


def test_a_publication_nobody_waits_for_does_not_leave(outbox: CommandOutbox) -> None:
    waiting = Waiting()
    outbox.submit(chunk(bytes(900)))
    forgotten = chunk(bytes(900), ticket=waiting)
    outbox.submit(forgotten)
    outbox.submit(chunk(b"after"))
    waiting.is_done = True
    outbox.confirm([applied(1)])
    (_, (header, payload)) = sent(outbox)
    assert header.number == 2
    assert Batch.decode(payload.batch).bodies() == [b"after"]
    assert not forgotten.has_left


def test_everything_for_a_resend_is_kept_until_it_is_confirmed(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a", b"b"))
    (kept,) = outbox._unconfirmed
    assert isinstance(kept, UnconfirmedCommand)
    header, payload = read_command(b"".join(kept.buffers))
    assert (header.number, header.count) == (1, 2)
    assert Batch.decode(Publish.decode(payload).batch).bodies() == [b"a", b"b"]


def test_abandoning_tells_what_has_no_outcome(outbox: CommandOutbox) -> None:
    first, second, waiting = chunk(b"a"), chunk(bytes(800)), chunk(bytes(800))
    outbox.submit(first)
    outbox.submit(second)
    acknowledge(outbox, "ack", 1)
    outbox.submit(waiting)
    outbox.confirm([applied(1)])
    assert outbox.abandon() == [second, "ack", waiting]
    assert outbox.is_idle


# -- the oldest one ----------------------------------------------------------------------------------


def test_the_oldest_publication_is_settled_at_once(outbox: CommandOutbox) -> None:
    first, second = chunk(b"a", b"b"), chunk(b"c")
    outbox.submit(first)
    outbox.submit(second)
    assert outbox.confirm_oldest(applied(1, 2)) is first
    assert first.is_settled and first.outcomes == [applied(1, 2)]
    assert outbox.confirmed_through == 2
    assert outbox.confirm_oldest(applied(3)) is second
    assert outbox.is_idle and outbox.room == ROOM_MAX


@pytest.mark.parametrize(
    "item", [applied(3), applied(1), applied(2), applied(1, 3), applied(7)], ids=lambda item: str(item[:2])
)
def test_whatever_is_not_about_the_oldest_alone_changes_nothing(
    outbox: CommandOutbox, item: ConfirmItem
) -> None:
    first, second = chunk(b"a", b"b"), chunk(b"c")
    outbox.submit(first)
    outbox.submit(second)
    room = outbox.room
    assert outbox.confirm_oldest(item) is None
    assert not first.is_settled and not second.is_settled and outbox.room == room


def test_an_oldest_one_that_is_no_publication_is_not_settled_this_way(outbox: CommandOutbox) -> None:
    acknowledge(outbox, "tag", 5)
    assert outbox.confirm_oldest(applied(1)) is None
    assert [settled.tag for settled in outbox.confirm([applied(1)])] == ["tag"]


def test_one_that_was_partly_told_of_is_not_settled_this_way(outbox: CommandOutbox) -> None:
    publication = chunk(b"a", b"b")
    outbox.submit(publication)
    outbox.confirm([applied(1)])
    assert outbox.confirm_oldest(applied(1, 2)) is None


def test_what_was_not_sent_on_this_connection_is_not_settled_this_way(outbox: CommandOutbox) -> None:
    publication = chunk(b"a")
    outbox.submit(publication)
    outbox.suspend()
    outbox._unsent = outbox._unconfirmed.copy()
    assert outbox.confirm_oldest(applied(1)) is None


def test_with_the_oldest_go_those_behind_it_that_were_settled_before(outbox: CommandOutbox) -> None:
    first, second = chunk(b"a"), chunk(b"b")
    outbox.submit(first)
    outbox.submit(second)
    outbox.confirm([applied(2)])
    assert outbox.confirmed_through == 0
    assert outbox.confirm_oldest(applied(1)) is first
    assert outbox.confirmed_through == 2 and outbox.is_idle


def test_what_waited_for_room_leaves_when_the_oldest_is_settled(outbox: CommandOutbox) -> None:
    first, second = chunk(b"a" * 700), chunk(b"b" * 700)
    outbox.submit(first)
    outbox.submit(second)
    assert not second.has_left
    sent(outbox)
    assert outbox.confirm_oldest(applied(1)) is first
    assert [header.number for header, _ in sent(outbox)] == [2] and second.has_left


# -- taken -------------------------------------------------------------------------------------------


def taken(number: int, count: int = 1) -> ConfirmItem:
    return ConfirmItem(number, count, OutcomeCode.TAKEN)


def test_a_taken_publication_tells_its_senders_and_stays_unconfirmed(outbox: CommandOutbox) -> None:
    publication = chunk(b"a", b"b")
    outbox.submit(publication)
    ((tag, items),) = outbox.confirm([taken(1, 2)])
    assert tag is publication and items == [taken(1, 2)]
    assert publication.is_taken and not publication.is_settled
    assert outbox.confirmed_through == 0 and not outbox.is_idle
    ((tag, items),) = outbox.confirm([applied(1, 2)])
    assert tag is publication and items == [applied(1, 2)]
    assert publication.is_settled and outbox.is_idle


def test_one_word_takes_several_publications_and_only_whole_ones(outbox: CommandOutbox) -> None:
    publications = [chunk(b"a"), chunk(b"b"), chunk(b"c", b"d")]
    for publication in publications:
        outbox.submit(publication)
    settled = outbox.confirm([taken(1, 3)])
    assert [one.tag for one in settled] == publications[:2]
    assert [one.outcomes for one in settled] == [[taken(1)], [taken(2)]]
    assert not publications[2].is_taken


def test_a_taken_publication_is_told_once_and_sent_again_under_its_number(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a"))
    assert outbox.confirm([taken(1)])
    sent(outbox)
    outbox.suspend()
    outbox.resume(2, 1_000)
    ((header, _),) = sent(outbox)
    assert (header.number, header.generation) == (1, 2)
    assert outbox.confirm([taken(1)]) == []
    assert len(outbox.confirm([applied(1)])) == 1


def test_taken_publications_fill_the_window_until_they_are_confirmed(outbox: CommandOutbox) -> None:
    first, second = chunk(b"a", size=600), chunk(b"b", size=600)
    outbox.submit(first)
    outbox._unconfirmed_bytes = 600  # as if it were as large as it says
    outbox.confirm([taken(1)])
    outbox.submit(second)
    assert not second.has_left
    outbox._unconfirmed_bytes = outbox._unconfirmed[0].size
    outbox.confirm([applied(1)])
    assert second.has_left


def test_a_lone_word_that_a_publication_is_taken_settles_nothing(outbox: CommandOutbox) -> None:
    publication = chunk(b"a")
    outbox.submit(publication)
    assert outbox.confirm_oldest(taken(1)) is None
    assert not publication.is_settled
    assert outbox.confirm_oldest(applied(1)) is publication


def test_what_was_never_sent_cannot_be_taken(outbox: CommandOutbox) -> None:
    outbox.submit(chunk(b"a"))
    with pytest.raises(ProtocolError):
        outbox.confirm([taken(1, 2)])


def test_a_command_without_messages_cannot_be_taken(outbox: CommandOutbox) -> None:
    acknowledge(outbox, "ack", 7)
    assert outbox.confirm([taken(1)]) == []
