"""`antiphon send`: sends messages; exits 0 only when all of them are confirmed.

Sends one message, or one for each line of standard input if there is no body. Lines are UTF-8 text and are
sent as soon as they arrive. Sending stops at the first message that cannot be sent or stored: standard error
names the line, standard output says how many before it are confirmed, and nothing after it is stored.

With `--json`: `{"confirmed": N, "destination": …, "last": {…} | null}`, where `last` has `channel`,
`sequence`, `message_id` and `duplicate`; and `error` if the command failed. A mistake of usage (exit code 2)
is told on standard error only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import antiphon
from antiphon.batch.layout import PRIORITY_DEFAULT
from antiphon.cli.lines import bytes_to_read, read_lines
from antiphon.cli.options import (
    add_client_options,
    add_connection_options,
    lifetime_option,
    not_negative,
    positive,
    priority_option,
    property_option,
    seconds_option,
    tls_option,
)
from antiphon.cli.progress import Progress

FAILED, USAGE, TIMED_OUT = 1, 2, 3


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("send", help="send messages", description=__doc__)
    parser.add_argument("destination", help="for example queue:orders")
    parser.add_argument(
        "body", nargs="?", help="the text to send; without it, one message per line of standard input"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, help="send the bytes of this file as one message")
    source.add_argument(
        "--size", type=not_negative, metavar="BYTES", help="send generated bodies of this size"
    )
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
        help="may be repeated; TYPE is str (default), int, float or bool",
    )
    parser.add_argument(
        "--priority",
        type=priority_option,
        default=PRIORITY_DEFAULT,
        help="0 to 9, the highest goes first (default 4)",
    )
    parser.add_argument(
        "--ttl",
        type=lifetime_option,
        metavar="SECONDS",
        help="the messages expire so long after they were sent",
    )
    parser.add_argument(
        "--delay",
        type=seconds_option,
        metavar="SECONDS",
        help="the messages are not delivered before so much time has passed",
    )
    parser.add_argument("--key", help="one consumer at a time gets the messages with this key, in order")
    parser.add_argument(
        "--dedup-id",
        metavar="ID",
        help="your own id of the message: while the destination remembers it, another message with this id "
        "is not stored, and the exit code is 0 all the same; for one message, a body or --file",
    )
    parser.add_argument(
        "--timeout",
        type=seconds_option,
        metavar="SECONDS",
        help="how long the server may take to let us in (default 10) and to confirm what was sent (default "
        "60); exit code 3 when that is not enough",
    )
    add_client_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.body is not None and (arguments.file is not None or arguments.size is not None):
        print("antiphon send: give a body, or --file, or --size", file=sys.stderr)
        return USAGE
    is_one = arguments.body is not None or arguments.file is not None
    if arguments.dedup_id is not None and (not is_one or arguments.count not in (None, 1)):
        print("antiphon send: --dedup-id is the id of one message: give a body, or --file", file=sys.stderr)
        return USAGE
    try:
        receipts: Sequence[antiphon.Receipt] = asyncio.run(_send(arguments))
    except antiphon.AntiphonError as error:
        if isinstance(error, antiphon.PublishError):
            _tell(arguments, error.confirmed, None, error)
        elif arguments.json:
            _tell(arguments, 0, None, error)
        else:
            print(f"antiphon: {error}", file=sys.stderr)
        return TIMED_OUT if _is_late(error) else FAILED
    _tell(arguments, len(receipts), receipts[-1] if receipts else None)
    return 0


def _is_late(error: antiphon.AntiphonError) -> bool:
    """Might it have gone well with more time?"""
    if isinstance(error, antiphon.ConnectionFailed):
        return isinstance(error.__cause__, TimeoutError)
    return isinstance(error, antiphon.Timeout | antiphon.PublishUncertain)


def _tell(
    arguments: argparse.Namespace,
    confirmed: int,
    last: antiphon.Receipt | None,
    error: antiphon.AntiphonError | None = None,
) -> None:
    """Print how many are stored, and the error if there was one."""
    if arguments.json:
        told: dict[str, Any] = {"confirmed": confirmed, "destination": arguments.destination, "last": None}
        if last is not None:
            told["last"] = {
                "channel": last.channel,
                "sequence": last.sequence,
                "message_id": last.message_id,
                "duplicate": last.duplicate,
            }
        if error is not None:
            told["error"] = str(error)
        print(json.dumps(told))
    else:
        same = ", stored before" if last is not None and last.duplicate else ""
        print(
            f"confirmed {confirmed} message{'' if confirmed == 1 else 's'} in {arguments.destination}{same}"
        )
    if error is not None:
        print(f"antiphon: {error}", file=sys.stderr)


async def _send(arguments: argparse.Namespace) -> Sequence[antiphon.Receipt]:
    waiting = {} if arguments.timeout is None else {"timeout": arguments.timeout}
    async with (
        antiphon.connect(
            arguments.url, tls=tls_option(arguments), client_id=arguments.client_id, **waiting
        ) as connection,
        connection.session() as session,
        session.producer(arguments.destination) as producer,
    ):
        return await producer.send_many(_messages(arguments), **waiting)


async def _messages(arguments: argparse.Namespace) -> AsyncIterator[Any]:
    """The messages to be sent, with the options that hold for all of them."""
    options = {
        "properties": dict(arguments.properties) or None,
        "priority": arguments.priority,
        "ttl": arguments.ttl,
        "delay": arguments.delay,
        "key": arguments.key,
        "dedup_id": arguments.dedup_id,
    }
    is_plain = antiphon.Row(b"", **options) == antiphon.Row(b"")
    async for body in _bodies(arguments):
        yield body if is_plain else antiphon.Row(body, **options)


async def _bodies(arguments: argparse.Namespace) -> AsyncIterator[str | bytes]:
    what = f"sending to {arguments.destination}"
    is_lines = arguments.body is None and arguments.file is None and arguments.size is None
    if is_lines:
        descriptor = sys.stdin.fileno()
        progress = Progress(what, bytes_to_read(descriptor))
        taken = 0
        async for line in read_lines(descriptor, progress.advance):
            if taken == arguments.count:
                break
            taken += 1
            yield line
    else:
        count = arguments.count or 1
        progress = Progress(what, count)
        one = arguments.body if arguments.body is not None else None
        if arguments.file is not None:
            one = arguments.file.read_bytes()
        for number in range(count):
            yield one if one is not None else _generated(number, arguments.size)
            progress.advance(1)
    progress.finish()


def _generated(number: int, size: int) -> bytes:
    return f"{number:>16}".encode().rjust(size, b".") if size >= 16 else bytes(size)
