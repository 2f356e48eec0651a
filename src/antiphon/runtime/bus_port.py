"""BusPort: between one channel of a node and its transport.

BPT1  A message to several nodes is encoded once; payloads are not copied on their way to the transport.
BPT2  All frames of one wake-up reach the node in one call.
BPT3  A `CommitSubmit` is taken before late messages that came with it. Those are taken with the next frames,
      or after `LATE_NS`: a sequencer waits for the disk, and nobody for a replica to apply.
BPT4  A frame that does not decode, that is of another channel, or whose header names another sender or run
      than the transport found, is counted and has no other effect.

`outlet.py` decides when and on which lane a message leaves, the transport whether a frame is genuine, the
roles whether its sender may say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from antiphon import clock
from antiphon.bus import codec
from antiphon.bus import effects as bus
from antiphon.bus import messages as said
from antiphon.errors import ProtocolError
from antiphon.events import FRAME_REFUSED, LoggedEvent
from antiphon.node import InChannel
from antiphon.outlet import LATE, LATE_NS, PERIODIC, Outlet
from antiphon.transport.interface import ArrivedFrame, Peer, Transport
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

# Past the constructor of a tuple with names: there are some for every frame.
_new: Final = tuple.__new__

PackedFrame = tuple[Sequence[Buffer], bool]
"""The buffers of a frame, and whether it is periodic."""
Take = Callable[[list[InChannel]], None]
CarryOut = Callable[[bus.Effect], None]


class BusPort:
    def __init__(
        self,
        transport: Transport,
        header: codec.Header,
        take: Take,
        otherwise: CarryOut,
        *,
        peers: Mapping[int, Peer] | None = None,
        is_spare: Callable[[int], bool] | None = None,
        note: Callable[[LoggedEvent], None] = lambda event: None,
    ) -> None:
        """Arrived messages go to `take`, effects that are not for the network to `otherwise`."""
        self.refused = 0
        self._note = note
        self._transport = transport
        self._header = header
        self._take = take
        self._otherwise = otherwise
        room = transport.whole_bytes - len(header.group)
        self._encode = codec.Encoder(header).encode_parts
        self._outlet = Outlet(self._pack, room, node=header.sender, peers=peers, is_spare=is_spare)
        self._timer: asyncio.TimerHandle | None = None
        # Late messages that are taken with the next frames, and when they are at the latest.
        self._put_off: list[InChannel] = []
        self._put_off_timer: asyncio.TimerHandle | None = None
        self._decode = codec.Decoder().decode
        transport.deliver = self._deliver
        transport.flushes_itself = False

    def carry_out(self, effect: bus.Effect) -> None:
        kind = type(effect)
        if kind is bus.Append:
            # First, as there are as many as envelopes.
            self._otherwise(effect)
        elif kind is bus.Multicast:
            self._outlet.multicast(effect.message)  # type: ignore[union-attr]
        elif kind is bus.Send:
            self._outlet.send(effect.to, effect.message)  # type: ignore[union-attr]
        elif kind is bus.Reconfigured:
            self._outlet.settle()
            self._header = self._header._replace(config_id=effect.config.config_id)  # type: ignore[union-attr]
            self._encode = codec.Encoder(self._header).encode_parts
        else:
            self._otherwise(effect)

    def flush(self) -> None:
        outlet = self._outlet
        if frames := outlet.flush(clock.now_ns()):
            self._send(frames)
            self._transport.flush()
        self._transport.gather_seconds = outlet.gather_ns / 1e9
        if outlet.late_at_ns is not None and self._timer is None:
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and (deadline_ns := self._outlet.late_at_ns) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(clock.timer_at(deadline_ns), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if frames := self._outlet.tick(clock.now_ns()):
            self._send(frames)
            self._transport.flush()
        self._arm()

    def _pack(self, message: said.BusMessage) -> PackedFrame:
        return self._encode(message), type(message) in PERIODIC

    def _send(self, frames: list[tuple[int | Lane, PackedFrame]]) -> None:
        transport = self._transport
        for to, (buffers, is_periodic) in frames:
            if type(to) is Lane:
                transport.multicast(to, buffers, is_periodic=is_periodic)
            else:
                transport.send(to, buffers, is_periodic=is_periodic)

    def _deliver(self, arrived: list[ArrivedFrame]) -> None:
        events: list[InChannel] = []
        if self._put_off:
            events = self._put_off
            self._end_putting_off()
        late: list[InChannel] = []
        is_urgent = False
        group, decode = self._header.group, self._decode
        for sender, run_id, frame in arrived:
            try:
                header, message = decode(frame)
            except ProtocolError as error:
                self._refuse(sender, str(error))
                continue
            if header.group != group:
                self._refuse(sender, f"it is for {header.group!r}, and we have no part in that")
            elif header.sender != sender or header.run_id != run_id:
                self._refuse(sender, f"it says that node {header.sender} said it, perhaps in another life")
            else:
                event = _new(InChannel, (group, _new(bus.Received, (sender, message, header.disk_id))))
                kind = type(message)
                if kind in LATE:
                    late.append(event)
                else:
                    is_urgent = is_urgent or kind is said.CommitSubmit
                    events.append(event)
        if late and is_urgent:
            self._put_off = late
            loop = asyncio.get_running_loop()
            self._put_off_timer = loop.call_later(LATE_NS / 1e9, self._take_put_off)
        else:
            events += late
        if events:
            self._take(events)

    def _end_putting_off(self) -> None:
        self._put_off = []
        if self._put_off_timer is not None:
            self._put_off_timer.cancel()

    def _take_put_off(self) -> None:
        events = self._put_off
        self._end_putting_off()
        self._take(events)

    def _refuse(self, sender: int, why: str) -> None:
        if not self.refused:
            self._note(FRAME_REFUSED(member=sender, problem=why))
        self.refused += 1
