"""The entry point: only the command that is asked for is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from antiphon.cli.main import COMMANDS, build_parser

SERVER_PARTS = ("antiphon.bus", "antiphon.sim", "antiphon.journal", "antiphon.message_manager")


def loaded_by(*lines: str) -> list[str]:
    """The modules of the project that a process loads for these lines."""
    shown = "print(*[name for name in sys.modules if name.startswith('antiphon.')])"
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys", *lines, shown])],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stdout.split()


def test_a_launcher_loads_no_machine() -> None:
    """The nodes of a cluster wait until it has loaded everything."""
    loaded = loaded_by(
        "from antiphon.cli import up",
        "from antiphon.runtime import cluster_data, launcher, loops",
    )
    machines = (
        "antiphon.node",
        "antiphon.bus.messages",
        "antiphon.message_manager",
        "antiphon.client_manager",
    )
    assert [name for name in loaded if name.startswith(machines)] == []


@pytest.mark.parametrize("command", ["send", "receive", "up", "node"])
def test_a_command_is_understood_without_loading_a_server(command: str) -> None:
    loaded = loaded_by("from antiphon.cli.main import build_parser", f"build_parser({command!r})")
    assert f"antiphon.cli.{command}" in loaded
    assert [name for name in loaded if name.startswith(SERVER_PARTS)] == []


def test_all_commands_are_listed_when_none_is_asked_for() -> None:
    listed = build_parser().format_help()
    assert [command for command in COMMANDS if f"    {command} " not in listed] == []
