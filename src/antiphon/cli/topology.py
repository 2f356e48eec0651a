"""The options of `up` and `init` for the size of a cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from antiphon.cli.options import not_negative, positive
from antiphon.errors import NodeError

if TYPE_CHECKING:
    # `antiphon send` need not load a server.
    from antiphon.cluster.topology import ClusterSpec, Counts

MEMORY: Final = "memory"
TRANSPORTS: Final = ("udp", "tcp")


def add_topology_options(parser: argparse.ArgumentParser, *, transports: tuple[str, ...]) -> None:
    """How many nodes of each kind, and their transport. An option that is not given is None."""
    parser.add_argument("--client-managers", type=positive, metavar="N", help="nodes that clients connect to")
    parser.add_argument(
        "--message-managers", type=positive, metavar="R", help="replicas of each channel: nodes with messages"
    )
    parser.add_argument(
        "--channels", type=positive, metavar="C", help="channels: each has its own order and message managers"
    )
    parser.add_argument(
        "--witnesses",
        type=not_negative,
        metavar="W",
        help="nodes of each channel that only vote (default 1 with two message managers, else 0)",
    )
    parser.add_argument("--transport", choices=transports, help="how nodes talk (default udp)")


def has_topology(arguments: argparse.Namespace) -> bool:
    """Was an option given that an embedded system has no use for?"""
    counts = (
        arguments.client_managers,
        arguments.message_managers,
        arguments.channels,
        arguments.witnesses,
    )
    return any(one is not None for one in counts) or arguments.transport in TRANSPORTS


def counts_of(arguments: argparse.Namespace) -> Counts:
    """The size by the options, with defaults."""
    from antiphon.cluster.topology import Counts

    if arguments.transport == MEMORY:
        raise NodeError("the transport memory is for one process; several nodes need udp or tcp")
    given = {
        "client_managers": arguments.client_managers,
        "message_managers": arguments.message_managers,
        "channels": arguments.channels,
        "witnesses": arguments.witnesses,
        "transport": arguments.transport,
    }
    return Counts(**{name: value for name, value in given.items() if value is not None})


def refuse_contradictions(arguments: argparse.Namespace, spec: ClusterSpec, where: str) -> None:
    """`NodeError` if the existing cluster is another than the options ask for."""
    channels = [one.name for one in spec.channels]
    managers = {len(spec.message_managers(channel)) for channel in channels}
    witnesses = {len(spec.witnesses(channel)) for channel in channels}
    wrong = [
        f"{option} {asked} was given, and it has {' or '.join(map(str, sorted(found)))}"
        for option, asked, found in (
            ("--client-managers", arguments.client_managers, {len(spec.client_managers)}),
            ("--message-managers", arguments.message_managers, managers),
            ("--channels", arguments.channels, {len(channels)}),
            ("--witnesses", arguments.witnesses, witnesses),
            ("--transport", arguments.transport, {spec.transport}),
        )
        if asked is not None and found != {asked}
    ]
    if wrong:
        raise NodeError(f"{where} holds another cluster than was asked for: {'; '.join(wrong)}")
