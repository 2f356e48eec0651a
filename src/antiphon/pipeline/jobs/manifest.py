"""The manifest: what an archive has, as a row of numbered commits.

    archive, compaction  ->  ArchiveCommit n  ->  folder (created once)  ->  ArchiveState after n

MAN1  An archive has what its commits name, and nothing else: files that no commit names do not exist for a
      reader, however they came about.
MAN2  A commit is whole or not there: its text ends with a digest of the text before.
MAN3  Every commit names the digest of the one before, so that none can be exchanged or left out unseen.
MAN4  Of a destination the files follow each other without a gap: the next one begins where the last one ends.
      What was lost before it could be archived is written down as lost.
MAN5  A commit that has a round number repeats everything, so that a reader reads few commits.

The machine here is pure: `folder` has the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128_hexdigest

from antiphon.errors import ArchiveDamaged, ArchiveError

VERSION: Final = 1

WHOLE_EVERY: Final = 64
"""Commits of which one repeats everything (MAN5)."""


class ArchiveSource(NamedTuple):
    """A destination that is archived. One that was deleted and made again has another id, or channel."""

    name: str
    channel: str
    id: int


class ArchivePage(NamedTuple):
    """Messages that came in one page: up to which number, how many, and the digest of their rows."""

    stop: int
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """All messages of a source with the numbers `[start, stop)`; without any there is no file, and no path.

    `date` is that of the channel's log time, to which the messages were stored.
    """

    source: ArchiveSource
    start: int
    stop: int
    date: str
    rows: int
    pages: tuple[ArchivePage, ...]
    path: str = ""
    size: int = 0
    digest: str = ""

    @property
    def text(self) -> str:
        """The range, for people."""
        return f"{self.source.name}, numbers {self.start} to {self.stop - 1} of channel {self.source.channel}"


class ArchiveLoss(NamedTuple):
    """Numbers of which some messages had gone before they were archived."""

    source: ArchiveSource
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ArchiveCommit:
    """One step of an archive: files that are added, and files in whose place they stand."""

    number: int
    before: str
    job: str
    time_ms: int
    added: tuple[ArchiveFile, ...] = ()
    removed: tuple[str, ...] = ()
    since: Mapping[ArchiveSource, int] = field(default_factory=dict)
    losses: tuple[ArchiveLoss, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """An archive after its last commit.

    `since` has the number from which on each source wants every message: what went before it was first
    archived is no loss.
    """

    number: int = 0
    digest: str = ""
    files: Mapping[ArchiveSource, tuple[ArchiveFile, ...]] = field(default_factory=dict)
    since: Mapping[ArchiveSource, int] = field(default_factory=dict)
    losses: tuple[ArchiveLoss, ...] = ()

    def next(self, source: ArchiveSource) -> int | None:
        """The number from which on the source is not archived; None if nothing of it is."""
        files = self.files.get(source)
        return files[-1].stop if files else None

    @property
    def sources(self) -> list[ArchiveSource]:
        """All that were found by a run, also those without a message."""
        return sorted({*self.files, *self.since})

    @property
    def paths(self) -> set[str]:
        """The files that exist for a reader (MAN1)."""
        return {file.path for files in self.files.values() for file in files if file.path}

    def next_commit(
        self,
        job: str,
        time_ms: int,
        added: Iterable[ArchiveFile],
        removed: Iterable[str] = (),
        since: Mapping[ArchiveSource, int] | None = None,
        losses: Iterable[ArchiveLoss] = (),
    ) -> ArchiveCommit:
        """The commit that does this; it may repeat everything that is there (MAN5)."""
        commit = ArchiveCommit(
            self.number + 1,
            self.digest,
            job,
            time_ms,
            tuple(added),
            tuple(removed),
            since or {},
            tuple(losses),
        )
        if not is_whole(commit.number):
            return commit
        after = self.after(commit, "")
        files = tuple(file for files in after.files.values() for file in files)
        return replace(commit, added=files, removed=(), since=after.since, losses=after.losses, is_whole=True)

    def after(self, commit: ArchiveCommit, digest: str) -> ArchiveState:
        """The state with a commit, whose text has this digest. Raises ArchiveDamaged if it does not fit."""
        if commit.is_whole:
            files: dict[ArchiveSource, list[ArchiveFile]] = {}
            since, losses = dict(commit.since), commit.losses
        else:
            if commit.number != self.number + 1 or commit.before != self.digest:
                raise ArchiveDamaged(
                    f"commit {commit.number} of the archive does not follow the commit before:"
                    " a manifest was changed or is missing"
                )
            files = {source: list(some) for source, some in self.files.items()}
            since = {**self.since, **commit.since}
            losses = (*self.losses, *commit.losses)
        removed = frozenset(commit.removed)
        for source in {file.source for file in commit.added}:
            kept = [file for file in files.get(source, ()) if not file.path or file.path not in removed]
            new = [file for file in commit.added if file.source == source]
            ordered = sorted([*kept, *new], key=lambda file: file.start)
            _check_order(commit.number, ordered)
            files[source] = ordered
        ordered_files = {source: tuple(files[source]) for source in sorted(files)}
        return ArchiveState(commit.number, digest, ordered_files, since, losses)


def is_whole(number: int) -> bool:
    """Does a commit of this number repeat everything?"""
    return number % WHOLE_EVERY == 0


def _check_order(number: int, files: list[ArchiveFile]) -> None:
    """MAN4."""
    for before, file in pairwise(files):
        if before.stop != file.start:
            raise ArchiveDamaged(
                f"commit {number} of the archive has {file.text} behind {before.text}:"
                " a manifest was changed or is missing"
            )


# -- texts ---------------------------------------------------------------------------------


def encode_commit(commit: ArchiveCommit) -> tuple[bytes, str]:
    """The text of a commit, and its digest (MAN2)."""
    sources = sorted(
        {file.source for file in commit.added} | {*commit.since} | {loss.source for loss in commit.losses}
    )
    places = {source: place for place, source in enumerate(sources)}
    said = {
        "v": VERSION,
        "commit": commit.number,
        "before": commit.before,
        "job": commit.job,
        "time_ms": commit.time_ms,
        "whole": commit.is_whole,
        "sources": [list(source) for source in sources],
        "added": [
            {
                "source": places[file.source],
                "start": file.start,
                "stop": file.stop,
                "date": file.date,
                "rows": file.rows,
                "pages": [list(page) for page in file.pages],
                "path": file.path,
                "bytes": file.size,
                "digest": file.digest,
            }
            for file in commit.added
        ],
        "removed": list(commit.removed),
        "since": [[places[source], number] for source, number in sorted(commit.since.items())],
        "lost": [[places[loss.source], loss.first, loss.last] for loss in commit.losses],
    }
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    digest = xxh3_128_hexdigest(text)
    return text + b"\n" + digest.encode() + b"\n", digest


def decode_commit(data: bytes, what: str) -> tuple[ArchiveCommit, str]:
    """A commit and its digest, from its text. Raises ArchiveDamaged, or ArchiveError for another version."""
    text, _, told = data.removesuffix(b"\n").rpartition(b"\n")
    digest = xxh3_128_hexdigest(text)
    if not data.endswith(b"\n") or told != digest.encode():
        raise ArchiveDamaged(f"{what} is not what was written: its digest is another one")
    try:
        said = json.loads(text)
        check_version(said, what)
        sources = [ArchiveSource(*source) for source in said["sources"]]
        commit = ArchiveCommit(
            said["commit"],
            said["before"],
            said["job"],
            said["time_ms"],
            tuple([_file(one, sources) for one in said["added"]]),
            tuple(said["removed"]),
            {sources[place]: number for place, number in said["since"]},
            tuple([ArchiveLoss(sources[place], first, last) for place, first, last in said["lost"]]),
            said["whole"],
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ArchiveDamaged(f"{what} is no commit of an archive: {error!r}") from None
    return commit, digest


def check_version(said: Mapping[str, Any], what: str) -> None:
    if said["v"] != VERSION:
        raise ArchiveError(
            f"{what} has version {said['v']}, and this version of Antiphon knows version {VERSION}"
        )


def _file(said: Mapping[str, Any], sources: list[ArchiveSource]) -> ArchiveFile:
    return ArchiveFile(
        sources[said["source"]],
        said["start"],
        said["stop"],
        said["date"],
        said["rows"],
        tuple([ArchivePage(*page) for page in said["pages"]]),
        said["path"],
        said["bytes"],
        said["digest"],
    )
