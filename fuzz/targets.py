"""What every decoder promises, as functions of any bytes.

Bytes that are no such thing raise `ProtocolError` (or `VersionMismatch`, in a greeting) and nothing
else. Bytes that are one can be read to the last field, and written again give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from xxhash import xxh3_128_digest

from antiphon.batch import Batch, BatchBuilder, ColumnId
from antiphon.bus import codec, records
from antiphon.bus import messages as bus
from antiphon.client_manager.admission import check_command
from antiphon.errors import ProtocolError, RemoteError
from antiphon.ids import Mid
from antiphon.journal import checkpoints, format, superblock
from antiphon.ranges import Ranges
from antiphon.values import count_values, decode_list, decode_map, encode_list, encode_map
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    Acknowledge,
    ConfirmItem,
    OpenSession,
    Outcome,
    Return,
    decode_payload,
    encode_command,
    iterate_commands,
    kind_of,
    publish_buffers,
    read_command,
)
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.range_frames import (
    DIGEST_BYTES,
    RangeAck,
    RangeLoss,
    RangeWanted,
    decode_page,
    page_buffers,
)


class Target(NamedTuple):
    """A decoder: `check` holds for any bytes, `seeds` are bytes that mean something."""

    check: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


# -- frames of the client protocol ---------------------------------------------------------


def check_frames(data: bytes) -> None:
    """A stream, cut where its first byte says, is the same frames as the stream in one piece."""
    step = data[0] + 1 if data else 1
    whole, was_refused = _walk([data])
    pieces, was_refused_in_pieces = _walk([data[at : at + step] for at in range(0, len(data), step)])
    assert (whole, was_refused) == (pieces, was_refused_in_pieces)
    for kind, payload in whole:
        for decode in (frames.decode_client_frame, frames.decode_server_frame):
            try:
                frame = decode(kind, payload)
            except RemoteError:
                continue
            assert frames.encode_frame(frame)[4:] == bytes((kind,)) + payload


def _walk(pieces: list[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
    buffer = FrameBuffer(FRAME_BYTES_MAX)
    found = []
    try:
        for piece in pieces:
            found += [(kind, bytes(payload)) for kind, payload in buffer.feed(piece)]
    except ProtocolError:
        # What was whole before the fault has been walked over by then, in pieces as in one.
        return [], True
    return found, False


def _page(batch: bytes) -> bytes:
    ack = RangeAck(5, 1_000, 7, 0, Ranges([(3, 6)]))
    return b"".join(page_buffers(9, 3, (20, 30), (RangeLoss(7, 1, 2),), [(7, 3, 3, 1, [batch])], (ack,)))


def check_pages(data: bytes) -> None:
    """A page is what its digest says; also what a replica gone mad would send is a page or no page."""
    for page in (data, xxh3_128_digest(data) + data):
        try:
            through, rows, ends, losses, pieces, acks = decode_page(page)
        except ProtocolError:
            continue
        batches = [(*piece[:4], [piece.batch]) for piece in pieces]
        again = page_buffers(through, rows, ends, losses, batches, acks)
        assert b"".join(again) == page


def seeds_of_pages() -> list[bytes]:
    pages = [_page(batch) for batch in _batches()]
    return [*pages, *(page[DIGEST_BYTES:] for page in pages)]


def seeds_of_frames() -> list[bytes]:
    batch = _batches()[0]
    said: list[frames.Frame] = [
        frames.Hello(user="ann", password="secret", client_id="c"),
        frames.Welcome(
            node=1, cluster="c", servers=("a:1", "b:2"), connection=5, frame_limit=9, heartbeat_ms=7
        ),
        frames.Goodbye(code="remote.protocol", text="because"),
        frames.Ping(nonce=1),
        frames.Failed(request=3, code="limit", text="too many"),
        frames.SessionOpen(request=1, session=0, generation=0, ack_mode=frames.AckMode.CLIENT),
        frames.SessionOpened(request=1, session=1 << 99, generation=2, window_bytes=4),
        frames.DestinationOpen(request=2, name="queue:orders", create=True),
        frames.DestinationOpened(request=2, destination=7, settings_version=1, channel="a"),
        frames.Command(channel="a", command=_commands()[0]),
        frames.Confirm(
            session=5,
            channel="a",
            items=(ConfirmItem(1, 2, 0, 3), ConfirmItem(3, 1, 3, 0, "refused")),
        ),
        frames.ConsumerOpen(
            request=4, session=5, consumer=1, channel="a", destination=7, credit_messages=9, credit_bytes=9
        ),
        frames.Credit(session=5, consumer=1, messages=10, bytes=1 << 40),
        frames.Deliver(
            session=5,
            destination=7,
            term=1,
            first_delivery=1,
            consumer=1,
            channel="a",
            pieces=(frames.DeliverPiece(3, 0, batch), frames.DeliverPiece(9, 1, batch)),
        ),
        frames.RangeAsk(request=7, channel="a", question='{"question": "heads", "destinations": [7]}'),
        frames.RangeRead(
            request=8,
            channel="a",
            start=1,
            stop=9,
            goal=9,
            page_bytes=1 << 20,
            ahead=4,
            destinations=(RangeWanted(7, 3), RangeWanted(8)),
        ),
        frames.RangePage(request=8, page=_page(batch)),
        frames.Ask(request=6, question='{"question": "status"}'),
        frames.Answer(request=6, answer="{}"),
    ]
    alone = [frames.encode_frame(frame) for frame in said]
    return [*alone, b"".join(alone)]


# -- commands ------------------------------------------------------------------------------


def check_commands(data: bytes) -> None:
    """An envelope's payload: every command in it, and again the same bytes."""
    again = b""
    try:
        for header, payload, _ in iterate_commands(data):
            decoded = decode_payload(header.kind, payload)
            assert kind_of(decoded) == header.kind
            named = {name: value for name, value in header._asdict().items() if name != "length"}
            again += encode_command(payload=decoded.encode(), **named)
    except ProtocolError:
        pass
    else:
        assert again == data
    for read in (read_command, check_command):
        try:
            read(data)  # type: ignore[operator]
        except ProtocolError:
            pass


def _commands() -> list[bytes]:
    ranges = Ranges([(1, 5), (7, 9)])
    return [
        b"".join(publish_buffers(7, 1, 1, 0, 3, 1, [_batches()[0]], 2)),
        encode_command(1, 7, 1, 0, 0, OpenSession(user="ann", client_id="c").encode()),
        encode_command(5, 7, 1, 3, 2, Acknowledge(destination=3, subscription=0, ranges=ranges).encode()),
        encode_command(
            6, 7, 1, 4, 2, Return(destination=3, subscription=0, counted=True, ranges=ranges).encode()
        ),
        encode_command(
            24, 7, 1, 5, 2, Hold(name="spark", position=9, limit_ms=1_000, destinations=(3, 4)).encode()
        ),
        encode_command(25, 7, 1, 6, 2, ReleaseHold(name="spark").encode()),
    ]


def seeds_of_commands() -> list[bytes]:
    return [*_commands(), b"".join(_commands())]


# -- batches and values --------------------------------------------------------------------


def check_batch(data: bytes) -> None:
    """What is accepted can be read by every accessor, sliced, and written again."""
    try:
        batch = Batch.decode(data)
    except ProtocolError:
        # Bytes that were looked at before are trusted; should they have changed, it is the same error.
        try:
            _read_batch(Batch.decode(data, trusted=True))
        except ProtocolError:
            pass
        return
    rows = _read_batch(batch)
    assert batch.encode() == data
    middle = batch.count // 2
    part = batch.slice(middle, batch.count)
    assert _read_batch(part) == rows[middle:]
    assert _read_batch(Batch.decode(part.encode())) == rows[middle:]
    assert b"".join(part.buffers()) == part.encode()
    assert 0 <= batch.rows_within(0, 100) <= batch.count


def _read_batch(batch: Batch) -> list[str]:
    assert [bytes(batch.body_bytes(row)) for row in range(batch.count)] == batch.bodies()
    for id in ColumnId:
        batch.column(id)
    # As text: a number that is none equals nothing, not even itself.
    return [
        repr(
            (
                batch.body(row),
                batch.properties(row),
                batch.timestamp_ms(row),
                batch.priority(row),
                batch.expires_ms(row),
                batch.deliver_at_ms(row),
                batch.is_persistent(row),
                batch.key(row),
                batch.correlation_id(row),
                batch.reply_to(row),
                batch.type(row),
                batch.row_bytes(row),
            )
        )
        for row in range(batch.count)
    ]


def _batches() -> list[bytes]:
    plain = Batch.of_bodies([b"a", b"bc"], producer=7, first_number=1, timestamp_ms=5)
    rich, blobs = BatchBuilder(), BatchBuilder()
    bodies: list[Any] = [b"bytes", "größe", {"a": [1, None, True]}, [1.5, {"b": b"c"}], None]
    for row, body in enumerate(bodies):
        rich.add(
            body,
            {"color": "rot", "n": row, "flag": True},
            timestamp_ms=row,
            priority=row,
            expires_ms=9,
            key="schlüssel" if row else None,
            correlation_id="x",
            reply_to="queue:r",
            type="t",
            persistent=bool(row),
        )
        blobs.add(body, {"mixed": row if row % 2 else "text", "größe": None}, timestamp_ms=5)
    full = rich.build(7, 1)
    return [
        plain.encode(),
        full.encode(),
        blobs.build(7, 1).encode(),
        plain.slice(1, 2).encode(),
        full.slice(1, 4).encode(),
    ]


def check_values(data: bytes) -> None:
    """Counting accepts what decoding accepts, and what is decoded encodes to as many bytes."""
    for decode, encode, is_map in ((decode_map, encode_map, True), (decode_list, encode_list, False)):
        try:
            value = decode(data)
        except ProtocolError:
            value = None
        try:
            count_values(data, 0, len(data), is_map=is_map)
            is_counted = True
        except ProtocolError:
            is_counted = False
        assert is_counted == (value is not None)
        if value is not None:
            assert len(encode(value)) == len(data)  # type: ignore[operator]


def seeds_of_values() -> list[bytes]:
    nested = {"a": [1, 2.5, True, None, "größe", b"raw"], "b": {"c": {}, "d": []}}
    return [encode_map(nested), encode_list([nested, [nested]]), encode_map({}), encode_list([])]


# -- the bus, and what lies on disk --------------------------------------------------------


def check_bus(data: bytes) -> None:
    try:
        header, message = codec.decode(data)
    except ProtocolError:
        return
    again = codec.encode(message, *header)
    assert again == data


def seeds_of_bus() -> list[bytes]:
    mid = Mid(1, 2, 3)
    entry = bus.Entry(5, 2, bus.EntryKind.DATA, mid, 9, bytes(16))
    said: list[bus.BusMessage] = [
        bus.Commit(epoch=1 << 16 | 1, entries=(entry,), committed_upto=6),
        bus.Data(mid=mid, ts=9, count=2, digest=bytes(16), payload=b"payload"),
        bus.Applied(epoch=1 << 16 | 1, upto=6, exceptions=(Outcome(5, 1, 3, 0, "no"),)),
    ]
    return [codec.encode(message, "a", 1, 1, bytes(16)) for message in said]


def check_records(data: bytes) -> None:
    """Records of the order: written by us, read after a crash."""
    try:
        body = records.decode_order(data)
    except ProtocolError:
        return
    assert records.encode_order(body) == data


def seeds_of_records() -> list[bytes]:
    entry = bus.Entry(5, 2, bus.EntryKind.DATA, Mid(1, 2, 3), 9, bytes(16))
    return [records.encode_appended(1 << 16 | 1, 4, (entry, entry._replace(first=7)))]


def check_journal(data: bytes) -> None:
    """Pages, blocks, records and checkpoints: found to be what they say, or not; never an error."""
    page = data[: format.PAGE].ljust(format.PAGE, b"\0")
    sealed = format.seal_page(page[: format.BODY_BYTES], 1)
    superblock.decode(page)
    for any_page in (page, sealed):
        format.decode_block(any_page, 1, 1, 0)
        format.looks_like_block(any_page, 1, 1)
    for record in format.split_order_payload(data) or ():
        check_records(record)
    checkpoints.decode(bytes(16), 5, data)


def seeds_of_journal() -> list[bytes]:
    return [
        b"".join(map(bytes, checkpoints.encode(bytes(16), 5, bytes(16), b"state", (1, 2)))),
        format.seal_page(b"body", 1),
    ]


TARGETS: dict[str, Target] = {
    "frames": Target(check_frames, seeds_of_frames),
    "pages": Target(check_pages, seeds_of_pages),
    "commands": Target(check_commands, seeds_of_commands),
    "batch": Target(check_batch, _batches),
    "values": Target(check_values, seeds_of_values),
    "bus": Target(check_bus, seeds_of_bus),
    "records": Target(check_records, seeds_of_records),
    "journal": Target(check_journal, seeds_of_journal),
}
