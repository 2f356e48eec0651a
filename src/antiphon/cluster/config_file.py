"""ConfigFile: `cluster.toml` to a cluster and back, and what of it must be the same on all nodes.

CFG1  read(write(c)) == c.
CFG2  A fault in a file is told in one sentence that names the key by its path: an unknown key with the
      nearest known one, a missing key, a value of the wrong type or out of range, a name, number, rank,
      disk or port that is used twice.
CFG3  Two files have the same digest exactly if they describe the same cluster; comments, the order of
      keys, and where a node keeps its own files do not count. `essential_keys` tells which keys differ.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, Final, NoReturn, TypeVar

from antiphon.bus.group import NO_DISK, GroupConfig
from antiphon.cluster.topology import (
    CHANNELS_MAX,
    NODES_MAX,
    TLS_CLIENT_CA,
    ChannelSpec,
    ClusterSpec,
    NodeSpec,
    Role,
    TlsMode,
    complaint_about_votes,
    tls_files_of,
)
from antiphon.errors import NodeError
from antiphon.journal.format import Settings as JournalSettings
from antiphon.transport.interface import Address
from antiphon.transport.kinds import KINDS
from antiphon.wire.lanes import Lane

ID_BYTES: Final = 16
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_ADDRESS: Final = re.compile(r"(?P<host>[^\s:/]+):(?P<port>[0-9]{1,5})")

T = TypeVar("T")

_KINDS: Final = {
    str: "a text",
    int: "a whole number",
    bool: "true or false",
    float: "a number with a point",
    list: "a list",
    dict: "a table",
}

VERSION: Final = 1

# Settings that follow from the nodes, or change only while the channel runs.
_DERIVED: Final = frozenset(
    {
        *("group", "config_id", "generation", "nodes", "disk_ids", "commit_servers", "data_servers"),
        *("checkpoint_servers", "candidates", "data_quantity", "commit_quantity", "seal_quantity"),
        *("checkpoint_quantity", "min_copies", "data_failures", "checkpoint_failures"),
    }
)
BUS_SETTINGS: Final = tuple([one.name for one in fields(GroupConfig) if one.name not in _DERIVED])
JOURNAL_SETTINGS: Final = tuple([one.name for one in fields(JournalSettings)])

_LOCAL: Final = ("key_file", "data", "tls_client_ca", "tls_certificate", "tls_key")
"""Keys that may differ between nodes."""

_HEAD: Final = """\
# A cluster of Antiphon. Every node has a copy of this file; a node whose copy differs from the others' does
# not start. Only key_file, data and the files of TLS may be different on each machine; they are relative to
# this file.
# Disk ids tell a node's disk from a new one in its place: never give a disk that was lost its id back.
"""


def read(text: str, file: str = "cluster.toml") -> ClusterSpec:
    """The cluster that a file describes; `NodeError` with a sentence about what is wrong with it (CFG2)."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NodeError(f"{file} is no TOML: {error}") from None
    root = Table(found, file)
    version = root.number("version", 1, 1 << 31)
    if version != VERSION:
        root.refuse("version", f"this is version {version}, and this program reads version {VERSION}")
    transport = root.choice("transport", KINDS)
    tls = TlsMode(root.choice("tls", tuple(TlsMode), TlsMode.OFF))
    channels = [_read_channel(one, transport) for one in root.tables("channels")]
    nodes = [_read_node(one) for one in root.tables("nodes")]
    spec = ClusterSpec(
        name=root.name("name", "antiphon"),
        cluster_id=root.id("cluster_id"),
        transport=transport,
        key_file=root.text("key_file", "cluster.key"),
        tls=tls,
        tls_client_ca=root.text("tls_client_ca", TLS_CLIENT_CA),
        datagram_bytes=root.number("datagram_bytes", 576, 65_000, 1_400),
        hops=root.number("hops", 1, 255, 1),
        bus=_read_numbers(root.table("bus"), BUS_SETTINGS),
        journal=_read_numbers(root.table("journal"), JOURNAL_SETTINGS),
        # Sorted: the order of the file means nothing.
        channels=tuple(sorted(channels, key=lambda one: one.name)),
        nodes=tuple(sorted(nodes, key=lambda one: one.number)),
    )
    root.finish()
    _check_nodes(root, spec)
    _check_channels(root, spec)
    try:
        JournalSettings(**spec.journal).geometry()
    except AssertionError as error:
        root.refuse("journal", f"this cannot work: {error}")
    return spec


def write(spec: ClusterSpec) -> str:
    """The text of the file (CFG1)."""
    lines = [_HEAD]
    top, tables = _tables(spec)
    lines += [f"{key} = {_literal(value)}" for key, value in top.items()]
    for path, table in tables:
        lines += ["", f"[{path}]"]
        lines += [f"{key} = {_literal(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def essential_keys(spec: ClusterSpec) -> dict[str, str]:
    """Everything that must be the same on all nodes: the path of each key, and a short hash of its value."""
    return {path: _hash(value, 4) for path, value in _essential(spec).items()}


def digest(spec: ClusterSpec) -> str:
    """Equal exactly if the clusters are (CFG3)."""
    return _hash(_essential(spec), 16)


def _essential(spec: ClusterSpec) -> dict[str, Any]:
    top, tables = _tables(spec)
    return {
        f"{path}.{key}" if path else key: value
        for path, table in (("", top), *tables)
        for key, value in table.items()
        if key not in _LOCAL
    }


def _hash(value: Any, size: int) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=size).hexdigest()


# --- reading ---------------------------------------------------------------------------------------


def _read_numbers(table: Table, known: Iterable[str]) -> dict[str, int]:
    given = {name: table.number(name, 0, 1 << 62) for name in known if name in table}
    table.finish()
    return given


def _read_channel(table: Table, transport: str) -> ChannelSpec:
    groups = table.table("multicast")
    multicast: dict[Lane, Address] = {}
    if transport == "udp":
        multicast = {lane: groups.address(lane.name.lower()) for lane in Lane}
        for lane, (host, _) in multicast.items():
            if host.partition(".")[0] not in _MULTICAST_FIRST:
                groups.refuse(lane.name.lower(), f"{host} is no multicast address (224.… to 239.…)")
    groups.finish()
    spec = ChannelSpec(
        name=table.own_name,
        multicast=multicast,
        min_copies=table.number("min_copies", 0, 2, 0),
    )
    table.finish()
    return spec


_MULTICAST_FIRST: Final = frozenset([str(first) for first in range(224, 240)])


def _read_node(table: Table) -> NodeSpec:
    role = Role(table.choice("role", tuple(Role)))
    name = table.own_name
    has_disk = role is not Role.CLIENT_MANAGER
    ports = table.table("bus")
    tls = {} if has_disk else {key: table.text(key, usual) for key, usual in tls_files_of(name).items()}
    spec = NodeSpec(
        name=name,
        number=table.number("number", 1, NODES_MAX),
        role=role,
        channel=table.name("channel") if has_disk else None,
        rank=table.number("rank", 1, NODES_MAX) if role is Role.MESSAGE_MANAGER else None,
        host=table.text("host"),
        interface=table.text("interface", ""),
        bus={channel: ports.number(channel, 1, 65_535) for channel in ports},
        listen=None if has_disk else table.address("listen"),
        disk_id=table.id("disk_id") if has_disk else NO_DISK,
        data=table.text("data", f"nodes/{name}") if has_disk else "",
        **tls,
    )
    table.finish(f"of a {role}")
    return spec


# --- what must fit together ------------------------------------------------------------------------


def _check_channels(root: Table, spec: ClusterSpec) -> None:
    if not spec.channels:
        root.refuse("channels", "a cluster has at least one channel")
    if len(spec.channels) > CHANNELS_MAX:
        root.refuse("channels", f"{len(spec.channels)} channels; a cluster has at most {CHANNELS_MAX}")
    if not spec.client_managers:
        root.refuse("nodes", "a cluster has at least one client manager")
    for channel in spec.channels:
        path = f"channels.{channel.name}"
        managers = spec.message_managers(channel.name)
        if not managers:
            root.refuse(path, "no message manager has this channel")
        ranks = [one.rank for one in managers]
        if ranks != list(range(1, len(managers) + 1)):
            root.refuse(path, f"its message managers have ranks {ranks}, not 1 to {len(managers)}")
        complaint = complaint_about_votes(len(managers), len(spec.witnesses(channel.name)))
        if complaint:
            root.refuse(path, complaint)
        try:
            spec.group_config(channel.name)
        except AssertionError as error:
            root.refuse(path, f"this cannot work: {error}")


def _check_nodes(root: Table, spec: ClusterSpec) -> None:
    known = {one.name for one in spec.channels}
    seen: dict[tuple[str, Any], str] = {}

    def once(what: str, value: Any, path: str, shown: Any) -> None:
        other = seen.setdefault((what, value), path)
        if other != path:
            root.refuse(path, f"{what} {shown} is also that of {other}")

    for node in spec.nodes:
        path = f"nodes.{node.name}"
        if node.channel is not None and node.channel not in known:
            root.refuse(f"{path}.channel", f"there is no channel {node.channel!r}")
        wanted = {one.name for one in spec.channels_of(node)}
        for channel in sorted(wanted - set(node.bus)):
            root.refuse(f"{path}.bus.{channel}", "is missing: the node takes part in this channel")
        for channel in sorted(set(node.bus) - wanted):
            root.refuse(f"{path}.bus.{channel}", "the node has no part in such a channel")
        once("the number", node.number, f"{path}.number", node.number)
        if node.has_disk:
            once("the disk id", node.disk_id, f"{path}.disk_id", node.disk_id.hex())
        for channel, port in node.bus.items():
            once(
                "the port", (node.host, port, spec.transport), f"{path}.bus.{channel}", f"{node.host}:{port}"
            )
        if node.listen is not None:
            # Clients come over TCP; a UDP port of the same number is another one.
            once("the port", (*node.listen, "tcp"), f"{path}.listen", "{}:{}".format(*node.listen))


# --- writing ---------------------------------------------------------------------------------------


def _tables(spec: ClusterSpec) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """The contents of the file: the keys at its top, and its tables in their order."""
    top = {
        "version": VERSION,
        "name": spec.name,
        "cluster_id": spec.cluster_id.hex(),
        "transport": spec.transport,
        "key_file": spec.key_file,
        "datagram_bytes": spec.datagram_bytes,
        "hops": spec.hops,
    }
    if spec.tls is not TlsMode.OFF:
        top["tls"] = str(spec.tls)
    if spec.tls is TlsMode.MUTUAL or spec.tls_client_ca != TLS_CLIENT_CA:
        top["tls_client_ca"] = spec.tls_client_ca
    tables: list[tuple[str, dict[str, Any]]] = []
    for path, settings in (("bus", spec.bus), ("journal", spec.journal)):
        if settings:
            tables.append((path, dict(settings)))
    for channel in spec.channels:
        tables.append((f"channels.{channel.name}", {"min_copies": channel.min_copies}))
        if channel.multicast:
            groups = {lane.name.lower(): _address(one) for lane, one in channel.multicast.items()}
            tables.append((f"channels.{channel.name}.multicast", groups))
    for node in spec.nodes:
        tables.append((f"nodes.{node.name}", _node_table(node, spec.tls is not TlsMode.OFF)))
        tables.append((f"nodes.{node.name}.bus", dict(node.bus)))
    return top, tables


def _node_table(node: NodeSpec, has_tls: bool) -> dict[str, Any]:
    usual = tls_files_of(node.name)
    tls = {key: getattr(node, key) or None for key in usual}
    told: Mapping[str, Any] = {
        "number": node.number,
        "role": str(node.role),
        "channel": node.channel,
        "rank": node.rank,
        "host": node.host,
        "interface": node.interface or None,
        "listen": _address(node.listen) if node.listen else None,
        "disk_id": node.disk_id.hex() if node.has_disk else None,
        "data": node.data or None,
        **{key: path for key, path in tls.items() if has_tls or path != usual[key]},
    }
    return {key: value for key, value in told.items() if value is not None}


def _address(address: Address) -> str:
    return "{}:{}".format(*address)


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else quoted(value)


# -- TOML, key by key -------------------------------------------------------------------------------


class Table:
    """One table of a file."""

    def __init__(self, found: dict[str, Any], file: str, path: str = "", key: str = "") -> None:
        self._found = found
        self._file = file
        self._path = path
        self._key = key
        self._asked: dict[str, None] = {}

    def __contains__(self, key: str) -> bool:
        self._asked[key] = None
        return key in self._found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    @property
    def own_name(self) -> str:
        """The key of this table, which is a name."""
        if not _NAME.fullmatch(self._key):
            raise NodeError(f"{self._file}: {self._path}: {_no_name(self._key)}")
        return self._key

    def refuse(self, key: str, why: str) -> NoReturn:
        raise NodeError(f"{self._file}: {self._whole(key)}: {why}")

    def finish(self, whose: str = "") -> None:
        """Refuse all keys that were not read."""
        for key in self._found:
            if key not in self._asked:
                near = get_close_matches(key, self._asked, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                self.refuse(key, f"there is no such key{' ' + whose if whose else ''}{hint}")

    def text(self, key: str, default: str | None = None) -> str:
        """A text; not an empty one, unless that is the default."""
        value = self._get(key, str, default)
        if not value and value != default:
            self.refuse(key, "is empty")
        return value

    def name(self, key: str, default: str | None = None) -> str:
        """A name of a node or a channel."""
        value = self.text(key, default)
        if not _NAME.fullmatch(value):
            self.refuse(key, _no_name(value))
        return value

    def number(self, key: str, least: int, most: int, default: int | None = None) -> int:
        value = self._get(key, int, default)
        if not least <= value <= most:
            self.refuse(key, f"{value} is not between {least} and {most}")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        value = self._get(key, str, default)
        if value not in choices:
            self.refuse(key, f"{value!r} is none of {', '.join(choices)}")
        return value

    def id(self, key: str) -> bytes:
        value = self._get(key, str, None)
        if not _HEX.fullmatch(value) or not int(value, 16):
            self.refuse(key, f"{value!r} is not {2 * ID_BYTES} lower-case hex digits of an id")
        return bytes.fromhex(value)

    def address(self, key: str) -> Address:
        value = self._get(key, str, None)
        match = _ADDRESS.fullmatch(value)
        if match is None or not 1 <= int(match["port"]) <= 65_535:
            self.refuse(key, f"{value!r} is not of the form host:port")
        return match["host"], int(match["port"])

    def table(self, key: str) -> Table:
        """A table in this one; an empty one if there is none."""
        return Table(self._get(key, dict, {}), self._file, self._whole(key), key)

    def tables(self, key: str) -> list[Table]:
        outer = self.table(key)
        return [outer.table(name) for name in outer]

    def _get(self, key: str, kind: type[T], default: T | None) -> T:
        self._asked[key] = None
        if key not in self._found:
            if default is None:
                self.refuse(key, "is missing")
            return default
        value = self._found[key]
        # In Python a bool is an int; in a file it is none.
        if type(value) is not kind:
            found = _KINDS.get(type(value), "a date")
            self.refuse(key, f"{_KINDS[kind]} is needed, and this is {found}")
        return value

    def _whole(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def quoted(text: str) -> str:
    """A text as TOML writes it: JSON's escapes are among its own, but for the one of DEL."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _no_name(value: str) -> str:
    return f"{value!r} is no name: letters, digits, - and _, at most 64 of them, a letter or digit first"
