"""What a power cut leaves of a directory, when the notes about it come from a process that was killed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from antiphon.journal.format import PAGE
from antiphon.runtime import disk as disk_module
from antiphon.runtime.disk import FileDisk
from tests.crash_replay import Hold, LastingRecorder, cut_power, notes_of, read_notes

OLD, SYNCED, UNSYNCED = (bytes([byte]) * PAGE for byte in b"osu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a file from before, of which a page was synced and two were not, and with notes."""
    folder = tmp_path / "data"
    with closing(FileDisk(folder)) as disk:
        disk.write_whole("file", [OLD * 4])
        disk.write_whole("other", [OLD])
    with monkeypatch.context() as patch:
        patch.setattr(disk_module, "os", LastingRecorder(folder))
        with closing(FileDisk(folder)) as disk:
            disk.write("file", 0, [SYNCED])
            disk.sync(["file"])
            disk.write("file", PAGE, [UNSYNCED, UNSYNCED])
            disk.remove("other")
    return folder


def test_nothing_but_what_was_synced_is_left(folder: Path) -> None:
    cut_power(folder, read_notes(folder), lambda n: 0)
    assert (folder / "file").read_bytes() == SYNCED + OLD * 3
    assert (folder / "other").read_bytes() == OLD


def test_everything_is_left(folder: Path) -> None:
    cut_power(folder, read_notes(folder), lambda n: n - 1)
    assert (folder / "file").read_bytes() == SYNCED + UNSYNCED * 2 + OLD
    assert not (folder / "other").exists()


def test_who_is_asked_says_which_pages_are_left(folder: Path) -> None:
    cut_power(folder, read_notes(folder), lambda n: 0, lambda name, offset: offset == 2 * PAGE)
    assert (folder / "file").read_bytes() == SYNCED + OLD + UNSYNCED + OLD


def test_a_sync_that_is_held_up_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, hold = tmp_path / "data", Hold(tmp_path / "data")
    monkeypatch.setattr(disk_module, "os", LastingRecorder(folder))
    with closing(FileDisk(folder)) as disk:
        disk.write_whole("file", [OLD])
        hold.begin()
        thread = Thread(target=disk.sync, args=(["file"],))
        thread.start()
        while not hold.is_met:
            thread.join(0.01)
        assert thread.is_alive()
        assert not [note for note in read_notes(folder)[-1:] if note.kind == "sync"]
        hold.end()
        thread.join(60)
        assert read_notes(folder)[-1].kind == "sync"


def test_a_note_that_the_kill_has_torn_is_left_out(folder: Path) -> None:
    notes = read_notes(folder)
    assert notes[-1].kind == "remove"
    os.truncate(notes_of(folder), notes_of(folder).stat().st_size - 1)
    assert read_notes(folder) == notes[:-1]
