"""BusPort: between the channels of a node and its transport.

Where it sits
    node  ->  Send, Multicast  ->  BUS PORT  ->  codec  ->  transport  ->  codec  ->  BUS PORT  ->  Received

What it promises
    P1  What is said to several is encoded once; payloads are not copied on their way to the transport.
    P2  What arrived in one wake-up reaches the node in one call, and the envelopes that a step sends to all
        leave in as few frames as hold them: half of what a small envelope costs is being said alone. What is
        submitted to every replica is said once to all of them.
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
from antiphon.bus.schema import KINDS
from antiphon.errors import ProtocolError
from antiphon.node import InChannel
from antiphon.runtime.late_words import LateWords
from antiphon.transport.interface import Arrived, Transport
from antiphon.wire.lanes import Lane
from antiphon.wire.primitives import Buffer

log = logging.getLogger("antiphon.bus")

_LANES: Final = {message: kind.lane for message, kind in KINDS.items() if kind.lane is not None}
_LATE: Final = frozenset([message for message, kind in KINDS.items() if kind.is_late])

_HEAD_BYTES: Final = 64
_ROW_BYTES: Final = said.ENVELOPE_BYTES

Take = Callable[[list[InChannel]], None]
CarryOut = Callable[[bus.Effect], None]


class _Voice:
    """What one channel of this node says."""

    def __init__(
        self, transport: Transport, header: codec.Header, otherwise: CarryOut, late: LateWords | None
    ) -> None:
        self._transport = transport
        self._late = late
        self._header = header
        self._otherwise = otherwise
        self._encoder = codec.Encoder(header)
        self._last: said.BusMessage | None = None
        self._parts: Sequence[Buffer] = ()
        # Envelopes of this step, and what a frame with all of them takes.
        self._room = transport.whole_bytes - _HEAD_BYTES - len(header.group)
        self._gathered: list[said.Data] = []
        self._gathered_bytes = 0
        # What was submitted last in this step, and to whom.
        self._submit: said.CommitSubmit | None = None
        self._submit_to: list[int] = []

    def carry_out(self, effect: bus.Effect) -> None:
        kind = type(effect)
        if kind is bus.Append:
            # As many as there are envelopes.
            self._otherwise(effect)
        elif kind is bus.Multicast:
            message = effect.message  # type: ignore[union-attr]
            if type(message) is said.Data:
                self._gather(message)
            elif self._late is not None and type(message) in _LATE:
                self._late.say(self._encode(message))
            else:
                lane = _LANES[type(message)]
                if self._late is not None and lane is Lane.CONTROL:
                    self._late.before_all()
                self._transport.multicast(lane, self._encode(message))
        elif kind is bus.Send:
            self._send(effect.to, effect.message)  # type: ignore[union-attr]
        elif kind is bus.Reconfigured:
            self.say_gathered()
            self._header = self._header._replace(config_id=effect.config.config_id)  # type: ignore[union-attr]
            self._encoder = codec.Encoder(self._header)
        else:
            self._otherwise(effect)

    def _send(self, to: int, message: said.BusMessage) -> None:
        late = self._late
        if late is None:
            self._transport.send(to, self._encode(message))
        elif type(message) is said.CommitSubmit and late.lane is Lane.DATA:
            if message is not self._submit:
                self._say_submit()
                self._submit = message
            self._submit_to.append(to)
        else:
            late.before(to)
            self._transport.send(to, self._encode(message))

    def _say_submit(self) -> None:
        """What is submitted leaves: in one datagram if it is for all others that listen there, as a rule."""
        submit, late = self._submit, self._late
        if submit is None or late is None:
            return
        late.before_all()
        if late.is_for_all(self._submit_to):
            self._transport.multicast(late.lane, self._encode(submit))
        else:
            for to in self._submit_to:
                self._transport.send(to, self._encode(submit))
        self._submit, self._submit_to = None, []

    def _encode(self, message: said.BusMessage) -> Sequence[Buffer]:
        if message is not self._last:
            self._last, self._parts = message, self._encoder.encode_parts(message)
        return self._parts

    def _gather(self, data: said.Data) -> None:
        size = len(data.payload) + _ROW_BYTES
        if self._gathered and self._gathered_bytes + size > self._room:
            self.say_gathered()
        self._gathered.append(data)
        self._gathered_bytes += size

    def say_gathered(self) -> None:
        """The envelopes that were gathered leave in one frame, and what is submitted."""
        if self._submit is not None:
            self._say_submit()
        gathered = self._gathered
        if gathered:
            message = gathered[0] if len(gathered) == 1 else said.Envelopes(tuple(gathered))
            self._transport.multicast(Lane.DATA, self._encoder.encode_parts(message))
            self._gathered, self._gathered_bytes = [], 0


class BusPort:
    """The one way of a node to the others, for all of its channels."""

    def __init__(
        self, transport: Transport, node: int, run_id: bytes, take: Take, late: LateWords | None = None
    ) -> None:
        """From now on, what arrives is taken to the node by `take`. Without `late` all hear all at once."""
        self.refused = 0
        self._late = late
        self._transport = transport
        self._node = node
        self._run_id = run_id
        self._take = take
        self._channels: dict[str, str] = {}
        self._voices: list[_Voice] = []
        self._decode = codec.Decoder().decode
        transport.deliver = self._deliver
        transport.flushes_itself = False

    def join(self, config: GroupConfig, disk_id: bytes, otherwise: CarryOut) -> CarryOut:
        """Carries out effects of this channel from now on: what is not for the network goes `otherwise`."""
        header = codec.Header(config.group, config.config_id, self._node, self._run_id, disk_id)
        voice = _Voice(self._transport, header, otherwise, self._late)
        self._channels[config.group] = config.group
        self._voices.append(voice)
        return voice.carry_out

    def flush(self) -> None:
        """The step is over: what it wanted sent leaves."""
        for voice in self._voices:
            voice.say_gathered()
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
