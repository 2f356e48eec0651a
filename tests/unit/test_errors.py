"""The tree of errors, and its way over the wire."""

from __future__ import annotations

import copy
import re

import pytest

from antiphon import errors
from antiphon.errors import AntiphonError, error_from_code


def all_errors() -> list[type[AntiphonError]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AntiphonError)]


def test_every_error_has_a_code_of_its_own_that_starts_with_its_parents() -> None:
    codes = [cls.code for cls in all_errors()]
    assert len(set(codes)) == len(codes)
    for cls in all_errors():
        (parent, *_) = cls.__bases__
        if issubclass(parent, AntiphonError) and parent is not AntiphonError:
            assert cls.code.startswith(f"{parent.code}.")


def test_the_drawing_shows_every_error_once_in_the_order_of_the_file() -> None:
    drawn = re.findall(r"\+-- (\w+)", errors.__doc__ or "")
    assert drawn == [cls.__name__ for cls in all_errors() if cls is not AntiphonError]


@pytest.mark.parametrize("cls", all_errors())
def test_an_error_comes_back_from_its_code(cls: type[AntiphonError]) -> None:
    error = error_from_code(cls.code, "it did not work")
    assert type(error) is cls
    assert str(error) == error.text == "it did not work"


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("publish.refused.by_moonlight", errors.PublishRefused),
        ("publish.something_newer", errors.PublishError),
        ("weather", AntiphonError),
        ("", AntiphonError),
    ],
)
def test_an_unknown_code_becomes_its_nearest_family(code: str, family: type[AntiphonError]) -> None:
    assert type(error_from_code(code, "")) is family


def test_facts_of_an_error_have_defaults_when_only_the_text_came() -> None:
    uncertain = error_from_code("publish.uncertain", "lost")
    assert isinstance(uncertain, errors.PublishUncertain)
    assert (uncertain.message_id, uncertain.message_ids, uncertain.confirmed) == (None, (), 0)
    damaged = error_from_code("node.damaged", "bad")
    assert isinstance(damaged, errors.Damaged)
    assert (damaged.file, damaged.offset) == ("", 0)


@pytest.mark.parametrize(
    "error",
    [
        errors.Damaged("segment-3", 4096, "the digest does not match"),
        errors.PublishUncertain("lost", message_ids=["ID:1", "ID:2"], confirmed=5),
        errors.ConnectionFailed("nobody answers", ["127.0.0.1:7420"]),
        errors.ProtocolError("too short"),
    ],
)
def test_an_error_can_be_copied_to_another_process(error: AntiphonError) -> None:
    again = copy.deepcopy(error)
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__


def test_a_timeout_is_also_pythons() -> None:
    with pytest.raises(TimeoutError):
        raise errors.Timeout("no answer within 5 s")


def test_a_damaged_file_is_named_in_the_text() -> None:
    error = errors.Damaged("segment-3", 4096, "the digest does not match")
    assert str(error) == "segment-3 is damaged at byte 4096: the digest does not match"
