"""Commands: what an entry of the order asks for, as checkers read it."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.bus.messages import Entry
from antiphon.wire.commands import CommandHeader, Payload, decode_payload, iterate_commands

Command = tuple[CommandHeader, Payload, int]
"""A command of an entry, and the number of its first row."""


def commands_of(entry: Entry, payload: memoryview | None) -> Iterator[Command]:
    sequence = entry.first
    for header, body, _ in iterate_commands(payload) if payload is not None else ():
        yield header, decode_payload(header.kind, body), sequence
        sequence += header.count
