"""Power loss under lone messages: nodes are killed, disks lose what was not synced, and nothing confirmed
is lost.

The nodes are real processes whose calls to the disk are noted (`disk=note` in `tests/failpoints.py`). After
the kill every directory is left as a power cut would leave it (`tests/crash_replay.py`): unsynced pages of
the order and unsynced pages of the data are kept, dropped or torn (any of them is kept), independently of
each other. Other unsynced pages, and names, are kept or dropped by chance.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import antiphon
from antiphon.cluster.topology import Counts
from antiphon.journal.format import HEADER_COPIES, Settings
from antiphon.journal.journal import Journal
from antiphon.runtime.cluster_data import create_cluster
from antiphon.runtime.disk import FileDisk
from antiphon.startup import EMBEDDED_NODE_ID, StartSettings
from tests.cluster_processes import ClusterProcess
from tests.crash_replay import Hold, Note, cut_power, hold_syncs, read_notes
from tests.processes import Server

QUEUE: Final = "queue:lone"
SENDERS: Final = 3
WITHIN_SECONDS: Final = 120.0
# Several segments are begun in a life, and a directory is soon read and written whole.
SMALL_JOURNAL: Final = {"segment_bytes": 2 << 20, "order_blocks": 64, "spares_max": 1}
GEOMETRY: Final = Settings(**SMALL_JOURNAL).geometry()
# Bytes of a body: on an embedded node most are part of the order record, and some are too large for that.
SIZES: Final = (40, 200, 200, 900, 2_500, 3_500, 5_000, 20_000)
# How much longer than it takes a sync takes. Where it is quick, it is awaited in place.
SYNC_SECONDS: Final = (0.0, 0.01)
HELD_SECONDS: Final = 0.5
SEEDS: Final = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
FEW: Final = 12
ROUNDS: Final = 3
ROUNDS_MAX: Final = 12

KEPT, DROPPED, TORN = FATES = ("kept", "dropped", "torn")
"""What becomes of the unsynced pages of a kind."""


def chosen(seed: int) -> int:
    """The seed of a run, printed."""
    seed = int(os.environ.get("ANTIPHON_SEED", seed))
    print(f"seed {seed} (ANTIPHON_SEED={seed} repeats what is drawn)")
    return seed


def fates_of(chance: random.Random, rounds: int) -> list[list[tuple[str, str]]]:
    """For each round and each of three nodes: what becomes of the order, and what of the data.

    In a round each fate is met once, and in three rounds each combination.
    """
    turn = chance.randrange(3)
    dealt = []
    for number in range(turn, turn + rounds):
        order = chance.sample(FATES, k=3)
        dealt.append([(fate, FATES[(FATES.index(fate) + number) % 3]) for fate in order])
    return dealt


def noted(chance: random.Random) -> str:
    """The failpoints of a node for its next life."""
    return f"disk=note:{chance.choice(SYNC_SECONDS):g}"


# --- clients -------------------------------------------------------------------------------------------


def body_of(sender: str, number: int, size: int) -> bytes:
    return f"{sender}/{number}/".encode().ljust(size, b"%d" % (number % 10))


@dataclass
class Traffic:
    """What clients sent, one message at a time, and what they were told about it."""

    seed: int
    reconnect: float = WITHIN_SECONDS
    attempted: dict[bytes, str] = field(default_factory=dict)
    confirmed: set[bytes] = field(default_factory=set)
    is_sending: bool = True
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, url: str, sender: str) -> None:
        """Send until the traffic ends."""
        # The sizes of a sender's messages do not depend on what others do meanwhile.
        chance = random.Random(f"{self.seed} {sender}")
        async with (
            antiphon.connect(url, reconnect=self.reconnect) as connection,
            connection.session() as session,
        ):
            producer = await session.producer(QUEUE)
            for number in itertools.count():
                if not self.is_sending:
                    return
                body = body_of(sender, number, chance.choice(SIZES))
                self.attempted[body] = sender
                await producer.send(body, timeout=WITHIN_SECONDS)
                self.confirmed.add(body)
                self._more.set()

    async def confirmations(self, count: int) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        async with asyncio.timeout(WITHIN_SECONDS):
            while len(self.confirmed) < wanted:
                self._more.clear()
                await self._more.wait()

    async def moment(self, chance: random.Random, folders: Sequence[Path]) -> None:
        """Wait for the moment of the next power loss: after a confirmation, or while syncs are under way."""
        await self.confirmations(chance.randint(10, 50))
        if chance.random() < 0.25:
            return
        first = chance.sample(folders, k=chance.randrange(len(folders)))
        for some in (first, folders):
            await asyncio.to_thread(hold_syncs, some, HELD_SECONDS)

    def judge(self, received: Sequence[bytes]) -> None:
        assert not self.confirmed - set(received), "confirmed and lost"
        assert not set(received) - self.attempted.keys(), "received and never sent"
        twice = [body for body, times in Counter(received).items() if times > 1]
        assert not twice, "received twice"
        # A sender sends one after the other, and each of its messages has its place before the next.
        for sender in set(self.attempted.values()):
            sent = [body for body, name in self.attempted.items() if name == sender and body in set(received)]
            assert [body for body in received if self.attempted[body] == sender] == sent, "out of order"


async def drain(url: str) -> list[bytes]:
    """Everything that is stored."""
    async with antiphon.connect(url) as connection, connection.session(ack="client") as session:
        consumer = await session.consumer(QUEUE)
        (queue,) = await connection.admin().destinations()
        stored = queue["messages"]
        messages = await consumer.receive_many(stored, timeout=60) if stored else []
        assert len(messages) == stored, "messages are stored and do not come"
        if messages:
            await messages[-1].ack()
        return [bytes(message.body_bytes) for message in messages]


# --- the power -----------------------------------------------------------------------------------------


@dataclass
class Power:
    """Cuts the power of nodes that were killed, and counts the unsynced pages that were lost."""

    seed: int
    lost: Counter[str] = field(default_factory=Counter)
    cuts: int = 0

    @property
    def has_lost_both(self) -> bool:
        return all(self.lost[kind] for kind in ("order lost", "data lost"))

    def cut(self, path: Path, order: str, data: str, *, lies_since: int | None = None) -> None:
        """With `lies_since` the disk has lied about every sync from that note on, and all of it is lost."""
        chance = random.Random(f"{self.seed} {path.name} {self.cuts}")
        self.cuts += 1
        fates = {"order": order, "data": data, "other": TORN if lies_since is None else DROPPED}
        here: Counter[str] = Counter()

        def keep(name: str, offset: int) -> bool:
            kind = kind_of(name, offset)
            is_kept = fates[kind] == KEPT or (fates[kind] == TORN and chance.random() < 0.5)
            here[f"{kind} {'kept' if is_kept else 'lost'}"] += 1
            return is_kept

        notes = read_notes(path)
        if lies_since is not None:
            notes = [note if at < lies_since else without_sync(note) for at, note in enumerate(notes)]
        cut_power(path, notes, chance.randrange, keep)
        Hold(path).end()
        print(f"{path.name}: order {order}, data {data}: unsynced pages: {dict(here) or 'none'}")
        self.lost += here


def kind_of(name: str, offset: int) -> str:
    """What a page of a file is for."""
    if not name.startswith("segment-") or offset in HEADER_COPIES:
        return "other"
    return "order" if offset < GEOMETRY.data_start else "data"


def without_sync(note: Note) -> Note:
    return Note("told") if note.kind == "sync" else note


def assert_sound(folders: Iterable[Path], log: str) -> None:
    """No node has found damage, or has been put aside."""
    for folder in folders:
        assert not list((folder / "lost+found").iterdir()), f"{folder.name}: {log}"
    assert "damage" not in log, log


# --- a cluster -----------------------------------------------------------------------------------------


def new_cluster(folder: Path, chance: random.Random) -> ClusterProcess:
    counts = Counts(client_managers=1, message_managers=3, transport="udp")
    create_cluster(folder / "data", counts, 0, journal=SMALL_JOURNAL)
    return ClusterProcess(folder, client_managers=1, failpoints=noted(chance))


async def start_again(cluster: ClusterProcess, names: Sequence[str], chance: random.Random) -> None:
    """Start nodes that have ended; the calls to their disks are noted."""
    started = (cluster.restart(name, failpoints=noted(chance)) for name in names)
    await asyncio.gather(*started)


@contextlib.asynccontextmanager
async def senders(traffic: Traffic, url: str, life: int = 0) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(traffic.send(url, f"{life}.{place}")) for place in range(SENDERS)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_lone_messages_through_power_losses(tmp_path: Path, seed: int) -> None:
    seed = chosen(seed)
    chance, power, traffic = random.Random(seed), Power(seed), Traffic(seed)

    async def story(cluster: ClusterProcess) -> list[bytes]:
        names = cluster.message_managers
        folders = [cluster.folder_of(name) for name in names]
        async with senders(traffic, cluster.url) as tasks:
            for number, fates in enumerate(fates_of(chance, ROUNDS_MAX)):
                if number >= ROUNDS and power.has_lost_both:
                    break
                await traffic.moment(chance, folders)
                cluster.kill(*names)
                for folder, (order, data) in zip(folders, fates, strict=True):
                    power.cut(folder, order, data)
                await start_again(cluster, names, chance)
            await traffic.confirmations(SENDERS)
            traffic.is_sending = False
            await asyncio.gather(*tasks)
        await cluster.synchronized()
        await cluster.equal()
        return await drain(cluster.url)

    with new_cluster(tmp_path, chance) as cluster:
        traffic.judge(asyncio.run(story(cluster)))
        assert_sound([cluster.folder_of(name) for name in cluster.message_managers], cluster.log())
    assert power.has_lost_both, "nothing unsynced was lost, the test shows nothing"


def test_a_cluster_whose_disks_lie_about_syncs_is_seen_to_lose_messages(tmp_path: Path) -> None:
    seed = chosen(1)
    chance, power, traffic = random.Random(seed), Power(seed), Traffic(seed)

    async def story(cluster: ClusterProcess) -> list[bytes]:
        names = cluster.message_managers
        await cluster.synchronized()
        folders = [cluster.folder_of(name) for name in names]
        since = [len(read_notes(folder)) for folder in folders]
        async with senders(traffic, cluster.url):
            await traffic.confirmations(FEW)
        # Clients have ended, and client managers know nothing that the disks do not.
        cluster.kill(*names, *cluster.client_managers)
        for folder, start in zip(folders, since, strict=True):
            power.cut(folder, DROPPED, DROPPED, lies_since=start)
        await cluster.restart(*names, *cluster.client_managers)
        return await drain(cluster.url)

    with new_cluster(tmp_path, chance) as cluster:
        received = asyncio.run(story(cluster))
    with pytest.raises(AssertionError, match="confirmed and lost"):
        traffic.judge(received)


# --- an embedded node ----------------------------------------------------------------------------------


def new_embedded(folder: Path) -> Path:
    """A data directory with small segments."""
    with contextlib.closing(FileDisk(folder / "data")) as disk:
        settings = Settings(**SMALL_JOURNAL)
        Journal.format(disk, settings, secrets.token_bytes(16), EMBEDDED_NODE_ID, StartSettings().cluster)
    return folder / "data"


async def one_life(data: Path, traffic: Traffic, chance: random.Random, life: int = 0) -> int:
    """A node under its clients until it is killed; returns how many notes there were before them."""
    with Server(data, failpoints=noted(chance)) as server:
        before = len(read_notes(data))
        async with senders(traffic, server.url, life) as tasks:
            await traffic.moment(chance, [data])
            server.kill()
            for task in tasks:
                with contextlib.suppress(antiphon.AntiphonError):
                    await task
    return before


@pytest.mark.parametrize("seed", SEEDS)
def test_an_embedded_node_keeps_lone_messages_through_power_losses(tmp_path: Path, seed: int) -> None:
    seed = chosen(seed)
    chance, power, traffic = random.Random(seed), Power(seed), Traffic(seed, reconnect=0)
    data = new_embedded(tmp_path)
    fates = list(itertools.product((KEPT, DROPPED), repeat=2)) + [(TORN, TORN)] * (ROUNDS_MAX - 4)

    async def story() -> list[bytes]:
        for life, (order, rest) in enumerate(fates):
            if life >= 5 and power.has_lost_both:
                break
            await one_life(data, traffic, chance, life)
            power.cut(data, order, rest)
        with Server(data) as server:
            received = await drain(server.url)
            assert server.stop() == 0
            assert_sound([data], server.errors.read_text())
        return received

    traffic.judge(asyncio.run(story()))
    assert power.has_lost_both, "nothing unsynced was lost, the test shows nothing"


def test_an_embedded_node_whose_disk_lies_about_syncs_is_seen_to_lose_messages(tmp_path: Path) -> None:
    seed = chosen(1)
    chance, power, traffic = random.Random(seed), Power(seed), Traffic(seed, reconnect=0)
    data = new_embedded(tmp_path)

    async def story() -> list[bytes]:
        before = await one_life(data, traffic, chance)
        power.cut(data, DROPPED, DROPPED, lies_since=before)
        with Server(data) as server:
            return await drain(server.url)

    with pytest.raises(AssertionError, match="confirmed and lost"):
        traffic.judge(asyncio.run(story()))
