"""Every event that a node can log is declared once, and every declared event is logged somewhere."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator

from antiphon import events
from antiphon.event_log import COMMON_PROPERTIES
from antiphon.events import KINDS, EventKind
from antiphon.names import property_name_complaint
from tests.tidy.source import Module, assert_none, modules

_CODE = re.compile(r"[a-z]+\.[a-z_]+")
# The fields that the row of an event brings along.
_OF_ROW = {"node", "channel"}


def constants() -> dict[str, EventKind]:
    return {name: value for name, value in vars(events).items() if isinstance(value, EventKind)}


def fields_of(kind: EventKind) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(kind.template) if name}


def calls(module: Module) -> Iterator[tuple[int, str, set[str]]]:
    """The events that a module makes: the line, the constant's name, the fields."""
    known = constants()
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in known:
                yield node.lineno, name, {keyword.arg for keyword in keywords if keyword.arg is not None}


def made() -> list[tuple[Module, int, str, set[str]]]:
    return [
        (module, *call)
        for module in modules("src")
        if module.name not in ("antiphon.events",)
        for call in calls(module)
    ]


def test_every_declared_event_is_made_somewhere() -> None:
    used = {name for _, _, name, _ in made()}
    assert_none([f"no code makes {name}" for name in sorted(constants().keys() - used)])


def test_every_kind_of_event_is_declared() -> None:
    assert {kind.code for kind in constants().values()} == set(KINDS)
    foreign = [
        f"{module.path}:{node.lineno}: events are declared in events.py"
        for module in modules("src")
        if module.name != "antiphon.events"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "EventKind"
    ]
    assert_none(foreign)


def test_an_event_is_made_with_the_fields_of_its_sentence() -> None:
    assert_none(
        [
            f"{module.path}:{line}: {name} has no {sorted(missing)}"
            for module, line, name, fields in made()
            if (missing := fields_of(constants()[name]) - _OF_ROW - fields)
        ]
    )


def test_the_codes_are_two_words_and_the_fields_can_stand_in_selectors() -> None:
    assert_none([f"{code} is no code" for code in KINDS if not _CODE.fullmatch(code)])
    assert_none(
        [
            f"{module.path}:{line}: the field {field} of {name} is no property of its own"
            for module, line, name, fields in made()
            for field in sorted(fields)
            if property_name_complaint(field) or field in COMMON_PROPERTIES
        ]
    )


def test_a_missing_field_is_seen() -> None:
    module = Module.parse("src/antiphon/bus/a.py", "NODE_DOWN(member=1)")
    ((_, name, fields),) = calls(module)
    assert fields_of(constants()[name]) - fields == {"seconds"}
