"""The manifest: commits that follow each other, are whole or not there, and cannot be exchanged."""

from __future__ import annotations

import pytest
import xxhash

from antiphon.errors import ArchiveDamaged, ArchiveError
from antiphon.pipeline.jobs.folder import ArchiveFolder
from antiphon.pipeline.jobs.manifest import (
    WHOLE_EVERY,
    ArchiveCommit,
    ArchiveFile,
    ArchiveLoss,
    ArchivePage,
    ArchiveSource,
    ArchiveState,
    decode_commit,
    encode_commit,
)

X = ArchiveSource("topic:x", "a", 7)


def file(start: int, stop: int, path: str = "") -> ArchiveFile:
    pages = (ArchivePage(stop, stop - start, "d1"),)
    return ArchiveFile(X, start, stop, "2026-11-20", stop - start, pages, path or f"{start}", 100, "d0")


def test_a_commit_comes_back_as_it_was() -> None:
    commit = ArchiveCommit(3, "b", "archive", 9, (file(1, 5),), ("p",), {X: 4}, (ArchiveLoss(X, 1, 2),))
    text, digest = encode_commit(commit)
    assert decode_commit(text, "it") == (commit, digest)


@pytest.mark.parametrize("cut", [1, 2, 40, 60])
def test_a_torn_commit_is_seen(cut: int) -> None:
    text, _ = encode_commit(ArchiveCommit(1, "", "archive", 9, (file(1, 5),)))
    with pytest.raises(ArchiveDamaged, match="it is not what was written"):
        decode_commit(text[:-cut], "it")


def test_every_flipped_bit_is_seen() -> None:
    text, _ = encode_commit(ArchiveCommit(1, "", "archive", 9, (file(1, 5),)))
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= 4
        with pytest.raises(ArchiveDamaged):
            decode_commit(bytes(changed), "it")


def test_another_version_is_named() -> None:
    text, _ = encode_commit(ArchiveCommit(1, "", "archive", 9))
    other = text.splitlines()[0].replace(b'"v":1', b'"v":9')
    signed = other + b"\n" + xxhash.xxh3_128_hexdigest(other).encode() + b"\n"
    with pytest.raises(ArchiveError, match="has version 9, and this version of Antiphon knows version 1"):
        decode_commit(signed, "it")


def test_commits_must_follow_each_other() -> None:
    state = ArchiveState()
    one = state.next_commit("archive", 9, [file(1, 5)])
    state = state.after(one, "d")
    assert state.next(X) == 5
    with pytest.raises(ArchiveDamaged, match="does not follow"):
        state.after(ArchiveCommit(3, "d", "archive", 9), "e")
    with pytest.raises(ArchiveDamaged, match="does not follow"):
        state.after(ArchiveCommit(2, "x", "archive", 9), "e")
    with pytest.raises(ArchiveDamaged, match="numbers 6 to 8 of channel a behind"):
        state.after(state.next_commit("archive", 9, [file(6, 9)]), "e")
    with pytest.raises(ArchiveDamaged, match="behind"):
        state.after(state.next_commit("archive", 9, [file(4, 9)]), "e")


def test_a_join_puts_one_file_in_the_place_of_others() -> None:
    state = ArchiveState()
    for start in (1, 5, 9):
        state = state.after(state.next_commit("archive", 9, [file(start, start + 4)]), "d")
    state = state.after(state.next_commit("compact", 9, [file(1, 9, "joined")], ["1", "5"]), "d")
    assert [one.path for one in state.files[X]] == ["joined", "9"]
    assert state.next(X) == 13


def test_a_whole_commit_stands_for_all_before(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = ArchiveFolder(tmp_path_factory.mktemp("archive"))
    state = ArchiveState()
    for number in range(1, 2 * WHOLE_EVERY + 5):
        commit = state.next_commit(
            "archive", 9, [file(number, number + 1)], since={X: 1} if number == 1 else {}
        )
        digest = folder.add(commit)
        assert digest is not None
        state = state.after(commit, digest)
        assert folder.state() == state
    assert folder.add(commit) is None, "a number is taken once"
    for number in range(1, 2 * WHOLE_EVERY):
        folder._place(number).unlink()
    assert folder.state() == state
    folder._place(2 * WHOLE_EVERY + 2).unlink()
    with pytest.raises(ArchiveDamaged, match="is missing"):
        folder.state()


def test_a_name_of_any_length_is_a_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = ArchiveFolder(tmp_path_factory.mktemp("archive"))
    names = ["topic:" + "é" * 120, "topic:" + "é" * 119 + "e", "topic:a/../b", "topic:..", "topic:%2F"]
    paths = [folder.new_path(name, "a", "2026-11-20", 1) for name in names]
    assert len({path.split("/")[0] for path in paths}) == len(names)
    for path in paths:
        folder.place_of(path).parent.mkdir(parents=True)
        folder.place_of(path).write_bytes(b"")
        assert folder.place_of(path).resolve().is_relative_to(folder.root)
