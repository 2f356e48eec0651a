"""`antiphon node`: runs one node of a cluster, in the foreground, as the cluster's file describes it.

The first start of a node that keeps data needs `--format`, once: it gives the empty disk the id that the file
lists for it, against the token in `first-start/NAME` beside the file. Without `--format` an empty directory
is the disk of a node that has lost its old one: the disk gets another id, and the node learns everything from
the others before it votes again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "node", help="run one node of a cluster", description=__doc__
    )
    parser.add_argument("name", metavar="NAME", help="which node of the cluster this is")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the cluster's file")
    parser.add_argument("--format", action="store_true", help="the node starts for the first time")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="for tests: rules for a bad network")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line once ready; logs go to stderr"
    )
    parser.add_argument(
        "--accept-possible-loss",
        action="store_true",
        help="start although the disk once failed to sync and the machine was not rebooted since",
    )
    # The process that starts this one, and that this one does not outlive.
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from antiphon.runtime.cluster_node import NodeSettings, run_node
    from antiphon.runtime.launcher import die_with_parent

    if arguments.parent is not None:
        die_with_parent(arguments.parent)
    settings = NodeSettings(
        name=arguments.name,
        config=arguments.config,
        is_formatting=arguments.format,
        faults=arguments.faults,
        accept_possible_loss=arguments.accept_possible_loss,
    )
    try:
        return run_node(settings, announce=_print_ready_json if arguments.json else _print_ready_text)
    except AntiphonError as error:
        # Several nodes may write to one terminal.
        print(f"antiphon: {arguments.name}: {error}", file=sys.stderr)
        return 1


def _print_ready_json(ready: dict[str, Any]) -> None:
    print(json.dumps(ready), flush=True)


def _print_ready_text(ready: dict[str, Any]) -> None:
    where = "".join(f", clients connect to {address}" for address in ready["listen"].values())
    print(f"antiphon node {ready['name']} is ready{where}; Ctrl-C stops it", flush=True)
