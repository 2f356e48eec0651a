"""EventFile: prints the events of a node, and appends them to a file that is rotated.

EVF1  Nothing waits for the file: a thread of its own writes it. A disk that hangs holds up that thread alone.
EVF2  The files have a bounded size together, the rows that wait for the thread a bounded number.
EVF3  A row that cannot be written does no harm. The next row that can is preceded by one that says how many
      were not.

Each line of the file is a JSON object. The newest lines are in `events.log`, older ones in `events.log.1` and
so on.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from antiphon.event_log import EventRow
from antiphon.events import EVENTS_UNWRITTEN, Severity

log = logging.getLogger("antiphon.node")

FILE_NAME: Final = "events.log"
END_SECONDS: Final = 2.0
"""How long the end of a node waits for its last rows to be written."""

_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFileSettings:
    file_bytes_max: int = 4 << 20
    files_max: int = 4
    """The size of a file, and how many files there are with the newest one."""

    waiting_max: int = 1_000
    """Rows that wait for the thread; further ones are not written."""


class EventFile:
    def __init__(self, folder: Path, settings: EventFileSettings | None = None) -> None:
        self._path = folder / FILE_NAME
        self._settings = settings or EventFileSettings()
        self._queue: SimpleQueue[EventRow | None] = SimpleQueue()
        # Whether the last line is cut off.
        self._is_torn = False
        # How many rows were not written since the last one that was, and why.
        self._lost = 0
        self._problem = ""
        self._lock = threading.Lock()
        # Ends with the process: nothing may wait for a disk that hangs.
        self._thread = threading.Thread(target=self._run, name="antiphon-events", daemon=True)
        self._thread.start()

    def record(self, rows: Iterable[EventRow]) -> None:
        for row in rows:
            log.log(_LEVELS[row.severity], "%s", row.sentence)
            self.append(row)

    def append(self, row: EventRow) -> None:
        """Write an event that is printed elsewhere."""
        if self._queue.qsize() < self._settings.waiting_max:
            self._queue.put(row)
        else:
            self._lose("the disk is too slow")

    def close(self) -> None:
        """Write what waits, unless that takes too long."""
        self._queue.put(None)
        self._thread.join(END_SECONDS)

    def _lose(self, problem: str) -> None:
        with self._lock:
            self._lost += 1
            self._problem = problem

    # -- in the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (row := self._queue.get()) is not None:
            try:
                self._write(row)
            except OSError as error:
                self._lose(error.strerror or str(error))

    def _write(self, row: EventRow) -> None:
        with self._lock:
            lost, problem = self._lost, self._problem
        lines = [row.as_json()]
        if lost:
            unwritten = EVENTS_UNWRITTEN(count=lost, problem=problem)
            lines.insert(0, row._replace(channel="", event=unwritten).as_json())
        data = "".join([f"{line}\n" for line in lines]).encode()
        if self._is_torn:
            data = b"\n" + data
        self._rotate(len(data))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._is_torn = os.write(descriptor, data) < len(data)
            if self._is_torn:
                raise OSError(errno.ENOSPC, "the disk is full")
        finally:
            os.close(descriptor)
        with self._lock:
            self._lost -= lost

    def _rotate(self, more_bytes: int) -> None:
        """Begin a new file if these bytes have no room in the present one."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return
        if not size or size + more_bytes <= self._settings.file_bytes_max:
            return
        last = self._settings.files_max - 1
        for number in range(last, 0, -1):
            newer = self._path if number == 1 else self._numbered(number - 1)
            if newer.exists():
                newer.replace(self._numbered(number))
        if not last:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{FILE_NAME}.{number}")
