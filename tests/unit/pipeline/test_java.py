"""Whether Spark can start is said in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import LocalError
from antiphon.pipeline import java


def fake(folder: Path, says: str, code: int = 0) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no idea", None),
    ],
)
def test_its_version_is_read(tmp_path: Path, says: str, version: int | None) -> None:
    assert java.version_of(fake(tmp_path, says)) == version


def test_a_java_that_is_missing_too_old_or_broken_is_told_with_the_command_that_helps(tmp_path: Path) -> None:
    help_ = "on Debian or Ubuntu: sudo apt-get install default-jre-headless"
    told = java.why_not({"PATH": str(tmp_path / "nowhere")})
    assert told == f"Spark needs Java 17 or later, and there is none; {help_}"
    old = fake(tmp_path / "old", 'openjdk version "11.0.2"')
    told = java.why_not({"PATH": str(old.parent)})
    assert told == f"Spark needs Java 17 or later, and {old} is Java 11; {help_}"
    broken = fake(tmp_path / "broken", "", 1)
    told = java.why_not({"JAVA_HOME": str(broken.parents[1]), "PATH": str(old.parent)})
    assert told is not None and f"{broken} does not run (JAVA_HOME names it)" in told
    new = fake(tmp_path / "new", 'openjdk version "17.0.1"')
    assert java.why_not({"PATH": str(new.parent)}) is None


def test_whoever_needs_it_is_stopped_with_that_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(LocalError, match="Spark needs Java 17 or later"):
        java.require()


def test_setting_up_installs_nothing_where_somebody_chose_a_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> str:
        raise AssertionError("it was not asked for")

    monkeypatch.setattr(java, "install", never)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert java.main() == 0
    assert "Everything but the pipeline works without" in capsys.readouterr().err


def test_setting_up_says_the_command_where_it_may_not_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java.main() == 0
    told = capsys.readouterr().err
    assert "Java was not installed" in told and "sudo apt-get install default-jre-headless" in told


@pytest.mark.parametrize("user", [0, 1000])
def test_setting_up_installs_a_java_for_root_and_tells_others_the_command(
    user: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With an `apt-get` of our own, and nothing else in PATH: nothing is really installed."""
    ready = fake(tmp_path / "ready", 'openjdk version "17.0.15" 2025-04-15')
    apt, asked = tmp_path / "bin" / "apt-get", tmp_path / "asked"
    apt.parent.mkdir()
    apt.write_text(
        f'#!/bin/sh\necho "$@" >>{asked}\n'
        f'case "$*" in *{java.PACKAGE}*) /bin/ln -s {ready} {apt.parent}/java ;; esac\n'
    )
    apt.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(apt.parent))
    monkeypatch.setattr("os.geteuid", lambda: user)
    assert java.main() == 0
    told = capsys.readouterr().err
    if user == 0:
        assert asked.read_text().splitlines() == [
            "-qq update",
            f"-qq install -y --no-install-recommends {java.PACKAGE}",
        ]
        assert told == f"installing {java.PACKAGE}, which Spark needs\n"
        assert java.why_not() is None
    else:
        assert not asked.exists()
        assert "sudo apt-get install default-jre-headless. Everything but the pipeline works" in told
