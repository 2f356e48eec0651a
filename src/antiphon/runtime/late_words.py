"""LateWords: what some members wait for, and others may as well hear with the next word they get.

Where it sits
    bus port  ->  LATE WORDS  ->  transport

What it promises
    W1  Who listens to the deliveries, the client managers, hears at once: clients wait for it.
    W2  All others hear the same, once and in the same order, before whatever else is said to them alone or to
        all, and no later than `LATE_SECONDS`.

What it leaves to others
    What is said so. It must be something that the network might as well have delayed: that an entry is
    committed, or applied. A replica that hears it later applies it later, and nobody waits for that; but
    every datagram by itself is a step of each replica, just when the client's confirmation is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from antiphon.transport.interface import Lane, Peer, Transport
from antiphon.wire.primitives import Buffer

LATE_SECONDS: Final = 0.005

CallLater = Callable[[float, Callable[[], None]], Any]


class LateWords:
    """What was said to some, and not yet to the others."""

    __slots__ = ("_at_once", "_call_later", "_is_timed", "_transport", "_waiting")

    def __init__(
        self, transport: Transport, peers: Mapping[int, Peer], node: int, call_later: CallLater
    ) -> None:
        others = {number: peer for number, peer in peers.items() if number != node}
        self._transport = transport
        self._call_later = call_later
        self._at_once = [number for number, peer in others.items() if Lane.DELIVERIES in peer.lanes]
        self._waiting: dict[int, list[Sequence[Buffer]]] = {
            number: [] for number, peer in others.items() if Lane.DELIVERIES not in peer.lanes
        }
        self._is_timed = False

    def say(self, buffers: Sequence[Buffer]) -> None:
        """A frame that only some wait for."""
        if len(self._at_once) == 1:
            # Together with what is said to it alone.
            self._transport.send(self._at_once[0], buffers)
        elif self._at_once:
            self._transport.multicast(Lane.DELIVERIES, buffers)
        for waiting in self._waiting.values():
            waiting.append(buffers)
        if not self._is_timed and self._waiting:
            self._is_timed = True
            self._call_later(LATE_SECONDS, self._on_time)

    def before(self, to: int) -> None:
        """Something is about to be said to this member: first what it has not heard (W2)."""
        waiting = self._waiting.get(to)
        if waiting:
            for buffers in waiting:
                self._transport.send(to, buffers)
            waiting.clear()

    def before_all(self) -> None:
        """Something is about to be said to all."""
        for to in self._waiting:
            self.before(to)

    def _on_time(self) -> None:
        self._is_timed = False
        self.before_all()
        self._transport.flush()
