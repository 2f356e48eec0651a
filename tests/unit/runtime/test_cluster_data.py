"""The folder of a cluster: made whole or gone on with, read with care, and run by one process at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

from antiphon.cluster.config_file import write
from antiphon.cluster.topology import ClusterSpec, Counts, TlsMode, lay_out
from antiphon.errors import DataDirectoryLocked, NodeError
from antiphon.journal.journal import Journal
from antiphon.runtime import cluster_data
from antiphon.runtime.cluster_data import (
    CLUSTER_FILE,
    PORTS,
    PORTS_VARIABLE,
    create_cluster,
    data_path,
    free_ports,
    holds_cluster,
    key_path,
    load_cluster,
    locked,
    write_cluster,
)
from antiphon.runtime.disk import FileDisk
from tests.certificates import certificates
from tests.unit.cluster.clusters import a_cluster, sources

COUNTS = Counts(client_managers=2, message_managers=2)


def disk_ids(config: Path, spec: ClusterSpec) -> dict[str, bytes]:
    found = {}
    for node in spec.nodes:
        if node.has_disk:
            with contextlib.closing(FileDisk(data_path(config, node))) as disk:
                _, recovered = Journal.open(disk, cluster_data.journal_settings(spec))
                assert (recovered.node_id, recovered.cluster) == (node.number, spec.name)
                found[node.name] = recovered.disk_id
    return found


def test_a_new_cluster_has_a_file_a_key_and_disks_with_the_ids_that_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert not holds_cluster(folder)
    spec = create_cluster(folder, COUNTS, 7420)
    config = folder / CLUSTER_FILE
    assert holds_cluster(folder)
    assert load_cluster(config) == spec
    assert stat.S_IMODE(key_path(config, spec).stat().st_mode) == 0o600
    listed = {node.name: node.disk_id for node in spec.nodes if node.has_disk}
    assert disk_ids(config, spec) == listed
    assert len(set(listed.values())) == 3
    assert spec.servers == ["127.0.0.1:7420", "127.0.0.1:7421"]
    assert all(port in PORTS for node in spec.nodes for port in node.bus.values())
    assert sorted(os.listdir(folder)) == ["cluster.key", "cluster.toml", "nodes"]


def test_a_creation_that_was_cut_off_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formatted: list[str] = []
    format_disk = cluster_data.format_disk

    def cut_off(disk: FileDisk, spec: ClusterSpec, node: object) -> bool:
        if len(formatted) == 1:
            raise KeyboardInterrupt
        formatted.append(disk.path.name)
        return format_disk(disk, spec, node)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster_data, "format_disk", cut_off)
    with pytest.raises(KeyboardInterrupt):
        create_cluster(tmp_path, COUNTS, 0)
    monkeypatch.undo()
    assert formatted == ["mm-a-1"]
    assert not (tmp_path / CLUSTER_FILE).exists()
    assert holds_cluster(tmp_path)
    spec = create_cluster(tmp_path, Counts(message_managers=5), 0)
    assert len(spec.message_managers("a")) == 2, "it is the one that was begun"
    assert disk_ids(tmp_path / CLUSTER_FILE, spec)["mm-a-1"] == spec.node("mm-a-1").disk_id


def test_the_data_of_an_embedded_system_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "superblock").touch()
    with pytest.raises(NodeError, match="holds an embedded message system"):
        create_cluster(tmp_path, COUNTS, 0)
    assert os.listdir(tmp_path) == ["superblock"]


def test_a_disk_that_is_formatted_keeps_its_id(tmp_path: Path) -> None:
    spec = a_cluster(message_managers=3)
    with contextlib.closing(FileDisk(tmp_path)) as disk:
        assert cluster_data.format_disk(disk, spec, spec.node("mm-a-1"))
        assert not cluster_data.format_disk(disk, spec, spec.node("mm-a-2"))
        assert (
            Journal.open(disk, cluster_data.journal_settings(spec))[1].node_id == spec.node("mm-a-1").number
        )


FRESH = b"a fresh disk id "


def prepare(folder: Path, **known: Any) -> str:
    """What is said about a disk; afterwards it has an id if it got one."""
    spec = a_cluster(message_managers=3)
    facts = {"is_formatting": False, "has_history": False, "unsettled": [], "has_peers": True, **known}
    with contextlib.closing(FileDisk(folder / "disk")) as disk:
        return cluster_data.prepare_disk(
            disk, folder / CLUSTER_FILE, spec, spec.node("mm-a-1"), FRESH, **facts
        )


def is_formatted(folder: Path) -> bool:
    with contextlib.closing(FileDisk(folder / "disk")) as disk:
        return Journal.is_formatted(disk)


def tokens(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / cluster_data.FIRST_STARTS))


@pytest.fixture
def first_start(tmp_path: Path) -> Path:
    """A folder with the tokens that `init` has written."""
    cluster_data.write_tokens(tmp_path / CLUSTER_FILE, a_cluster(message_managers=3))
    return tmp_path


def test_a_token_is_good_for_one_first_start(first_start: Path) -> None:
    assert tokens(first_start) == ["mm-a-1", "mm-a-2", "mm-a-3"]
    assert "is formatted as disk" in prepare(first_start, is_formatting=True)
    assert tokens(first_start) == ["mm-a-2", "mm-a-3"]
    shutil.rmtree(first_start / "disk")
    said = prepare(first_start, is_formatting=True)
    assert f"the node begins as the new disk {FRESH.hex()}" in said
    assert "--format did nothing, for there is no token in" in said
    assert not is_formatted(first_start)


def test_a_token_of_another_disk_is_none(first_start: Path) -> None:
    (first_start / cluster_data.FIRST_STARTS / "mm-a-1").write_text("00" * 16)
    assert "there is no token" in prepare(first_start, is_formatting=True)


def test_no_disk_is_formatted_while_a_voter_is_unheard(first_start: Path) -> None:
    with pytest.raises(NodeError, match="was not formatted, for mm-a-2 and mm-a-3 did not say"):
        prepare(first_start, is_formatting=True, unsettled=["mm-a-2", "mm-a-3"])
    assert not is_formatted(first_start)
    assert tokens(first_start) == ["mm-a-1", "mm-a-2", "mm-a-3"], "the next start may use it"


def test_a_disk_is_new_until_something_is_written(tmp_path: Path) -> None:
    spec = a_cluster(message_managers=3)
    config, node = tmp_path / CLUSTER_FILE, spec.node("mm-a-1")
    folder = cluster_data.data_path(config, node)
    assert cluster_data.is_new_disk(config, node)
    with contextlib.closing(FileDisk(folder)) as disk:
        cluster_data.format_disk(disk, spec, node)
    assert cluster_data.is_new_disk(config, node)
    (folder / "segment-00000001").touch()
    assert not cluster_data.is_new_disk(config, node)


def test_an_empty_disk_gets_the_listed_id_when_the_cluster_is_new(first_start: Path) -> None:
    listed = a_cluster(message_managers=3).node("mm-a-1").disk_id.hex()
    assert prepare(first_start, is_formatting=True).endswith(f"is formatted as disk {listed}")
    assert is_formatted(first_start)
    assert prepare(first_start) == ""
    assert prepare(first_start, is_formatting=True).endswith("and --format did nothing")


@pytest.mark.parametrize("is_formatting", [False, True])
def test_an_empty_disk_is_a_new_one_when_the_channel_was_at_work(
    first_start: Path, is_formatting: bool
) -> None:
    said = prepare(first_start, is_formatting=is_formatting, has_history=True)
    assert f"the node begins as the new disk {FRESH.hex()}" in said
    assert ("--format did nothing" in said) is is_formatting
    assert not is_formatted(first_start), "whoever starts the node does that"
    assert "mm-a-1" in tokens(first_start)


def test_an_empty_disk_that_was_the_only_one_is_refused_unless_it_is_to_begin_with_nothing(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        NodeError, match="nobody else has the messages of channel a: restore it from a backup"
    ):
        prepare(tmp_path, has_peers=False)
    assert not is_formatted(tmp_path)
    with pytest.raises(NodeError, match=r"with --format and a token in .*first-start/mm-a-1"):
        prepare(tmp_path, has_peers=False, is_formatting=True)
    cluster_data.write_tokens(tmp_path / CLUSTER_FILE, a_cluster(message_managers=3))
    assert "is formatted as" in prepare(tmp_path, has_peers=False, is_formatting=True)


def test_a_file_that_cannot_be_used_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / CLUSTER_FILE
    with pytest.raises(NodeError, match=r"cluster\.toml cannot be read: No such file"):
        load_cluster(path)
    path.write_bytes(b"\xff")
    with pytest.raises(NodeError, match="is no text"):
        load_cluster(path)
    path.write_text("version = 7")
    with pytest.raises(NodeError, match=r"cluster\.toml: version: this is version 7"):
        load_cluster(path)
    path.write_text(write(a_cluster()))
    with pytest.raises(NodeError, match=r"cluster\.toml: key_file: there is no file .*cluster\.key"):
        load_cluster(path)


def test_a_cluster_begins_when_most_of_its_disks_are_there(tmp_path: Path) -> None:
    spec = create_cluster(tmp_path, Counts(message_managers=3, channels=2), 0)
    config = tmp_path / CLUSTER_FILE
    shutil.rmtree(data_path(config, spec.node("mm-b-2")))
    cluster_data.check_local(config, spec)
    shutil.rmtree(data_path(config, spec.node("mm-b-3")))
    with pytest.raises(
        NodeError, match=r"channel b cannot begin, .* in the data of mm-b-2 and mm-b-3, and most"
    ):
        cluster_data.check_local(config, spec)


def test_a_cluster_of_several_machines_is_not_started_on_one(tmp_path: Path) -> None:
    spec = lay_out(Counts(), sources(lambda name: {"cm-1": "10.0.0.1"}.get(name, "10.0.0.2")))
    with pytest.raises(NodeError, match=r"has nodes on 10\.0\.0\.1 and 10\.0\.0\.2: start each there"):
        cluster_data.check_local(tmp_path / CLUSTER_FILE, spec)


def test_client_managers_are_told_their_certificates(tmp_path: Path) -> None:
    spec = create_cluster(tmp_path, Counts(client_managers=2), 7420)
    config = tmp_path / CLUSTER_FILE
    made = certificates()
    assert [cluster_data.tls_files(config, spec, node) for node in spec.nodes] == [None, None, None]
    on = cluster_data.move_clients(config, spec, None, tls=made.server())
    assert load_cluster(config) == on and on.tls is TlsMode.ON
    assert [cluster_data.tls_files(config, on, node) for node in on.nodes] == [made.server()] * 2 + [None]
    mutual = cluster_data.move_clients(config, on, None, tls=made.server(is_mutual=True))
    assert load_cluster(config) == mutual and mutual.tls is TlsMode.MUTUAL
    assert cluster_data.tls_files(config, mutual, mutual.nodes[0]) == made.server(is_mutual=True)
    # Without an option everything stays.
    assert cluster_data.move_clients(config, mutual, None) == mutual


def test_certificates_lie_beside_the_file_if_nothing_else_is_said(tmp_path: Path) -> None:
    spec = lay_out(Counts(tls=TlsMode.MUTUAL), sources())
    cluster_data.write_cluster(tmp_path / "c", spec)
    files = cluster_data.tls_files(tmp_path / "c" / CLUSTER_FILE, spec, spec.node("cm-1"))
    assert files is not None and files.client_ca == tmp_path / "c" / "tls" / "ca.pem"
    assert files.certificate == tmp_path / "c" / "tls" / "cm-1.pem"
    assert files.context().current.verify_mode is ssl.CERT_REQUIRED
    for key in (tmp_path / "c" / "tls").glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert {one.name for one in (tmp_path / "c" / "tls").iterdir()} == {
        *("ca.pem", "ca.key", "cm-1.pem", "cm-1.key", "client.pem", "client.key")
    }


def test_client_managers_can_be_moved_to_other_ports(tmp_path: Path) -> None:
    spec = create_cluster(tmp_path, Counts(client_managers=2), 7420)
    config = tmp_path / CLUSTER_FILE
    moved = cluster_data.move_clients(config, spec, 7500)
    assert moved.servers == ["127.0.0.1:7500", "127.0.0.1:7501"]
    assert load_cluster(config) == moved
    assert cluster_data.move_clients(config, moved, 7500) == moved
    assert cluster_data.move_clients(config, moved, None, "127.0.0.2").servers == [
        "127.0.0.2:7500",
        "127.0.0.2:7501",
    ]
    assert cluster_data.move_clients(config, spec, 7500, "127.0.0.1") == moved
    with pytest.raises(
        NodeError, match=r"with --port 65535: nodes\.cm-2\.listen: '127\.0\.0\.1:65536' is not"
    ):
        cluster_data.move_clients(config, spec, 65535)
    assert load_cluster(config) == moved


def test_a_cluster_for_other_machines_is_written_once(tmp_path: Path) -> None:
    write_cluster(tmp_path / "new", a_cluster())
    assert load_cluster(tmp_path / "new" / CLUSTER_FILE) == a_cluster()
    with pytest.raises(NodeError, match=r"there is a cluster in .* already"):
        write_cluster(tmp_path / "new", a_cluster(message_managers=3))
    assert load_cluster(tmp_path / "new" / CLUSTER_FILE) == a_cluster()


def test_two_do_not_run_one_cluster(tmp_path: Path) -> None:
    second = pytest.raises(DataDirectoryLocked, match=f"process {os.getpid()} works in")
    with locked(tmp_path), second, locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_ports_that_are_looked_for_together_differ() -> None:
    with free_ports() as first, free_ports() as second:
        ports = [give() for _ in range(20) for give in (first, second)]
    assert len(set(ports)) == 40


def test_ports_are_chosen_from_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "21000-21009")
    with free_ports() as give:
        assert give() in range(21_000, 21_010)


@pytest.mark.parametrize("chosen", ["x", "21000", "21009-21000", "0-5", "65000-70000"])
def test_a_bad_choice_of_ports_is_told(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, chosen)
    with pytest.raises(NodeError, match=r"not FIRST-LAST, as in 20000-21999"), free_ports():
        pass
