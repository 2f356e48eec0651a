"""The blocking face against a real server: the same words, without `await`."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

import antiphon
import antiphon.blocking
from tests.processes import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("blocking") / "data") as running:
        yield running


def test_messages_go_there_and_back(server: Server) -> None:
    with antiphon.blocking.connect(server.url) as connection, connection.session() as session:
        producer = session.producer("queue:blocking")
        receipt = producer.send({"n": 1}, properties={"region": "EU"})
        assert receipt.sequence > 0
        assert len(producer.send_many([b"%d" % number for number in range(1000)])) == 1000
        consumer = session.consumer("queue:blocking")
        first = consumer.receive(timeout=5)
        assert first is not None
        assert (first.body, first.properties) == ({"n": 1}, {"region": "EU"})
        assert [message.body for message in consumer.receive_many(900, timeout=5)] == [
            b"%d" % number for number in range(900)
        ]
        taken = []
        for message in consumer:
            taken.append(message.body)
            if len(taken) == 100:
                message.ack()
                break
        assert taken[-1] == b"999"
        assert consumer.receive(timeout=0) is None


def test_acknowledgements_are_confirmed_when_ack_returns(server: Server) -> None:
    with antiphon.blocking.connect(server.url) as connection:
        with connection.session(ack="individual") as session:
            session.producer("queue:acked").send_many(["kept", "done"])
            kept, done = session.consumer("queue:acked").receive_many(2, timeout=5)
            done.ack()
        with connection.session() as session:
            assert [message.body for message in session.browse("queue:acked")] == [kept.body]


def test_topics_and_status_work_as_well(server: Server) -> None:
    with antiphon.blocking.connect(server.url, client_id="blocking") as connection:
        with connection.session() as session, session.consumer("topic:blocking", durable="audit") as audit:
            session.producer("topic:blocking").send("news")
            message = audit.receive(timeout=5)
            assert message is not None and message.body == "news"
        (node,) = connection.admin().status()["nodes"]
        assert node["role"] == "embedded"


def test_errors_are_raised_where_the_call_was_made(server: Server) -> None:
    with antiphon.blocking.connect(server.url) as connection, connection.session() as session:
        with pytest.raises(antiphon.InvalidName):
            session.producer("no prefix")
        with pytest.raises(antiphon.MessageTooLarge):
            session.producer("queue:errors").send(bytes(2 << 20))
    with pytest.raises(antiphon.ConnectionFailed):
        antiphon.blocking.connect("antiphon://127.0.0.1:1", timeout=1)


def test_closing_ends_the_thread(server: Server) -> None:
    before = threading.active_count()
    connection = antiphon.blocking.connect(server.url)
    assert threading.active_count() == before + 1
    connection.close()
    assert threading.active_count() == before


FORKED = """
import os, sys, traceback
import antiphon, antiphon.blocking

with antiphon.blocking.connect(sys.argv[1]) as connection, connection.session() as session:
    producer, consumer = session.producer("queue:forked"), session.consumer("queue:forked")
    producer.send_many(["one", "two", "three"])
    assert consumer.receive().body == "one"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            for use in (
                consumer.receive,
                lambda: consumer.receive(timeout=1),
                lambda: next(iter(consumer)),
                lambda: producer.send("no"),
                connection.session,
                lambda: connection.admin().status(),
            ):
                try:
                    use()
                except antiphon.NotConnected as error:
                    assert "forked: connect again here" in str(error), error
                    refused += 1
            consumer.close(), session.close(), connection.close()  # nothing, and no waiting
            with antiphon.blocking.connect(sys.argv[1]) as own:
                own.session().producer("queue:forked").send("four")
            code = 0 if refused == 6 else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    print([consumer.receive(timeout=10).body for _ in range(3)])
"""


def test_a_client_used_after_fork_is_refused_and_does_not_hang(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, server.url], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("['two', 'three', 'four']\n", 0), done.stderr


def test_consumers_written_on_the_fly_keep_nothing_from_others(server: Server) -> None:
    bodies = [f"{number}" for number in range(20)]
    with antiphon.blocking.connect(server.url) as connection, antiphon.blocking.connect(server.url) as other:
        session, another = connection.session(), other.session()
        session.producer("queue:on-the-fly").send_many(bodies)
        taken = [session.consumer("queue:on-the-fly").receive(timeout=10) for _ in range(5)]
        assert [message.body for message in taken if message] == bodies[:5]
        # The first session stays open, and has had all of them.
        rest = another.consumer("queue:on-the-fly").receive_many(15, timeout=30)
        assert [message.body for message in rest] == bodies[5:]
        assert not any(message.redelivered for message in rest)
        assert another.consumer("queue:on-the-fly").receive(timeout=0) is None


def test_a_transaction_that_writes_its_consumer_on_the_fly_may_go_on(server: Server) -> None:
    bodies = [f"{number}" for number in range(20)]
    with antiphon.blocking.connect(server.url) as connection, antiphon.blocking.connect(server.url) as other:
        connection.session().producer("queue:transacted").send_many(bodies)
        session, another = connection.session(transacted=True), other.session()
        with session.transaction():
            taken = [session.consumer("queue:transacted").receive(timeout=10) for _ in range(5)]
            assert [message.body for message in taken if message] == bodies[:5]
            session.producer("queue:invoices").send("for five")
        rest = another.consumer("queue:transacted").receive_many(15, timeout=30)
        assert [message.body for message in rest] == bodies[5:]
        assert [message.body for message in another.browse("queue:invoices")] == ["for five"]
