"""Repetition: the commands of an envelope that the channel may have applied before.

Where it sits
    ordering  ->  envelopes  ->  producer;  an uncertain envelope  ->  REPETITION  ->  producer

What it promises
    RPT1  A session is opened in a channel once. A repeated opening resumes the session, in the same
          generation, and only if the channel knows the session in that one.
    RPT2  So nothing of a session that has ended meanwhile is applied a second time. The outcome of its
          commands is "no session", and its client is told that they are uncertain, which is true.
    RPT3  A session that goes on is not disturbed: its numbers tell what was applied.

What it leaves to others
    The producer decides when an envelope is ordered once more (PRO6); the fold reads a session's numbers.
    Design note: docs/design/sessions.md.
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
    """The commands of an envelope that may be in the order already, as they are to be ordered again."""
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
