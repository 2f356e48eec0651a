"""Route: the server to try next, and when.

The servers are tried over and over, beginning with the lost one: most often only the connection is gone, or
the server is back in a moment. The others follow in the client's order, those that failed before behind the
rest. A server that fell silent is tried last. The first round is tried at once, then there are pauses, each
longer than the one before, up to a limit, and drawn, so that the clients of a lost server do not all come
back in the same instant.

The servers are those that the application named, and those that the system told of at the last login. Each
client draws an order of its own, unless the application wants its own: so the clients of a system spread over
its servers, and the clients of a lost server over the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from antiphon.errors import ConnectionFailed, LocalError
from antiphon.names import PLAIN, SECURE

PORT_DEFAULT = 7420
SCHEME = f"{PLAIN}://"
TLS_SCHEME = f"{SECURE}://"

_SERVER = re.compile(r"(?:\[(?P<bracketed>[^][/@\s]+)\]|(?P<host>[^][:/@\s]+))(?::(?P<port>[0-9]{1,5}))?")


class Server(NamedTuple):
    """The address of a client manager."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> list[Server]:
    """The servers of a url, in the order in which they are to be tried.

    >>> parse_url("antiphon://10.0.0.1,[::1]:7421")
    [Server(host='10.0.0.1', port=7420), Server(host='::1', port=7421)]
    """
    if not isinstance(url, str):
        raise LocalError(f"a url is a text such as {SCHEME}127.0.0.1:{PORT_DEFAULT}; it was {url!r}")
    scheme = TLS_SCHEME if is_secure(url) else SCHEME
    if not url.startswith(scheme):
        raise ConnectionFailed(f"the url {url!r} does not begin with {SCHEME} or {TLS_SCHEME}")
    return [_parse_server(part, url) for part in url.removeprefix(scheme).rstrip("/").split(",")]


def is_secure(url: str) -> bool:
    """Does the url ask for TLS?"""
    return url.startswith(TLS_SCHEME)


def read_servers(texts: Iterable[str]) -> list[Server]:
    """The addresses that a server tells; unreadable ones are passed over."""
    servers = []
    for text in texts:
        try:
            servers.append(_parse_server(text, SCHEME + text))
        except ConnectionFailed:
            continue
    return servers


def in_drawn_order(servers: Iterable[Server], chance: Callable[[], float]) -> list[Server]:
    """The servers in an order that is drawn by numbers from 0 to 1.

    >>> in_drawn_order(parse_url("antiphon://a:1,b:2,c:3"), lambda: 0.5)
    [Server(host='b', port=2), Server(host='c', port=3), Server(host='a', port=1)]
    """
    rest, drawn = list(servers), []
    while rest:
        drawn.append(rest.pop(min(int(chance() * len(rest)), len(rest) - 1)))
    return drawn


def _parse_server(text: str, url: str) -> Server:
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ConnectionFailed(f"{text!r} in the url {url!r} is not of the form host:port")
    port = int(match["port"] or PORT_DEFAULT)
    if not 0 < port < 65536:
        raise ConnectionFailed(f"{port} in the url {url!r} is not a port")
    return Server(match["bracketed"] or match["host"], port)


PAUSE_NS_MIN = 30_000_000
PAUSE_NS_SHORT = 200_000_000
PAUSE_NS_MAX = 2_000_000_000
PAUSE_GROWTH = 1.5
AWAY_SHARE = 20
"""Pauses grow to a fifth of a second, and then only with a twentieth of the time that the server has been
away: a quick server is quickly found, before it gives the client's messages to others."""

STEADY_NS = 5_000_000_000
"""After a connection of this length the pauses begin anew."""


class ServerAttempt(NamedTuple):
    server: Server
    at_ns: int


class Route:
    """The way back to a server. `chance` gives numbers from 0 to 1."""

    def __init__(self, servers: Sequence[Server], chance: Callable[[], float]) -> None:
        self._named = list(servers)
        self._servers = list(servers)
        self._chance = chance
        # When a server last failed that was not reached since.
        self._failed_ns: dict[Server, int] = {}
        self._round: list[Server] = []
        self._pause_ns = 0
        self._next_ns = 0
        self._reached_ns = 0
        self.current = servers[0]
        self.lost_ns = 0
        self.failures: dict[str, str] = {}
        """The servers tried since the connection was lost, and why each failed."""

    @property
    def servers(self) -> list[Server]:
        return list(self._servers)

    def refresh(self, servers: Iterable[Server]) -> None:
        """The system has these servers; of others only those count that the application named."""
        told = dict.fromkeys(servers)
        known = [server for server in self._servers if server in told or server in self._named]
        new = [server for server in told if server not in known]
        self._servers = known + in_drawn_order(new, self._chance)
        self._failed_ns = {server: at for server, at in self._failed_ns.items() if server in self._servers}

    def reached(self, now_ns: int, server: Server) -> None:
        """This server has admitted the client."""
        self.current = server
        self._reached_ns = now_ns
        self._failed_ns.pop(server, None)
        self.failures.clear()

    def lost(self, now_ns: int, *, was_silent: bool = False) -> None:
        """The connection is gone: look for another."""
        if now_ns - self._reached_ns >= STEADY_NS:
            self._pause_ns = 0
        self.lost_ns = now_ns
        self._begin_round(now_ns)
        if was_silent:
            self._round.append(self._round.pop(0))

    def next(self) -> ServerAttempt:
        return ServerAttempt(self._round[0], self._next_ns)

    def failed(self, now_ns: int, why: str) -> None:
        server = self._round.pop(0)
        self._failed_ns[server] = now_ns
        self.failures[str(server)] = why
        if not self._round:
            longest_ns = max(PAUSE_NS_SHORT, min(PAUSE_NS_MAX, (now_ns - self.lost_ns) // AWAY_SHARE))
            self._pause_ns = min(longest_ns, max(PAUSE_NS_MIN, int(self._pause_ns * PAUSE_GROWTH)))
            self._begin_round(now_ns)

    def _begin_round(self, now_ns: int) -> None:
        at = self._servers.index(self.current) if self.current in self._servers else 0
        first, *others = self._servers[at:] + self._servers[:at]
        self._round = [first, *sorted(others, key=lambda server: self._failed_ns.get(server, -1))]
        # Between half of the pause and all of it.
        self._next_ns = now_ns + int(self._pause_ns * (1 + self._chance()) / 2)

    @property
    def reasons(self) -> str:
        return "; ".join(f"{server}: {reason}" for server, reason in self.failures.items())
