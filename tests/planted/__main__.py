"""`python -m tests.planted BUG sim WORKLOAD ...`: the command with this bug in it, to replay a hunt."""

from __future__ import annotations

import sys

from antiphon.cli.main import main
from tests.planted.catalogue import BUGS, planted

if len(sys.argv) < 3 or sys.argv[1] not in BUGS:
    sys.exit(f"usage: python -m tests.planted BUG sim WORKLOAD ...\nbugs: {', '.join(BUGS)}")
with planted(sys.argv[1]):
    sys.exit(main(sys.argv[2:]))
