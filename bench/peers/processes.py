"""The processes of one broker: started, looked at, and ended by their ids."""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from antiphon.runtime.launcher import die_with_parent

END_SECONDS = 30.0


class Processes:
    """Everything that is started here ends with the block, and what it started in its turn."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.began_at: float | None = None
        """When the first was started."""

    def __enter__(self) -> Processes:
        return self

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] = MappingProxyType({}),
        is_read: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a process whose words go to NAME.log; with `is_read` its standard output goes to us."""
        if self.began_at is None:
            self.began_at = time.monotonic()
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_read else log,
                stderr=log if is_read else subprocess.STDOUT,
                env={**os.environ, **environment},
                # Ctrl-C is for the bench, which ends its servers itself.
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        self._started.append(process)
        return process

    def tree(self) -> list[int]:
        """The ids of what was started and lives, each before its children."""
        alive = [process.pid for process in self._started if process.poll() is None]
        return [pid for started in alive for pid in (started, *children(started))]

    def last_words(self) -> str:
        """The end of what each has said, for an error message."""
        logs = sorted(self._folder.glob("*.log"))
        return "".join(f"\n--- {log.stem}: {log.read_text(errors='replace')[-1_000:]}" for log in logs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nobody needs the data any more, so nobody is asked to stop in order.
        handles = []
        for pid in self.tree():
            try:
                handles.append(os.pidfd_open(pid))
                signal.pidfd_send_signal(handles[-1], signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself, or with its parent
        for process in self._started:
            process.wait(timeout=END_SECONDS)
            if process.stdout is not None:
                process.stdout.close()
        for handle in handles:
            assert select.select([handle], [], [], END_SECONDS)[0], "a server lives on after a kill"
            os.close(handle)


def children(pid: int) -> list[int]:
    """All below a process."""
    found = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = [int(child) for child in listing.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            # A thread that has ended just now.
            continue
        for child in below:
            found += [child, *children(child)]
    return found


def cpu_ns(pids: Sequence[int]) -> int:
    """What these processes have used of the processors so far, threads that are over included."""
    # The number of a process's CPU clock, as clock_getcpuclockid(3) makes it.
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def memory_mib(pids: Sequence[int]) -> float:
    """The memory of these processes; pages that several share count once (PSS)."""
    kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                kib += int(line.split()[1])
    return kib / 1024
