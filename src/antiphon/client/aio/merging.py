"""MergedIntake: one consumer of a destination, or of a family, that has a part in several channels.

MRG1  The messages of a part come in their order; parts with messages take turns.
MRG2  A message that was taken and not given to the application goes back to its part.
MRG3  A channel that is away holds up no other: the part of a queue joins when its channel is there.
MRG4  When a consumer of a topic is open, its subscription has begun in every channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from antiphon.client.aio.block import Duration, Once, seconds
from antiphon.client.aio.consumer import Intake, Transit
from antiphon.client.aio.lots import Lot
from antiphon.client.aio.parts import is_away, told, until_open
from antiphon.client.aio.ranges import browse
from antiphon.client.aio.scope import SessionScope
from antiphon.client.core.consumer import Span
from antiphon.errors import (
    AntiphonError,
    ConsumerClosed,
    DestinationError,
    DestinationUnavailable,
    LocalError,
)
from antiphon.message import Message
from antiphon.names import DEAD_QUEUE_NAME, LOG_TOPIC_NAME, DestinationName, parse_destination
from antiphon.selectors import Selector

_ATTEMPTS: Final = 5
"""How often messages are taken again because they may be others'."""

Parts = dict[str, Intake]
"""The intakes of the parts, by channel."""

Asked = dict[Intake, asyncio.Task[None]]
"""The parts that are waited for."""


class MergedIntake:
    """Takes messages from the intakes of all parts; a `Consumer` calls it like an `Intake`."""

    def __init__(
        self,
        scope: SessionScope,
        destination: str,
        make_part: Callable[[str], Intake],
        channels: Sequence[str] = (),
        *,
        is_named: bool = False,
        is_family: bool = False,
    ) -> None:
        """Without `channels` every channel has a part. `is_named`: the subscription has a name.

        `is_family`: the destination is a pattern.
        """
        self.destination = destination
        self._channels = tuple(channels)
        self._is_named = is_named
        self._is_family = is_family
        self.was_closed_here = False
        self._scope = scope
        self._make_part = make_part
        self._opening = Once(self._open)
        self._closing = Once(self._close)
        self._error: AntiphonError | None = None
        self._turns = 0

    @property
    def error(self) -> AntiphonError | None:
        """Why there will be no more messages."""
        ends = (part.error for part in self._parts if part.error is not None)
        return self._error or next(ends, None)

    @property
    def _parts(self) -> Iterable[Intake]:
        return (self._opening.result or {}).values()

    # -- opening and closing ---------------------------------------------------

    async def opened(self) -> None:
        await self._open_parts()

    async def _open_parts(self) -> Parts:
        parts = self._opening.result or await self._opening.get()
        if (error := self.error) is not None:
            raise error
        return parts

    async def _open(self) -> Parts:
        """Open all parts, or those that are there: others are opened when messages are taken (MRG3)."""
        await self._scope.core()
        channels = self._channels or await self._scope.link.channels(self._scope.timeout)
        if self._is_named and not (self._channels or self._is_family) and len(channels) > 1:
            raise LocalError(
                f"{self.destination} has a part in each of the channels {', '.join(channels)}, and a "
                "subscription with a name is one to one part: name its channel, too"
            )
        parts = {channel: self._make_part(channel) for channel in channels}
        # A part of the topic of events joins later, as a dead queue's does.
        is_topic = self._is_family or (
            bool(self._channels) and parse_destination(self.destination).kind == "topic"
        )
        outcomes = await told({channel: part.opened for channel, part in parts.items()}, waits=is_topic)
        kept = {
            channel: parts[channel] for channel, error in outcomes.items() if error is None or is_away(error)
        }
        errors = [error for error in outcomes.values() if error is not None]
        fatal = [error for error in errors if not isinstance(error, DestinationError) and not is_away(error)]
        if fatal or len(errors) == len(parts) or (is_topic and errors):
            for part in kept.values():
                self._scope.leave(part.close())
            raise (fatal or errors)[0]
        return kept

    async def close(self) -> None:
        """Give back its messages, and wait until its acknowledgements are confirmed."""
        await self._closing.get()

    async def _close(self) -> None:
        self.was_closed_here = self.error is None
        self._error = self.error or ConsumerClosed("the consumer is closed")
        if self._opening.has_begun:
            with suppress(AntiphonError):
                await self._opening.get()
        await asyncio.gather(*(part.close() for part in self._parts))

    def dropped(self) -> None:
        """The application dropped the consumer: garbage collection may run in any thread, at any moment."""
        for part in self._parts:
            part.dropped()

    # -- taking ----------------------------------------------------------------

    async def take(self, count: int, timeout: Duration | None, *, in_turn: bool = False) -> list[Span]:
        """Up to `count` messages of all parts, not yet given to the application; see `Intake.take`."""
        parts = list((await self._open_parts()).values())
        if len(parts) == 1:
            return await parts[0].take(count, timeout, in_turn=in_turn)
        loop = asyncio.get_running_loop()
        limit_s = None if timeout is None else seconds(timeout, "timeout")
        deadline = None if limit_s is None else loop.time() + limit_s
        taking = _Taking(count, in_turn)
        asked: Asked = {}
        attempts = _ATTEMPTS
        if not in_turn:
            for part in parts:
                part.empty_hand()
        try:
            while True:
                await self._open_parts()  # raises the error if a part has ended
                self._turns += 1
                first = self._turns % len(parts)
                turns = [part for part in parts[first:] + parts[:first] if part not in asked]
                for part in turns:
                    if part.buffered:
                        await taking.from_part(part, 0)
                if limit_s == 0:
                    for part in turns if not taking.rows else ():
                        await taking.from_part(part, 0)
                is_late = deadline is not None and loop.time() >= deadline
                if is_late or not taking.missing:
                    await _stop(asked)
                    await taking.make_sure()
                    if taking.turn_back_unsure() and attempts:
                        # Others may have these messages by now: their parts ask, and they are taken again.
                        attempts -= 1
                        continue
                    if is_late or taking.rows or not count:
                        return taking.give()
                    continue
                for part in turns:
                    asked[part] = asyncio.ensure_future(_next_of(part, taking, deadline))
                await _first_of(asked)
        except BaseException:
            await _stop(asked)
            taking.undo()
            raise

    # -- taken -----------------------------------------------------------------

    def put_back(self, taken: Sequence[Span]) -> None:
        for part, spans in self._by_part(taken):
            part.put_back(spans)

    def given(self, spans: Sequence[Span]) -> None:
        """The application has these now. In an auto session they are acknowledged by that."""
        for part, own in self._by_part(spans):
            part.given(own)

    def given_in_turn(self, span: Span) -> None:
        """The application has this message now, and will ask for the next, see `done_with`."""
        self._part_of(span).given_in_turn(span)

    def done_with(self, span: Span) -> None:
        """The application asked for the next message: this one is acknowledged, unless it was."""
        self._part_of(span).done_with(span)

    def _part_of(self, span: Span) -> Intake:
        parts = self._opening.result
        assert parts is not None, "a message came before the consumer was open"
        return parts[span.delivery.channel]

    def _by_part(self, spans: Sequence[Span]) -> Iterable[tuple[Intake, list[Span]]]:
        sorted_out: dict[Intake, list[Span]] = {}
        for span in spans:
            sorted_out.setdefault(self._part_of(span), []).append(span)
        return sorted_out.items()

    # -- lending ---------------------------------------------------------------

    def lend(self) -> Lot | None:
        """See `Intake.lend`. Messages of several parts are not lent."""
        parts = list(self._parts)
        return parts[0].lend() if len(parts) == 1 else None

    def recall(self) -> None:
        for part in self._parts:
            part.recall()

    def finished(self, lot: Lot, place: int) -> None:
        for part in self._parts:
            part.finished(lot, place)


class _Taking:
    """Messages on their way from the parts to the application (MRG2)."""

    def __init__(self, count: int, in_turn: bool) -> None:
        self._count = count
        self._in_turn = in_turn
        self._transits: dict[Intake, Transit] = {}

    @property
    def rows(self) -> int:
        # Counted anew: messages that others get meanwhile are gone from the transits.
        return sum([span.stop - span.start for one in self._transits.values() for span in one.spans])

    @property
    def missing(self) -> int:
        return max(0, self._count - self.rows)

    async def from_part(self, part: Intake, timeout: float | None, at_most: int | None = None) -> None:
        wanted = self.missing if at_most is None else min(at_most, self.missing)
        if not wanted:
            return
        spans = await part.take(wanted, timeout, in_turn=self._in_turn)
        if not self.missing:
            # Another part was quicker.
            part.put_back(spans)
        elif spans:
            transit = self._transits.get(part)
            self._transits[part] = part.carry(spans, transit)

    async def make_sure(self) -> None:
        """Wait for the word of the servers which messages are still the consumer's, a moment at most."""
        await asyncio.gather(*(part.make_sure(transit) for part, transit in self._transits.items()))

    def turn_back_unsure(self) -> bool:
        """Give back what may be others' by now, or may not be given; was there any?"""
        unsure = [part for part, transit in self._transits.items() if not part.may_hand_over(transit)]
        for part in unsure:
            part.turn_back(self._transits.pop(part))
        return bool(unsure)

    def give(self) -> list[Span]:
        transits, self._transits = self._transits, {}
        return [span for part, transit in transits.items() for span in part.hand_over(transit)]

    def undo(self) -> None:
        transits, self._transits = self._transits, {}
        for part, transit in transits.items():
            part.turn_back(transit)


def check_channel(name: DestinationName, channel: str) -> None:
    """Raise LocalError if a channel is named, and the destination is not one that every channel has."""
    if channel and not name.has_parts:
        raise LocalError(
            f"{name} has no parts: only of {DEAD_QUEUE_NAME}, {LOG_TOPIC_NAME} and a pattern a channel is "
            f"named, not {channel!r}"
        )


async def _first_of(asked: Asked) -> None:
    """Wait until a part has been heard; the others go on: what is on its way from them is wanted, too."""
    await asyncio.wait(asked.values(), return_when=asyncio.FIRST_COMPLETED)
    for part, task in list(asked.items()):
        if task.done():
            del asked[part]
            task.result()


async def _stop(asked: Asked) -> None:
    """Ask no more. A message that comes in this moment is taken, or goes back to its part."""
    tasks = list(asked.values())
    asked.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _next_of(part: Intake, taking: _Taking, deadline: float | None) -> None:
    """Take the next message of a part, when the part is open."""
    try:
        async with asyncio.timeout_at(deadline):
            if not part.is_open:
                await until_open(part.opened)
    except TimeoutError:
        return
    left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
    if left != 0:
        await taking.from_part(part, left, at_most=1)


async def browse_merged(
    scope: SessionScope, destination: str, selector: Selector, *, create: bool
) -> AsyncIterator[Message]:
    """The messages of all parts, channel after channel; DestinationError if there is no part."""
    channels = await scope.link.channels(scope.timeout)
    missing: list[DestinationError] = []
    for channel in channels:
        try:
            async for message in browse(scope, destination, selector, create=create, channel=channel):
                yield message
        except DestinationUnavailable:
            raise
        except DestinationError as error:
            missing.append(error)
    if len(missing) == len(channels):
        raise missing[0]
