"""Processes that others have started: who they are, and whom they talk to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All that a process has started, and these, and so on; whoever ends meanwhile is left out."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # Behind the name, which may have spaces: state, parent.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, looked_at = [], [pid]
    while looked_at:
        some = children.get(looked_at.pop(), [])
        found += some
        looked_at += some
    return found


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, as the loss of its computer would."""
    everybody = [process.pid, *descendants(process.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        # Stopped first, so that none of them starts another one meanwhile.
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    process.wait(timeout=30)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def python_workers(driver: int) -> list[int]:
    """The processes in which a Spark that a driver has started runs our code for tasks."""
    daemons = {pid for pid in descendants(driver) if "pyspark.daemon" in command_of(pid)}
    return [pid for pid in daemons if _parent_of(pid) in daemons]


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ports_talked_to(pid: int) -> set[int]:
    """To which ports of this machine a process, and all that it has started, has connections."""
    established = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "01":
            established[words[9]] = int(words[2].rpartition(":")[2], 16)
    inodes = {inode for one in (pid, *descendants(pid)) for inode in _sockets(one)}
    return {established[inode] for inode in inodes if inode in established}


def _sockets(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    yield target[8:-1]
