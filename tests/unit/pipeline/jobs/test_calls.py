"""The jobs as functions: what is missing or wrong is one sentence, before Spark is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import AntiphonError, ArchiveError, InvalidOption, LocalError
from antiphon.pipeline import archive, archive_files, audit, replay
from antiphon.pipeline import session as sessions

NOWHERE = "antiphon://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def started(*_: object) -> Iterator[None]:
        yield
        raise AssertionError("Spark was started")

    monkeypatch.setattr(sessions, "spark_session", started)


def jobs(folder: Path) -> list[Callable[[], Any]]:
    return [
        lambda: archive(NOWHERE, ["topic:x"], folder, timeout_s=0),
        lambda: audit(["topic:x"], folder, NOWHERE, timeout_s=0),
        lambda: replay(NOWHERE, "topic:y", folder, timeout_s=0),
    ]


def test_without_the_extra_each_says_which_one_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sessions, "package_version", lambda name: None)
    for job in jobs(tmp_path):
        with pytest.raises(LocalError, match=r"pyspark is not installed: pip install 'antiphon\[spark\]'"):
            job()


def test_a_cluster_or_an_archive_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    for job in jobs(tmp_path / "archive"):
        with pytest.raises(AntiphonError, match=r"no server could be reached|is no archive"):
            job()
    assert not (tmp_path / "archive").exists()
    with pytest.raises(ArchiveError, match="is no archive"):
        archive_files(tmp_path)
    with pytest.raises(InvalidOption, match="servers is a list of host:port"):
        archive("http://user:secret@x/y", ["topic:x"], tmp_path)
