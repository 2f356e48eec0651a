"""A CA and certificates for tests, made once for all tests of a process."""

from __future__ import annotations

import atexit
import functools
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from antiphon.runtime.authority import Authority
from antiphon.tls import ClientTls, ServerFiles, Tls, TlsContext

HERE = ("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Certificates:
    """`ca`, and of it `server` and `renewed` for this machine, `elsewhere` for another, `expired`, `client`;
    `stranger`, and of it `strange-server` and `strange-client`."""

    folder: Path

    def pem(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def server(self, name: str = "server", *, is_mutual: bool = False) -> ServerFiles:
        client_ca = self.pem("ca") if is_mutual else None
        return ServerFiles(certificate=self.pem(name), key=self.key(name), client_ca=client_ca)

    def client(self, name: str = "", ca: str = "ca") -> Tls:
        if not name:
            return Tls(ca=self.pem(ca))
        return Tls(ca=self.pem(ca), certificate=self.pem(name), key=self.key(name))

    def both(self) -> tuple[TlsContext, ClientTls]:
        """The two halves, for a test of a port."""
        return self.server().context(), ClientTls(self.client())


@functools.cache
def certificates() -> Certificates:
    folder = tempfile.TemporaryDirectory(prefix="antiphon-certificates-")
    atexit.register(folder.cleanup)
    made = Certificates(Path(folder.name))
    authority = Authority("tests")
    authority.write(made.folder)
    authority.issue(made.folder, "server", HERE)
    authority.issue(made.folder, "renewed", HERE)
    authority.issue(made.folder, "elsewhere", ["elsewhere.example"])
    authority.issue(made.folder, "expired", HERE, lifetime=timedelta(days=-1))
    authority.issue(made.folder, "client", is_client=True)
    stranger = Authority("strangers")
    stranger.write(made.folder, "stranger")
    stranger.issue(made.folder, "strange-server", HERE)
    stranger.issue(made.folder, "strange-client", is_client=True)
    return made
