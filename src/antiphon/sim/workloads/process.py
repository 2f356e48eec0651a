"""ClientProcess: what all simulated clients have in common: they connect, lose connections, and die."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.sim.checkers.watch import Watch
from antiphon.sim.network import ClientPort, Connection, Network
from antiphon.sim.world import MILLISECOND_NS, World
from antiphon.wire.frames import ServerFrame

BATCH_BYTES_MAX = 32 * 1024
"""An envelope must fit the small segments of the simulated journal."""


@dataclass(slots=True)
class ClientHabits:
    """How the clients of this run behave; drawn once per run."""

    batch_rows_max: int = 12
    body_bytes_max: int = 200
    window_commands: int = 4
    publish_pause_ns: int = 4 * MILLISECOND_NS
    credit_messages: int = 20
    credit_bytes: int = 1 << 20
    take_pause_ns: int = 2 * MILLISECOND_NS
    acknowledge_pause_ns: int = 5 * MILLISECOND_NS
    reconnect_ns: int = 20 * MILLISECOND_NS
    resume_probability: float = 0.7
    return_probability: float = 0.0
    reopen_probability: float = 0.0


@dataclass(slots=True)
class Hall:
    """Where clients live."""

    world: World
    network: Network
    watch: Watch
    find_port: Callable[[], ClientPort | None]


class ClientProcess:
    """One client process with one connection at a time."""

    def __init__(self, name: str, hall: Hall, habits: ClientHabits) -> None:
        self.name = name
        self.world = hall.world
        self.watch = hall.watch
        self.habits = habits
        self.chance: random.Random = hall.world.random(f"workload/{name}")
        self.connection: Connection | None = None
        # Counts the connections; what was planned for an earlier one does not happen.
        self.life = 0
        self._hall = hall

    # For the kinds of client.

    @property
    def is_idle(self) -> bool:
        """Has it nothing left to do, and nothing to wait for?"""
        raise NotImplementedError

    @property
    def waits_for(self) -> str:
        """What it waits for, in words."""
        raise NotImplementedError

    def greet(self) -> None:
        """There is a connection: say the first word."""
        raise NotImplementedError

    def on_frame(self, frame: ServerFrame) -> None:
        """The node said this."""
        raise NotImplementedError

    def pause(self) -> None:
        """There is no connection any more."""
        raise NotImplementedError

    def forget(self) -> None:
        """The process is a new one and knows nothing of the old one's sessions."""
        raise NotImplementedError

    # Living and dying.

    def connect_later(self) -> None:
        """Connect after a while; while the node is down, try again."""
        life = self.life
        self.world.after(self.chance.randrange(1, self.habits.reconnect_ns), lambda: self._connect(life))

    def _connect(self, life: int) -> None:
        if self.life != life or self.connection is not None:
            return
        port = self._hall.find_port()
        if port is None:
            self.connect_later()
            return
        end = _End(self)
        self.connection = end.connection = self._hall.network.connect(end, port)
        self.greet()

    def crash(self) -> None:
        """The process dies with everything it knew, and another is started in its place."""
        self.world.probe("client.crashed")
        if self.connection is not None:
            self.connection.abandon()
        self._lose()
        self.forget()
        self.connect_later()

    def move(self) -> None:
        """Come again on a new connection while the old one still lives as far as the node knows."""
        if self.connection is None:
            return
        self.world.probe("client.moved")
        left = self.connection
        self._lose()
        self._connect(self.life)
        self.world.after(self.chance.randrange(self.habits.reconnect_ns), left.abandon)

    def on_lost(self) -> None:
        """The connection is gone."""
        self._lose()
        self.connect_later()

    def _lose(self) -> None:
        self.connection = None
        self.life += 1
        self.pause()


class _End:
    """The client's end of one connection; what a connection says that was left is not heard."""

    def __init__(self, client: ClientProcess) -> None:
        self._client = client
        self.connection: Connection | None = None

    def on_frame(self, frame: ServerFrame) -> None:
        """The node said this."""
        client = self._client
        if client.connection is self.connection:
            if client.world.trace.is_on:
                client.world.note(client.name, f"hears {type(frame).__name__}")
            client.on_frame(frame)

    def on_lost(self) -> None:
        """The connection is gone."""
        if self._client.connection is self.connection:
            self._client.on_lost()
