"""The settings of a destination, a JSON object in its CREATE.

A destination keeps the defaults, too: a version with other defaults makes the same of an old log.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from antiphon.errors import DestinationError

CONSUMED: Final = "consumed"

TOPIC_DEFAULTS: Final[dict[str, Any]] = {"retention": 3_600, "retention_bytes": 1 << 30}
QUEUE_DEFAULTS: Final[dict[str, Any]] = {"retention": CONSUMED}

_SECONDS_MAX: Final = 10**10
_BYTES_MAX: Final = (1 << 63) - 1
_TEXT_MAX: Final = 40


class Retention(NamedTuple):
    """How long, and how many bytes, a topic keeps messages that no subscription needs."""

    age_ms: int
    bytes: int


def read_settings(text: str, *, is_topic: bool) -> dict[str, Any]:
    """The wanted settings; raises DestinationError for a setting that cannot be so, naming it."""
    try:
        given = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise DestinationError("the settings are not JSON") from None
    if not isinstance(given, dict):
        raise DestinationError("the settings are not a JSON object")
    settings = {}
    for name, value in sorted(given.items()):
        if name == "retention":
            settings[name] = _retention(value, is_topic=is_topic)
        elif name == "retention_bytes" and is_topic:
            settings[name] = _retention_bytes(value)
        else:
            known = ", ".join(TOPIC_DEFAULTS if is_topic else QUEUE_DEFAULTS)
            kind = "topic" if is_topic else "queue"
            raise DestinationError(f"a {kind} has no setting {_shown(name)}; it has {known}")
    return settings


def complete(settings: dict[str, Any], *, is_topic: bool) -> dict[str, Any]:
    """The settings, with the defaults for the others."""
    return (TOPIC_DEFAULTS if is_topic else QUEUE_DEFAULTS) | settings


def spell(settings: dict[str, Any]) -> str:
    """The one spelling of these settings."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def difference(wanted: dict[str, Any], there: dict[str, Any]) -> str | None:
    """The first wanted setting that is another one there, in words."""
    for name, value in wanted.items():
        if there.get(name) != value:
            return f"its {name} is {there.get(name)}, not {value}"
    return None


def retention_of(settings: dict[str, Any]) -> Retention:
    age = settings["retention"]
    return Retention(0 if age == CONSUMED else round(age * 1_000), settings["retention_bytes"])


def _retention(value: Any, *, is_topic: bool) -> int | float | str:
    if value == CONSUMED:
        return CONSUMED
    if not is_topic:
        raise DestinationError(f'the retention of a queue is "{CONSUMED}"; it was {_shown(value)}')
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _SECONDS_MAX:
        raise DestinationError(f'retention is "{CONSUMED}" or a number of seconds; it was {_shown(value)}')
    return int(value) if value == int(value) else value


def _retention_bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _BYTES_MAX:
        raise DestinationError(f"retention_bytes is a number of bytes; it was {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."
