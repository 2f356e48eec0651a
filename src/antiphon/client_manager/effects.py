"""What happens to a client manager, and what it asks the world to do.

The rim numbers its connections (`conn`) and never gives a number twice. It tells of bytes as frames
already decoded; what could not be decoded it refuses by itself, and tells `ConnectionLost`.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.bus.effects import (
    EnvelopeCommitted,
    EnvelopeConfirmed,
    EnvelopeUncertain,
    LoadChanged,
    PrimaryChanged,
    Received,
    ServiceChanged,
    SpaceChanged,
    TimeMissed,
)
from antiphon.bus.messages import BusMessage
from antiphon.wire.frames import ClientFrame
from antiphon.wire.primitives import Buffer

# --- events of the rim ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A peer has connected and has said nothing yet."""

    conn: int
    peer: str


@dataclass(frozen=True, slots=True)
class FramesReceived:
    """A peer said this, in this order, since we last looked."""

    conn: int
    frames: list[ClientFrame]


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The peer is gone: it left, it was silent, or the rim closed it. `code` says why, if anybody knows."""

    conn: int
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class WriteBlocked:
    """The peer reads more slowly than we write: much is waiting to be sent to it."""

    conn: int


@dataclass(frozen=True, slots=True)
class WriteUnblocked:
    """What was waiting for the peer is mostly sent."""

    conn: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time passed: `next_deadline_ns` has come."""


# --- events of the node --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answered:
    """The node's answer to `AskNode`; with a `code` it is a refusal, and `text` says why."""

    conn: int
    request: int
    text: str
    code: str = ""


FromChannel = (
    EnvelopeCommitted
    | EnvelopeConfirmed
    | EnvelopeUncertain
    | PrimaryChanged
    | ServiceChanged
    | SpaceChanged
    | TimeMissed
    | LoadChanged
    | BusMessage
    | Received
)


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """Something happened in a channel; a message of its primary may come bare or as `Received`."""

    channel: str
    event: FromChannel


Event = (
    ConnectionOpened
    | FramesReceived
    | ConnectionLost
    | WriteBlocked
    | WriteUnblocked
    | TimePassed
    | Answered
    | ChannelEvent
)


# --- effects -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendFrames:
    """Send these buffers one behind the other; they are whole frames, and must not be changed."""

    conn: int
    buffers: list[Buffer]


@dataclass(frozen=True, slots=True)
class AdmitConnection:
    """The peer has shown who it is: no more handshake deadline, and frames up to this size."""

    conn: int
    frame_bytes_max: int


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Say Goodbye with this code and text, if there is one, and close. No `ConnectionLost` is expected."""

    conn: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Take nothing more from this peer: it is ahead of what the channels can order."""

    conn: int


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read from this peer again."""

    conn: int


@dataclass(frozen=True, slots=True)
class SubmitEnvelope:
    """Hand an envelope to the channel's producer; its fate is told under `tag`."""

    channel: str
    tag: int
    payload: bytes
    count: int


@dataclass(frozen=True, slots=True)
class SendToPrimary:
    """Hand a message to whoever serves the channel."""

    channel: str
    message: BusMessage


@dataclass(frozen=True, slots=True)
class SendToReplica:
    """Hand a message to some replica of the channel that keeps up with it; not to the primary if another
    one does. With every `attempt` that was not answered, to the next one."""

    channel: str
    message: BusMessage
    attempt: int


@dataclass(frozen=True, slots=True)
class AskNode:
    """A client's question to the node; `Answered` will bring the answer."""

    conn: int
    request: int
    text: str


Effect = (
    SendFrames
    | AdmitConnection
    | CloseConnection
    | PauseReading
    | ResumeReading
    | SubmitEnvelope
    | SendToPrimary
    | SendToReplica
    | AskNode
)
