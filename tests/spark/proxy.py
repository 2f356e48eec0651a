"""A door that counts: passes bytes on to a server, and counts how often the clients said something."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self


class CountingProxy:
    """Listens on a port of its own. A client that asks and waits says one thing at a time."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._guard = threading.Lock()
        self.said = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone would leave the other thread waiting for clients.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._guard:
            for one in self._sockets:
                one.close()

    def _accept(self) -> None:
        try:
            while True:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(self._server)
                for one in (inner, outer):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._guard:
                    self._sockets += (inner, outer)
                threading.Thread(target=self._pass, args=(inner, outer, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(outer, inner, False), daemon=True).start()
        except OSError:
            # The listener was closed: the test is over.
            return

    def _pass(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if counts:
                    with self._guard:
                        self.said += 1
                target.sendall(data)
        except OSError:
            # One of the two is gone.
            pass
        for one in (source, target):
            one.close()
