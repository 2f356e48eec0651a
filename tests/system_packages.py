"""Programs that tests need and pip does not bring: found, or installed, or the test is skipped."""

from __future__ import annotations

import shutil
from functools import cache

import pytest

from antiphon.pipeline import java

# Tried once for all tests.
_install = cache(java.install)


def require_package(command: str, package: str) -> None:
    """Go on only if `command` can be run. Root on Debian gets its package installed, others are told how."""
    if shutil.which(command) is None and (reason := _install(package)):
        pytest.skip(f"needs {command!r}, and {reason}. On Debian: apt-get install {package}")
