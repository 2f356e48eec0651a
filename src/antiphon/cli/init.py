"""`antiphon init`: writes the files of a cluster on several machines.

`cluster.toml` is copied to every node; `cluster.key`, the key of their bus, goes to every node and to nobody
else; `tls` has a CA, and certificates that it has signed for the client managers, to which clients connect
with TLS; `START` has the commands that start each node, the first time and later.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.options import port_option
from antiphon.cli.topology import TRANSPORTS, add_topology_options, counts_of
from antiphon.errors import NodeError

if TYPE_CHECKING:
    # `antiphon send` need not load a server.
    from antiphon.cluster.topology import ClusterSpec, NodeSpec

LOOPBACK = "127.0.0.1"
START = "START"
DEFAULT_PORT = 7420
BUS_PORT = 7430
TLS_MODES = ("on", "off", "mutual")
CA_FILE = "tls/ca.pem"
CLIENT_FILE = "tls/client"


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "init", help="write the files of a cluster on several machines", description=__doc__
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the files go")
    add_topology_options(parser, transports=TRANSPORTS)
    parser.add_argument(
        "--host",
        action="append",
        type=_host,
        default=[],
        metavar="NAME=ADDR",
        help="which machine a node is on, as the others reach it; once for each node (default 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=port_option,
        default=DEFAULT_PORT,
        help="of a machine's first client manager (default 7420)",
    )
    parser.add_argument(
        "--bus-port", type=port_option, default=BUS_PORT, help="of the first node on a machine (default 7430)"
    )
    parser.add_argument(
        "--tls",
        choices=TLS_MODES,
        default="on",
        help="how clients connect: off without TLS, on with it; mutual: clients, too, need a certificate of "
        "the CA, and there is one for them (default on)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text for people")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from antiphon.cluster.topology import TlsMode, lay_out
    from antiphon.runtime.authority import require_certificates
    from antiphon.runtime.cluster_data import CLUSTER_FILE, remote_sources, write_cluster

    mode = TlsMode(arguments.tls)
    if mode is not TlsMode.OFF:
        require_certificates()
    hosts = dict(arguments.host)
    sources = remote_sources(lambda name: hosts.get(name, LOOPBACK), arguments.port, arguments.bus_port)
    spec = lay_out(replace(counts_of(arguments), tls=mode), sources)
    _check_hosts(spec, hosts)
    write_cluster(arguments.directory, spec)
    text = start_commands(spec)
    (arguments.directory / START).write_text(text, encoding="utf-8")
    if arguments.json:
        told = {
            "config": str(arguments.directory / CLUSTER_FILE),
            "key": str(arguments.directory / spec.key_file),
            "url": spec.url,
            "ca": str(arguments.directory / CA_FILE) if mode is not TlsMode.OFF else None,
            "nodes": [
                {"name": one.name, "host": one.host, "first_start": _first(one), "start": _later(one)}
                for one in spec.nodes
            ],
        }
        print(json.dumps(told))
    else:
        files = [CLUSTER_FILE, spec.key_file, *(["tls"] if mode is not TlsMode.OFF else []), START]
        print(f"{arguments.directory} holds {', '.join(files[:-1])} and {files[-1]}:\n\n{text}", end="")
    return 0


def start_commands(spec: ClusterSpec) -> str:
    """The contents of START: what to run on which machine."""
    from antiphon.cluster.topology import TlsMode

    lines = [
        f"Copy cluster.toml and {spec.key_file} to a directory of each machine, the key readable by its",
        "owner only, move first-start/NAME of each node that is there to it, and start its nodes. The first",
        "time, all within a minute:",
        "",
    ]
    lines += _listed(spec, _first)
    lines += ["", "Every later time, also after a disk was lost:", ""]
    lines += _listed(spec, _later)
    if spec.tls is not TlsMode.OFF:
        lines += _about_certificates(spec, is_mutual=spec.tls is TlsMode.MUTUAL)
    if any(one.host != LOOPBACK for one in spec.client_managers):
        lines += ["", f"There are no users yet{_WHO_MAY[str(spec.tls)]} that reaches"]
        lines += [f"these addresses may read and write everything: {', '.join(spec.servers)}"]
    return "\n".join(lines) + "\n"


_WHO_MAY = {
    "off": ", and clients connect without TLS: every process",
    "on": ", and clients need no certificate: every process",
    "mutual": ": every process with a certificate of the CA",
}


def _about_certificates(spec: ClusterSpec, *, is_mutual: bool) -> Iterator[str]:
    yield from ("", "Clients connect with TLS. Move to the directory of each client manager, too:", "")
    for node in spec.client_managers:
        ca = f", and a copy of {spec.tls_client_ca}" if is_mutual else ""
        yield f"    {node.name}: {node.tls_certificate} and {node.tls_key}{ca}"
    yield from ("", f"Every client gets a copy of {CA_FILE}, by which it knows the servers:", "")
    own = f" --tls-cert {CLIENT_FILE}.pem --tls-key {CLIENT_FILE}.key" if is_mutual else ""
    yield f"    antiphon send queue:a hello --url {spec.url} \\"
    yield f"        --tls-ca {CA_FILE}{own}"
    yield ""
    yield "Keep tls/ca.key away from all of these machines: who has it can pass for a server."


def _first(node: NodeSpec) -> str:
    return f"{_later(node)} --format" if node.has_disk else _later(node)


def _later(node: NodeSpec) -> str:
    return f"antiphon node {node.name} --config cluster.toml"


def _listed(spec: ClusterSpec, command: Callable[[NodeSpec], str]) -> Iterator[str]:
    for host in dict.fromkeys(one.host for one in spec.nodes):
        yield f"  on {host}"
        yield from (f"    {command(one)}" for one in spec.nodes if one.host == host)


def _check_hosts(spec: ClusterSpec, hosts: dict[str, str]) -> None:
    for name in hosts:
        spec.node(name)
    at_home = [one.name for one in spec.nodes if one.host == LOOPBACK]
    if at_home and len(at_home) < len(spec.nodes):
        raise NodeError(
            f"other machines do not reach {at_home[0]} at {LOOPBACK}: say --host {at_home[0]}=ADDRESS"
        )


def _host(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    if not (name and equals and address) or ":" in address or "/" in address:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=ADDRESS")
    return name, address
