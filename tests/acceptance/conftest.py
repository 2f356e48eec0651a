"""The message systems under acceptance: embedded every day, a cluster of three replicas in the long tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.scenes import Broker
from tests.cluster_processes import ClusterProcess
from tests.processes import Server


@pytest.fixture(scope="session", params=["embedded", pytest.param("cluster", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("acceptance")
    if request.param == "embedded":
        with Server(folder / "data") as server:
            yield server
    else:
        with ClusterProcess(folder, has_faults=False) as cluster:
            yield cluster
