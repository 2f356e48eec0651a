"""Clients that keep a message system busy while something happens to it, and note what they were told.

Three lines of traffic, each in its own way strict: a queue that one consumer has for itself, a queue that two
consumers share through different client managers, and a topic with a durable subscription. Consumers keep a
handful of messages before they acknowledge them, so that there is always something to be given back.

Nothing here waits for time to pass: what is awaited is the next confirmation, message, or answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal

import antiphon
from tests.histories import History, Operation, Phase, Verdict, judge

BATCHES: Final = (1, 3, 20, 1, 7)
BACKLOG_MAX: Final = 2_000
"""So many may be confirmed and not received before producers wait; draining must not take for ever."""

IDLE_SECONDS: Final = 0.3
ASK_SECONDS: Final = 0.2
SUBSCRIPTION: Final = "readers"

FILLING: Final = "."

Told = Callable[[], Awaitable[str]]


def body_of(message: antiphon.Message) -> str:
    """What a message says, without what only makes it long."""
    return str(message.body).rstrip(FILLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A destination with those who use it."""

    destination: str
    producers: int = 1
    consumers: int = 1
    ack: Literal["client", "individual"] = "client"

    @property
    def is_topic(self) -> bool:
        return self.destination.startswith("topic:")


LINES: Final = (
    Line(destination="queue:alone"),
    Line(destination="queue:shared", producers=2, consumers=2, ack="individual"),
    Line(destination="topic:news"),
)


class Load:
    """The clients. They start with the block and must be drained before its end."""

    def __init__(
        self,
        url: str,
        lines: Iterable[Line] = LINES,
        *,
        backlog_max: int = BACKLOG_MAX,
        body_bytes: int = 0,
    ) -> None:
        """Bodies that are shorter than `body_bytes` are filled up with dots."""
        self._servers = url.removeprefix("antiphon://").split(",")
        self.lines = tuple(lines)
        self._backlog_max = backlog_max
        self._body_bytes = body_bytes
        self.history = History()
        self.confirmed: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.last_confirmed_at = 0.0
        """By the monotonic clock."""
        self._is_producing = True
        self._is_consuming = True
        self._moved: asyncio.Future[None] | None = None
        self._producers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []
        self._connected: list[asyncio.Future[None]] = []

    # -- from outside ----------------------------------------------------------

    async def __aenter__(self) -> Load:
        # Subscriptions first: what was sent before them is not theirs.
        await self._start(self._consumers, self._consume, "consumers")
        await self._start(self._producers, self._produce, "producers")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._workers:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._workers, return_exceptions=True)

    async def _start(
        self,
        tasks: list[asyncio.Task[None]],
        work: Callable[..., Any],
        count: Literal["consumers", "producers"],
    ) -> None:
        connected: list[asyncio.Future[None]] = []
        for line in self.lines:
            for place in range(getattr(line, count)):
                is_connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                name = f"{line.destination.partition(':')[2]}-{count[0]}{place}"
                url = self._url(len(connected))
                tasks.append(asyncio.create_task(work(line, name, url, is_connected)))
                connected.append(is_connected)
        await self._while_they_work(asyncio.gather(*connected), 60, "not all clients could begin")

    def _url(self, place: int) -> str:
        """Everybody knows all servers, and they begin with different ones."""
        at = place % len(self._servers)
        return "antiphon://" + ",".join(self._servers[at:] + self._servers[:at])

    @property
    def _workers(self) -> list[asyncio.Task[None]]:
        return [*self._producers, *self._consumers]

    async def progress(self, messages: int = 200, within: float = 60) -> None:
        """Wait until so many more are confirmed and received on every line."""
        confirmed, received = self.confirmed.copy(), self.received.copy()

        async def moved() -> None:
            while not all(
                self.confirmed[line.destination] >= confirmed[line.destination] + messages
                and self.received[line.destination] >= received[line.destination] + messages
                for line in self.lines
            ):
                await self._next_move()

        def since() -> str:
            return f"confirmed {self.confirmed - confirmed}, received {self.received - received}"

        await self._while_they_work(moved(), within, "no progress", since)

    async def next_confirmation(self, within: float = 60) -> float:
        """Wait for a publish that is confirmed from now on; when that was, by the monotonic clock."""
        before = self.confirmed.total()

        async def confirmed() -> None:
            while self.confirmed.total() == before:
                await self._next_move()

        await self._while_they_work(confirmed(), within, "nothing was confirmed")
        return self.last_confirmed_at

    async def drain(self, within: float = 90, told: Told | None = None) -> Verdict:
        """Produce no more, receive everything, and judge; `told` says more if it does not come to an end."""
        self._is_producing = False
        self._move()
        await self._while_they_work(asyncio.gather(*self._producers), within, "producers do not end")
        deadline = time.monotonic() + within
        left: object = None
        async with antiphon.connect(self._url(0)) as connection:
            while left != []:
                if time.monotonic() > deadline:
                    more = await told() if told is not None else ""
                    raise AssertionError(f"not drained within {within:g} s: {left}; {self._lag()}; {more}")
                # Not at once again, unless somebody fails.
                done, _ = await asyncio.wait(
                    self._consumers, timeout=ASK_SECONDS, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in done:
                    task.result()
                left = self._left(await connection.admin().destinations())
        self._is_consuming = False
        await asyncio.wait_for(asyncio.gather(*self._consumers), within)
        return self.judge()

    def judge(self) -> Verdict:
        alone = [line.destination for line in self.lines if line.consumers == 1]
        return judge(self.history.events, alone=alone)

    def _left(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the system still keeps for our consumers."""
        by_name = {row["name"]: row for row in rows}
        left = []
        for line in self.lines:
            row = by_name.get(line.destination, {"messages": "unknown", "subscriptions": []})
            waits = sum(one["backlog"] for one in row["subscriptions"]) if line.is_topic else row["messages"]
            if waits or line.destination not in by_name:
                left.append(row)
        return left

    def _lag(self) -> str:
        return f"confirmed {dict(self.confirmed)}, received {dict(self.received)}"

    async def _while_they_work(
        self, wanted: Awaitable[Any], seconds: float, complaint: str, detail: Callable[[], str] | None = None
    ) -> None:
        """Wait for something, with a deadline; a client that fails meanwhile ends the wait."""
        task = asyncio.ensure_future(wanted)
        deadline = time.monotonic() + seconds
        try:
            while not task.done():
                working = [one for one in self._workers if not one.done()]
                left = deadline - time.monotonic()
                await asyncio.wait(
                    [task, *working], timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED
                )
                for worker in self._workers:
                    if worker.done():
                        worker.result()
                if left <= 0 and not task.done():
                    raise AssertionError(
                        f"{complaint} within {seconds:g} s: {detail() if detail else self._lag()}"
                    )
            task.result()
        finally:
            task.cancel()

    # -- moves -----------------------------------------------------------------

    def _move(self) -> None:
        """Something was confirmed or received."""
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)
        self._moved = None

    async def _next_move(self) -> None:
        if self._moved is None:
            self._moved = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._moved)

    # -- producers -------------------------------------------------------------

    async def _produce(self, line: Line, name: str, url: str, connected: asyncio.Future[None]) -> None:
        async with antiphon.connect(url, spread=False) as connection, connection.session() as session:
            producer = await session.producer(line.destination)
            connected.set_result(None)
            number = 0
            for count in itertools.cycle(BATCHES):
                while self._is_producing and self._backlog(line) > self._backlog_max:
                    await self._next_move()
                if not self._is_producing:
                    return
                bodies = [f"{name}/{number + place}" for place in range(count)]
                number += count
                await self._publish(line, name, producer, bodies)

    def _backlog(self, line: Line) -> int:
        return self.confirmed[line.destination] - self.received[line.destination]

    async def _publish(self, line: Line, name: str, producer: antiphon.Producer, bodies: list[str]) -> None:
        def note(phase: Phase, bodies: list[str], **more: Any) -> None:
            if bodies:
                self.history.note(name, Operation.PUBLISH, phase, line.destination, bodies, **more)

        note(Phase.INVOKE, bodies)
        try:
            receipts = await producer.send_many([body.ljust(self._body_bytes, FILLING) for body in bodies])
        except antiphon.PublishError as error:
            phase = Phase.FAIL if isinstance(error, antiphon.PublishRefused) else Phase.INFO
            note(Phase.OK, bodies[: error.confirmed])
            note(phase, bodies[error.confirmed :])
            self._confirmed(line, error.confirmed)
            return
        note(Phase.OK, bodies, channel=receipts.channel, sequences=[one.sequence for one in receipts])
        self._confirmed(line, len(bodies))

    def _confirmed(self, line: Line, count: int) -> None:
        if count:
            self.last_confirmed_at = time.monotonic()
        self.confirmed[line.destination] += count
        self._move()

    # -- consumers -------------------------------------------------------------

    async def _consume(self, line: Line, name: str, url: str, connected: asyncio.Future[None]) -> None:
        async with (
            antiphon.connect(url, client_id=name, spread=False) as connection,
            connection.session(ack=line.ack) as session,
        ):
            durable = SUBSCRIPTION if line.is_topic else None
            consumer = await session.consumer(line.destination, prefetch=200, durable=durable)
            connected.set_result(None)
            held: list[antiphon.Message] = []
            settling: asyncio.Task[None] | None = None
            while self._is_consuming or held or settling is not None:
                # Taken as soon as it is there: whoever waits for a confirmation meanwhile, what lies in a
                # client was delivered, and the history is to say when.
                first = await consumer.receive(timeout=IDLE_SECONDS)
                fresh = [] if first is None else [first, *await consumer.receive_many(50, timeout=0)]
                self._received(line, name, fresh)
                if settling is not None and settling.done():
                    settling.result()
                    settling = None
                if settling is None and held:
                    settling = asyncio.create_task(self._acknowledge(line, name, held))
                    held = []
                held += fresh

    def _received(self, line: Line, name: str, messages: list[antiphon.Message]) -> None:
        if not messages:
            return
        self.history.note(
            name,
            Operation.RECEIVE,
            Phase.OK,
            line.destination,
            [body_of(message) for message in messages],
            channel=messages[0].channel,
            sequences=[message.sequence for message in messages],
            redelivered=[message.redelivered for message in messages],
        )
        self.received[line.destination] += len(messages)
        self._move()

    async def _acknowledge(self, line: Line, name: str, messages: list[antiphon.Message]) -> None:
        if not messages:
            return

        def note(phase: Phase, messages: Iterable[antiphon.Message]) -> None:
            bodies = [body_of(message) for message in messages]
            self.history.note(name, Operation.ACKNOWLEDGE, phase, line.destination, bodies)

        note(Phase.INVOKE, messages)
        last = messages if line.ack == "individual" else messages[-1:]
        outcomes = await asyncio.gather(*(message.ack() for message in last), return_exceptions=True)
        for place, outcome in enumerate(outcomes):
            these = [messages[place]] if line.ack == "individual" else messages
            match outcome:
                case None:
                    note(Phase.OK, these)
                case antiphon.AcknowledgeRefused():
                    # Of several at once, at least one was refused.
                    note(Phase.FAIL if len(these) == 1 else Phase.INFO, these)
                case _:
                    note(Phase.INFO, these)
                    raise outcome
