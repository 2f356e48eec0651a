"""What is generated and checked in is what would be generated now."""

from __future__ import annotations

import ast

import pytest

from tools.blocking_face import TARGET, generate
from tools.reference_pages import FOLDER, PAGES


def test_the_blocking_face_is_what_is_generated_from_the_asyncio_one() -> None:
    """Compared without its layout; `make generate` writes it anew."""
    checked_in = ast.parse(TARGET.read_text(encoding="utf-8"))
    generated = ast.parse(generate())
    assert _text(checked_in) == _text(generated)


@pytest.mark.parametrize("page", PAGES)
def test_a_reference_page_says_what_the_code_says(page: str) -> None:
    told = (FOLDER / page).read_text(encoding="utf-8")
    assert told == PAGES[page](), "`make generate` writes it anew"


def _text(module: ast.Module) -> str:
    """The imports in any order, then everything else."""
    imports = [node for node in module.body if isinstance(node, ast.ImportFrom)]
    names = sorted(f"{n.module} {alias.name} {alias.asname}" for n in imports for alias in n.names)
    rest = [ast.unparse(node) for node in module.body if not isinstance(node, ast.ImportFrom)]
    return "\n".join([*names, *rest])
