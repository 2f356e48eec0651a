"""RabbitMQ: a quorum queue with three members, publisher confirms.

The servers are those of Debian's package, as processes of their own; a service of the system is not touched.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.processes import Processes
from peers.system import NAME, PAUSE_EVERY, UNDER_WAY, Client, Send, System, Unavailable, free_ports, rotated

# Not the one of /usr/sbin, which changes to another user.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
VERSIONS = "lib/rabbitmq_server-*"

SETTINGS = """
listeners.tcp.1 = 127.0.0.1:{port}
cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config
cluster_formation.classic_config.nodes.1 = r1@localhost
cluster_formation.classic_config.nodes.2 = r2@localhost
cluster_formation.classic_config.nodes.3 = r3@localhost
log.console = true
"""


class RabbitMQ(System):
    title = "RabbitMQ quorum"
    durability = "synced by two of three"

    def install(self, folder: Path) -> None:
        try:
            import pika  # noqa: F401
        except ImportError as error:
            raise Unavailable(f"{error}: pip install pika") from error
        if not PROGRAM.exists() or shutil.which("epmd") is None:
            raise Unavailable(
                f"there is no {PROGRAM}. On Debian: apt-get install rabbitmq-server, and stop the service"
            )
        (version,) = PROGRAM.parents[1].glob(VERSIONS)
        self.version = version.name.rpartition("-")[2]

    def start(self, folder: Path, processes: Processes) -> str:
        names, *ports = free_ports(7)
        (folder / ".erlang.cookie").write_text("bench")
        (folder / ".erlang.cookie").chmod(0o400)
        (folder / "plugins").write_text("[].")
        # A registry of Erlang's nodes of our own, so that none stays behind.
        registry = {"ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1", "HOME": str(folder)}
        processes.start("epmd", ["epmd"], registry)
        for number, port, other in zip((1, 2, 3), ports[:3], ports[3:], strict=True):
            settings = folder / f"r{number}.conf"
            settings.write_text(SETTINGS.format(port=port))
            environment = {
                **registry,
                # With it the script becomes the server and does not stay as its parent.
                "NOTIFY_SOCKET": str(folder / "nobody"),
                "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
                "RABBITMQ_CONFIG_FILE": str(settings),
                "RABBITMQ_DIST_PORT": str(other),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                "RABBITMQ_LOG_BASE": str(folder / f"r{number}-log"),
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_MNESIA_BASE": str(folder / f"r{number}"),
                "RABBITMQ_NODENAME": f"r{number}@localhost",
                "RABBITMQ_PID_FILE": str(folder / f"r{number}.pid"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            }
            processes.start(f"r{number}", [PROGRAM], environment)
        return ",".join(str(port) for port in ports[:3])

    def client(self, address: str, place: int = 0) -> Client:
        return _Client([int(port) for port in rotated(address, place)])


class _Client(Client):
    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._received: list[tuple[int, bytes]] = []
        self._last = 0
        """The tag of the last message that was returned and not acknowledged."""
        self._has_more = asyncio.Event()

    async def __aenter__(self) -> Client:
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", self._ports[0]),
            on_open_callback=opened.set_result,
            on_open_error_callback=lambda _, error: opened.set_exception(_as_error(error)),
            on_close_callback=lambda _, reason: self._closed.set_result(None),
        )
        await opened
        self._channel = await self._open_channel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection.is_open:
            if self._last:
                self._channel.basic_ack(self._last, multiple=True)
            self._connection.close()
            await self._closed

    async def _open_channel(self) -> Any:
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._connection.channel(on_open_callback=opened.set_result)
        channel = await opened
        # Whoever waits for messages finds the channel closed.
        channel.add_on_close_callback(lambda *_: self._has_more.set())
        return channel

    async def create(self) -> None:
        # A queue gets its members among the servers that are in the cluster now. A server joins the cluster,
        # and then opens its port.
        for port in self._ports:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
        declared: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._channel.queue_declare(
            NAME,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": 3},
            callback=declared.set_result,
        )
        await declared

    async def publish(self, bodies: Iterable[bytes]) -> None:
        publisher = await _Publisher.on(self._channel)
        for place, body in enumerate(bodies):
            if place % PAUSE_EVERY == 0:
                await asyncio.sleep(0)
                await publisher.at_most(UNDER_WAY)
            publisher.publish(body)
        await publisher.at_most(0)

    async def senders(self, count: int) -> list[Send]:
        return [(await _Publisher.on(await self._open_channel())).send for _ in range(count)]

    async def attach(self) -> None:
        qualified: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._channel.basic_qos(prefetch_count=UNDER_WAY, callback=qualified.set_result)
        await qualified

        def keep(_: Any, method: Any, properties: Any, body: bytes) -> None:
            self._received.append((method.delivery_tag, body))
            self._has_more.set()

        consuming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._channel.basic_consume(NAME, on_message_callback=keep, callback=consuming.set_result)
        await consuming

    async def receive(self) -> list[bytes]:
        if self._last:
            self._channel.basic_ack(self._last, multiple=True)
        await self._has_more.wait()
        self._has_more.clear()
        received, self._received = self._received, []
        self._last = received[-1][0]
        return [body for _, body in received]


class _Publisher:
    """A channel with confirms: which messages are under way, and who waits for them."""

    def __init__(self, channel: Any) -> None:
        import pika

        self._channel = channel
        self._persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
        self._tag = 0
        self._refused = 0
        self._under_way: dict[int, asyncio.Future[None] | None] = {}
        self._enough: tuple[int, asyncio.Future[None]] | None = None

    @classmethod
    async def on(cls, channel: Any) -> _Publisher:
        publisher = cls(channel)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel.confirm_delivery(publisher._confirmed, callback=ready.set_result)
        await ready
        return publisher

    def publish(self, body: bytes, waiting: asyncio.Future[None] | None = None) -> None:
        self._tag += 1
        self._under_way[self._tag] = waiting
        self._channel.basic_publish("", NAME, body, self._persistent)

    async def send(self, body: bytes) -> None:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.publish(body, confirmed)
        await confirmed
        self._check()

    async def at_most(self, count: int) -> None:
        """Return when no more than so many are under way."""
        if len(self._under_way) > count:
            self._enough = count, asyncio.get_running_loop().create_future()
            await self._enough[1]
            self._enough = None
        self._check()

    def _check(self) -> None:
        assert not self._refused, f"RabbitMQ refuses {self._refused} messages"

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._under_way if tag <= method.delivery_tag]
        if method.NAME != "Basic.Ack":
            self._refused += len(tags)
        for tag in tags:
            waiting = self._under_way.pop(tag)
            if waiting is not None:
                waiting.set_result(None)
        if self._enough and len(self._under_way) <= self._enough[0] and not self._enough[1].done():
            self._enough[1].set_result(None)


def _as_error(error: str | BaseException) -> BaseException:
    return error if isinstance(error, BaseException) else ConnectionError(error)
