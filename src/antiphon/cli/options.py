"""Options that several commands share, and the text forms of values on the command line."""

from __future__ import annotations

import argparse
import os

from antiphon.values import PropertyValue

DEFAULT_URL = "antiphon://127.0.0.1:7420"


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """`--url` and `--json`, the same for every command that talks to a server."""
    parser.add_argument(
        "--url",
        default=os.environ.get("ANTIPHON_URL", DEFAULT_URL),
        help="where the server is (default: ANTIPHON_URL, or %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")


def property_option(text: str) -> tuple[str, PropertyValue]:
    """`k=v` is text; `k:int=5`, `k:float=1.5`, `k:bool=true` are typed."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    name, _, kind = name.partition(":")
    try:
        match kind:
            case "" | "str":
                return name, value
            case "int":
                return name, int(value)
            case "float":
                return name, float(value)
            case "bool":
                return name, {"true": True, "false": False}[value.lower()]
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(f"{value!r} is not a {kind}") from None
    raise argparse.ArgumentTypeError(f"{kind!r} is no property type; use str, int, float or bool")


def positive(text: str) -> int:
    """An integer of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value
