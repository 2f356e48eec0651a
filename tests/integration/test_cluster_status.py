"""What operators read, and what senders are told, while a cluster loses its nodes one after the other.

One cluster lives through it all; each test looks at one side of what was noted meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

import antiphon
from tests import processes
from tests.cluster_processes import ClusterProcess, Status

QUEUE: Final = "queue:work"
ASKED_SECONDS: Final = 4.0
SLACK_SECONDS: Final = 30.0
"""How much longer a busy machine may take, for which starting a command takes seconds; still less than the
minute that a send waits that nobody bounds."""
ORDERS_NOTHING: Final = "channel a orders nothing at the moment, most likely because too few of its nodes"


@dataclass
class Story:
    """What was noted."""

    first: str = ""
    second: str = ""
    backups: list[str] = field(default_factory=list)
    silent: tuple[bool, int, bool] | None = None
    checks: dict[str, tuple[int, str]] = field(default_factory=dict)
    refusals: dict[str, tuple[str, str, float]] = field(default_factory=dict)
    cli: subprocess.CompletedProcess[str] | None = None
    log: dict[str, list[str]] = field(default_factory=dict)
    """The lines of the nodes' logs by chapter, without the times."""


def channel(told: Status) -> tuple[bool, int, bool]:
    (row,) = told["channels"]
    return row["serving"], row["copies"], row["degraded"]


def checked(cluster: ClusterProcess) -> tuple[int, str]:
    """The exit code of a check, and the state that the table shows."""
    shown = processes.antiphon("admin", "status", "--check", url=cluster.url)
    in_json = processes.antiphon("admin", "status", "--check", "--json", url=cluster.url)
    assert in_json.returncode == shown.returncode and json.loads(in_json.stdout)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("a ")]
    return shown.returncode, line.removeprefix("a").strip().split("  ")[0]


class Chapters:
    """Cuts the log where one thing is over and the next begins."""

    def __init__(self, cluster: ClusterProcess, story: Story) -> None:
        self._cluster = cluster
        self._story = story
        self._read = 0

    async def end(self, title: str, *awaited: tuple[str, str]) -> None:
        """Wait until these nodes have said these words; what was logged by then belongs to the chapter."""
        for name, words in awaited:
            await self._cluster.says(name, words, self._read)
        text = self._cluster.log()
        lines = text[self._read :].splitlines()
        self._read = len(text)
        self._story.log[title] = [re.sub(r"^\S+ \S+ ", "", line) for line in lines]


async def refusal(story: Story, title: str, sending: Awaitable[object]) -> None:
    began = time.monotonic()
    with pytest.raises(antiphon.AntiphonError) as caught:
        await sending
    story.refusals[title] = type(caught.value).__name__, str(caught.value), time.monotonic() - began


async def live_through(cluster: ClusterProcess, story: Story) -> None:
    chapters = Chapters(cluster, story)
    await cluster.when(lambda told: channel(told) == (True, 3, False), "whole")
    story.checks["whole"] = checked(cluster)
    story.first = first = await cluster.primary()
    everybody = [*cluster.message_managers, *cluster.client_managers]
    await chapters.end("start", *((name, "is served by") for name in everybody))
    async with antiphon.connect(cluster.url) as connection, connection.session() as session:
        producer = await session.producer(QUEUE)
        await producer.send_many([b"x"] * 1_000)

        cluster.kill(first)
        story.second = second = await cluster.another_primary(first)
        story.backups = [name for name in cluster.message_managers if name != second]
        left = [name for name in cluster.message_managers if name != first]
        await cluster.when(lambda told: channel(told) == (True, 2, True), "a copy less")
        story.checks["a copy less"] = checked(cluster)
        await chapters.end(
            "failover",
            *((name, f"is served by {second} now, before by {first}") for name in everybody if name != first),
            *((name, f"nothing has been heard of {first}") for name in left),
        )
        await cluster.restart(first)
        await cluster.synchronized()
        await chapters.end(
            "return",
            (first, "this node has recovered channel a"),
            *((name, f"{first} is heard again") for name in left),
        )

        cluster.kill(*story.backups)
        await refusal(story, "just then", producer.send(b"y", timeout=ASKED_SECONDS))
        await refusal(story, "later", producer.send(b"z", timeout=ASKED_SECONDS))
        await refusal(story, "of a batch", producer.send_many([b"z"] * 10, timeout=ASKED_SECONDS))
        async with antiphon.connect(cluster.url, timeout=ASKED_SECONDS) as other, other.session() as fresh:
            await refusal(story, "anew", fresh.producer(QUEUE).send(b"z", timeout=ASKED_SECONDS))
        words = ["send", QUEUE, "z", "--timeout", f"{ASKED_SECONDS:g}"]
        began = time.monotonic()
        story.cli = await asyncio.to_thread(processes.antiphon, *words, url=cluster.url)
        story.refusals["command line"] = "", story.cli.stderr, time.monotonic() - began
        await cluster.when(lambda told: channel(told)[0] is False, "no majority")
        story.checks["no majority"] = checked(cluster)
        await chapters.end("lost majority", (second, "has lost its majority"))

        cluster.kill(second)
        told = await cluster.when(lambda told: len(told["silent"]) == 3, "nobody answers")
        story.silent = channel(told)
        await cluster.restart(*cluster.message_managers)
        await cluster.when(lambda told: channel(told) == (True, 3, False), "whole again")
        await producer.send(b"after all", timeout=60)
        await chapters.end(
            "recovery", *((name, "this node has recovered") for name in cluster.message_managers)
        )


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    noted = Story()
    with ClusterProcess(tmp_path_factory.mktemp("story"), client_managers=1, has_faults=False) as cluster:
        asyncio.run(live_through(cluster, noted))
    yield noted


def count(lines: list[str], *words: str) -> Counter[str]:
    """How often each node said this."""
    return Counter(line.split()[0] for line in lines if all(word in line for word in words))


def test_a_channel_without_copies_or_without_a_majority_says_so(story: Story) -> None:
    assert story.checks == {
        "whole": (0, "serving"), "a copy less": (1, "degraded"), "no majority": (1, "not serving")
    }  # fmt: skip
    assert story.silent == (False, 0, True), "nobody answers"


@pytest.mark.parametrize("title", ["just then", "later", "of a batch", "anew", "command line"])
def test_a_send_to_a_channel_without_a_majority_says_why_within_the_time_asked_for(
    story: Story, title: str
) -> None:
    kind, text, seconds = story.refusals[title]
    assert ORDERS_NOTHING in text, text
    assert seconds < ASKED_SECONDS + SLACK_SECONDS
    expected = {"just then": "PublishUncertain", "later": "PublishRefused", "of a batch": "PublishRefused"}
    assert kind == expected.get(title, kind)
    if title == "command line":
        assert story.cli is not None and story.cli.returncode == 3, story.cli


def test_a_healthy_start_says_who_starts_and_who_serves_and_nothing_else(story: Story) -> None:
    lines = story.log["start"]
    started = count(lines, "INFO", "has started as")
    assert set(started.values()) == {1} and len(started) == 4, lines
    # On a busy machine one epoch may follow another.
    lines = [line for line in lines if "has started as" not in line and "epoch" not in line]
    # On a busy machine another may have come to serve before all had started.
    changes = [line for line in lines if f"channel a is served by {story.first} now, before by" in line]
    once = count([line for line in lines if line not in changes], "INFO", "channel a is served by")
    assert set(once.values()) == {1} and len(once) == 4, lines
    assert len(lines) == 4 + len(changes), lines


def test_a_failover_and_a_return_are_told_in_one_line_by_each_node(story: Story) -> None:
    first, second = story.first, story.second
    lines = story.log["failover"]
    served = count(lines, "INFO", f"channel a is served by {second} now, before by {first}")
    others = {name for name in story.backups if name != first}
    assert served == Counter([second, *others, "cm-1"])
    assert count(lines, "WARNING", f"nothing has been heard of {first} for 2 s") == Counter([second, *others])
    lines = story.log["return"]
    assert count(lines, "INFO", f"{first} is heard again") == Counter([second, *others])
    assert count(lines, "INFO", "has recovered channel a: its disk had the order through") == Counter([first])
    assert count(lines, "is served by") == Counter([first]), "the others know"


def test_a_lost_majority_is_told_with_the_names_of_those_that_are_missing(story: Story) -> None:
    lines = story.log["lost majority"]
    missing = " and ".join(sorted(story.backups))
    lost = f"channel a has lost its majority: nothing is heard of {missing}"
    assert count(lines, "WARNING", lost) == Counter([story.second])
    assert count(lines, "WARNING", "nobody has served channel a for 1 s") == Counter(["cm-1"])
    recovered = count(story.log["recovery"], "INFO", "has recovered channel a")
    assert recovered == Counter([story.second, *story.backups])


def test_nothing_is_logged_of_datagrams_that_came_again(story: Story) -> None:
    odd = [line for lines in story.log.values() for line in lines if "antiphon.transport" in line]
    assert odd == []
