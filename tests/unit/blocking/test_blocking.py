"""The same words without `await`: what is particular about them."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

import pytest

import antiphon
from antiphon import blocking
from antiphon.batch import Batch
from antiphon.blocking.loop import LoopThread
from antiphon.ranges import Ranges
from antiphon.wire import frames
from tests.unit.client.aio.test_transactions import stored
from tests.unit.client.fake_server import FakeServer, serving

QUEUE = "queue:a"
T = TypeVar("T")


class ServerThread:
    """The fake server in a loop of its own: what a test does with it is done there."""

    def __init__(self) -> None:
        self._loop = LoopThread()
        self._serving = serving()
        self._server = self._loop.run(self._serving.__aenter__())
        self.url = self._server.url

    def do(self, action: Callable[[FakeServer], T]) -> T:
        async def act() -> T:
            return action(self._server)

        return self._loop.run(act())

    def until(self, condition: Callable[[FakeServer], bool]) -> None:
        self._loop.run(self._server.until(lambda: condition(self._server)))

    def close(self) -> None:
        self._loop.run(self._serving.__aexit__(None, None, None))
        self._loop.end()


@pytest.fixture
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    yield server
    server.close()


@pytest.fixture
def session(server: ServerThread) -> Iterator[blocking.Session]:
    with blocking.connect(server.url) as connection, connection.session() as session:
        yield session


# -- the same words -----------------------------------------------------------------------


PAIRS = [
    (antiphon.Connection, blocking.Connection),
    (antiphon.Session, blocking.Session),
    (antiphon.Producer, blocking.Producer),
    (antiphon.Consumer, blocking.Consumer),
    (antiphon.Staging, blocking.Staging),
    (antiphon.Admin, blocking.Admin),
    (antiphon.Ranges, blocking.Ranges),
    (antiphon.Message, blocking.Message),
]


def words(cls: type[Any]) -> dict[str, list[tuple[Any, ...]]]:
    """The public methods and properties of a class, with their parameters."""
    return {
        name: [(p.name, p.kind, p.default) for p in inspect.signature(member).parameters.values()]
        if inspect.isfunction(member)
        else []
        for name, member in inspect.getmembers(cls)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(("awaited", "waiting"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_word_of_the_asyncio_face_is_there_with_the_same_parameters(
    awaited: type[Any], waiting: type[Any]
) -> None:
    expected, found = words(awaited), words(waiting)
    different = {name for name in expected if found.get(name) != expected[name]}
    assert different == set()


def test_connecting_takes_the_same_parameters() -> None:
    awaited, waiting = (inspect.signature(face.connect).parameters for face in (antiphon, blocking))
    assert [(p.name, p.default) for p in awaited.values()] == [(p.name, p.default) for p in waiting.values()]


def test_everything_is_registered_when_the_call_returns(server: ServerThread) -> None:
    with blocking.connect(server.url) as connection:
        session = connection.session(ack="individual")
        assert server.do(lambda s: len(s.heard_of(frames.SessionOpen))) == 1
        session.producer(QUEUE)
        assert server.do(lambda s: len(s.heard_of(frames.DestinationOpen))) == 1
        session.consumer(QUEUE, prefetch=7)
        (opened,) = server.do(lambda s: s.heard_of(frames.ConsumerOpen))
        assert opened.credit_messages == 7
    assert session.closed and connection.closed
    assert "closed" in repr(connection)


def test_errors_are_raised_at_once(session: blocking.Session) -> None:
    with pytest.raises(antiphon.InvalidName):
        session.producer("no such kind")
    with pytest.raises(antiphon.LocalError, match="prefetch"):
        session.consumer(QUEUE, prefetch=-1)
    with pytest.raises(antiphon.ConnectionFailed):
        blocking.connect("antiphon://127.0.0.1:1", timeout=1)


# -- sending ------------------------------------------------------------------------------


def test_a_send_returns_its_receipt(session: blocking.Session) -> None:
    with session.producer(QUEUE) as producer:
        assert producer.send(b"a", properties={"n": 1}).sequence == 1
        assert not producer.is_blocked
        receipt = producer.try_send("b")
        assert receipt is not None and receipt.sequence == 2
        producer.unblocked(timeout=1)
    with pytest.raises(antiphon.LocalError, match="closed"):
        producer.send(b"c")


def test_many_are_taken_from_any_iterable_in_the_thread_of_the_caller(
    server: ServerThread, session: blocking.Session
) -> None:
    producer = session.producer(QUEUE)
    threads: set[threading.Thread] = set()

    def bodies() -> Iterator[bytes]:
        for number in range(2_500):
            threads.add(threading.current_thread())
            yield b"%d" % number

    receipts = producer.send_many(bodies())
    assert [receipt.sequence for receipt in receipts] == list(range(1, 2_501))
    assert threads == {threading.current_thread()}
    assert len(producer.send_many([b"x", b"y"])) == 2
    assert len(producer.send_many({"a": b"x"}.values())) == 1
    with pytest.raises(antiphon.InvalidMessage, match="one message is sent with send"):
        producer.send_many(b"one")  # type: ignore[arg-type]


def test_an_iterable_that_fails_sends_nothing_after_that(
    server: ServerThread, session: blocking.Session
) -> None:
    def bodies() -> Iterator[bytes]:
        yield from [b"x"] * 1_000
        raise RuntimeError("no more")

    with pytest.raises(antiphon.PublishRefused, match="no more") as refused:
        session.producer(QUEUE).send_many(bodies())
    assert refused.value.confirmed == 1_000
    assert isinstance(refused.value.__cause__, RuntimeError)
    assert session.producer(QUEUE).send(b"y").sequence >= 1


def test_many_that_are_refused_stop_the_iterable(server: ServerThread, session: blocking.Session) -> None:
    taken = 0

    def bodies() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" if taken < 1_500 else bytes(2 << 20)

    with pytest.raises(antiphon.PublishRefused) as refused:
        session.producer(QUEUE).send_many(bodies())
    assert refused.value.confirmed > 0
    assert taken < 10_000


def test_an_uncertain_message_is_sent_again_without_await(
    server: ServerThread, session: blocking.Session
) -> None:
    producer = session.producer(QUEUE)
    server.do(FakeServer.hold)
    with pytest.raises(antiphon.PublishUncertain) as uncertain:
        producer.send(b"x", timeout=0.05)
    assert isinstance(uncertain.value, blocking.PublishUncertain)
    server.do(FakeServer.release)
    assert uncertain.value.resend(timeout=60).sequence == 1


def test_an_uncertain_message_is_sent_again_after_the_connection_was_closed(server: ServerThread) -> None:
    threads = set(threading.enumerate())
    with blocking.connect(server.url, reconnect=0) as connection:
        producer = connection.session().producer(QUEUE)
        server.do(FakeServer.hold)
        with pytest.raises(blocking.PublishUncertain) as uncertain:
            producer.send(b"x", timeout=0.05)
        server.do(FakeServer.drop)
        server.until(lambda s: s.peers[0].is_gone)
    server.do(FakeServer.release)
    server.do(lambda s: s.answers.update(session='{"generation": 1}'))
    assert uncertain.value.resend(timeout=60).sequence == 1
    assert set(threading.enumerate()) <= threads, "none of its own is left"


# -- receiving ----------------------------------------------------------------------------


def fill(server: ServerThread, *bodies: bytes) -> None:
    server.do(lambda s: s.fill(QUEUE, list(bodies)))


def acknowledged(server: ServerThread, *pairs: tuple[int, int]) -> None:
    server.until(lambda s: s.acknowledged == Ranges(pairs))


def test_messages_are_acknowledged_when_they_are_returned(
    server: ServerThread, session: blocking.Session
) -> None:
    fill(server, b"a", b"b", b"c")
    consumer = session.consumer(QUEUE)
    message = consumer.receive(timeout=60)
    assert message is not None and message.body == b"a"
    assert [message.body for message in consumer.receive_many(2, timeout=60)] == [b"b", b"c"]
    assert consumer.receive(timeout=0) is None
    acknowledged(server, (1, 4))


def test_a_message_is_acknowledged_by_its_own_word(server: ServerThread) -> None:
    fill(server, b"a", b"b")
    with blocking.connect(server.url) as connection, connection.session(ack="individual") as session:
        first, second = session.consumer(QUEUE).receive_many(2, timeout=60)
        second.ack()
        acknowledged(server, (2, 3))
        first.ack()
        acknowledged(server, (1, 3))


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("leave", ["break", "raise", "ack", "receive"])
def test_the_message_at_which_a_loop_was_left_comes_again_unless_it_is_acknowledged(
    server: ServerThread, session: blocking.Session, leave: str, count: int
) -> None:
    fill(server, *numbered(count))
    consumer = session.consumer(QUEUE)
    server.until(lambda s: len(next(iter(s.consumers.values())).holds) == count)

    def loop() -> None:
        for message in consumer:
            if message.sequence == 2:
                if leave == "raise":
                    raise ZeroDivisionError
                if leave == "ack":
                    message.ack()
                elif leave == "receive":
                    assert consumer.receive(timeout=5) is not None
                break

    with suppress(ZeroDivisionError):
        loop()
    consumer.close()
    done = {"break": 1, "raise": 1, "ack": 2, "receive": 3}[leave]
    assert server.do(lambda s: s.acknowledged) == Ranges([(1, done + 1)])
    again = session.consumer(QUEUE).receive_many(count - done, timeout=5)
    assert [(message.sequence, message.redelivered) for message in again[:1]] == (
        [(done + 1, done == 1)] if done < count else []
    )


def test_a_loop_ends_when_another_thread_closes_the_consumer(session: blocking.Session) -> None:
    consumer = session.consumer(QUEUE)
    closing = threading.Timer(0.01, consumer.close)
    closing.start()
    assert list(consumer) == []
    closing.join()


def test_browsing_gives_messages_that_cannot_be_acknowledged(
    server: ServerThread, session: blocking.Session
) -> None:
    fill(server, b"a", b"b")
    messages = list(session.browse(QUEUE))
    assert [message.body for message in messages] == [b"a", b"b"]
    with pytest.raises(antiphon.LocalError, match="nothing to acknowledge"):
        messages[0].ack()


# -- the thread ---------------------------------------------------------------------------


def test_closing_ends_the_thread_and_everything_after_it_is_refused(server: ServerThread) -> None:
    before = threading.active_count()
    connection = blocking.connect(server.url)
    session = connection.session()
    producer, consumer = session.producer(QUEUE), session.consumer(QUEUE)
    assert threading.active_count() == before + 1
    connection.close()
    assert threading.active_count() == before
    for refused in (
        lambda: producer.send(b"x"),
        lambda: consumer.receive(),
        lambda: connection.admin().status(),
        lambda: connection.session(),
    ):
        with pytest.raises(antiphon.NotConnected):
            refused()
    session.close()
    consumer.close()
    producer.close()
    connection.close()


def test_a_failed_connection_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(antiphon.ConnectionFailed):
        blocking.connect("antiphon://127.0.0.1:1", timeout=1)
    assert threading.active_count() == before


def test_an_exception_is_told_instead_of_what_goes_wrong_at_the_end(server: ServerThread) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        blocking.connect(server.url, reconnect=0) as connection,
        connection.session() as session,
        session.consumer(QUEUE),
    ):
        server.do(FakeServer.drop)
        raise ZeroDivisionError


def test_a_block_is_committed_at_its_end_or_rolled_back_by_an_exception(server: ServerThread) -> None:
    with blocking.connect(server.url) as connection, connection.session(transacted=True) as session:
        producer = session.producer(QUEUE)
        with pytest.raises(ZeroDivisionError), session.transaction():
            producer.send(b"never")
            raise ZeroDivisionError
        with session.transaction():
            producer.send(b"once")
    assert server.do(stored) == [b"once"]


def test_an_exception_is_told_instead_of_what_goes_wrong_with_its_rollback(server: ServerThread) -> None:
    connection = blocking.connect(server.url)
    with pytest.raises(ZeroDivisionError), connection.session(transacted=True).transaction():
        connection.close()
        raise ZeroDivisionError


def test_several_threads_may_use_one_session(server: ServerThread, session: blocking.Session) -> None:
    producer = session.producer(QUEUE)
    threads = [threading.Thread(target=lambda: [producer.send(b"x") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.do(lambda s: s.sequence) == 200


def interrupt_inside() -> None:
    """Ctrl-C, once the main thread is inside a call of the library."""
    main = threading.main_thread().ident
    assert main is not None

    def strike() -> None:
        pause = threading.Event()
        while not is_inside(sys._current_frames()[main]):
            pause.wait(0.001)
        # By now it waits, most of the time.
        pause.wait(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=strike).start()


def is_inside(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals["__name__"].startswith("antiphon.blocking"):
            return True
        frame = frame.f_back
    return False


def test_whoever_is_interrupted_while_waiting_for_a_message_has_taken_none(
    server: ServerThread, session: blocking.Session
) -> None:
    consumer = session.consumer(QUEUE)
    interrupt_inside()
    with pytest.raises(KeyboardInterrupt):
        consumer.receive()
    fill(server, b"a")
    message = consumer.receive(timeout=60)
    assert message is not None and message.body == b"a"


def test_many_that_were_taken_before_an_interruption_are_still_there(
    server: ServerThread, session: blocking.Session
) -> None:
    fill(server, b"a", b"b")
    consumer = session.consumer(QUEUE)
    interrupt_inside()
    with pytest.raises(KeyboardInterrupt):
        consumer.receive_many(5)
    assert [message.body for message in consumer.receive_many(2, timeout=60)] == [b"a", b"b"]


def test_a_result_that_nobody_waits_for_any_more_is_undone() -> None:
    loop = LoopThread()
    undone: list[int] = []
    finished = threading.Event()

    def undo(result: int) -> None:
        undone.append(result)
        finished.set()

    async def result() -> int:
        return 7

    call = loop.begin(result(), undo)
    assert call.wait() == 7
    call.abandon()
    assert finished.wait(5)
    assert undone == [7]
    loop.end()


def test_what_an_interruption_left_behind_ends_with_the_loop() -> None:
    loop = LoopThread()
    ended = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop.begin(forever())
    loop.end()
    loop.end()
    assert ended.is_set()


def test_a_callback_that_uses_the_connection_is_refused(server: ServerThread) -> None:
    told: list[object] = []
    ended = threading.Event()
    with blocking.connect(server.url) as connection:

        def lost() -> None:
            try:
                connection.session()
            except antiphon.LocalError as error:
                told.append(str(error))
            told.append(connection.state)
            ended.set()

        connection.on_lost = lost
        server.do(FakeServer.drop)
        assert ended.wait(5)
    assert told == ["a callback may not use the connection: have another thread do that", "lost"]


# -- what the application's thread does by itself -------------------------------------------


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, count + 1)]


def open_lot(consumer: blocking.Consumer, taken: int) -> list[Any]:
    """Receive some of what is there; the next ones lie ready in the thread."""
    messages = [consumer.receive(timeout=5) for _ in range(taken)]
    assert consumer._lot is not None
    return messages


@pytest.fixture
def consumer(server: ServerThread, session: blocking.Session) -> blocking.Consumer:
    """A consumer to which ten messages were sent ahead."""
    consumer = session.consumer(QUEUE)
    fill(server, *numbered(10))
    server.until(lambda s: len(next(iter(s.consumers.values())).holds) == 10)
    return consumer


def test_a_loop_asks_the_other_thread_for_few_of_its_messages(
    server: ServerThread, session: blocking.Session
) -> None:
    fill(server, *numbered(1_000))
    consumer = session.consumer(QUEUE, prefetch=1_000)
    server.until(lambda s: len(next(iter(s.consumers.values())).holds) == 1_000)
    calls = 0
    begin = LoopThread.begin

    def counting(loop: LoopThread, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return begin(loop, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopThread, "begin", counting)
        received = [consumer.receive(timeout=5) for _ in range(500)]
        for message in consumer:
            received.append(message)
            if len(received) == 1_000:
                message.ack()
                break
    assert [message.body for message in received if message] == numbered(1_000)
    assert calls < 100
    acknowledged(server, (1, 1_001))


def test_what_was_handed_out_is_acknowledged_though_nothing_more_is_asked_for(
    server: ServerThread, consumer: blocking.Consumer
) -> None:
    open_lot(consumer, 3)
    acknowledged(server, (1, 4))
    assert [message.body for message in consumer.receive_many(7)] == numbered(10)[3:]


def test_what_was_not_handed_out_is_given_back(server: ServerThread, consumer: blocking.Consumer) -> None:
    open_lot(consumer, 3)
    consumer.close()
    acknowledged(server, (1, 4))
    assert server.do(lambda s: [row.sequence for row in s.ready[1]]) == list(range(4, 11))
    with pytest.raises(antiphon.ConsumerClosed):
        consumer.receive(timeout=0)


def test_a_message_is_acknowledged_in_a_loop_when_the_next_one_is_asked_for(
    server: ServerThread, consumer: blocking.Consumer
) -> None:
    iteration = iter(consumer)
    for number in range(1, 6):
        assert next(iteration).sequence == number
    acknowledged(server, (1, 5))
    assert next(iteration).sequence == 6
    acknowledged(server, (1, 6))


def test_a_message_of_many_is_acknowledged_by_its_own_word(server: ServerThread) -> None:
    with blocking.connect(server.url) as connection, connection.session(ack="individual") as session:
        consumer = session.consumer(QUEUE)
        fill(server, *numbered(10))
        server.until(lambda s: len(next(iter(s.consumers.values())).holds) == 10)
        messages = open_lot(consumer, 4)
        messages[2].ack()
        assert server.do(lambda s: s.acknowledged) == Ranges([(3, 4)])
        session.recover()
        assert [message.sequence for message in consumer.receive_many(9, timeout=5)] == [1, 2, *range(4, 11)]


def test_a_commit_covers_what_was_just_handed_out(server: ServerThread) -> None:
    with blocking.connect(server.url) as connection, connection.session(transacted=True) as session:
        consumer = session.consumer(QUEUE)
        fill(server, *numbered(10))
        server.until(lambda s: len(next(iter(s.consumers.values())).holds) == 10)
        open_lot(consumer, 4)
        session.commit()
        assert server.do(lambda s: s.acknowledged) == Ranges([(1, 5)])
        open_lot(consumer, 2)
        session.rollback()
        message = consumer.receive(timeout=5)
        assert message is not None and (message.sequence, message.delivery_count) == (5, 2)
        session.rollback()


def test_what_others_got_while_there_was_no_connection_is_not_handed_out(server: ServerThread) -> None:
    server.do(lambda s: setattr(s, "sure_ms", 60_000))
    with blocking.connect(server.url) as connection, connection.session() as session:
        consumer = session.consumer(QUEUE)
        fill(server, *numbered(10))
        server.until(lambda s: len(next(iter(s.consumers.values())).holds) == 10)
        open_lot(consumer, 3)

        def give_to_others(fake: FakeServer) -> None:
            (known,) = fake.consumers.values()
            known.holds = {number: row for number, row in known.holds.items() if number not in range(5, 9)}
            fake.drop()

        server.do(give_to_others)
        server.until(lambda s: bool(s.heard_of(frames.ConsumerResume)))
        rest = [consumer.receive(timeout=5) for _ in range(3)]
        assert [message.sequence for message in rest if message] == [4, 9, 10]


def test_threads_that_share_a_consumer_get_each_message_once(
    server: ServerThread, session: blocking.Session
) -> None:
    fill(server, *numbered(2_000))
    consumer = session.consumer(QUEUE)
    received: list[int] = []

    def receive() -> None:
        while (message := consumer.receive(timeout=0.2)) is not None:
            received.append(message.sequence)

    def iterate() -> None:
        for message in consumer:
            received.append(message.sequence)

    threads = [threading.Thread(target=target) for target in (receive, receive, iterate)]
    for thread in threads:
        thread.start()
    for thread in threads[:2]:
        thread.join()
    # All but what the loop works on.
    server.until(lambda s: sum(stop - start for start, stop in s.acknowledged) >= 1_999)
    consumer.close()
    threads[2].join()
    assert sorted(received) == list(range(1, 2_001))


def test_sends_of_a_transaction_keep_their_order_however_they_are_sent(server: ServerThread) -> None:
    bodies = numbered(1_000)
    with blocking.connect(server.url) as connection, connection.session(transacted=True) as session:
        producer, other = session.producer(QUEUE), session.producer(QUEUE)
        receipts = [producer.send(body) for body in bodies[:300]]
        assert producer._pack is not None
        receipts += [other.send(body) for body in bodies[300:600]]
        receipts.append(producer.send(bodies[600], properties={"n": 1}))
        receipts += producer.send_many(bodies[601:700])
        receipts += [producer.send(body) for body in bodies[700:]]
        session.commit()
        assert len({receipt.message_id for receipt in receipts}) == 1_000
        assert len(server.do(lambda s: s.commands)) < 100
        producer.send(b"never")
        producer.send(b"never either")
        session.rollback()
        assert server.do(stored) == bodies
        producer.send(b"too late", timeout=1)
        producer.close()
        with pytest.raises(antiphon.LocalError, match="closed"):
            producer.send(b"never")


def uncommitted(server: FakeServer) -> list[list[bytes]]:
    """The bodies of each batch that waits for a commit."""
    return [list(Batch.decode(one.batch).bodies()) for parts in server.uncommitted.values() for one in parts]


def test_what_is_sent_in_a_transaction_leaves_though_nothing_more_is_asked_for(server: ServerThread) -> None:
    with blocking.connect(server.url) as connection, connection.session(transacted=True) as session:
        producer = session.producer(QUEUE)
        for body in numbered(10):
            producer.send(body)
        server.until(lambda s: [body for one in uncommitted(s) for body in one] == numbered(10))
        with pytest.raises(antiphon.MessageTooLarge):
            producer.send(bytes(2 << 20))
        session.commit()
    assert server.do(stored) == numbered(10)
