"""Transactions with real servers: all or nothing, in one channel and in two, and what is staged."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import antiphon
import antiphon.blocking
from antiphon.wire.transactions import TRANSACTION_MESSAGES_MAX
from tests.client_scenes import numbered, run
from tests.cluster_processes import ClusterProcess
from tests.processes import Server

WAIT_S = 20.0
SOON_S = 0.2
"""How long nothing must come to be taken for nothing."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("transactions") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    folder = tmp_path_factory.mktemp("transactions")
    with ClusterProcess(
        folder, client_managers=2, message_managers=1, options=["--channels", "2"], has_faults=False
    ) as running:
        yield running


@asynccontextmanager
async def both(
    url: str, client_id: str | None = None
) -> AsyncIterator[tuple[antiphon.Session, antiphon.Session]]:
    """A transacted session, and another one that looks on."""
    async with (
        antiphon.connect(url, client_id=client_id) as connection,
        connection.session(transacted=True) as session,
        connection.session() as other,
    ):
        yield session, other


async def bodies(consumer: antiphon.Consumer, count: int) -> list[Any]:
    return [message.body for message in await consumer.receive_many(count, timeout=WAIT_S)]


async def nothing(consumer: antiphon.Consumer) -> None:
    message = await consumer.receive(timeout=SOON_S)
    assert message is None, f"{message} came"


async def made(connection: antiphon.Connection, name: str, channel: str) -> str:
    """A destination in a channel of one's choice."""
    await connection.admin().create(name, channel=channel)
    return name


async def count_of(connection: antiphon.Connection, name: str) -> int:
    return next(
        (row["messages"] for row in await connection.admin().destinations() if row["name"] == name), 0
    )


# -- in one channel --------------------------------------------------------------------------------


def test_what_is_sent_becomes_visible_all_at_once_and_in_its_order(server: Server) -> None:
    async def test() -> None:
        async with both(server.url) as (session, other):
            consumer = await other.consumer("queue:visible")
            producer = session.producer("queue:visible")
            first = await producer.send(numbered(1)[0])
            assert (first.sequence, first.channel) == (None, "a")
            await asyncio.gather(*(producer.send(body) for body in numbered(99, 1)))
            many = await producer.send_many(numbered(900, 100))
            assert len(many) == 900 and many[-1].sequence is None
            assert len({first.message_id, *(receipt.message_id for receipt in many)}) == 901
            await nothing(consumer)
            await session.commit()
            messages = await consumer.receive_many(1000, timeout=WAIT_S)
            assert [message.body for message in messages] == numbered(1000)
            assert (messages[0].message_id, messages[-1].message_id) == (
                first.message_id,
                many[-1].message_id,
            )
            sequences = [message.sequence for message in messages]
            assert sequences == list(range(sequences[0], sequences[0] + 1000)), "numbers come with the commit"
            await session.commit()  # of nothing

    run(test())


def test_what_was_rolled_back_was_never_there_and_what_was_received_comes_again(server: Server) -> None:
    async def test() -> None:
        async with both(server.url) as (session, other):
            await other.producer("queue:in").send_many(numbered(100))
            seen = await other.consumer("queue:out")
            consumer, producer = await session.consumer("queue:in"), session.producer("queue:out")
            for body in await bodies(consumer, 30):
                await producer.send(body)
            await session.rollback()
            await nothing(seen)
            again = await consumer.receive_many(100, timeout=WAIT_S)
            assert [message.body for message in again] == numbered(100), "in its order"
            assert [message.delivery_count for message in again] == [2] * 30 + [1] * 70
            await producer.send_many([message.body for message in again])
            await session.commit()
            assert await bodies(seen, 100) == numbered(100)
            await nothing(consumer)
        async with both(server.url) as (_, other):
            await nothing(await other.consumer("queue:in"))

    run(test())


def test_closing_a_session_rolls_back_what_is_open(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection, connection.session() as other:
            await other.producer("queue:closing").send_many(numbered(10))
            async with connection.session(transacted=True) as session:
                await bodies(await session.consumer("queue:closing"), 4)
                await session.producer("queue:closing").send(b"never")
            consumer = await other.consumer("queue:closing")
            again = await consumer.receive_many(10, timeout=WAIT_S)
            assert [message.body for message in again] == numbered(10)
            assert [message.delivery_count for message in again][:4] == [2] * 4
            await nothing(consumer)

    run(test())


def test_a_consumer_that_is_closed_inside_a_transaction_keeps_what_it_gave(server: Server) -> None:
    async def test() -> None:
        async with both(server.url) as (session, other):
            await other.producer("queue:inside").send_many(numbered(5))
            async with session.consumer("queue:inside", prefetch=1) as consumer:
                assert await bodies(consumer, 2) == numbered(2)
            rival = await other.consumer("queue:inside")
            # One was sent ahead, and may come to the rival before the others or behind them.
            assert sorted(await bodies(rival, 3)) == numbered(3, 2)
            await nothing(rival)  # two are the transaction's
            await session.commit()
            await nothing(rival)

    run(test())


@pytest.mark.parametrize("durable", [None, "audit"])
def test_a_subscription_is_rolled_back_like_a_queue(server: Server, durable: str | None) -> None:
    async def test() -> None:
        name = f"topic:rolled-{durable}"
        async with both(server.url, client_id=f"rolled-{durable}") as (session, other):
            consumer = await session.consumer(name, durable=durable)
            bystander = await other.consumer(name)
            await other.producer(name).send_many(numbered(20))
            assert await bodies(consumer, 5) == numbered(5)
            await session.rollback()
            again = await consumer.receive_many(20, timeout=WAIT_S)
            assert [message.body for message in again] == numbered(20)
            assert [message.delivery_count for message in again] == [2] * 5 + [1] * 15
            await session.producer(name).send(b"done")
            await session.commit()
            assert await bodies(consumer, 1) == [b"done"]
            assert await bodies(bystander, 21) == [*numbered(20), b"done"]

    run(test())


def test_recover_gives_back_what_was_not_acknowledged(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection, connection.session(ack="client") as session:
            await session.producer("queue:recovered").send_many(numbered(10))
            consumer = await session.consumer("queue:recovered")
            first = await consumer.receive_many(3, timeout=WAIT_S)
            await first[-1].ack()
            await consumer.receive_many(3, timeout=WAIT_S)
            await session.recover()
            again = await consumer.receive_many(7, timeout=WAIT_S)
            assert [message.body for message in again] == numbered(7, 3)
            assert [message.delivery_count for message in again] == [2] * 3 + [1] * 4

    run(test())


def test_a_block_commits_or_rolls_back(server: Server) -> None:
    async def test() -> None:
        async with both(server.url) as (session, other):
            producer, consumer = session.producer("queue:block"), await other.consumer("queue:block")
            async with session.transaction():
                await producer.send(b"kept")
            with pytest.raises(KeyError):
                async with session.transaction():
                    await producer.send(b"dropped")
                    raise KeyError("the application's own")
            assert await bodies(consumer, 1) == [b"kept"]
            await nothing(consumer)

    run(test())


def test_a_transaction_that_a_failure_rolled_back_is_repeated(tmp_path: Path) -> None:
    """The server dies in the middle of one. The application need not know."""

    async def test() -> None:
        first = Server(tmp_path / "data").wait_ready()
        port = first.url.rpartition(":")[2]
        second: Server | None = None
        attempts: list[int] = []
        try:
            async with both(first.url) as (session, other):
                await other.producer("queue:in").send_many(numbered(10))
                consumer, producer = await session.consumer("queue:in"), session.producer("queue:out")

                async def move(given: antiphon.Session) -> str:
                    nonlocal second
                    assert given is session
                    attempts.append(len(attempts))
                    await producer.send_many(await bodies(consumer, 10))
                    if second is None:
                        # It is stored when the server dies, and forgotten when another one takes over.
                        await stored_uncommitted(session)
                        first.kill()
                        second = await asyncio.to_thread(Server(tmp_path / "data", "--port", port).wait_ready)
                    return "moved"

                assert await session.run_transaction(move) == "moved"
                assert len(attempts) == 2, "the second attempt succeeded"
                assert await bodies(await other.consumer("queue:out"), 10) == numbered(10)
                await nothing(await other.consumer("queue:out"))
                await nothing(consumer)

                async def fail(given: antiphon.Session) -> None:
                    await given.producer("queue:out").send(b"never")
                    raise KeyError("the application's own")

                with pytest.raises(KeyError):
                    await session.run_transaction(fail)
        finally:
            for server in (first, second):
                if server is not None:
                    server.__exit__(None, None, None)

    run(test())


async def stored_uncommitted(session: antiphon.Session) -> None:
    """Wait until everything that was sent has its outcome."""
    core = session._scope.opened_core
    assert core is not None
    link = session._scope.link
    while any(outbox.confirmed_through < outbox.next_number - 1 for outbox in core.outboxes.values()):
        await link.news()


def test_one_that_is_too_large_is_refused_and_leaves_nothing_behind(server: Server) -> None:
    async def test() -> None:
        async with both(server.url) as (session, other):
            producer = session.producer("queue:large")
            with pytest.raises(antiphon.TransactionTooLarge, match="131,072 messages"):
                await producer.send_many([b""] * (TRANSACTION_MESSAGES_MAX + 1))
            with pytest.raises(antiphon.TransactionRolledBack, match="131,072 messages"):
                await producer.send(b"too late")
            with pytest.raises(antiphon.TransactionRolledBack, match="131,072 messages"):
                await session.commit()
            consumer = await other.consumer("queue:large")
            await nothing(consumer)
            await producer.send(b"another one")
            await session.commit()
            assert await bodies(consumer, 1) == [b"another one"]
            async with antiphon.connect(server.url) as connection:
                assert await transactions_of(connection) == NOTHING_LEFT

    run(test())


NOTHING_LEFT = {"open": 0, "prepared": 0, "staged": 0, "unfinished": 0}


async def transactions_of(connection: antiphon.Connection) -> dict[str, int]:
    """What all channels have of transactions."""
    total: dict[str, int] = dict.fromkeys(NOTHING_LEFT, 0)
    for row in (await connection.admin().status())["channels"]:
        for name in total:
            total[name] += row["transactions"][name]
    return total


def test_what_a_session_is_not_for_is_said_in_a_sentence(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection:
            with pytest.raises(antiphon.LocalError, match="takes no ack"):
                connection.session(ack="client", transacted=True)
            async with connection.session() as plain, connection.session(transacted=True) as session:
                assert (plain.ack, session.ack) == ("auto", "transacted")
                for wrong in (plain.commit, plain.rollback):
                    with pytest.raises(antiphon.LocalError, match="only a transacted session"):
                        await wrong()
                with pytest.raises(antiphon.LocalError, match="only a transacted session"):
                    plain.transaction()
                with pytest.raises(antiphon.LocalError, match="rolled back, not recovered"):
                    await session.recover()
                await plain.producer("queue:sentences").send(b"")
                message = await (await session.consumer("queue:sentences")).receive(timeout=WAIT_S)
                assert message is not None
                with pytest.raises(antiphon.LocalError, match="commit"):
                    await message.ack()

    run(test())


def test_the_blocking_face_has_the_same_words(server: Server) -> None:
    with (
        antiphon.blocking.connect(server.url) as connection,
        connection.session(transacted=True) as session,
        connection.session() as other,
    ):
        producer, consumer = session.producer("queue:same-words"), other.consumer("queue:same-words")
        with session.transaction():
            assert producer.send(b"one").sequence is None
            assert len(producer.send_many(b"%d" % number for number in range(3))) == 3
        assert [message.body for message in consumer.receive_many(4, timeout=WAIT_S)] == [
            b"one",
            b"0",
            b"1",
            b"2",
        ]
        with pytest.raises(KeyError), session.transaction():
            producer.send(b"never")
            raise KeyError
        producer.send(b"never")
        session.rollback()
        assert (
            session.run_transaction(lambda given: given.producer("queue:same-words").send(b"two")).channel
            == "a"
        )
        assert [message.body for message in consumer.receive_many(2, timeout=SOON_S)] == [b"two"]
        with pytest.raises(antiphon.LocalError, match="only a transacted session"):
            other.commit()
        other.recover()


# -- in several channels ---------------------------------------------------------------------------


def test_a_transaction_over_two_channels_is_seen_in_both_or_in_none(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with antiphon.connect(cluster.url) as connection, both(cluster.url) as (session, other):
            near, far = [await made(connection, f"queue:both-{name}", name) for name in ("a", "b")]
            await other.producer(far).send_many(numbered(10))
            taking, giving = await session.consumer(far), session.producer(near)
            seen = await other.consumer(near)
            for end in (session.rollback, session.commit):
                assert await bodies(taking, 10) == numbered(10)
                await giving.send_many(numbered(10))
                await session.producer(far).send(b"receipt")
                await nothing(seen)
                await end()
            assert await bodies(seen, 10) == numbered(10)
            assert await bodies(taking, 1) == [b"receipt"]
            await nothing(taking)
            await session.commit()
            assert await count_of(connection, far) == 0

    run(test())


def test_a_hundred_thousand_messages_over_four_destinations_on_two_channels(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with antiphon.connect(cluster.url) as connection, both(cluster.url) as (session, other):
            names = [await made(connection, f"queue:many-{number}", "ab"[number % 2]) for number in range(4)]
            for name in names:
                await session.producer(name).send_many(numbered(25_000))
            assert {await count_of(connection, name) for name in names} == {0}
            await session.commit()
            assert {await count_of(connection, name) for name in names} == {25_000}
            for name in names:
                assert await bodies(await other.consumer(name), 25_000) == numbered(25_000)

    run(test(), 100)


def test_a_part_that_is_too_large_is_rolled_back_in_the_other_channel_as_well(
    cluster: ClusterProcess,
) -> None:
    async def test() -> None:
        async with antiphon.connect(cluster.url) as connection, both(cluster.url) as (session, other):
            near, far = [await made(connection, f"queue:over-{name}", name) for name in ("a", "b")]
            await session.producer(near).send_many(numbered(100))
            with pytest.raises(antiphon.TransactionTooLarge):
                await session.producer(far).send_many([b""] * (TRANSACTION_MESSAGES_MAX + 1))
            with pytest.raises(antiphon.TransactionRolledBack):
                await session.commit()
            assert await transactions_of(connection) == NOTHING_LEFT
            for name in (near, far):
                await nothing(await other.consumer(name))

    run(test())


def test_a_client_whose_client_manager_dies_during_the_commit_learns_the_truth(
    cluster: ClusterProcess,
) -> None:
    async def test() -> None:
        killed, spared = cluster.client_managers
        where = {row["name"]: row["listen"]["antiphon"] for row in cluster.ready["nodes"] if row["listen"]}
        async with antiphon.connect(f"antiphon://{where[spared]}") as connection:
            near, far = [await made(connection, f"queue:truth-{name}", name) for name in ("a", "b")]
            async with connection.session() as other:
                fates = set()
                for step in ("tx.decide", "tx.finish"):
                    cluster.kill(killed)
                    await cluster.restart(killed, failpoints=f"{step}=kill")
                    url = f"antiphon://{where[killed]},{where[spared]}"
                    async with (
                        antiphon.connect(url, spread=False) as ours,
                        ours.session(transacted=True) as session,
                    ):
                        await session.producer(near).send(step.encode())
                        await session.producer(far).send(step.encode())
                        try:
                            await session.commit()
                            is_committed = True
                        except antiphon.TransactionRolledBack:
                            is_committed = False
                    fates.add((step, is_committed))
                    for name in (near, far):
                        async with other.consumer(name) as consumer:
                            seen = await bodies(consumer, 1) if is_committed else []
                            assert seen == ([step.encode()] if is_committed else [])
                            await nothing(consumer)
                assert fates == {("tx.decide", False), ("tx.finish", True)}
                cluster.kill(killed)
                await cluster.restart(killed)

    run(test(), 100)


class Mover:
    """Moves tokens from queue to queue, and loses its connection in the middle of it."""

    def __init__(self, url: str, queues: list[str], seed: int) -> None:
        self._url = url
        self._queues = queues
        self._chance = random.Random(seed)
        self.fates: Counter[str] = Counter()

    async def move(self, times: int) -> None:
        async with (
            antiphon.connect(self._url) as connection,
            connection.session(transacted=True) as session,
        ):
            consumers = [await session.consumer(name, prefetch=5) for name in self._queues]
            for _ in range(times):
                for consumer in self._chance.sample(consumers, 2):
                    for message in await consumer.receive_many(2, timeout=SOON_S):
                        await session.producer(self._chance.choice(self._queues)).send(message.body)
                try:
                    self.fates[await self._end(connection, session)] += 1
                except antiphon.TransactionRolledBack:
                    self.fates["rolled back by a failure"] += 1

    async def _end(self, connection: antiphon.Connection, session: antiphon.Session) -> str:
        way = self._chance.choice(("committed", "lost before", "lost during", "rolled back", "cancelled"))
        if way in ("lost before", "rolled back"):
            lose_connection(connection)
        if way == "rolled back":
            await session.rollback()
            return way
        committing = asyncio.create_task(session.commit())
        for _ in range(self._chance.randrange(20)):
            await asyncio.sleep(0)
        if way == "lost during":
            lose_connection(connection)
        if way == "cancelled":
            committing.cancel()
            await asyncio.wait((committing,))
            await session.commit()
        else:
            await committing
        return way


def lose_connection(connection: antiphon.Connection) -> None:
    line = connection._link and connection._link._line
    if line is not None and line._transport is not None:
        line._transport.abort()


def test_nothing_is_lost_or_doubled_when_connections_break_at_any_moment(cluster: ClusterProcess) -> None:
    seed = int(os.environ.get("ANTIPHON_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed {seed} (ANTIPHON_SEED={seed} draws the same)")

    async def test() -> None:
        async with antiphon.connect(cluster.url) as connection, connection.session() as session:
            queues = [
                await made(connection, f"queue:moved-{number}", "ab"[number % 2]) for number in range(4)
            ]
            tokens = numbered(40)
            await session.producer(queues[0]).send_many(tokens)
            movers = [Mover(cluster.url, queues, seed + number) for number in range(3)]
            await asyncio.gather(*(mover.move(12) for mover in movers))
            print(sum((mover.fates for mover in movers), Counter()))
            found: list[bytes] = []
            consumers = [await session.consumer(name) for name in queues]
            async with asyncio.timeout(WAIT_S):
                while len(found) < len(tokens):
                    for consumer in consumers:
                        found += [m.body for m in await consumer.receive_many(100, timeout=SOON_S)]
            for consumer in consumers:
                await nothing(consumer)
            assert sorted(found) == tokens

    run(test(), 100)


# -- staging ---------------------------------------------------------------------------------------


def test_parts_that_others_staged_are_committed_once(cluster: ClusterProcess) -> None:
    async def test() -> None:
        async with antiphon.connect(cluster.url) as connection, connection.session() as session:
            near, far = [await made(connection, f"queue:staged-{name}", name) for name in ("a", "b")]
            consumers = [await session.consumer(name) for name in (near, far)]

            async def write(first: int) -> bytes:
                # A process of its own, as far as anybody can tell.
                async with antiphon.connect(cluster.url) as writer, writer.staging("report") as staging:
                    part = await staging.stage(near, numbered(3, first))
                    rows = [antiphon.Row(body, priority=7) for body in numbered(2, first)]
                    part = await staging.stage(far, rows, part=part)
                    assert (part.messages, part.channels) == (5, ("a", "b"))
                    return pickle.dumps(part)

            parts = [pickle.loads(await write(first)) for first in (0, 10)]
            stray = pickle.loads(await write(20))
            async with connection.staging("report") as staging:
                for consumer in consumers:
                    await nothing(consumer)
                assert await staging.commit(0, parts) == "committed"
                assert await bodies(consumers[0], 6) == [*numbered(3), *numbered(3, 10)]
                messages = await consumers[1].receive_many(4, timeout=WAIT_S)
                assert [message.body for message in messages] == [*numbered(2), *numbered(2, 10)]
                assert {message.priority for message in messages} == {7}
                await staging.abort(parts)  # harmless
                assert await staging.commit(0, [stray]) == "committed before"
                assert await staging.commit(1, []) == "committed"
                with pytest.raises(antiphon.TransactionRolledBack, match="not here any more"):
                    await staging.commit(2, [stray])
                for consumer in consumers:
                    await nothing(consumer)
            assert await transactions_of(connection) == NOTHING_LEFT

    run(test())


def test_what_is_aborted_or_over_its_time_cannot_be_committed(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection, connection.staging("late") as staging:
            kept = await staging.stage("queue:late", [b"kept"])
            aborted = await staging.stage("queue:late", [b"aborted"])
            await staging.abort([aborted])
            brief = await staging.stage("queue:late", [b"brief"], time_limit=1)
            async with asyncio.timeout(WAIT_S):
                while (await transactions_of(connection))["staged"] > 1:
                    pass  # log time goes on by itself while something is due
            for gone in (aborted, brief):
                with pytest.raises(antiphon.TransactionRolledBack, match="not here any more"):
                    await staging.commit(1, [kept, gone])
            assert await staging.commit(1, [kept]) == "committed", "it is still staged"
            async with connection.session() as session:
                assert await bodies(await session.consumer("queue:late"), 1) == [b"kept"]

    run(test())


def test_wrong_wishes_about_staging_are_refused_with_a_sentence(server: Server) -> None:
    async def test() -> None:
        async with antiphon.connect(server.url) as connection, connection.staging("one") as staging:
            part = await staging.stage("queue:wrong", [])
            assert (part.messages, part.channels) == (0, ())
            with pytest.raises(antiphon.LocalError, match="time_limit"):
                await staging.stage("queue:wrong", [b""], time_limit=30 * 86_400)
            with pytest.raises(antiphon.LocalError, match="version"):
                await staging.commit(-1, [part])
            with pytest.raises(antiphon.LocalError, match="'one'"):
                await connection.staging("two").stage("queue:wrong", [b""], part=part)
            with pytest.raises(antiphon.LocalError, match="staged for two"):
                await connection.staging("two").commit(1, [part])
            with pytest.raises(antiphon.InvalidName):
                connection.staging("")
            assert (await transactions_of(connection))["staged"] == 0

    run(test())


def test_the_blocking_face_stages_as_well(server: Server) -> None:
    with antiphon.blocking.connect(server.url) as connection, connection.staging("blocking") as staging:
        part = staging.stage("queue:staged-blocking", (b"%d" % number for number in range(2_500)))
        assert part.messages == 2_500
        assert staging.commit(1, [part]) == "committed"
        staging.abort([part])
        with connection.session() as session:
            consumer = session.consumer("queue:staged-blocking")
            assert len(consumer.receive_many(2_500, timeout=WAIT_S)) == 2_500
