"""`antiphon admin`: asks a running system about itself, and changes it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import antiphon
from antiphon.cli.options import add_connection_options, retention_option
from antiphon.message_manager.delivery.log_clock import DIFFERENCE_MS_MAX

_LOOK_SECONDS = 0.2

NODE_COLUMNS = (
    *("name", "role", "channel", "rank", "state", "is_primary", "synchronized"),
    *("epoch", "committed", "applied", "lag"),
)
CHANNEL_COLUMNS = ("name", "state", "copies", "replicas", "primary", "epoch", "committed", "checkpoint")
FAILED = 1


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("admin", help="administration", description=__doc__)
    questions = parser.add_subparsers(title="questions", metavar="QUESTION", required=True)
    status = questions.add_parser("status", help="nodes, channels and how far they are")
    destinations = questions.add_parser("destinations", help="destinations with their counts")
    holds = questions.add_parser("holds", help="named readers for whom messages are kept, and how much")
    for question, run in ((status, _status), (destinations, _destinations), (holds, _holds)):
        add_connection_options(question)
        question.set_defaults(run=run)
    status.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 unless every channel serves with all its copies",
    )
    wait = questions.add_parser(
        "wait",
        help="wait until every node is back",
        description="Waits until every node answers, every replica is synchronized and may vote, and every "
        "channel is served. Exit code 1, and one sentence that says what is missing, if that takes too long: "
        "in a rolling restart, restart no other node then.",
    )
    wait.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="how long (default %(default)s)"
    )
    add_connection_options(wait)
    wait.set_defaults(run=_wait)
    create = questions.add_parser("create", help="make a destination")
    create.add_argument("destination", help="for example topic:prices")
    create.add_argument(
        "--retention",
        type=retention_option,
        metavar="TIME",
        help="of a topic: how long what no subscription needs is kept: 90s, 5m, 1h, 7d, or consumed",
    )
    create.add_argument(
        "--retention-bytes", type=int, metavar="N", help="of a topic: how many bytes of them, at most"
    )
    create.add_argument(
        "--channel", metavar="NAME", help="where it is to live; if not given, where there is least to keep"
    )
    add_connection_options(create)
    create.set_defaults(run=_create)


def _status(arguments: argparse.Namespace) -> int:
    (status,) = _ask(arguments, "status")
    code = FAILED if arguments.check and not _is_whole(status) else 0
    if arguments.json:
        print(json.dumps(status))
        return code
    counts = f"{status['destinations']} destinations, {status['connections']} connections"
    print(f"cluster {status['cluster']}: {counts}")
    print(_table(status["nodes"], NODE_COLUMNS))
    channels = [{**row, "state": _state(row)} for row in status["channels"]]
    print(_table(channels, CHANNEL_COLUMNS))
    _tell_clocks(status)
    _tell_silent(status)
    return code


def _state(channel: dict[str, Any]) -> str:
    """The state of a channel in a word."""
    if not channel["serving"]:
        return "not serving"
    return "degraded" if channel["degraded"] else "serving"


def _is_whole(status: dict[str, Any]) -> bool:
    return bool(status["channels"]) and all(_state(row) == "serving" for row in status["channels"])


def _wait(arguments: argparse.Namespace) -> int:
    missing = asyncio.run(_until_all_are_back(arguments.url, arguments.timeout))
    if arguments.json:
        print(json.dumps({"ready": not missing, "missing": missing}))
    elif not missing:
        print("every node is back")
    else:
        print(f"after {arguments.timeout:g} s: {'; '.join(missing)}", file=sys.stderr)
    return FAILED if missing else 0


async def _until_all_are_back(url: str, seconds: float) -> list[str]:
    """Ask until nothing is missing or the time is over; returns what is missing then."""
    missing = ["nobody answers"]
    try:
        async with asyncio.timeout(seconds), antiphon.connect(url) as connection:
            while missing:
                missing = _missing(await connection.admin().status())
                await asyncio.sleep(_LOOK_SECONDS if missing else 0)
    except TimeoutError:
        pass
    return missing


def _missing(status: dict[str, Any]) -> list[str]:
    """What must be mended before a node may be stopped."""
    silent = status.get("silent") or []
    words = [f"{name} does not answer" for name in silent]
    for row in status["nodes"]:
        if row["name"] in silent:
            continue
        if row["state"] != "up":
            words.append(f"{row['name']} is {row['state']}")
        elif row["synchronized"] is False:
            words.append(f"{row['name']} is not synchronized")
    states = [(row["name"], _state(row)) for row in status["channels"]]
    return words + [f"channel {name} is {state}" for name, state in states if state != "serving"]


def _tell_clocks(status: dict[str, Any]) -> None:
    """Name the channels whose log time differs from their primary's clock."""
    for row in status["channels"]:
        ahead_ms = row.get("clock_difference_ms") or 0
        if abs(ahead_ms) > DIFFERENCE_MS_MAX:
            where = "behind" if ahead_ms > 0 else "ahead of"
            seconds = abs(ahead_ms) // 1_000
            print(f"channel {row['name']}: the clock of {row['primary']} is {seconds:,} s {where} log time")


def _tell_silent(status: dict[str, Any]) -> None:
    """Name the nodes that did not answer; an embedded node always does."""
    silent = status.get("silent")
    if silent:
        print(f"no answer from {', '.join(silent)}")


def _destinations(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(_ask(arguments, "destinations")[0]))
        return 0
    destinations, status = _ask(arguments, "destinations", "status")
    columns = ("name", "channel", "messages", "in_flight", "consumers", "bytes", "published", "acknowledged")
    print(_table(destinations, columns))
    subscriptions = [
        {"topic": row["name"], **subscription}
        for row in destinations
        for subscription in row["subscriptions"]
    ]
    if subscriptions:
        print(_table(subscriptions, ("topic", "name", "client_id", "durable", "backlog")))
    _tell_silent(status)
    return 0


def _holds(arguments: argparse.Namespace) -> int:
    (holds,) = _ask(arguments, "holds")
    if arguments.json:
        print(json.dumps(holds))
    else:
        columns = ("name", "channel", "position", "rows", "bytes", "age_s", "limit_s", "consume", "acks")
        print(_table(holds, columns))
    return 0


def _create(arguments: argparse.Namespace) -> int:
    async def create() -> None:
        async with antiphon.connect(arguments.url) as connection:
            await connection.admin().create(
                arguments.destination,
                retention=arguments.retention,
                retention_bytes=arguments.retention_bytes,
                channel=arguments.channel,
            )

    asyncio.run(create())
    if arguments.json:
        print(json.dumps({"destination": arguments.destination}))
    else:
        print(f"{arguments.destination} is there")
    return 0


def _ask(arguments: argparse.Namespace, *questions: str) -> list[Any]:
    async def ask() -> list[Any]:
        async with antiphon.connect(arguments.url) as connection:
            admin = connection.admin()
            return await asyncio.gather(*(getattr(admin, question)() for question in questions))

    return asyncio.run(ask())


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    cells = [[column.replace("_", " ") for column in columns]]
    cells += [["-" if row[column] is None else str(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
