"""Repetition: what is said of a session when the channel may have heard it before.

Where it sits
    ordering  ->  envelopes  ->  producer;  what may be in the order already  ->  REPETITION  ->  producer

What it promises
    R1  A session is opened in a channel once. What may have been ordered before opens nothing: it resumes
        the session, in the same generation, and only if the channel knows it in that one.
    R2  So of a session that has ended meanwhile nothing is applied a second time. Its commands are told
        that nobody knows it, and its client that their fate is uncertain, which is true.
    R3  A session that goes on is not disturbed: its numbers tell what was applied.

What it leaves to others
    When an envelope is ordered once more is the producer's business (its P6); what a session's numbers say,
    the fold's. Design note: docs/design/sessions.md.
"""

from __future__ import annotations

from typing import Final

from antiphon.wire.commands import (
    COMMAND_HEADER_SIZE,
    CommandKind,
    ResumeSession,
    encode_command,
    iterate_commands,
)

_OPEN: Final = int(CommandKind.SESSION_OPEN)


def said_again(payload: bytes) -> bytes:
    """The commands of an envelope that may be in the order already, as they are to be said now."""
    parts: list[bytes] = []
    done = 0
    for header, _, offset in iterate_commands(payload):
        if header.kind == _OPEN:
            resume = ResumeSession(known=header.generation).encode()
            parts += (
                payload[done:offset],
                encode_command(CommandKind.SESSION_RESUME, header.session, header.generation, 0, 0, resume),
            )
            done = offset + COMMAND_HEADER_SIZE + header.length
    return b"".join((*parts, payload[done:])) if parts else payload
