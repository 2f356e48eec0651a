"""`antiphon admin log`: the events that the nodes of a system have published in `topic:_LOG`.

Each channel has a part of the topic, and the events of all parts are shown by their time, the oldest first. A
node writes its events to a file as well (`events.log` beside its data), also those that it could not publish.

With `--json` each event is a line as in that file: `time`, `node`, `channel`, `severity`, `code`, `text`, and
`fields` with the values that the text has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import antiphon
from antiphon.cli.options import add_connection_options, duration_option, positive
from antiphon.errors import DestinationUnavailable
from antiphon.event_log import COMMON_PROPERTIES
from antiphon.events import KINDS, SEVERITIES
from antiphon.names import LOG_TOPIC_NAME

_CODE: Final = re.compile(r"[a-z_]+(\.[a-z_]+)*")


def add_command(questions: Any) -> None:
    """Add `log` to the questions of `antiphon admin`."""
    parser: argparse.ArgumentParser = questions.add_parser(
        "log", help="the events of the nodes: failures, moves, damage, refusals", description=__doc__
    )
    parser.add_argument(
        "--code",
        type=code_option,
        metavar="CODE",
        help="only events with this code, or of this family: node.down, or node",
    )
    parser.add_argument(
        "--severity",
        choices=SEVERITIES,
        metavar="|".join(SEVERITIES),
        help="only events that are at least so severe",
    )
    parser.add_argument("--node", metavar="NAME", help="only events that this node has logged")
    parser.add_argument(
        "--since",
        type=moment_option,
        metavar="TIME",
        help="only later events: 90s, 5m, 1h, 7d ago, or a time such as 2026-01-31T12:00:00",
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the last N of them")
    parser.add_argument("--follow", action="store_true", help="go on with new events until Ctrl-C")
    add_connection_options(parser)
    parser.set_defaults(run=run)


def code_option(text: str) -> str:
    """The code of an event, or its first words."""
    if not _CODE.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no code of events, such as node.down, or node")
    if not any(code == text or code.startswith(f"{text}.") for code in KINDS):
        raise argparse.ArgumentTypeError(f"there are no events with the code {text!r}")
    return text


def moment_option(text: str) -> float:
    """A time in seconds since 1970: so long ago, or an ISO date and time; without a zone it is local."""
    try:
        return time.time() - duration_option(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a time ago such as 5m or 1h nor one such as 2026-01-31T12:00:00"
        ) from None


def run(arguments: argparse.Namespace) -> int:
    asyncio.run(_show(arguments))
    return 0


def selector_of(arguments: argparse.Namespace) -> str:
    """The selector of the wanted events."""
    conditions = []
    if arguments.code is not None:
        family = arguments.code.replace("_", "\\_")
        conditions.append(f"(code = '{arguments.code}' OR code LIKE '{family}.%' ESCAPE '\\')")
    if arguments.severity is not None:
        wanted = SEVERITIES[SEVERITIES.index(arguments.severity) :]
        conditions.append("severity IN ({})".format(", ".join([f"'{one}'" for one in wanted])))
    if arguments.node is not None:
        conditions.append("node = '{}'".format(arguments.node.replace("'", "''")))
    if arguments.since is not None:
        conditions.append(f"time >= {max(0, int(arguments.since * 1_000))}")
    return " AND ".join(conditions)


async def _show(arguments: argparse.Namespace) -> None:
    selector = selector_of(arguments) or None
    async with antiphon.connect(arguments.url) as connection, connection.session() as session:
        channels = [row["name"] for row in (await connection.admin().status())["channels"]]
        if not arguments.follow:
            _print(arguments, await _stored(session, channels, selector, arguments.limit))
            return
        # First the consumer, so that no event falls in between.
        async with session.consumer(LOG_TOPIC_NAME, selector=selector) as consumer:
            stored = await _stored(session, channels, selector, arguments.limit)
            _print(arguments, stored)
            shown = {message.message_id for message in stored}
            while True:
                first = await consumer.receive()
                more = [] if first is None else [first, *await consumer.receive_many(1_000, timeout=0)]
                _print(arguments, [one for one in more if one.message_id not in shown])


async def _stored(
    session: antiphon.Session, channels: Iterable[str], selector: str | None, limit: int | None
) -> list[antiphon.Message]:
    """The wanted events of all channels, by their time. A channel that is away is named, and left out."""
    parts = await asyncio.gather(*[_stored_in(session, channel, selector) for channel in channels])
    stored = sorted(chain.from_iterable(parts), key=lambda one: (one.properties["time"], one.channel))
    return stored[-limit:] if limit is not None else stored


async def _stored_in(session: antiphon.Session, channel: str, selector: str | None) -> list[antiphon.Message]:
    browsed = session.browse(LOG_TOPIC_NAME, selector=selector, channel=channel)
    try:
        return [message async for message in browsed]
    except (DestinationUnavailable, antiphon.Timeout) as error:
        why = f"channel {channel} does not answer, and its events are left out"
        print(f"antiphon: {why}; the files of the nodes have them: {error}", file=sys.stderr)
        return []


def _print(arguments: argparse.Namespace, messages: Iterable[antiphon.Message]) -> None:
    for message in messages:
        row = _row(message)
        if arguments.json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(f"{row['time']}  {row['severity']:<7}  {row['node']}  {row['code']}  {row['text']}")
    sys.stdout.flush()


def _row(message: antiphon.Message) -> dict[str, Any]:
    """An event as the file of its node has it."""
    properties = message.properties
    moment = datetime.fromtimestamp(int(str(properties["time"])) / 1_000, UTC)
    return {
        "time": moment.isoformat(timespec="milliseconds"),
        **{name: properties[name] for name in ("node", "channel", "severity", "code")},
        "text": message.body,
        "fields": {name: value for name, value in properties.items() if name not in COMMON_PROPERTIES},
    }
