"""Every message of the bus says who listens to it, and whoever listens knows what to do with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from antiphon.bus import messages
from antiphon.bus.schema import KINDS, Machine, heard_by
from tests.tidy.source import ROOT, assert_none

SOURCE = ROOT / "src/antiphon"

# Where a machine takes what it hears: the only other place to touch for a message between machines.
TAKERS = {
    Machine.MEMBER: "bus/member.py",
    Machine.DATA_SERVER: "bus/data_server.py",
    Machine.SEQUENCER: "bus/sequencer.py",
    Machine.COMMIT_SERVER: "bus/commit_server.py",
    Machine.CHECKPOINT_SERVER: "bus/checkpoint_server.py",
    Machine.HOLDER: "bus/holder.py",
    Machine.JOINER: "bus/joining.py",
    Machine.PRESENCE: "bus/presence.py",
    Machine.PRODUCER: "bus/producer.py",
    Machine.MESSAGE_MANAGER: "message_manager/manager.py",
    Machine.CLIENT_MANAGER: "client_manager/manager.py",
    Machine.NODE: "node.py",
}
SAME = {Machine.VOTER: Machine.COMMIT_SERVER, Machine.LEARNER: Machine.COMMIT_SERVER}


def names_in(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute):
            yield one.attr
        elif isinstance(one, ast.Name):
            yield one.id


def told_apart(tree: ast.Module) -> set[str]:
    """The classes that a module tells apart: by `match`, by a comparison of types, or as keys of a table."""
    found: set[str] = set()
    constants = {
        target.id: set(names_in(node.value))
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.MatchClass():
                found.update(names_in(node.cls))
            case ast.Compare() | ast.Call(func=ast.Name(id="isinstance")):
                for name in names_in(node):
                    found.update(constants.get(name, {name}))
            case ast.Dict():
                for key in node.keys:
                    found.update(names_in(key) if key is not None else ())
    return found


def test_every_message_class_names_its_listeners_and_its_lane() -> None:
    made = {
        one
        for one in vars(messages).values()
        if isinstance(one, type) and issubclass(one, messages.BusMessage) and one is not messages.BusMessage
    }
    assert made == set(KINDS), "`declare` says who listens to a message, and on which lane it goes"


@pytest.mark.parametrize("machine", TAKERS, ids=lambda machine: machine.value)
def test_a_machine_knows_every_message_that_it_listens_to(machine: Machine) -> None:
    listens = heard_by(machine, *[one for one, same in SAME.items() if same is machine])
    known = told_apart(ast.parse((SOURCE / TAKERS[machine]).read_text()))
    assert listens, f"nothing is for the {machine.value}"
    assert_none(
        [f"{kind.__name__} is for the {machine.value}" for kind in listens if kind.__name__ not in known]
    )


def test_a_message_that_nobody_takes_is_seen() -> None:
    tree = ast.parse(
        "A = (m.One, m.Two)\nmatch x:\n    case m.Three(): pass\nisinstance(x, A)\ntype(x) is m.Four\n"
        "{Five: 1}"
    )
    assert {"One", "Two", "Three", "Four", "Five"} <= told_apart(tree)
    assert "Six" not in told_apart(tree)
