"""What all peers together may take."""

from __future__ import annotations

import resource

import pytest

from antiphon.runtime.limits import DESCRIPTORS_RESERVED, Arrivals, KeptBytes, connections_possible


def test_in_a_line_the_first_has_to_go_when_there_are_too_many() -> None:
    line = Arrivals(2)
    assert [line.enter(conn) for conn in (1, 2, 3)] == [None, None, 1]
    line.leave(1)
    assert line.enter(4) == 2
    line.leave(2)
    line.leave(3)
    assert line.enter(5) is None
    assert len(line) == 2


def test_what_is_kept_adds_up() -> None:
    kept = KeptBytes()
    kept.note(1, 10)
    kept.note(2, 30)
    kept.note(3, 20)
    kept.note(1, 15)
    assert (kept.total, kept.oldest, kept.largest, list(kept)) == (65, 1, 2, [1, 2, 3])
    kept.note(1, 5, began=True)
    kept.note(2, 0)
    kept.note(4, 0)
    assert (kept.total, kept.oldest, list(kept)) == (25, 3, [3, 1])


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "possible", "asked_for"),
    [
        (20_000, 20_000, 10_000, None),
        (1_024, 4_096, 4_096 - DESCRIPTORS_RESERVED, 4_096),
        (1_024, 1 << 20, 10_000, 10_000 + DESCRIPTORS_RESERVED),
        (1_024, INFINITE, 10_000, 10_000 + DESCRIPTORS_RESERVED),
        (INFINITE, INFINITE, 10_000, None),
        (64, 64, 1, 64),
    ],
)
def test_there_are_as_many_connections_as_the_process_may_have_files_and_some_to_spare(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, possible: int, asked_for: int | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert connections_possible(10_000) == possible
    assert asked == ([(asked_for, hard)] if asked_for is not None else [])
