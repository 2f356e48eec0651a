"""Counts the function calls of a process that `bench/calls.py` starts.

Python imports this module by its name, first of all, from the folder that `calls.py` puts on the path. The
signal SIGUSR1 begins a count, and the next one ends it: the counts are then written to the folder that
ANTIPHON_CALLS names, as JSON by function.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# By code, or by name what has none of its own: functions of C, and what makes tuples and dataclasses.
_counts: Counter[CodeType | str] = Counter()
_python = 0
_is_counting = False


def _count(frame: FrameType, event: str, argument: Any) -> None:
    global _python
    if not _is_counting:
        return
    if event == "call":
        _python += 1
        code = frame.f_code
        _counts[_made_by(frame) if code.co_filename == "<string>" else code] += 1
    elif event == "c_call":
        _counts[f"{argument.__module__ or ''}.{argument.__qualname__}"] += 1


def _made_by(frame: FrameType) -> str:
    """What a generated function makes: a tuple with names, or a dataclass."""
    kept = frame.f_locals
    made = kept.get("_cls") or type(kept.get("self"))
    return f"{made.__module__}.{made.__qualname__}.{frame.f_code.co_name}"


def _name_of(function: CodeType | str) -> str:
    if isinstance(function, str):
        return function.removeprefix("builtins.").removeprefix(".")
    folders = Path(function.co_filename).with_suffix("").parts
    if "antiphon" in folders:
        folders = folders[len(folders) - folders[::-1].index("antiphon") :]
    return f"{'/'.join(folders[-3:])}: {function.co_qualname}"


def _toggle(number: int, frame: FrameType | None) -> None:
    global _is_counting, _python
    _is_counting = not _is_counting
    if _is_counting:
        _counts.clear()
        _python = 0
        return
    told: Counter[str] = Counter()
    for function, count in list(_counts.items()):
        told[_name_of(function)] += count
    path = Path(os.environ["ANTIPHON_CALLS"]) / f"{os.getpid()}.json"
    path.with_suffix(".part").write_text(json.dumps({"python": _python, "calls": told}))
    path.with_suffix(".part").rename(path)


if "ANTIPHON_CALLS" in os.environ:
    signal.signal(signal.SIGUSR1, _toggle)
    threading.setprofile(_count)
    sys.setprofile(_count)
