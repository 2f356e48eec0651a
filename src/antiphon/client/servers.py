"""What an address of servers looks like: antiphon://host:port,host:port"""

from __future__ import annotations

from typing import NamedTuple

from antiphon.errors import ConnectionFailed

PORT_DEFAULT = 7420
SCHEME = "antiphon://"


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


def _parse_server(text: str, url: str) -> Server:
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.strip(), str(PORT_DEFAULT)
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not host or any(character in host for character in "/@[] "):
        raise ConnectionFailed(f"{text!r} in the url {url!r} is not of the form host:port")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConnectionFailed(f"{port!r} in the url {url!r} is not a port")
    return Server(host, int(port))
