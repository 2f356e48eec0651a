"""A newcomer's first minute: a fresh copy of the project, `make run`, a message there and back."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
SECONDS = 240

# Of the environment of these tests nothing may help, or, when `make test` runs them, make itself talk.
NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


@pytest.mark.timeout(300)
def test_make_run_sets_itself_up_and_serves(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    copy_project(clone)
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    with subprocess.Popen(
        ["make", "run", "ARGS=--port 0 --json"],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        try:
            assert server.stdout is not None and server.stderr is not None
            readable, _, _ = select.select([server.stdout], [], [], SECONDS)
            assert readable, f"make run was not ready within {SECONDS} s"
            line = server.stdout.readline()
            assert line, f"make run failed: {server.stderr.read().decode()}"
            environment["ANTIPHON_URL"] = json.loads(line)["url"]
            assert run(clone, environment, "send", "queue:a", "hello") == "confirmed 1 message in queue:a\n"
            assert run(clone, environment, "receive", "queue:a", "--count", "1") == "hello\n"
            assert (clone / "antiphon-data").is_dir()
        finally:
            # The whole group: make, and the server it became the parent of.
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=30)


def copy_project(clone: Path) -> None:
    """What a clone would have: tracked files, and those that are not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source = PROJECT / name
        if source.is_file():
            target = clone / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def run(clone: Path, environment: dict[str, str], *words: str) -> str:
    command = [str(clone / ".venv/bin/antiphon"), *words]
    return subprocess.run(
        command, env=environment, capture_output=True, check=True, text=True, timeout=60
    ).stdout
