"""Speaker: a client process that speaks frames by itself, and the numbers of its commands.

It is not the client library: what a session has said and heard no outcome of is kept here, so that it can be
said again under the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from antiphon.sim.workloads.process import ClientHabits, ClientProcess, Hall
from antiphon.wire.commands import CommandKind, ConfirmItem, encode_command
from antiphon.wire.frames import ClientFrame, Goodbye, Hello, Ping, Pong, ServerFrame

Concerned = TypeVar("Concerned")
Settled = Callable[[ConfirmItem], None]


@dataclass(slots=True)
class Kept:
    """A command without an outcome, with all that sending it again takes, and who waits for it."""

    kind: CommandKind
    count: int
    payload: bytes
    then: Settled | None = None
    open: set[int] = field(default_factory=set)


class Numbers:
    """The numbers of a session in one channel, and what has no outcome there."""

    def __init__(self) -> None:
        self.next_number = 1
        self.unconfirmed: dict[int, Kept] = {}

    @property
    def confirmed_through(self) -> int:
        """Every number up to here has its outcome."""
        return next(iter(self.unconfirmed), self.next_number) - 1

    def keep(self, kept: Kept) -> int:
        """Give a new command the next number, and remember it."""
        number = self.next_number
        self.next_number += kept.count
        kept.open.update(range(number, number + kept.count))
        self.unconfirmed[number] = kept
        return number

    def command(self, number: int, session: int, generation: int) -> bytes:
        """The command of this number, as it is sent for the first time or again."""
        kept = self.unconfirmed[number]
        return encode_command(
            kept.kind, session, generation, number, self.confirmed_through, kept.payload, kept.count
        )

    def note(self, item: ConfirmItem) -> None:
        """These have their outcome, and whoever waits for it is told."""
        numbers = range(item.number, item.number + item.count)
        for number, kept in list(self.unconfirmed.items()):
            kept.open.difference_update(numbers)
            if not kept.open:
                del self.unconfirmed[number]
                if kept.then is not None:
                    kept.then(item)


class Speaker(ClientProcess, Generic[Concerned]):
    """One client process; each of its requests concerns somebody."""

    def __init__(self, name: str, hall: Hall, habits: ClientHabits) -> None:
        super().__init__(name, hall, habits)
        # None: the answer concerns nobody any more.
        self._requests: dict[int, Concerned | None] = {}
        self._last_request = 0

    def greet(self) -> None:
        self._requests.clear()
        self.say(Hello(user="sim", password="", client_id=""))

    def say(self, frame: ClientFrame) -> None:
        """Send a frame, if there is a connection."""
        if self.connection is not None:
            self.connection.send(frame)

    def next_request(self, concerned: Concerned | None) -> int:
        """A fresh request number, remembered with whom its answer concerns."""
        self._last_request += 1
        self._requests[self._last_request] = concerned
        return self._last_request

    def on_frame(self, frame: ServerFrame) -> None:
        match frame:
            case Ping():
                self.say(Pong(nonce=frame.nonce))
            case Goodbye():
                self.world.probe(f"client.goodbye.{frame.code}")
            case _:
                pass
