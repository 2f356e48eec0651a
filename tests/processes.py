"""Real server processes for tests: started, awaited by their ready line, ended without leftovers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

# Generous: on a busy machine everybody waits for the processor.
READY_SECONDS = 120.0
STOP_SECONDS = 60.0

# Processes start here, so that they find the programs of the tests.
ROOT = Path(__file__).parents[1]
ANTIPHON = [sys.executable, "-m", "antiphon.cli.main"]


def program(failpoints: str = "") -> list[str]:
    """The words of a command line before those of `antiphon`; for `failpoints` see that module."""
    return [sys.executable, "-m", "tests.failpoints", failpoints] if failpoints else ANTIPHON


def antiphon(
    *words: str, url: str | None = None, stdin: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run one `antiphon` command to its end."""
    environment = os.environ | ({"ANTIPHON_URL": url} if url else {})
    return subprocess.run(
        [*ANTIPHON, *words],
        capture_output=True,
        text=True,
        input=stdin or "",
        env=environment,
        timeout=timeout,
    )


class Server:
    """An embedded message system in a process of its own."""

    def __init__(self, data: Path, *options: str, failpoints: str = "") -> None:
        """For `failpoints` see that module."""
        self.data = data
        self.errors = data.with_name(data.name + ".stderr")
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [*program(failpoints), "up", "--data", str(data), "--port", "0", "--json", *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
            )
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> Server:
        """Return when the server has printed its ready line."""
        line = self._read_line()
        if not line:
            code = self.process.wait(timeout=STOP_SECONDS)
            self.__exit__(None, None, None)
            words = self.errors.read_text()
            raise AssertionError(f"the server ended ({code}) before it was ready: {words}")
        self.ready = json.loads(line)
        return self

    def _read_line(self) -> bytes:
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS
        readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            self.kill()
            raise AssertionError(f"not ready within {READY_SECONDS} s: {self.errors.read_text()}")
        return self.process.stdout.readline()

    @property
    def url(self) -> str:
        """Where clients connect."""
        url: str = self.ready["url"]
        return url

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask it to stop in order, and return its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=STOP_SECONDS)

    def __enter__(self) -> Server:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


def mount_small(place: Path, mib: int) -> None:
    """Put an empty file system of this size at an empty folder; where that is not allowed, skip the test."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "antiphon-test", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError as error:
        pytest.skip(f"NOT TESTED, a full disk: there is no mount here ({error})")
    if mounted.returncode:
        pytest.skip(f"NOT TESTED, a full disk: a small tmpfs needs root ({mounted.stderr.strip()})")


def unmount(place: Path) -> None:
    subprocess.run(["umount", str(place)], check=True, timeout=30)
