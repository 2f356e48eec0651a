"""NATS JetStream: a stream of three replicas on three servers, in files.

The servers are `nats-server` of the path, or else one that Go builds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.processes import Processes
from peers.system import NAME, PAUSE_EVERY, UNDER_WAY, Client, Send, System, Unavailable, free_ports, rotated

MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
BUILD_SECONDS = 600.0
ACKNOWLEDGE_SECONDS = 30.0

SETTINGS = """
server_name: n{number}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{data}", max_file_store: 32G, {sync} }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""


class Nats(System):
    def __init__(self, is_synced: bool) -> None:
        self.title = "NATS R3, sync always" if is_synced else "NATS R3"
        self.durability = "synced by two of three" if is_synced else "in the page cache of two of three"
        self._sync = "sync_interval: always" if is_synced else ""

    def install(self, folder: Path) -> None:
        try:
            import nats  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"{error}: pip install nats-py") from error
        self._program = shutil.which("nats-server") or self._build(folder)
        # "nats-server: v2.15.2"
        told = subprocess.run([self._program, "--version"], check=True, capture_output=True, text=True)
        self.version = told.stdout.rpartition("v")[2].strip()

    def _build(self, folder: Path) -> str:
        go = shutil.which("go")
        if go is None:
            raise Unavailable("neither nats-server nor Go is on the path. On Debian: apt-get install golang")
        built = subprocess.run(
            [go, "install", MODULE],
            env={**os.environ, "GOBIN": str(folder)},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
        if built.returncode:
            raise Unavailable(f"Go does not build {MODULE}: {built.stderr[-500:]}")
        return str(folder / "nats-server")

    def start(self, folder: Path, processes: Processes) -> str:
        ports = free_ports(6)
        ports, routes = ports[:3], ports[3:]
        for number, (port, route) in enumerate(zip(ports, routes, strict=True), start=1):
            file = folder / f"n{number}.conf"
            file.write_text(
                SETTINGS.format(
                    number=number,
                    port=port,
                    route=route,
                    routes=", ".join(f"nats://127.0.0.1:{other}" for other in routes),
                    data=folder / f"n{number}",
                    sync=self._sync,
                )
            )
            processes.start(f"n{number}", [self._program, "-c", file])
        return ",".join(f"nats://127.0.0.1:{port}" for port in ports)

    def client(self, address: str, place: int = 0) -> Client:
        return _Client(rotated(address, place))


async def _is_quiet(error: Exception) -> None:
    """What goes wrong is raised where it is waited for; the library would log it besides."""


class _Client(Client):
    def __init__(self, servers: list[str]) -> None:
        self._servers = servers
        self._received: list[Any] = []
        self._last: Any = None
        self._has_more = asyncio.Event()

    async def __aenter__(self) -> Client:
        import nats

        self._connection = await nats.connect(
            self._servers, allow_reconnect=False, dont_randomize=True, error_cb=_is_quiet
        )
        self._stream = self._connection.jetstream()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None:
            await self._last.ack_sync(timeout=ACKNOWLEDGE_SECONDS)
        with contextlib.suppress(Exception):
            await self._connection.close()

    async def create(self) -> None:
        await self._stream.add_stream(name=NAME, subjects=[NAME], num_replicas=3, storage="file")

    async def publish(self, bodies: Iterable[bytes]) -> None:
        # With one subscription for all confirmations, which takes half of what `publish_async` does.
        confirmed, published = 0, 0
        refused: list[bytes] = []
        has_confirmed = asyncio.Event()

        async def confirm(message: Any) -> None:
            nonlocal confirmed
            confirmed += 1
            if b'"error"' in message.data:
                refused.append(message.data)
            has_confirmed.set()

        inbox = self._connection.new_inbox()
        await self._connection.subscribe(inbox, cb=confirm)

        async def at_most(count: int) -> None:
            while published - confirmed > count:
                has_confirmed.clear()
                await has_confirmed.wait()

        for body in bodies:
            published += 1
            await self._connection.publish(NAME, body, reply=inbox)
            if published % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
                await at_most(UNDER_WAY)
        await at_most(0)
        assert not refused, f"NATS refuses {len(refused)} messages: {refused[0]!r}"

    async def senders(self, count: int) -> list[Send]:
        async def send(body: bytes) -> None:
            await self._stream.publish(NAME, body)

        return [send] * count

    async def attach(self) -> None:
        from nats.js.api import AckPolicy, ConsumerConfig

        # As other brokers do, one acknowledgement speaks for all messages before.
        config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=UNDER_WAY)

        async def keep(message: Any) -> None:
            self._received.append(message)
            self._has_more.set()

        await self._stream.subscribe(NAME, durable=NAME, config=config, cb=keep, manual_ack=True)

    async def receive(self) -> list[bytes]:
        if self._last is not None:
            await self._last.ack()
        await self._has_more.wait()
        self._has_more.clear()
        received, self._received = self._received, []
        self._last = received[-1]
        return [message.data for message in received]
