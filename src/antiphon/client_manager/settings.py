"""How much a client manager takes in before it says wait, or no."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.wire.buffer import FRAME_BYTES_MAX

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientManagerSettings:
    """Limits of one client manager; the defaults suit one machine."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    heartbeat_ms: int = 10_000

    sessions_max: int = 1_000
    """Sessions of one connection."""

    consumers_max: int = 1_000
    """Consumers of one session."""

    requests_max: int = 4_096
    """Requests of one connection that still wait for their answer: all its consumers, and then some."""

    question_length_max: int = 64 * KIB
    """Characters of one question to the node."""

    window_bytes: int = 4 * MIB
    """Published but not yet confirmed, for each session and channel. A client is told, and keeps to it."""

    connection_bytes_max: int = 16 * MIB
    """Unconfirmed commands of one connection above which we stop reading from it."""

    total_bytes_max: int = 256 * MIB
    """Unconfirmed commands of all clients above which we stop reading from whoever sends more."""

    envelope_bytes: int = 512 * KIB
    """Half of `submitted_bytes_max`: one envelope is gathered while another is being written."""

    envelope_bytes_max: int = 2 * MIB
    """A single command may be larger than `envelope_bytes`; then it travels alone, up to this."""

    envelope_count_max: int = 65_536

    submitted_bytes_max: int = 1 * MIB
    """Submitted to a channel and not yet committed. What comes later waits, so that it is gathered."""

    turn_bytes: int = 64 * KIB
    """What one session may add to an envelope before it is the next one's turn."""
