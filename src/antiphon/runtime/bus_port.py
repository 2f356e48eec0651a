"""BusPort: between the channels of a node and its transport.

Where it sits
    node  ->  Send, Multicast  ->  BUS PORT  ->  codec  ->  transport  ->  codec  ->  BUS PORT  ->  Received

What it promises
    P1  What is said to several is encoded once; payloads are not copied on their way to the transport.
    P2  What arrived in one wake-up reaches the node in one call.
    P3  A frame that is no message, that is of no channel of ours, or whose header names another sender or
        another run than the transport found it to be from, is counted and has no other effect.

What it leaves to others
    Who the members are and whether a frame is genuine is the transport's. Whether its sender may say what
    it says is judged by the roles.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from antiphon.bus import codec
from antiphon.bus import effects as bus
from antiphon.bus import messages as said
from antiphon.bus.group import GroupConfig
from antiphon.errors import ProtocolError
from antiphon.node import InChannel
from antiphon.transport.interface import Arrived, Lane, Transport
from antiphon.wire.primitives import Buffer

log = logging.getLogger("antiphon.bus")

LANES: Final[dict[type[said.BusMessage], Lane]] = {said.Data: Lane.DATA, said.Deliver: Lane.DELIVERIES}
"""Where a message to all goes that does not concern all; the rest is CONTROL."""

Take = Callable[[list[InChannel]], None]
CarryOut = Callable[[bus.Effect], None]


class BusPort:
    """The one way of a node to the others, for all of its channels."""

    def __init__(self, transport: Transport, node: int, run_id: bytes, take: Take) -> None:
        """From now on, what arrives is taken to the node by `take`."""
        self.refused = 0
        self._transport = transport
        self._node = node
        self._run_id = run_id
        self._take = take
        self._channels: dict[str, str] = {}
        self._decode = codec.Decoder().decode
        transport.deliver = self._deliver

    def join(self, config: GroupConfig, disk_id: bytes, otherwise: CarryOut) -> CarryOut:
        """Carries out effects of this channel from now on: what is not for the network goes `otherwise`."""
        transport, node, run_id = self._transport, self._node, self._run_id
        self._channels[config.group] = config.group
        encoder = codec.Encoder(codec.Header(config.group, config.config_id, node, run_id, disk_id))
        last: said.BusMessage | None = None
        parts: Sequence[Buffer] = ()

        def encode(message: said.BusMessage) -> Sequence[Buffer]:
            nonlocal last, parts
            if message is not last:
                last, parts = message, encoder.encode_parts(message)
            return parts

        def carry_out(effect: bus.Effect) -> None:
            nonlocal encoder
            kind = type(effect)
            if kind is bus.Multicast:
                message = effect.message  # type: ignore[union-attr]
                transport.multicast(LANES.get(type(message), Lane.CONTROL), encode(message))
            elif kind is bus.Send:
                transport.send(effect.to, encode(effect.message))  # type: ignore[union-attr]
            elif kind is bus.Reconfigured:
                config_id = effect.config.config_id  # type: ignore[union-attr]
                encoder = codec.Encoder(codec.Header(config.group, config_id, node, run_id, disk_id))
            else:
                otherwise(effect)

        return carry_out

    def flush(self) -> None:
        """The step is over: what it wanted sent leaves."""
        self._transport.flush()

    def _deliver(self, arrived: list[Arrived]) -> None:
        events: list[InChannel] = []
        channels, decode = self._channels, self._decode
        for sender, run_id, frame in arrived:
            try:
                header, message = decode(frame)
            except ProtocolError as error:
                self._refuse(sender, str(error))
                continue
            channel = channels.get(header.group)
            if channel is None:
                self._refuse(sender, f"it is for {header.group!r}, and we have no part in that")
            elif header.sender != sender or header.run_id != run_id:
                self._refuse(sender, f"it says that node {header.sender} said it, perhaps in another life")
            else:
                events.append(InChannel(channel, bus.Received(sender, message, header.disk_id)))
        if events:
            self._take(events)

    def _refuse(self, sender: int, why: str) -> None:
        if not self.refused:
            log.warning("a frame of member %d is not taken: %s (said once, counted from now on)", sender, why)
        self.refused += 1
