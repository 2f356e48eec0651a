"""`antiphon admin`: asks a running system about itself."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any

import antiphon
from antiphon.cli.options import add_connection_options


def add_command(commands: Any) -> None:
    """Add this command and its questions to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser("admin", help="administration", description=__doc__)
    questions = parser.add_subparsers(title="questions", metavar="QUESTION", required=True)
    status = questions.add_parser("status", help="nodes, channels and how far they are")
    destinations = questions.add_parser("destinations", help="destinations with their counts")
    for question, run in ((status, _status), (destinations, _destinations)):
        add_connection_options(question)
        question.set_defaults(run=run)


def _status(arguments: argparse.Namespace) -> int:
    status = _ask(arguments, "status")
    if arguments.json:
        print(json.dumps(status))
        return 0
    counts = f"{status['destinations']} destinations, {status['connections']} connections"
    print(f"cluster {status['cluster']}: {counts}")
    print(
        _table(
            status["nodes"],
            ("name", "role", "channel", "state", "is_primary", "epoch", "committed", "applied"),
        )
    )
    print(_table(status["channels"], ("name", "epoch", "committed", "primary", "replicas", "checkpoint")))
    return 0


def _destinations(arguments: argparse.Namespace) -> int:
    destinations = _ask(arguments, "destinations")
    if arguments.json:
        print(json.dumps(destinations))
        return 0
    columns = ("name", "channel", "messages", "in_flight", "consumers", "bytes", "published", "acknowledged")
    print(_table(destinations, columns))
    return 0


def _ask(arguments: argparse.Namespace, question: str) -> Any:
    async def ask() -> Any:
        async with antiphon.connect(arguments.url) as connection:
            return await getattr(connection.admin(), question)()

    return asyncio.run(ask())


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    cells = [[column.replace("_", " ") for column in columns]]
    cells += [["-" if row[column] is None else str(row[column]) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
