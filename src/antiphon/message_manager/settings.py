"""The settings of a message manager. No setting enters the fold: replicas may have different ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageManagerSettings:
    session_expiry_ms: int = 300_000
    """How long a session without a client is kept."""

    client_id_kept_ms: int = 2_000
    """How long the client id of a lost connection is kept for it, until another connection may have it."""

    registration_wait_ms: int = 300
    """How long a new primary waits for consumers of an earlier term, and any primary for a lost client,
    before it gives their messages to others."""

    match_pause_ms: int = 0
    """How long a primary gathers new topics before it decides to which families they belong. More gather
    while a decision is under way. A topic keeps its messages meanwhile."""

    log_time_interval_ms: int = 1_000
    """How often log time moves while there is traffic."""

    in_doubt_ms: int = 2_000
    """How long a coordinator has to finish a transaction before the primary asks all client managers."""

    in_doubt_again_ms: int = 500
    """The interval at which the primary asks again."""

    flush_bytes_max: int = 8 * 1024 * 1024
    """Bytes of bodies given out in one wake-up, so that other machines get a turn."""

    deliver_bytes_max: int = 1024 * 1024
    """Bytes in one Deliver message, unless a single piece is larger. A frame takes twice as many."""

    dead_rows_max: int = 256
    dead_bytes_max: int = 512 * 1024
    """Messages and bytes in one command that moves dead messages, unless a single message is larger."""

    batches_kept: int = 16
    """Decoded batches kept for consumers that take a batch in several steps."""

    stream_window_bytes: int = 4 * 1024 * 1024
    """Unacknowledged bytes of deliveries to a client manager, beyond which its consumers get no more."""

    stream_probe_ms: int = 100
    """The first wait for an acknowledgement before a client manager is sent the head of its stream."""

    stream_probe_ms_max: int = 1_000
