"""`antiphon receive`: receives, prints and then acknowledges messages.

The command ends when nothing came for `--timeout`. A message is acknowledged after it was printed, so that an
unprinted message is not lost. Bodies are written as they are, bytes too, each with a line end behind it; maps
and lists are written as JSON. A destination that does not exist is made only with `--create`, `--follow`,
`--durable` or `--shared`; otherwise the command names it and exits with 1.

With `--json` each message is a line: `destination`, `message_id`, `sequence`, `channel`, `timestamp`,
`priority`, `properties`, `correlation_id`, `reply_to`, `type`, `key`, `redelivered`, `delivery_count`,
`body`, `encoding` (`text`, `json` or `base64`). With `--save` the body is null and `saved` names the file.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import math
import sys
from pathlib import Path
from typing import Any

import antiphon
from antiphon.cli.options import (
    add_channel_option,
    add_client_options,
    add_connection_options,
    add_create_option,
    add_selector_option,
    positive,
    seconds_option,
    start_option,
    tls_option,
)
from antiphon.json_values import json_value
from antiphon.names import MATCHES

CHUNK = 1000
TIMED_OUT = 3


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "receive", help="receive messages", description=__doc__
    )
    parser.add_argument("destination", help="for example queue:orders")
    parser.add_argument("--count", type=positive, help="stop after that many; exit code 3 when fewer came")
    parser.add_argument(
        "--timeout", type=seconds_option, default=1.0, help="seconds without a message to wait (default 1)"
    )
    parser.add_argument("--follow", action="store_true", help="go on until Ctrl-C")
    parser.add_argument(
        "--durable",
        metavar="NAME",
        help="of a topic: consume the subscription of this name, which stays; without --shared it belongs to "
        "the client id, which is NAME unless --client-id gives another",
    )
    parser.add_argument(
        "--shared",
        nargs="?",
        const=True,
        default=False,
        metavar="NAME",
        help="of a topic: share the subscription of this name with other consumers, until the last has gone; "
        "with --durable, and without a name of its own: share that one",
    )
    parser.add_argument(
        "--match",
        choices=MATCHES,
        help="the destination is a pattern: receive from all topics that match, also from those made later",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=start_option,
        metavar="earliest|latest|SEQ",
        help="of a topic: where a new subscription begins (default latest)",
    )
    parser.add_argument(
        "--save",
        type=Path,
        metavar="DIR",
        help="write each body to a file DIR/CHANNEL-SEQUENCE instead of printing it",
    )
    add_channel_option(parser)
    add_selector_option(parser)
    add_create_option(parser)
    add_client_options(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.save is not None:
        arguments.save.mkdir(parents=True, exist_ok=True)
    received = asyncio.run(_receive(arguments))
    return TIMED_OUT if arguments.count is not None and received < arguments.count else 0


async def _receive(arguments: argparse.Namespace) -> int:
    wanted = arguments.count if arguments.count is not None else math.inf
    timeout = None if arguments.follow else arguments.timeout
    received = 0
    # A command that waits may wait for a new destination; any other would wait in vain for a mistyped name.
    is_named = arguments.durable is not None or arguments.shared
    create = arguments.create or arguments.follow or is_named
    client_id = arguments.client_id
    if client_id is None and not arguments.shared:
        # A durable subscription with one consumer belongs to a client id.
        client_id = arguments.durable
    async with (
        antiphon.connect(arguments.url, tls=tls_option(arguments), client_id=client_id) as connection,
        connection.session(ack="client") as session,
        session.consumer(
            arguments.destination,
            selector=arguments.selector,
            durable=arguments.durable,
            shared=arguments.shared,
            start=arguments.start,
            match=arguments.match,
            create=create,
            channel=arguments.channel,
        ) as consumer,
    ):
        while received < wanted:
            first = await consumer.receive(timeout=timeout)
            if first is None:
                break
            most = int(min(CHUNK, wanted - received)) - 1
            messages = [first, *(await consumer.receive_many(most, timeout=0) if most else [])]
            for message in messages:
                show(message, arguments)
            sys.stdout.flush()
            await messages[-1].ack()
            received += len(messages)
    return received


def show(message: antiphon.Message, arguments: argparse.Namespace) -> None:
    """Print a message, or save its body."""
    if arguments.save is not None:
        saved = arguments.save / f"{message.channel}-{message.sequence}"
        saved.write_bytes(message.body_bytes)
        if arguments.json:
            _write(json.dumps({**as_json(message), "body": None, "saved": str(saved)}, ensure_ascii=False))
    elif arguments.json:
        _write(json.dumps(as_json(message), ensure_ascii=False))
    elif isinstance(message.body, bytes | str):
        _write(message.body)
    else:
        _write(json.dumps(json_value(message.body), ensure_ascii=False))


def _write(line: bytes | str) -> None:
    """One line on standard output, in UTF-8 whatever the terminal's encoding is."""
    sys.stdout.buffer.write((line if isinstance(line, bytes) else line.encode()) + b"\n")


def as_json(message: antiphon.Message) -> dict[str, Any]:
    """One message as the documented JSON object."""
    body: Any
    match message.body:
        case str():
            body, encoding = message.body, "text"
        case bytes():
            body, encoding = base64.b64encode(message.body).decode(), "base64"
        case _:
            body, encoding = json_value(message.body), "json"
    return {
        "destination": message.destination,
        "message_id": message.message_id,
        "sequence": message.sequence,
        "channel": message.channel,
        "timestamp": message.timestamp,
        "priority": message.priority,
        "properties": json_value(message.properties),
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "type": message.type,
        "key": message.key,
        "redelivered": message.redelivered,
        "delivery_count": message.delivery_count,
        "body": body,
        "encoding": encoding,
    }
