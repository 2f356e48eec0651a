"""ClusterData: the folder of a cluster on this machine: its file, its key, and the disks of its nodes.

    cluster.toml    what the cluster is (`cluster/config_file.py`)
    cluster.key     the key of its bus
    tls             certificates and keys for the connections of clients, where `antiphon init` made some
    nodes/NAME      the data directory of each node that has one
    first-start/NAME    the token with which a node formats its disk, until that is done

CLD1  A cluster is created whole or not at all: the file gets its name when everything else is there, and a
      creation that was cut off is finished by the next process, under the same ids.
CLD2  A disk gets its listed id once: when the cluster is created here, or against the token of the first
      start, which is removed before the disk is formatted. A second disk would have the votes of the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import itertools
import os
import random
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from antiphon.cluster.config_file import read, write
from antiphon.cluster.topology import LOOPBACK, ClusterSpec, Counts, NodeSpec, Sources, TlsMode, lay_out
from antiphon.errors import DataDirectoryLocked, NodeError
from antiphon.journal.format import SUPERBLOCK, checkpoint_numbers, segment_numbers
from antiphon.journal.format import Settings as JournalSettings
from antiphon.journal.journal import Journal
from antiphon.runtime.authority import Authority
from antiphon.runtime.disk import LOCK, FileDisk
from antiphon.tls import ServerFiles
from antiphon.transport.key_file import generate_key_file

CLUSTER_FILE: Final = "cluster.toml"
FIRST_STARTS: Final = "first-start"
TLS_FOLDER: Final = "tls"
_UNFINISHED: Final = "cluster.toml.unfinished"
_FILE_BYTES_MAX: Final = 16 << 20
_FILE_MODE: Final = 0o600
_PORT_MAX: Final = 65_535

PORTS: Final = range(20_000, 32_000)
"""Below the ports that the kernel gives to outgoing connections, which might take a stopped node's port."""
PORTS_VARIABLE: Final = "ANTIPHON_PORTS"
"""Other ports to choose from, `FIRST-LAST`: a new cluster could get the ports of another's stopped node."""


def load_cluster(path: Path) -> ClusterSpec:
    """The cluster that a file describes; raises `NodeError` if it makes no sense, or its key is missing."""
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            raise NodeError(f"{path} is too long for a cluster's file")
        spec = read(content.decode("utf-8"), str(path))
    except OSError as error:
        raise NodeError(f"the cluster file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NodeError(f"{path} is no text") from None
    if not key_path(path, spec).is_file():
        raise NodeError(f"{path}: key_file: there is no file {key_path(path, spec)}")
    return spec


def check_local(path: Path, spec: ClusterSpec) -> None:
    """Raise `NodeError` unless all nodes can be started on this machine, with enough disks to begin."""
    hosts = dict.fromkeys(node.host for node in spec.nodes)
    if len(hosts) > 1:
        raise NodeError(f"{path} has nodes on {' and '.join(hosts)}: start each there with antiphon node")
    for channel in spec.channels:
        group = spec.group_config(channel.name)
        voters = [node for node in spec.nodes if node.number in group.commit_servers]
        empty = [node.name for node in voters if not (data_path(path, node) / SUPERBLOCK).exists()]
        if len(voters) - len(empty) < group.commit_quantity:
            raise NodeError(
                f"channel {channel.name} cannot begin, for there is nothing in the data of "
                f"{' and '.join(empty)}, and most who vote need their disks: restore them from a backup; "
                "or, if the cluster is new, start each node once with antiphon node and --format"
            )


def move_clients(
    path: Path,
    spec: ClusterSpec,
    client_port: int | None,
    address: str | None = None,
    tls: ServerFiles | None = None,
) -> ClusterSpec:
    """Write into the cluster's file where its clients connect from now on, and with which certificates."""
    ports = itertools.count(client_port or 0)

    def moved_to(host: str, port: int) -> tuple[str, int]:
        return address or host, next(ports) if client_port else port

    def moved_node(node: NodeSpec) -> NodeSpec:
        if node.listen is None:
            return node
        node = replace(node, listen=moved_to(*node.listen))
        if tls is None:
            return node
        return replace(node, tls_certificate=str(tls.certificate), tls_key=str(tls.key))

    nodes = [moved_node(node) for node in spec.nodes]
    moved = replace(spec, nodes=tuple(nodes))
    if tls is not None and tls.client_ca is not None:
        moved = replace(moved, tls=TlsMode.MUTUAL, tls_client_ca=str(tls.client_ca))
    elif tls is not None:
        moved = replace(moved, tls=TlsMode.ON)
    if moved != spec:
        text = write(moved)
        read(text, f"with --port {client_port}" if client_port else f"with --listen {address}")
        _write_durably(path, text)
    return moved


def holds_cluster(folder: Path) -> bool:
    return (folder / CLUSTER_FILE).exists() or (folder / _UNFINISHED).exists()


def key_path(config: Path, spec: ClusterSpec) -> Path:
    return config.parent / spec.key_file


def data_path(config: Path, node: NodeSpec) -> Path:
    return config.parent / node.data


def event_path(config: Path, node: NodeSpec) -> Path:
    """The folder of a node's file of events: beside its data, or where those would be."""
    return data_path(config, node) if node.has_disk else config.parent / "nodes" / node.name


def tls_files(config: Path, spec: ClusterSpec, node: NodeSpec) -> ServerFiles | None:
    """The files with which a client manager listens; None if it does so without TLS."""
    if spec.tls is TlsMode.OFF or node.has_disk:
        return None
    return ServerFiles(
        certificate=config.parent / node.tls_certificate,
        key=config.parent / node.tls_key,
        client_ca=config.parent / spec.tls_client_ca if spec.tls is TlsMode.MUTUAL else None,
    )


def is_new_disk(config: Path, node: NodeSpec) -> bool:
    """Whether nothing was written to the disk of a node yet: it may be formatted."""
    folder = data_path(config, node)
    names = os.listdir(folder) if folder.is_dir() else []
    return not segment_numbers(names) and not checkpoint_numbers(names)


def token_path(config: Path, node: NodeSpec) -> Path:
    """The file of the token with which a node formats its disk: the listed id of that disk."""
    return config.parent / FIRST_STARTS / node.name


def has_token(config: Path, node: NodeSpec) -> bool:
    try:
        return token_path(config, node).read_text(encoding="utf-8").strip() == node.disk_id.hex()
    except (OSError, UnicodeDecodeError):
        return False


def write_tokens(config: Path, spec: ClusterSpec) -> None:
    (config.parent / FIRST_STARTS).mkdir(mode=0o700, exist_ok=True)
    for node in spec.nodes:
        if node.has_disk:
            _write_durably(token_path(config, node), node.disk_id.hex() + "\n")


def _consume_token(config: Path, node: NodeSpec) -> None:
    path = token_path(config, node)
    path.unlink()
    _sync_folder(path.parent)


def journal_settings(spec: ClusterSpec) -> JournalSettings:
    return JournalSettings(**spec.journal)


# --- a new one -------------------------------------------------------------------------------------


def require_transport() -> None:
    """Raise `NodeError` if the packages for the transport are not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise NodeError("several nodes need cryptography: pip install 'antiphon[cluster]'")


def create_cluster(
    folder: Path,
    counts: Counts,
    client_port: int,
    *,
    bus: Mapping[str, int] | None = None,
    journal: Mapping[str, int] | None = None,
) -> ClusterSpec:
    """Make a cluster of this size on this machine, with all of its disks, or finish making it (CLD1)."""
    unfinished = folder / _UNFINISHED
    if unfinished.exists():
        spec = read(unfinished.read_text(encoding="utf-8"), str(unfinished))
    else:
        if (folder / SUPERBLOCK).exists():
            raise NodeError(
                f"{folder} holds an embedded message system, and no cluster: nothing was changed; start it "
                "without topology options, or choose another --data"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with free_ports() as next_port:
            laid_out = lay_out(counts, local_sources(next_port, client_port))
        spec = replace(laid_out, bus=bus or {}, journal=journal or {})
        _write_durably(unfinished, write(spec))
    if not key_path(unfinished, spec).exists():
        generate_key_file(key_path(unfinished, spec))
    for node in spec.nodes:
        if node.has_disk:
            with contextlib.closing(FileDisk(data_path(unfinished, node))) as disk:
                format_disk(disk, spec, node)
    unfinished.rename(folder / CLUSTER_FILE)
    _sync_folder(folder)
    return spec


def format_disk(disk: FileDisk, spec: ClusterSpec, node: NodeSpec) -> bool:
    """Give a new disk its listed id (CLD2); False, and nothing done, if the disk is formatted."""
    if Journal.is_formatted(disk):
        return False
    Journal.format(disk, journal_settings(spec), node.disk_id, node.number, spec.name)
    return True


def prepare_disk(
    disk: FileDisk,
    config: Path,
    spec: ClusterSpec,
    node: NodeSpec,
    fresh_id: bytes,
    *,
    is_formatting: bool,
    has_history: bool,
    unsettled: Sequence[str],
    has_peers: bool,
) -> str:
    """Give an empty disk its id, or refuse it; returns a text for the operator.

    `has_history`: the channel has ordered something, so the listed disk may have voted. `unsettled`: voters
    that have not said whether they are new. `has_peers`: other nodes have the same data.
    """
    if Journal.is_formatted(disk):
        return f"{disk.path} was formatted before, and --format did nothing" if is_formatting else ""
    token = token_path(config, node)
    if is_formatting and not has_history and has_token(config, node):
        if unsettled:
            raise NodeError(
                f"{disk.path} was not formatted, for {' and '.join(unsettled)} did not say whether the "
                "channel is new: start all nodes that vote in it, the first time within a minute"
            )
        _consume_token(config, node)
        format_disk(disk, spec, node)
        return f"{disk.path} is formatted as disk {node.disk_id.hex()}"
    if not has_peers:
        raise NodeError(
            f"{disk.path} is empty, and nobody else has the messages of channel {node.channel}: restore it "
            f"from a backup; or, to begin with nothing, start the node with --format and a token in {token}, "
            "which is the disk id of the node in the cluster's file"
        )
    why = "the channel is at work already" if has_history else f"there is no token in {token}"
    ignored = f"; --format did nothing, for {why}" if is_formatting else ""
    return (
        f"{disk.path} is empty: the node begins as the new disk {fresh_id.hex()}, learns from the others, "
        f"and has no vote until they have listed it{ignored}"
    )


def write_cluster(folder: Path, spec: ClusterSpec) -> None:
    """Write the file and a new key for a cluster whose nodes are elsewhere."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / CLUSTER_FILE
    if path.exists():
        raise NodeError(f"there is a cluster in {folder} already; nothing was changed")
    # Ports that were counted up may have met.
    read(write(spec), "these options")
    if spec.tls is not TlsMode.OFF:
        _write_certificates(folder, spec)
    generate_key_file(folder / spec.key_file)
    write_tokens(path, spec)
    _write_durably(path, write(spec))


def _write_certificates(folder: Path, spec: ClusterSpec) -> None:
    """Write a new CA, and what it signs for each client manager; for clients, too, if they need it."""
    authority = Authority(spec.name)
    tls = folder / TLS_FOLDER
    tls.mkdir(mode=0o700, exist_ok=True)
    authority.write(tls)
    for node in spec.client_managers:
        hosts = (node.host, "localhost") if node.host == LOOPBACK else (node.host,)
        authority.issue(tls, node.name, hosts)
    if spec.tls is TlsMode.MUTUAL:
        authority.issue(tls, "client", is_client=True)


def _write_durably(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + ".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- ports -----------------------------------------------------------------------------------------


def local_sources(next_port: Callable[[], int], client_port: int) -> Sources:
    """Random ids, and ports of this machine; client managers listen on `client_port` and those after it."""
    return Sources(
        draw_id=lambda: secrets.token_bytes(16),
        bus_port=lambda host: next_port(),
        multicast_port=next_port,
        client_port=lambda host, at: client_port + at if client_port else next_port(),
    )


def remote_sources(host_of: Callable[[str], str], client_port: int, bus_port: int) -> Sources:
    """Random ids, and ports counted up on each machine, without a look whether they are free."""
    given: dict[str, int] = {}
    listening: dict[str, int] = {}
    groups = itertools.count(bus_port)

    def next_port(host: str) -> int:
        given[host] = given.get(host, bus_port - 1) + 1
        return given[host]

    def next_client_port(host: str, at: int) -> int:
        listening[host] = listening.get(host, client_port - 1) + 1
        return listening[host]

    return Sources(
        draw_id=lambda: secrets.token_bytes(16),
        bus_port=next_port,
        # A multicast group has an address of its own.
        multicast_port=lambda: next(groups),
        client_port=next_client_port,
        host_of=host_of,
    )


@contextlib.contextmanager
def free_ports() -> Iterator[Callable[[], int]]:
    """Free ports of the loopback, which no other caller gets while the context lasts."""
    ports = ports_to_choose_from()
    with contextlib.ExitStack() as stack:
        candidates = iter(random.SystemRandom().sample(ports, len(ports)))

        def next_port() -> int:
            for port in candidates:
                if _is_free(stack, port):
                    return port
            raise NodeError(f"no port between {ports[0]} and {ports[-1]} is free")

        yield next_port


def ports_to_choose_from() -> range:
    chosen = os.environ.get(PORTS_VARIABLE)
    if not chosen:
        return PORTS
    found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", chosen)
    ports = range(int(found[1]), int(found[2]) + 1) if found else range(0)
    if not ports or ports[0] < 1 or ports[-1] > _PORT_MAX:
        raise NodeError(f"{PORTS_VARIABLE} is {chosen!r}, and not FIRST-LAST, as in 20000-21999")
    return ports


def _is_free(stack: contextlib.ExitStack, port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        sock = stack.enter_context(socket.socket(socket.AF_INET, kind))
        try:
            sock.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


# --- whose folder it is ----------------------------------------------------------------------------


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a cluster's folder; raises `DataDirectoryLocked` if another process has it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DataDirectoryLocked(
                f"process {holder} works in {folder}: stop it, or use another data directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
