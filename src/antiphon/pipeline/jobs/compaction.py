"""Compaction: which small files of an archive become one.

CMP1  Only files of one source and date are joined, and only such that follow each other.
CMP2  A byte is rewritten a few times in all: files are joined when there are JOIN_FILES of about one size,
      and the result is of the next size.
CMP3  No file grows beyond the limits of a file.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Final

from antiphon.pipeline.jobs.manifest import ArchiveFile, ArchiveState

JOIN_FILES: Final = 8
"""So many files of about one size are joined to a file of the next size."""

SMALL_BYTES: Final = 16 * 1024
"""Files up to here are of the smallest size; each further size is JOIN_FILES times as large."""


def plan_joins(state: ArchiveState, bytes_max: int, rows_max: int) -> list[tuple[ArchiveFile, ...]]:
    """Groups of files, each of which becomes one file; none if all is well."""
    groups: list[tuple[ArchiveFile, ...]] = []
    for files in state.files.values():
        for _, day in groupby(files, key=lambda file: file.date):
            groups += _joins([*day], bytes_max, rows_max)
    return groups


def _joins(files: list[ArchiveFile], bytes_max: int, rows_max: int) -> list[tuple[ArchiveFile, ...]]:
    """The groups of one day, of the smallest size that has any."""
    sized = [(file, _size(file.size)) for file in files]
    for most in range(_size(bytes_max)):
        marked = [(size <= most, file) for file, size in sized]
        groups: list[tuple[ArchiveFile, ...]] = []
        for is_small, run in groupby(marked, key=itemgetter(0)):
            if is_small:
                groups += _within([file for _, file in run], bytes_max, rows_max)
        if groups:
            return groups
    return []


def _within(run: list[ArchiveFile], bytes_max: int, rows_max: int) -> list[tuple[ArchiveFile, ...]]:
    """A run of small files in groups that fit a file; groups of a few files wait for more."""
    groups: list[tuple[ArchiveFile, ...]] = []
    group: list[ArchiveFile] = []
    rows = size = 0
    for file in run:
        if group and (rows + file.rows > rows_max or size + file.size > bytes_max):
            groups.append(tuple(group))
            group, rows, size = [], 0, 0
        group.append(file)
        rows, size = rows + file.rows, size + file.size
    groups.append(tuple(group))
    return [group for group in groups if len(group) >= JOIN_FILES]


def _size(count: int) -> int:
    """The size of a file, in steps."""
    step, most = 0, SMALL_BYTES
    while count > most:
        step, most = step + 1, most * JOIN_FILES
    return step
