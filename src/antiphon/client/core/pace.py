"""Pace: how long a client lets commands wait, so that they travel together."""

from __future__ import annotations

from dataclasses import dataclass

ACK_DELAY_NS = 5_000_000
ACK_BYTES = 64 * 1024
LINGER_COMMANDS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Only speed depends on these: the simulator draws them."""

    ack_delay_ns: int = ACK_DELAY_NS
    """Acknowledgements wait so long for others, and for a publication to ride with."""

    ack_delay_lazy_ns: int = 100_000_000
    """In a dups_ok session. There only this delay, a publication or the size hurries."""

    ack_bytes: int = ACK_BYTES
    """Acknowledged bodies of this size are not kept waiting: they hold memory and disk at the server."""

    linger_commands: int = LINGER_COMMANDS
    """With so many commands unconfirmed the server is busy: small publications then wait for its next frame
    and grow meanwhile. With fewer, they wait only for the window."""

    small_bytes: int = 64 * 1024
    """A publication of this size gains little from growing further."""


USUAL = Pace()
