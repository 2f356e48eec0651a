"""Damage to the files of a real server: repaired and said, or refused with file and offset; never served."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import Server, antiphon

MESSAGES = [f"message number {number:03} of the damaged queue" for number in range(40)]


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with confirmed messages, left behind by a kill -9."""
    data = tmp_path_factory.mktemp("damage") / "data"
    with Server(data) as server:
        sent = antiphon("send", "queue:damaged", url=server.url, stdin="\n".join(MESSAGES))
        assert sent.returncode == 0
        server.kill()
    return data


@pytest.fixture
def data(intact: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "data"
    shutil.copytree(intact, copy)
    yield copy
    shutil.rmtree(copy)


def segment_of(data: Path) -> Path:
    (segment,) = [path for path in data.glob("segment-*") if MESSAGES[0].encode() in path.read_bytes()]
    return segment


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def outcome(data: Path) -> tuple[list[str] | None, str]:
    """What the server serves after the damage (None: it refused to start), and what it said."""
    try:
        with Server(data) as server:
            received = antiphon("receive", "queue:damaged", "--json", "--timeout", "0.5", url=server.url)
            return [
                json.loads(line)["body"] for line in received.stdout.splitlines()
            ], server.errors.read_text()
    except AssertionError:
        return None, data.with_name("data.stderr").read_text()


def refusal(data: Path, words: str) -> re.Match[str]:
    found = re.search(r"antiphon: (\S+) is damaged at byte (\d+): .+", words)
    assert found is not None, words
    assert (data / found[1]).exists()
    return found


def test_a_flipped_byte_of_a_message_is_refused_by_file_and_offset(data: Path) -> None:
    segment = segment_of(data)
    content = segment.read_bytes()
    for message in (MESSAGES[0], MESSAGES[-1]):
        # The last copy: a small envelope is part of the order, too, of which there are two copies.
        offset = content.rindex(message.encode()) + 5
        flip(segment, offset)
        bodies, words = outcome(data)
        assert bodies is None
        found = refusal(data, words)
        assert found[1] == segment.name
        assert int(found[2]) <= offset
        flip(segment, offset)
        data.with_name("data.stderr").unlink()
    assert outcome(data)[0] == MESSAGES


def used_blocks(segment: Path) -> list[int]:
    """Offsets of 4 KiB pages in use before the data; headers and both copies of the order."""
    content = segment.read_bytes()
    first_message = content.rindex(MESSAGES[0].encode())
    return [at for at in range(0, first_message - 4096, 4096) if any(content[at : at + 4096])]


def test_a_flipped_byte_in_one_copy_of_the_order_is_repaired_and_said(data: Path) -> None:
    segment = segment_of(data)
    before = segment.read_bytes()
    repaired = 0
    for page in used_blocks(segment):
        flip(segment, page + 40)
        bodies, words = outcome(data)
        if bodies is None:
            refusal(data, words)
            segment.write_bytes(before)
        else:
            assert bodies == MESSAGES
            assert segment.name in words
            repaired += 1
            break
    assert repaired == 1


@pytest.mark.parametrize("change", [lambda size: size - 4096, lambda size: size // 2, lambda size: 0])
def test_a_segment_that_is_too_short_is_refused(data: Path, change: Callable[[int], int]) -> None:
    segment = segment_of(data)
    with segment.open("r+b") as file:
        file.truncate(change(segment.stat().st_size))
    bodies, words = outcome(data)
    assert bodies is None
    assert refusal(data, words)[1] == segment.name


def test_a_segment_that_is_gone_is_refused(data: Path) -> None:
    segment = segment_of(data)
    segment.unlink()
    bodies, words = outcome(data)
    assert bodies is None
    assert segment.name in words


def test_a_wiped_superblock_is_refused_clearly(data: Path) -> None:
    superblock = data / "superblock"
    superblock.write_bytes(bytes(superblock.stat().st_size))
    bodies, words = outcome(data)
    assert bodies is None
    assert "superblock" in words
    assert "Traceback" not in words
