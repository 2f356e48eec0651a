from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import (
    COMMAND_HEADER_SIZE,
    NODE_SESSION,
    PUBLISH_BATCH_OFFSET,
    PUBLISH_COUNT_MAX,
    Acknowledge,
    AlterDestination,
    BuryMessages,
    ClaimClientId,
    CommandHeader,
    CommandKind,
    ConfirmItem,
    CreateDestination,
    DeadReason,
    ExpireClientId,
    ExpireSession,
    LogTime,
    OpenSession,
    Outcome,
    OutcomeCode,
    PlaceDestination,
    Publish,
    PurgeDestination,
    ReleaseClientId,
    ResumeSession,
    Return,
    StartKind,
    Subscribe,
    Unsubscribe,
    count_of,
    decode_payload,
    encode_command,
    iterate_commands,
    kind_of,
    publish_buffers,
    read_command,
    read_outcomes,
    renew_header,
    write_outcomes,
)
from antiphon.wire.primitives import Reader, Writer

SESSION = 0x0102030405060708090A0B0C0D0E0F10


def publish(number: int = 7, count: int = 3, batch: bytes = b"batch") -> bytes:
    payload = Publish(destination=5, settings_version=6, flags=0, batch=batch).encode()
    return encode_command(CommandKind.PUBLISH, SESSION, 2, number, 4, payload, count=count)


def acknowledge(number: int = 1) -> bytes:
    payload = Acknowledge(destination=5, subscription=0, ranges=Ranges([(1, 4)])).encode()
    return encode_command(CommandKind.ACK, SESSION, 2, number, 0, payload)


def test_the_bytes_of_a_publish_command() -> None:
    assert publish() == b"".join(
        (
            b"\x04\x00\x00\x00",  # kind, flags, reserved
            (21).to_bytes(4, "little"),  # length of the payload
            (3).to_bytes(4, "little"),  # count
            (2).to_bytes(4, "little"),  # generation
            (7).to_bytes(8, "little"),  # number
            (4).to_bytes(8, "little"),  # confirmed through
            SESSION.to_bytes(16, "little"),
            (5).to_bytes(8, "little"),  # destination
            (6).to_bytes(4, "little"),  # version of its settings
            bytes(4),  # flags
            b"batch",
        )
    )
    assert COMMAND_HEADER_SIZE == 48
    assert publish()[PUBLISH_BATCH_OFFSET:] == b"batch"


def test_the_bytes_of_the_other_payloads() -> None:
    ranges = Ranges([(1, 4)])
    pair = b"\x01" + bytes(7) + b"\x04" + bytes(7)
    seven, nine = b"\x07" + bytes(7), b"\x09" + bytes(7)
    assert OpenSession(user="eva", client_id="").encode() == b"\x03\0eva\0\0" + bytes(16)
    assert ResumeSession(known=7).encode() == b"\x07\0\0\0"
    assert Acknowledge(destination=7, subscription=9, ranges=ranges).encode() == seven + nine + pair
    assert (
        Return(destination=7, subscription=9, counted=True, ranges=ranges).encode()
        == seven + nine + b"\1\0" + pair
    )
    bury = BuryMessages(
        destination=7,
        subscription=9,
        reason=DeadReason.REJECTED,
        term=9,
        target=7,
        numbers=ranges,
        batch=b"rows",
    )
    length = len(pair).to_bytes(4, "little")
    assert bury.encode() == seven + nine + b"\2" + nine + seven + length + pair + b"rows"
    assert AlterDestination(destination=7, settings="{}").encode() == seven + b"\2\0{}"
    assert PurgeDestination(destination=7).encode() == seven
    assert CreateDestination(kind=1, name="q", settings="{}").encode() == b"\x01\x01\0q\x02\0{}"
    expire = ExpireSession(session=1, generation=2, pid=3, pe=9, term=7)
    assert expire.encode() == b"\1" + bytes(15) + b"\2\0\0\0" + b"\3\0" + nine + seven
    assert LogTime(time_ms=-1, term=7).encode() == b"\xff" * 8 + seven
    audit = subscribe(start=StartKind.NUMBER, number=9)
    assert audit.encode() == seven + b"\1\0" + b"\5\0audit" + b"\4\0desk" + b"\2" + nine + b"\0\0\0"
    claim = ClaimClientId(client_id="desk", connection=7, generation=2)
    of_desk = b"\4\0desk" + seven + bytes(8) + b"\2\0\0\0"
    assert claim.encode() == of_desk
    named: dict[str, Any] = {"client_id": "desk", "connection": 7, "generation": 2}
    assert ReleaseClientId(**named, is_lost=True).encode() == of_desk + b"\1"
    assert ExpireClientId(**named, term=9).encode() == of_desk + nine
    assert Unsubscribe(subscription=9).encode() == nine
    assert PlaceDestination(name="queue:q", channel="b").encode() == b"\7\0queue:q" + b"\1\0b" + b"\0\0"


def subscribe(start: StartKind, number: int) -> Subscribe:
    return Subscribe(
        destination=7, durable=True, shared=False, name="audit", client_id="desk", start=start, number=number
    )


def test_a_start_nobody_knows_is_refused() -> None:
    good = subscribe(StartKind.EARLIEST, 0).encode()
    with pytest.raises(ProtocolError, match="start 3"):
        Subscribe.decode(altered(good, len(good) - 12, b"\x03"))


def test_commands_end_to_end_are_walked_in_order() -> None:
    envelope = acknowledge() + publish(number=2) + acknowledge(number=5)
    walked = list(iterate_commands(envelope))
    assert [header.number for header, _, _ in walked] == [1, 2, 5]
    assert [offset for _, _, offset in walked] == [0, len(acknowledge()), len(acknowledge()) + len(publish())]
    assert walked[1][0] == CommandHeader(
        kind=CommandKind.PUBLISH,
        flags=0,
        length=21,
        count=3,
        generation=2,
        number=2,
        confirmed_through=4,
        session=SESSION,
    )
    assert isinstance(walked[1][0], CommandHeader)
    _, payload, offset = walked[1]
    assert decode_payload(CommandKind.PUBLISH, payload) == Publish(5, 6, 0, b"batch")
    assert envelope[offset + PUBLISH_BATCH_OFFSET :].startswith(b"batch")


def test_an_envelope_takes_the_numbers_of_all_its_commands() -> None:
    assert count_of(acknowledge() + publish(count=3) + acknowledge()) == 5
    assert count_of(b"") == 0


def test_the_payload_is_a_view_of_the_envelope() -> None:
    envelope = publish()
    [(_, payload, _)] = iterate_commands(envelope)
    assert payload.obj is envelope
    batch = Publish.decode(payload).batch
    assert isinstance(batch, memoryview)
    assert batch.obj is envelope


def test_a_client_sends_one_command_at_a_time() -> None:
    header, payload = read_command(publish())
    assert (header.number, bytes(payload[16:])) == (7, b"batch")
    with pytest.raises(ProtocolError, match="more than one"):
        read_command(publish() + publish())
    with pytest.raises(ProtocolError, match="no command"):
        read_command(b"")


@pytest.mark.parametrize("size", range(1, len(publish())))
def test_a_command_that_ends_early_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        read_command(publish()[:size])


def altered(command: bytes, offset: int, value: bytes) -> bytes:
    return command[:offset] + value + command[offset + len(value) :]


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"\x00", "kind 0"),
        (0, b"\x40", "kind 64"),
        (0, b"\x05", "cannot take 3 numbers"),
        (1, b"\x01", "no meaning"),
        (2, b"\x01", "no meaning"),
        (3, b"\x80", "no meaning"),
        (4, b"\xff\xff\xff\xff", "announces 4294967295 bytes"),
        (8, bytes(4), "cannot take 0 numbers"),
        (8, (PUBLISH_COUNT_MAX + 1).to_bytes(4, "little"), "cannot take 65537 numbers"),
        (16, bytes(8), "number 0 does not fit"),
        (16, b"\xfe" + b"\xff" * 7, "64 bits"),
        (32, bytes(16), "no number"),
    ],
)
def test_a_header_that_cannot_be_is_refused(offset: int, value: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        list(iterate_commands(altered(publish(), offset, value)))


def test_a_session_may_not_speak_for_the_node() -> None:
    with pytest.raises(ProtocolError, match="may not ask"):
        read_command(altered(acknowledge(), 0, b"\x09"))


def test_opening_a_session_has_no_number_and_needs_a_session() -> None:
    payload = OpenSession(user="eva", client_id="desk").encode()
    command = encode_command(CommandKind.SESSION_OPEN, SESSION, 1, 0, 0, payload)
    assert read_command(command)[0].number == 0
    with pytest.raises(ProtocolError, match="number 1 does not fit"):
        read_command(altered(command, 16, b"\x01"))
    with pytest.raises(ProtocolError, match="names no session"):
        read_command(altered(command, 32, bytes(16)))


def test_the_node_speaks_under_session_0_and_without_numbers() -> None:
    command = encode_command(CommandKind.LOG_TIME, NODE_SESSION, 0, 0, 0, LogTime(time_ms=5, term=1).encode())
    header, payload = read_command(command)
    assert header.session == NODE_SESSION
    assert decode_payload(header.kind, payload) == LogTime(time_ms=5, term=1)


def test_a_header_we_would_refuse_is_not_written_either() -> None:
    with pytest.raises(ValueError, match="number 0 does not fit"):
        encode_command(CommandKind.ACK, SESSION, 1, 0, 0, b"")
    with pytest.raises(ValueError, match="may not ask"):
        encode_command(CommandKind.LOG_TIME, SESSION, 1, 1, 0, b"")
    with pytest.raises(ValueError, match="fit"):
        encode_command(CommandKind.ACK, SESSION, 2**32, 1, 0, b"")


def test_publish_buffers_are_the_command_without_a_copy_of_the_batch() -> None:
    head, batch = b"ba", b"tch"
    buffers = publish_buffers(SESSION, 2, 7, 4, 5, 6, [head, batch], count=3)
    assert b"".join(buffers) == publish()
    assert buffers[1] is head
    assert buffers[2] is batch


def test_a_publish_with_flags_nobody_knows_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no meaning"):
        Publish.decode(Publish(1, 1, 1, b"").encode())


@pytest.mark.parametrize("kind", [0, 64, 255])
def test_the_payload_of_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"kind {kind} is not known"):
        decode_payload(kind, b"")


def test_a_payload_knows_its_kind() -> None:
    assert kind_of(LogTime(time_ms=1, term=1)) is CommandKind.LOG_TIME
    assert kind_of(Publish(1, 1, 0, b"")) is CommandKind.PUBLISH


def test_ranges_that_overlap_are_refused() -> None:
    good = Acknowledge(destination=1, subscription=0, ranges=Ranges([(1, 4), (6, 8)])).encode()
    with pytest.raises(ProtocolError):
        Acknowledge.decode(altered(good, 32, b"\x03"))


def test_ranges_beyond_64_bits_are_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="ranges"):
        Acknowledge(destination=1, subscription=0, ranges=Ranges([(1, 2**64 + 1)])).encode()


def encoded(rows: list[Outcome]) -> bytes:
    writer = Writer()
    write_outcomes(writer, rows)
    return writer.join()


REFUSED = Outcome(first=9, count=1, code=OutcomeCode.REFUSED, text="full")


def test_the_bytes_of_outcomes() -> None:
    rows = [Outcome(first=5, count=2, code=OutcomeCode.DUPLICATE, original=3), REFUSED]
    assert encoded(rows) == b"".join(
        (
            b"\x02\0\0\0",
            b"\x05" + bytes(7) + b"\x02\0\0\0" + b"\x01" + b"\x03" + bytes(7),
            b"\x09" + bytes(7) + b"\x01\0\0\0" + b"\x03" + bytes(8),
            b"\x01\0\0\0" + b"\x01\0\0\0" + b"\x04\0full",
        )
    )
    assert read_outcomes(Reader(encoded(rows)), Outcome) == tuple(rows)


def test_the_same_rows_can_be_told_to_a_client() -> None:
    assert read_outcomes(Reader(encoded([REFUSED])), ConfirmItem) == (
        ConfirmItem(number=9, count=1, code=OutcomeCode.REFUSED, sequence=0, text="full"),
    )


def test_an_outcome_nobody_knows_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not known"):
        read_outcomes(Reader(altered(encoded([REFUSED]), 4 + 12, bytes([max(OutcomeCode) + 1]))), Outcome)


def test_a_text_belongs_to_a_row_once_and_in_order() -> None:
    texts_at = 4 + 21
    two_texts = encoded([REFUSED])[:texts_at] + b"\x02\0\0\0" + (bytes(4) + b"\x01\0x") * 2
    for data in (
        two_texts,
        altered(encoded([REFUSED]), texts_at + 4, b"\x01"),
        encoded([REFUSED])[:texts_at] + b"\x01\0\0\0" + bytes(4) + bytes(2),
    ):
        with pytest.raises(ProtocolError, match="out of place or empty"):
            read_outcomes(Reader(data), Outcome)


def test_the_numbers_of_kinds_and_outcomes_never_change() -> None:
    assert {kind.name: int(kind) for kind in CommandKind} == {
        "SESSION_OPEN": 1,
        "SESSION_RESUME": 2,
        "SESSION_CLOSE": 3,
        "PUBLISH": 4,
        "ACK": 5,
        "RETURN": 6,
        "CREATE": 7,
        "DELETE": 8,
        "SESSION_EXPIRE": 9,
        "LOG_TIME": 10,
        "SUBSCRIBE": 11,
        "UNSUBSCRIBE": 12,
        "PLACE": 13,
        "TX_PUBLISH": 14,
        "TX_COMMIT": 15,
        "TX_ROLLBACK": 16,
        "TX_PREPARE": 17,
        "TX_DECIDE": 18,
        "TX_FINISH": 19,
        "TX_RESOLVE": 20,
        "TX_FORGET": 21,
        "STAGE": 22,
        "DROP_STAGED": 23,
        "HOLD": 24,
        "RELEASE": 25,
        "EXPIRE": 26,
        "DEAD": 27,
        "ALTER": 29,
        "PURGE": 30,
        "SKIP": 28,
        "DROP": 31,
        "CLAIM_ID": 40,
        "RELEASE_ID": 41,
        "EXPIRE_ID": 42,
        "CREATE_TEMPORARY": 50,
        "MATCH": 60,
        "LOG_EVENTS": 70,
    }
    assert {code.name: int(code) for code in OutcomeCode} == {
        "APPLIED": 0,
        "DUPLICATE": 1,
        "NO_DESTINATION": 2,
        "REFUSED": 3,
        "STALE": 4,
        "GAP": 5,
        "TX_ROLLED_BACK": 6,
        "ACK_LOST": 7,
        "SESSION_UNKNOWN": 8,
        "EXISTS": 9,
        "OUTDATED": 10,
        "FORGOTTEN": 11,
        "DIFFERS": 12,
        "KNOWN": 13,
        "TAKEN": 14,
    }


def test_a_command_that_is_sent_again_differs_in_generation_and_what_is_confirmed() -> None:
    command = encode_command(CommandKind.ACK, SESSION, 1, 9, 3, b"payload")
    again = renew_header(command, 4, 8)
    before, _ = read_command(command)
    after, payload = read_command(again)
    assert after == before._replace(generation=4, confirmed_through=8)
    assert bytes(payload) == b"payload"


def test_the_head_of_a_command_in_pieces_is_renewed_without_the_rest() -> None:
    head, *rest = publish_buffers(SESSION, 1, 9, 3, 5, 1, [b"batch"], 1)
    again = renew_header(head, 2, 3)
    assert b"".join([again, *rest]) == b"".join(publish_buffers(SESSION, 2, 9, 3, 5, 1, [b"batch"], 1))


@pytest.mark.parametrize(("at", "value"), [(0, 99), (1, 1), (2, 1), (4, 255), (8, 0), (16, 0), (32, 0)])
def test_lone_publishes_are_counted_and_a_bad_one_among_them_is_refused(at: int, value: int) -> None:
    good = encode_command(CommandKind.PUBLISH, 7, 1, 5, 0, b"body")
    assert count_of(good * 3) == count_of(memoryview(good * 3)) == 3
    bad = bytearray(good)
    bad[at] = value
    with pytest.raises(ProtocolError):
        count_of(good + bytes(bad) + good)
