"""Real clusters for tests: every node a process, and nobody left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from antiphon.cluster.topology import Counts
from antiphon.runtime.cluster_data import create_cluster
from tests.processes import ANTIPHON, READY_SECONDS, STOP_SECONDS, Server

SMALL_JOURNAL = {"segment_bytes": 8 << 20, "spares_max": 1}


def make_cluster(data: Path, *, bus: dict[str, int] | None = None, **counts: Any) -> Path:
    """A new cluster with small journals, so that many of them do not fill a disk; returns where it is."""
    create_cluster(data, Counts(**counts), 0, bus=bus, journal=SMALL_JOURNAL)
    return data


class Cluster(Server):
    """`antiphon up` with several nodes."""

    def __init__(self, data: Path, *options: str) -> None:
        super().__init__(data, *options)
        self.config = data / "cluster.toml"

    @property
    def urls(self) -> list[str]:
        """The address of each client manager by itself."""
        return [f"antiphon://{server}" for server in self.url.removeprefix("antiphon://").split(",")]

    @property
    def pids(self) -> dict[str, int]:
        """The process that each node was when the cluster became ready."""
        return {node["name"]: node["pid"] for node in self.ready["nodes"]}

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one node."""
        os.kill(self.pids[name], number)

    def kill_node(self, name: str) -> None:
        """End a node as a power cut would, and wait until it is gone."""
        watch = Watch([self.pids[name]])
        self.signal(name, signal.SIGKILL)
        assert not watch.who_is_left(), f"{name} does not die"


class NodeProcess:
    """One node, started by hand."""

    def __init__(self, config: Path, name: str, *options: str) -> None:
        self.name = name
        self.errors = config.with_name(f"{name}.stderr")
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [*ANTIPHON, "node", name, "--config", str(config), "--json", *options],
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def wait_ready(self) -> dict[str, Any]:
        """What it says when it is ready."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], READY_SECONDS)[0]:
            raise AssertionError(f"{self.name} is not ready: {self.errors.read_text()}")
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended: {self.errors.read_text()}"
        ready: dict[str, Any] = json.loads(line)
        return ready

    def stop(self) -> int:
        """Ask it to stop in order, and return its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=STOP_SECONDS)

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Watch:
    """Processes, of which none need be our child, watched from when they live."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._watched = {os.pidfd_open(pid): pid for pid in pids}

    def who_is_left(self, seconds: float = STOP_SECONDS) -> list[int]:
        """Wait until all are gone or the time is over."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        left = dict(self._watched)
        while left and (wait_s := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(wait_s * 1000):
                poll.unregister(descriptor)
                del left[descriptor]
        for descriptor in self._watched:
            os.close(descriptor)
        self._watched = {}
        return sorted(left.values())
