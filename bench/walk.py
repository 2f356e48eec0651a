"""The walk of one message: which functions and files a `send` runs through, in order.

An embedded node and its client share one process and one loop. A profiler notes every call of a function of
ours between `send` and its return. Counted, not timed: the figures do not depend on the machine.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import antiphon
from antiphon.runtime.embedded import EmbeddedSettings, serve_embedded

SOURCE = Path(antiphon.__file__).parent
SENDS = 100


class Walk:
    """Every call of a function of ours, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            path = str(Path(frame.f_code.co_filename).relative_to(SOURCE))
            name = frame.f_code.co_qualname
            if not name.endswith(("<genexpr>", "<listcomp>", "<lambda>")):
                self.calls.append((path, name))

    def __enter__(self) -> Walk:
        threading.setprofile(self.note)
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @property
    def functions(self) -> list[tuple[str, str]]:
        """Each function once, in the order of its first call."""
        return list(dict.fromkeys(self.calls))

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(path for path, _ in self.calls))

    @property
    def changes(self) -> int:
        """How often a call is in another file than the call before it."""
        return sum(one[0] != other[0] for one, other in zip(self.calls, self.calls[1:], strict=False))


async def walk_of_a_send(data: Path) -> Walk:
    """What a `send` runs through until it is confirmed: the shortest walk of several, without heartbeats."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    node = asyncio.create_task(
        serve_embedded(EmbeddedSettings(data=data, port=0), lambda line: ready.set_result(line["url"]))
    )
    walks = []
    async with await antiphon.connect(await ready) as connection, connection.session() as session:
        producer = session.producer("queue:walk")
        for _ in range(SENDS):
            with Walk() as walk:
                await producer.send(b"one message")
            walks.append(walk)
    node.cancel()
    return min(walks, key=lambda walk: len(walk.calls))


def report() -> None:
    """Print the walk."""
    with tempfile.TemporaryDirectory() as data:
        walk = asyncio.run(walk_of_a_send(Path(data)))
    for path, name in walk.functions:
        print(f"  {path:44} {name}")
