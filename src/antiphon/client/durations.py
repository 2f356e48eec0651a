"""Durations as applications give them: seconds, or a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypeAlias

from antiphon.errors import LocalError

Duration: TypeAlias = float | timedelta


def seconds(value: Duration, what: str) -> float:
    """The same in seconds; LocalError when it is not a time that can be waited for."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < math.inf:
        raise LocalError(f"{what} is a number of seconds or a timedelta, and not negative; it was {value!r}")
    return float(given)
