"""What an address of servers looks like: antiphon://host:port,host:port"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from antiphon.errors import ConnectionFailed

PORT_DEFAULT = 7420
SCHEME = "antiphon://"

_SERVER = re.compile(r"(?:\[(?P<bracketed>[^][/@\s]+)\]|(?P<host>[^][:/@\s]+))(?::(?P<port>[0-9]{1,5}))?")


class Server(NamedTuple):
    """Where a client manager listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> list[Server]:
    """The servers of a url, in the order in which they are to be tried.

    >>> parse_url("antiphon://10.0.0.1,[::1]:7421")
    [Server(host='10.0.0.1', port=7420), Server(host='::1', port=7421)]
    """
    if not url.startswith(SCHEME):
        raise ConnectionFailed(f"the url {url!r} does not begin with {SCHEME}")
    return [_parse_server(part, url) for part in url.removeprefix(SCHEME).rstrip("/").split(",")]


def read_servers(texts: Iterable[str]) -> list[Server]:
    """What a server tells of the others; what is no address is passed over."""
    servers = []
    for text in texts:
        try:
            servers.append(_parse_server(text, SCHEME + text))
        except ConnectionFailed:
            continue
    return servers


def _parse_server(text: str, url: str) -> Server:
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ConnectionFailed(f"{text!r} in the url {url!r} is not of the form host:port")
    port = int(match["port"] or PORT_DEFAULT)
    if not 0 < port < 65536:
        raise ConnectionFailed(f"{port} in the url {url!r} is not a port")
    return Server(match["bracketed"] or match["host"], port)
