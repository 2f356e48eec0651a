"""`antiphon up`: starts a message system on this machine, in the foreground.

Without an option about nodes everything runs in one process. With one, every node of a cluster is a process
of its own. The data is in `--data`: starting again on the same data finds everything, the size of the cluster
too. SIGTERM or Ctrl-C stops the system in order. A node that dies is reported, and the others go on.

Free ports, those of the bus too, are chosen between 20000 and 31999; the environment variable
`ANTIPHON_PORTS=FIRST-LAST` names others.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli.options import port_option
from antiphon.cli.topology import (
    MEMORY,
    TRANSPORTS,
    add_topology_options,
    counts_of,
    has_topology,
    refuse_contradictions,
)
from antiphon.errors import NodeError

if TYPE_CHECKING:
    from antiphon.tls import ServerFiles

DEFAULT_PORT = 7420
LOOPBACK = "127.0.0.1"


def add_command(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "up", help="start a message system", description=__doc__
    )
    parser.add_argument(
        "--data", type=Path, default=Path("antiphon-data"), help="data directory (default ./antiphon-data)"
    )
    parser.add_argument(
        "--port",
        type=_port,
        help="client port, of the first client manager if there are several, with the others on those after "
        "it; 0 picks free ones (default 7420)",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="where clients may come from: an address of this machine, or 0.0.0.0 for all of them "
        "(default 127.0.0.1). There are no users yet: every process that can reach it, and has a "
        "certificate if --tls-client-ca asks for one, can do anything",
    )
    parser.add_argument(
        "--tls-cert",
        type=Path,
        metavar="FILE",
        help="listen with TLS, with this certificate and those of the CAs behind it, in PEM",
    )
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of --tls-cert")
    parser.add_argument(
        "--tls-client-ca",
        type=Path,
        metavar="FILE",
        help="let only clients in that have a certificate of this CA",
    )
    add_topology_options(parser, transports=(MEMORY, *TRANSPORTS))
    parser.add_argument("--restart", action="store_true", help="start a node again that has died")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="for tests: rules for a bad network")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line once ready; logs go to stderr"
    )
    parser.add_argument(
        "--accept-possible-loss",
        action="store_true",
        help="start although the disk once failed to sync and the machine was not rebooted since",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # Imported here: `antiphon send` need not load a server.
    from antiphon.runtime.cluster_data import holds_cluster

    tls = _tls_files(arguments)
    if has_topology(arguments) or holds_cluster(arguments.data):
        return _run_cluster(arguments, tls)
    for option, given in (("--restart", arguments.restart), ("--faults", arguments.faults)):
        if given:
            raise NodeError(f"{option} is for a cluster of several nodes, and this would be one process")
    return _run_embedded(arguments, tls)


def _run_embedded(arguments: argparse.Namespace, tls: ServerFiles | None) -> int:
    from antiphon.runtime.embedded import EmbeddedSettings, run_embedded

    settings = EmbeddedSettings(
        data=arguments.data,
        port=DEFAULT_PORT if arguments.port is None else arguments.port,
        host=LOOPBACK if arguments.listen is None else arguments.listen,
        accept_possible_loss=arguments.accept_possible_loss,
        tls=tls,
    )
    return run_embedded(settings, announce=_print_ready_json if arguments.json else _print_ready_text)


def _run_cluster(arguments: argparse.Namespace, tls: ServerFiles | None) -> int:
    import asyncio

    from antiphon.runtime.cluster_data import (
        CLUSTER_FILE,
        check_local,
        create_cluster,
        load_cluster,
        locked,
        move_clients,
        require_transport,
    )
    from antiphon.runtime.launcher import Launcher, node_command
    from antiphon.runtime.loops import stop_signal

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    require_transport()
    data: Path = arguments.data.absolute()
    announce = _print_ready_json if arguments.json else _print_ready_text
    with locked(data):
        config = data / CLUSTER_FILE
        if not config.exists():
            create_cluster(data, counts_of(arguments), _first_port(arguments))
        spec = load_cluster(config)
        refuse_contradictions(arguments, spec, str(arguments.data))
        check_local(config, spec)
        if arguments.port or arguments.listen is not None or tls is not None:
            spec = move_clients(config, spec, arguments.port, arguments.listen, tls)
        options = _node_options(arguments)
        commands = {node.name: node_command(config, node.name, options) for node in spec.nodes}

        def announce_nodes(nodes: list[dict[str, Any]]) -> None:
            announce(ready_line(spec.url, str(arguments.data), nodes))

        async def launch() -> int:
            launcher = Launcher(spec, commands, is_restarting=arguments.restart)
            return await launcher.run(stop_signal(), announce_nodes)

        return asyncio.run(launch())


def _tls_files(arguments: argparse.Namespace) -> ServerFiles | None:
    """The files of the options, if there are any; NodeError if they cannot be used."""
    from antiphon.tls import ServerFiles

    certificate, key, client_ca = arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise NodeError("TLS needs a certificate and its key: --tls-cert and --tls-key")
    files = ServerFiles(
        certificate=certificate.absolute(),
        key=key.absolute(),
        client_ca=client_ca.absolute() if client_ca is not None else None,
    )
    files.context()
    return files


def _first_port(arguments: argparse.Namespace) -> int:
    return DEFAULT_PORT if arguments.port is None else int(arguments.port)


def _node_options(arguments: argparse.Namespace) -> list[str]:
    options = ["--accept-possible-loss"] if arguments.accept_possible_loss else []
    if arguments.faults is not None:
        options += ["--faults", str(arguments.faults.absolute())]
    return options


def ready_line(url: str, data: str, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """The line that is printed when a cluster is ready."""
    return {
        "ready": True,
        "url": url,
        "data": data,
        "console": None,
        "metrics": [],
        "nodes": nodes,
    }


def _print_ready_json(ready: dict[str, Any]) -> None:
    print(json.dumps(ready), flush=True)


def _print_ready_text(ready: dict[str, Any]) -> None:
    print(f"antiphon is ready: {ready['url']} (data in {ready['data']}); Ctrl-C stops it", flush=True)
    for node in ready["nodes"] if len(ready["nodes"]) > 1 else ():
        print(f"  {node['name']}: process {node['pid'] or 'none, it has ended'}", flush=True)
    if sys.stdout.isatty():
        print("try:  antiphon send queue:a hello    then:  antiphon receive queue:a", flush=True)


def _port(text: str) -> int:
    """A port, or 0 for a free one."""
    return 0 if text == "0" else port_option(text)
