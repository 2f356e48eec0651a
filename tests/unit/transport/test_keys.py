"""The group key: its file, its text, and that it never shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import NodeError
from antiphon.transport.key_file import generate_key_file, read_key_file
from antiphon.transport.keys import GroupKeys, parse_keys

ONE = "11" * 32
TWO = "22" * 32


def test_a_generated_key_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "bus.key"
    keys = generate_key_file(path, key_id=3)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key_file(path) == keys
    assert keys.current == 3 and len(keys.by_id[3]) == 32


def test_two_generated_keys_differ(tmp_path: Path) -> None:
    assert generate_key_file(tmp_path / "a") != generate_key_file(tmp_path / "b")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "bus.key"
    keys = generate_key_file(path)
    with pytest.raises(NodeError, match="cannot be made"):
        generate_key_file(path)
    assert read_key_file(path) == keys


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "bus.key"
    generate_key_file(path)
    path.chmod(mode)
    with pytest.raises(NodeError, match="chmod 600"):
        read_key_file(path)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"bus\.key"):
        read_key_file(tmp_path / "bus.key")


def test_the_first_key_is_used_and_each_is_accepted() -> None:
    keys = parse_keys(f"# being changed\n2 {TWO}\n\n1 {ONE}\n")
    assert keys.current == 2
    assert keys.by_id == {1: bytes.fromhex(ONE), 2: bytes.fromhex(TWO)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        ONE,
        f"1 {ONE[:-1]}",
        f"1 {ONE[:-2]}zz",
        f"one {ONE}",
        f"256 {ONE}",
        f"-1 {ONE}",
        f"1 {ONE}\n1 {TWO}",
        f"1 {ONE}\n2 {TWO}\n3 {ONE}",
    ],
)
def test_a_text_that_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(NodeError) as caught:
        parse_keys(text)
    assert "11" not in str(caught.value)


def test_a_key_file_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bus.key"
    for content in (b"\xff" * 10, b"1 " + b"1" * 5000):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(NodeError, match=r"bus\.key"):
            read_key_file(path)


def test_keys_do_not_show_in_their_repr() -> None:
    assert repr(GroupKeys.of([(1, b"secret" + b"." * 26)])) == "GroupKeys(ids=[1], current=1)"
