"""Consumer: receives the messages of one destination."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from antiphon import clock
from antiphon.client.aio.block import Block, Duration, Once, seconds
from antiphon.client.aio.link import ClientLink, Fate
from antiphon.client.aio.lots import Lot
from antiphon.client.aio.scope import SessionScope
from antiphon.client.aio.subscribing import SubscriptionWish
from antiphon.client.core.client import NEVER_NS
from antiphon.client.core.consumer import FIRST_MESSAGES, PREFETCH_MESSAGES, ConsumerCore, Span
from antiphon.client.core.outcomes import acknowledge_error
from antiphon.client.core.session import QUEUE, Acknowledgement, SessionCore
from antiphon.errors import (
    AntiphonError,
    ConsumerClosed,
    LocalError,
    NotConnected,
    SessionClosed,
    Timeout,
)
from antiphon.message import Message, MessageView
from antiphon.ranges import Ranges
from antiphon.wire.commands import Unsubscribe
from antiphon.wire.frames import AckMode, DestinationOpened, Done

PREFETCH_MAX = 1_000_000

DROPPED_SECONDS = 0.2
"""How long a dropped consumer may be taken over, before it gives back its messages."""

LOT_MESSAGES = 256
"""Messages lent to a thread at once, also at most a quarter of the prefetch: so that the server hears in time
that there is room for more."""

LOT_SECONDS = 0.01
"""How often the loop looks at a thread's progress. A lot without progress is recalled."""

ANSWER_SECONDS = 1.0
"""How long a receive that has messages waits to hear that they are still its own, though its time is up."""


class Attached(NamedTuple):
    """A consumer that the server knows."""

    link: ClientLink
    session: SessionCore
    core: ConsumerCore
    opened: DestinationOpened


class Transit(NamedTuple):
    """Messages that were taken and that the application gets later: others may get them meanwhile."""

    attached: Attached
    spans: list[Span]


class SeveralChannels(Exception):
    """The destination was found to have a part in each of several channels."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        super().__init__()
        self.channels = channels


class MessageSource(Protocol):
    """Where a `Consumer` takes its messages from: an `Intake`, or several as one."""

    destination: str
    was_closed_here: bool

    @property
    def error(self) -> AntiphonError | None: ...
    async def opened(self) -> None: ...
    async def close(self) -> None: ...
    def dropped(self) -> None: ...
    async def take(self, count: int, timeout: Duration | None, *, in_turn: bool = False) -> list[Span]: ...
    def put_back(self, taken: Sequence[Span]) -> None: ...
    def given(self, spans: Sequence[Span]) -> None: ...
    def given_in_turn(self, span: Span) -> None: ...
    def done_with(self, span: Span) -> None: ...
    def lend(self) -> Lot | None: ...
    def recall(self) -> None: ...
    def finished(self, lot: Lot, place: int) -> None: ...


class Consumer(Block):
    """Receives the messages of one destination; `session.consumer` makes them.

    A consumer that the application drops gives back the messages it has not handed out, unless the session is
    asked for the same consumer again at once: then that one goes on where this one was.

    >>> async for message in session.consumer("queue:orders"):
    ...     print(message.body, message.properties)
    """

    def __init__(
        self,
        intake: MessageSource,
        merge: Callable[[tuple[str, ...]], MessageSource] | None = None,
    ) -> None:
        """`merge` makes the source of a destination of which the server says that it has several channels."""
        self._intake = intake
        self._merge = merge

    @property
    def destination(self) -> str:
        """The name of its destination."""
        return self._intake.destination

    @property
    def closed(self) -> bool:
        """Was the consumer closed, here or by the server?"""
        return self._intake.error is not None

    async def receive(self, timeout: Duration | None = None) -> Message | None:
        """The next message; None when none came within `timeout`. Without a timeout, wait for it.

        NotConnected instead of None when there has been no connection for longer than connect's `timeout`;
        it is looked for meanwhile, and the consumer goes on when it is there again.

        In an auto session the message is acknowledged, in the background, when this returns.
        With a timeout of 0 the server is asked whether there is a message now.

        >>> message = await consumer.receive(timeout=1.0)
        """
        try:
            spans = await self._intake.take(1, timeout)
        except SeveralChannels as found:
            spans = await self._merged(found).take(1, timeout)
        if not spans:
            return None
        self._intake.given(spans)
        return spans[0].message()

    async def receive_many(self, n: int, timeout: Duration | None = None) -> list[Message]:
        """The next `n` messages; fewer, perhaps none, when no more came within `timeout`.

        In an auto session they are acknowledged, in the background, when this returns.
        With a timeout of 0: those that were sent ahead; if that is none, what the server has now.

        >>> messages = await consumer.receive_many(1000, timeout=1.0)
        """
        if not (isinstance(n, int) and n >= 0):
            raise LocalError(f"receive_many takes a number of messages; it was {n!r}")
        try:
            spans = await self._intake.take(n, timeout)
        except SeveralChannels as found:
            spans = await self._merged(found).take(n, timeout)
        self._intake.given(spans)
        messages: list[Message] = []
        for span in spans:
            if span.stop - span.start == 1:
                messages.append(span.message())
            else:
                messages += span.messages()
        return messages

    def __aiter__(self) -> Iteration:
        """The messages as they come, until the consumer is closed.

        In an auto session a message is acknowledged when the next one is asked for, by the loop or by
        `receive`, or by `message.ack()`. The message at which a loop is left stays unacknowledged and comes
        again, however the loop is left: to take one more message and then leave, call `message.ack()`.

        >>> async for message in consumer:
        ...     print(message.body)
        ...     if message.type == "last":
        ...         await message.ack()
        ...         break
        """
        return Iteration(self)

    async def close(self) -> None:
        """Wait until the acknowledgements are confirmed, then receive nothing more.

        Calls that wait for a message end with ConsumerClosed. Messages that were received and not
        acknowledged come again; in a client or transacted session they stay with the session, which may still
        acknowledge them.

        >>> await consumer.close()
        """
        await self._intake.close()

    def __repr__(self) -> str:
        return f"<Consumer of {self.destination}{' closed' if self.closed else ''}>"

    def __del__(self) -> None:
        self._intake.dropped()

    async def _opened(self) -> Consumer:
        try:
            await self._intake.opened()
        except SeveralChannels as found:
            await self._merged(found).opened()
        return self

    def _merged(self, found: SeveralChannels) -> MessageSource:
        """The source of all parts, which takes the place of the one that has found them."""
        assert self._merge is not None, "a destination of one channel has several"
        found.__traceback__ = None  # or a consumer that is dropped would live until garbage is collected
        if isinstance(self._intake, Intake):
            self._intake = self._merge(found.channels)
        return self._intake


class Iteration:
    """The messages of a consumer, one by one; `async for` makes it."""

    __slots__ = ("_consumer", "_last")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._last: Span | None = None

    def __aiter__(self) -> Iteration:
        return self

    async def __anext__(self) -> Message:
        intake = self._consumer._intake
        if self._last is not None:
            last, self._last = self._last, None
            intake.done_with(last)
        try:
            try:
                spans = await intake.take(1, None, in_turn=True)
            except SeveralChannels as found:
                intake = self._consumer._merged(found)
                spans = await intake.take(1, None, in_turn=True)
        except ConsumerClosed:
            if intake.was_closed_here:
                raise StopAsyncIteration from None
            raise
        self._last = spans[0]
        intake.given_in_turn(spans[0])
        return spans[0].message()


class Intake:
    """The work of a consumer with its session and the server; applications see it through a `Consumer`."""

    def __init__(
        self,
        scope: SessionScope,
        destination: str,
        prefetch: int | None,
        wish: SubscriptionWish,
        *,
        create: bool = True,
        channel: str = "",
    ) -> None:
        self._wish = wish
        if prefetch is not None and not (isinstance(prefetch, int) and 0 <= prefetch <= PREFETCH_MAX):
            raise LocalError(f"prefetch is 0 to {PREFETCH_MAX:,} messages; it was {prefetch!r}")
        self.destination = destination
        self.options = (destination, prefetch, wish.options, create, channel)
        """The arguments: a call with the same ones may take over a dropped consumer."""
        self._is_created = create
        self._channel = channel
        self._scope = scope
        self._prefetch = prefetch
        self._opening = Once(self._open)
        self._closing = Once(self._close)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.error: AntiphonError | None = None
        """Why there will be no more messages."""
        self.was_closed_here = False
        self.is_used = True
        self._is_looked_after = False
        self._dropped_ns = 0
        # Messages that the application had of it when another consumer took it over.
        self._held_before = Ranges()
        self._waiters: deque[asyncio.Future[bool]] = deque()
        self._lot: Lot | None = None

    # -- opening and closing ---------------------------------------------------

    async def opened(self) -> None:
        self._check(await self._opening.get())

    async def _open(self) -> Attached:
        self._loop = asyncio.get_running_loop()
        scope = self._scope
        session = await scope.core()
        await scope.end_stays()
        opened = await scope.open_destination(
            self.destination, create=self._is_created, channel=self._channel
        )
        if opened.channels:
            raise SeveralChannels(opened.channels)
        subscription = QUEUE
        if self._wish.is_topic:
            subscription = await self._wish.order(scope, opened, is_part=bool(self._channel))
        return await self._attach(scope.link, session, opened, subscription, scope.timeout)

    async def _attach(
        self,
        link: ClientLink,
        session: SessionCore,
        opened: DestinationOpened,
        subscription: int,
        timeout_s: float | None,
    ) -> Attached:
        scope = self._scope
        core = session.new_consumer(
            self.destination,
            opened,
            subscription=subscription,
            selector="" if self._wish.is_topic else self._wish.selector,
            prefetch_messages=PREFETCH_MESSAGES if self._prefetch is None else self._prefetch,
            first_messages=FIRST_MESSAGES if self._prefetch is None else None,
            acknowledge=self._acknowledge,
            reject=self._reject,
        )
        core.recall = self.recall
        request = link.core.open_consumer(session, core)
        link.receivers[session.session, core.consumer] = self
        scope.consumers[self] = None
        try:
            await link.call(request, Done, timeout_s)
        except BaseException:
            scope.consumers.pop(self, None)
            link.receivers.pop((session.session, core.consumer), None)
            if self._wish.is_passing and link.error is None:
                session.outbox(opened.channel).order(Unsubscribe(subscription=subscription), Fate(link.loop))
                link.flush_soon()
            raise
        return Attached(link, session, core, opened)

    def is_fed_by(self, core: ConsumerCore) -> bool:
        """Is this core the source of its messages?"""
        attached = self._opening.result
        return attached is not None and attached.core is core

    async def restart(self) -> None:
        """Drop the buffer, and have every unacknowledged message come again, in order.

        Nothing may be taken meanwhile, however long there is no connection.
        """
        self.recall()
        link, session, core, opened = self._attached
        if core.is_closing:
            return
        link.receivers.pop((session.session, core.consumer), None)
        session.send_gathered(core)
        try:
            await link.call(link.core.close_consumer(session, core), Done, None)
            if self.error is not None:
                return
            anew = self._opening.result = await self._attach(link, session, opened, core.subscription, None)
        except AntiphonError as error:
            self.ended(error)
            raise
        self.look_again()  # who waits has asked the former one
        if self.error is not None:
            # The consumer was closed meanwhile.
            self._scope.consumers.pop(self, None)
            link.receivers.pop((session.session, anew.core.consumer), None)
            await self._detach(anew)

    def _check(self, attached: Attached) -> None:
        if self.error is not None:
            raise self.error
        attached.link.check()

    async def close(self) -> None:
        """Give back its messages, and wait until its acknowledgements are confirmed."""
        await self._closing.get()

    async def _close(self) -> None:
        if self._opening.has_begun:
            await self._opening.get()
        attached = self._opening.result  # as it is since it last began anew
        self.was_closed_here = self.error is None
        self.recall()
        self.ended(ConsumerClosed("the consumer is closed"))
        if attached is None:
            return
        link, session, core, _ = attached
        self._scope.consumers.pop(self, None)
        link.receivers.pop((session.session, core.consumer), None)
        if self._scope.is_closed or not self._has_to_stay:
            await self._detach(attached)
            return
        # Others get what the application has not seen.
        link.core.asking.retire(session, core)
        link.flush_soon()
        if self._scope.transactions is not None:
            self._scope.transactions.close_later(partial(self._detach, attached))
        else:
            self._scope.staying[self] = None

    @property
    def _has_to_stay(self) -> bool:
        """Has the application messages that others would get if the consumer went?

        Its messages belong to the session until that acknowledges them, in modes where the session does; or
        they are those of an earlier consumer, which was not closed.
        """
        attached = self._opening.result
        if attached is None:
            return False
        if self._scope.ack_mode in (AckMode.CLIENT, AckMode.TRANSACTED):
            return bool(attached.core.held)
        return bool(self._held_before.intersection(attached.core.held))

    async def end_stay(self) -> None:
        """The consumer was closed, and stays no longer than its messages are the application's."""
        attached = self._opening.result
        if attached is None or self._has_to_stay or self not in self._scope.staying:
            return
        del self._scope.staying[self]
        try:
            await self._detach(attached)
        except AntiphonError:
            # It ends with the session then.
            pass

    async def _detach(self, attached: Attached) -> None:
        link, session, core, _ = attached
        try:
            link.check()
            session.check()
            session.send_gathered(core)
            if not core.is_closing and not link.is_up and session.is_idle:
                # On another connection it will not be attached again.
                core.is_closing = True
            elif not core.is_closing:
                # The server answers when all acknowledgements before are confirmed.
                await link.call(link.core.close_consumer(session, core), Done, self._scope.timeout)
            if self._wish.is_passing and link.is_up and not self._scope.is_closed:
                # The subscription would end with the session; but the session may live long.
                await self._scope.order(core.channel, Unsubscribe(subscription=core.subscription))
        except (NotConnected, SessionClosed):
            if session.owes_word():
                raise

    # -- dropped, and taken over -----------------------------------------------

    def dropped(self) -> None:
        """The application dropped the consumer: garbage collection may run in any thread, at any moment."""
        loop = self._loop
        if loop is None or self.error is not None:
            return
        self.is_used = False
        if asyncio._get_running_loop() is loop:
            # The next call with the same arguments is to find it.
            self._scope.dropped[self] = None
        try:
            loop.call_soon_threadsafe(self._on_dropped)
        except RuntimeError:
            # The loop is closed, and everything open in it, too.
            pass

    def _on_dropped(self) -> None:
        if not self.is_used:
            self._scope.dropped[self] = None
            self._dropped_ns = clock.now_ns()
            if not self._is_looked_after:
                self._look_after()

    def _look_after(self) -> None:
        assert self._loop is not None, "only what was opened is dropped"
        self._is_looked_after = True
        self._loop.call_later(DROPPED_SECONDS, self._give_back)

    def _give_back(self) -> None:
        """If no other consumer took it over, give back its buffer."""
        scope, attached = self._scope, self._opening.result
        self._is_looked_after = False
        if self not in scope.dropped:
            return
        self.recall()
        if scope.is_over or self.error is not None or not self._opening.has_begun:
            del scope.dropped[self]
        elif (
            clock.now_ns() - self._dropped_ns < DROPPED_SECONDS * 0.5e9
            # The application still works on messages of it.
            or attached is None
            or attached.core.held
            or scope.hindrance is not None
        ):
            self._look_after()
        else:
            del scope.dropped[self]
            scope.leave(self.close())

    def taken_over(self) -> Intake:
        """Another consumer goes on with it."""
        del self._scope.dropped[self]
        self.is_used = True
        if self._opening.result is not None:
            self._held_before = self._opening.result.core.held.copy()
        return self

    # -- the link says ---------------------------------------------------------

    def arrived(self) -> None:
        """There are messages: the longest waiting receiver may look."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return

    def ended(self, error: AntiphonError) -> None:
        """There will be no more messages; the first reason counts."""
        self.recall()
        self.error = self.error or error
        self.look_again()

    def look_again(self) -> None:
        """All receivers may look: for those whose time is up, nothing more will come."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(True)

    # -- taking ----------------------------------------------------------------

    async def take(self, count: int, timeout: Duration | None, *, in_turn: bool = False) -> list[Span]:
        """Up to `count` messages, not yet given to the application; see `given`.

        A loop takes them `in_turn`: each loop is done with its own last message, and with no other's.
        """
        link, session, core, _ = attached = self._opening.result or await self._open_to_take()
        if not in_turn:
            self.empty_hand()
        deadline = None if timeout is None else link.loop.time() + seconds(timeout, "timeout")
        taken: list[Span] = []
        wanted, is_late, asker, is_now = count, False, None, deadline is not None and not timeout
        try:
            while True:
                if self._scope.hindrance is not None and not await self._with(
                    taken, core, self._unhindered(deadline)
                ):
                    # The consumer may be beginning anew: a taken message must not be given twice.
                    self._undo_take(attached, taken)
                    return []
                if attached is not self._opening.result:
                    # The consumer began anew: the taken messages come again.
                    link, session, core, _ = attached = self._attached
                    taken, count = [], wanted
                self._check(attached)
                if link.is_stopped:
                    if await self._with(taken, core, self._woken(attached, deadline)):
                        continue
                    # Until its time was over the connection was stopped, and gave nothing.
                    self._undo_take(attached, taken)
                    taken = []
                    break
                if taken and not self._is_sure(attached):
                    # Messages taken here and not given to the application may be another's by now.
                    self._undo_take(attached, taken)
                    taken, count = [], wanted
                if core.buffered and not self._is_sure(attached):
                    if not await self._make_sure(attached, deadline):
                        break
                    continue
                self.recall()
                before = core.buffered
                taken += session.take(core, count)
                count -= before - core.buffered
                if not count or is_late or (is_now and taken and asker is None):
                    break
                asker = asker or object()
                link.core.asking.ask(session, core, asker, count)
                if not is_now:
                    is_late = not await self._with(taken, core, self._wait(attached, deadline))
                if is_now or (is_late and not core.prefetch_messages):
                    # Only the primary knows whether there is a message now, or one on its way.
                    await self._with(taken, core, self._drain(attached, asker))
                    is_late = is_late or not core.buffered
                # When time is up, look once more whether the messages are still the consumer's.
                if is_late and not taken and not core.buffered:
                    break
                count = wanted - sum([span.stop - span.start for span in taken])
        except asyncio.CancelledError:
            self._undo_take(attached, taken)
            raise
        finally:
            if asker is not None:
                link.core.asking.leave(session, core, asker)
                link.flush_soon()
        if core.buffered:
            self.arrived()
        if count and not taken and link.away_s > self._scope.timeout:
            # An empty queue and a server that is gone are to differ.
            raise link.away()
        return taken

    async def _open_to_take(self) -> Attached:
        try:
            return await self._opening.get()
        except Timeout as error:
            link = self._scope.link
            raise (link.away() if link.away_s else error) from None

    def _is_sure(self, attached: Attached) -> bool:
        """Is the buffer still the consumer's? If that is not known, the server is asked."""
        link, session, core, _ = attached
        return link.core.sureness.is_sure(clock.now_ns(), session, core)

    async def _make_sure(self, attached: Attached, deadline: float | None) -> bool:
        """Wait until the server has said whose the messages are; False when it has not in time.

        The answer is waited for because there are messages, though the time may be up.
        """
        link = attached.link
        if deadline is not None:
            deadline = max(deadline, link.loop.time() + ANSWER_SECONDS)
        while not self._is_sure(attached):
            if not await self._woken(attached, deadline):
                return False
            self._check(attached)
            has_any = attached.core.buffered or attached.core.in_transit
            if attached is not self._opening.result or not has_any:
                break
        return True

    def _undo_take(self, attached: Attached, taken: Sequence[Span]) -> None:
        if attached is self._opening.result:
            self.recall()
            attached.core.put_back(taken)
            self.arrived()

    async def _unhindered(self, deadline: float | None) -> bool:
        """Wait for the end of a commit or a rollback; False when it has not come by the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                while self._scope.hindrance is not None:
                    await self._scope.hindrance()
        except TimeoutError:
            return False
        return True

    def put_back(self, taken: Sequence[Span]) -> None:
        self.recall()
        link, session, core, _ = self._attached
        core.put_back(taken)
        link.core.asking.look(session, core)
        link.flush_soon()
        self.arrived()

    def empty_hand(self) -> None:
        """The application asked for another message: it is done with those that loops were given."""
        attached = self._opening.result
        if attached is not None and attached.core.in_hand:
            self._gather(attached.core.empty_hand())

    # -- taken as a part of several --------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._opening.result is not None

    @property
    def buffered(self) -> int:
        attached = self._opening.result
        return 0 if attached is None else attached.core.buffered

    def carry(self, taken: list[Span], transit: Transit | None) -> Transit:
        """Keep what was just taken for the application, behind what was taken before."""
        attached = self._attached
        if transit is not None and transit.attached is attached:
            transit.spans.extend(taken)
            return transit
        # If the consumer began anew, what was taken before comes again.
        attached.core.in_transit.append(taken)
        return Transit(attached, taken)

    async def make_sure(self, transit: Transit) -> None:
        """Have the server say which of these messages are still the consumer's, if that is not known."""
        attached = transit.attached
        if transit.spans and attached is self._opening.result:
            await self._make_sure(attached, attached.link.loop.time() + ANSWER_SECONDS)

    def may_hand_over(self, transit: Transit) -> bool:
        """Are the messages still the consumer's, and may they be given now?"""
        attached = transit.attached
        is_hindered = self._scope.hindrance is not None or attached.link.is_stopped
        return not is_hindered and attached is self._opening.result and self._is_sure(attached)

    def hand_over(self, transit: Transit) -> list[Span]:
        self._end_transit(transit)
        return transit.spans

    def turn_back(self, transit: Transit) -> None:
        """The application does not get these now."""
        self._end_transit(transit)
        if transit.attached is self._opening.result:
            self.put_back(transit.spans)

    def _end_transit(self, transit: Transit) -> None:
        core = transit.attached.core
        core.in_transit = [one for one in core.in_transit if one is not transit.spans]

    async def _with(self, taken: list[Span], core: ConsumerCore, waiting: Coroutine[Any, Any, bool]) -> bool:
        """Wait for this; messages that others get meanwhile are removed from `taken`."""
        if not taken:
            return await waiting
        core.in_transit.append(taken)
        try:
            return await waiting
        finally:
            core.in_transit = [one for one in core.in_transit if one is not taken]

    async def _wait(self, attached: Attached, deadline: float | None) -> bool:
        """Wait until messages have come; False when they have not by the deadline."""
        _, session, core, _ = attached
        if self._scope.ack_mode is not AckMode.DUPS_OK:
            # The application has no more messages: the server is to have the acknowledgements now.
            session.send_gathered(core)
        return await self._woken(attached, deadline) or core.buffered > 0

    async def _drain(self, attached: Attached, asker: object) -> bool:
        """Have all messages of now sent; False when the server has not answered in time."""
        link, session, core, _ = attached
        deadline = link.loop.time() + ANSWER_SECONDS
        link.core.asking.stop(core, asker)
        # An answer to an earlier question may be older than the messages known here.
        for is_asked in (False, True):
            if is_asked:
                link.core.asking.drain(session, core)
            while core.is_draining and not core.buffered and attached is self._opening.result:
                if not await self._woken(attached, deadline):
                    return False
                self._check(attached)
        return True

    async def _woken(self, attached: Attached, deadline: float | None) -> bool:
        """Wait until there is something to look at; False when there was nothing by the deadline."""
        link = attached.link
        link.flush()
        waiter: asyncio.Future[bool] = link.loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline is None else link.loop.call_at(deadline, _expire, waiter)
        try:
            with link.waiting():
                return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def given(self, spans: Sequence[Span]) -> None:
        """The application has these now. In an auto session they are acknowledged by that."""
        if self._attached.session.is_automatic:
            self._gather(spans)
        else:
            self._hold(spans)

    def given_in_turn(self, span: Span) -> None:
        """The application has this message now, and will ask for the next, see `done_with`."""
        if self._attached.session.is_automatic:
            link, _, core, _ = self._attached
            core.put_in_hand(span)
            link.flush_soon()
        else:
            self._hold([span])

    def done_with(self, span: Span) -> None:
        """The application asked for the next message: this one is acknowledged, unless it was."""
        if self._attached.core.take_from_hand(span.numbers[0]):
            self._gather([span])

    @property
    def _attached(self) -> Attached:
        attached = self._opening.result
        assert attached is not None, "a message came before the consumer was open"
        return attached

    def _hold(self, spans: Sequence[Span]) -> None:
        link, _, core, _ = self._attached
        core.hold(spans)
        link.flush_soon()

    def _gather(self, spans: Sequence[Span]) -> None:
        link, session, core, _ = self._attached
        if spans and link.error is None and session.error is None:
            session.gather(clock.now_ns(), core, spans)
            link.flush_soon()

    # -- lending ---------------------------------------------------------------

    def lend(self) -> Lot | None:
        """Let a thread hand out buffered messages without a call for each; None if that is not worthwhile."""
        attached = link, _, core, _ = self._attached
        count_max = min(LOT_MESSAGES, core.window // 4)
        if core.buffered < 2 or count_max < 2 or self._scope.hindrance is not None or self.error is not None:
            return None
        if link.is_stopped or not self._is_sure(attached):
            return None
        spans, count = core.first(count_max, core.prefetch_bytes // 4)
        until_ns = core.sure_until_ns if link.core.sureness.sure_ns else NEVER_NS
        lot = self._lot = Lot(spans, count, until_ns)
        link.loop.call_later(LOT_SECONDS, self._look_at, lot)
        return lot

    def recall(self) -> None:
        """From now on no thread hands out buffered messages."""
        lot, self._lot = self._lot, None
        if lot is not None:
            self._settle(lot, is_last=True)

    def _look_at(self, lot: Lot) -> None:
        if lot is not self._lot:
            return
        if self._settle(lot, is_last=False):
            self._attached.link.loop.call_later(LOT_SECONDS, self._look_at, lot)
        else:
            self.recall()

    def _settle(self, lot: Lot, *, is_last: bool) -> bool:
        """Messages that a thread has handed out are taken; has the thread come further?"""
        _, session, core, _ = self._attached
        progress = lot.look(is_last=is_last)
        place = progress.start
        if progress.was_called:
            lot.in_hand.clear()
            self._gather(core.empty_hand())
        for count, is_in_turn in progress.runs():
            spans = session.take(core, count)
            if is_in_turn:
                lot.in_hand[place] = spans[0]
                self.given_in_turn(spans[0])
            else:
                self.given(spans)
            place += count
        for done in lot.in_hand.keys() - progress.in_turn:
            self.done_with(lot.in_hand.pop(done))
        return progress.stop > progress.start

    def finished(self, lot: Lot, place: int) -> None:
        """An iteration is done with a message of a lot that was recalled meanwhile."""
        span = lot.in_hand.pop(place, None)
        if span is not None:
            self.done_with(span)

    # -- acknowledging ---------------------------------------------------------

    async def _acknowledge(self, message: MessageView) -> None:
        link, session, core, _ = self._attached
        self._check_session()
        if self._scope.ack_mode is AckMode.TRANSACTED:
            raise LocalError("in a transacted session `session.commit()` acknowledges what was received")
        refusal = None
        if self._scope.ack_mode is AckMode.CLIENT:
            sent = session.acknowledge_held()
            refusal = session.take_refusal()
        else:
            sent = session.acknowledge_one(core, message.sequence)
        session.send_gathered(core)
        last = session.last_sent(core)
        link.flush_soon()
        for acknowledgement in sent:
            await self._settled(acknowledgement)
            for item in acknowledgement.outcomes:
                error = acknowledge_error(item)
                if error is not None:
                    raise error
        if not sent and last is not None:
            # Acknowledged before, with the last ones or earlier, and perhaps not confirmed yet.
            await self._settled(last)
        if refusal is not None:
            raise refusal
        await self._scope.end_stays()

    def _check_session(self) -> None:
        """May its messages still be acknowledged?"""
        link, session, _, _ = self._attached
        link.check()
        session.check()
        if self._scope.is_closed:
            raise SessionClosed("the session is closed: what it did not acknowledge comes again")

    async def _reject(self, message: MessageView) -> None:
        link, session, core, _ = self._attached
        self._check_session()
        if self._scope.ack_mode is AckMode.TRANSACTED:
            raise LocalError(
                "in a transacted session nothing is rejected: `session.rollback()` gives it back"
            )
        self.recall()
        rejected = session.reject_one(core, message.sequence)
        link.flush_soon()
        await self._settled(rejected)
        for item in rejected.outcomes:
            error = acknowledge_error(item)
            if error is not None:
                raise error
        await self._scope.end_stays()

    async def _settled(self, acknowledgement: Acknowledgement) -> None:
        link, session, _, _ = self._attached
        if not acknowledgement.is_settled:
            future: asyncio.Future[None] = link.loop.create_future()
            acknowledgement.waiting.append(future)
            with link.waiting():
                await future
        if acknowledgement.is_lost:
            session.check()
            raise link.lost() from link.error


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
