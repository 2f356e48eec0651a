"""Imports point one way, and the pure modules stay pure.

    foundation -> wire -> journal -> bus -> client_manager | message_manager
                    |                 |-> transport -> cluster
                    |       -> node -> admin -> runtime | sim -> cli
                    +-> client -> the face that applications import -> pipeline

A pure module takes its time, its chance and its bytes as parameters. That is
what lets the simulator run the very code that runs in earnest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.source import Module, assert_none, modules

FOUNDATION = {
    "ids",
    "errors",
    "events",
    "dead",
    "names",
    "ranges",
    "json_values",
    "values",
    "message",
    "batch",
    "selectors",
    "config",
    "clock",
    "retries",
    "tls",
}

# A part imports from the lines above its own. `antiphon` stands for the package's
# __init__, the face shown to applications; our own modules name the real place.
LAYERS: list[set[str]] = [
    FOUNDATION,
    {"wire"},
    {"journal"},
    {"bus"},
    {"transport"},
    {"cluster"},
    {"client", "client_manager", "message_manager"},
    {"blocking", "channel_parts", "event_log", "inquiries", "outlet"},
    {"notices", "standing"},
    {"antiphon", "node"},
    {"startup"},
    {"admin", "pipeline"},
    {"runtime", "sim"},
    {"cli", "pyspark_antiphon"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

# Neighbours on one line never import each other (the foundation is one family):
# client_manager and message_manager meet on the bus. Further pairs that keep apart,
# since the client is the application's half and the node is ours:
NEVER = {
    ("client", "bus"),
    ("blocking", "bus"),
    ("blocking", "client_manager"),
    ("blocking", "message_manager"),
    ("client", "journal"),
    ("node", "client"),
    ("antiphon", "bus"),
    ("antiphon", "client_manager"),
    ("antiphon", "message_manager"),
}

PURE_PARTS = (FOUNDATION - {"config", "clock", "tls"}) | {
    "wire",
    "journal",
    "bus",
    "cluster",
    "client_manager",
    "message_manager",
    "channel_parts",
    "event_log",
    "inquiries",
    "notices",
    "outlet",
    "standing",
    "node",
    "startup",
}
# Of the transport, what touches sockets, files and the clock; its machines are pure.
TRANSPORT_RIM = {"driver", "key_file", "memory", "sockets", "tcp", "udp"}
IMPURE_MODULES = {
    *("asyncio", "time", "random", "os", "socket", "uuid", "threading"),
    *("secrets", "select", "selectors", "signal", "ssl", "subprocess", "multiprocessing", "tempfile"),
}
# The order of a set and the value of hash() differ from one process to the next.
IMPURE_CALLS = {"hash", "id", "open", "input", "print"}


# The runtime carries out effects and decides nothing: of the machines it knows what they speak, how messages
# are encoded, who the members are, and the keeper, whose work it does. Everything else comes with a node.
RUNTIME_KNOWS = {
    "antiphon.bus.effects",
    "antiphon.bus.codec",
    "antiphon.bus.group",
    "antiphon.bus.keeper",
    "antiphon.bus.messages",
    "antiphon.client_manager.effects",
}
MACHINES = ("antiphon.bus", "antiphon.client_manager", "antiphon.message_manager")


def part_of(name: str) -> str:
    """The part a dotted name belongs to: antiphon.wire.frames -> wire, antiphon.batch_arrow -> batch."""
    words = name.split(".")
    if len(words) == 1:
        # Either of the two packages, by its own name.
        return name
    return "batch" if words[1].startswith("batch_") else words[1]


def is_pure(module: Module) -> bool:
    part = part_of(module.name)
    if part == "client":
        words = module.name.split(".")
        return len(words) > 2 and words[2].startswith("core")
    if part == "transport":
        return module.name.rpartition(".")[2] not in TRANSPORT_RIM
    return part in PURE_PARTS


def imported_parts(module: Module) -> Iterator[tuple[int, str]]:
    for line, target in module.imports():
        if target.split(".")[0] == "antiphon":
            part = part_of(target)
            # `from antiphon import connect` names no part: it asks the face itself.
            yield line, part if part in RANK else "antiphon"


def wrong_ways(module: Module) -> Iterator[str]:
    own = part_of(module.name)
    for line, other in imported_parts(module):
        where = f"{module.path}:{line}: {own} imports {other}"
        if own == other or (own in FOUNDATION and other in FOUNDATION):
            continue
        if (own, other) in NEVER:
            yield f"{where}, and the two keep apart"
        elif RANK[other] == RANK[own]:
            yield f"{where}, its neighbour; what both need belongs below them"
        elif RANK[other] > RANK[own]:
            yield f"{where}, which lies above it"


def impurities(module: Module) -> Iterator[str]:
    for line, target in module.imports():
        if target.split(".")[0] in IMPURE_MODULES or target.startswith("antiphon.clock"):
            yield f"{module.path}:{line}: a pure module imports {target}"
    allowed = {
        id(call)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for call in ast.walk(node)
    }
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS and id(node) not in allowed:
                yield f"{module.path}:{node.lineno}: a pure module calls {name}()"
            case ast.For(iter=looped) | ast.comprehension(iter=looped) if is_a_set(looped):
                yield f"{module.path}:{looped.lineno}: the order of a set differs between processes; sort it"


def machines_known(module: Module) -> Iterator[str]:
    """What the runtime imports of the machines and has no need of."""
    for line, target in module.imports():
        known = any(target == one or target.startswith(f"{one}.") for one in RUNTIME_KNOWS)
        if target.startswith(MACHINES) and not known:
            yield f"{module.path}:{line}: the runtime carries out effects, and imports {target}"


def is_a_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
    return False


def test_every_part_has_a_place_in_the_layers() -> None:
    assert_none(
        [
            f"{module.path}: say in {__name__}.LAYERS where {part_of(module.name)!r} belongs"
            for module in modules("src")
            if part_of(module.name) not in RANK
        ]
    )


def test_imports_point_one_way() -> None:
    placed = [module for module in modules("src") if part_of(module.name) in RANK]
    assert_none([complaint for module in placed for complaint in wrong_ways(module)])


def test_pure_modules_touch_no_clock_no_chance_and_no_world() -> None:
    assert_none([c for module in modules("src") if is_pure(module) for c in impurities(module)])


def test_the_runtime_knows_of_the_machines_what_a_driver_needs() -> None:
    runtime = [module for module in modules("src") if part_of(module.name) == "runtime"]
    assert runtime
    assert_none([complaint for module in runtime for complaint in machines_known(module)])


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        ("from antiphon.bus import effects as bus", True),
        ("from antiphon.bus.keeper import Keeper", True),
        ("from antiphon.bus.replica import Replica", False),
        ("from antiphon.bus import producer", False),
        ("from antiphon.message_manager import manager", False),
        ("from antiphon.client_manager.settings import ClientManagerSettings", False),
    ],
)
def test_an_import_that_the_runtime_has_no_need_of_is_seen(text: str, is_known: bool) -> None:
    module = Module.parse("src/antiphon/runtime/storage.py", text)
    assert (not list(machines_known(module))) is is_known


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("wire/frames.py", "from antiphon.bus import messages"),
        ("wire/frames.py", "from ..bus import messages"),
        ("wire/frames.py", "def late():\n    import antiphon.runtime.clock"),
        ("ids.py", "from antiphon import wire"),
        ("bus/member.py", "from antiphon import connect"),
        ("bus/member.py", "from antiphon.message_manager import manager"),
        ("client/core/client.py", "from antiphon.bus.messages import Data"),
        ("client_manager/manager.py", "from antiphon.message_manager.manager import MessageManager"),
        ("message_manager/delivery/delivery.py", "from antiphon.client_manager import session"),
        ("message_manager/state/destinations/queue.py", "from ....client_manager import session"),
        ("sim/world.py", "from antiphon.runtime import network"),
    ],
)
def test_an_import_the_wrong_way_is_seen(path: str, text: str) -> None:
    module = Module.parse(f"src/antiphon/{path}", text)
    assert len(list(wrong_ways(module))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("message.py", "from antiphon.batch import Batch"),
        ("wire/__init__.py", "from .frames import Hello"),
        ("wire/frames.py", "from ..ids import Mid"),
        ("message_manager/manager.py", "from antiphon.bus.messages import Entry"),
        ("__init__.py", "from antiphon.client.aio.connection import connect"),
        ("cli/main.py", "from antiphon import __version__"),
    ],
)
def test_an_import_the_right_way_passes(path: str, text: str) -> None:
    module = Module.parse(f"src/antiphon/{path}", text)
    assert list(wrong_ways(module)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "from antiphon import clock",
        "from os import path",
        "def late():\n    import asyncio.events",
        "key = hash('a')",
        "for name in {'a', 'b'}: pass",
        "names = [name for name in set(given)]",
    ],
)
def test_an_impurity_is_seen(text: str) -> None:
    assert len(list(impurities(Module.parse("src/antiphon/bus/member.py", text)))) == 1


def test_a_pure_module_may_sort_a_set_and_define_its_hash() -> None:
    text = "for name in sorted({'a'}): pass\nclass A:\n    def __hash__(self): return hash('a')"
    assert list(impurities(Module.parse("src/antiphon/bus/member.py", text))) == []


def test_the_core_of_the_client_is_pure_and_its_faces_are_not() -> None:
    pure = [
        path
        for path in ("core/client.py", "core/consumer.py", "aio/connection.py", "__init__.py")
        if is_pure(Module.parse(f"src/antiphon/client/{path}", ""))
    ]
    assert pure == ["core/client.py", "core/consumer.py"]


def test_the_machines_of_the_transport_are_pure_and_its_rim_is_not() -> None:
    pure = [
        path
        for path in ("link.py", "repair.py", "udp.py", "sockets.py", "__init__.py")
        if is_pure(Module.parse(f"src/antiphon/transport/{path}", ""))
    ]
    assert pure == ["link.py", "repair.py", "__init__.py"]
