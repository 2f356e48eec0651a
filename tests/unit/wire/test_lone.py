"""Lone messages: what is read and written in one go is what the long way reads and writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.batch import Batch
from antiphon.errors import ProtocolError
from antiphon.wire.commands import (
    CommandHeader,
    ConfirmItem,
    OutcomeCode,
    Publish,
    publish_buffers,
    read_command,
)
from antiphon.wire.frames import _LAYOUTS, CONFIRM, Confirm, encode_frame
from antiphon.wire.lone import lone_publish_buffers, read_lone_confirm, read_lone_publish

NUMBERS = st.integers(1, (1 << 64) - 2)
COMMANDS = st.fixed_dictionaries(
    {
        "session": st.integers(1, (1 << 128) - 1),
        "generation": st.integers(0, (1 << 32) - 1),
        "number": NUMBERS,
        "destination": st.integers(0, (1 << 64) - 1),
        "settings_version": st.integers(0, (1 << 32) - 1),
        "timestamp_ms": st.integers(0, (1 << 63) - 1),
        "body": st.binary(max_size=40),
    }
)


def long_way(data: bytes) -> tuple[CommandHeader, int] | None:
    """As it is read step by step; None if anything is wrong with it."""
    try:
        header, payload = read_command(data)
        publish = Publish.decode(payload)
        batch = Batch.decode(publish.batch)
    except ProtocolError:
        return None
    is_of_command = (batch.producer, batch.first_number, batch.count) == (
        header.session,
        header.number,
        header.count,
    )
    return (header, publish.destination) if is_of_command else None


def written(command: dict[str, int | bytes]) -> bytes:
    return b"".join(lone_publish_buffers(confirmed_through=0, **command)[0])  # type: ignore[arg-type]


@given(COMMANDS, st.integers(0, (1 << 64) - 1))
def test_a_lone_publish_is_written_as_the_long_way_writes_it(
    command: dict[str, int], confirmed_through: int
) -> None:
    batch = Batch.of_bodies(
        [command["body"]],  # type: ignore[list-item]
        command["session"],
        command["number"],
        command["timestamp_ms"],
    )
    obvious = publish_buffers(
        command["session"],
        command["generation"],
        command["number"],
        confirmed_through,
        command["destination"],
        command["settings_version"],
        batch.buffers(),
        1,
    )
    clever, size = lone_publish_buffers(confirmed_through=confirmed_through, **command)  # type: ignore[arg-type]
    assert b"".join(clever) == b"".join(obvious)
    assert size == sum(map(len, clever))


@given(COMMANDS)
def test_what_was_written_is_read(command: dict[str, int | bytes]) -> None:
    data = written(command)
    assert read_lone_publish(data) == long_way(data)
    assert read_lone_publish(memoryview(data)) is not None


@given(COMMANDS, st.integers(0), st.integers(1, 255))
def test_what_is_read_at_once_is_sound_in_every_respect(
    command: dict[str, int | bytes], place: int, change: int
) -> None:
    data = bytearray(written(command))
    data[place % len(data)] ^= change
    found = read_lone_publish(bytes(data))
    assert found is None or found == long_way(bytes(data))


@given(COMMANDS, st.integers(0))
def test_what_was_cut_short_or_is_too_long_is_left_to_others(
    command: dict[str, int | bytes], place: int
) -> None:
    data = written(command)
    assert read_lone_publish(data[: place % len(data)]) is None
    assert read_lone_publish(data + b"\0") is None


def test_a_command_that_says_that_itself_is_confirmed_is_left_to_others() -> None:
    buffers, _ = lone_publish_buffers(
        session=7, generation=1, number=4, confirmed_through=4, destination=5,
        settings_version=1, timestamp_ms=0, body=b"body",
    )  # fmt: skip
    assert read_lone_publish(b"".join(buffers)) is None


ITEMS = st.builds(
    ConfirmItem,
    st.integers(1, (1 << 63)),
    st.integers(1, (1 << 32) - 1),
    st.sampled_from([int(code) for code in OutcomeCode]),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(["", "", "why"]),
)
CONFIRMS = st.builds(
    Confirm,
    session=st.integers(0, (1 << 128) - 1),
    channel=st.sampled_from(["a", "orders", "", "Überall"]),
    items=st.lists(ITEMS, max_size=3).map(tuple),
)
FRAME_HEAD = 5


@given(CONFIRMS)
def test_a_lone_confirmation_is_read_as_its_layout_reads_it(confirm: Confirm) -> None:
    payload = encode_frame(confirm)[FRAME_HEAD:]
    lone = read_lone_confirm(payload)
    is_lone = len(confirm.items) == 1 and not confirm.items[0].text and confirm.channel.isascii()
    assert lone == ((confirm.session, confirm.channel, confirm.items[0]) if is_lone else None)


@given(CONFIRMS, st.data())
def test_of_a_damaged_confirmation_nothing_else_is_read(confirm: Confirm, data: st.DataObject) -> None:
    payload = bytearray(encode_frame(confirm)[FRAME_HEAD:])
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= 1 << data.draw(st.integers(0, 7))
    payload = payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload
    lone = read_lone_confirm(bytes(payload))
    if lone is not None:
        obvious = _LAYOUTS[CONFIRM].decode(bytes(payload))
        assert lone == (obvious.session, obvious.channel, obvious.items[0])
