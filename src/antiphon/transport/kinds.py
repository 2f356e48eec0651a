"""Kinds: a transport by its name in a configuration or on a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from antiphon.errors import NodeError
from antiphon.transport.interface import Deliver, Transport, TransportSettings, drop_all

KINDS: Final = ("udp", "tcp")


def make_transport(
    kind: str,
    settings: TransportSettings,
    deliver: Deliver = drop_all,
    *,
    fault_file: Path | None = None,
) -> Transport:
    """The transport of this kind, not started yet; to be called in the event loop that runs it."""
    if kind not in KINDS:
        raise NodeError(f"there is no transport {kind!r}; there are {' and '.join(KINDS)}")
    try:
        from antiphon.transport.tcp import TcpTransport
        from antiphon.transport.udp import UdpTransport
    except ModuleNotFoundError as error:
        raise NodeError(f"several nodes need {error.name}: pip install 'antiphon[cluster]'") from None
    cls = UdpTransport if kind == "udp" else TcpTransport
    return cls(settings, deliver, fault_file=fault_file)
