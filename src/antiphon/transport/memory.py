"""MemoryTransport: members of one process, joined by queues.

For tests, and for several nodes in one process. Frames are delivered as by the other transports: whole, once
per wake-up, and never to the sender itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from antiphon import clock
from antiphon.errors import NodeError
from antiphon.transport.faults import FaultLayer
from antiphon.transport.interface import NOBODY, ArrivedFrame, Counters, Deliver, TransportSettings, drop_all
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer


class MemoryNetwork:
    """The members of one process that have started."""

    def __init__(self) -> None:
        self.members: dict[int, MemoryTransport] = {}


class MemoryTransport:
    """Frames through a queue."""

    def __init__(
        self,
        network: MemoryNetwork,
        settings: TransportSettings,
        deliver: Deliver = drop_all,
        *,
        faults: FaultLayer | None = None,
    ) -> None:
        self.settings = settings
        self.deliver = deliver
        self.flushes_itself = True
        self.gather_seconds = 0.0
        self._network = network
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._arrived: list[ArrivedFrame] = []
        self._arrived_bytes = 0
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._counters: dict[int | None, Counters] = {node: Counters() for node in settings.peers}
        self._counters[NOBODY] = Counters()

    @property
    def window_bytes(self) -> int:
        """How much may wait for a member before frames are dropped."""
        return self.settings.queue_bytes_max

    @property
    def whole_bytes(self) -> int:
        """No frame is ever cut; the limit is for senders that gather."""
        return self.settings.datagram_bytes

    async def start(self) -> None:
        if self.settings.node in self._network.members:
            raise NodeError(f"member {self.settings.node} is there already")
        self._network.members[self.settings.node] = self

    async def close(self) -> None:
        """Frames that have not been delivered are gone."""
        self._network.members.pop(self.settings.node, None)
        self._arrived = []
        if self._timer is not None:
            self._timer.cancel()

    def send(self, to: int, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        self._counters[to].frames_sent += 1
        self._hand_over(to, b"".join(buffers))

    def multicast(self, lane: Lane, buffers: Sequence[Buffer], *, is_periodic: bool = False) -> None:
        self._counters[self.settings.node].frames_sent += 1
        frame = b"".join(buffers)
        for node in self.settings.others:
            if lane in self.settings.peers[node].lanes:
                self._hand_over(node, frame)

    def look(self) -> None:
        """Frames arrive with the next round of the event loop."""

    def flush(self) -> None:
        """Frames leave at once."""

    def counters(self) -> Mapping[int | None, Counters]:
        return self._counters

    def _hand_over(self, to: int, frame: bytes) -> None:
        other = self._network.members.get(to)
        if other is not None and self._network.members.get(self.settings.node) is self:
            other._take(self.settings.node, self.settings.run_id, frame)

    def _take(self, sender: int, run_id: bytes, frame: bytes) -> None:
        if self._faults is None:
            self._arrive(ArrivedFrame(sender, run_id, frame))
            return
        # Held back together with the sender's run id.
        for data in self._faults.arrive(clock.now_ns(), sender, run_id + frame):
            self._arrive(ArrivedFrame(sender, data[:16], data[16:]))
        self._arm_timer()

    def _arrive(self, arrived: ArrivedFrame) -> None:
        counters = self._counters[arrived.sender]
        if self._arrived_bytes > self.settings.queue_bytes_max:
            counters.dropped += 1
            return
        counters.frames += 1
        counters.bytes += len(arrived.frame)
        self._arrived.append(arrived)
        self._arrived_bytes += len(arrived.frame)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_scheduled)

    def _on_scheduled(self) -> None:
        self._is_scheduled = False
        arrived, self._arrived = self._arrived, []
        self._arrived_bytes = 0
        if arrived:
            self.deliver(arrived)

    def _arm_timer(self) -> None:
        assert self._faults is not None
        if self._faults.next_ns is not None and self._timer is None:
            delay_s = max(0, self._faults.next_ns - clock.now_ns()) / 1e9
            self._timer = self._loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        assert self._faults is not None
        for sender, data in self._faults.due(clock.now_ns()):
            self._arrive(ArrivedFrame(sender, data[:16], data[16:]))
        self._arm_timer()
