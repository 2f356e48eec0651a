"""Transports by name, and what they refuse to begin with."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest

from antiphon.errors import NodeError
from antiphon.transport.interface import TransportSettings, kernel_bytes
from antiphon.transport.keys import GroupKeys
from antiphon.transport.kinds import KINDS, make_transport
from antiphon.wire.lanes import Lane
from tests.unit.transport.links import settings_of


def make(kind: str, settings: TransportSettings) -> str:
    async def made() -> str:
        return type(make_transport(kind, settings)).__name__

    return asyncio.run(made())


SETTINGS = replace(settings_of(1), groups={lane: (f"239.255.1.{lane}", 7_000) for lane in Lane})


def test_each_kind_is_made() -> None:
    assert [make(kind, SETTINGS) for kind in KINDS] == ["UdpTransport", "TcpTransport"]


def test_another_kind_is_refused() -> None:
    with pytest.raises(NodeError, match="udp and tcp"):
        make("pigeon", SETTINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_speaks_without_a_key(kind: str) -> None:
    with pytest.raises(NodeError, match="group key"):
        make(kind, replace(SETTINGS, keys=GroupKeys.none()))


def test_multicast_needs_its_groups() -> None:
    with pytest.raises(NodeError, match="DELIVERIES"):
        make(
            "udp", replace(SETTINGS, groups={Lane.DATA: ("239.255.1.1", 1), Lane.CONTROL: ("239.255.1.2", 1)})
        )


def test_what_has_to_be_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("antiphon.transport.", "cryptography")) and not name.endswith(
            ("keys", "interface")
        ):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(NodeError, match=r"antiphon\[cluster\]"):
        make("udp", SETTINGS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"node": 9},
        {"cluster_id": b"short"},
        {"run_id": b""},
        {"datagram_bytes": 100},
        {"datagram_bytes": 70_000},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        replace(SETTINGS, **wrong)


def test_a_small_datagram_takes_a_block_of_kernel_memory() -> None:
    assert [kernel_bytes(size) for size in (1, 1_280, 1_281, 60_000)] == [1_280, 1_280, 1_281, 60_000]
