"""The settings of a destination, a JSON object in its CREATE.

A destination keeps the defaults, too: a version with other defaults makes the same of an old log.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

from antiphon.errors import DestinationError
from antiphon.names import CHANNELS_MAX, read_channels

CONSUMED: Final = "consumed"

DEAD_QUEUE: Final = "_DMQ"
DEAD_AND_EXPIRED: Final = "_DMQ+expired"
NOWHERE: Final = "nowhere"
_DEAD_TO: Final = (DEAD_QUEUE, DEAD_AND_EXPIRED, NOWHERE)
"""The values of `dead_to`: dead messages go to the channel's dead queue; expired ones, too; or all are
dropped."""

REDELIVERY_LIMIT = 10
"""Of a queue, unless it has another."""

DEDUP_WINDOW_S = 600
"""How long a destination remembers the ids of messages, unless it is told otherwise; at most a week."""
DEDUP_WINDOW_S_MAX: Final = 604_800

TOPIC_DEFAULTS: Final[dict[str, Any]] = {
    "retention": 3_600,
    "retention_bytes": 1 << 30,
    "redelivery_limit": 0,
    "redelivery_delay": 0,
    "dead_to": DEAD_QUEUE,
    "dedup_window": DEDUP_WINDOW_S,
}
QUEUE_DEFAULTS: Final[dict[str, Any]] = {
    "retention": CONSUMED,
    "redelivery_limit": REDELIVERY_LIMIT,
    "redelivery_delay": 0,
    "dead_to": DEAD_QUEUE,
    "dedup_window": DEDUP_WINDOW_S,
    "exclusive": False,
}

DEAD_QUEUE_SETTINGS: Final = '{"redelivery_limit":0}'
"""A dead message does not die again."""

LOG_TOPIC_SETTINGS: Final = '{"dedup_window":0,"retention":604800,"retention_bytes":67108864}'
"""Events are kept for a week, as long as they are among the last 64 MiB of their channel."""

_REDELIVERIES_MAX: Final = 1_000_000
REDELIVERY_DELAY_S_MAX: Final = 3_600
_SECONDS_MAX: Final = 10**10
_BYTES_MAX: Final = (1 << 63) - 1
_TEXT_MAX: Final = 40
_SETTINGS_MAX: Final = 4_096


class Retention(NamedTuple):
    """How long, and how many bytes, a topic keeps messages that no subscription needs."""

    age_ms: int
    bytes: int


def read_settings(text: str, *, is_topic: bool) -> dict[str, Any]:
    """The wanted settings; raises DestinationError for a setting that cannot be so, naming it."""
    if len(text) > _SETTINGS_MAX or "[" in text or text.count("{") > 1:
        # How deep a text may nest for Python depends on the caller, and replicas must agree.
        raise DestinationError(
            f"the settings are not a flat JSON object of at most {_SETTINGS_MAX:,} characters"
        )
    try:
        given = json.loads(text) if text else {}
    except ValueError:
        raise DestinationError("the settings are not JSON") from None
    if not isinstance(given, dict):
        raise DestinationError("the settings are not a JSON object")
    settings: dict[str, Any] = {}
    for name, value in sorted(given.items()):
        if name == "channels":
            settings[name] = _channels(value)
        elif name == "retention":
            settings[name] = _retention(value, is_topic=is_topic)
        elif name == "retention_bytes" and is_topic:
            settings[name] = _retention_bytes(value)
        elif name == "redelivery_limit":
            settings[name] = _redelivery_limit(value)
        elif name == "redelivery_delay":
            settings[name] = _redelivery_delay(value)
        elif name == "dead_to":
            settings[name] = _dead_to(value)
        elif name == "dedup_window":
            settings[name] = _dedup_window(value)
        elif name == "exclusive" and not is_topic:
            settings[name] = _exclusive(value)
        else:
            known = ", ".join(TOPIC_DEFAULTS if is_topic else QUEUE_DEFAULTS)
            kind = "topic" if is_topic else "queue"
            raise DestinationError(f"a {kind} has no setting {_shown(name)}; it has {known}")
    check_together(settings)
    return settings


def check_together(settings: dict[str, Any]) -> None:
    """Raise DestinationError for settings that exclude each other."""
    if settings.get("exclusive") and "channels" in settings:
        raise DestinationError(
            "an exclusive queue lives in one channel: the parts of several would have a consumer each"
        )


def complete(settings: dict[str, Any], *, is_topic: bool) -> dict[str, Any]:
    """The settings, with the defaults for the others."""
    if is_topic:
        return TOPIC_DEFAULTS | {"dedup_window": DEDUP_WINDOW_S} | settings
    limits = {"redelivery_limit": REDELIVERY_LIMIT, "dedup_window": DEDUP_WINDOW_S}
    return QUEUE_DEFAULTS | limits | settings


def completed(text: str, *, is_topic: bool) -> str:
    """The one spelling of the wanted settings with the defaults for the others; raises as `read_settings`."""
    return _completed(text, is_topic, REDELIVERY_LIMIT, DEDUP_WINDOW_S)


@lru_cache(maxsize=256)
def _completed(text: str, is_topic: bool, *defaults: float) -> str:
    # Of very many destinations most have the same settings. The defaults differ in runs of the simulator.
    return spell(complete(read_settings(text, is_topic=is_topic), is_topic=is_topic))


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


def dedup_window_of(settings: str) -> int:
    """For how long the destination remembers the ids of messages, in ms of log time; 0: it does not."""
    seconds: float = json.loads(settings).get("dedup_window", 0)
    return round(seconds * 1_000)


def channels_of(settings: str) -> tuple[str, ...]:
    """The channels of the spanning destination that this is a part of; empty if the destination is whole."""
    if '"channels"' not in settings:
        return ()
    return read_channels(json.loads(settings)["channels"])


class ReturnRules(NamedTuple):
    """What becomes of the messages of a destination that come back."""

    # Messages that came back more often are dead; 0: never.
    redelivery_limit: int
    dead_to: str
    # How long a message that came back for the first time waits.
    delay_ms: int = 0

    def wait_ms(self, count: int) -> int:
        """How long a message that came back for the count-th time waits: twice as long as the time before."""
        longest_ms = REDELIVERY_DELAY_S_MAX * 1_000
        return min(self.delay_ms << min(count - 1, 32), longest_ms) if self.delay_ms else 0


def return_rules_of(settings: dict[str, Any]) -> ReturnRules:
    return ReturnRules(
        settings.get("redelivery_limit", 0),
        settings.get("dead_to", DEAD_QUEUE),
        round(settings.get("redelivery_delay", 0) * 1_000),
    )


class TopicRules(NamedTuple):
    retention: Retention
    returns: ReturnRules


class QueueRules(NamedTuple):
    returns: ReturnRules
    # Is there one consumer at a time that receives, for which the others wait?
    is_one_by_one: bool


@lru_cache(maxsize=256)
def topic_rules_of(settings: str) -> TopicRules:
    given = json.loads(settings)
    return TopicRules(retention_of(given), return_rules_of(given))


@lru_cache(maxsize=256)
def queue_rules_of(settings: str) -> QueueRules:
    given = json.loads(settings)
    return QueueRules(return_rules_of(given), given.get("exclusive", False))


def _redelivery_limit(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _REDELIVERIES_MAX:
        raise DestinationError(
            f"redelivery_limit is a number of redeliveries, or 0 for no limit; it was {_shown(value)}"
        )
    return value


def _redelivery_delay(value: Any) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= REDELIVERY_DELAY_S_MAX:
        raise DestinationError(
            f"redelivery_delay is 0 to {REDELIVERY_DELAY_S_MAX:,} seconds; it was {_shown(value)}"
        )
    return int(value) if value == int(value) else float(value)


def _dedup_window(value: Any) -> int | float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= DEDUP_WINDOW_S_MAX:
        raise DestinationError(f"dedup_window is 0 to {DEDUP_WINDOW_S_MAX:,} seconds; it was {_shown(value)}")
    return int(value) if value == int(value) else float(value)


def _exclusive(value: Any) -> bool:
    if not isinstance(value, bool):
        raise DestinationError(f"exclusive is true or false; it was {_shown(value)}")
    return value


def _channels(value: Any) -> str:
    """The channels of a spanning destination, of which this one is a part."""
    channels = read_channels(value) if isinstance(value, str) else ()
    is_several = 1 < len(set(channels)) == len(channels) <= CHANNELS_MAX
    if not is_several or not all(channels):
        raise DestinationError(f"channels are the names of several channels; it was {_shown(value)}")
    return str(value)


def _dead_to(value: Any) -> str:
    if value not in _DEAD_TO:
        words = ", ".join(f'"{word}"' for word in _DEAD_TO)
        raise DestinationError(f"dead_to is one of {words}; it was {_shown(value)}")
    return str(value)


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
