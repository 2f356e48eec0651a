"""Clusters for tests: drawn and numbered the same way every time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from antiphon.cluster.topology import LOOPBACK, ClusterSpec, Counts, Sources, lay_out


def sources(host_of: Callable[[str], str] = lambda name: LOOPBACK) -> Sources:
    ids, ports = itertools.count(1), itertools.count(20_001)
    return Sources(
        draw_id=lambda: next(ids).to_bytes(16, "little"),
        bus_port=lambda host: next(ports),
        multicast_port=lambda: next(ports),
        client_port=lambda host, at: 7420 + at,
        host_of=host_of,
    )


def a_cluster(**counts: Any) -> ClusterSpec:
    return lay_out(Counts(**counts), sources())
