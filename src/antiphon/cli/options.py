"""Options that several commands share, and the text forms of values on the command line."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import Any, Final, Literal

from antiphon.batch.layout import PRIORITY_MAX
from antiphon.client.aio.subscribing import Start
from antiphon.client.core.route import is_secure
from antiphon.tls import Tls
from antiphon.values import PropertyValue

DEFAULT_URL = "antiphon://127.0.0.1:7420"
PORT_MAX: Final = 65_535

_TLS_OPTIONS: Final = (
    ("--tls-ca", "ANTIPHON_TLS_CA", "the CA of the servers' certificates, instead of those of this machine"),
    ("--tls-cert", "ANTIPHON_TLS_CERT", "the certificate of this client, if the servers ask for one"),
    ("--tls-key", "ANTIPHON_TLS_KEY", "the key of that certificate"),
)

_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "": 1}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|)")


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """`--url`, `--json` and those of TLS, the same for every command that talks to a server."""
    parser.add_argument(
        "--url",
        default=os.environ.get("ANTIPHON_URL", DEFAULT_URL),
        help="where the server is (default: ANTIPHON_URL, or %(default)s)",
    )
    for option, variable, what in _TLS_OPTIONS:
        parser.add_argument(
            option, metavar="FILE", help=f"for urls with antiphons://: {what} (default: {variable})"
        )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")


def tls_option(arguments: argparse.Namespace) -> Tls | None:
    """What the options say of TLS, and the environment, if the url asks for TLS."""
    given = [
        getattr(arguments, option.removeprefix("--").replace("-", "_"))
        or (os.environ.get(variable) if is_secure(arguments.url) else None)
        for option, variable, _ in _TLS_OPTIONS
    ]
    if not any(given):
        return None
    ca, certificate, key = given
    return Tls(ca=ca, certificate=certificate, key=key)


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """The options of the client's identity, for every command that sends or receives."""
    parser.add_argument(
        "--client-id", metavar="ID", help="the client's id, to which durable subscriptions belong"
    )


def add_selector_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--selector", metavar="SQL", help="only messages that match, for example \"region = 'EU'\""
    )


def add_create_option(parser: argparse.ArgumentParser) -> None:
    """For commands that look at a destination, as a rule an existing one."""
    parser.add_argument("--create", action="store_true", help="make the destination if it does not exist")


def add_channel_option(parser: argparse.ArgumentParser) -> None:
    """For the destinations that every channel has a part of."""
    parser.add_argument(
        "--channel", default="", metavar="NAME", help="of queue:_DMQ and topic:_LOG: whose part of it"
    )


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


class IntermixedParser(argparse.ArgumentParser):
    """Takes positional words before, between and behind the options.

    argparse alone closes an optional positional word at the first option: `send queue:a --key k body` would
    be refused.
    """

    _is_inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_inside or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._is_inside = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def positive(text: str) -> int:
    """An integer of at least one."""
    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def not_negative(text: str) -> int:
    """An integer of at least zero."""
    value = whole_number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than nothing")
    return value


def seconds_option(text: str) -> float:
    """A time in seconds, which may be a fraction of one."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds, such as 5 or 0.5")
    return value


def lifetime_option(text: str) -> float:
    """A time in seconds after which messages expire."""
    value = seconds_option(text)
    if not value:
        raise argparse.ArgumentTypeError("a message lives for more than 0 seconds; without --ttl for ever")
    return value


def priority_option(text: str) -> int:
    value = whole_number(text)
    if not 0 <= value <= PRIORITY_MAX:
        raise argparse.ArgumentTypeError(f"{value} is no priority: those are 0 to {PRIORITY_MAX}")
    return value


def port_option(text: str) -> int:
    """A port that others can connect to."""
    value = whole_number(text)
    if not 1 <= value <= PORT_MAX:
        raise argparse.ArgumentTypeError(f"{value} is no port: those are 1 to {PORT_MAX}")
    return value


def start_option(text: str) -> Start:
    """`earliest`, `latest` or a sequence number."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither earliest nor latest nor a sequence number")
    return int(text)


def channels_option(text: str) -> int | list[str]:
    """A number of channels, or their names: `2`, `a,b`."""
    return positive(text) if text.isdecimal() else text.split(",")


def retention_option(text: str) -> float | Literal["consumed"]:
    """`consumed`, or a time: `90`, `90s`, `5m`, `1h`, `7d`."""
    if text == "consumed":
        return "consumed"
    try:
        return duration_option(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither consumed nor a time such as 90s, 5m, 1h or 7d"
        ) from None


def duration_option(text: str) -> float:
    """A time: `90`, `90s`, `5m`, `1h`, `7d`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 5m, 1h or 7d")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def duration_up_to(most: str) -> Callable[[str], float]:
    """Reads times that are not longer than `most`, such as `7d`."""
    limit = duration_option(most)

    def limited_duration(text: str) -> float:
        value = duration_option(text)
        if value > limit:
            raise argparse.ArgumentTypeError(f"{text!r} is longer than {most}")
        return value

    return limited_duration
