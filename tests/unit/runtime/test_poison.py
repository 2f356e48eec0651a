"""Word of a failed sync: where it is left, and for which directory and boot it counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from antiphon.errors import StorageFailed
from antiphon.journal.format import SUPERBLOCK
from antiphon.runtime import poison
from antiphon.runtime.disk import FileDisk
from antiphon.runtime.poison import POISONED, outside

BOOT = "boot 1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPHON_RUN_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def poisoned(path: Path, *, takes_the_word: bool = False) -> Path:
    """A directory with a journal whose disk failed, and did not even take the word if it does not say so."""
    disk = FileDisk(path, this_boot=BOOT)
    disk.write_whole(SUPERBLOCK, [b"a superblock"])
    disk.mark_poisoned("segment-00000001 could not be synced")
    assert (path / POISONED).exists()
    disk.close()
    if not takes_the_word:
        (path / POISONED).unlink()
    return path


def test_a_disk_that_does_not_take_the_word_is_refused_all_the_same(tmp_path: Path, run: Path) -> None:
    data = poisoned(tmp_path / "data")
    for _ in range(2):
        with pytest.raises(StorageFailed, match="segment-00000001 could not be synced"):
            FileDisk(data, this_boot=BOOT)
    FileDisk(data, this_boot=BOOT, accept_possible_loss=True).close()
    assert list(run.iterdir()) == []
    FileDisk(data, this_boot=BOOT).close()


def test_the_word_outside_is_left_although_the_disk_fails_to_take_it(
    tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    disk = FileDisk(data, this_boot=BOOT)
    disk.write_whole(SUPERBLOCK, [b"a superblock"])
    write = poison._write_durably

    def refuse(place: Path, text: str) -> None:
        if place.parent == data:
            raise OSError(5, "Input/output error")
        write(place, text)

    monkeypatch.setattr(poison, "_write_durably", refuse)
    disk.mark_poisoned("the cable came off")
    assert "Input/output error" in caplog.text, "whoever reads the log knows where the word is not"
    disk.close()
    with pytest.raises(StorageFailed, match="the cable came off"):
        FileDisk(data, this_boot=BOOT)


def test_a_reboot_makes_it_void(tmp_path: Path, run: Path) -> None:
    data = poisoned(tmp_path / "data")
    disk = FileDisk(data, this_boot="boot 2")
    assert "before the machine was booted" in disk.notes[0]
    disk.close()
    assert list(run.iterdir()) == []


def test_it_does_not_count_for_a_directory_that_was_emptied_or_made_anew(tmp_path: Path, run: Path) -> None:
    data = poisoned(tmp_path / "data")
    (data / SUPERBLOCK).unlink()
    FileDisk(data, this_boot=BOOT).close()
    data = poisoned(tmp_path / "other")
    (tmp_path / "kept").mkdir()
    data.rename(tmp_path / "kept" / "other")
    shutil.copytree(tmp_path / "kept" / "other", data)
    FileDisk(data, this_boot=BOOT).close()


def test_it_counts_for_no_other_directory(tmp_path: Path, run: Path) -> None:
    poisoned(tmp_path / "data")
    disk = FileDisk(tmp_path / "other", this_boot=BOOT)
    disk.write_whole(SUPERBLOCK, [b"a superblock"])
    disk.close()
    FileDisk(tmp_path / "other", this_boot=BOOT).close()


def test_with_peers_it_counts_until_the_files_are_put_aside(tmp_path: Path, run: Path) -> None:
    data = poisoned(tmp_path / "data")
    disk = FileDisk(data, this_boot=BOOT, has_peers=True)
    assert "could not be synced" in disk.distrusted
    disk.trust()
    disk.close()
    assert list(run.iterdir()) == []


def test_a_directory_that_others_can_write_to_is_not_believed(
    tmp_path: Path, run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = poisoned(tmp_path / "data")
    run.chmod(0o777)
    FileDisk(data, this_boot=BOOT).close()
    disk = FileDisk(data, this_boot=BOOT)
    disk.mark_poisoned("why")
    assert "belongs to this user alone" in caplog.text
    disk.close()


def test_root_and_others_have_a_place_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTIPHON_RUN_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    monkeypatch.setattr(poison.tempfile, "gettempdir", lambda: "/var/tmp")
    monkeypatch.setattr(poison.os, "geteuid", lambda: 1000)
    assert outside() == [Path("/run/user/1000/antiphon"), Path("/var/tmp/antiphon-1000")]
    monkeypatch.setattr(poison.os, "geteuid", lambda: 0)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert outside() == [Path("/run/antiphon"), Path("/var/tmp/antiphon-0")]
