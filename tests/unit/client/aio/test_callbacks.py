"""An application's callbacks run one at a time, in order."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.client.aio.callbacks import Callbacks
from tests.unit.client.fake_server import asynchronous


@asynchronous
async def test_a_function_is_called_at_once_and_with_what_it_is_given() -> None:
    seen: list[object] = []
    Callbacks().call("on_error", seen.append, 7)
    Callbacks().call("on_error", None, 8)
    assert seen == [7]


@asynchronous
async def test_a_call_begins_when_the_one_before_has_ended() -> None:
    callbacks, seen = Callbacks(), []
    gate, is_done = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> None:
        seen.append(f"{name} begins")
        await gate.wait()
        seen.append(f"{name} ends")

    def last() -> None:
        seen.append("last")
        is_done.set()

    callbacks.call("on_lost", slow, "first")
    callbacks.call("on_resumed", slow, "second")
    callbacks.call("on_error", last)
    while not seen:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert seen == ["first begins"]
    gate.set()
    await is_done.wait()
    assert seen == ["first begins", "first ends", "second begins", "second ends", "last"]


@asynchronous
async def test_what_one_raises_is_logged_and_the_next_is_called(caplog: pytest.LogCaptureFixture) -> None:
    callbacks, seen = Callbacks(), asyncio.Event()

    def raising() -> None:
        callbacks.call("on_lost", raising_later)
        raise ZeroDivisionError

    async def raising_later() -> None:
        callbacks.call("on_resumed", seen.set)
        raise KeyError

    callbacks.call("on_error", raising)
    await seen.wait()
    assert "on_error of a connection raised" in caplog.text and "ZeroDivisionError" in caplog.text
    assert "on_lost of a connection raised" in caplog.text and "KeyError" in caplog.text
