"""Java: Spark needs it, and pip does not install it.

`python -m antiphon.pipeline.java`, which `make setup` runs, installs it; nothing else here installs anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from antiphon.errors import LocalError

VERSION_MIN: Final = 17
PACKAGE: Final = "default-jre-headless"
COMMAND: Final = f"apt-get install {PACKAGE}"

ANSWER_SECONDS: Final = 60
INSTALL_SECONDS: Final = 600

# 17.0.15, 21, and 1.8.0 of the old way of counting.
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The Java that Spark would start: that of JAVA_HOME, or the first in PATH."""
    if home := environment.get("JAVA_HOME"):
        return Path(home, "bin", "java")
    found = shutil.which("java", path=environment.get("PATH"))
    return None if found is None else Path(found)


def version_of(java: Path) -> int | None:
    """The first number of its version; None if it does not run or does not say."""
    try:
        asked = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    told = _VERSION.search(asked.stderr + asked.stdout)
    return int(told[1]) if told and asked.returncode == 0 else None


def why_not(environment: Mapping[str, str] = os.environ) -> str | None:
    """Why Spark cannot start here, with the command that helps, in one sentence; None when it can."""
    java = find(environment)
    if java is None:
        found = "there is none"
    else:
        version = version_of(java)
        if version is not None and version >= VERSION_MIN:
            return None
        found = f"{java} does not run" if version is None else f"{java} is Java {version}"
        if environment.get("JAVA_HOME"):
            found += " (JAVA_HOME names it)"
    return f"Spark needs Java {VERSION_MIN} or later, and {found}; on Debian or Ubuntu: sudo {COMMAND}"


def require() -> None:
    """Raise unless Spark can start here."""
    if (reason := why_not()) is not None:
        raise LocalError(reason)


def install(package: str = PACKAGE) -> str | None:
    """Install a package of Debian's, Java by default; why that was impossible, or None."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return "only root on Debian can have it installed from here"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
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
    return None


def main() -> int:
    """The program of `make setup`. Without Java all but the pipeline works, so this never fails."""
    if why_not() is None:
        return 0
    if find() is None and not os.environ.get("JAVA_HOME"):
        print(f"installing {PACKAGE}, which Spark needs", file=sys.stderr)
        if (trouble := install()) is not None:
            print(f"Java was not installed: {trouble}", file=sys.stderr)
    if (reason := why_not()) is not None:
        print(f"{reason}. Everything but the pipeline works without.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
