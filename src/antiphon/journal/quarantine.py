"""Quarantine: the files of a journal that must not be used any more are put aside, and none is deleted.

What it promises
    Q1  Every file of the journal goes to `lost+found/`, under a name that no other quarantine uses, with a
        note beside it that says why.
    Q2  The superblock goes first. Whenever the power fails, the next start finds the whole journal, or half
        of one, which is damage: it never takes what is left for a journal, or for an empty place.

What it leaves to others
    Whether the node can do without them is for whoever starts it to know.
"""

from __future__ import annotations

from antiphon.journal.format import LOST_AND_FOUND, SUPERBLOCK, is_journal_file
from antiphon.journal.ports import Disk


def put_aside(disk: Disk, mark: str, why: str) -> list[str]:
    """Take the journal away; `mark` is a word that no other quarantine has. Returns where the files are."""
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
