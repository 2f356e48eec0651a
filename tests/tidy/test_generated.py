"""What is generated and checked in is what would be generated now."""

from __future__ import annotations

import ast

from tools.blocking_face import TARGET, generate


def test_the_blocking_face_is_what_is_generated_from_the_asyncio_one() -> None:
    """Compared without its layout; `make generate` writes it anew."""
    checked_in = ast.parse(TARGET.read_text(encoding="utf-8"))
    generated = ast.parse(generate())
    assert _text(checked_in) == _text(generated)


def _text(module: ast.Module) -> str:
    """The imports in any order, then everything else."""
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom)]
    names = sorted(f"{n.module} {alias.name} {alias.asname}" for n in imports for alias in n.names)
    rest = [ast.unparse(node) for node in module.body if not isinstance(node, ast.ImportFrom)]
    return "\n".join([*names, *rest])
