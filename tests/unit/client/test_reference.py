"""The page about the client names every call with its options, every error with its code, and the limits."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon import values
from antiphon.batch import builder, layout
from antiphon.client.aio import connection, consumer, staging
from antiphon.client.core import publication
from antiphon.client.core.consumer import FIRST_MESSAGES, PREFETCH_MESSAGES
from antiphon.message_manager.state.destinations import queue
from antiphon.names import NAME_BYTES_MAX
from antiphon.wire import transactions
from tests.unit.client.test_public_names import PUBLIC, names

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference" / "client.md").read_text(encoding="utf-8")

CLASSES: dict[str, type[Any]] = {
    name: getattr(antiphon, name) for name in PUBLIC if name != "PublishUncertain"
} | {"PartWriter": staging.PartWriter}

OF_EVERY_SEQUENCE = {"count", "index"}


def signature(name: str, function: Any) -> str:
    """The call as the page has it: `receive_many(n, timeout=None)`."""
    words, has_star = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            words.append("*")
            has_star = True
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(parameter.name + default)
    return f"{name}({', '.join(words)})"


@pytest.mark.parametrize("name", CLASSES)
def test_the_page_names_every_call_with_its_options_and_defaults(name: str) -> None:
    cls = CLASSES[name]
    assert f"`{name}" in PAGE or f"`antiphon.{name}`" in PAGE or name == "PartWriter"
    missing = []
    for word in sorted(names(cls) - OF_EVERY_SEQUENCE):
        member = getattr(cls, word, None)
        called = signature(word, member) if inspect.isfunction(member) else word
        if f"`{called}`" not in PAGE:
            missing.append(called)
    assert missing == []


def test_the_page_names_the_options_of_connect() -> None:
    for parameter in inspect.signature(antiphon.connect).parameters.values():
        assert f"`{parameter.name}`" in PAGE
        if parameter.default is not parameter.empty:
            assert f"    {parameter.name}={parameter.default!r},\n" in PAGE
    assert signature("Row", antiphon.Row) in PAGE


def test_the_page_has_every_error_with_its_code() -> None:
    errors = [
        getattr(antiphon, name)
        for name in antiphon.__all__
        if inspect.isclass(getattr(antiphon, name))
        and issubclass(getattr(antiphon, name), antiphon.AntiphonError)
    ]
    assert len(errors) > 30
    assert [error for error in errors if f"| `{error.__name__}` | `{error.code}` |" not in PAGE] == []


def test_every_public_name_stands_on_the_page() -> None:
    assert [name for name in antiphon.__all__ if name not in PAGE and not name.startswith("__")] == []


@pytest.mark.parametrize(
    "limit",
    [
        f"| body | {layout.BODY_BYTES_MAX:,} bytes",
        f"| nesting of maps and lists | {values.DEPTH_MAX}:",
        f"those of inner ones included | {values.VALUES_MAX:,} |",
        f"| properties of a message | {layout.PROPERTIES_MAX} |",
        f"`reply_to` or `type` | {layout.VALUE_BYTES_MAX:,} bytes |",
        f"headers of a message together | {builder.EXTRAS_BYTES_MAX:,} bytes |",
        f"| name of a property | 1 to {NAME_BYTES_MAX} bytes",
        f"| `priority` | 0 to {layout.PRIORITY_MAX} |",
        f"{transactions.TRANSACTION_MESSAGES_MAX:,} messages, {transactions.TRANSACTION_BYTES_MAX:,} bytes",
        f"{transactions.STAGED_MESSAGES_MAX:,} messages, {transactions.STAGED_BYTES_MAX:,} bytes",
        f"at most {transactions.STAGED_SECONDS_MAX:,} s",
        f"of an application that stages | 1 to {staging.APPLICATION_BYTES_MAX} bytes |",
        f"a number of seconds or a timedelta, at most {publication.SECONDS_MAX:,} s;",
        f"| `user` | None | at most {connection.USER_BYTES_MAX} bytes of UTF-8 |",
        f"| `password` | None | at most {connection.PASSWORD_BYTES_MAX:,} bytes of UTF-8 |",
        f"one connection of the whole cluster has it; at most {connection.USER_BYTES_MAX} bytes of UTF-8 |",
        f"{FIRST_MESSAGES} at first, up to {PREFETCH_MESSAGES:,}",
        f"0 to {consumer.PREFETCH_MAX:,}",
    ],
)
def test_the_page_has_the_limits(limit: str) -> None:
    assert limit in PAGE


def test_what_was_published_to_a_queue_is_told_with_all_its_fates() -> None:
    """As the queue itself counts it, see QUE1."""
    fates = re.search(r"published = live((?: \+ \w+)+)", str(queue.__doc__))
    assert fates is not None
    told = " ".join((DOCS / "operating" / "dead-messages.md").read_text(encoding="utf-8").split())
    assert f"published = messages{fates[1]}," in told
