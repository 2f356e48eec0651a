"""Antiphon: three message managers and a client manager, `udp`."""

from __future__ import annotations

import contextlib
import json
import select
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import antiphon
from peers.processes import Processes
from peers.system import AT_ONCE, NAME, UNDER_WAY, Client, Send, System, Unavailable

READY_SECONDS = 60.0
QUIET_SECONDS = 60.0
QUEUE = f"queue:{NAME}"


class Antiphon(System):
    title = "Antiphon"
    durability = "synced by two of three"

    def install(self, folder: Path) -> None:
        self.version = antiphon.__version__

    def start(self, folder: Path, processes: Processes) -> str:
        command = [sys.executable, "-m", "antiphon.cli.main", "up", "--data", folder / "data", "--port", "0"]
        shape = ["--client-managers", "1", "--message-managers", "3", "--transport", "udp", "--json"]
        up = processes.start("up", [*command, *shape], is_read=True)
        assert up.stdout is not None
        if not select.select([up.stdout], [], [], READY_SECONDS)[0]:
            raise Unavailable(f"not ready after {READY_SECONDS:g} s: {processes.last_words()}")
        line = up.stdout.readline()
        if not line:
            raise Unavailable(f"ended before it was ready: {processes.last_words()}")
        url: str = json.loads(line)["url"]
        return url

    def servers(self, processes: Processes) -> list[int]:
        """The nodes. `antiphon up` only starts them; peers have nothing of its kind."""
        return processes.tree()[1:]

    def client(self, address: str, place: int = 0) -> Client:
        return _Client(address)


class _Client(Client):
    def __init__(self, url: str) -> None:
        self._url = url
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Client:
        self._connection = await self._open.enter_async_context(
            antiphon.connect(self._url, timeout=QUIET_SECONDS)
        )
        self._session = await self._open.enter_async_context(self._connection.session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def create(self) -> None:
        # The first producer creates its queue.
        await self._session.producer(QUEUE)

    async def publish(self, bodies: Iterable[bytes]) -> None:
        producer = await self._session.producer(QUEUE)
        await producer.send_many(bodies)

    async def senders(self, count: int) -> list[Send]:
        return [(await self._connection.session().producer(QUEUE)).send for _ in range(count)]

    async def attach(self) -> None:
        self._consumer = await self._session.consumer(QUEUE, prefetch=UNDER_WAY)

    async def receive(self) -> list[bytes]:
        first = await self._consumer.receive(timeout=QUIET_SECONDS)
        if first is None:
            raise antiphon.Timeout(f"nothing came for {QUIET_SECONDS:g} s")
        # A longer timeout would wait for as many, and 0 would ask the server for more.
        rest = await self._consumer.receive_many(AT_ONCE - 1, timeout=1e-9)
        return [message.body_bytes for message in (first, *rest)]
