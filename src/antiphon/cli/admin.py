"""`antiphon admin`: asks a running system about itself, and changes it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import antiphon
from antiphon.cli import log
from antiphon.cli.options import (
    add_connection_options,
    channels_option,
    duration_up_to,
    not_negative,
    retention_option,
    seconds_option,
    tls_option,
)
from antiphon.cli.progress import Progress
from antiphon.message_manager.delivery.log_clock import DIFFERENCE_MS_MAX

_LOOK_SECONDS = 0.2
_NAMES_AT_ONCE = 5_000
_REFUSED_SHOWN = 20

NODE_COLUMNS = (
    *("name", "role", "channel", "rank", "state", "is_primary", "synchronized"),
    *("epoch", "committed", "applied", "lag"),
)
CHANNEL_COLUMNS = ("name", "state", "copies", "replicas", "primary", "epoch", "committed", "checkpoint")
FAILED, USAGE = 1, 2

T = TypeVar("T")


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("admin", help="administration", description=__doc__)
    questions = parser.add_subparsers(title="questions", metavar="QUESTION", required=True)
    status = questions.add_parser(
        "status",
        help="nodes, channels and how far they are",
        description="Nodes, channels and how far they are. A channel is serving, degraded (fewer copies than "
        "replicas) or not serving (no majority, or no node answers).",
    )
    destinations = questions.add_parser(
        "destinations", help="destinations with their counts and subscriptions"
    )
    holds = questions.add_parser("holds", help="named readers for whom messages are kept, and how much")
    for question, run in ((status, _status), (destinations, _destinations), (holds, _holds)):
        add_connection_options(question)
        question.set_defaults(run=run)
    destinations.add_argument(
        "--log", action="store_true", help="also the parts of topic:_LOG, the topic of events"
    )
    destinations.add_argument(
        "--temporary",
        action="store_true",
        help="also temporary ones, which go with the sessions that made them",
    )
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
        "--timeout",
        type=seconds_option,
        default=120.0,
        metavar="SECONDS",
        help="how long (default %(default)s)",
    )
    add_connection_options(wait)
    wait.set_defaults(run=_wait)
    _add_create(questions)
    change = questions.add_parser("change", help="change settings of a destination while it is used")
    change.add_argument("destination", help="for example queue:orders")
    _add_settings(change)
    add_connection_options(change)
    change.set_defaults(run=_change)
    _add_messages(questions)
    log.add_command(questions)


def _add_create(questions: Any) -> None:
    create = questions.add_parser(
        "create",
        help="make destinations",
        description="Makes destinations. If one exists and is set as asked for, that is fine, too. Of many, "
        "those that are refused are told on standard error, and the exit code is 1; the others are made.",
    )
    create.add_argument("destinations", nargs="*", metavar="destination", help="for example topic:prices")
    create.add_argument(
        "--from-file",
        metavar="FILE",
        help="a file with the names, each on a line of its own; - is standard input",
    )
    _add_settings(create)
    where = create.add_mutually_exclusive_group()
    where.add_argument(
        "--channel", metavar="NAME", help="where it is to live; if not given, where there is least to keep"
    )
    where.add_argument(
        "--channels",
        type=channels_option,
        metavar="N|NAMES",
        help="have a part in each of several channels: so many (2, say), or these (a,b)",
    )
    add_connection_options(create)
    create.set_defaults(run=_create)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--retention",
        type=retention_option,
        metavar="TIME",
        help="of a topic: how long what no subscription needs is kept: 90s, 5m, 1h, 7d, or consumed",
    )
    parser.add_argument(
        "--retention-bytes",
        type=not_negative,
        metavar="N",
        help="of a topic: how many bytes of them, at most",
    )
    parser.add_argument(
        "--redelivery-limit",
        type=not_negative,
        metavar="N",
        help="a message that came back more often is dead; 0: no limit (default 10 for a queue, 0 for a "
        "topic)",
    )
    parser.add_argument(
        "--redelivery-delay",
        type=duration_up_to("1h"),
        metavar="TIME",
        help="how long a message that came back waits, 5s say; twice as long each further time, up to 1h",
    )
    parser.add_argument(
        "--dead-to",
        choices=("_DMQ", "_DMQ+expired", "nowhere"),
        metavar="WHERE",
        help="_DMQ (default): dead messages go to the dead queue of their channel; _DMQ+expired: expired "
        "ones, too; nowhere: they are dropped",
    )
    parser.add_argument(
        "--dedup-window",
        type=duration_up_to("7d"),
        metavar="TIME",
        help="how long the ids of messages (send --dedup-id) are remembered, up to 7d (default 10m); 0: not "
        "at all",
    )
    parser.add_argument(
        "--exclusive",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="of a queue: one consumer at a time receives, and the others wait in line",
    )


def _add_messages(questions: Any) -> None:
    """The commands about messages and consumers."""
    delete = questions.add_parser(
        "delete", help="delete a destination with its messages; its consumers are closed"
    )
    delete.add_argument("destination", help="for example queue:orders")
    purge = questions.add_parser("purge", help="drop all messages of a destination")
    purge.add_argument("destination", help="for example queue:orders")
    dead = questions.add_parser("dead", help="list dead messages: where they died, why and when")
    dead.add_argument("destination", nargs="?", help="only those that died there")
    retry = questions.add_parser(
        "retry",
        help="send dead messages back to where they died, once",
        description="Sends dead messages back to where they died, once: all, those of one destination, or "
        "those with the ids, of which `admin dead` shows both. Exit code 1 if an id is not there; which, is "
        "said on standard error, and in `missing` of the JSON.",
    )
    retry.add_argument("destination", nargs="?", help="only those that died there")
    retry.add_argument(
        "--id", dest="ids", action="append", default=[], metavar="ID", help="only this one (repeatable)"
    )
    move = questions.add_parser(
        "move",
        help="move the messages of a queue that no consumer has",
        description="Moves the messages of a queue that no consumer has, as one more consumer would take "
        "them. Messages of a group that a consumer has stay, as do those of an exclusive queue with a "
        "consumer, and delayed ones.",
    )
    move.add_argument("source", metavar="FROM", help="for example queue:orders")
    move.add_argument("target", metavar="TO", help="for example queue:orders.later")
    consumers = questions.add_parser("consumers", help="consumers, with the messages that they have")
    consumers.add_argument("destination", nargs="?", help="only those of this destination")
    for parser in (purge, move):
        parser.add_argument("--channel", default="", metavar="NAME", help="of queue:_DMQ: whose part of it")
    for parser, run in (
        (delete, _delete),
        (purge, _purge),
        (dead, _dead),
        (retry, _retry),
        (move, _move),
        (consumers, _consumers),
    ):
        add_connection_options(parser)
        parser.set_defaults(run=run)


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
    missing = asyncio.run(_until_all_are_back(arguments))
    if arguments.json:
        print(json.dumps({"ready": not missing, "missing": missing}))
    elif not missing:
        print("every node is back")
    else:
        print(f"after {arguments.timeout:g} s: {'; '.join(missing)}", file=sys.stderr)
    return FAILED if missing else 0


async def _until_all_are_back(arguments: argparse.Namespace) -> list[str]:
    """Ask until nothing is missing or the time is over; returns what is missing then."""
    missing = ["nobody answers"]
    try:
        connecting = antiphon.connect(arguments.url, tls=tls_option(arguments))
        async with asyncio.timeout(arguments.timeout), connecting as connection:
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
        print(json.dumps(_list_destinations(arguments)))
        return 0
    destinations, (status,) = _list_destinations(arguments), _ask(arguments, "status")
    temporary = [row for row in destinations if row.get("temporary")]
    if temporary and not arguments.temporary:
        destinations = [row for row in destinations if not row.get("temporary")]
    columns = ("name", "channel", "messages", "in_flight", "consumers", "bytes", "published", "acknowledged")
    print(_table([row for row in destinations if "pattern" not in row], columns))
    patterns = [row for row in destinations if "pattern" in row]
    if patterns:
        print(_table(patterns, ("pattern", "channel", "topics", "in_flight", "consumers")))
    subscriptions = [
        {"topic": row.get("pattern", row["name"]), **subscription}
        for row in destinations
        for subscription in row["subscriptions"]
    ]
    if subscriptions:
        print(_table(subscriptions, ("topic", "name", "client_id", "durable", "shared", "backlog")))
    if temporary and not arguments.temporary:
        print(f"{len(temporary)} temporary, which --temporary shows")
    _tell_silent(status)
    return 0


def _list_destinations(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.log:
        return _administer(arguments, lambda admin: admin.destinations(log=True))
    (listed,) = _ask(arguments, "destinations")
    return list(listed)


def _holds(arguments: argparse.Namespace) -> int:
    (holds,) = _ask(arguments, "holds")
    if arguments.json:
        print(json.dumps(holds))
    else:
        columns = ("name", "channel", "position", "rows", "bytes", "age_s", "limit_s", "consume", "acks")
        print(_table(holds, columns))
    return 0


def _create(arguments: argparse.Namespace) -> int:
    settings = {
        name: getattr(arguments, name)
        for name in (
            *("retention", "retention_bytes", "redelivery_limit", "redelivery_delay", "dead_to"),
            *("dedup_window", "exclusive", "channel", "channels"),
        )
    }
    names: list[str] = arguments.destinations
    if arguments.from_file is None and len(names) == 1:
        _administer(arguments, lambda admin: admin.create(names[0], **settings))
        _tell_done(arguments, {"destination": names[0]}, f"{names[0]} is there")
        return 0
    if arguments.from_file is not None:
        try:
            names = [*names, *_names_in(arguments.from_file)]
        except (OSError, UnicodeDecodeError) as error:
            why = "they are no text in UTF-8" if isinstance(error, ValueError) else error.strerror
            print(f"antiphon: the names in {arguments.from_file} cannot be read: {why}", file=sys.stderr)
            return USAGE
    if not names:
        print("antiphon: no destination is named: give names, or --from-file FILE", file=sys.stderr)
        return USAGE
    results = _administer(arguments, lambda admin: _create_many(admin, names, settings))
    return _tell_created(arguments, results)


def _names_in(path: str) -> list[str]:
    """The names in a file, or in standard input, one on each line."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    lines = [line.removesuffix("\r") for line in data.decode().split("\n")]
    return [line for line in lines if line]


async def _create_many(
    admin: antiphon.Admin, names: Sequence[str], settings: dict[str, Any]
) -> list[antiphon.CreationResult]:
    progress = Progress("making destinations", len(names))
    results: list[antiphon.CreationResult] = []
    for first in range(0, len(names), _NAMES_AT_ONCE):
        part = names[first : first + _NAMES_AT_ONCE]
        results += await admin.create_many(part, **settings)
        progress.advance(len(part))
    progress.finish()
    return results


def _tell_created(arguments: argparse.Namespace, results: Sequence[antiphon.CreationResult]) -> int:
    refused = [result for result in results if result.outcome == "refused"]
    made = sum(result.outcome == "made" for result in results)
    there = len(results) - made - len(refused)
    told = {
        "made": made,
        "existed": there,
        "refused": [
            {"destination": result.destination, "code": result.code, "text": result.text}
            for result in refused
        ],
    }
    _tell_done(arguments, told, f"{made:,} destinations are made, {there:,} were there")
    for result in refused[:_REFUSED_SHOWN]:
        print(f"antiphon: {result.destination[:80]}: {result.text}", file=sys.stderr)
    if len(refused) > _REFUSED_SHOWN:
        print(f"antiphon: {len(refused) - _REFUSED_SHOWN:,} more are refused", file=sys.stderr)
    return FAILED if refused else 0


def _change(arguments: argparse.Namespace) -> int:
    _administer(
        arguments,
        lambda admin: admin.change(
            arguments.destination,
            retention=arguments.retention,
            retention_bytes=arguments.retention_bytes,
            redelivery_limit=arguments.redelivery_limit,
            redelivery_delay=arguments.redelivery_delay,
            dead_to=arguments.dead_to,
            dedup_window=arguments.dedup_window,
            exclusive=arguments.exclusive,
        ),
    )
    _tell_done(arguments, {"destination": arguments.destination}, f"{arguments.destination} is changed")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    _administer(arguments, lambda admin: admin.delete(arguments.destination))
    _tell_done(arguments, {"destination": arguments.destination}, f"{arguments.destination} is deleted")
    return 0


def _purge(arguments: argparse.Namespace) -> int:
    _administer(arguments, lambda admin: admin.purge(arguments.destination, channel=arguments.channel))
    _tell_done(arguments, {"destination": arguments.destination}, f"{arguments.destination} is empty")
    return 0


def _dead(arguments: argparse.Namespace) -> int:
    rows = _administer(arguments, lambda admin: admin.dead(arguments.destination))
    if arguments.json:
        print(json.dumps(rows))
        return 0
    shown = [{**row, "dead_time": _clock_time(row["dead_time"])} for row in rows]
    columns = ("destination", "channel", "sequence", "reason", "delivery_count", "dead_time", "message_id")
    print(_table(shown, columns))
    return 0


def _retry(arguments: argparse.Namespace) -> int:
    count, missing = _administer(arguments, lambda admin: _sent_back(arguments, admin))
    told = {"messages": count} | ({"missing": missing} if missing else {})
    _tell_done(arguments, told, f"{count} messages are sent back")
    if missing:
        where = f" of {arguments.destination}" if arguments.destination is not None else ""
        ids = ", ".join(missing)
        print(f"antiphon: there is no dead message{where} with the id {ids}", file=sys.stderr)
    return FAILED if missing else 0


async def _sent_back(arguments: argparse.Namespace, admin: antiphon.Admin) -> tuple[int, list[str]]:
    """How many are sent back, and the wanted ids that were not there."""
    known: set[str | None] = set()
    if arguments.ids:
        for row in await admin.dead(arguments.destination):
            known |= {row["message_id"], row["original_message_id"]}
    missing = [id for id in dict.fromkeys(arguments.ids) if id not in known]
    return await admin.retry(arguments.destination, ids=arguments.ids), missing


def _move(arguments: argparse.Namespace) -> int:
    count, left = _administer(arguments, lambda admin: _moved(arguments, admin))
    _tell_done(arguments, {"messages": count}, f"{count} messages are moved to {arguments.target}")
    if left:
        stay = "1 message stays" if left == 1 else f"{left} messages stay"
        print(
            f"antiphon: {stay} in {arguments.source}: a consumer has them, the groups of their keys or the "
            "exclusive queue, or they wait for their time",
            file=sys.stderr,
        )
    return 0


async def _moved(arguments: argparse.Namespace, admin: antiphon.Admin) -> tuple[int, int]:
    """How many were moved; and if there were none, how many stay."""
    count = await admin.move(arguments.source, arguments.target, channel=arguments.channel)
    if count:
        return count, 0
    return 0, sum(
        row["messages"]
        for row in await admin.destinations()
        if row["name"] == arguments.source and arguments.channel in ("", row["channel"])
    )


def _consumers(arguments: argparse.Namespace) -> int:
    rows = _administer(arguments, lambda admin: admin.consumers(arguments.destination))
    if arguments.json:
        print(json.dumps(rows))
    else:
        columns = ("destination", "channel", "subscription", "client_id", "in_flight", "delivered", "credit")
        print(_table(rows, columns))
    return 0


def _administer(arguments: argparse.Namespace, act: Callable[[antiphon.Admin], Coroutine[Any, Any, T]]) -> T:
    async def administer() -> T:
        async with antiphon.connect(arguments.url, tls=tls_option(arguments)) as connection:
            return await act(connection.admin())

    return asyncio.run(administer())


def _tell_done(arguments: argparse.Namespace, told: dict[str, Any], text: str) -> None:
    print(json.dumps(told) if arguments.json else text)


def _clock_time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")


def _ask(arguments: argparse.Namespace, *questions: str) -> list[Any]:
    async def ask() -> list[Any]:
        async with antiphon.connect(arguments.url, tls=tls_option(arguments)) as connection:
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
