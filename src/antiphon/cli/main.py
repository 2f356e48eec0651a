"""The entry point: finds the command, runs it, and turns deliberate errors into one sentence.

Exit codes: 0 done, 1 failed, 2 usage, 3 timeout, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from antiphon import __version__
from antiphon.cli.options import IntermixedParser
from antiphon.errors import AntiphonError, Timeout

DONE, FAILED, USAGE, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 130

COMMANDS = ("up", "init", "node", "send", "receive", "browse", "admin", "bench", "pipeline", "sim", "faults")
"""Each is a module of this package."""


def build_parser(only: str = "") -> argparse.ArgumentParser:
    """The whole command line, or one command of it; every command module adds its own part."""
    parser = argparse.ArgumentParser(
        prog="antiphon", description="A message system that is one server to its clients."
    )
    parser.add_argument("--version", action="version", version=f"antiphon {__version__}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=IntermixedParser
    )
    for command in (only,) if only else COMMANDS:
        import_module(f"antiphon.cli.{command}").add_command(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if not __debug__:
        # Our safety rests on asserts: a node that met the impossible must stop (see errors.py).
        print("antiphon: refuses to run with asserts switched off (python -O)", file=sys.stderr)
        return FAILED
    words = sys.argv[1:] if arguments is None else arguments
    # A command loads only its own module: `antiphon send` need not load the simulator.
    only = words[0] if words and words[0] in COMMANDS else ""
    parsed = build_parser(only).parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except Timeout as error:
        print(f"antiphon: {error}", file=sys.stderr)
        return TIMED_OUT
    except (AntiphonError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of our output left (`antiphon receive … | head`), which is no error. Standard output
            # is pointed elsewhere so that the interpreter does not complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return DONE
        print(f"antiphon: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
