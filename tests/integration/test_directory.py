"""Destinations of several channels, through several client managers, while some nodes are not there."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import blocking
from tests.bus_members import has_multicast
from tests.clusters import Cluster
from tests.processes import antiphon as run

pytestmark = pytest.mark.skipif(
    not has_multicast(), reason="this machine carries no multicast on its loopback"
)

NAMES = [f"queue:{word}" for word in ("one", "two", "three", "four")]


def test_destinations_are_spread_over_the_channels_and_found_everywhere(tmp_path: Path) -> None:
    size = ("--client-managers", "2", "--message-managers", "1", "--channels", "2")
    with Cluster(tmp_path / "data", *size) as cluster:
        one, other = cluster.urls
        with blocking.connect(one) as connection, connection.session() as session:
            channels = [session.producer(name).send(name).channel for name in NAMES]
        assert sorted(channels) == ["a", "a", "b", "b"], "each goes where there is least"
        with blocking.connect(other) as connection, connection.session() as session:
            # One session for both channels, whose destinations may have the same ids.
            for name, channel in zip(NAMES, channels, strict=True):
                assert session.producer(name).send("more").channel == channel
                bodies = [message.body for message in session.browse(name)]
                assert bodies == [name, "more"], "both see what either has sent"
                received = session.consumer(name).receive_many(2, timeout=20)
                assert [(message.channel, message.body) for message in received] == [
                    (channel, name),
                    (channel, "more"),
                ]
            connection.admin().create("topic:there", channel="b")
            with pytest.raises(antiphon.DestinationError, match="has its place in channel b"):
                connection.admin().create("topic:there", channel="a")
        rows = json.loads(run("admin", "destinations", "--json", url=one).stdout)
        assert {row["name"]: row["channel"] for row in rows} == {
            **dict(zip(NAMES, channels, strict=True)),
            "topic:there": "b",
        }
        status = json.loads(run("admin", "status", "--json", url=other).stdout)
        assert [node["name"] for node in status["nodes"]] == ["cm-1", "cm-2", "mm-a-1", "mm-b-1"]
        assert [row["primary"] for row in status["channels"]] == ["mm-a-1", "mm-b-1"]
        assert (status["destinations"], status["silent"]) == (5, [])
        cluster.stop()


def test_a_client_goes_on_at_another_client_manager_and_the_status_names_who_is_gone(tmp_path: Path) -> None:
    size = ("--client-managers", "2", "--message-managers", "1")
    with Cluster(tmp_path / "data", *size) as cluster:
        asyncio.run(_move(cluster))
        cluster.stop()


async def _move(cluster: Cluster) -> None:
    # It knows of one server only, and is told of the other by that one.
    async with antiphon.connect(cluster.urls[0], timeout=30) as connection:
        session = await connection.session(ack="individual")
        producer, consumer = await session.producer("queue:one"), await session.consumer("queue:one")
        first = await producer.send(b"1")
        held = await consumer.receive(timeout=20)
        assert held is not None
        cluster.kill_node("cm-1")
        second = await producer.send(b"2")
        assert second.sequence > first.sequence
        await held.ack()
        message = await consumer.receive(timeout=20)
        assert message is not None and (message.body, message.redelivered) == (b"2", False)
        await message.ack()
        status = await connection.admin().status()
        assert status["silent"] == ["cm-1"]
        assert status["connections"] == 1
        states = {node["name"]: node["state"] for node in status["nodes"]}
        assert states["cm-1"] in ("suspect", "down")
        assert (states["cm-2"], states["mm-a-1"]) == ("up", "up")


def when_level(url: str, channel: str) -> dict[str, Any]:
    """The state of the system, once all replicas of a channel have applied the same."""
    deadline = time.monotonic() + 30
    with blocking.connect(url, timeout=30) as connection:
        while True:
            status = connection.admin().status()
            if len({row["applied"] for row in status["nodes"] if row["channel"] == channel}) == 1:
                return status
            assert time.monotonic() < deadline, status


def test_without_a_quorum_in_the_system_channel_what_exists_works_and_nothing_is_made(tmp_path: Path) -> None:
    size = ("--client-managers", "1", "--message-managers", "3", "--channels", "2")
    with Cluster(tmp_path / "data", *size) as cluster:
        with blocking.connect(cluster.url, timeout=30) as connection, connection.session() as session:
            connection.admin().create("queue:here", channel="a")
            connection.admin().create("queue:there", channel="b")
            session.producer("queue:here").send("stored")
        status = when_level(cluster.url, "a")
        primary = next(row["primary"] for row in status["channels"] if row["name"] == "a")
        backups = [name for name in ("mm-a-1", "mm-a-2", "mm-a-3") if name != primary]
        cluster.kill_node(primary)
        cluster.kill_node(backups[0])
        with blocking.connect(cluster.url, timeout=30) as connection:
            with connection.session() as session:
                assert session.producer("queue:there").send("x").channel == "b"
                # Any replica shows what is stored.
                assert [message.body for message in session.browse("queue:here")] == ["stored"]
                with pytest.raises(antiphon.DestinationUnavailable, match="channel a orders nothing"):
                    session.producer("queue:new").send("x")
            status = connection.admin().status()
            assert sorted(status["silent"]) == sorted([primary, backups[0]])
            assert {row["name"]: row["primary"] is None for row in status["channels"]} == {
                "a": True,
                "b": False,
            }
            rows = connection.admin().destinations()
            assert {row["name"]: row["messages"] for row in rows} == {"queue:here": 1, "queue:there": 1}
        cluster.stop()
