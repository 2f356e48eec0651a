"""TLS: the certificates of both sides, and what it means when the two do not come together.

TLS1  TLS 1.2 is the oldest version, and certificates are verified, unless a caller's own context says
      otherwise.
TLS2  A context is made anew when its files have changed. While the new files make no sense, which is logged,
      the context that was made last goes on.
TLS3  A file that cannot be used is told in one sentence that names it; a private key that every user of the
      machine can read is refused. Nobody is asked for the password of a key.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, TypeAlias

from antiphon.errors import AntiphonError, LocalError, NodeError, TlsFailed

log = logging.getLogger("antiphon.tls")

FilePath: TypeAlias = str | os.PathLike[str]

_Stamp: TypeAlias = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a client makes sure of the servers, and shows who it is: `antiphon.connect(…, tls=Tls(…))`.

    `ca`: the file with the certificates of the CAs that the servers' certificates are of; without it, the CAs
    that this machine trusts. `certificate` and `key`: the client's own, for servers that ask for one; the
    key may be in the certificate's file. `check_hostname=False` takes any server with a certificate of the
    CA. `server_name`: the name in the servers' certificates, if it is not the host of the url.

    >>> tls = antiphon.Tls(ca="ca.pem", certificate="client.pem", key="client.key")
    >>> connection = await antiphon.connect("antiphons://127.0.0.1:7420", tls=tls)
    """

    ca: FilePath | None = None
    certificate: FilePath | None = None
    key: FilePath | None = None
    check_hostname: bool = True
    server_name: str | None = None


TlsChoice: TypeAlias = FilePath | Tls | Mapping[str, object] | ssl.SSLContext | None
"""None: the CAs that this machine trusts; a path: the file of the CA; a mapping has the fields of `Tls`."""


class TlsContext:
    """A context made of files (TLS2)."""

    def __init__(self, paths: Sequence[Path], make: Callable[[], ssl.SSLContext]) -> None:
        """Makes the context, and raises what `make` raises."""
        self._paths = paths
        self._make = make
        # Before the files are read: a change in between is seen at the next look.
        self._stamps = self._read_stamps()
        self.current = make()

    def look(self) -> ssl.SSLContext:
        """The context, made anew if a file has changed."""
        stamps = self._read_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            names = ", ".join(map(str, self._paths))
            try:
                self.current = self._make()
                log.info("new connections use the new content of %s", names)
            except AntiphonError as error:
                log.error("%s has changed and cannot be used: %s; the content before goes on", names, error)
        return self.current

    def _read_stamps(self) -> list[_Stamp]:
        return [_stamp(path) for path in self._paths]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """The files of a node that listens with TLS. With `client_ca` every client needs a certificate of it."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> TlsContext:
        """Raises NodeError if the files cannot be used."""
        paths = [self.certificate, self.key, *([self.client_ca] if self.client_ca else [])]
        return TlsContext(paths, self._make)

    def _make(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        # Every connection is checked in full, against the files of now.
        context.num_tickets = 0
        _load_certificate(context, self.certificate, self.key, NodeError)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            _load_ca(context, self.client_ca, NodeError)
        return context


class ClientTls:
    """What a client's connections need to speak TLS: `tls=` of `connect`, checked."""

    def __init__(self, choice: TlsChoice = None) -> None:
        """Raises LocalError if the choice or its files cannot be used."""
        self.server_name: str | None = None
        if isinstance(choice, ssl.SSLContext):
            self._context = TlsContext((), lambda: choice)
            return
        tls = _checked(choice)
        self.server_name = tls.server_name
        ca, certificate, key = (_path(one) for one in (tls.ca, tls.certificate, tls.key))

        def make() -> ssl.SSLContext:
            # Without a CA's file the system's are loaded.
            context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.check_hostname = tls.check_hostname
            if ca is not None:
                _load_ca(context, ca, LocalError)
            if certificate is not None:
                _load_certificate(context, certificate, key or certificate, LocalError)
            return context

        self._context = TlsContext([one for one in (ca, certificate, key) if one is not None], make)

    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._context.look()


def _checked(choice: FilePath | Tls | Mapping[str, object] | None) -> Tls:
    match choice:
        case Tls():
            tls = choice
        case None:
            tls = Tls()
        case str() | os.PathLike():
            tls = Tls(ca=choice)
        case Mapping():
            known = [one.name for one in fields(Tls)]
            for name in choice:
                if name not in known:
                    raise LocalError(f"tls has no {name!r}; it has {', '.join(known)}")
            tls = Tls(**choice)  # type: ignore[arg-type]
        case _:
            raise LocalError(
                "tls is the path of a CA's file, an antiphon.Tls, a mapping or an ssl.SSLContext;"
                f" it was {type(choice).__name__}"
            )
    for name in ("ca", "certificate", "key"):
        path = getattr(tls, name)
        if path is not None and not (isinstance(path, str | os.PathLike) and os.fspath(path)):
            raise LocalError(f"tls: {name} is the path of a file; it was {path!r}")
    if type(tls.check_hostname) is not bool:
        raise LocalError(f"tls: check_hostname is True or False; it was {tls.check_hostname!r}")
    if tls.server_name is not None and not (isinstance(tls.server_name, str) and tls.server_name):
        raise LocalError(f"tls: server_name is the name of a host; it was {tls.server_name!r}")
    if tls.key is not None and tls.certificate is None:
        raise LocalError("tls: key is given without its certificate")
    return tls


def _path(given: FilePath | None) -> Path | None:
    return None if given is None else Path(given)


# --- files -----------------------------------------------------------------------------------------


def _stamp(path: Path) -> _Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _load_ca(context: ssl.SSLContext, path: Path, error: type[AntiphonError]) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise error(f"{path} holds no certificate of a CA in PEM") from None
    except OSError as failure:
        raise error(f"the CA file {path} cannot be read: {failure.strerror}") from None


def _load_certificate(
    context: ssl.SSLContext, certificate: Path, key: Path, error: type[AntiphonError]
) -> None:
    _readable(certificate, "certificate", error)
    status = _readable(key, "key", error)
    if stat.S_IMODE(status.st_mode) & 0o007:
        raise error(f"the key file {key} can be read by every user; chmod 600 it, and consider a new key")
    has_asked = False

    def password() -> str:
        nonlocal has_asked
        has_asked = True
        return ""

    try:
        context.load_cert_chain(certificate, key, password)
    except (ssl.SSLError, OSError, ValueError) as failure:
        if has_asked:
            raise error(f"the key in {key} needs a password: store it without one") from None
        if isinstance(failure, ssl.SSLError) and failure.reason == "KEY_VALUES_MISMATCH":
            raise error(f"the key in {key} is not that of the certificate in {certificate}") from None
        raise error(f"{certificate} and {key} hold no certificate with its key in PEM") from None


def _readable(path: Path, what: str, error: type[AntiphonError]) -> os.stat_result:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno())
    except OSError as failure:
        raise error(f"the {what} file {path} cannot be read: {failure.strerror}") from None


# --- failures --------------------------------------------------------------------------------------

_UNKNOWN_CA: Final = (2, 18, 19, 20, 21)

_OUR_CERTIFICATE: Final = {
    "CERTIFICATE_REQUIRED": "asks for a certificate of the client, and tls= has none",
    "UNKNOWN_CA": "does not know the CA of the client's certificate",
    "CERTIFICATE_EXPIRED": "says that the client's certificate has expired",
    "CERTIFICATE_REVOKED": "says that the client's certificate is revoked",
    "BAD_CERTIFICATE": "does not accept the client's certificate",
    "CERTIFICATE_UNKNOWN": "does not accept the client's certificate",
    "UNSUPPORTED_CERTIFICATE": "does not accept the client's certificate",
    "PROTOCOL_VERSION": "speaks no version of TLS that the client speaks",
    "HANDSHAKE_FAILURE": "ended the handshake; perhaps it asks for a certificate of the client",
}
"""The alerts of a server, by the end of OpenSSL's words for them."""


def tls_failure(host: str, error: ssl.SSLError) -> TlsFailed | None:
    """Why a client and the server `host` did not come together; None if only the connection was lost."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(_about_certificate(host, error))
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None
    reason = error.reason or ""
    if "ALERT" in reason:
        for words, meaning in _OUR_CERTIFICATE.items():
            if reason.endswith(words):
                return TlsFailed(f"the server {meaning}")
        return TlsFailed(f"the server ended the handshake: {reason.lower().replace('_', ' ')}")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return TlsFailed("the server does not speak TLS here: the url would begin with antiphon://")
    return TlsFailed(f"the handshake failed: {reason.lower().replace('_', ' ') or error}")


def _about_certificate(host: str, error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case 10:
            return "the server's certificate has expired"
        case 9:
            return "the server's certificate is not valid yet; are the clocks right?"
        case 62 | 64:
            return f"the server's certificate is not for {host}; tls= takes a server_name"
        case code if code in _UNKNOWN_CA:
            return "the server's certificate is of a CA that is not trusted here; tls= takes the CA's file"
    return f"the server's certificate is refused: {error.verify_message}"


def client_failure(error: ssl.SSLError) -> str:
    """Why a server ends a connection with a client."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    return f"TLS with the client failed: {(error.reason or str(error)).lower().replace('_', ' ')}"


def begins_handshake(head: bytes) -> bool:
    """Could these first bytes, at most three, be those of a TLS handshake?"""
    return head[:1] in (b"", b"\x16") and head[1:2] in (b"", b"\x03") and (len(head) < 3 or head[2] <= 4)
