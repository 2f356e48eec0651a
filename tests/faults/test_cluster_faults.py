"""A cluster of real processes under load, and everything that can happen to one of them, to some, or to all.

Whatever it was: no confirmed message is lost, none comes after its confirmed acknowledgement, the order of
each producer is kept, and in the end all replicas are equal. A handful of cases are in `make test`, all of
them in `make test-long`; `pytest -rP` shows the figures.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from tests.bus_members import NO_MULTICAST, has_multicast
from tests.cluster_load import BACKLOG_MAX, LINES, Load
from tests.cluster_processes import ClusterProcess

PAUSE_SECONDS: Final = 5.0
BOUNCES: Final = 5
SMALL_DISK_MIB: Final = 800
"""Enough for the segments that such a load keeps; what is left of it is taken away."""
LARGE_BODY: Final = 32 << 10
SMALL_BACKLOG: Final = 100

Fault = Callable[[ClusterProcess, Load], Awaitable[None]]

SEED: Final = int(os.environ.get("ANTIPHON_SEED", random.SystemRandom().randrange(1 << 32)))


# -- processes that end -------------------------------------------------------------------------------


async def killed_primary(cluster: ClusterProcess, load: Load) -> None:
    primary = await cluster.primary()
    cluster.kill(primary)
    await load.progress()
    await cluster.restart(primary)


async def killed_backup(cluster: ClusterProcess, load: Load) -> None:
    backup = (await cluster.backups())[0]
    cluster.kill(backup)
    await load.progress()
    await cluster.restart(backup)


async def killed_client_manager(cluster: ClusterProcess, load: Load) -> None:
    first = cluster.client_managers[0]
    cluster.kill(first)
    await load.progress()
    await cluster.restart(first)


async def killed_client_managers(cluster: ClusterProcess, load: Load) -> None:
    """One after the other, so that every client has to go and come back."""
    for name in cluster.client_managers:
        cluster.kill(name)
        await load.progress()
        await cluster.restart(name)


async def killed_majority(cluster: ClusterProcess, load: Load) -> None:
    primary, (backup, _) = await cluster.primary(), await cluster.backups()
    cluster.kill(primary, backup)
    await cluster.restart(primary, backup)


async def killed_all(cluster: ClusterProcess, load: Load) -> None:
    names = list(cluster.nodes)
    cluster.kill(*names)
    await cluster.restart(*names)


async def bounced_primary(cluster: ClusterProcess, load: Load) -> None:
    """Five times whoever is primary then."""
    for _ in range(BOUNCES):
        await killed_primary(cluster, load)
        await cluster.synchronized()


# -- processes that sleep -----------------------------------------------------------------------------


async def paused_primary(cluster: ClusterProcess, load: Load) -> None:
    primary = await cluster.primary()
    cluster.pause(primary)
    await cluster.nobody_ends(PAUSE_SECONDS)
    await load.progress()
    cluster.resume(primary)


async def paused_client_manager(cluster: ClusterProcess, load: Load) -> None:
    first = cluster.client_managers[0]
    cluster.pause(first)
    await cluster.nobody_ends(PAUSE_SECONDS)
    cluster.resume(first)


# -- a network that is cut ----------------------------------------------------------------------------


async def partition(cluster: ClusterProcess, load: Load, *, hears: bool, is_heard: bool) -> None:
    primary = await cluster.primary()
    cluster.partition(primary, hears=hears, is_heard=is_heard)
    await cluster.another_primary(primary)
    await load.progress()
    cluster.heal()


async def cut_off_primary(cluster: ClusterProcess, load: Load) -> None:
    await partition(cluster, load, hears=False, is_heard=False)


async def deaf_primary(cluster: ClusterProcess, load: Load) -> None:
    """All hear it, and it hears nobody."""
    await partition(cluster, load, hears=False, is_heard=True)


async def mute_primary(cluster: ClusterProcess, load: Load) -> None:
    """It hears all, and nobody hears it."""
    await partition(cluster, load, hears=True, is_heard=False)


# -- disks --------------------------------------------------------------------------------------------


async def flipped_bit(cluster: ClusterProcess, load: Load) -> None:
    backup = (await cluster.backups())[0]
    cluster.kill(backup)
    print(f"{backup}:", cluster.flip(backup, SEED))
    await load.progress()
    await cluster.restart(backup)
    await cluster.synchronized()
    # It has to serve what it has.
    for name in cluster.message_managers:
        if name != backup:
            cluster.kill(name)
            await load.progress()
            await cluster.restart(name)
            await cluster.synchronized()


async def wiped_disk(cluster: ClusterProcess, load: Load) -> None:
    backup = (await cluster.backups())[0]
    cluster.kill(backup)
    cluster.wipe(backup)
    await load.progress()
    await cluster.restart(backup)
    await cluster.synchronized()
    # Now it has a vote again: with it and without another there is a majority.
    other = (await cluster.backups())[-1]
    other = other if other != backup else (await cluster.backups())[0]
    cluster.kill(other)
    await load.progress()
    await cluster.restart(other)


async def full_disk(cluster: ClusterProcess, load: Load, name: str, *, goes_on: bool) -> None:
    """A primary lets nobody publish while its disk is full; beside a backup the others go on."""
    since = len(cluster.log())
    filler = cluster.fill_disk(name)
    try:
        await cluster.says(name, "there is no room", since)
        if goes_on:
            await load.progress(2_000, within=120)
        else:
            await cluster.nobody_ends(PAUSE_SECONDS)
    finally:
        filler.unlink()


async def full_backup(cluster: ClusterProcess, load: Load) -> None:
    backup = (await cluster.backups())[0]
    cluster.kill(backup)
    await cluster.put_on_small_disk(backup, SMALL_DISK_MIB)
    await cluster.restart(backup)
    await cluster.synchronized()
    await full_disk(cluster, load, backup, goes_on=True)


async def full_primary(cluster: ClusterProcess, load: Load) -> None:
    small = cluster.message_managers[0]
    cluster.kill(small)
    await cluster.put_on_small_disk(small, SMALL_DISK_MIB)
    await cluster.restart(small)
    await cluster.synchronized()
    while (primary := await cluster.primary()) != small:
        # Let it have its turn: it stands first.
        cluster.kill(primary)
        await cluster.another_primary(primary)
        await cluster.restart(primary)
        await cluster.synchronized()
    await full_disk(cluster, load, small, goes_on=False)


# -- two and a witness --------------------------------------------------------------------------------


async def goes_on_alone(cluster: ClusterProcess, load: Load, lost: str) -> None:
    """One of two message managers is killed and comes back; meanwhile the other says that it is alone."""
    cluster.kill(lost)
    await load.progress()
    await cluster.when(lambda told: bool(told["channels"][0]["degraded"]), "degraded")
    await cluster.restart(lost)
    await cluster.synchronized()
    await cluster.when(lambda told: not told["channels"][0]["degraded"], "whole again")


async def lost_primary_of_two(cluster: ClusterProcess, load: Load) -> None:
    await goes_on_alone(cluster, load, await cluster.primary())


async def lost_backup_of_two(cluster: ClusterProcess, load: Load) -> None:
    (backup,) = await cluster.backups()
    await goes_on_alone(cluster, load, backup)


async def lost_witness(cluster: ClusterProcess, load: Load) -> None:
    (witness,) = cluster.named("witness")
    cluster.kill(witness)
    await load.progress()
    await cluster.restart(witness)


# -- the cases ----------------------------------------------------------------------------------------

THREE: Final[tuple[Fault, ...]] = (
    killed_primary,
    killed_backup,
    killed_client_manager,
    killed_client_managers,
    killed_majority,
    killed_all,
    bounced_primary,
    paused_primary,
    paused_client_manager,
    cut_off_primary,
    deaf_primary,
    mute_primary,
    flipped_bit,
    wiped_disk,
)
TWO: Final[tuple[Fault, ...]] = (lost_primary_of_two, lost_backup_of_two, lost_witness)
FULL: Final[tuple[Fault, ...]] = (full_backup, full_primary)

# What `make test` has the time for. There a client manager that sleeps has a test of its own
# (test_stopped_nodes).
SHORT: Final = {
    (killed_primary, "udp"),
    (killed_client_manager, "tcp"),
    (killed_all, "udp"),
    (mute_primary, "tcp"),
    (lost_primary_of_two, "udp"),
}


def cases(faults: tuple[Fault, ...]) -> list[object]:
    return [
        pytest.param(
            fault,
            transport,
            id=f"{getattr(fault, '__name__', '')}-{transport}",
            marks=() if (fault, transport) in SHORT else pytest.mark.long,
        )
        for fault in faults
        for transport in ("udp", "tcp")
    ]


def run(
    folder: Path,
    transport: str,
    fault: Fault,
    *,
    managers: int = 3,
    body_bytes: int = 0,
    backlog_max: int = BACKLOG_MAX,
) -> None:
    if transport == "udp" and not has_multicast():
        pytest.skip(NO_MULTICAST)
    print(f"seed {SEED} (ANTIPHON_SEED={SEED} repeats what is drawn)")

    async def story(cluster: ClusterProcess) -> None:
        async with Load(cluster.url, LINES, body_bytes=body_bytes, backlog_max=backlog_max) as load:
            await cluster.synchronized()
            await load.progress()
            await fault(cluster, load)
            await cluster.synchronized()
            await load.progress()
            verdict = await load.drain(told=cluster.told)
        print(verdict, *verdict.stories, sep="\n")
        assert not verdict.complaints, (verdict.complaints, cluster.stderr())
        await cluster.equal()

    with ClusterProcess(folder, transport=transport, message_managers=managers) as cluster:
        asyncio.run(story(cluster))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "transport"), cases(THREE))
def test_nothing_is_lost_doubled_or_disordered(tmp_path: Path, fault: Fault, transport: str) -> None:
    run(tmp_path, transport, fault)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "transport"), cases(TWO))
def test_of_two_with_a_witness_either_may_go(tmp_path: Path, fault: Fault, transport: str) -> None:
    run(tmp_path, transport, fault, managers=2)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "transport"), cases(FULL))
def test_a_full_disk_holds_nobody_up_for_longer_than_it_is_full(
    tmp_path: Path, fault: Fault, transport: str
) -> None:
    run(tmp_path, transport, fault, body_bytes=LARGE_BODY, backlog_max=SMALL_BACKLOG)
