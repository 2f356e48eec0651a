"""The examples of the README and the tutorials, as written there, against a server on the default port."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.processes import Server

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text()
# Spark's needs more than a server: tests/spark/test_tutorial.py.
TUTORIALS = sorted(page for page in (PROJECT / "docs/tutorials").glob("*.md") if page.stem != "spark")
PORT = 7420

# Set-up and servers have tests of their own (test_fresh_clone.py, test_cluster_up.py).
NOT_HERE = ("make ", "antiphon up ")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def console_commands() -> list[tuple[str, str]]:
    """(command, the output shown behind it), in the order of the page."""
    return [row for block in blocks("console") for row in commands_of(block)]


def commands_of(block: str) -> list[tuple[str, str]]:
    commands = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        commands.append((command.partition("  #")[0].strip(), output))
    return [(command, output) for command, output in commands if not command.startswith(NOT_HERE)]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            pytest.skip(f"something listens on {PORT} already, and the README's examples use that port")
    folder = tmp_path_factory.mktemp("readme")
    # `.venv/bin/antiphon` in the README is the one that these tests run with.
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(Path(sys.executable).parent)
    with Server(folder / "data", "--port", str(PORT)):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield {**os.environ, "PATH": path, "PWD": str(folder)}


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=environment["PWD"], timeout=100
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_there_are_examples() -> None:
    assert blocks("python") and console_commands()


@pytest.mark.parametrize("place", range(len(blocks("python"))))
def test_the_python_examples_run(place: int, environment: dict[str, str]) -> None:
    run([sys.executable, "-c", blocks("python")[place]], environment)


@pytest.mark.parametrize(("command", "output"), console_commands())
def test_the_commands_run_and_print_what_is_shown(
    command: str, output: str, environment: dict[str, str]
) -> None:
    check_command(command, output, environment)


def check_command(command: str, output: str, environment: dict[str, str]) -> None:
    printed = run(["bash", "-c", command], environment)
    if output.strip():
        assert printed.strip() == output.strip()


def test_there_are_tutorials() -> None:
    assert TUTORIALS


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_works_from_top_to_bottom(page: Path, environment: dict[str, str]) -> None:
    """A program marked `beside` serves the rest of its page, and is ended with it."""
    found = re.findall(
        r"^```(python|console)( beside)?\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
    )
    with ExitStack() as services:
        for language, beside, block in found:
            if beside:
                services.enter_context(running([sys.executable, "-c", block], environment))
            elif language == "python":
                run([sys.executable, "-c", block], environment)
            else:
                commands = commands_of(block)
                assert commands, f"no command in a block of {page.name}: {block}"
                for command, output in commands:
                    check_command(command, output, environment)


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as service:
        try:
            yield
            assert service.poll() is None, f"{command[-1]}\n{service.communicate()[0]}"
        finally:
            service.kill()
