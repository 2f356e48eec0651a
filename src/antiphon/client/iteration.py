"""Iteration: one `async for` over a consumer.

In an auto session a message is acknowledged when the application is done with it: when it
asks for the next one, or leaves the loop by `break` or `return`. An exception in the loop's
body leaves it unacknowledged, whether or not somebody catches it.

Python tells an iterator nothing about how its loop is left; it only drops it, at once and
in both cases. But it drops it in the middle of an instruction of the loop's function. Leaving
normally is an instruction of its own, which takes the iterator off the stack and can do
nothing else; an exception comes out of any other. Where this cannot be seen, the message
stays unacknowledged, which is always safe: it will come again.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType
from typing import TYPE_CHECKING

from antiphon.client.core_consumer import Span
from antiphon.errors import ConsumerClosed
from antiphon.message import Message

if TYPE_CHECKING:
    from antiphon.client.consumer import Consumer, Intake

_LEAVING = frozenset(dis.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in dis.opmap)


class Iteration:
    """The messages of a consumer, one by one; `async for` makes it."""

    __slots__ = ("_consumer", "_function", "_intake", "_last")

    def __init__(self, consumer: Consumer, intake: Intake, function: CodeType) -> None:
        self._consumer = consumer  # so that it is not dropped before the loop is
        self._intake = intake
        self._function = function
        self._last: Span | None = None

    def __aiter__(self) -> Iteration:
        return self

    async def __anext__(self) -> Message:
        intake = self._intake
        self._finish()
        try:
            spans = await intake.take(1, None)
        except ConsumerClosed:
            if intake.was_closed_here:
                raise StopAsyncIteration from None
            raise
        self._last = spans[0]
        intake.given_in_turn(spans[0])
        return spans[0].message()

    def _finish(self) -> None:
        """The application is done with the last message."""
        if self._last is not None:
            last, self._last = self._last, None
            self._intake.done_with(last)

    def __del__(self) -> None:
        if self._last is not None and is_left_normally(self._function):
            self._finish()


def is_left_normally(function: CodeType) -> bool:
    """Is the function that dropped the iterator just now the one with the loop, and leaving it?"""
    try:
        frame = sys._getframe(2)
    except ValueError:
        return False
    return frame.f_code is function and function.co_code[frame.f_lasti] in _LEAVING
