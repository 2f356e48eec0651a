"""The main story, in half a minute: `make demo`.

A cluster on this machine (two client managers, three message managers) bills orders. While it works the
primary is killed, then the client manager that everybody uses, then everything at once, as in a power cut.
In the end every confirmed order has exactly one invoice. Ends by itself, and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import antiphon

ANTIPHON = Path(sys.executable).with_name("antiphon")
READY_SECONDS = 60.0
LAST_SECONDS = 2.0
"""So long nothing must come before the queue counts as empty: orders may be on their way back."""
POISON = "an order that no one can bill"


class System:
    """`antiphon up` as a process of its own; its nodes are in the same process group."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.start()

    def start(self) -> None:
        words = ("up", "--client-managers", "2", "--message-managers", "3", "--restart", "--port", "0")
        self._launcher = subprocess.Popen(
            [str(ANTIPHON), *words, "--data", str(self._data), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._launcher.stdout is not None
        line = self._launcher.stdout.readline()
        if not line:
            raise SystemExit("the cluster did not start; `antiphon up --message-managers 3` says why")
        self.ready = json.loads(line)
        self.pids = {node["name"]: node["pid"] for node in self.ready["nodes"]}

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    def power_cut(self) -> None:
        """Every process of the cluster ends at the same moment."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        self._launcher.wait()

    def stop(self) -> None:
        self._launcher.terminate()
        self._launcher.wait()


class Shop:
    """An application: one task sends orders, another one bills each in a transaction."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.confirmed: list[str] = []
        self.longest_pause = 0.0
        self._is_open = True
        self._all_sold = False

    async def sell(self) -> None:
        """Send one order after the other until the shop closes."""
        async with antiphon.connect(self._url) as connection, connection.session() as session:
            orders = session.producer("queue:orders")
            while self._is_open:
                order = f"order {len(self.confirmed)}"
                began = time.monotonic()
                await orders.send(order, properties={"region": ("EU", "US")[len(self.confirmed) % 2]})
                self.longest_pause = max(self.longest_pause, time.monotonic() - began)
                self.confirmed.append(order)
        self._all_sold = True

    async def bill(self) -> None:
        """Take an order and send its invoice: both happen, or neither."""
        async with (
            antiphon.connect(self._url) as connection,
            connection.session(transacted=True) as session,
        ):
            orders = await session.consumer("queue:orders")
            invoices = await session.producer("queue:invoices")

            async def bill_some(session: antiphon.Session) -> int:
                taken = await orders.receive_many(50, timeout=LAST_SECONDS if is_last else 0.2)
                for order in taken:
                    await invoices.send(f"invoice for {order.body!s}", properties=order.properties)
                return len(taken)

            is_last = False
            while await session.run_transaction(bill_some) or not is_last:
                is_last = self._all_sold

    def close(self) -> None:
        self._is_open = False


def say(text: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s  {text}", flush=True)


STARTED = time.monotonic()


async def status(url: str) -> dict[str, Any]:
    async with antiphon.connect(url) as connection:
        return await connection.admin().status()


async def when_whole(url: str) -> dict[str, Any]:
    """The status, as soon as the channel serves with all its copies."""
    deadline = time.monotonic() + READY_SECONDS
    while True:
        told = await status(url)
        if all(row["serving"] and not row["degraded"] for row in told["channels"]):
            return told
        if time.monotonic() > deadline:
            raise SystemExit("the cluster did not become whole again")
        await asyncio.sleep(0.2)


async def dead_messages(connection: antiphon.Connection) -> list[dict[str, Any]]:
    """The dead messages, as soon as there are any: the primary buries in its own time."""
    deadline = time.monotonic() + READY_SECONDS
    while not (dead := await connection.admin().dead()):
        if time.monotonic() > deadline:
            raise SystemExit("the rejected order is not among the dead messages")
        await asyncio.sleep(0.05)
    return dead


async def trade(system: System, seconds: float) -> list[str]:
    """Orders are sold and billed while nodes die; the confirmed ones."""
    url = system.ready["url"]
    shop = Shop(url)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(shop.sell())
        tasks.create_task(shop.bill())

        async def lose(name: str, what: str) -> None:
            before = len(shop.confirmed)
            shop.longest_pause = 0.0
            system.kill(name)
            await asyncio.sleep(seconds)
            told = await when_whole(url)
            more, primary = len(shop.confirmed) - before, told["channels"][0]["primary"]
            say(f"kill -9 {name}, {what}")
            say(
                f"  the longest send took {shop.longest_pause:.2f} s; {more:,} more orders; primary {primary}"
            )

        await asyncio.sleep(seconds)
        say(f"{len(shop.confirmed):,} orders are confirmed: each is on the disks of a majority")
        told = await status(url)
        await lose(told["channels"][0]["primary"], "the primary, which gives out the messages")
        await lose("cm-1", "the client manager with all connections")
        shop.close()
    return shop.confirmed


async def look(url: str, confirmed: list[str]) -> None:
    """What a selector sees, what a poison message becomes, and whether the books are right."""
    async with antiphon.connect(url) as connection, connection.session(ack="individual") as session:
        german = [message async for message in session.browse("queue:invoices", selector="region = 'EU'")]
        say(f"selector region = 'EU': {len(german):,} invoices, seen without consuming them")
        await session.producer("queue:orders").send(POISON)
        message = await session.consumer("queue:orders").receive(timeout=5)
        assert message is not None and message.body == POISON, "another order was left"
        await message.reject()
        dead = await dead_messages(connection)
        say(f"one order was rejected; `antiphon admin dead` shows {len(dead)}: {dead[0]['reason']!r}")
    async with antiphon.connect(url) as connection, connection.session() as session:
        invoices: Counter[str] = Counter()
        consumer = await session.consumer("queue:invoices", prefetch=1000)
        while batch := await consumer.receive_many(1000, timeout=1.0):
            invoices.update(str(message.body) for message in batch)
    lost = [order for order in confirmed if not invoices[f"invoice for {order}"]]
    doubled = [invoice for invoice, times in invoices.items() if times > 1]
    say(
        f"{len(confirmed):,} confirmed orders, {invoices.total():,} invoices: "
        f"{len(lost)} missing, {len(doubled)} twice"
    )
    if lost or doubled:
        raise SystemExit(f"this must not happen: {(lost + doubled)[:5]}")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="antiphon-demo-") as path:
        yield Path(path)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seconds", type=float, default=4.0, help="how long each scene lasts")
    told = words.parse_args()
    logging.basicConfig(format="         a client says: %(message)s", stream=sys.stdout)
    with folder() as data:
        system = System(data / "cluster")
        try:
            names = ", ".join(system.pids)
            say(f"a cluster of {len(system.pids)} processes is ready: {names}")
            confirmed = asyncio.run(trade(system, told.seconds))
            system.power_cut()
            say("power cut: kill -9 of every process at once")
            system.start()
            say("started again on the same disks")
            asyncio.run(look(system.ready["url"], confirmed))
        finally:
            system.stop()
    say("done; try it yourself: antiphon up --client-managers 2 --message-managers 3")


if __name__ == "__main__":
    main()
