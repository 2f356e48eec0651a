"""UdpTransport: multicast for the lanes, unicast for the rest.

Where it sits
    driver and link  ->  UDP  ->  the network

What it promises
    UDP1  A wake-up drains all readable sockets, up to 64 datagrams each, into one reused buffer, and delivers
          their frames in one call. With `gather_seconds` it comes so much later, once for all that has
          arrived by then.
    UDP2  Sending is paced: a burst never exceeds half of what a receive buffer holds.

What it leaves to others
    The link decides everything that can be decided without a socket.

Small datagrams go to and come from the kernel many in one call; they remain single datagrams, each sealed for
itself. Linux only, for its `epoll`.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from antiphon import clock
from antiphon.errors import NodeError
from antiphon.transport import sockets
from antiphon.transport.driver import Driver
from antiphon.transport.faults import FaultLayer
from antiphon.transport.interface import Address, Counters, Deliver, TransportSettings, drop_all, kernel_bytes
from antiphon.transport.link import Out
from antiphon.transport.sealing import LANE, UNICAST, claimed_sender
from antiphon.wire.lanes import Lane

DRAIN_MAX: Final = 64
_DATAGRAM_BYTES_MAX: Final = 65_536
_SEGMENTS_MAX: Final = 64
_SEGMENTS_BYTES_MAX: Final = 64_000
# Above this a datagram is worth a call of its own, and joining few of them is not.
_SMALL_BYTES: Final = 16_384
_RETRY_SECONDS: Final = 0.001

_logger = logging.getLogger("antiphon.transport")


_SECOND_NS: Final = 1_000_000_000


class Pacer:
    """A token bucket: bursts of `burst_bytes`, and `bytes_per_second` in the long run.

    Without it a frame of 3 MiB, cut into two thousand datagrams and sent within a millisecond, would overrun
    the receive buffers of all members.
    """

    __slots__ = ("_burst", "_now_ns", "_rate", "level")

    def __init__(self, *, bytes_per_second: int, burst_bytes: int) -> None:
        assert bytes_per_second > 0 and burst_bytes > 0
        self._rate = bytes_per_second
        self._burst = burst_bytes
        self.level = burst_bytes
        self._now_ns = 0

    def may_send(self, now_ns: int) -> bool:
        """Is any budget left? A datagram may exceed it; the excess is owed."""
        if self.level <= 0:
            self._fill(now_ns)
        return self.level > 0

    def wait_ns(self) -> int:
        """How long until an eighth of a burst may be sent again."""
        return max(0, -self.level + self._burst // 8) * _SECOND_NS // self._rate

    def _fill(self, now_ns: int) -> None:
        earned = (now_ns - self._now_ns) * self._rate // _SECOND_NS
        self.level = min(self._burst, self.level + earned)
        self._now_ns = now_ns


class UdpTransport(Driver):
    """Frames over UDP. Lanes are multicast groups."""

    def __init__(
        self,
        settings: TransportSettings,
        deliver: Deliver = drop_all,
        *,
        faults: FaultLayer | None = None,
        fault_file: Path | None = None,
    ) -> None:
        missing = [lane.name for lane in Lane if lane not in settings.groups]
        if missing:
            raise NodeError(f"no multicast group is given for {', '.join(missing)}")
        super().__init__(
            settings,
            deliver,
            is_repairing=True,
            datagram_bytes=settings.datagram_bytes,
            faults=faults,
            fault_file=fault_file,
        )
        self._addresses: dict[int, Address] = {LANE + lane: group for lane, group in settings.groups.items()}
        self._buffer = bytearray(_DATAGRAM_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self._queue: deque[Out] = deque()
        self._queued_bytes = 0
        self._retry_is_set = False
        self._granted_bytes = settings.receive_buffer_bytes
        self._spared: set[int] = set()
        self._echoes = 0
        """Own echoes that the kernel dropped for us, and counts among those it had no room for."""

    @property
    def window_bytes(self) -> int:
        """The receive buffer that the kernel granted; each datagram counts as `kernel_bytes`."""
        return self._granted_bytes

    async def _open(self) -> None:
        settings = self.settings
        own = settings.peers[settings.node]
        wanted = settings.receive_buffer_bytes
        # Look names up once: looking one up with every datagram stops the loop.
        for node, peer in settings.peers.items():
            self._addresses[UNICAST + node] = await self._look_up(peer.host, peer.port)
        self._sender = sockets.open_unicast(
            self._addresses[UNICAST + settings.node],
            interface=settings.interface,
            hops=settings.hops,
            buffer_bytes=wanted,
        )
        self._sockets = {self._sender.fileno(): self._sender}
        try:
            for lane in sorted(own.lanes):
                sock = sockets.open_multicast(
                    settings.groups[lane], interface=settings.interface, buffer_bytes=wanted
                )
                self._sockets[sock.fileno()] = sock
                if sockets.spare_own_echo(sock, settings.run_id):
                    self._spared.add(LANE + lane)
        except NodeError:
            self._close_sockets()
            raise
        self._granted_bytes = min(map(sockets.granted_bytes, self._sockets.values()))
        if self._granted_bytes < wanted:
            _logger.warning(
                "the kernel grants receive buffers of %d bytes, not %d; raise net.core.rmem_max",
                self._granted_bytes,
                wanted,
            )
        self._pacer = Pacer(
            bytes_per_second=settings.pace_bytes_per_second, burst_bytes=self._granted_bytes // 2
        )
        is_small = settings.datagram_bytes <= _SMALL_BYTES
        self._is_segmenting = is_small and sockets.can_segment(self._sender)
        self._is_joined = is_small and all(map(sockets.receive_joined, self._sockets.values()))
        self._drain = self._drain_joined if self._is_joined else self._drain_single
        # One descriptor that is readable when any socket is: so one wake-up serves them all.
        self._poll = select.epoll()
        for descriptor in self._sockets:
            self._poll.register(descriptor, select.EPOLLIN)
        self._loop.add_reader(self._poll.fileno(), self._on_readable)

    async def _look_up(self, host: str, port: int) -> Address:
        try:
            found = await self._loop.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM)
        except OSError as error:
            raise NodeError(f"cannot find the host {host}: {error.strerror}") from None
        address, number = found[0][4][:2]
        return str(address), int(number)

    async def _close(self) -> None:
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def counters(self) -> Mapping[int | None, Counters]:
        found = super().counters()
        if self._is_open:
            dropped = sockets.drops(self._sockets.values()) - self._echoes
            found[self.settings.node].socket_drops = max(0, dropped)
        return found

    # -- receiving -------------------------------------------------------------

    def _on_readable(self) -> None:
        if self.gather_seconds:
            self._loop.remove_reader(self._poll.fileno())
            self._loop.call_later(self.gather_seconds, self._on_gathered)
        else:
            self._drain_all()

    def _on_gathered(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._poll.fileno(), self._on_readable)
            self._drain_all()
            if self._poll.poll(0):
                # More than one wake-up takes. It has waited long enough, and buffers are finite.
                self._loop.remove_reader(self._poll.fileno())
                self._loop.call_soon(self._on_gathered)

    def look(self) -> None:
        if self._is_open:
            self._drain_all()

    def _drain_all(self) -> None:
        readable = self._poll.poll(0)
        if readable:
            now_ns = clock.now_ns()
            for descriptor, _ in readable:
                self._drain(now_ns, self._sockets[descriptor])
            self._end_wake_up()

    def _drain_single(self, now_ns: int, sock: socket.socket) -> None:
        buffer, view = self._buffer, self._view
        receive = self._link.receive if self._faults is None else self._receive_faulty
        receive_into = sock.recv_into
        for _ in range(DRAIN_MAX):
            try:
                size = receive_into(buffer)
            except BlockingIOError:
                return
            except OSError:
                # An error of an earlier outgoing datagram: no socket is bound there (yet).
                continue
            receive(now_ns, view[:size])

    def _drain_joined(self, now_ns: int, sock: socket.socket) -> None:
        buffers, view = [self._buffer], self._view
        receive = self._link.receive if self._faults is None else self._receive_faulty
        taken = 0
        while taken < DRAIN_MAX:
            try:
                size, notes, _, _ = sock.recvmsg_into(buffers, sockets.GRO_SPACE)
            except BlockingIOError:
                return
            except OSError:
                taken += 1
                continue
            # Without a note the buffer is one datagram, perhaps an empty one.
            step = sockets.GRO_CMSG.unpack(notes[0][2])[0] if notes else max(1, size)
            for at in range(0, max(1, size), step):
                receive(now_ns, view[at : min(at + step, size)])
                taken += 1

    def _receive_faulty(self, now_ns: int, datagram: memoryview) -> None:
        assert self._faults is not None
        for arrived in self._faults.arrive(now_ns, claimed_sender(datagram), bytes(datagram)):
            self._link.receive(now_ns, arrived)

    def _take_late(self, now_ns: int) -> None:
        assert self._faults is not None
        for _, datagram in self._faults.due(now_ns):
            self._link.receive(now_ns, datagram)

    # -- sending ---------------------------------------------------------------

    def _has_room(self, stream: int) -> bool:
        return self._queued_bytes <= self.settings.queue_bytes_max

    def _transmit(self, outgoing: list[Out]) -> None:
        if outgoing:
            self._queue += outgoing
            self._queued_bytes += sum([len(datagram.rest) for _, datagram in outgoing])
        if self._queue and not self._retry_is_set:
            self._send_queue()

    def _send_queue(self) -> None:
        queue, pacer = self._queue, self._pacer
        while queue:
            if pacer.level <= 0 and not pacer.may_send(clock.now_ns()):
                self._retry_after(max(_RETRY_SECONDS, pacer.wait_ns() / 1e9))
                return
            count = self._count_segments() if self._is_segmenting else 1
            if not (self._send_one() if count == 1 else self._send_segments(count)):
                self._retry_after(_RETRY_SECONDS)
                return

    def _retry_after(self, seconds: float) -> None:
        self._retry_is_set = True
        self._loop.call_later(seconds, self._retry)

    def _retry(self) -> None:
        self._retry_is_set = False
        if self._is_open:
            self._send_queue()

    def _send_one(self) -> bool:
        """Send the first in the queue; False if the kernel has no room for it now."""
        destination, datagram = self._queue[0]
        try:
            self._sender.sendmsg(datagram, (), 0, self._addresses[destination])
        except BlockingIOError:
            return False
        except OSError as error:
            self._note_refused(destination, error)
        else:
            self._echoes += destination in self._spared
        self._sent()
        return True

    def _sent(self) -> None:
        _, datagram = self._queue.popleft()
        size = len(datagram.rest)
        self._queued_bytes -= size
        self._pacer.level -= kernel_bytes(size)

    def _count_segments(self) -> int:
        """How many from the front can go together: one destination, one size, the last may be shorter."""
        destination, datagram = self._queue[0]
        size = len(datagram.rest)
        count = 0
        for other, following in self._queue:
            if other != destination or len(following.rest) > size or count == _SEGMENTS_MAX:
                break
            count += 1
            if len(following.rest) < size or count * (size + len(datagram.head)) > _SEGMENTS_BYTES_MAX - size:
                break
        return count

    def _send_segments(self, count: int) -> bool:
        destination, datagram = self._queue[0]
        size = len(datagram.head) + len(datagram.rest)
        buffers = [part for _, sealed in islice(self._queue, count) for part in sealed]
        note = (sockets.SOL_UDP, sockets.UDP_SEGMENT, sockets.SEGMENT_CMSG.pack(size))
        try:
            self._sender.sendmsg(buffers, [note], 0, self._addresses[destination])
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP):
                # The network card, or the path, cannot segment: send one by one.
                self._is_segmenting = False
                return True
            self._note_refused(destination, error)
        else:
            # One buffer to the kernel, unless the kernel would have to take it apart again.
            if destination in self._spared:
                self._echoes += 1 if self._is_joined else count
        for _ in range(count):
            self._sent()
        return True

    def _note_refused(self, destination: int, error: OSError) -> None:
        """The kernel refuses to send; a member that is not there yet is not logged."""
        if error.errno == errno.ECONNREFUSED:
            return
        counters = self._link.counters[self._whose(destination)]
        if not counters.dropped:
            _logger.warning(
                "the kernel refuses a datagram for %s: %s (said once)",
                self._addresses[destination],
                error.strerror,
            )
        counters.dropped += 1
