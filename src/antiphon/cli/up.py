"""`antiphon up`: starts a message system on this machine, in the foreground.

Everything runs in one process, the data in `--data`. SIGTERM or Ctrl-C stops it in order; starting again on
the same data finds everything.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

DEFAULT_PORT = 7420


def add_command(commands: Any) -> None:
    """Add this command to the command line."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "up", help="start a message system", description=__doc__
    )
    parser.add_argument(
        "--data", type=Path, default=Path("antiphon-data"), help="data directory (default ./antiphon-data)"
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="client port; 0 picks a free one (default 7420)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line once ready; logs go to stderr"
    )
    parser.add_argument(
        "--accept-possible-loss",
        action="store_true",
        help="start although the disk once failed to sync and the machine was not rebooted since",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run until told to stop."""
    # Here and not above: `antiphon send` need not load a server.
    from antiphon.runtime.embedded import EmbeddedSettings, run_embedded

    settings = EmbeddedSettings(
        data=arguments.data,
        port=arguments.port,
        accept_possible_loss=arguments.accept_possible_loss,
    )
    return run_embedded(settings, announce=_print_ready_json if arguments.json else _print_ready_text)


def _print_ready_json(ready: dict[str, Any]) -> None:
    print(json.dumps(ready), flush=True)


def _print_ready_text(ready: dict[str, Any]) -> None:
    print(f"antiphon is ready: {ready['url']} (data in {ready['data']}); Ctrl-C stops it", flush=True)
    if sys.stdout.isatty():
        print("try:  antiphon send queue:a hello    then:  antiphon receive queue:a", flush=True)
