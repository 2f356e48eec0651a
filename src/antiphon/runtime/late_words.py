"""LateWords: what some members wait for, and others may as well hear with the next word they get.

Where it sits
    bus port  ->  LATE WORDS  ->  transport

What it promises
    W1  Who listens to the deliveries, the client managers, hears at once: clients wait for it.
    W2  All others hear the same, once and in the same order, before whatever else is said to one of them or
        to all, and no later than `LATE_SECONDS`.
    W3  Where only they listen to the envelopes' lane (there is no witness) they hear it there, all at once,
        and what is submitted to all of them in the same datagram: no client manager is woken for it.

What it leaves to others
    What is said so. It must be something that the network might as well have delayed: that an entry is
    committed, or applied. A replica that hears it later applies it later, and nobody waits for that; but
    every datagram by itself is a step of each replica, just when the client's confirmation is on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from antiphon.transport.interface import Peer, Transport
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

LATE_SECONDS: Final = 0.005

CallLater = Callable[[float, Callable[[], None]], Any]


class LateWords:
    """What was said to some, and not yet to the others."""

    __slots__ = ("_at_once", "_call_later", "_is_timed", "_others", "_transport", "_waiting", "lane")

    def __init__(
        self, transport: Transport, peers: Mapping[int, Peer], node: int, call_later: CallLater
    ) -> None:
        others = {number: peer for number, peer in peers.items() if number != node}
        self._transport = transport
        self._call_later = call_later
        self._at_once = [number for number, peer in others.items() if Lane.DELIVERIES in peer.lanes]
        self._others = {number for number in others if number not in self._at_once}
        hears = {number: Lane.DATA in peer.lanes for number, peer in others.items()}
        is_theirs = all(hears[to] for to in self._others) and not any(hears[to] for to in self._at_once)
        self.lane = Lane.DATA if is_theirs else Lane.CONTROL
        """Where all of them are told what is for no client manager (W3)."""
        self._waiting: list[Sequence[Buffer]] = []
        self._is_timed = False

    def say(self, buffers: Sequence[Buffer]) -> None:
        """A frame that only some wait for."""
        if len(self._at_once) == 1:
            # Together with what is said to it alone.
            self._transport.send(self._at_once[0], buffers)
        elif self._at_once:
            self._transport.multicast(Lane.DELIVERIES, buffers)
        if not self._others:
            return
        self._waiting.append(buffers)
        if not self._is_timed:
            self._is_timed = True
            self._call_later(LATE_SECONDS, self._on_time)

    def is_for_all(self, members: Collection[int]) -> bool:
        """Are these all that listen to the lane?"""
        return self._others == set(members)

    def before(self, to: int) -> None:
        """Something is about to be said to this member: first what it has not heard (W2)."""
        if self._waiting and to in self._others:
            self.before_all()

    def before_all(self) -> None:
        """Something is about to be said to all."""
        waiting, self._waiting = self._waiting, []
        for buffers in waiting:
            if self.lane is Lane.DATA:
                self._transport.multicast(Lane.DATA, buffers)
            else:
                for to in sorted(self._others):
                    self._transport.send(to, buffers)

    def _on_time(self) -> None:
        self._is_timed = False
        if self._waiting:
            self.before_all()
            self._transport.flush()
