"""`make demo` tells its story to the end, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bus_members import NO_MULTICAST, has_multicast

DEMO = Path(__file__).parents[2] / "examples/demo.py"


@pytest.mark.skipif(not has_multicast(), reason=NO_MULTICAST)
def test_the_demo_ends_with_every_order_billed_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--seconds", "0.5"],
        capture_output=True,
        text=True,
        timeout=150,
        env={"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 missing, 0 twice" in done.stdout
    assert "power cut" in done.stdout
    assert list(tmp_path.iterdir()) == [], "the demo left files behind"
