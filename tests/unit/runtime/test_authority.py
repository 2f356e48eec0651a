"""A cluster's own CA: what it signs is what clients and servers accept."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from antiphon.errors import NodeError
from antiphon.runtime import authority as module
from antiphon.runtime.authority import LIFETIME, Authority, require_certificates

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def issued(folder: Path, *hosts: str, is_client: bool = False) -> x509.Certificate:
    Authority("c", NOW).issue(folder, "x", hosts, is_client=is_client)
    return x509.load_pem_x509_certificate((folder / "x.pem").read_bytes())


def test_a_certificate_names_addresses_and_names(tmp_path: Path) -> None:
    names = issued(tmp_path, "10.0.0.1", "::1", "broker.example", "10.0.0.1").extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in found.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    assert found.get_values_for_type(x509.DNSName) == ["broker.example"]


def test_a_certificate_lives_for_its_time_and_begins_a_little_earlier(tmp_path: Path) -> None:
    certificate = issued(tmp_path, "h")
    assert certificate.not_valid_before_utc == NOW - timedelta(hours=1)
    assert certificate.not_valid_after_utc == NOW + LIFETIME


def test_keys_are_for_their_owner_and_never_overwritten(tmp_path: Path) -> None:
    authority = Authority("c")
    authority.write(tmp_path)
    before = (tmp_path / "ca.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    with pytest.raises(NodeError, match=r"ca\.key cannot be made: File exists"):
        authority.write(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == before


def test_a_host_that_no_certificate_can_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="'bücher' is no name of a host"):
        issued(tmp_path, "bücher")


def test_without_the_package_the_operator_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NodeError, match=r"pip install 'antiphon\[cluster\]'; --tls off does without"):
        require_certificates()
