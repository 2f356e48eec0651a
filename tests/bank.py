"""Clients that move money between accounts on several channels, and note what they were told.

An account is a queue, money is coins, a coin is a message. A transfer takes a coin from one account and puts
it into another, and an entry into the books, in one transaction. So whatever happens to the message system,
in the end every coin is somewhere and only there, and the books have an entry of every transfer that was
told to be committed, and none of one that was told to be rolled back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Final

import antiphon

COINS: Final = 60
ACCOUNTS: Final = {"queue:a1": "a", "queue:a2": "a", "queue:b1": "b", "queue:b2": "b"}
BOOKS: Final = "queue:books"
LOOK_SECONDS: Final = 0.2
SURE_SECONDS: Final = 60.0


async def open_accounts(url: str, coins: int = COINS) -> None:
    """Make the accounts, and put the coins into them."""
    async with antiphon.connect(url) as connection, connection.session() as session:
        for name, channel in {**ACCOUNTS, BOOKS: "a"}.items():
            await connection.admin().create(name, channel=channel)
        for place, name in enumerate(ACCOUNTS):
            await session.producer(name).send_many(
                [f"coin-{number}" for number in range(place, coins, len(ACCOUNTS))]
            )


class Bank:
    """Some clients that make transfers until they are told to stop."""

    def __init__(self, url: str, *, movers: int = 3, seed: int = 0) -> None:
        self._servers = url.removeprefix("antiphon://").split(",")
        self._movers = movers
        self._seed = seed
        self._is_open = True
        self._tasks: list[asyncio.Task[None]] = []
        self._moved = asyncio.Event()
        self._may_move = asyncio.Event()
        self._may_move.set()
        self.committed: set[str] = set()
        self.rolled_back: set[str] = set()
        self.unknown: set[str] = set()

    def url(self, place: int) -> str:
        """Everybody knows all servers, and they begin with different ones."""
        at = place % len(self._servers)
        return "antiphon://" + ",".join(self._servers[at:] + self._servers[:at])

    async def __aenter__(self) -> Bank:
        self._tasks = [asyncio.create_task(self._move(place)) for place in range(self._movers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def progress(self, transfers: int = 10) -> None:
        """Wait until so many more transfers are committed."""
        goal = len(self.committed) + transfers
        async with asyncio.timeout(SURE_SECONDS):
            while len(self.committed) < goal:
                self._moved.clear()
                waiting = asyncio.create_task(self._moved.wait())
                await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                for task in self._tasks:
                    if task.done():
                        task.result()

    def hold(self) -> None:
        """Let nobody begin another transfer until `go_on`."""
        self._may_move.clear()

    def go_on(self) -> None:
        self._may_move.set()

    async def close(self) -> None:
        """Let everybody finish what they do."""
        self._is_open = False
        await asyncio.gather(*self._tasks)

    async def _move(self, place: int) -> None:
        chance = random.Random(self._seed * 1_000 + place)
        url = self.url(place)
        async with (
            antiphon.connect(url, spread=False) as connection,
            connection.session(transacted=True) as session,
        ):
            takers = {name: await session.consumer(name, prefetch=2) for name in ACCOUNTS}
            number = 0
            while self._is_open:
                await self._may_move.wait()
                number += 1
                source, target = chance.sample(list(ACCOUNTS), 2)
                await self.transfer(session, takers[source], target, f"m{place}/{number}")

    async def transfer(
        self, session: antiphon.Session, taker: antiphon.Consumer, target: str, entry: str
    ) -> bool:
        """Move one coin, if there is one; True if that is committed."""
        coin = await taker.receive(timeout=LOOK_SECONDS)
        if coin is None:
            return False
        try:
            await session.producer(target).send(coin.body)
            await session.producer(BOOKS).send(entry)
            await session.commit(timeout=SURE_SECONDS)
        except antiphon.TransactionRolledBack:
            self.rolled_back.add(entry)
            return False
        except antiphon.Timeout:
            self.unknown.add(entry)
            return False
        self.committed.add(entry)
        self._moved.set()
        return True

    # -- the audit -------------------------------------------------------------

    async def audit(self, coins: int = COINS) -> list[str]:
        """Take everything out, and see whether it is what it must be; what is not."""
        async with antiphon.connect(self.url(0)) as connection, connection.session() as session:
            stored = {row["name"]: row["messages"] for row in await connection.admin().destinations()}
            found = {name: await _drain(session, name, stored.get(name, 0)) for name in (*ACCOUNTS, BOOKS)}
        money = Counter(body for name in ACCOUNTS for body in found[name])
        books = Counter(found[BOOKS])
        expected = {f"coin-{number}" for number in range(coins)}
        return [
            *_complaint("coins lost", expected - set(money)),
            *_complaint("coins doubled", [coin for coin, count in money.items() if count > 1]),
            *_complaint("coins nobody made", set(money) - expected),
            *_complaint("told committed, and not in the books", self.committed - set(books)),
            *_complaint("told rolled back, and in the books", self.rolled_back & set(books)),
            *_complaint("twice in the books", [entry for entry, count in books.items() if count > 1]),
        ]


async def _drain(session: antiphon.Session, name: str, stored: int) -> list[str]:
    async with session.consumer(name) as consumer:
        return [str(message.body) for message in await consumer.receive_many(stored, timeout=SURE_SECONDS)]


def _complaint(what: str, found: Iterable[str]) -> list[str]:
    found = sorted(found)
    return [f"{what}: {len(found)}, first {found[:5]}"] if found else []
