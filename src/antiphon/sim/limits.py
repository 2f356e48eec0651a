"""Limits: the numbers in the code that no profile names, drawn for each run, tiny ones too.

A table of sixteen thousand rows is never full within a run, and its end is met once in a month of real
traffic. So in most runs some of these numbers are small. No promise may depend on them: what does not fit is
asked for again, told as uncertain, or refused with words.

The numbers are drawn from the seed alone, beside everything else that a run draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Final, NamedTuple


class DrawnLimit(NamedTuple):
    """A number of a module, and its values in runs."""

    module: str
    name: str
    choices: tuple[int, ...]


LIMITS: Final[dict[str, DrawnLimit]] = {
    "outcomes": DrawnLimit("message_manager.state.outcomes", "OUTCOMES_MAX", (8, 16, 64)),
    "outcomes in a page": DrawnLimit("message_manager.state.outcomes", "PAGE_MAX", (1, 3)),
    "outcomes of a session": DrawnLimit("message_manager.state.sessions", "RECORDS_MAX", (2, 4, 16)),
    "outcomes of before": DrawnLimit("message_manager.manager", "_OF_BEFORE_MAX", (0, 2)),
    "early outcomes": DrawnLimit("bus.producer", "EARLY_MAX", (0, 1, 4)),
    "entries ahead": DrawnLimit("bus.log", "AHEAD_MAX", (0, 1, 4)),
    "consumers that went": DrawnLimit("message_manager.delivery.delivery", "_GONE_REMEMBERED", (1, 4)),
    "ranges that are ready": DrawnLimit("message_manager.delivery.dispatcher", "RANGES_READY", (1, 3)),
    "spare runs": DrawnLimit("message_manager.delivery.consumers", "_RUNS_SPARE", (0, 1)),
    "rows to tidy": DrawnLimit("message_manager.state.destinations.index", "_TIDY_ROWS_MIN", (1, 4)),
    "ranges of a topic": DrawnLimit("message_manager.state.destinations.topic", "RANGES_FEW", (2,)),
    "marks of a topic": DrawnLimit("message_manager.state.destinations.topic", "MARKS_MAX", (2,)),
    "marks of time": DrawnLimit("message_manager.state.log_times", "MARKS_MAX", (4, 16)),
    "bytes of pages at once": DrawnLimit("message_manager.range_reads", "AT_ONCE_BYTES", (1,)),
    "questions that wait": DrawnLimit("message_manager.questions", "WAITING_MAX", (1, 4)),
    "records that are mended": DrawnLimit("message_manager.mending", "ASKED_AT_ONCE", (1,)),
    "records that were read": DrawnLimit("journal.records", "_REMEMBERED_MAX", (1,)),
    "few ranges": DrawnLimit("ranges", "_FEW", (1, 2)),
    "requests that were closed": DrawnLimit("client.core.client", "CLOSED_REMEMBERED", (1,)),
    "marks of transactions": DrawnLimit("message_manager.state.transactions", "MARKS_MAX", (2, 8)),
    "marks apart": DrawnLimit("bus.marking", "MARKS_APART_MS", (1, 100)),
    "ids of a destination": DrawnLimit("message_manager.state.known_ids", "IDS_MAX", (1, 3)),
    "ids of a port": DrawnLimit("ids", "COUNT_MAX", (1, 2, 5)),
    "buckets of keys": DrawnLimit("message_manager.delivery.message_groups", "BUCKETS", (1, 3)),
    "rows with keys at once": DrawnLimit("message_manager.delivery.views", "ROWS_AT_ONCE", (1, 4)),
    "spare rows of owners": DrawnLimit("message_manager.state.destinations.owners", "_SPARE", (0, 4)),
    "names at once": DrawnLimit("message_manager.delivery.matching", "NAMES_AT_ONCE", (1, 2)),
    "idle families": DrawnLimit("message_manager.state.destinations.family", "IDLE_MS", (1, 100)),
}

SIZES: Final[dict[str, tuple[int, ...]]] = {
    "stream_window_bytes": (1, 3_000),
    "deliver_bytes_max": (1, 500),
    "batches_kept": (1, 2),
    "acknowledge_bytes": (1, 1_000),
    "early_bytes_max": (0, 500),
    "requests_max": (64,),
    "placements_kept": (1, 8),
    "range_pages_max": (1,),
    "range_asks_max": (1,),
    "match_pause_ms": (1, 30),
}
"""Of the settings of client managers and message managers."""

COPIES: Final[dict[str, tuple[int, ...]]] = {
    "min_copies": (0, 1, 1),
    "copies_silence_ms": (1, 60, 200, 500),
}
"""Of the settings of groups. After a millisecond the other data server is silent although it lives."""

OF_PROFILES: Final[dict[str, dict[str, int]]] = {
    "doubt": {"outcomes": 32, "outcomes in a page": 16},
}
"""Runs of a named profile draw none of these, except those that the profile needs."""

BULK_SHARE: Final = 0.25
"""Of the runs."""

are_drawn = True
"""Off for the tests of seeds from before these draws."""


@contextmanager
def drawn(seed: int, profile: str = "") -> Iterator[Mapping[str, int]]:
    """The limits of a run, while the run lasts."""
    values = _draw(seed, profile)
    former: list[tuple[object, str, int]] = []
    for key, value in values.items():
        limit = LIMITS[key]
        module = import_module(f"antiphon.{limit.module}")
        former.append((module, limit.name, getattr(module, limit.name)))
        setattr(module, limit.name, value)
    try:
        yield values
    finally:
        for changed, name, usual in former:
            setattr(changed, name, usual)


def _draw(seed: int, profile: str) -> dict[str, int]:
    if profile:
        return OF_PROFILES.get(profile, {})
    return _some(random.Random(f"{seed}-limits"), {key: one.choices for key, one in LIMITS.items()})


def sizes(seed: int, profile: str = "") -> dict[str, int]:
    """Sizes for the settings of a run's nodes."""
    return {} if profile else _some(random.Random(f"{seed}-sizes"), SIZES)


def copies(seed: int, profile: str = "") -> dict[str, int]:
    """Whether a group with a witness goes on with one copy, and after how long a silence."""
    if profile or not are_drawn:
        return {}
    chance = random.Random(f"{seed}-copies")
    return {name: chance.choice(choices) for name, choices in COPIES.items()}


@contextmanager
def redelivery_limit(seed: int, choices: tuple[int, ...]) -> Iterator[int]:
    """The redelivery limit of queues that are made without one, while a run lasts; 0: messages do not die."""
    limit = random.Random(f"{seed}-deaths").choice(choices) if are_drawn else 0
    module = import_module("antiphon.message_manager.state.destinations.settings")
    usual, module.REDELIVERY_LIMIT = module.REDELIVERY_LIMIT, limit  # type: ignore[attr-defined]
    try:
        yield limit
    finally:
        module.REDELIVERY_LIMIT = usual  # type: ignore[attr-defined]


@contextmanager
def dedup_window(seed: int) -> Iterator[float]:
    """How long destinations that are made without a window remember ids, while a run lasts; 0: not at all."""
    window_s = random.Random(f"{seed}-windows").choice((600, 600, 600, 0.5, 0.1, 0.02, 0))
    module = import_module("antiphon.message_manager.state.destinations.settings")
    usual, module.DEDUP_WINDOW_S = module.DEDUP_WINDOW_S, window_s  # type: ignore[attr-defined]
    try:
        yield window_s
    finally:
        module.DEDUP_WINDOW_S = usual  # type: ignore[attr-defined]


def refusals(seed: int) -> int:
    """One command in how many is refused; 0: none is."""
    return random.Random(f"{seed}-refusals").choice((0, 1, 2, 7)) if are_drawn else 0


def makes_in_bulk(seed: int) -> bool:
    """Do the clients of the run make their destinations by one request?"""
    return are_drawn and random.Random(f"{seed}-bulk").random() < BULK_SHARE


def _some(chance: random.Random, choices: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """A part of the choices: leaving some out finds more than having all of them always."""
    share = chance.choice((0.0, 0.1, 0.3, 0.7)) if are_drawn else 0.0
    return {key: chance.choice(some) for key, some in choices.items() if chance.random() < share}
