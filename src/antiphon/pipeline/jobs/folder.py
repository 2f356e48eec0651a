"""The folder of an archive: its manifests, created once each, and its Parquet files.

    DIR/_antiphon/archive.json                    which archive this is, and of which cluster
    DIR/_antiphon/commits/00000000000000000007    commit 7
    DIR/_antiphon/replays/NAME/...                what replays have planned, and how far they are
    DIR/destination=topic%3Aorders/date=2026-11-20/a-...-....parquet

FOL1  A commit is created under its number, whole, and only if there is none of that number: of two writers
      one is told so. Nothing is renamed, so the same works wherever a file can be created only if it is not
      there.
FOL2  A file of messages is durable before a commit names it, and is never changed.
FOL3  Files that no commit names go when they are older than a day: until then they may be those of another
      run, or of a reader that knows an older commit.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from xxhash import xxh3_128, xxh3_128_hexdigest

from antiphon.errors import ArchiveDamaged, ArchiveError
from antiphon.pipeline.jobs.choosing import is_pattern, matches
from antiphon.pipeline.jobs.manifest import (
    VERSION,
    WHOLE_EVERY,
    ArchiveCommit,
    ArchiveFile,
    ArchiveSource,
    ArchiveState,
    check_version,
    decode_commit,
    encode_commit,
)

ORPHAN_S: Final = 86_400
"""Files of no commit go when they are as old as this (FOL3)."""

PIECE_BYTES: Final = 1 << 20
NAME_LENGTH_MAX: Final = 150
NUMBER_DIGITS: Final = 20
SUFFIX: Final = ".parquet"

_SYSTEM: Final = "_antiphon"
_NUMBER: Final = re.compile(rf"\d{{{NUMBER_DIGITS}}}")


class ArchiveIdentity(NamedTuple):
    """Which archive a folder has, and the cluster whose numbers are in it."""

    archive: str
    cluster: str


class ArchiveFolder:
    """An archive on a file system, which all tasks of a job reach under the same path."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self._system = self.root / _SYSTEM
        self._commits = self._system / "commits"

    # -- which archive ---------------------------------------------------------

    def identity(self) -> ArchiveIdentity | None:
        """Which archive this is; None if the folder is none yet."""
        place = self._system / "archive.json"
        try:
            said = json.loads(place.read_bytes())
            check_version(said, str(place))
            return ArchiveIdentity(said["archive"], said["cluster"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ArchiveDamaged(f"{place} does not say which archive this is: {error!r}") from None

    def require(self) -> ArchiveIdentity:
        """Which archive this is; an error if the folder is none."""
        identity = self.identity()
        if identity is None:
            raise ArchiveError(
                f"{self.root} is no archive: antiphon pipeline archive DEST --to DIR makes one"
            )
        return identity

    def establish(self, cluster: str) -> ArchiveIdentity:
        """The archive that the folder has, or a new one of this cluster."""
        known = self.identity()
        if known is None:
            if self.root.is_dir() and any(entry.name != _SYSTEM for entry in self.root.iterdir()):
                raise ArchiveError(f"{self.root} has files, and none of an archive: give a folder of its own")
            said = {"v": VERSION, "archive": uuid.uuid4().hex, "cluster": cluster}
            self._commits.mkdir(parents=True, exist_ok=True)
            create(self._system / "archive.json", json.dumps(said).encode() + b"\n")
            # Another run may have been quicker.
            known = self.require()
        if known.cluster != cluster:
            raise ArchiveError(
                f"the archive {self.root} is of cluster {known.cluster}, and this is cluster {cluster}:"
                " numbers of two clusters mean different things, so give each an archive of its own"
            )
        return known

    # -- commits ---------------------------------------------------------------

    def state(self) -> ArchiveState:
        """The archive after its last commit."""
        numbers = self._numbers()
        state = ArchiveState()
        if not numbers:
            return state
        last = max(numbers)
        first = last - last % WHOLE_EVERY or 1
        for number in range(first, last + 1):
            place = self._place(number)
            try:
                data = place.read_bytes()
            except FileNotFoundError:
                raise ArchiveDamaged(f"commit {number} of the archive is missing: {place}") from None
            commit, digest = decode_commit(data, str(place))
            if commit.number != number or (number == first and number != 1 and not commit.is_whole):
                raise ArchiveDamaged(f"{place} has another commit, with number {commit.number}")
            state = state.after(commit, digest)
        return state

    def _numbers(self) -> list[int]:
        try:
            return [int(entry.name) for entry in self._commits.iterdir() if _NUMBER.fullmatch(entry.name)]
        except FileNotFoundError:
            return []

    def _place(self, number: int) -> Path:
        return self._commits / f"{number:0{NUMBER_DIGITS}}"

    def add(self, commit: ArchiveCommit) -> str | None:
        """Create a commit and return its digest; None if there is one of this number (FOL1)."""
        text, digest = encode_commit(commit)
        return digest if create(self._place(commit.number), text) else None

    # -- files -----------------------------------------------------------------

    def new_path(self, name: str, channel: str, date: str, start: int) -> str:
        """Where a new file of messages goes, below the folder; no other task writes there."""
        nonce = uuid.uuid4().hex
        return (
            f"destination={_quoted(name)}/date={date}/"
            f"{_quoted(channel)}-{start:0{NUMBER_DIGITS}}-{nonce}{SUFFIX}"
        )

    def place_of(self, path: str) -> Path:
        return self.root / path

    def kept(self, file: ArchiveFile) -> Path:
        """Where a file of a commit lies. Raises ArchiveDamaged unless it is as it was written."""
        place = self.place_of(file.path)
        try:
            digest, size = digest_of(place)
        except FileNotFoundError:
            raise ArchiveDamaged(f"{file.path} is missing") from None
        except OSError as error:
            raise ArchiveDamaged(f"{file.path} cannot be read: {error.strerror}") from None
        if (digest, size) != (file.digest, file.size):
            raise ArchiveDamaged(
                f"{file.path} is not what was written: {size:,} bytes of digest {digest},"
                f" and not {file.size:,} of digest {file.digest}"
            )
        return place

    def drop_orphans(self, known: set[str], now_s: float) -> int:
        """Remove old files that no commit names (FOL3); how many."""
        dropped = 0
        for place in self._files():
            if place.relative_to(self.root).as_posix() in known:
                continue
            try:
                if place.stat().st_mtime < now_s - ORPHAN_S:
                    place.unlink()
                    dropped += 1
            except FileNotFoundError:
                continue  # another run was quicker
        return dropped

    def _files(self) -> Iterator[Path]:
        """Everything that is a file of messages, or the draft of a run that was killed."""
        if self._system.is_dir():
            yield from self._system.rglob(".*")
        if self.root.is_dir():
            for folder in self.root.iterdir():
                if folder.name.startswith("destination="):
                    yield from folder.rglob(f"*{SUFFIX}")

    def outdated(self, paths: tuple[str, ...]) -> None:
        """These files were replaced: their day begins now (FOL3)."""
        for path in paths:
            try:
                os.utime(self.place_of(path))
            except OSError:
                continue  # gone, or it will go a little sooner

    def chosen(self, state: ArchiveState, words: Sequence[str]) -> list[ArchiveSource]:
        """The sources with these names, or that match these patterns; an error if a name is none."""
        for word in words:
            if not is_pattern(word) and not any(source.name == word for source in state.sources):
                raise ArchiveError(f"the archive {self.root} has nothing of {word}")
        return [source for source in state.sources if matches(source.name, words)]

    # -- what replays note -------------------------------------------------------

    def replay_folder(self, name: str) -> Path:
        return self._system / "replays" / _quoted(name)


def _quoted(name: str) -> str:
    """A name as part of a path: long ones are cut, and told apart by a digest."""
    whole = quote(name, safe="")
    if len(whole) <= NAME_LENGTH_MAX:
        return whole
    return f"{whole[:NAME_LENGTH_MAX]}~{xxh3_128_hexdigest(name.encode())}"


def create(place: Path, data: bytes) -> bool:
    """Create a file with these bytes, durable and whole; False if there is one already.

    A link, unlike a rename, fails if its target is there.
    """
    with _draft(place, data) as draft:
        try:
            os.link(draft, place)
        except FileExistsError:
            return False
    return True


def replace_file(place: Path, data: bytes) -> None:
    """Write a file anew, whole or not at all."""
    with _draft(place, data) as draft:
        draft.replace(place)


@contextmanager
def _draft(place: Path, data: bytes) -> Iterator[Path]:
    """A durable file beside its place, for the block to put there."""
    draft = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
        sync_folder(place.parent)
    except OSError as error:
        raise ArchiveError(f"{place} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """What was created in a folder survives a power cut."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def digest_of(place: Path) -> tuple[str, int]:
    """The digest of a file's bytes, and their number."""
    digest, size = xxh3_128(), 0
    with place.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return str(digest.hexdigest()), size
