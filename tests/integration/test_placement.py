"""Many destinations at once, and the clients of several client managers: who gets how many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest

import antiphon
from antiphon import blocking
from tests.bus_members import has_multicast
from tests.clusters import Cluster
from tests.processes import Server
from tests.processes import antiphon as run

needs_multicast = pytest.mark.skipif(
    not has_multicast(), reason="this machine carries no multicast on its loopback"
)

SPREAD = ("--client-managers", "3", "--message-managers", "1", "--channels", "3")
REPLICAS = ("--client-managers", "1", "--message-managers", "3")

MM_BYTES_PER_TOPIC = 2_048
CM_BYTES_PER_TOPIC = 1_024


def outcomes(results: list[antiphon.CreationResult]) -> Counter[str]:
    return Counter(result.outcome for result in results)


def topics(count: int) -> list[str]:
    return [f"topic:prices.EU.{at:06d}.close" for at in range(count)]


# -- embedded ---------------------------------------------------------------------------------------


def test_thousands_of_topics_are_made_by_one_call_and_by_one_command(tmp_path: Path) -> None:
    names = topics(2_000)
    with Server(tmp_path / "data") as server:
        with blocking.connect(server.url, timeout=30) as connection:
            admin = connection.admin()
            assert outcomes(admin.create_many(names[:1_500], retention=60)) == {"made": 1_500}
            again = admin.create_many(iter([*names[:10], "topic:_own", "prices", names[1_500]]), retention=60)
            assert [result.outcome for result in again] == ["exists"] * 10 + ["refused"] * 2 + ["made"]
            assert [result.code for result in again[10:12]] == ["local.invalid_name"] * 2
            (other,) = admin.create_many(names[:1], retention=61)
            assert (other.outcome, other.code) == ("refused", "destination.refused")
            assert other.text == f"{names[0]} exists, and its retention is 60, not 61"
            for wrong in ("topic:one", [5]):
                with pytest.raises(antiphon.LocalError):
                    admin.create_many(wrong)  # type: ignore[arg-type]
        listed = tmp_path / "names"
        listed.write_text("\n".join([*names, "", "no name"]) + "\n")
        command = ("admin", "create", "--retention", "1m", "--json")
        done = run(*command, "--from-file", str(listed), url=server.url)
        told = json.loads(done.stdout)
        assert (done.returncode, told["made"], told["existed"]) == (1, 499, 1_501)
        assert [refused["destination"] for refused in told["refused"]] == ["no name"]
        assert done.stderr.startswith("antiphon: no name: ")
        done = run(
            *command, "topic:one", "--from-file", "-", url=server.url, stdin="topic:two\r\ntopic:one\n"
        )
        assert (done.returncode, done.stdout) == (0, '{"made": 3, "existed": 0, "refused": []}\n')
        for words in ((), ("--from-file", str(tmp_path / "nothing"))):
            done = run("admin", "create", *words, url=server.url)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        rows = json.loads(run("admin", "destinations", "--json", url=server.url).stdout)
        assert {row["name"] for row in rows} == {*names, "topic:one", "topic:two"}
        assert server.stop() == 0
        with Server(server.data) as again_there, blocking.connect(again_there.url, timeout=30) as connection:
            assert outcomes(connection.admin().create_many(names, retention=60)) == {"exists": 2_000}


# -- a cluster --------------------------------------------------------------------------------------


@needs_multicast
def test_destinations_spread_over_channels_and_clients_over_client_managers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Connections draw in the order in which they are made: each run has the same draws.
    monkeypatch.setattr("antiphon.client.aio.connection.random.random", random.Random(7).random)
    with Cluster(tmp_path / "data", *SPREAD) as cluster:
        asyncio.run(_spread(cluster))
        cluster.stop()


async def _spread(cluster: Cluster) -> None:
    async with contextlib.AsyncExitStack() as stack:
        admins = [
            (await stack.enter_async_context(antiphon.connect(url, timeout=30))).admin()
            for url in cluster.urls
        ]
        # One by one at one client manager, then in bulk and with many common names at all of them.
        await asyncio.gather(*(admins[0].create(f"queue:one.{at}") for at in range(300)))
        assert _is_even(Counter(await _channels(admins[1], "queue:one.")), 300)
        names = [f"queue:many.{at}" for at in range(300)]
        results = await asyncio.gather(
            *(admin.create_many(names[at * 50 : at * 50 + 200]) for at, admin in enumerate(admins))
        )
        made = Counter(result.destination for part in results for result in part if result.outcome == "made")
        assert (len(made), made.total()) == (300, 300), "each was made once"
        assert sum((outcomes(part) for part in results), Counter()) == {"made": 300, "exists": 300}
        assert _is_even(Counter(await _channels(admins[2], "queue:many.")), 300)

        connections = [
            await stack.enter_async_context(antiphon.connect(cluster.url, timeout=30)) for _ in range(30)
        ]
        servers = [repr(connection) for connection in connections]
        at_once = Counter(servers)
        assert len(at_once) == 3 and max(at_once.values()) <= 20, at_once
        lost = repr(connections[0])
        gone = [connection for connection in connections if repr(connection) == lost]
        number = next(at for at, url in enumerate(cluster.urls, 1) if url.rpartition("/")[2] in lost)
        cluster.kill_node(f"cm-{number}")
        async with asyncio.timeout(60):
            # Each answers, though its server is gone.
            await asyncio.gather(*(connection.admin().status() for connection in gone))
        moved = Counter(repr(connection) for connection in gone)
        assert lost not in moved and set(moved) <= set(servers), moved
        assert len(moved) == 2, "not all go to the same one"


def _is_even(by_channel: Counter[str], total: int) -> bool:
    """Has each of three channels about a third?"""
    return by_channel.total() == total and min(by_channel[name] for name in "abc") > total // 5


async def _channels(admin: antiphon.Admin, prefix: str) -> list[str]:
    return [row["channel"] for row in await admin.destinations() if row["name"].startswith(prefix)]


@needs_multicast
def test_a_bulk_creation_that_met_a_failover_is_completed_by_repeating_it(tmp_path: Path) -> None:
    names = topics(2_000)
    with Cluster(tmp_path / "data", *REPLICAS) as cluster:
        with blocking.connect(cluster.url, timeout=30) as connection:
            admin = connection.admin()
            assert outcomes(admin.create_many(names[:1_000])) == {"made": 1_000}
            primary = admin.status()["channels"][0]["primary"]
            cluster.kill_node(primary)
            results = admin.create_many(names)
            # Those that would have waited for too long are refused, with words, and nothing of them is lost.
            assert {result.code for result in results} <= {"", "destination.unavailable"}
            deadline = time.monotonic() + 60
            while outcomes(results).keys() != {"exists"}:
                assert time.monotonic() < deadline, outcomes(results)
                results = admin.create_many(names)
            assert admin.status()["destinations"] == 2_000
        cluster.stop()


# -- very many --------------------------------------------------------------------------------------


def memory_of(pid: int) -> int:
    """The bytes of a process in memory."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


@pytest.mark.long
@needs_multicast
def test_a_hundred_thousand_topics_are_made_in_seconds_and_take_little_memory(tmp_path: Path) -> None:
    count = 100_000
    names = topics(count)
    with Cluster(tmp_path / "data", *REPLICAS) as cluster:
        pids = cluster.pids
        before = {name: memory_of(pid) for name, pid in pids.items()}
        with blocking.connect(cluster.url, timeout=30) as connection:
            admin = connection.admin()
            begun = time.monotonic()
            results = admin.create_many(names)
            seconds = time.monotonic() - begun
            assert outcomes(results) == {"made": count}
            each = {name: (memory_of(pid) - before[name]) / count for name, pid in pids.items()}
            print(f"{seconds:.1f} s; bytes a topic: {each}")
            assert seconds < 30
            for name, size in each.items():
                assert size < (CM_BYTES_PER_TOPIC if name.startswith("cm") else MM_BYTES_PER_TOPIC), each
            assert outcomes(admin.create_many(names)) == {"exists": count}
            assert admin.status()["destinations"] == count
        cluster.stop()


@pytest.mark.long
@needs_multicast
def test_a_pattern_over_a_hundred_thousand_topics_is_subscribed_to_in_seconds(tmp_path: Path) -> None:
    count = 100_000
    names = topics(count)
    asked, later = names[count // 2], "topic:prices.EU.later"
    with Cluster(tmp_path / "data", *REPLICAS) as cluster:
        with blocking.connect(cluster.url, timeout=60) as connection, connection.session() as session:
            assert outcomes(connection.admin().create_many(names)) == {"made": count}
            begun = time.monotonic()
            consumer = session.consumer("topic:prices.EU.*", match="glob")
            session.producer(asked).send(b"early")
            first = consumer.receive(timeout=30)
            seconds = time.monotonic() - begun
            print(f"{seconds:.1f} s until a message of one of them was there")
            assert first is not None and (first.destination, first.body) == (asked, b"early")
            assert seconds < 10
            connection.admin().create(later, retention="consumed")
            session.producer(later).send(b"the first")
            new = consumer.receive(timeout=30)
            assert new is not None and (new.destination, new.body) == (later, b"the first")
        cluster.stop()
