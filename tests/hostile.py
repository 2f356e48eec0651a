"""Hostile peers for tests: raw sockets that say whatever they like, and the frames they spoil."""

from __future__ import annotations

import random
import resource
import socket
import struct
from collections.abc import Iterable
from dataclasses import fields
from enum import IntEnum
from types import TracebackType
from typing import Any, get_args, get_origin, get_type_hints

from antiphon.batch import Batch, BatchBuilder
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    BuryMessages,
    LogEvents,
    Payload,
    Publish,
    encode_command,
    kind_of,
    publish_buffers,
)
from antiphon.wire.transactions import TRANSACTED_NUMBER, StagedPublish, TransactedPublish

PATIENCE_SECONDS = 60.0
HELLO = frames.Hello(user="mallory", password="", client_id="")


def descriptors_for(count: int) -> int:
    """As many sockets as this process may have, with some left for everything else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        soft = min(count + 200, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(count, soft - 200)


class Peer:
    """One connection, by hand. Every wait has an end."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_SECONDS)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(address)
        self._buffer = FrameBuffer(FRAME_BYTES_MAX)
        self._frames: list[frames.ServerFrame] = []
        self._request = 0

    # -- saying ----------------------------------------------------------------

    def send(self, *said: frames.ClientFrame | bytes) -> None:
        """Say this. If the other side has hung up, what it said before that is still to be read."""
        try:
            self.socket.sendall(
                b"".join(what if isinstance(what, bytes) else frames.encode_frame(what) for what in said)
            )
        except ConnectionError:
            pass

    def finish(self) -> None:
        """Say no more."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def request(self) -> int:
        self._request += 1
        return self._request

    def greet(self) -> Peer:
        self.send(HELLO)
        assert isinstance(self.receive(), frames.Welcome)
        return self

    def open_session(self) -> int:
        self.send(
            frames.SessionOpen(
                request=self.request(), session=0, generation=0, ack_mode=frames.AckMode.INDIVIDUAL
            )
        )
        opened = self.receive()
        assert isinstance(opened, frames.SessionOpened), opened
        return opened.session

    def open_destination(self, name: str) -> int:
        self.send(frames.DestinationOpen(request=self.request(), name=name, create=True))
        opened = self.receive()
        assert isinstance(opened, frames.DestinationOpened), opened
        return opened.destination

    # -- hearing ---------------------------------------------------------------

    def receive(self) -> frames.ServerFrame | None:
        """The next frame, or None at the end."""
        while not self._frames:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionError:
                return None
            if not data:
                return None
            self._frames += [frames.decode_server_frame(kind, body) for kind, body in self._buffer.feed(data)]
        return self._frames.pop(0)

    def receive_all(self) -> list[frames.ServerFrame]:
        """Everything up to the end of the connection, which must come."""
        heard = []
        while (frame := self.receive()) is not None:
            heard.append(frame)
        return heard

    def goodbye(self) -> frames.Goodbye:
        """The last word of a server that has closed the connection."""
        heard = self.receive_all()
        assert heard and isinstance(heard[-1], frames.Goodbye), heard[-1:]
        check_goodbye(heard[-1])
        return heard[-1]

    def await_pong(self, nonce: int) -> None:
        """Everything said before this was heard."""
        self.send(frames.Ping(nonce=nonce))
        while (frame := self.receive()) != frames.Pong(nonce=nonce):
            assert frame is not None, "the connection was closed"

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Leave without a word: the other side gets an error, not an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_goodbye(goodbye: frames.Goodbye) -> None:
    """Whoever is sent away is told why."""
    assert goodbye.code and goodbye.text, goodbye


# -- frames --------------------------------------------------------------------------------


def publish(
    session: int,
    destination: int,
    number: int = 1,
    batch: bytes | None = None,
    *,
    generation: int = 1,
    confirmed_through: int = 0,
    count: int = 1,
    channel: str = "a",
) -> frames.Command:
    if batch is None:
        batch = Batch.of_bodies([b"body"] * count, session, number, timestamp_ms=1).encode()
    buffers = publish_buffers(session, generation, number, confirmed_through, destination, 1, [batch], count)
    return frames.Command(channel=channel, command=b"".join(buffers))


def command(session: int, number: int, payload: Payload, **header: Any) -> frames.Command:
    data = encode_command(
        kind_of(payload), session, header.pop("generation", 1), number, 0, payload.encode(), **header
    )
    return frames.Command(channel="a", command=data)


def rich_batch(session: int, number: int) -> bytes:
    """A batch with columns of every sort, so that there is much to lie about."""
    builder = BatchBuilder()
    bodies: list[Any] = [b"bytes", "größe", {"a": [1, None, True]}, [1.5, {"b": b"c"}], None]
    for row, body in enumerate(bodies):
        builder.add(
            body,
            {"color": "rot", "n": row, "mixed": row if row % 2 else "text"},
            timestamp_ms=row,
            priority=row,
            key="schlüssel",
            correlation_id="x",
            persistent=bool(row),
        )
    return builder.build(session, number).encode()


def valid_frames(chance: random.Random, session: int, destination: int) -> list[frames.ClientFrame]:
    """One of each kind that a client may say once it has greeted, and a command of each kind."""
    said = [
        _instance(cls, chance, session, destination)
        for cls in get_args(frames.ClientFrame)
        if cls not in (frames.Hello, frames.Command)
    ]
    payloads = [
        _instance(cls, chance, session, destination) for cls in get_args(Payload) if cls not in WITH_BATCH
    ]
    stored = rich_batch(session, TRANSACTED_NUMBER | 1)
    payloads += [
        TransactedPublish(1, 0, 5, destination, 1, 0, stored),
        StagedPublish(7, 0, 5, 60, destination, 1, 0, "mallory", stored),
    ]
    return [
        *said,
        publish(session, destination),
        publish(session, destination, batch=rich_batch(session, 1), count=5),
        *(command(session, 1, payload) for payload in payloads if _may_be_numbered(payload)),
    ]


def _may_be_numbered(payload: Payload) -> bool:
    """Openings have no number, and some commands are the node's own; what remains may be a client's."""
    try:
        encode_command(kind_of(payload), 1, 1, 1, 0, b"")
    except ValueError:
        return False
    return True


WITH_BATCH = (Publish, TransactedPublish, StagedPublish, BuryMessages, LogEvents)

# Far from whatever anybody is given in a test.
NUMBERS = Ranges([(1 << 40, (1 << 40) + 5), (1 << 41, (1 << 41) + 1)])


def _instance(cls: type[Any], chance: random.Random, session: int, destination: int) -> Any:
    """A frame or payload by its annotations, as the codec goes by them; of a real session and destination."""
    known = {
        "session": session,
        "destination": destination,
        "name": "queue:mallory",
        "question": '{"question": "status"}',
        "settings": "{}",
    }
    hints = get_type_hints(cls)
    return cls(
        **{
            field.name: known[field.name] if field.name in known else _value(hints[field.name], chance)
            for field in fields(cls)
        }
    )


def _value(kind: Any, chance: random.Random) -> Any:
    """Something small of this type."""
    if get_origin(kind) is tuple:
        return ()
    some: dict[Any, Any] = {bool: chance.random() < 0.5, str: "text", Ranges: NUMBERS}
    if kind in some:
        return some[kind]
    return next(iter(kind)) if issubclass(kind, IntEnum) else chance.randrange(4)


def spoiled(chance: random.Random, data: bytes) -> bytes:
    """The same bytes with a few flipped, inserted or lost. Lengths may be among them."""
    spoilt = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(spoilt) + 1)
        match chance.randrange(4):
            case 0 if at < len(spoilt):
                spoilt[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(spoilt):
                spoilt[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
            case 2:
                spoilt[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                del spoilt[at : at + chance.randint(1, 8)]
    return bytes(spoilt)


def reframed(payload: Iterable[int]) -> bytes:
    """Type and payload, with the length they have now."""
    body = bytes(payload)
    return struct.pack("<I", len(body)) + body
