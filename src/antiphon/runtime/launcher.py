"""Launcher: the nodes of a cluster as processes of this machine, started and stopped together.

LAU1  The cluster is announced when every client manager serves clients, and every other node is ready or has
      ended. All nodes are stopped if a client manager ends before that, or so many others that a channel can
      order nothing, or if it takes too long.
LAU2  The end of a node is reported, and the others go on. With `is_restarting` the node is started again,
      each time after a longer pause.
LAU3  No process is left behind: an orderly stop asks client managers first and then the others, and kills
      those that do not stop; and the kernel ends the children of a killed launcher (`die_with_parent`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.cluster.topology import ClusterSpec, NodeSpec, Role
from antiphon.errors import NodeError

log = logging.getLogger("antiphon.up")

Announce = Callable[[list[dict[str, Any]]], None]

READY_SECONDS: Final = 120.0
STOP_SECONDS: Final = 15.0
PAUSE_SECONDS: Final = 0.25
PAUSE_SECONDS_MAX: Final = 10.0
LASTING_SECONDS: Final = 30.0
"""A node that lived for so long is started again after the shortest pause."""

_PAUSES_MAX: Final = 16
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process as soon as its parent has ended."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # The parent ended before the call.
        os._exit(1)


def node_command(config: Path, name: str, options: Sequence[str]) -> list[str]:
    """The command that starts a node; `python -m`, since the script may not be on the path."""
    program = [sys.executable, "-m", "antiphon.cli.main"]
    return [*program, "node", name, "--config", str(config), "--json", "--parent", str(os.getpid()), *options]


@dataclass(slots=True, kw_only=True)
class _Child:
    node: NodeSpec
    command: list[str]
    process: asyncio.subprocess.Process | None = None
    ready: dict[str, Any] | None = None
    ends: int = 0
    is_over: bool = True
    """Not started yet, or never to be started again."""
    pauses: int = 0
    """Successive starts without a long life."""


class Launcher:
    def __init__(
        self,
        spec: ClusterSpec,
        commands: dict[str, list[str]],
        *,
        is_restarting: bool = False,
        ready_s: float = READY_SECONDS,
        stop_s: float = STOP_SECONDS,
        pause_s: float = PAUSE_SECONDS,
    ) -> None:
        self._spec = spec
        self._children = [_Child(node=node, command=commands[node.name]) for node in spec.nodes]
        self._is_restarting = is_restarting
        self._ready_s = ready_s
        self._stop_s = stop_s
        self._pause_s = pause_s
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._lives: list[asyncio.Task[None]] = []
        self._killed: list[str] = []

    async def run(self, stop: asyncio.Future[None], announce: Announce) -> int:
        """Run until `stop` is done or no node is left; returns the exit code."""
        try:
            for child in self._children:
                child.is_over = False
                self._lives.append(asyncio.create_task(self._live(child)))
            if await self._is_up(stop):
                announce([self._row(child) for child in self._children])
                await self._until(stop, self._has_nobody, None)
                if not stop.done():
                    raise NodeError("all nodes have ended")
        finally:
            await self._stop_all()
        return 1 if self._killed else 0

    # -- one node --------------------------------------------------------------

    async def _start(self, child: _Child) -> None:
        child.ready = None
        child.process = await asyncio.create_subprocess_exec(
            *child.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal goes to a whole group of processes; the nodes are to stop in order.
            start_new_session=True,
        )

    async def _live(self, child: _Child) -> None:
        """Start a node again and again (LAU2)."""
        try:
            while not self._stopping.is_set():
                began_s = time.monotonic()
                await self._start(child)
                if self._stopping.is_set():
                    # The signal could not reach a process that did not exist yet.
                    _signal(child, signal.SIGTERM)
                await self._attend(child)
                if not self._is_restarting:
                    break
                if time.monotonic() - began_s >= LASTING_SECONDS:
                    child.pauses = 0
                await self._pause(child)
        finally:
            child.is_over = True
            self._changed.set()

    async def _pause(self, child: _Child) -> None:
        if self._stopping.is_set():
            return
        pause_s = min(self._pause_s * 2**child.pauses, PAUSE_SECONDS_MAX)
        child.pauses = min(child.pauses + 1, _PAUSES_MAX)
        log.warning("node %s is started again in %.2f s", child.node.name, pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    async def _attend(self, child: _Child) -> None:
        process = child.process
        assert process is not None and process.stdout is not None
        while line := await process.stdout.readline():
            if child.ready is None:
                child.ready = _ready_of(line)
                self._changed.set()
                if child.ready is not None and child.ends:
                    log.info("node %s is ready again, as process %d", child.node.name, process.pid)
        code = await process.wait()
        child.process = None
        child.ends += 1
        self._changed.set()
        if not self._stopping.is_set():
            log.error("node %s ended: %s", child.node.name, _how(code))
        elif code and code != -signal.SIGKILL:
            log.warning("node %s did not stop in order: %s", child.node.name, _how(code))

    def _row(self, child: _Child) -> dict[str, Any]:
        node = child.node
        told: dict[str, Any] = {
            "name": node.name,
            "role": str(node.role),
            "channel": node.channel,
            "rank": node.rank,
            "pid": child.process.pid if child.process is not None else None,
            "listen": {},
        }
        return told | (child.ready or {})

    # -- all of them -----------------------------------------------------------

    async def _is_up(self, stop: asyncio.Future[None]) -> bool:
        """Wait until the cluster can be announced (LAU1); False if it is to stop first."""
        if await self._until(stop, self._has_begun, self._ready_s):
            if why := self._why_lost():
                raise NodeError(why)
            return not stop.done()
        waiting = [one.node.name for one in self._children if one.ready is None and not one.is_over]
        raise NodeError(f"after {self._ready_s:g} s these nodes are not ready: {', '.join(waiting)}")

    @property
    def _doors(self) -> list[_Child]:
        return [child for child in self._children if child.node.role is Role.CLIENT_MANAGER]

    def _why_lost(self) -> str:
        """The reason why this cluster cannot begin any more; empty if it can."""
        over = {child.node.number: child.node.name for child in self._children if child.is_over}
        for child in self._doors:
            if child.is_over:
                return f"{child.node.name} could not start, so nobody could connect there"
        for channel in self._spec.channels:
            group = self._spec.group_config(channel.name)
            gone = [over[number] for number in group.commit_servers if number in over]
            if len(group.commit_servers) - len(gone) < group.commit_quantity:
                return f"{' and '.join(gone)} could not start, so channel {channel.name} can order nothing"
        return ""

    def _has_begun(self) -> bool:
        return bool(self._why_lost()) or all(
            child.ready is not None or child.ends for child in self._children
        )

    def _has_nobody(self) -> bool:
        return all(child.is_over for child in self._children)

    async def _until(
        self, stop: asyncio.Future[None], is_reached: Callable[[], bool], seconds: float | None
    ) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while not is_reached() and not stop.done():
                    self._changed.clear()
                    changed = asyncio.ensure_future(self._changed.wait())
                    try:
                        await asyncio.wait((changed, stop), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        changed.cancel()
        except TimeoutError:
            return False
        return True

    async def _stop_all(self) -> None:
        """Stop the client managers first, then the others (LAU3)."""
        self._stopping.set()
        doors = self._doors
        await self._stop(doors)
        await self._stop([child for child in self._children if child not in doors])
        # An error of a life, such as no memory for one more process, is raised here.
        await asyncio.gather(*self._lives)

    async def _stop(self, children: Sequence[_Child]) -> None:
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def are_over() -> bool:
            return all(child.is_over for child in children)

        for child in children:
            _signal(child, signal.SIGTERM)
        if await self._until(never, are_over, self._stop_s):
            return
        for child in children:
            if child.process is not None:
                log.error("node %s did not stop within %g s and is killed", child.node.name, self._stop_s)
                self._killed.append(child.node.name)
                _signal(child, signal.SIGKILL)
        await self._until(never, are_over, None)


def _signal(child: _Child, number: signal.Signals) -> None:
    if child.process is not None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _ready_of(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.pop("ready", None) is not True:
        return None
    return told


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
