"""The stage of the transport tests: a few members in one event loop, on real sockets of the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any

from antiphon.transport.faults import FaultLayer, FaultRules
from antiphon.transport.interface import ArrivedFrame, Peer, Transport, TransportSettings
from antiphon.transport.keys import GroupKeys
from antiphon.transport.memory import MemoryNetwork, MemoryTransport
from antiphon.transport.tcp import TcpTransport
from antiphon.transport.udp import UdpTransport
from antiphon.wire.lanes import Lane
from tests.bus_members import LOOPBACK, ports_for

DEADLINE_SECONDS = 30.0
CLUSTER = b"the real cluster"
KEYS = GroupKeys.of([(1, b"k" * 32)])
MIB = 1024 * 1024

# `udp` cuts frames as on a network of 1500 bytes, `udp-large` sends 60,000 at once.
KINDS = ["memory", "udp", "udp-large", "tcp"]
UDP = ["udp", "udp-large"]
SOCKETS = [*UDP, "tcp"]


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await coroutine

    asyncio.run(in_time())


def settings_for(kind: str, members: int, **others: Any) -> list[TransportSettings]:
    """One per member, on ports that nobody has."""
    ports = ports_for(members)
    peers = {number: Peer(LOOPBACK, port) for number, port in enumerate(ports, start=1)}
    group_ports = ports_for(len(Lane))
    groups = {lane: (f"239.255.{os.getpid() % 250}.{lane + 1}", group_ports[lane]) for lane in Lane}
    return [
        TransportSettings(
            node=node,
            cluster_id=CLUSTER,
            run_id=os.urandom(16),
            peers=peers,
            keys=KEYS,
            groups=groups,
            datagram_bytes=60_000 if kind == "udp-large" else 1_400,
            **others,
        )
        for node in peers
    ]


class Hall:
    """A few members in one event loop, and what each has heard."""

    def __init__(self, kind: str, members: int = 3, **others: Any) -> None:
        self.kind = kind
        self.settings = {one.node: one for one in settings_for(kind, members, **others)}
        self.members: dict[int, Transport] = {}
        self.layers = {node: FaultLayer(node) for node in self.settings}
        self.heard: dict[int, list[ArrivedFrame]] = {node: [] for node in self.settings}
        self.calls: dict[int, list[int]] = {node: [] for node in self.settings}
        """How many frames each call brought."""
        self._network = MemoryNetwork()
        self._news = asyncio.Event()

    async def start(self, node: int, **options: Any) -> Transport:
        def deliver(arrived: list[ArrivedFrame]) -> None:
            # Views are kept for long here.
            self.heard[node] += [one._replace(frame=bytes(one.frame)) for one in arrived]
            self.calls[node].append(len(arrived))
            self._news.set()

        settings, layer = self.settings[node], self.layers[node]
        member: Transport
        if self.kind == "memory":
            member = MemoryTransport(self._network, settings, deliver, faults=layer, **options)
        elif self.kind == "tcp":
            member = TcpTransport(settings, deliver, faults=layer, **options)
        else:
            member = UdpTransport(settings, deliver, faults=layer, **options)
        await member.start()
        self.members[node] = member
        return member

    async def restart(self, node: int) -> Transport:
        """A new life at the same place."""
        await self.members[node].close()
        self.settings[node] = replace(self.settings[node], run_id=os.urandom(16))
        return await self.start(node)

    async def until(self, is_true: Callable[[], object]) -> None:
        """Wait for something that a delivery makes true; the deadline is the test's."""
        while not is_true():
            self._news.clear()
            await self._news.wait()

    async def acquainted(self) -> None:
        """Return when every member has heard every other.

        Over TCP what is said before there is a connection is lost, so say it until it arrives.
        """
        pairs = [(one, other) for one in self.members for other in self.members if one != other]
        said = 0
        while missing := [(one, other) for one, other in pairs if not self.from_(other, one)]:
            for one, other in missing if self.kind == "tcp" or not said else []:
                self.members[one].send(other, [b"how do you do"])
            said += 1
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._news.wait()
        self.forget()

    def forget(self) -> None:
        for node in self.heard:
            self.heard[node] = []
            self.calls[node] = []

    def from_(self, receiver: int, sender: int) -> list[bytes]:
        """What the receiver has heard of the sender, greetings not counted."""
        return [bytes(one.frame) for one in self.heard[receiver] if one.sender == sender]

    def frames(self, receiver: int, sender: int) -> list[bytes]:
        return [frame for frame in self.from_(receiver, sender) if frame != b"how do you do"]

    def rules(self, text: str) -> None:
        for layer in self.layers.values():
            layer.rules = FaultRules.parse(text)

    async def close(self) -> None:
        for member in self.members.values():
            await member.close()


@contextlib.asynccontextmanager
async def hall(kind: str, members: int = 3, **others: Any) -> AsyncIterator[Hall]:
    """Members that know each other."""
    opened = Hall(kind, members, **others)
    try:
        for node in opened.settings:
            await opened.start(node)
        await opened.acquainted()
        yield opened
    finally:
        await opened.close()


def body(number: int, size: int) -> bytes:
    """A frame that is unlike all others."""
    pattern = hashlib.sha256(b"%d" % number).digest()
    return (pattern * (size // len(pattern) + 1))[:size]


SIZES = [1, 299, 1_335, 1_336, 59_000, 61_000, MIB, 3 * MIB]
