"""Contexts of both sides: what may be said of them, when they are made anew, and what a failure means."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import LocalError, NodeError, TlsFailed
from antiphon.tls import (
    ClientTls,
    ServerFiles,
    Tls,
    begins_handshake,
    client_failure,
    tls_failure,
)
from tests.certificates import certificates

MADE = certificates()


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    """Files of a server that a test may change."""
    for suffix in ("pem", "key"):
        shutil.copy(MADE.folder / f"server.{suffix}", tmp_path / f"own.{suffix}")
    shutil.copy(MADE.pem("ca"), tmp_path / "ca.pem")
    return ServerFiles(certificate=tmp_path / "own.pem", key=tmp_path / "own.key")


def shake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1") -> bytes:
    """Let the two meet in memory; returns the server's certificate."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(a, b, server_side=True)
    theirs = client.wrap_bio(b, a, server_hostname=host)
    for _ in range(4):
        for half in (theirs, ours):
            try:
                half.do_handshake()
            except ssl.SSLWantReadError:
                pass
    certificate = theirs.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


# --- of a server -----------------------------------------------------------------------------------


def test_a_server_speaks_tls_12_at_least_and_asks_for_certificates_only_with_a_ca() -> None:
    plain = MADE.server().context().current
    assert plain.minimum_version is ssl.TLSVersion.TLSv1_2
    assert plain.verify_mode is ssl.CERT_NONE
    assert plain.options & ssl.OP_NO_RENEGOTIATION
    assert MADE.server(is_mutual=True).context().current.verify_mode is ssl.CERT_REQUIRED


def test_new_files_make_a_new_context(files: ServerFiles, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    context, client = files.context(), ClientTls(MADE.client()).context()
    first, before = context.look(), shake(context.current, client)
    assert context.look() is first and caplog.records == []
    for kind in ("pem", "key"):
        shutil.copy(MADE.folder / f"renewed.{kind}", files.certificate.with_suffix(f".{kind}"))
    renewed = context.look()
    assert renewed is not first and context.current is renewed
    assert shake(renewed, client) != before
    assert "new connections use the new content of" in caplog.text


def test_files_that_make_no_sense_are_logged_once_and_those_before_go_on(
    files: ServerFiles, caplog: pytest.LogCaptureFixture
) -> None:
    context = files.context()
    first = context.current
    # Half of a renewal: the key is still the old one.
    shutil.copy(MADE.pem("renewed"), files.certificate)
    assert context.look() is first
    assert "is not that of the certificate" in caplog.text
    lines = len(caplog.records)
    assert context.look() is first and len(caplog.records) == lines
    files.key.unlink()
    assert context.look() is first and "cannot be read: No such file" in caplog.text
    shutil.copy(MADE.key("renewed"), files.key)
    assert context.look() is not first


def broken(files: ServerFiles, how: str) -> None:
    match how:
        case "no certificate":
            files.certificate.unlink()
        case "no key":
            files.key.unlink()
        case "other key":
            shutil.copy(MADE.key("renewed"), files.key)
        case "open key":
            os.chmod(files.key, 0o644)
        case "not a certificate":
            files.certificate.write_text("hello")
        case "empty key":
            files.key.write_text("")
        case "locked key":
            from cryptography.hazmat.primitives import serialization

            key = serialization.load_pem_private_key(files.key.read_bytes(), None)
            locked = serialization.BestAvailableEncryption(b"secret")
            encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
            files.key.write_bytes(key.private_bytes(encoding, form, locked))


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("no certificate", "the certificate file .*own.pem cannot be read: No such file or directory"),
        ("no key", "the key file .*own.key cannot be read: No such file or directory"),
        ("other key", "the key in .*own.key is not that of the certificate in .*own.pem"),
        ("open key", "the key file .*own.key can be read by every user; chmod 600 it"),
        ("not a certificate", "own.pem and .*own.key hold no certificate with its key in PEM"),
        ("empty key", "own.pem and .*own.key hold no certificate with its key in PEM"),
        ("locked key", "the key in .*own.key needs a password: store it without one"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(files: ServerFiles, how: str, complaint: str) -> None:
    broken(files, how)
    with pytest.raises(NodeError, match=complaint):
        files.context()
    mine = Tls(ca=MADE.pem("ca"), certificate=files.certificate, key=files.key)
    with pytest.raises(LocalError, match=complaint):
        antiphon.connect("antiphons://127.0.0.1", tls=mine)


# --- of a client -----------------------------------------------------------------------------------


def test_a_client_verifies_by_default() -> None:
    for choice in (None, str(MADE.pem("ca")), MADE.pem("ca"), Tls(), {"ca": str(MADE.pem("ca"))}):
        context = ClientTls(choice).context()
        assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_the_cas_of_the_machine_are_trusted_only_without_a_file() -> None:
    assert len(ClientTls(MADE.pem("ca")).context().get_ca_certs()) == 1


def test_without_the_check_of_names_the_ca_is_verified_all_the_same() -> None:
    lenient = ClientTls(Tls(ca=MADE.pem("ca"), check_hostname=False)).context()
    shake(MADE.server("elsewhere").context().current, lenient)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(MADE.server("strange-server").context().current, lenient)


def test_a_context_of_the_application_is_used_as_it_is() -> None:
    own = ssl.create_default_context()
    assert ClientTls(own).context() is own


def test_a_ca_that_was_renewed_is_read_again(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copy(MADE.pem("stranger"), ca)
    tls, server = ClientTls(ca), MADE.server().context().current
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, tls.context())
    shutil.copy(MADE.pem("ca"), ca)
    shake(server, tls.context())


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        (5, "tls is the path of a CA's file, an antiphon.Tls, a mapping or an ssl.SSLContext; it was int"),
        (True, "it was bool"),
        ({"cafile": "x"}, "tls has no 'cafile'; it has ca, certificate, key, check_hostname, server_name"),
        ({"ca": 5}, "tls: ca is the path of a file; it was 5"),
        ("", "tls: ca is the path of a file; it was ''"),
        ({"check_hostname": "no"}, "tls: check_hostname is True or False; it was 'no'"),
        ({"server_name": ""}, "tls: server_name is the name of a host; it was ''"),
        ({"key": "x"}, "tls: key is given without its certificate"),
        ("/nowhere/ca.pem", "the CA file /nowhere/ca.pem cannot be read: No such file or directory"),
        pytest.param(str(MADE.key("server")), "holds no certificate of a CA in PEM", id="a key"),
    ],
)
def test_what_cannot_be_is_refused_at_once(choice: Any, complaint: str) -> None:
    with pytest.raises(LocalError) as refused:
        antiphon.connect("antiphons://127.0.0.1:7420", tls=choice)
    assert complaint in refused.value.text and "\n" not in refused.value.text


def test_tls_is_not_for_a_plain_url() -> None:
    with pytest.raises(LocalError, match=r"tls= is for urls that begin with antiphons://"):
        antiphon.connect("antiphon://127.0.0.1:7420", tls=MADE.client())


# --- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "ca", "said"),
    [
        ("expired", "ca", "the server's certificate has expired"),
        ("elsewhere", "ca", "the server's certificate is not for 127.0.0.1; tls= takes a server_name"),
        ("server", "stranger", "the server's certificate is of a CA that is not trusted here"),
        ("strange-server", "ca", "the server's certificate is of a CA that is not trusted here"),
    ],
)
def test_a_certificate_that_does_not_pass_is_told_in_words(server: str, ca: str, said: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        shake(MADE.server(server).context().current, ClientTls(MADE.pem(ca)).context())
    failure = tls_failure("127.0.0.1", refused.value)
    assert isinstance(failure, TlsFailed) and failure.text.startswith(said)


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}]")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "asks for a certificate of the client"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not know the CA of the client's certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "the client's certificate has expired"),
        ("SSL/TLS_ALERT_CERTIFICATE_EXPIRED", "the client's certificate has expired"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "no version of TLS"),
        ("TLSV1_ALERT_INTERNAL_ERROR", "tlsv1 alert internal error"),
        ("WRONG_VERSION_NUMBER", "does not speak TLS here"),
        ("NO_SHARED_CIPHER", "no shared cipher"),
    ],
)
def test_the_words_of_openssl_become_ours(reason: str, said: str) -> None:
    failure = tls_failure("h", alert(reason))
    assert failure is not None and said in failure.text
    assert client_failure(alert(reason))


def test_a_connection_that_was_only_lost_is_no_failure_of_tls() -> None:
    assert tls_failure("h", ssl.SSLEOFError(8, "EOF occurred in violation of protocol")) is None


@pytest.mark.parametrize(
    ("head", "is_tls"),
    [
        (b"", True),
        (b"\x16", True),
        (b"\x16\x03", True),
        (b"\x16\x03\x01", True),
        (b"\x16\x03\x03\x01", True),
        (b"\x16\x03\x05", False),
        (b"\x16\x02", False),
        (b"GET", False),
        (b"\x20\x00\x00", False),
    ],
)
def test_a_handshake_is_known_by_its_first_bytes(head: bytes, is_tls: bool) -> None:
    assert begins_handshake(head) is is_tls
