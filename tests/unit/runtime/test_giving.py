"""What the storage does for other nodes: pieces of checkpoints, copies of records, files that stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.bus import effects as bus
from antiphon.bus.messages import digest_of
from antiphon.errors import NoSpace
from antiphon.ids import Mid
from antiphon.journal.format import checkpoint_name
from antiphon.journal.ports import Buffer
from tests.unit.runtime.test_space import Cellar, SmallDisk, play

STATE = bytes(range(256)) * 4


def read(cellar: Cellar) -> list[bus.CheckpointRead]:
    return [event for event in cellar.told if isinstance(event, bus.CheckpointRead)]


def written(cellar: Cellar) -> list[int]:
    return [event.n for event in cellar.told if isinstance(event, bus.CheckpointWritten)]


async def write_checkpoints(cellar: Cellar, *numbers: int) -> None:
    cellar.write(100)
    for n in numbers:
        cellar.storage.carry_out(bus.WriteCheckpoint(n, b"d" * 16, STATE, ()))
    await cellar.until(lambda: written(cellar) == list(numbers))


def files(cellar: Cellar) -> list[str]:
    return [name for name in cellar.disk.list_files() if name.startswith("checkpoint")]


def test_a_checkpoint_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cellar: Cellar) -> None:
        await write_checkpoints(cellar, 7)
        for offset in (0, 1_000):
            cellar.storage.carry_out(bus.ReadCheckpoint(7, offset, 24, 3))
        await cellar.until(lambda: len(read(cellar)) == 2)
        pieces = [(one.n, one.offset, bytes(one.data or b""), one.to) for one in read(cellar)]
        assert pieces == [(7, 0, STATE[:24], 3), (7, 1_000, STATE[1_000:1_024], 3)]

    play(story, tmp_path, monkeypatch)


def test_a_rotten_one_and_one_that_is_not_there_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        await write_checkpoints(cellar, 7)
        path = tmp_path / checkpoint_name(7)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        for n in (7, 8):
            cellar.storage.carry_out(bus.ReadCheckpoint(n, 0, 24, 3))
        await cellar.until(lambda: len(read(cellar)) == 2)
        assert [(one.n, one.data) for one in read(cellar)] == [(7, None), (8, None)]

    play(story, tmp_path, monkeypatch)


def test_what_is_held_stays_when_the_base_passes_it_and_goes_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        await write_checkpoints(cellar, 7, 8, 9, 10)
        cellar.storage.carry_out(bus.HoldCheckpoints(8))
        cellar.storage.carry_out(bus.ReleaseSpace(9))
        cellar.storage.flush()
        await cellar.until(lambda: files(cellar) == [checkpoint_name(n) for n in (8, 9, 10)])
        cellar.storage.carry_out(bus.ReadCheckpoint(8, 0, 24, 3))
        await cellar.until(lambda: read(cellar))
        assert read(cellar)[0].data is not None
        cellar.storage.carry_out(bus.HoldCheckpoints(0))
        cellar.storage.flush()
        await cellar.until(lambda: files(cellar) == [checkpoint_name(n) for n in (9, 10)])

    play(story, tmp_path, monkeypatch)


def test_a_copy_is_written_and_can_be_read_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cellar: Cellar) -> None:
        cellar.write(100)
        mid, payload = Mid(4, 5, 6), b"an envelope of another node"
        digest = digest_of(mid, 9, 1, payload)
        cellar.storage.carry_out(bus.Append(2, bus.CopyRecord(mid, 9, 1, digest, payload)))
        cellar.storage.flush()
        await cellar.until(lambda: cellar.synced >= 2)
        location = cellar.journal.payloads.copied(2)
        assert location is not None
        record = cellar.journal.payloads.record(location)
        assert (record.mid, record.ts, bytes(record.payload)) == (mid, 9, payload)

    play(story, tmp_path, monkeypatch)


def test_a_checkpoint_without_room_is_told_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(disk: SmallDisk, name: str, buffers: Sequence[Buffer]) -> None:
        raise NoSpace(f"there is no room for {name}")

    async def story(cellar: Cellar) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(SmallDisk, "write_whole", no_room)
            cellar.storage.carry_out(bus.WriteCheckpoint(7, b"d" * 16, STATE, ()))
            await cellar.until(lambda: bus.CheckpointFailed(7) in cellar.told)
        assert written(cellar) == []
        await write_checkpoints(cellar, 7)

    play(story, tmp_path, monkeypatch)
