"""A real server among hostile peers: each is sent away with a reason, nobody else notices.

One well-behaved client sends and receives all along. After every attack it must have gone on, with
every message confirmed and received in order; the server's memory must be where it was, and its log
must be short and without a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.batch import Batch
from antiphon.batch.layout import VERSION
from antiphon.errors import ProtocolError, VersionMismatch
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.commands import Acknowledge, encode_command
from antiphon.wire.range_frames import RangeWanted
from tests.hostile import (
    HELLO,
    PATIENCE_SECONDS,
    Peer,
    check_goodbye,
    command,
    descriptors_for,
    publish,
    reframed,
    rich_batch,
    spoiled,
    valid_frames,
)
from tests.processes import Server

GROWTH_KIB_MAX = 64 * 1024
ROUNDS_AFTER = 20
QUEUE = "queue:polite"
MALLORY = "queue:mallory"

SEED = int(os.environ.get("ANTIPHON_SEED", random.randrange(1 << 32)))


class PoliteClient:
    """Sends to itself and waits for each message: a confirmation, then the message, then the next."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._news = threading.Condition()
        self._stop = threading.Event()
        self.rounds = 0
        self.slowest = 0.0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="polite")
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            with self._news:
                self.error = error
                self._news.notify_all()

    async def _live(self) -> None:
        async with antiphon.connect(self._url) as connection, connection.session(ack="client") as session:
            producer, consumer = await session.producer(QUEUE), await session.consumer(QUEUE)
            while not self._stop.is_set():
                began = time.monotonic()
                bodies = [b"%d.%d" % (self.rounds, place) for place in range(3)]
                receipts = await producer.send_many(bodies)
                assert len(receipts) == 3
                received = await consumer.receive_many(3, timeout=PATIENCE_SECONDS)
                assert [message.body for message in received] == bodies, "a message was lost, or came twice"
                await received[-1].ack()
                with self._news:
                    self.rounds += 1
                    self.slowest = max(self.slowest, time.monotonic() - began)
                    self._news.notify_all()

    def go_on(self, rounds: int = ROUNDS_AFTER) -> None:
        """Return when it has done so many rounds more."""
        with self._news:
            goal = self.rounds + rounds
            has_news = self._news.wait_for(
                lambda: self.error is not None or self.rounds >= goal, timeout=PATIENCE_SECONDS
            )
            assert self.error is None, f"the well-behaved client was disturbed: {self.error!r}"
            assert has_news, f"the well-behaved client is stuck in round {self.rounds}"

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the well-behaved client cannot leave"
        assert self.error is None, f"the well-behaved client was disturbed: {self.error!r}"


@dataclass
class Arena:
    """The server, the polite client, and where hostile ones connect."""

    server: Server
    polite: PoliteClient
    chance: random.Random
    started: float = field(default_factory=time.monotonic)
    warm_kib: int = 0

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.ready["nodes"][0]["listen"]["antiphon"].split(":")
        return host, int(port)

    def connect(self, **options: int) -> Peer:
        return Peer(self.address, **options)

    def memory_kib(self) -> int:
        """What the server has of its own; mapped files belong to the disk."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(r"^RssAnon:\s+(\d+) kB", status, re.M)[1])  # type: ignore[index]

    def figures(self) -> str:
        grown, seconds = self.memory_kib() - self.warm_kib, time.monotonic() - self.started
        polite = f"{self.polite.rounds} polite rounds, the slowest took {self.polite.slowest:.3f} s"
        return f"{polite}; the server has grown by {grown} KiB in {seconds:.1f} s"

    def check(self) -> None:
        self.polite.go_on()
        assert self.server.process.poll() is None, "the server has ended"
        grown = self.memory_kib() - self.warm_kib
        assert grown < GROWTH_KIB_MAX, f"the server has grown by {grown} KiB"
        words = self.server.errors.read_text()
        assert "Traceback" not in words, words[-3000:]
        seconds = time.monotonic() - self.started
        lines = len(words.splitlines())
        assert lines < 20 + 10 * (seconds + 1), f"{lines} lines of log in {seconds:.0f} s"


# The loop of the event loop's own language is what `make run` gets; uvloop comes with an extra.
@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def hall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    print(f"seed {SEED} (ANTIPHON_SEED={SEED} repeats what is said)")
    folder = tmp_path_factory.mktemp("hostile")
    environment = pytest.MonkeyPatch()
    if request.param == "asyncio":
        (folder / "uvloop.py").write_text("raise ImportError\n")
        environment.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    else:
        pytest.importorskip("uvloop")
    with environment.context() as _, Server(folder / "data") as server:
        arena = Arena(server, PoliteClient(server.url), random.Random(SEED))
        try:
            warm_up(arena)
            yield arena
        finally:
            arena.polite.stop()
            print(f"{request.param}: {arena.figures()}")
        assert server.stop() == 0
    environment.undo()


def warm_up(arena: Arena) -> None:
    """Everything has been done once: code is loaded, arenas of the allocator are there."""
    for _ in range(200):
        with arena.connect() as peer:
            peer.greet().send(b"\xff" * 100)
            peer.goodbye()
    with arena.connect() as peer:
        session = peer.greet().open_session()
        destination = peer.open_destination(MALLORY)
        for number in range(1, 9):
            body = bytes(1 << 20)
            batch = Batch.of_bodies([body], session, number, timestamp_ms=1).encode()
            peer.send(publish(session, destination, number, batch))
            while not isinstance(peer.receive(), frames.Confirm):
                pass
    arena.polite.go_on(100)
    arena.warm_kib = arena.memory_kib()


@pytest.fixture
def arena(hall: Arena) -> Iterator[Arena]:
    hall.polite.go_on(1)
    yield hall
    hall.check()


def test_bytes_at_random(arena: Arena) -> None:
    for _ in range(400):
        with arena.connect() as peer:
            data = arena.chance.randbytes(arena.chance.choice([1, 3, 4, 5, 9, 100, 5_000]))
            peer.send(data)
            peer.finish()
            for frame in peer.receive_all():
                assert isinstance(frame, frames.Goodbye), frame
                check_goodbye(frame)


@pytest.mark.parametrize("greeted", [False, True])
def test_lengths_that_nobody_may_announce(arena: Arena, greeted: bool) -> None:
    limit = 2 * 1024 * 1024 + 64 * 1024 if greeted else 64 * 1024
    for length in (0, limit + 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1):
        with arena.connect() as peer:
            if greeted:
                peer.greet()
            peer.send(struct.pack("<I", length))
            goodbye = peer.goodbye()
            assert (goodbye.code, f"a frame of {length} bytes" in goodbye.text) == (ProtocolError.code, True)


def test_frames_of_every_kind_that_end_early(arena: Arena) -> None:
    with arena.connect() as peer:
        session = peer.greet().open_session()
        whole = valid_frames(arena.chance, session, peer.open_destination(MALLORY))
    for frame in [HELLO, *whole]:
        data = frames.encode_frame(frame)
        for size in sorted(arena.chance.sample(range(1, len(data)), 6)):
            # The announced rest never comes.
            with arena.connect() as peer:
                peer.greet().send(data[:size])
                peer.finish()
                assert peer.receive_all() == []
            # The length fits, but what is in it ends early.
            if size > 5:
                with arena.connect() as peer:
                    peer.greet().send(reframed(data[4:size]))
                    peer.finish()
                    for heard in peer.receive_all()[-1:]:
                        if isinstance(heard, frames.Goodbye):
                            check_goodbye(heard)


@pytest.mark.parametrize("attempts", [300, pytest.param(2_000, marks=pytest.mark.long)])
def test_valid_frames_with_spoiled_bytes(arena: Arena, attempts: int) -> None:
    sent_away = 0
    for attempt in range(attempts):
        with arena.connect() as peer:
            session = peer.greet().open_session()
            destination = peer.open_destination(arena.chance.choice([MALLORY, "topic:mallory"]))
            original = frames.encode_frame(
                arena.chance.choice(valid_frames(arena.chance, session, destination))
            )
            whole = spoiled(arena.chance, original)
            data = whole if attempt % 3 == 0 else reframed(spoiled(arena.chance, original[4:]))
            peer.send(data, frames.Ping(nonce=attempt))
            peer.finish()
            for frame in peer.receive_all()[-1:]:
                if isinstance(frame, frames.Goodbye):
                    check_goodbye(frame)
                    sent_away += 1
    assert sent_away > attempts // 7, f"seed {SEED}: hardly anything was spoiled, the test shows nothing"


def test_a_spoiled_greeting(arena: Arena) -> None:
    hello = frames.encode_frame(HELLO)
    for _ in range(300):
        with arena.connect() as peer:
            peer.send(spoiled(arena.chance, hello))
            peer.finish()
            for frame in peer.receive_all():
                assert isinstance(frame, frames.Goodbye | frames.Welcome), frame
                if isinstance(frame, frames.Goodbye):
                    check_goodbye(frame)


def test_other_versions(arena: Arena) -> None:
    for version in (0, frames.PROTOCOL_VERSION - 1, frames.PROTOCOL_VERSION + 1, 255, 65_535):
        with arena.connect() as peer:
            hello = bytearray(frames.encode_frame(HELLO))
            struct.pack_into("<H", hello, 9, version)
            peer.send(bytes(hello) + b"whatever that version may say then")
            assert peer.goodbye().code == VersionMismatch.code


def test_words_out_of_turn(arena: Arena) -> None:
    for said in ([frames.Ping(nonce=1)], [frames.Goodbye(code="", text="")], [HELLO, HELLO]):
        with arena.connect() as peer:
            peer.send(*said)
            assert peer.goodbye().code == ProtocolError.code
    with arena.connect() as peer:
        peer.greet().send(frames.encode_frame(frames.Done(request=1)))
        assert peer.goodbye().text == "Done is not for a client to say"
    with arena.connect() as peer:
        peer.send(frames.Hello(user="u" * 60_000, password="", client_id=""))
        assert "at most 255" in peer.goodbye().text


Wrong = Callable[[int, int], frames.Command]
ACK = Acknowledge(destination=1, subscription=0, ranges=Ranges([(1, 2)]))
WRONG_COMMANDS: dict[str, Wrong] = {
    "is not open on this connection": lambda s, d: publish(s + 1, d),
    "generation 2 of session": lambda s, d: publish(s, d, generation=2),
    "with number 2 for channel a where 1 is due": lambda s, d: publish(s, d, number=2),
    "with number 18446744073709551615": lambda s, d: publish(s, d, number=(1 << 64) - 1),
    "there is no channel 'b'": lambda s, d: publish(s, d, channel="b"),
    "there is no channel": lambda s, d: publish(s, d, channel="\n%s\x1b[2J" * 2_000),
    "says that 1 is confirmed": lambda s, d: publish(s, d, confirmed_through=1),
    "takes 3 numbers": lambda s, d: publish(s, d, batch=publish_batch(s, 1, 2), count=3),
    "is not for a client to send": lambda s, d: frames.Command(
        channel="a", command=encode_command(7, s, 1, 1, 0, bytes(8))
    ),
    "ranges of 1 bytes": lambda s, d: frames.Command(
        channel="a", command=encode_command(5, s, 1, 1, 0, bytes(17))
    ),
    "overlap": lambda s, d: frames.Command(
        channel="a", command=encode_command(5, s, 1, 1, 0, bytes(16) + struct.pack("<4Q", 1, 3, 2, 4))
    ),
    "more than 16384 ranges": lambda s, d: frames.Command(
        channel="a", command=encode_command(5, s, 1, 1, 0, bytes(16 * 20_000))
    ),
    "more than one command": lambda s, d: frames.Command(
        channel="a", command=bytes(command(s, 1, ACK).command) * 2
    ),
    "no command where one belongs": lambda s, d: frames.Command(channel="a", command=b""),
    "inside its header": lambda s, d: frames.Command(channel="a", command=b"\4" * 40),
    "a command of 2100000 bytes": lambda s, d: frames.Command(channel="a", command=bytes(2_100_000)),
}


def publish_batch(session: int, number: int, count: int) -> bytes:
    return Batch.of_bodies([b"body"] * count, session, number, timestamp_ms=1).encode()


def test_commands_that_are_wrong(arena: Arena) -> None:
    for complaint, wrong in WRONG_COMMANDS.items():
        with arena.connect() as peer:
            session = peer.greet().open_session()
            peer.send(wrong(session, peer.open_destination(MALLORY)))
            goodbye = peer.goodbye()
            assert goodbye.code == ProtocolError.code
            assert complaint in goodbye.text, (complaint, goodbye.text)


def tiny_values(session: int) -> bytes:
    """A batch of one row: a list of a million nulls, each to be looked at."""
    body = struct.pack("<I", 1_000_000) + bytes(1_000_000)
    batch = bytearray(Batch.of_bodies([body], session, 1, timestamp_ms=1).encode())
    batch[3] = 3
    return bytes(batch)


def test_batches_that_lie(arena: Arena) -> None:
    lies: list[tuple[str, int, str, int]] = [
        ("version", 0, "B", VERSION + 1),
        ("codec 1", 2, "B", 1),
        ("kind of bodies is given twice", 3, "B", 9),
        ("65537 rows", 4, "I", 65_537),
        ("a block that ends at", 4, "I", 60_000),
        ("says it has", 8, "I", 79),
        ("", 12, "B", 255),
        ("", 14, "H", 60_000),
        ("do not fit 64 bits", 32, "Q", (1 << 64) - 1),
        ("offsets of a column do not divide", 48 + 4, "I", (1 << 32) - 1),
        ("column BODY_KIND of a batch is out of order", 72, "B", 1),
    ]
    for complaint, at, code, value in lies:
        with arena.connect() as peer:
            session = peer.greet().open_session()
            destination = peer.open_destination(MALLORY)
            batch = bytearray(rich_batch(session, 1))
            struct.pack_into(f"<{code}", batch, at, value)
            peer.send(publish(session, destination, batch=bytes(batch), count=5))
            goodbye = peer.goodbye()
            assert goodbye.code == ProtocolError.code
            assert complaint in goodbye.text, (complaint, goodbye.text)
    honest = "größe".encode()
    for lie in (b"gr\xff\xffsse"[:7], b"gr\xc3\xc3\xb6se"[:7]):
        with arena.connect() as peer:
            session = peer.greet().open_session()
            destination = peer.open_destination(MALLORY)
            batch_bytes = rich_batch(session, 1).replace(honest, lie)
            peer.send(publish(session, destination, batch=batch_bytes, count=5))
            assert "UTF-8" in peer.goodbye().text
    with arena.connect() as peer:
        session = peer.greet().open_session()
        peer.send(publish(session, peer.open_destination(MALLORY), batch=tiny_values(session)))
        assert "more than 65536 values" in peer.goodbye().text


def test_more_than_the_window(arena: Arena) -> None:
    """Whoever does not wait for confirmations is either fast enough for nobody to mind, or sent away."""
    with arena.connect() as peer:
        session = peer.greet().open_session()
        destination = peer.open_destination(MALLORY)
        for number in range(1, 40):
            batch = Batch.of_bodies([bytes(1_000_000)], session, number, timestamp_ms=1).encode()
            peer.send(publish(session, destination, number, batch))
        peer.finish()
        heard = peer.receive_all()
    if isinstance(heard[-1], frames.Goodbye):
        assert "more than the window of 4194304 bytes is unconfirmed" in heard[-1].text
    else:
        assert isinstance(heard[-1], frames.Confirm)


def test_many_that_say_nothing(arena: Arena) -> None:
    count = descriptors_for(1_500)
    silent = [arena.connect() for _ in range(count)]
    try:
        arena.polite.go_on()
        with arena.connect() as newcomer:
            newcomer.greet().await_pong(1)
        # There is room for a thousand; for each one more, the oldest goes.
        for peer in silent[: count - 1_000]:
            assert peer.goodbye().code == "connection.handshake"
        with arena.connect() as newcomer:
            newcomer.greet().await_pong(2)
    finally:
        for peer in silent:
            peer.close()


def test_many_that_begin_a_large_frame_and_do_not_end_it(arena: Arena) -> None:
    peers = [arena.connect().greet() for _ in range(40)]
    try:
        for peer in peers:
            peer.send(struct.pack("<IB", 2_000_000, 48) + bytes(500_000))
        arena.polite.go_on()
    finally:
        for peer in peers:
            peer.close()


def test_peers_that_never_read(arena: Arena) -> None:
    """They ask for everything and take nothing; what is kept for them is bounded, and they are not heard."""
    pings = b"".join(frames.encode_frame(frames.Ping(nonce=nonce)) for nonce in range(10_000))
    peers = [arena.connect(receive_buffer=4096).greet() for _ in range(4)]
    try:
        for peer in peers:
            session = peer.open_session()
            destination = peer.open_destination(MALLORY)
            wish = frames.ConsumerOpen(
                request=peer.request(),
                session=session,
                consumer=1,
                channel="a",
                destination=destination,
                credit_messages=(1 << 64) - 1,
                credit_bytes=(1 << 64) - 1,
            )
            peer.send(wish)
            peer.socket.setblocking(False)
            try:
                # Far more than the two kernels hold: the server has stopped listening by then.
                for _ in range(200):
                    peer.socket.sendall(pings)
            except BlockingIOError:
                pass
            else:
                raise AssertionError("the server listens to somebody who does not")
        arena.polite.go_on()
        grown = arena.memory_kib() - arena.warm_kib
        assert grown < 2 * GROWTH_KIB_MAX, f"{grown} KiB for peers that do not read"
    finally:
        for peer in peers:
            peer.reset()


def test_thousands_that_come_and_go(arena: Arena) -> None:
    hello = frames.encode_frame(HELLO)
    leave: list[Callable[[Peer], None]] = [Peer.close, Peer.reset]
    words = [b"", hello[:7], hello, hello + b"\xff" * 9, b"\xff" * 9, hello + hello]
    for number in range(3_000):
        peer = arena.connect()
        peer.send(words[number % len(words)])
        leave[number // len(words) % 2](peer)


def _range_questions() -> list[str]:
    """Questions about ranges that are as much work as a question can be."""
    ids = list(range(1, 60_000))
    limits = {"start": 1, "stop": 1 << 62, "rows": 1, "bytes": 1}
    asked: list[dict[str, Any]] = [
        {"question": "heads", "destinations": ids},
        {"question": "heads", "destinations": [], "above": (1 << 63) - 1},
        {"question": "bound", "destinations": ids, **limits},
        {"question": "bound", "destinations": [], **limits},
        {"question": "list", "after": 0},
        {"question": "time", "log_time_ms": 0},
        {"question": "holds"},
    ]
    return [json.dumps(question) for question in asked] * 10


def test_floods_of_requests(arena: Arena) -> None:
    deep = '{"question":' + "[" * 60_000
    with arena.connect() as peer:
        session = peer.greet().open_session()
        floods: list[list[frames.ClientFrame]] = [
            [frames.Ping(nonce=nonce) for nonce in range(20_000)],
            [frames.Ask(request=request, question=deep) for request in range(100, 120)],
            [frames.Ask(request=request, question="{}") for request in range(1_000, 3_000)],
            [
                frames.Ask(request=request, question='{"question": "destinations"}')
                for request in range(3_000, 3_500)
            ],
            [
                frames.DestinationOpen(request=request, name="\n" * 9, create=True)
                for request in range(4_000, 6_000)
            ],
            [
                frames.SessionOpen(request=request, session=0, generation=0, ack_mode=frames.AckMode.AUTO)
                for request in range(6_000, 8_000)
            ],
            [
                frames.Credit(session=session, consumer=nonce, messages=1 << 63, bytes=1 << 63)
                for nonce in range(5_000)
            ],
            [
                frames.ConsumerClose(request=request, session=session, consumer=1, seen_through=1 << 63)
                for request in range(8_000, 10_000)
            ],
            [
                frames.RangeAsk(request=request, channel="a", wait_ms=1 << 31, floor=floor, question=question)
                for request, (floor, question) in enumerate(
                    product((0, 1 << 63), (deep, "{}", '{"question": []}', *_range_questions())), 10_000
                )
            ],
            [
                frames.RangeRead(
                    request=request,
                    channel="a",
                    start=1,
                    stop=stop,
                    goal=1 << 63,
                    page_bytes=1 << 31,
                    ahead=65_535,
                    destinations=(RangeWanted(1),) * 1_000,
                )
                for request, stop in enumerate([2, 1 << 62] * 100, 11_000)
            ],
        ]
        for nonce, flood in enumerate(floods):
            peer.send(*flood)
            peer.await_pong((1 << 40) + nonce)
        peer.send(*(frames.SessionClose(request=9, session=session) for _ in range(3)))
    with arena.connect() as peer:
        session = peer.greet().open_session()
        destination = peer.open_destination(MALLORY)
        wishes = [
            frames.ConsumerOpen(
                request=100 + number,
                session=session,
                consumer=number,
                channel="a",
                destination=destination,
                credit_messages=0,
                credit_bytes=0,
            )
            for number in range(1_100)
        ]
        peer.send(*wishes)
        peer.await_pong(1)


def test_requests_whose_numbers_are_used_twice(arena: Arena) -> None:
    with arena.connect() as peer:
        peer.greet()
        session = peer.open_session()
        destination = peer.open_destination(MALLORY)
        wish = frames.ConsumerOpen(
            request=77,
            session=session,
            consumer=1,
            channel="a",
            destination=destination,
            credit_messages=0,
            credit_bytes=0,
        )
        peer.send(wish, wish)
        assert "request 77 a second time" in peer.goodbye().text


def test_the_log_tells_who_was_sent_away_in_lines_that_are_lines(arena: Arena) -> None:
    deadline = time.monotonic() + 60
    while True:
        words = arena.server.errors.read_text()
        told = re.findall(r"connection of 127\.0\.0\.1:\d+ closed: [a-z._]+: .+", words)
        # The others are counted when their window of time is over.
        if told and re.search(r"events of client\.refused that were left out within 10 s: [\d,]+", words):
            break
        assert time.monotonic() < deadline, words
        with arena.connect() as peer:
            peer.send(b"\xff" * 9)
            peer.receive_all()
    assert "\x1b" not in words
