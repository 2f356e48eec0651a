"""Commands on their way into the order and back: what is let in, what is told, what is held back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.batch import Batch, BatchBuilder, builder
from antiphon.bus.effects import EnvelopeCommitted, EnvelopeConfirmed, EnvelopeUncertain
from antiphon.client_manager.effects import PauseReading, ResumeReading, SubmitEnvelope
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import (
    COMMAND_HEADER_SIZE,
    PUBLISH_BATCH_OFFSET,
    CommandKind,
    ConfirmItem,
    CreateDestination,
    DeleteDestination,
    OpenSession,
    Outcome,
    OutcomeCode,
    Return,
    encode_command,
    publish_buffers,
)
from tests.unit.client_manager.stage import (
    CHANNEL,
    KNOWN,
    Stage,
    acknowledge,
    command,
    headers,
    kinds,
    publish,
    publish_bytes,
)

APPLIED, DUPLICATE = OutcomeCode.APPLIED, OutcomeCode.DUPLICATE


def raw(data: bytes, channel: str = CHANNEL) -> frames.Command:
    return frames.Command(channel=channel, command=data)


def test_a_command_is_ordered_exactly_as_it_was_sent() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    first, second = publish_bytes(session, 1, [b"a", b"b"]), publish_bytes(session, 3, [b"c" * 50_000])
    stage.say(1, raw(first), raw(second))
    (envelope,) = stage.submitted
    assert envelope.payload.endswith(first + second)
    assert (envelope.channel, envelope.count) == (CHANNEL, 1 + 2 + 1)


def test_commands_of_one_step_share_an_envelope() -> None:
    stage = Stage()
    stage.connect(1)
    stage.connect(2)
    one, other = stage.open_session(1), stage.open_session(2)
    stage.say(1, publish(one, 1), publish(one, 2), acknowledge(one, 3, (7, 9)))
    stage.confirm()
    stage.say(2, publish(other, 1))
    stage.confirm()
    assert [len(kinds(envelope)) for envelope in stage.of_kind(SubmitEnvelope)] == [4, 2]


def damaged_batch(session: int) -> bytes:
    data = bytearray(publish_bytes(session, 1))
    data[PUBLISH_BATCH_OFFSET] ^= 0xFF
    return bytes(data)


def cut_batch(session: int) -> bytes:
    data = publish_bytes(session, 1)
    shorter = (len(data) - 8 - COMMAND_HEADER_SIZE).to_bytes(4, "little")
    return data[:4] + shorter + data[8:-8]


def scattered_batch(session: int) -> bytes:
    """A batch whose rows were taken here and there, as none is stored."""
    batch = Batch.of_bodies([b"a", b"b", b"c"], producer=session, first_number=1, timestamp_ms=1).take([0, 2])
    return b"".join(publish_buffers(session, 1, 1, 0, KNOWN, 1, batch.buffers(), 2))


def of_batch(session: int, batch: Batch) -> frames.Command:
    return raw(b"".join(publish_buffers(session, 1, 1, 0, KNOWN, 1, batch.buffers(), batch.count)))


def batch_of_many_properties(session: int, own: int, more: int) -> Batch:
    """A message with properties of its own, and more that only the system adds."""
    message = BatchBuilder()
    message.add(b"x", {f"own_{n}": n for n in range(own)}, timestamp_ms=1)
    again = BatchBuilder()
    again.add_row(message.build(session, 1), 0, {f"more_{n}": n for n in range(more)})
    return again.build(session, 1)


def batch_of_a_large_message(session: int) -> Batch:
    large = {f"p{n}": "v" * 49_000 for n in range(20)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "EXTRAS_BYTES_MAX", 1 << 20)
        message = BatchBuilder()
        message.add(b"y" * (1 << 20), large, timestamp_ms=1)
    return message.build(session, 1)


def test_a_message_with_all_the_properties_there_may_be_is_admitted() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, of_batch(session, batch_of_many_properties(session, 128, 0)))
    assert len(stage.submitted) == 1


BREACHES: dict[str, tuple[Callable[[int], frames.Command], str]] = {
    "no channel": (lambda s: raw(publish_bytes(s), "nowhere"), "no channel 'nowhere'"),
    "empty": (lambda s: raw(b""), "no command"),
    "half a header": (lambda s: raw(publish_bytes(s)[:20]), "inside its header"),
    "half a payload": (lambda s: raw(publish_bytes(s)[:-1]), "announces"),
    "two commands": (lambda s: raw(publish_bytes(s) * 2), "more than one command"),
    "a damaged batch": (lambda s: raw(damaged_batch(s)), ""),
    "a batch cut short": (lambda s: raw(cut_batch(s)), ""),
    "rows here and there": (lambda s: raw(scattered_batch(s)), "has consecutive numbers"),
    "properties of the system": (
        lambda s: of_batch(s, batch_of_many_properties(s, 128, 1)),
        "129 properties are more than the 128 allowed",
    ),
    "no room for properties of the system": (
        lambda s: of_batch(s, batch_of_a_large_message(s)),
        "a batch has room for more only if it has several",
    ),
    "of no session": (lambda s: publish(s + 1), "is not open on this connection"),
    "of the node": (
        lambda s: raw(
            encode_command(CommandKind.DELETE, 0, 0, 0, 0, DeleteDestination(destination=KNOWN).encode())
        ),
        "confirmed",
    ),
    "another generation": (lambda s: publish(s, generation=2), "generation 2"),
    "a later number": (lambda s: publish(s, 2), "number 2 for channel a where 1 is due"),
    "another count": (lambda s: publish(s, 1, [b"a", b"b"], count=3), "takes 3 numbers"),
    "another producer": (lambda s: publish(s, producer=s + 1), "its batch is of session"),
    "another first number": (lambda s: publish(s, first_number=2), "from 2"),
    "confirmed before it was sent": (lambda s: publish(s, confirmed_through=1), "says that 1 is confirmed"),
    "an unknown channel": (lambda s: raw(publish_bytes(s), "b"), "there is no channel 'b'"),
    "a creation": (lambda s: command(s, 1, CreateDestination(kind=1, name="x", settings="{}")), "kind 7"),
    "a burial": (
        lambda s: raw(encode_command(CommandKind.ACK, s, 1, 1, 0, b"").replace(b"\x05", b"\x1b", 1)),
        "a session may not ask for this",
    ),
    "an opening": (lambda s: command(s, 0, OpenSession(user="root", client_id="")), ""),
    "ranges out of order": (
        lambda s: raw(encode_command(CommandKind.ACK, s, 1, 1, 0, bytes(16) + Ranges([(5, 6)]).encode() * 2)),
        "ranges",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_command_that_breaks_the_protocol_ends_the_connection(breach: str) -> None:
    make, text = BREACHES[breach]
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, make(session))
    assert stage.goodbye().code == ProtocolError.code
    assert text in stage.goodbye().text
    assert stage.submitted == []


def test_whether_a_channel_has_the_destination_it_says_itself() -> None:
    """Ids are a channel's own, and a client may know some from another client manager."""
    stage = Stage(channels=(CHANNEL, "b"))
    stage.connect()
    session = stage.open_session()
    stage.say(1, raw(publish_bytes(session, destination=99), "b"))
    assert [envelope.channel for envelope in stage.submitted] == ["b"]
    stage.confirm(Outcome(1, 1, OutcomeCode.NO_DESTINATION))
    (confirm,) = stage.heard_of(frames.Confirm)
    assert (confirm.channel, confirm.items[0].code) == ("b", OutcomeCode.NO_DESTINATION)


def test_a_number_said_twice_ends_the_connection() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"a", b"b"]), publish(session, 2))
    assert "number 2 for channel a where 3 is due" in stage.goodbye().text
    # What came before the breach is ordered all the same.
    assert [header.count for header in headers(stage.submitted[0])] == [1, 2]


def test_a_command_larger_than_an_envelope_ends_the_connection() -> None:
    stage = Stage(envelope_bytes_max=1000)
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"x" * 1000]))
    assert "at most 1000" in stage.goodbye().text


# -- confirmations ---------------------------------------------------------------------------------


def test_successes_that_continue_each_other_are_confirmed_as_one() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"a"] * 3), acknowledge(session, 4, (7, 9)), publish(session, 5))
    stage.confirm()
    (confirm,) = stage.heard_of(frames.Confirm)
    assert (confirm.session, confirm.channel) == (session, CHANNEL)
    # 100 is the session's opening.
    assert confirm.items == (ConfirmItem(1, 5, APPLIED, 101),)


def test_confirmations_of_one_step_are_one_frame_for_each_session() -> None:
    stage = Stage()
    stage.connect()
    one, other = stage.open_session(), stage.open_session()
    stage.say(1, publish(one, 1), publish(other, 1))
    (first,) = stage.submitted
    stage.tell(EnvelopeCommitted(first.tag, 10, first.count))
    stage.say(1, publish(one, 2), publish(other, 2))
    first, second = stage.submitted
    stage.tell(
        EnvelopeConfirmed(first.tag, 10, first.count, ()),
        EnvelopeConfirmed(second.tag, 90, second.count, ()),
    )
    confirms = {confirm.session: confirm.items for confirm in stage.heard_of(frames.Confirm)}
    assert confirms == {
        one: (ConfirmItem(1, 1, APPLIED, 11), ConfirmItem(2, 1, APPLIED, 90)),
        other: (ConfirmItem(1, 1, APPLIED, 13), ConfirmItem(2, 1, APPLIED, 91)),
    }


def test_exceptions_are_told_in_the_numbers_of_the_session() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"a"] * 4), acknowledge(session, 5, (7, 9)), publish(session, 6))
    stage.confirm(
        Outcome(1, 3, DUPLICATE, 40),  # sent before, but for the last of them
        Outcome(5, 1, OutcomeCode.ACK_LOST, 8),
    )
    (confirm,) = stage.heard_of(frames.Confirm)
    assert confirm.items == (
        ConfirmItem(1, 3, DUPLICATE, 40),
        ConfirmItem(4, 1, APPLIED, 104),
        ConfirmItem(5, 1, OutcomeCode.ACK_LOST, 8),
        ConfirmItem(6, 1, APPLIED, 106),
    )


def test_an_exception_that_goes_on_over_commands_is_told_of_each() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"a"] * 2), publish(session, 3, [b"b"] * 2))
    stage.confirm(Outcome(1, 4, DUPLICATE, 40))
    (confirm,) = stage.heard_of(frames.Confirm)
    assert confirm.items == (ConfirmItem(1, 2, DUPLICATE, 40), ConfirmItem(3, 2, DUPLICATE, 42))


def test_an_outcome_told_again_changes_nothing() -> None:
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1))
    (envelope,) = stage.submitted
    committed = EnvelopeCommitted(envelope.tag, 10, envelope.count)
    confirmed = EnvelopeConfirmed(envelope.tag, 10, envelope.count, ())
    stage.tell(committed, confirmed)
    assert stage.tell(committed, confirmed) == []
    assert len(stage.heard_of(frames.Confirm)) == 1


def test_an_envelope_that_the_bus_ordered_twice_is_told_with_the_numbers_of_the_first() -> None:
    """Its own first time made the session known: that is no other session under the same id."""
    stage = Stage()
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"a"] * 2))
    (envelope,) = stage.submitted
    stage.tell(EnvelopeCommitted(envelope.tag, 10, 3), EnvelopeUncertain(envelope.tag))
    stage.confirm(Outcome(0, 1, DUPLICATE), Outcome(1, 2, DUPLICATE, 11))
    (confirm,) = stage.heard_of(frames.Confirm)
    assert confirm.items == (ConfirmItem(1, 2, DUPLICATE, 11),)
    stage.say(1, publish(session, 3))
    stage.confirm()
    assert len(stage.heard_of(frames.Confirm)) == 2, "the session goes on"
    assert stage.tell(EnvelopeUncertain(envelope.tag)) == [], "about what is over there is nothing to say"


# -- windows ---------------------------------------------------------------------------------------


def test_a_client_that_overruns_its_window_is_sent_away() -> None:
    stage = Stage(window_bytes=10_000)
    stage.connect()
    session = stage.open_session()
    stage.say(1, *(publish(session, number, [b"x" * 6000]) for number in (1, 2)))
    assert stage.manager.connection_count == 1
    stage.say(1, publish(session, 3))
    assert "window of 10000 bytes" in stage.goodbye().text


def test_confirmed_publications_make_room_in_the_window() -> None:
    stage = Stage(window_bytes=10_000)
    stage.connect()
    session = stage.open_session()
    for number in range(1, 20):
        stage.say(1, publish(session, number, [b"x" * 9000]))
        stage.confirm_all()
    assert stage.manager.connection_count == 1


def test_acknowledgements_do_not_need_the_window() -> None:
    stage = Stage(window_bytes=1000)
    stage.connect()
    session = stage.open_session()
    stage.say(1, publish(session, 1, [b"x" * 2000]), acknowledge(session, 2, (7, 9)))
    back = Return(destination=KNOWN, subscription=0, counted=True, ranges=Ranges([(9, 10)]))
    stage.say(1, command(session, 3, back))
    assert stage.manager.connection_count == 1


def test_who_is_too_far_ahead_is_not_read_from_until_half_is_confirmed() -> None:
    stage = Stage(connection_bytes_max=10_000, submitted_bytes_max=1)
    stage.connect(1)
    stage.connect(2)
    sessions = [stage.open_session() for _ in range(6)]
    for session in sessions:
        stage.say(1, publish(session, 1, [b"x" * 3000]))
    assert stage.of_kind(PauseReading) == [PauseReading(1)]

    stage.confirm()
    assert stage.of_kind(ResumeReading) == []
    stage.confirm_all()
    assert stage.of_kind(ResumeReading) == [ResumeReading(1)]
    assert stage.of_kind(PauseReading) == [PauseReading(1)]


def test_all_together_are_bounded_too() -> None:
    stage = Stage(total_bytes_max=10_000, submitted_bytes_max=1)
    for conn in (1, 2, 3):
        stage.connect(conn)
        stage.say(conn, publish(stage.open_session(conn), 1, [b"x" * 4000]))
    # The others may go on: they have not asked for more.
    assert stage.of_kind(PauseReading) == [PauseReading(3)]
    stage.lose(1)
    stage.confirm_all()
    assert stage.of_kind(ResumeReading) == [ResumeReading(3)]


def test_a_paused_connection_that_is_lost_is_not_resumed() -> None:
    stage = Stage(total_bytes_max=10_000, submitted_bytes_max=1)
    for conn in (1, 2):
        stage.connect(conn)
        stage.say(conn, publish(stage.open_session(conn), 1, [b"x" * 6000]))
    assert stage.of_kind(PauseReading) == [PauseReading(2)]
    stage.say(2, frames.Goodbye(code="", text=""))
    stage.confirm_all()
    assert stage.of_kind(ResumeReading) == []


def test_a_session_taken_over_leaves_no_debt_with_its_former_connection() -> None:
    stage = Stage(connection_bytes_max=10_000)
    stage.connect(1)
    stage.connect(2)
    session, stays = stage.open_session(1), stage.open_session(1)
    stage.say(1, publish(session, 1, [b"x" * 8000]))
    stage.open_session(2, session=session, generation=2)
    stage.confirm_all()
    stage.say(1, publish(stays, 1, [b"x" * 8000]))
    assert stage.of_kind(PauseReading) == []
