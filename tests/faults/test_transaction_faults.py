"""Transactions over two channels of real processes, and who of them may be killed in the middle of a commit.

A commit is held up at a failpoint of its client manager; then somebody is killed. Meanwhile other clients
go on at another client manager. Money is conserved, every client learns the truth, and no lock is left.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

import antiphon
from tests.bank import BOOKS, Bank, open_accounts
from tests.bus_members import NO_MULTICAST, has_multicast
from tests.cluster_processes import ClusterProcess

HOLD_SECONDS: Final = 1.0
LOCKS_SECONDS: Final = 60.0
"""It takes a few seconds, which are printed; more where everybody waits for the processor."""
SHORT_TRIALS: Final = 1
LONG_TRIALS: Final = 20

SEED: Final = int(os.environ.get("ANTIPHON_SEED", random.SystemRandom().randrange(1 << 32)))

Victim = Callable[[ClusterProcess], Awaitable[str]]


async def client_manager(cluster: ClusterProcess) -> str:
    return cluster.client_managers[0]


async def primary_of_home(cluster: ClusterProcess) -> str:
    return await cluster.primary("a")


async def primary_of_participant(cluster: ClusterProcess) -> str:
    return await cluster.primary("b")


# At which step it is held up, and who is killed then.
CASES: Final[dict[str, tuple[str, Victim]]] = {
    "client manager, all prepared": ("tx.decide", client_manager),
    "client manager, decided": ("tx.finish", client_manager),
    "participant's primary, ready": ("tx.decide", primary_of_participant),
    "home's primary, before the decision": ("tx.decide", primary_of_home),
    "home's primary, after the decision": ("tx.finish", primary_of_home),
}
# What `make test` has the time for: each victim once, and each step.
SHORT_CASES: Final = (
    "client manager, all prepared",
    "participant's primary, ready",
    "home's primary, after the decision",
)


async def no_lock_is_left(cluster: ClusterProcess) -> None:
    """Nobody is in doubt any more, soon enough after the kill."""

    def none_prepared(told: dict[str, object]) -> bool:
        rows = told["channels"]
        assert isinstance(rows, list)
        return all(row["transactions"]["prepared"] == 0 for row in rows)

    await cluster.when(none_prepared, "without prepared transactions", LOCKS_SECONDS)


async def trial(
    cluster: ClusterProcess, others: Bank, bank: Bank, step: str, victim: Victim, number: int
) -> None:
    """One transfer from channel b to channel a, in the middle of which somebody dies; others go on."""
    name = await victim(cluster)
    held_at = cluster.client_managers[0]
    async with (
        antiphon.connect(bank.url(0), spread=False) as connection,
        connection.session(transacted=True) as session,
        session.consumer("queue:b1", prefetch=1) as taker,
    ):
        since = len(cluster.log())
        moving = asyncio.create_task(_transfer(bank, session, taker, f"held/{number}"))
        await cluster.says(held_at, f"failpoint {step} reached", since)
        cluster.kill(name)
        killed_at = time.monotonic()
        # Who goes on takes locks of his own.
        others.hold()
        await no_lock_is_left(cluster)
        took = time.monotonic() - killed_at
        is_committed = await moving
    others.go_on()
    fate = "committed" if is_committed else "rolled back"
    print(f"{name} killed at {step}: {fate}, no locks after {took:.1f} s")
    await cluster.restart(name, failpoints=_held(step) if name == held_at else "")
    await cluster.synchronized()


async def _transfer(bank: Bank, session: antiphon.Session, taker: antiphon.Consumer, entry: str) -> bool:
    while True:
        coin_moved = await bank.transfer(session, taker, "queue:a1", entry)
        if coin_moved or entry in bank.rolled_back or entry in bank.unknown:
            return coin_moved


def _held(*steps: str) -> str:
    return ",".join([f"{step}=hold:{HOLD_SECONDS:g}" for step in steps])


async def held_up_at(cluster: ClusterProcess, *steps: str) -> None:
    """From now on commits are held up at the first client manager, at these steps."""
    name = cluster.client_managers[0]
    cluster.kill(name)
    await cluster.restart(name, failpoints=_held(*steps))


def run(folder: Path, cases: Iterable[str], trials: int) -> None:
    if not has_multicast():
        pytest.skip(NO_MULTICAST)
    print(f"seed {SEED} (ANTIPHON_SEED={SEED} repeats what is drawn)")

    async def story(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        await open_accounts(cluster.url)
        # Those who are not held up begin at the other client manager.
        others = ",".join(reversed(cluster.url.removeprefix("antiphon://").split(",")))
        held = Bank(cluster.url)
        numbers = itertools.count()
        async with Bank(f"antiphon://{others}", movers=1, seed=SEED) as bank:
            for case in cases:
                step, victim = CASES[case]
                await held_up_at(cluster, step)
                await bank.progress()
                for _ in range(trials):
                    await trial(cluster, bank, held, step, victim, next(numbers))
                    await bank.progress()
            await bank.close()
            bank.committed |= held.committed
            bank.rolled_back |= held.rolled_back
            complaints = await bank.audit()
        assert not held.unknown, f"nobody told what became of {held.unknown}"
        assert len(held.committed) + len(held.rolled_back) == next(numbers)
        print(f"{len(bank.committed)} transfers committed, {len(bank.rolled_back)} rolled back")
        assert not complaints, (complaints, cluster.stderr())
        await cluster.equal()

    with ClusterProcess(folder, options=["--channels", "2"]) as cluster:
        asyncio.run(story(cluster))


@pytest.mark.timeout(900)
def test_money_is_conserved_whoever_dies_during_a_commit(tmp_path: Path) -> None:
    run(tmp_path, SHORT_CASES, SHORT_TRIALS)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", CASES)
def test_money_is_conserved_whoever_dies_during_many_commits(tmp_path: Path, case: str) -> None:
    run(tmp_path, [case], LONG_TRIALS)


STEPS: Final = ("tx.prepare", "tx.decide", "tx.finish", "tx.forget")


@pytest.mark.timeout(300)
def test_other_sessions_go_on_while_a_commit_is_held_up_at_each_step(tmp_path: Path) -> None:
    """At the same client manager, in the same connection, to the same destinations."""
    if not has_multicast():
        pytest.skip(NO_MULTICAST)

    async def story(cluster: ClusterProcess) -> None:
        await cluster.synchronized()
        await held_up_at(cluster, *STEPS)
        await open_accounts(cluster.url)
        bank = Bank(cluster.url)
        async with (
            antiphon.connect(cluster.url, spread=False) as connection,
            connection.session(transacted=True) as held,
            connection.session() as other,
            held.consumer("queue:b1", prefetch=1) as taker,
        ):
            producer = await other.producer("queue:a1")
            since = len(cluster.log())
            moving = asyncio.create_task(_transfer(bank, held, taker, "held/0"))
            for step in STEPS:
                await cluster.says(cluster.client_managers[0], f"failpoint {step} reached", since)
                sent = await send_for(producer, HOLD_SECONDS / 2)
                print(f"{sent} messages of another session while a commit was held up at {step}")
                # Its client hears of a commit before the home forgets it, and not earlier.
                assert moving.done() == (step == "tx.forget")
                assert sent >= 5, f"only {sent} messages beside a commit that is held up at {step}"
            assert moving.result()
            books = [str(message.body) async for message in other.browse(BOOKS)]
            assert books == ["held/0"]

    options = ["--channels", "2"]
    with ClusterProcess(tmp_path, options=options, client_managers=1, message_managers=1) as cluster:
        asyncio.run(story(cluster))


async def send_for(producer: antiphon.Producer, seconds: float) -> int:
    """Send one message after the other for so long; how many."""
    until = time.monotonic() + seconds
    sent = 0
    while time.monotonic() < until:
        await producer.send(f"beside-{sent}")
        sent += 1
    return sent
