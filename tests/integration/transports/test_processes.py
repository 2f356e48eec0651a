"""Members in processes of their own, through losses and a kill."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon.transport.interface import TransportSettings
from antiphon.wire.lanes import Lane
from tests.integration.transports.member import FRAMES_EACH
from tests.integration.transports.stage import DEADLINE_SECONDS, SOCKETS, UDP, settings_for

ROOT = Path(__file__).resolve().parents[3]


class Process:
    """A member in a process of its own."""

    def __init__(self, kind: str, settings: TransportSettings, faults: Path) -> None:
        told = {
            "kind": kind,
            "node": settings.node,
            "peers": {str(node): [peer.host, peer.port] for node, peer in settings.peers.items()},
            "groups": [list(settings.groups[lane]) for lane in Lane],
            "datagram_bytes": settings.datagram_bytes,
            "faults": str(faults),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.transports.member", json.dumps(told)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def hears(self) -> dict[str, Any]:
        """The next line it prints."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        ready, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
        assert ready, "a member said nothing in time"
        line = self._process.stdout.readline()
        assert line, f"a member ended: {self._process.wait()}"
        told: dict[str, Any] = json.loads(line)
        return told

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=DEADLINE_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.mark.parametrize("kind", SOCKETS)
def test_processes_hear_each_other_through_losses_and_a_kill(kind: str, tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    if kind in UDP:
        faults.write_text("seed=11; drop=0.1 duplicate=0.1 reorder=0.1")
    settings = settings_for(kind, 3)
    with contextlib.ExitStack() as stack:
        processes = {}
        for one in settings:
            processes[one.node] = Process(kind, one, faults)
            stack.callback(lambda node=one.node: processes[node].end())
        for process in processes.values():
            assert process.hears() == {"acquainted": True}
        processes[3].kill()
        processes[3] = Process(kind, settings[2], faults)
        assert processes[3].hears() == {"acquainted": True}
        for process in processes.values():
            process.say("speak")
        for node, process in processes.items():
            assert process.hears() == {"heard": {str(n): FRAMES_EACH for n in processes if n != node}}
