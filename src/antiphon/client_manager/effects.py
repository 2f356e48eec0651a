"""Events and effects of a client manager.

The rim numbers its connections (`conn`), each number once. It hands over decoded frames; undecodable bytes it
refuses by itself, and tells `ConnectionLost`.
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
    RunOver,
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
    """A peer has connected and has sent nothing yet."""

    conn: int
    peer: str


@dataclass(frozen=True, slots=True)
class FramesReceived:
    """The frames of a peer since the last step, in order."""

    conn: int
    frames: list[ClientFrame]


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The peer is gone: it left, it was silent, or the rim closed it. `code` is the reason, if known."""

    conn: int
    code: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class WriteBlocked:
    """The peer reads too slowly: many bytes are waiting to be sent to it."""

    conn: int


@dataclass(frozen=True, slots=True)
class WriteUnblocked:
    """The bytes that were waiting for the peer are mostly sent."""

    conn: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`next_deadline_ns` has come."""


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
    | RunOver
    | ServiceChanged
    | SpaceChanged
    | TimeMissed
    | LoadChanged
    | BusMessage
    | Received
)


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """An event of a channel; a message of its primary may come bare or as `Received`."""

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
    """The peer is authenticated: no more handshake deadline, and frames up to this size."""

    conn: int
    frame_bytes_max: int


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Send Goodbye with this code and text, if there is one, and close. No `ConnectionLost` is expected."""

    conn: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Take nothing more from this peer: it is ahead of the channels."""

    conn: int


@dataclass(frozen=True, slots=True)
class ResumeReading:
    conn: int


@dataclass(frozen=True, slots=True)
class SubmitEnvelope:
    """Hand an envelope to the channel's producer; its outcome comes under `tag`."""

    channel: str
    tag: int
    payload: bytes
    count: int


@dataclass(frozen=True, slots=True)
class SendToPrimary:
    """Send a message to the channel's primary."""

    channel: str
    message: BusMessage


@dataclass(frozen=True, slots=True)
class SendToReplica:
    """Send a message to a replica of the channel that keeps up, not to the primary if another one does. Every
    unanswered `attempt` goes to the next one."""

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
