"""The project seen as text and syntax trees, for the tidy tests."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_NEVER_TRACKED = {".git", ".venv", ".hypothesis", "__pycache__", "antiphon-data", "build", "dist"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One Python file: where it lies, what it says, what it is called."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Module:
        return cls(path=path, text=text, tree=ast.parse(text, filename=path))

    @property
    def name(self) -> str:
        """The dotted name: src/antiphon/wire/frames.py is antiphon.wire.frames."""
        return ".".join(self._parts)

    @property
    def package(self) -> str:
        """The package that a relative import in this file starts from."""
        return self.name if self.path.endswith("/__init__.py") else self.name.rpartition(".")[0]

    @property
    def _parts(self) -> list[str]:
        parts = self.path.removeprefix("src/").removesuffix(".py").split("/")
        return parts[:-1] if parts[-1] == "__init__" else parts

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every import as (line, dotted name), those inside functions and under TYPE_CHECKING too.

        `from a import b` yields a.b: whether b is a module or a name in one,
        a.b starts with the module that is meant.
        """
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    ancestors = self.package.split(".")
                    kept = ancestors[: len(ancestors) - node.level + 1]
                    base = ".".join(kept + ([node.module] if node.module else []))
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}"


@cache
def tracked_files() -> tuple[str, ...]:
    """Paths of the project's own files, new ones included, relative to the root."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        paths = listed.stdout.decode().split("\0")[:-1]
    except (OSError, subprocess.CalledProcessError):
        # An unpacked archive has no git to ask.
        paths = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if not _NEVER_TRACKED & set(path.relative_to(ROOT).parts) and "_cache" not in str(path)
        ]
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """The Python files below a folder such as "src"."""
    collects = gc.isenabled()
    # The trees stay, and looking through them again and again for garbage takes longer than parsing.
    gc.disable()
    try:
        return tuple(
            Module.parse(path, (ROOT / path).read_text(encoding="utf-8"))
            for path in tracked_files()
            if path.startswith(f"{folder}/") and path.endswith(".py")
        )
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """(path, text) of every file of ours that is text. The license is not ours."""
    found = []
    for path in tracked_files():
        content = (ROOT / path).read_bytes()
        if path != "LICENSE" and b"\0" not in content:
            found.append((path, content.decode("utf-8")))
    return tuple(found)


def assert_none(complaints: list[str]) -> None:
    """Fail with all complaints, one to a line, rather than with the first."""
    assert not complaints, "\n" + "\n".join(complaints)
