"""What a broker must have to be measured: how it is started, and a client of few words."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType

from peers.processes import Processes

NAME = "bench"
"""Of the queue, stream or topic, and of its consumer."""
UNDER_WAY = 10_000
"""So many messages may be unconfirmed at a publisher, or unacknowledged at a consumer."""
AT_ONCE = 5_000
"""So many messages does a consumer take at once, at most."""
PAUSE_EVERY = 64
"""After so many messages a publisher lets the event loop run, where its library does not."""

Send = Callable[[bytes], Awaitable[object]]


class Unavailable(Exception):
    """A broker, or its client, is not on this machine or does not start; the text says what to do."""


class Client(ABC):
    """One connection, open while the block lasts."""

    @abstractmethod
    async def __aenter__(self) -> Client: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was received last is acknowledged before the connection closes."""

    @abstractmethod
    async def create(self) -> None:
        """Make the destination with three replicas; again is no error."""

    @abstractmethod
    async def publish(self, bodies: Iterable[bytes]) -> None:
        """Publish these as fast as the client can; all are confirmed on return."""

    @abstractmethod
    async def senders(self, count: int) -> list[Send]:
        """So many independent senders on this connection, each of which waits for its confirmations."""

    @abstractmethod
    async def attach(self) -> None:
        """Begin to consume."""

    @abstractmethod
    async def receive(self) -> list[bytes]:
        """Return what there is, one at least. What was returned before is acknowledged."""


class System(ABC):
    """A broker in one configuration."""

    title: str
    durability: str
    """Where a message is when it is confirmed."""
    version: str
    """Known when it is installed."""

    @abstractmethod
    def install(self, folder: Path) -> None:
        """Fetch what can be fetched; raise `Unavailable` where something is missing."""

    @abstractmethod
    def start(self, folder: Path, processes: Processes) -> str:
        """Start three servers with their data in this folder, and return where clients connect."""

    @abstractmethod
    def client(self, address: str, place: int = 0) -> Client:
        """A client; `place` says with which of several servers it begins."""

    def servers(self, processes: Processes) -> list[int]:
        """The processes whose CPU and memory count."""
        return processes.tree()


def rotated(address: str, place: int) -> list[str]:
    """The servers of an address, beginning with another one for each place."""
    servers = address.split(",")
    return servers[place % len(servers) :] + servers[: place % len(servers)]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on at the moment."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
