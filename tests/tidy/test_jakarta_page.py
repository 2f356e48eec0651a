"""The page about Jakarta Messaging names tests that there are, and every rule has one."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tidy.source import assert_none

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "jakarta-messaging.md").read_text(encoding="utf-8")
RULES = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| **")][1:]


def test_every_named_test_is_there() -> None:
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) > 70
    assert_none([f"there is no {name}" for name in named if name not in there])


def test_every_rule_has_a_test() -> None:
    assert len(RULES) > 40
    assert_none([rule for rule in RULES if "`test_" not in rule])


def test_every_acceptance_test_of_a_message_a_delivery_or_a_connection_stands_on_the_page() -> None:
    names = [
        name
        for file in ("test_messages", "test_delivery", "test_connections")
        for name in re.findall(
            r"def (test_\w+)", (ROOT / "tests" / "acceptance" / f"{file}.py").read_text(encoding="utf-8")
        )
    ]
    assert_none([f"{name} is not on the page" for name in names if f"`{name}`" not in PAGE])
