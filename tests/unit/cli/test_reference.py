"""The page about the command line names every command and every option."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.cli.main import COMMANDS, build_parser

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "command-line.md"

ELSEWHERE = {"pipeline", "faults"}
"""Commands whose options stand on pages of their own."""


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The long options of a command and of its questions."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for question in action.choices.values():
                yield from options(question)
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            yield from (option for option in action.option_strings if option.startswith("--"))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_names_the_command_and_all_its_options(command: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"`antiphon {command}" in page
    (subparsers,) = [
        action for action in build_parser(command)._actions if isinstance(action, argparse._SubParsersAction)
    ]
    named = set() if command in ELSEWHERE else set(options(subparsers.choices[command]))
    missing = sorted(option for option in named if option not in page)
    assert missing == []
