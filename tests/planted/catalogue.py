"""Bugs that are planted in the product for the length of a test, to see whether the checkers still see.

A bug is a function that replaces a method or two of the product; its docstring says what is wrong then. A
simulator that no longer finds one of these bugs has gone blind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import pytest
from pytest import MonkeyPatch

from tests.planted import client, client_manager, disk, message_manager, order

Bug = Callable[[MonkeyPatch], None]

BUGS: Final[dict[str, Bug]] = {
    bug.__name__.replace("_", "-"): bug
    for module in (order, disk, message_manager, client_manager, client)
    for bug in module.BUGS
}


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """This bug is in the product until the block ends; the empty name plants none."""
    with MonkeyPatch.context() as patch:
        if bug:
            BUGS[bug](patch)
        yield


def with_and_without(bug: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test twice: without the bug, and with it; the test is told by `is_planted`."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def either(*arguments: Any, is_planted: bool, **fixtures: Any) -> None:
            with planted(bug if is_planted else ""):
                test(*arguments, is_planted=is_planted, **fixtures)

        return pytest.mark.parametrize("is_planted", [False, True])(either)

    return decorate
