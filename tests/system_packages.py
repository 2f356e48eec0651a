"""Programs that tests need and pip does not bring: found, or installed, or the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest

INSTALL_SECONDS = 300


def require_package(command: str, package: str) -> None:
    """Go on only if `command` can be run. Root on Debian gets its package installed, others are told how."""
    if shutil.which(command) is None and (reason := _install(package)):
        pytest.skip(f"needs {command!r}, and {reason}. On Debian: apt-get install {package}")


@cache
def _install(package: str) -> str:
    """Install a Debian package; returns why that was impossible, or nothing. Tried once for all tests."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "only root on Debian can have it installed from here"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
        try:
            done = subprocess.run(
                ["apt-get", "-qq", *words],
                env=environment,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} did not end within {INSTALL_SECONDS} s"
        if done.returncode:
            return f"apt-get {words[0]} failed: {done.stderr.strip()}"
    return ""
