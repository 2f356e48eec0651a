"""TLS with real processes: who is let in, what the others are told, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import antiphon
from antiphon import blocking
from antiphon.tls import ClientTls
from tests.certificates import certificates
from tests.cluster_processes import ClusterProcess
from tests.processes import Server
from tests.processes import antiphon as command

MADE = certificates()
CA = MADE.client()
OPTIONS = ("--tls-ca", str(MADE.pem("ca")))
MINE = (*OPTIONS, "--tls-cert", str(MADE.pem("client")), "--tls-key", str(MADE.key("client")))
PATIENCE_SECONDS = 60.0
HALF_OPEN = 200


def listening(name: str = "server", folder: Path = MADE.folder) -> list[str]:
    return ["--tls-cert", str(folder / f"{name}.pem"), "--tls-key", str(folder / f"{name}.key")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("tls") / "data", *listening()) as server:
        assert server.url.startswith("antiphons://127.0.0.1:")
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.errors.read_text()


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = [*listening(), "--tls-client-ca", str(MADE.pem("ca"))]
    with Server(tmp_path_factory.mktemp("mutual") / "data", *options) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.errors.read_text()


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.url.partition("://")[2].partition(":")
    return host, int(port)


def refusal(*words: str) -> str:
    """The one sentence of a command that fails."""
    ended = command(*words)
    assert ended.returncode == 1, (ended.stdout, ended.stderr)
    assert len(ended.stderr.splitlines()) == 1 and "Traceback" not in ended.stderr
    return ended.stderr


# --- who is let in ---------------------------------------------------------------------------------


def test_commands_send_and_receive_with_tls(server: Server) -> None:
    sent = command("send", "queue:commands", "hello", "--url", server.url, *OPTIONS)
    assert (sent.returncode, sent.stderr) == (0, "")
    received = command("receive", "queue:commands", "--count", "1", "--url", server.url, *OPTIONS)
    assert (received.returncode, received.stdout) == (0, "hello\n")
    status = command("admin", "status", "--check", "--url", server.url, *OPTIONS)
    assert status.returncode == 0


def test_the_environment_names_the_files_and_leaves_plain_urls_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_TLS_CA", str(MADE.pem("ca")))
    assert command("admin", "status", "--url", server.url).returncode == 0
    refused = refusal("admin", "status", "--url", "antiphon://127.0.0.1:1")
    assert "tls=" not in refused and "refused" in refused


def test_the_blocking_client_sends_and_receives_with_tls(server: Server) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(50)]
    with blocking.connect(server.url, tls=CA) as connection, connection.session() as session:
        session.producer("queue:blocking").send_many(bodies)
        messages = session.consumer("queue:blocking").receive_many(50, timeout=PATIENCE_SECONDS)
        assert [message.body for message in messages] == bodies


def test_bench_runs_with_tls(server: Server) -> None:
    words = ["bench", "--messages", "2000", "--size", "100", "--url", server.url, *OPTIONS, "--json"]
    assert command(*words).returncode == 0


def test_with_a_ca_of_the_clients_only_those_with_a_certificate_come_in(mutual: Server) -> None:
    said = refusal("send", "queue:a", "x", "--url", mutual.url, *OPTIONS)
    assert "the server asks for a certificate of the client, and tls= has none" in said
    with (
        blocking.connect(mutual.url, tls=MADE.client("client")) as connection,
        connection.session() as session,
    ):
        session.producer("queue:mine").send("x")
    with pytest.raises(antiphon.TlsFailed, match="does not know the CA of the client's certificate"):
        blocking.connect(mutual.url, tls=MADE.client("strange-client"))
    received = command("receive", "queue:mine", "--count", "1", "--url", mutual.url, *MINE)
    assert received.stdout == "x\n"


def test_a_client_without_tls_and_a_server_without_tls_are_told_so(server: Server, tmp_path: Path) -> None:
    plain = server.url.replace("antiphons:", "antiphon:")
    assert "this port speaks TLS and the client does not" in refusal("send", "queue:a", "x", "--url", plain)
    with Server(tmp_path / "data") as other:
        secure = other.url.replace("antiphon:", "antiphons:")
        said = refusal("send", "queue:a", "x", "--url", secure, *OPTIONS)
        assert "the server does not speak TLS here: the url would begin with antiphon://" in said
        assert "the client speaks TLS and this port does not" in other.errors.read_text()


def test_a_ca_that_is_not_the_servers_is_told(server: Server) -> None:
    said = refusal("send", "queue:a", "x", "--url", server.url, "--tls-ca", str(MADE.pem("stranger")))
    assert "the server's certificate is of a CA that is not trusted here" in said
    assert "is of a CA that is not trusted" in refusal("send", "queue:a", "x", "--url", server.url)


@pytest.mark.parametrize(
    ("name", "words"), [("expired", "has expired"), ("elsewhere", "is not for 127.0.0.1")]
)
def test_a_certificate_that_does_not_pass_is_told(name: str, words: str, tmp_path: Path) -> None:
    with Server(tmp_path / "data", *listening(name)) as server:
        began = time.monotonic()
        assert words in refusal("send", "queue:a", "x", "--url", server.url, *OPTIONS)
        assert time.monotonic() - began < 30, "a certificate does not become right by waiting"


# --- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tls-cert", "x.pem"], "TLS needs a certificate and its key: --tls-cert and --tls-key"),
        (["--tls-client-ca", "x.pem"], "TLS needs a certificate and its key"),
        (listening("nobody"), "nobody.pem cannot be read: No such file or directory"),
        ([*listening(), "--tls-client-ca", "/nowhere"], "the CA file /nowhere cannot be read"),
        ([*listening()[:2], "--tls-key", str(MADE.key("renewed"))], "is not that of the certificate"),
        ([*listening("nobody"), "--message-managers", "2"], "nobody.pem cannot be read"),
    ],
)
def test_files_that_cannot_be_used_are_told_before_anything_is_made(
    words: list[str], complaint: str, tmp_path: Path
) -> None:
    assert complaint in refusal("up", "--data", str(tmp_path / "data"), "--port", "0", *words)
    assert not (tmp_path / "data").exists()


# --- renewal ---------------------------------------------------------------------------------------


def presented(server: Server) -> bytes:
    """The certificate that a new connection is shown."""
    host, port = address(server)
    context = ClientTls(CA).context()
    with (
        socket.create_connection((host, port), timeout=PATIENCE_SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=host) as secure,
    ):
        found = secure.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_certificates_are_renewed_under_load_and_no_connection_is_lost(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()

    def install(name: str, *suffixes: str) -> None:
        for suffix in suffixes:
            # As tools for certificates do it: a new file in the place of the old one.
            shutil.copy(MADE.folder / f"{name}.{suffix}", files / "new")
            (files / "new").rename(files / f"own.{suffix}")

    async def scene(server: Server) -> None:
        lost: list[str] = []
        sent = received = 0
        is_over = False
        has_sent = asyncio.Event()

        async def until(is_so: Callable[[], bool], what: str) -> None:
            """Look each time when some more was sent."""
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not await asyncio.to_thread(is_so):
                assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what}"
                has_sent.clear()
                await asyncio.wait_for(has_sent.wait(), PATIENCE_SECONDS)

        async def produce(connection: antiphon.Connection) -> None:
            nonlocal sent
            producer = await connection.session().producer("queue:load")
            while not is_over:
                await producer.send_many([b"x" * 1_000] * 20)
                sent += 20
                has_sent.set()

        async def consume(connection: antiphon.Connection) -> None:
            nonlocal received
            consumer = await connection.session().consumer("queue:load")
            while not is_over or received < sent:
                received += len(await consumer.receive_many(20, timeout=1))

        async with (
            antiphon.connect(server.url, tls=CA) as producing,
            antiphon.connect(server.url, tls=CA) as consuming,
        ):
            for connection in (producing, consuming):
                connection.on_lost = lambda: lost.append("lost")
            work = [asyncio.create_task(produce(producing)), asyncio.create_task(consume(consuming))]
            first = presented(server)
            install("renewed", "pem", "key")
            await until(lambda: presented(server) != first, "the new certificate")
            second = presented(server)
            # Half of a renewal: refused with a line, and the pair before goes on.
            install("server", "pem")
            await until(lambda: "cannot be used" in server.errors.read_text(), "a line about the files")
            assert presented(server) == second
            install("server", "key")
            await until(lambda: presented(server) == first, "the first certificate again")
            before = sent
            await until(lambda: sent > before + 100, "work that goes on")
            is_over = True
            await asyncio.gather(*work)
        assert (received, lost) == (sent, [])

    install("server", "pem", "key")
    with Server(tmp_path / "data", *listening("own", files)) as server:
        asyncio.run(scene(server))
        assert server.stop() == 0


# --- crowds ----------------------------------------------------------------------------------------


def test_handshakes_that_are_never_finished_hold_up_nobody_and_are_ended(server: Server) -> None:
    outgoing = ssl.MemoryBIO()
    half = ClientTls(CA).context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    hello = outgoing.read()
    # Nothing, a part of a handshake, and one whose answer is not taken up.
    words = [b"", hello[:50], hello]
    strangers = [socket.create_connection(address(server)) for _ in range(HALF_OPEN)]
    try:
        for at, stranger in enumerate(strangers):
            stranger.sendall(words[at % len(words)])
        began = time.monotonic()
        with blocking.connect(server.url, tls=CA) as connection, connection.session() as session:
            session.producer("queue:crowd").send("x")
            assert connection.admin().status()["connections"] >= HALF_OPEN
            took = time.monotonic() - began
        assert took < 5, f"a client among {HALF_OPEN} half open connections took {took:.1f} s"
        for stranger in strangers:
            stranger.settimeout(PATIENCE_SECONDS)
            while stranger.recv(1 << 16):
                pass
        assert time.monotonic() - began < PATIENCE_SECONDS
        with blocking.connect(server.url, tls=CA) as connection:
            assert connection.admin().status()["connections"] < HALF_OPEN
    finally:
        for stranger in strangers:
            stranger.close()


# --- clusters --------------------------------------------------------------------------------------


def test_a_client_goes_on_at_another_client_manager_with_tls(tmp_path: Path) -> None:
    mine = MADE.client("client")

    async def scene(cluster: ClusterProcess) -> None:
        at = {row["listen"]["antiphons"]: row["name"] for row in cluster.ready["nodes"] if row["listen"]}
        assert len(at) == 2
        async with antiphon.connect(cluster.url, tls=mine) as connection:
            session = await connection.session()
            producer, consumer = await session.producer("queue:a"), await session.consumer("queue:a")
            await producer.send("before")
            there = next(name for where, name in at.items() if where in repr(connection))
            await asyncio.to_thread(cluster.kill, there)
            await producer.send("after")
            bodies = [message.body for message in await consumer.receive_many(2, timeout=PATIENCE_SECONDS)]
            assert bodies == ["before", "after"]
            assert there not in {name for where, name in at.items() if where in repr(connection)}
        await cluster.restart(there)
        await cluster.status()

    options = [*listening(), "--tls-client-ca", str(MADE.pem("ca"))]
    with ClusterProcess(tmp_path, transport="tcp", message_managers=1, options=options, tls=mine) as cluster:
        assert cluster.url.startswith("antiphons://")
        asyncio.run(scene(cluster))
