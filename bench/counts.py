"""`make bench ARGS=--counts`: how large and how tangled the product is. Counted, not timed."""

from __future__ import annotations

import ast
import asyncio
import tempfile
from collections import Counter
from pathlib import Path

from walk import walk_of_a_send

import antiphon
from antiphon.bus import messages
from antiphon.bus.schema import KINDS

SOURCE = Path(antiphon.__file__).parent


def report() -> None:
    """Print the counts."""
    files = sorted(SOURCE.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    print(f"lines of src: {sum(len(text.splitlines()) for text in texts)} in {len(files)} files")
    names = Counter(
        node.name for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)
    )
    twice = sorted(name for name, count in names.items() if count > 1)
    print(f"class names used twice or more: {len(twice)}: {' '.join(twice)}")
    print(f"kinds of bus messages: {_kinds()}")
    with tempfile.TemporaryDirectory() as data:
        walk = asyncio.run(walk_of_a_send(Path(data)))
    print(
        f"one send on an embedded node: {len(walk.functions)} functions in {len(walk.files)} files, "
        f"{walk.changes} changes of file, {len(walk.calls)} calls"
    )


def _kinds() -> int:
    return sum(issubclass(kind, messages.BusMessage) for kind in KINDS)
