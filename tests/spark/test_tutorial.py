"""The tutorial: on this machine, after a restart, and, from top to bottom, on a master with two workers."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_readme import PORT, PROJECT, commands_of
from tests.processes import Server
from tests.spark.conftest import spark_environment
from tests.spark.standalone import Standalone

MASTER_PORT = 7077
COMMAND_SECONDS = 300
PAGE = (PROJECT / "docs/tutorials/spark.md").read_text()


@pytest.fixture
def environment(java: None, tmp_path: Path) -> Iterator[dict[str, str]]:
    for port in (PORT, MASTER_PORT):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"something listens on {port} already, and the tutorial uses that port")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Server(tmp_path / "data", "--port", str(PORT)):
        yield {**os.environ, **spark_environment(), "PATH": path, "PWD": str(tmp_path)}


def halves() -> list[str]:
    """What is done on one machine, and on a cluster."""
    return PAGE.split("## On a cluster")


@pytest.mark.timeout(900)
def test_the_tutorial_works_on_one_machine(environment: dict[str, str]) -> None:
    run_blocks(halves()[0], environment)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tutorial_works_from_top_to_bottom(environment: dict[str, str], tmp_path: Path) -> None:
    before, after = halves()
    run_blocks(before, environment)
    folder = tmp_path / "spark"
    folder.mkdir()
    with Standalone(folder, MASTER_PORT) as cluster:
        run_blocks(after, environment)
        workers = [cluster.log(f"worker-{number}") for number in range(2)]
        assert all("Asked to launch executor" in log for log in workers), "both workers had work"


def run_blocks(text: str, environment: dict[str, str]) -> None:
    found = re.findall(r"^```console\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert found
    for block in found:
        for command, output in commands_of(block):
            printed = run(command, environment)
            if output.strip():
                assert printed.strip() == output.strip(), command


def run(command: str, environment: dict[str, str]) -> str:
    """What a command prints. Whatever it has started ends with it, in time or not."""
    with subprocess.Popen(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=environment["PWD"],
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=COMMAND_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            print(spark_log(environment))
            raise
    assert process.returncode == 0, f"{command}\n{printed}{spark_log(environment)}"
    return printed


def spark_log(environment: dict[str, str]) -> str:
    log = Path(environment["PWD"], "spark.log")
    return log.read_text()[-4_000:] if log.exists() else ""
