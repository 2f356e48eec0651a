"""Quarantine: puts the files of a journal aside that must not be used any more, and deletes none.

QUA1  Every file goes to `lost+found/`, under a name that no other quarantine uses, with a note that says why.
QUA2  The superblock goes first. After a power cut the next start finds the whole journal, or half of one,
      which is damage: it never takes the rest for a journal, or for an empty place.
"""

from __future__ import annotations

from antiphon.journal.format import LOST_AND_FOUND, SUPERBLOCK, is_journal_file
from antiphon.journal.ports import Disk


def put_aside(disk: Disk, mark: str, why: str) -> list[str]:
    """Put the journal aside; `mark` is a word that no other quarantine has. Returns the new names."""
    names = [name for name in disk.list_files() if is_journal_file(name)]
    names.sort(key=lambda name: name != SUPERBLOCK)
    note = f"{LOST_AND_FOUND}/{mark}-why.txt"
    disk.write_whole(note, [f"{why}\n".encode()])
    moved = []
    for name in names:
        new_name = f"{LOST_AND_FOUND}/{mark}-{name}"
        disk.rename(name, new_name)
        disk.sync_directory()
        moved.append(new_name)
    return moved
