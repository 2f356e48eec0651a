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

_counts: Counter[CodeType | str] = Counter()
_is_counting = False


def _count(frame: FrameType, event: str, argument: Any) -> None:
    if _is_counting:
        if event == "call":
            _counts[frame.f_code] += 1
        elif event == "c_call":
            _counts[f"{argument.__module__ or ''}.{argument.__qualname__}"] += 1


def _name_of(function: CodeType | str) -> str:
    if isinstance(function, str):
        return function.removeprefix("builtins.").removeprefix(".")
    folders = Path(function.co_filename).with_suffix("").parts
    if "antiphon" in folders:
        folders = folders[len(folders) - folders[::-1].index("antiphon") :]
    return f"{'/'.join(folders[-3:])}: {function.co_qualname}"


def _toggle(number: int, frame: FrameType | None) -> None:
    global _is_counting
    _is_counting = not _is_counting
    if _is_counting:
        _counts.clear()
        return
    told: Counter[str] = Counter()
    python = 0
    for function, count in list(_counts.items()):
        told[_name_of(function)] += count
        python += count * isinstance(function, CodeType)
    path = Path(os.environ["ANTIPHON_CALLS"]) / f"{os.getpid()}.json"
    path.with_suffix(".part").write_text(json.dumps({"python": python, "calls": told}))
    path.with_suffix(".part").rename(path)


if "ANTIPHON_CALLS" in os.environ:
    signal.signal(signal.SIGUSR1, _toggle)
    threading.setprofile(_count)
    sys.setprofile(_count)
