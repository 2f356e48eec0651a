"""The file of events: lines, rotation, and disks that take nothing."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon.event_log import EventRow
from antiphon.events import CLIENT_REFUSED
from antiphon.runtime.event_file import FILE_NAME, EventFile, EventFileSettings


def rows(count: int, first: int = 0) -> list[EventRow]:
    return [
        EventRow(n, "node-1", "a", CLIENT_REFUSED(peer=f"host:{n}", reason="protocol", problem="no"))
        for n in range(first, first + count)
    ]


def peers(path: Path) -> list[str]:
    return [json.loads(line)["fields"].get("peer") for line in path.read_text().splitlines() if line]


def test_each_event_is_printed_and_is_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = EventFile(tmp_path / "made" / "when needed")
    with caplog.at_level("INFO", "antiphon.node"):
        file.record(rows(3))
    file.close()
    assert peers(tmp_path / "made" / "when needed" / FILE_NAME) == ["host:0", "host:1", "host:2"]
    first, *_ = [record.getMessage() for record in caplog.records]
    assert first == "connection of host:0 closed: protocol: no"


def test_a_later_life_appends(tmp_path: Path) -> None:
    for first in (0, 2):
        file = EventFile(tmp_path)
        file.record(rows(2, first))
        file.close()
    assert peers(tmp_path / FILE_NAME) == ["host:0", "host:1", "host:2", "host:3"]


def test_files_are_rotated_and_the_oldest_go(tmp_path: Path) -> None:
    line = len(rows(1)[0].as_json()) + 1
    file = EventFile(tmp_path, EventFileSettings(file_bytes_max=2 * line + 10, files_max=3))
    file.record(rows(9))
    file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [FILE_NAME, f"{FILE_NAME}.1", f"{FILE_NAME}.2"]
    assert peers(tmp_path / FILE_NAME) == ["host:8"]
    assert peers(tmp_path / f"{FILE_NAME}.1") == ["host:6", "host:7"]
    assert peers(tmp_path / f"{FILE_NAME}.2") == ["host:4", "host:5"]


def test_a_single_file_is_possible(tmp_path: Path) -> None:
    file = EventFile(tmp_path, EventFileSettings(file_bytes_max=1, files_max=1))
    file.record(rows(3))
    file.close()
    assert [one.name for one in tmp_path.iterdir()] == [FILE_NAME] and peers(tmp_path / FILE_NAME) == [
        "host:2"
    ]


def test_a_full_disk_costs_lines_which_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fails = os.write, [True] * 3

    def write(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name != "antiphon-events" or not fails:
            return real(descriptor, data)
        fails.pop()
        if fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:10])

    monkeypatch.setattr(os, "write", write)
    file = EventFile(tmp_path)
    file.record(rows(5))
    file.close()
    torn, *lines = (tmp_path / FILE_NAME).read_text().splitlines()
    assert len(torn) == 10, "a line that was cut off does not spoil the next"
    told: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [one["code"] for one in told] == ["log.unwritten", "client.refused", "client.refused"]
    assert told[0]["fields"] == {"count": 3, "problem": "the disk is full"}


def test_rows_that_wait_for_a_disk_that_hangs_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    real = EventFile._write

    def write(file: EventFile, row: EventRow) -> None:
        assert goes_on.wait(20)
        real(file, row)

    monkeypatch.setattr(EventFile, "_write", write)
    file = EventFile(tmp_path, EventFileSettings(waiting_max=10))
    file.record(rows(100))
    goes_on.set()
    file.close()
    told = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    lost = sum(one["fields"]["count"] for one in told if one["code"] == "log.unwritten")
    written = sum(1 for one in told if one["code"] == "client.refused")
    assert written + lost == 100 and 10 <= written <= 12
