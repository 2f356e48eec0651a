"""Driver: runs a link in an event loop; the common part of `udp` and `tcp`.

Frames that arrive in one wake-up are delivered in one call; frames that are sent in one round of the event
loop leave together, at the latest at its end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from antiphon import clock
from antiphon.clock import timer_at
from antiphon.errors import LocalError, NodeError
from antiphon.transport.faults import FaultLayer, FaultRules
from antiphon.transport.interface import Counters, Deliver, TransportSettings, drop_all
from antiphon.transport.keys import GroupKeys
from antiphon.transport.link import NodeLink, Out
from antiphon.transport.sealing import LANE, UNICAST
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

LOOK_SECONDS: Final = 0.1

_logger = logging.getLogger("antiphon.transport")


class FaultFile:
    """Gives a fault layer the rules in a file, which can be changed while a node runs.

    The driver looks for a change several times a second. Rules that cannot be read are logged, and the former
    rules stay. Without the file there are no faults.
    """

    def __init__(self, path: Path, layer: FaultLayer) -> None:
        self._path = path
        self._layer = layer
        self._seen: object = ()

    def look(self) -> bool:
        """Read the file if it has changed; True if there are new rules."""
        try:
            status = self._path.stat()
            seen: object = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            seen = None
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            text = self._path.read_text(encoding="utf-8") if seen is not None else ""
            self._layer.rules = FaultRules.parse(text)
        except (OSError, UnicodeDecodeError, LocalError) as error:
            _logger.warning("the fault rules in %s stay as they were: %s", self._path, error)
            return False
        return True


class Driver(ABC):
    """A transport without its sockets."""

    def __init__(
        self,
        settings: TransportSettings,
        deliver: Deliver = drop_all,
        *,
        is_repairing: bool,
        datagram_bytes: int,
        faults: FaultLayer | None = None,
        fault_file: Path | None = None,
    ) -> None:
        if not settings.keys.by_id:
            raise NodeError("nodes of a cluster need a group key; an embedded system needs no transport")
        self.settings = settings
        self.deliver = deliver
        self.flushes_itself = True
        self.gather_seconds = 0.0
        if fault_file is not None and faults is None:
            faults = FaultLayer(settings.node)
        self._faults = faults
        self._fault_file = FaultFile(fault_file, faults) if fault_file is not None and faults else None
        self._link = NodeLink(
            settings,
            secret=secrets.token_bytes(32),
            is_repairing=is_repairing,
            datagram_bytes=datagram_bytes,
        )
        self._loop = asyncio.get_running_loop()
        self._is_open = False
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ns = 0
        self._look_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Open the sockets and greet the other members."""
        await self._open()
        self._is_open = True
        if self._fault_file is not None:
            self._look_at_fault_file()
        self._link.start(clock.now_ns())
        self._end_wake_up()

    async def close(self) -> None:
        """Send what waits, and close the sockets."""
        if not self._is_open:
            return
        self.flush()
        self._is_open = False
        for timer in (self._timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        await self._close()

    def send(self, to: int, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        self._say(UNICAST + to, buffers, is_periodic)

    def multicast(self, lane: Lane, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        self._say(LANE + lane, buffers, is_periodic)

    def _say(self, stream: int, buffers: Sequence[Buffer], is_periodic: bool) -> None:
        if not self._is_open:
            return
        if not self._has_room(stream):
            self._link.counters[self._whose(stream)].dropped += 1
            return
        self._link.send(stream, buffers, is_periodic=is_periodic)
        if self.flushes_itself:
            self._schedule()

    def flush(self) -> None:
        link = self._link
        if self._is_open and (link.dirty or link.outgoing):
            self._transmit(link.flush(clock.now_ns()))
            self._arm_timer()

    def look(self) -> None:
        """Deliver what has arrived by now, where that can be had without waiting for the event loop."""
        return

    @property
    def whole_bytes(self) -> int:
        """The largest frame that goes into one datagram, or one record of a stream."""
        return self._link.whole_bytes

    def use_keys(self, keys: GroupKeys) -> None:
        self._link.use_keys(keys)

    def counters(self) -> Mapping[int | None, Counters]:
        return self._link.read_counters()

    def _whose(self, destination: int) -> int:
        """The member for whose counters a destination counts."""
        return destination - UNICAST if destination >= UNICAST else self.settings.node

    # -- what the sockets do ---------------------------------------------------

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _close(self) -> None: ...

    @abstractmethod
    def _has_room(self, stream: int) -> bool:
        """May more be sent, or does too much wait already?"""

    @abstractmethod
    def _transmit(self, outgoing: list[Out]) -> None: ...

    @abstractmethod
    def _take_late(self, now_ns: int) -> None:
        """Hand the link what the fault layer held back until now."""

    # -- time ------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_scheduled)

    def _on_scheduled(self) -> None:
        self._is_scheduled = False
        if self._is_open:
            self._end_wake_up()

    def _end_wake_up(self) -> None:
        """Deliver what has come, send the answers, and set the next timer."""
        link = self._link
        if link.arrived:
            arrived, link.arrived = link.arrived, []
            self.deliver(arrived)
        if link.dirty or link.outgoing:
            self.flush()
        else:
            self._arm_timer()

    def _arm_timer(self) -> None:
        deadline_ns = self._link.deadline_ns
        if self._faults is not None and self._faults.next_ns is not None:
            deadline_ns = min(deadline_ns or self._faults.next_ns, self._faults.next_ns)
        if deadline_ns is None or (self._timer is not None and self._timer_at_ns <= deadline_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ns = deadline_ns
        self._timer = self._loop.call_at(timer_at(deadline_ns), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_open:
            return
        now_ns = clock.now_ns()
        if self._faults is not None and self._faults.next_ns is not None:
            self._take_late(now_ns)
        if self._link.deadline_ns is not None and self._link.deadline_ns <= now_ns:
            self._link.on_timer(now_ns)
        self._end_wake_up()

    def _look_at_fault_file(self) -> None:
        assert self._fault_file is not None
        self._fault_file.look()
        self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look_at_fault_file)
