"""Stories: what nodes say to each other, compared line by line with what was recorded.

A story is a script in `stories/`, its transcript lies beside it. After a change that is meant:

    ANTIPHON_RECORD=1 pytest tests/transcripts

rewrites the transcripts. Read the difference before it is committed: it is what changed in the protocol.
"""

from __future__ import annotations

import difflib
import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.transcripts.stage import Stage, calm_chance

STORIES = Path(__file__).parent / "stories"
NOTES = Path(__file__).parents[2] / "docs" / "design"
NAMES = sorted(path.stem for path in STORIES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_a_story_goes_as_it_was_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calm_chance(monkeypatch)
    story = import_module(f"tests.transcripts.stories.{name}")
    stage = Stage(story.__doc__ or "", **getattr(story, "SETTINGS", {}))
    story.play(stage)
    path = STORIES / f"{name}.txt"
    if os.environ.get("ANTIPHON_RECORD"):
        path.write_text(stage.text(), encoding="utf-8")
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    difference = difflib.unified_diff(
        expected.splitlines(), stage.text().splitlines(), "recorded", "played", lineterm="", n=5
    )
    assert stage.text() == expected, f"{name} goes otherwise now:\n" + "\n".join(difference)


def test_every_transcript_has_its_story() -> None:
    assert [path.stem for path in sorted(STORIES.glob("*.txt"))] == NAMES


def test_the_design_notes_tell_of_every_story_and_of_no_other() -> None:
    told = re.findall(
        r"`(\w+)\.txt`", "".join(note.read_text(encoding="utf-8") for note in NOTES.glob("*.md"))
    )
    assert sorted(set(told)) == NAMES
