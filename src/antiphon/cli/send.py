"""`antiphon send`: sends messages; exits 0 only when all of them are confirmed."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import antiphon
from antiphon.cli.options import add_connection_options, positive, property_option
from antiphon.cli.progress import Progress

CHUNK = 1000
USAGE = 2


def add_command(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser("send", help="send messages", description=__doc__)
    parser.add_argument("destination", help="for example queue:orders")
    parser.add_argument(
        "body", nargs="?", help="the text to send; without it, one message per line of standard input"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, help="send the bytes of this file as one message")
    source.add_argument("--size", type=int, metavar="BYTES", help="send generated bodies of this size")
    parser.add_argument(
        "--count", type=positive, help="send that many (default 1; with standard input: all lines)"
    )
    parser.add_argument(
        "--property",
        dest="properties",
        action="append",
        default=[],
        type=property_option,
        metavar="NAME[:TYPE]=VALUE",
        help="may be repeated; TYPE is str, int, float or bool",
    )
    parser.add_argument("--priority", type=int, default=4, help="0 to 9 (default 4)")
    parser.add_argument("--key", help="the message's key")
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Send and report."""
    if arguments.body is not None and (arguments.file is not None or arguments.size is not None):
        print("antiphon send: give a body, or --file, or --size", file=sys.stderr)
        return USAGE
    confirmed, last = asyncio.run(_send(arguments))
    if arguments.json:
        where = (
            {"channel": last.channel, "sequence": last.sequence, "message_id": last.message_id}
            if last
            else None
        )
        print(json.dumps({"confirmed": confirmed, "destination": arguments.destination, "last": where}))
    else:
        print(f"confirmed {confirmed} message{'' if confirmed == 1 else 's'} in {arguments.destination}")
    return 0


async def _send(arguments: argparse.Namespace) -> tuple[int, antiphon.Receipt | None]:
    options: dict[str, Any] = {
        "properties": dict(arguments.properties) or None,
        "priority": arguments.priority,
        "key": arguments.key,
    }
    confirmed, last = 0, None
    total = arguments.count or 1
    progress = Progress(f"sending to {arguments.destination}", total)
    bodies = _bodies(arguments)
    async with (
        antiphon.connect(arguments.url) as connection,
        connection.session() as session,
        session.producer(arguments.destination) as producer,
    ):
        while chunk := list(islice(bodies, CHUNK)):
            # Sends of one loop tick travel in one batch, so a chunk costs little more than one message.
            receipts = await asyncio.gather(*(producer.send(body, **options) for body in chunk))
            confirmed, last = confirmed + len(chunk), receipts[-1]
            progress.advance(len(chunk))
    progress.finish()
    return confirmed, last


def _bodies(arguments: argparse.Namespace) -> Iterator[str | bytes]:
    if arguments.body is not None:
        return iter([arguments.body] * (arguments.count or 1))
    if arguments.file is not None:
        return iter([arguments.file.read_bytes()] * (arguments.count or 1))
    if arguments.size is not None:
        return _generated(arguments.count or 1, arguments.size)
    lines = (line.rstrip("\n") for line in sys.stdin)
    return islice(lines, arguments.count) if arguments.count else lines


def _generated(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield f"{number:>16}".encode().rjust(size, b".")[:size] if size >= 16 else bytes(size)
