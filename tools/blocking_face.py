"""Writes `antiphon/blocking/face.py`: the classes of the asyncio face, with calls that wait.

    python tools/blocking_face.py

Signatures and docstrings are those of the asyncio classes. What a class of `antiphon/blocking/by_hand.py`
defines is left to it. A test compares the file with what is generated.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
TARGET = SOURCE / "antiphon/blocking/face.py"

# The classes, with the modules that they are in; those that are made later come first.
CLASSES = {
    "Admin": "antiphon.client.aio.admin",
    "Ranges": "antiphon.client.aio.ranges",
    "PartWriter": "antiphon.client.aio.staging",
    "Staging": "antiphon.client.aio.staging",
    "Producer": "antiphon.client.aio.producer",
    "Consumer": "antiphon.client.aio.consumer",
    "Session": "antiphon.client.aio.session",
    "Connection": "antiphon.client.aio.connection",
}
BY_HAND = "antiphon.blocking.by_hand"

# Properties that look at what only the loop's thread may look at.
LOOKED_UP_IN_THE_LOOP = {"is_blocked"}

# Sentences that are true of the asyncio face alone, and what is true of this one.
SENTENCES = {
    "It opens when it is awaited or entered, or else on first use.": (
        "It is open when the call that makes it returns."
    ),
    "Await it, or use it with `async with`. `timeout` is": "`timeout` is",
    "Called, or awaited in a task, when the connection is lost; it is looked for meanwhile.": (
        "Called when the connection is lost, in the connection's thread: it may not use the connection."
    ),
    "Called, or awaited in a task, when there is a connection again.": (
        "Called when there is a connection again, in the connection's thread: it may not use the connection."
    ),
    "Called, or awaited in a task, with an error that no call raises, see `connect`.": (
        "Called with an error that no call raises, see `connect`; in the connection's thread: it may not use "
        "the connection."
    ),
    "`bodies` is any iterable or async iterable, and may be longer than memory.": (
        "`bodies` is any iterable, taken from in the caller's thread, and may be longer than memory."
    ),
    '"lost" while there is no connection and one is looked for, or was not yet;': (
        '"lost" while there is no connection and one is looked for;'
    ),
}

LINE_CHARACTERS_MAX = 105

HEAD = '''"""The blocking face: each class of the asyncio face, with calls that wait.

Written by tools/blocking_face.py; edit the asyncio class, and run `make generate`.
"""
'''


@dataclass
class Writer:
    """Gathers the text of the module, and what it has to import."""

    imports: set[tuple[str, str]] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    sentences: set[str] = field(default_factory=lambda: set(SENTENCES))

    def doc(self, text: str | None, indent: str) -> None:
        """A docstring, without the words that say to await."""
        if text is None:
            return
        flat = re.sub(r"\s+", " ", text)
        for old, new in SENTENCES.items():
            if old in flat:
                self.sentences.discard(old)
                text = re.sub(r"\s+".join(map(re.escape, old.split())), new.replace("\\", r"\\"), text)
        text = re.sub(r"\(await ([^()]*(?:\([^()]*\)[^()]*)*)\)(?=[.\[])", r"\1", text)
        text = re.sub(r"\bawait |\basync (?=for|with|def)", "", text)
        text = text.replace("antiphon.connect(", "antiphon.blocking.connect(")
        paragraphs = [_wrapped(part, indent) for part in text.split("\n\n")]
        joined = "\n\n".join(paragraphs).strip()
        quoted = f'"""{" " * joined.startswith(chr(34))}{joined}'
        self.lines.append(indent + quoted + (f'\n{indent}"""' if "\n" in joined else '"""'))


def _wrapped(paragraph: str, indent: str) -> str:
    """The same with lines that are not too long."""
    lines = [line.strip() for line in paragraph.splitlines()]
    if all(len(indent + line) <= LINE_CHARACTERS_MAX for line in lines):
        return "\n".join(indent + line for line in lines)
    filled, line = [], ""
    for word in " ".join(lines).split():
        if line and len(indent) + len(line) + 1 + len(word) > LINE_CHARACTERS_MAX:
            filled.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join(indent + one for one in [*filled, line])


@dataclass
class Module:
    """A module of the asyncio face, and where the names come from that stand in it."""

    name: str
    tree: ast.Module

    @classmethod
    def read(cls, name: str) -> Module:
        path = SOURCE / (name.replace(".", "/") + ".py")
        return cls(name, ast.parse(path.read_text(encoding="utf-8")))

    def class_named(self, name: str) -> ast.ClassDef | None:
        return next((n for n in self.tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)

    def origin(self, name: str) -> str:
        """The module that a name is imported from, or defined in."""
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and any(
                (alias.asname or alias.name) == name for alias in node.names
            ):
                assert node.module is not None, "imports name their module"
                return node.module
        return self.name


WAITING = {
    "AsyncIterator": "Iterator",
    "AsyncIterable": "Iterable",
    "AbstractAsyncContextManager": "AbstractContextManager",
}


class _Waiting(ast.NodeTransformer):
    """Annotations as a face that waits has them."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(WAITING.get(node.id, node.id))

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "AsyncGenerator":
            assert isinstance(node.slice, ast.Tuple), "a generator names what is sent to it"
            return ast.Subscript(ast.Name("Iterator"), self.visit(node.slice.elts[0]))
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        # Iterable[X] | AsyncIterable[X]
        return node.left if ast.dump(node.left) == ast.dump(node.right) else node


def _waiting(annotation: ast.expr) -> ast.expr:
    copy: ast.expr = _Waiting().visit(ast.parse(ast.unparse(annotation), mode="eval").body)
    return copy


def _note_names(writer: Writer, module: Module, *nodes: ast.expr | None) -> None:
    for node in nodes:
        for name in ast.walk(node) if node is not None else ():
            if isinstance(name, ast.Name):
                _note_name(writer, module, name.id)


def _note_name(writer: Writer, module: Module, name: str) -> None:
    if name in CLASSES or hasattr(builtins, name):
        return
    if name == "Message":
        writer.imports.add((BY_HAND, name))
    elif name in {"Iterator", "Iterable"}:
        writer.imports.add(("collections.abc", name))
    elif name == "AbstractContextManager":
        writer.imports.add(("contextlib", name))
    else:
        writer.imports.add((module.origin(name), name))


Function = ast.FunctionDef | ast.AsyncFunctionDef


def _signature(writer: Writer, module: Module, function: Function) -> str:
    arguments = function.args
    for argument in (*arguments.args, *arguments.kwonlyargs):
        if argument.annotation is not None:
            argument.annotation = _waiting(argument.annotation)
            _note_names(writer, module, argument.annotation)
    _note_names(writer, module, *arguments.defaults, *arguments.kw_defaults)
    assert function.returns is not None, "public calls say what they return"
    returns = _waiting(function.returns)
    _note_names(writer, module, returns)
    return f"def {function.name}({ast.unparse(arguments)}) -> {ast.unparse(returns)}:"


def _write_function(writer: Writer, module: Module, function: Function) -> None:
    is_property = any(isinstance(d, ast.Name) and d.id == "property" for d in function.decorator_list)
    raw = {a.arg: ast.unparse(a.annotation) for a in _parameters(function) if a.annotation is not None}
    assert function.returns is not None, "public calls say what they return"
    returned = ast.unparse(function.returns)
    is_coroutine = isinstance(function, ast.AsyncFunctionDef) and not returned.startswith("AsyncGenerator")
    if is_property:
        writer.lines.append("    @property")
    writer.lines.append("    " + _signature(writer, module, function))
    writer.doc(ast.get_docstring(function), " " * 8)
    inner = f"self._inner.{function.name}"
    if is_property:
        look = f"self._loop.look(lambda: {inner})" if function.name in LOOKED_UP_IN_THE_LOOP else inner
        writer.lines.append(f"        return {look}\n")
        return
    called = f"{inner}({', '.join(_passed(function, raw, is_coroutine))})"
    writer.lines.append(f"        {_body(writer, function, called, returned, raw, is_coroutine)}\n")


def _body(
    writer: Writer, function: Function, called: str, returned: str, raw: dict[str, str], is_coroutine: bool
) -> str:
    """What the call does."""
    fed = next((name for name, annotation in raw.items() if "AsyncIterable" in annotation), None)
    if function.name == "close":
        return "self._loop.close(self._inner.close)"
    if fed is not None:
        writer.imports.add(("antiphon.blocking.loop", "run_fed"))
        # Whole batches are taken one by one.
        is_single = raw[fed].startswith("AsyncIterable")
        bodies, more = (f"iter({fed})", ", at_once=1") if is_single else (fed, "")
        return f"return run_fed(self._loop, {bodies}, lambda {fed}: {called}{more})"
    if is_coroutine and returned == "Message":
        return f"return Message._of(self._loop.run({called}), self._loop)"
    if is_coroutine:
        return f"{'' if returned == 'None' else 'return '}self._loop.run({called})"
    if returned == "AsyncIterator[Message]":
        return f"return self._loop.each({called}, lambda message: Message._of(message, self._loop))"
    if returned.startswith(("AsyncIterator", "AsyncGenerator")):
        return f"return self._loop.each({called}, lambda one: one)"
    if returned.startswith("AbstractAsyncContextManager"):
        return f"return self._loop.block({called})"
    assert returned in CLASSES, f"{function.name} returns {returned}, and nobody said how to wait for that"
    if returned == "Admin":
        return f"return {returned}(self._loop, {called})"
    return f"return {returned}(self._loop, self._loop.open(lambda: {called}))"


def _parameters(function: Function) -> list[ast.arg]:
    return [a for a in (*function.args.args, *function.args.kwonlyargs) if a.arg != "self"]


def _passed(function: Function, raw: dict[str, str], is_coroutine: bool) -> Iterator[str]:
    """The arguments as they are handed on; what is taken from an iterator is taken in the caller's thread."""
    named = {a.arg for a in function.args.kwonlyargs}
    for argument in _parameters(function):
        name = argument.arg
        is_taken = is_coroutine and raw[name].startswith("Iterable[") and "AsyncIterable" not in raw[name]
        value = f"self._loop.taken({name})" if is_taken else name
        yield f"{name}={value}" if name in named else value


def _write_attribute(
    writer: Writer, module: Module, name: str, annotation: ast.expr, doc: str | None
) -> None:
    _note_names(writer, module, annotation)
    type_text = ast.unparse(annotation)
    writer.lines.append(f"    @property\n    def {name}(self) -> {type_text}:")
    writer.doc(doc, " " * 8)
    writer.lines.append(f"        return self._inner.{name}\n")
    if "Callable" in type_text:
        writer.lines.append(
            f"    @{name}.setter\n    def {name}(self, value: {type_text}) -> None:\n"
            f"        self._inner.{name} = value\n"
        )


def _attributes(cls: ast.ClassDef) -> Iterator[tuple[str, ast.expr, str | None]]:
    """The public attributes that `__init__` sets: name, type and docstring."""
    init = next((n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None:
        return
    given = {argument.arg: argument.annotation for argument in _parameters(init)}
    for node, following in zip(init.body, [*init.body[1:], None], strict=True):
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
                pass
            case ast.Assign(targets=[ast.Attribute(attr=name)], value=ast.Name(id=value)) if value in given:
                found = given[value]
                assert found is not None, "parameters have types"
                annotation = found
            case _:
                continue
        if not name.startswith("_"):
            match following:
                case ast.Expr(value=ast.Constant(value=str(doc))):
                    yield name, annotation, doc
                case _:
                    yield name, annotation, None


def _write_class(writer: Writer, name: str, by_hand: Module) -> None:
    module = Module.read(CLASSES[name])
    cls = module.class_named(name)
    assert cls is not None, f"there is no class {name} in {module.name}"
    hand = by_hand.class_named(f"{name}ByHand")
    written = {n.name for n in hand.body if isinstance(n, Function)} if hand is not None else set()
    if hand is not None:
        base = f"{name}ByHand"
        writer.imports.add((BY_HAND, base))
    else:
        is_block = any(isinstance(one, ast.Name) and one.id == "Block" for one in cls.bases)
        generic = "Block" if is_block else "Face"
        base = f"{generic}[Async{name}]"
        writer.imports |= {("antiphon.blocking.loop", generic), (module.name, f"{name} as Async{name}")}
    writer.lines.append(f"\n\nclass {name}({base}):")
    writer.doc(ast.get_docstring(cls), " " * 4)
    writer.lines.append("")
    for attribute in _attributes(cls):
        _write_attribute(writer, module, *attribute)
    for node in cls.body:
        if isinstance(node, Function) and not node.name.startswith("_") and node.name not in written:
            _write_function(writer, module, node)


def _write_connect(writer: Writer) -> None:
    module = Module.read(CLASSES["Connection"])
    function = next(n for n in module.tree.body if isinstance(n, ast.FunctionDef) and n.name == "connect")
    passed = ", ".join(_passed(function, {}, is_coroutine=False))
    writer.lines.append("\n\n" + _signature(writer, module, function))
    writer.doc(ast.get_docstring(function), " " * 4)
    writer.imports |= {
        (module.name, "connect as connect_asynchronously"),
        ("antiphon.blocking.loop", "LoopThread"),
    }
    writer.lines.append(
        f"    connection = connect_asynchronously({passed})\n"
        "    return Connection(*LoopThread.with_opened(connection))\n"
    )


def generate() -> str:
    """The text of the module, before it is formatted."""
    writer = Writer()
    by_hand = Module.read(BY_HAND)
    for name in CLASSES:
        _write_class(writer, name, by_hand)
    _write_connect(writer)
    assert not writer.sentences, f"nobody says any more: {writer.sentences}"
    froms: dict[str, set[str]] = {}
    for module, name in writer.imports:
        froms.setdefault(module, set()).add(name)
    imports = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(froms.items())]
    return "\n".join([HEAD, "from __future__ import annotations\n", *imports, *writer.lines])


if __name__ == "__main__":
    TARGET.write_text(generate(), encoding="utf-8")
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, str(TARGET)], check=True)
