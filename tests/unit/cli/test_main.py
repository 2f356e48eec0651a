"""The entry point: only the command that is asked for is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

import antiphon
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


def test_a_node_loads_no_client() -> None:
    """Four nodes and a launcher on two cores: what each of them loads is waited for twice."""
    loaded = loaded_by("from antiphon.runtime import cluster_node")
    assert [name for name in loaded if name.startswith(("antiphon.client.", "antiphon.blocking"))] == []


def test_the_client_is_loaded_when_it_is_used() -> None:
    assert loaded_by("import antiphon") == ["antiphon.errors"]
    assert "antiphon.client.aio.connection" in loaded_by("import antiphon", "antiphon.connect")
    assert "antiphon.blocking.face" in loaded_by("import antiphon", "antiphon.blocking.connect")


def test_every_public_name_is_there_and_in_the_directory() -> None:
    missing = [name for name in antiphon.__all__ if not hasattr(antiphon, name)]
    assert missing == [] and set(antiphon.__all__) <= set(dir(antiphon))
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        antiphon.conect  # type: ignore[attr-defined]  # noqa: B018  # a slip of the pen


@pytest.mark.parametrize("command", ["send", "receive", "up", "node"])
def test_a_command_is_understood_without_loading_a_server(command: str) -> None:
    loaded = loaded_by("from antiphon.cli.main import build_parser", f"build_parser({command!r})")
    assert f"antiphon.cli.{command}" in loaded
    assert [name for name in loaded if name.startswith(SERVER_PARTS)] == []


def test_all_commands_are_listed_when_none_is_asked_for() -> None:
    listed = build_parser().format_help()
    assert [command for command in COMMANDS if f"    {command} " not in listed] == []
