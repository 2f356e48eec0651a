"""Tasks without Spark: one after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def loop(tasks: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """What a job gets from Spark."""
    return [work(task) for task in tasks]
