"""Authority: a small CA for the clients' connections of a cluster, and the certificates that it signs.

AUT1  A private key is written once, readable by its owner only, and never over another file.
AUT2  A certificate names the hosts that clients connect to; addresses and names alike.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from antiphon.errors import NodeError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_LIFETIME: Final = timedelta(days=3_650)
LIFETIME: Final = timedelta(days=825)
_NAME_MAX: Final = 64

_CLOCKS: Final = timedelta(hours=1)
"""A certificate is valid from so long ago on: the clocks of clients may be behind."""


def require_certificates() -> None:
    """Raise `NodeError` if the package that makes certificates is not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise NodeError(
            "certificates need cryptography: pip install 'antiphon[cluster]'; --tls off does without them"
        )


class Authority:
    """A CA whose key is in memory until it is written."""

    def __init__(self, name: str, now: datetime | None = None) -> None:
        require_certificates()
        from cryptography import x509

        self._now = now or datetime.now(UTC)
        self._key = _new_key()
        self._name = _named(f"{name} CA")
        usage = x509.KeyUsage(**_usage("key_cert_sign", "crl_sign"))
        extensions = [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (usage, True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        ]
        self._certificate = self._sign(self._name, self._key, self._now + CA_LIFETIME, extensions)

    def write(self, folder: Path, name: str = "ca") -> None:
        """Write NAME.pem and NAME.key."""
        _write_pair(folder, name, self._certificate, self._key)

    def issue(
        self,
        folder: Path,
        name: str,
        hosts: Sequence[str] = (),
        *,
        is_client: bool = False,
        lifetime: timedelta = LIFETIME,
    ) -> None:
        """Write NAME.pem and NAME.key: a server's certificate for these hosts, or a client's."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if is_client else ExtendedKeyUsageOID.SERVER_AUTH
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.KeyUsage(**_usage("digital_signature")), True),
            (x509.ExtendedKeyUsage([purpose]), False),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        ]
        if hosts:
            extensions.append((x509.SubjectAlternativeName(list(_alternatives(hosts))), False))
        certificate = self._sign(_named(name), key, self._now + lifetime, extensions)
        _write_pair(folder, name, certificate, key)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        until: datetime,
        extensions: Iterable[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes

        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(self._now, until) - _CLOCKS)
            .not_valid_after(until)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256())


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:_NAME_MAX])])


def _alternatives(hosts: Iterable[str]) -> Iterable[x509.GeneralName]:
    from cryptography import x509

    for host in dict.fromkeys(hosts):
        try:
            yield x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            try:
                yield x509.DNSName(host)
            except ValueError:
                raise NodeError(f"{host!r} is no name of a host that a certificate can have") from None


def _usage(*wanted: str) -> dict[str, bool]:
    known = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return {name: name in wanted for name in known}


def _write_pair(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write_new(folder / f"{name}.key", private, 0o600)
    _write_new(folder / f"{name}.pem", certificate.public_bytes(Encoding.PEM), 0o644)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise NodeError(f"{path} cannot be made: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
