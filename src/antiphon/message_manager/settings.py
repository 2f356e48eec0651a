"""What can be set about a message manager. Nothing here enters the fold: replicas may differ in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageManagerSettings:
    """How the primary paces itself."""

    session_expiry_ms: int = 300_000
    """How long a session without a client is kept; a client that comes back later is told so."""

    registration_wait_ms: int = 300
    """How long a new primary waits for consumers of an earlier term before it gives out their messages; and
    any primary for a consumer whose client was lost, before it gives its messages to others."""

    log_time_interval_ms: int = 1_000
    """How often the channel's time moves while there is traffic."""

    in_doubt_ms: int = 2_000
    """How long whoever began to commit a transaction is left to finish it, before others are asked to."""

    in_doubt_again_ms: int = 500
    """And how often they are asked."""

    flush_bytes_max: int = 8 * 1024 * 1024
    """Bytes of bodies given out in one wake-up; the rest comes in the next, so that others get their turn."""

    deliver_bytes_max: int = 1024 * 1024
    """Bytes in one Deliver message, unless a single piece is larger. A frame takes twice as many."""

    batches_kept: int = 16
    """Decoded batches kept for consumers that take a batch in several steps."""

    stream_window_bytes: int = 4 * 1024 * 1024
    """Delivered to a client manager and not acknowledged by it; its consumers get no more until it does."""

    stream_probe_ms: int = 100
    """A client manager that has not acknowledged what it was sent is told how much that was; the first time
    after this, later up to `stream_probe_ms_max`."""

    stream_probe_ms_max: int = 1_000
