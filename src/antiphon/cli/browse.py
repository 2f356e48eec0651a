"""`antiphon browse`: shows the messages of a queue, or what a topic keeps, without consuming them.

They are printed as `antiphon receive` prints them.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import antiphon
from antiphon.cli.options import (
    add_channel_option,
    add_connection_options,
    add_create_option,
    add_selector_option,
    positive,
    tls_option,
)
from antiphon.cli.receive import show


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "browse", help="look at messages without consuming them", description=__doc__
    )
    parser.add_argument("destination", help="for example queue:orders")
    parser.add_argument("--limit", type=positive, help="stop after that many")
    add_channel_option(parser)
    add_selector_option(parser)
    add_create_option(parser)
    add_connection_options(parser)
    parser.set_defaults(run=run, save=None)


def run(arguments: argparse.Namespace) -> int:
    asyncio.run(_browse(arguments))
    return 0


async def _browse(arguments: argparse.Namespace) -> None:
    shown = 0
    async with (
        antiphon.connect(arguments.url, tls=tls_option(arguments)) as connection,
        connection.session() as session,
    ):
        browsed = session.browse(
            arguments.destination,
            selector=arguments.selector,
            create=arguments.create,
            channel=arguments.channel,
        )
        async for message in browsed:
            show(message, arguments)
            shown += 1
            if shown == arguments.limit:
                return
