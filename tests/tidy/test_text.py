"""What the eye stumbles over, held by tests: leftovers, giants, sleeps, paths of one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

import pytest

from tests.tidy.source import Module, assert_none, modules, texts, tracked_files

# A few lines of grace above what we aim at, which is 60. A file may be long: it has one subject.
FUNCTION_LINES_MAX = 70

# Lines of documents. Tables, code blocks, and a single link or piece of code cannot be broken.
DOCUMENT_LINE_MAX = 110
UNBREAKABLE = re.compile(r"(?:`[^`]*`|\[[^\]]*\]\([^)]*\)|\S)+")

# Files and folders as documents name them: `bus/member.py`, `tests/unit/bus/`.
NAMED_FOLDERS = (
    "tests|models|examples|docs|bench|wire|client|client_manager|bus|message_manager|journal|node|transport"
    "|cluster|pipeline|cli|runtime|sim|checkers"
)
NAMED_FILE = re.compile(rf"`((?:[\w.-]+/)*[\w*-]+\.(?:py|pml)|(?:{NAMED_FOLDERS})/(?:[\w.-]+/)*)`")

# Written in pieces, so that this file does not complain about itself.
LEFTOVER = re.compile(r"\b(?:" + "|".join(["FIX" + "ME", "TO" + "DO", "X" * 3]) + r")\b")
# Bugs are planted from outside, by patches in tests/planted.
PLANTED = re.compile(r"plant(?:s|ed|ing)?\b", re.IGNORECASE)
MACHINE_PATH = re.compile(
    r"(?<![\w.~:/$})-])/(?:home|root|work|Users)(?=/\w)|(?<![\w.~:/$})-])/(?:root|work)\b(?![\w.-])"
)

# In the docstring of its module, and where a comment or a docstring refers to it.
PROMISE = re.compile(r"^ *([A-Z]{3}\d+)  ", re.MULTILINE)
PROMISES_NAMED = re.compile(r"\(((?:[A-Z]{3}\d+(?:, )?)+)\)")
# A label without the prefix of its module. The checkers number the invariants of the design: I17, Q1.
SHORT_LABEL = re.compile(r"^ *[A-Z]\d+  |\((?:[A-Z]\d+(?:, )?)+\)", re.MULTILINE)
CHECKERS = "src/antiphon/sim/checkers/"

# Bytes from a peer or a disk must never be able to run as code.
CODE_FROM_BYTES_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
CODE_FROM_BYTES_CALLS = {"eval", "exec"}

# Names of before this was looked at. Where two of them meet, one gets another name, and leaves this list.
TWICE = """
Connection
Consumer
Deliver
Message
PublishUncertain
RangePage
Ranges
Session
"""
# Two faces of one thing: the blocking client's, and the asynchronous one's.
FACES = ("src/antiphon/blocking/", "src/antiphon/client/")
# What drives the machines: with real files and sockets, and in an invented world.
TWINS = ("src/antiphon/runtime/", "src/antiphon/sim/")
TWICE_MAX = 9

Function = ast.FunctionDef | ast.AsyncFunctionDef


def matches(pattern: re.Pattern[str], path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := pattern.search(line):
            yield f"{path}:{number}: {found.group()} in: {line.strip()}"


def code_from_bytes(module: Module) -> Iterator[str]:
    for line, target in module.imports():
        if target.split(".")[0] in CODE_FROM_BYTES_MODULES:
            yield f"{module.path}:{line}: imports {target}"
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in CODE_FROM_BYTES_CALLS:
                yield f"{module.path}:{node.lineno}: calls {name}()"


def long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines, over {FUNCTION_LINES_MAX}"


def classes_of_one_name(some: Iterable[Module]) -> dict[str, list[str]]:
    """The class names that stand for several things, with the places of each."""
    places: dict[str, list[str]] = {}
    for module in some:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{module.path}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1 and not _are_pair(found)}


def promises(module: Module) -> list[str]:
    """The promises that a module numbers in its docstring: `SEQ3`."""
    return PROMISE.findall(ast.get_docstring(module.tree) or "")


def short_labels(module: Module) -> Iterator[str]:
    """Promises, and references to promises, that do not say whose they are."""
    if not module.path.startswith(CHECKERS):
        yield from matches(SHORT_LABEL, module.path, module.text)


def _are_pair(places: list[str]) -> bool:
    return len(places) == 2 and any(
        all(any(place.startswith(folder) for place in places) for folder in pair) for pair in (FACES, TWINS)
    )


def long_lines(path: str, text: str) -> Iterator[str]:
    """Lines of a document that are too long and could be broken."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        is_code ^= line.lstrip().startswith("```")
        if is_code or len(line) <= DOCUMENT_LINE_MAX or line.startswith("|"):
            continue
        if len(UNBREAKABLE.findall(line.lstrip(" -*0123456789."))) > 1:
            yield f"{path}:{number}: {len(line)} characters, over {DOCUMENT_LINE_MAX}"


def missing_files(path: str, text: str, tracked: Iterable[str]) -> Iterator[str]:
    """Files and folders that a document names, by the end of their path, and that are not there."""
    below = [f"/{file}" for file in tracked]
    for name in sorted(set(NAMED_FILE.findall(text))):
        wanted = f"*/{name}*" if name.endswith("/") else f"*/{name}"
        if not any(fnmatch(file, wanted) for file in below):
            yield f"{path}: there is no {name}"


def sleeps(module: Module) -> Iterator[str]:
    """Calls that wait for time to pass. `asyncio.sleep(0)` only lets others run and is fine."""
    if "sleep" not in module.text:
        return
    names = {"time.sleep", "asyncio.sleep"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if alias.asname is None and not origin:
                    continue
                local = alias.asname or alias.name
                if origin + alias.name in {"time", "asyncio"}:
                    names.add(f"{local}.sleep")
                elif origin + alias.name in {"time.sleep", "asyncio.sleep"}:
                    names.add(local)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if not (given and isinstance(given[0], ast.Constant) and given[0].value == 0):
                yield f"{module.path}:{node.lineno}: {ast.unparse(node)}; wait for the event instead"


def test_nothing_is_left_for_later() -> None:
    assert_none([c for path, text in texts() for c in matches(LEFTOVER, path, text)])


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert_none([c for path, text in texts() for c in matches(MACHINE_PATH, path, text)])


def test_bytes_never_become_code() -> None:
    assert_none([c for module in modules("src") for c in code_from_bytes(module)])


def test_no_bug_on_purpose_is_in_the_product() -> None:
    assert_none([c for module in modules("src") for c in matches(PLANTED, module.path, module.text)])


def test_no_function_outgrows_the_screen() -> None:
    assert_none([c for module in modules("src") for c in long_functions(module)])


def test_every_module_says_what_it_is() -> None:
    assert_none([m.path for m in modules("src") if not ast.get_docstring(m.tree)])


def test_a_class_name_stands_for_one_thing() -> None:
    found = classes_of_one_name(modules("src"))
    known = set(TWICE.split())
    assert_none([f"{name}: {' and '.join(found[name])}" for name in sorted(set(found) - known)])
    assert known <= set(found), "these stand for one thing by now: take them off the list"
    assert len(known) <= TWICE_MAX


def test_lines_of_documents_can_be_read() -> None:
    documents = [(path, text) for path, text in texts() if path.endswith(".md")]
    assert_none([c for path, text in documents for c in long_lines(path, text)])


def test_documents_name_files_that_are_there() -> None:
    documents = [(path, text) for path, text in texts() if path.endswith(".md")]
    assert_none([c for path, text in documents for c in missing_files(path, text, tracked_files())])


def test_a_promise_has_a_name_of_its_own_and_a_named_promise_exists() -> None:
    sources = list(modules("src"))
    made = [name for module in sources for name in promises(module)]
    assert len(made) == len(set(made)), "two modules number their promises alike"
    owners = {(name[:3], module.path) for module in sources for name in promises(module)}
    assert len(owners) == len({prefix for prefix, _ in owners}), "a prefix belongs to one module"
    named = {
        name
        for path, text in texts()
        if path.endswith(".py")
        for names in PROMISES_NAMED.findall(text)
        for name in names.split(", ")
    }
    assert_none(sorted(named - set(made)))


def test_a_promise_says_whose_it_is() -> None:
    assert_none([c for module in modules("src") for c in short_labels(module)])


@pytest.mark.parametrize("text", ['"""A.\n\n    S1  One.\n"""', "# Not twice (S1, S2).\n"])
def test_a_short_label_is_seen(text: str) -> None:
    assert len(list(short_labels(Module.parse("src/antiphon/a.py", text)))) == 1
    assert not list(short_labels(Module.parse(f"{CHECKERS}a.py", text)))


def test_promises_are_found() -> None:
    module = Module.parse("src/antiphon/a.py", '"""A.\n\n    SEQ1  One.\n    SEQ2  Two, (SEQ1).\n"""')
    assert promises(module) == ["SEQ1", "SEQ2"]


def test_tests_do_not_sleep() -> None:
    assert_none([c for module in modules("tests") for c in sleeps(module)])


SOMEONE = "/" + "home/someone"


@pytest.mark.parametrize(
    "text",
    [f"open('{SOMEONE}/a')", f"cd {SOMEONE}", "see /" + "work/main", "`/" + "root`", "(/" + "work)"],
)
def test_a_machine_path_is_seen(text: str) -> None:
    assert len(list(matches(MACHINE_PATH, "a.md", text))) == 1


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1/root", "docs/work/a", "admin/home", "work/root", "/tmp/a", "$HOME/a"]
)
def test_an_ordinary_path_passes(text: str) -> None:
    assert list(matches(MACHINE_PATH, "a.md", text)) == []


@pytest.mark.parametrize(
    "text", ["import pickle", "from marshal import loads", "eval('1')", "def a():\n    exec('1')"]
)
def test_code_from_bytes_is_seen(text: str) -> None:
    assert len(list(code_from_bytes(Module.parse("src/antiphon/a.py", text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(1)",
        "import time as clock\nclock.sleep(0.1)",
        "from time import sleep\nsleep(delay)",
        "from asyncio import sleep as nap\nawait nap(1)",
        "import asyncio\nasync def test_a():\n    await asyncio.sleep(delay=0.01)",
    ],
)
def test_a_sleep_is_seen(text: str) -> None:
    assert len(list(sleeps(Module.parse("tests/test_a.py", text)))) == 1


@pytest.mark.parametrize(
    "text", ["import asyncio\nawait asyncio.sleep(0)", "world.sleep(5)", "from time import time\ntime()"]
)
def test_letting_others_run_is_no_sleep(text: str) -> None:
    assert list(sleeps(Module.parse("tests/test_a.py", text))) == []


def test_a_class_name_that_is_taken_is_seen() -> None:
    here = Module.parse("src/antiphon/bus/a.py", "class A:\n    class B: ...")
    there = Module.parse("src/antiphon/client/b.py", "class C: ...\nclass B: ...")
    assert classes_of_one_name([here, there]) == {
        "B": ["src/antiphon/bus/a.py:2", "src/antiphon/client/b.py:2"]
    }


@pytest.mark.parametrize("pair", [FACES, TWINS])
def test_faces_of_the_client_and_twins_of_a_runner_may_use_the_same_names(pair: tuple[str, str]) -> None:
    modules_of_pair = [Module.parse(f"{folder}a.py", "class A: ...") for folder in pair]
    assert classes_of_one_name(modules_of_pair) == {}


def test_a_giant_is_seen() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert len(list(long_functions(Module.parse("src/antiphon/a.py", f"def giant():\n{body}")))) == 1


def test_a_long_line_of_a_document_is_seen() -> None:
    assert len(list(long_lines("a.md", "- " + "word " * 30))) == 1
    assert len(list(long_lines("a.md", "```\n" + "x" * 200 + "\n```\n" + "word " * 30))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "word " * 21,
        "| a cell |" + " word" * 30 + " |",
        "```\n" + "word " * 30 + "\n```",
        f"- [a page]({'long/' * 30})",
        "`call(" + "a, " * 40 + ")`",
    ],
)
def test_a_line_that_cannot_be_broken_passes(text: str) -> None:
    assert list(long_lines("a.md", text)) == []


def test_a_file_that_is_gone_is_seen() -> None:
    tracked = ["src/antiphon/bus/member.py", "tests/unit/bus/test_member.py"]
    text = "`bus/member.py`, `member.py`, `tests/unit/bus/`, `bus/gone.py`, `ember.py`, `tests/gone/`"
    assert len(list(missing_files("a.md", text, tracked))) == 3
