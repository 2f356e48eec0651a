"""Where there is no multicast, the tests of `udp` are left out, and say so."""

from __future__ import annotations

import pytest

from tests.bus_members import has_multicast
from tests.integration.transports.stage import UDP


@pytest.fixture(autouse=True)
def needs_multicast(request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params.get("kind", "") if hasattr(request.node, "callspec") else ""
    if kind in UDP and not has_multicast():
        pytest.skip("THIS MACHINE HAS NO MULTICAST ON ITS LOOPBACK: the udp transport was not tested")
