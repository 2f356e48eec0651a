"""RudeHolder: reads a destination in ranges, as a pipeline does, and holds what it still has to read.

A holder sends HOLD with its position, reads everything from there up to the number of that HOLD, and sends
HOLD again when its position has moved; sometimes the position moves only in part, the same range is read once
more, the hold is released, or the holder is silent for longer than the hold lasts. Some holders have a queue
alone: messages read there and gone past are consumed. Some holders ask for acknowledgements.
"""

from __future__ import annotations

from antiphon.batch import Batch
from antiphon.ranges import Ranges
from antiphon.sim.clients.queues import QueueSession
from antiphon.sim.clients.rude import RudeClient
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, ConfirmItem, OutcomeCode
from antiphon.wire.frames import RangePage, RangeRead, ServerFrame
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.range_frames import RangeWanted, decode_page

_HELD = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)
_PAUSE_NS = 10 * MILLISECOND_NS
_SILENCE_NS = 400 * MILLISECOND_NS


class RudeHolder(QueueSession):
    """A reader of one destination; a topic has `settings`."""

    def __init__(
        self, client: RudeClient, destination: str, settings: str = "", *, consumes: bool | None = None
    ) -> None:
        super().__init__(client, destination, settings)
        self._limit_ms = client.chance.choice((20, 200, 100_000))
        # Habits that were added later have a source of chance of their own: the draws above and below stay.
        self._own = client.world.random(f"holder/{client.name}")
        self._consumes = not settings and self._own.random() < 0.5
        if consumes is not None:
            self._consumes = consumes
        self._acks = self._own.random() < 0.4
        # The highest number of the channel that the holder has heard of.
        self._heard = 0
        # Messages below the position are dealt with; below the stop, once that is known, reading is safe.
        self._position = 1
        self._stop = 0
        self._is_ending = False
        self._ends = 0
        self._is_reading = False
        self._read = Ranges()
        self._through = 0

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self._is_reading and not (self._is_ending and not self._ends)

    def abandoned(self) -> None:
        self._stop = self._ends = 0
        if self._own.random() < 0.5:
            # The holder is a new process.
            self._heard = 0

    def stop(self) -> None:
        self._is_reading = False

    def start(self) -> None:
        self._plan()

    def end_for_good(self) -> None:
        """Release the hold, and read no more."""
        self._is_ending = True

    def _plan(self) -> None:
        pause_ns = self.chance.randrange(_PAUSE_NS)
        if self._own.random() < 0.02 and not self._is_ending:
            self.world.probe("holder.fell_silent")
            pause_ns += self._own.randrange(_SILENCE_NS)
        self.later(pause_ns, self._go_on)

    def _go_on(self) -> None:
        """The next HOLD, or another read; one at a time."""
        if not self.has_unconfirmed and not self._is_reading and not self._ends:
            self._act()
        self._plan()

    def _act(self) -> None:
        if self._is_ending:
            self._ends = self._release()
        elif not self._stop or self.chance.random() < 0.5:
            self._hold()
        elif self.chance.random() < 0.1:
            self.world.probe("holder.released")
            self._stop = 0
            self._release()
        elif self._position < self._stop:
            self._through = self._position - 1
            self._read = Ranges()
            self._ask()

    def _hold(self) -> None:
        wish = Hold(
            name=self.client.name,
            position=self._position,
            limit_ms=self._limit_ms,
            heard=self._heard,
            consumes=self._consumes,
            acks=self._acks,
            destinations=(self.account.destination,),
        )
        self._stop = 0
        self.watch.on_hold_said(self.client.name)
        self.order(self.account.channel, CommandKind.HOLD, wish.encode(), 1, self._on_held)

    def _on_held(self, item: ConfirmItem) -> None:
        # Successes that follow each other are told as one; this one was alone.
        self._hear(item)
        if item.code in _HELD:
            self._stop = item.sequence

    def _hear(self, item: ConfirmItem) -> None:
        if item.code in _HELD or item.code == OutcomeCode.OUTDATED:
            self._heard = max(self._heard, item.sequence)

    def _release(self) -> int:
        wish = ReleaseHold(name=self.client.name, heard=self._heard)
        return self.order(self.account.channel, CommandKind.RELEASE, wish.encode(), 1, self._on_released)

    def _on_released(self, item: ConfirmItem) -> None:
        self._hear(item)
        if item.code in _HELD:
            self.watch.on_hold_released(self.client.name)
        else:
            # Once more, with what was heard.
            self._ends = 0

    def on_read(self, number: int, body: bytes) -> None:
        """A holder that consumes has read a message."""
        self.watch.on_consumed(number, body)

    def _ask(self) -> None:
        self._is_reading = True
        self.ask(
            lambda request: RangeRead(
                request=request,
                channel=self.account.channel,
                start=self._through + 1,
                stop=self._stop,
                goal=self._stop,
                floor=self._stop,
                page_bytes=self.chance.choice((100, 2_000, 1 << 20)),
                allow_lost=True,
                live=self._consumes,
                destinations=(RangeWanted(self.account.destination),),
            ),
            self._on_page,
        )

    def _on_page(self, frame: ServerFrame) -> None:
        self._is_reading = False
        if not isinstance(frame, RangePage):
            return
        page = decode_page(frame.page)
        for piece in page.pieces:
            self._read.add(piece.first, piece.first + piece.count)
            for row, body in enumerate(Batch.decode(piece.batch).bodies() if self._consumes else ()):
                self.on_read(piece.first + row, body)
        self._through = page.through
        if self._through + 1 < self._stop:
            self._ask()
            return
        name, destination = self.client.name, self.account.destination
        self.watch.on_range_read(name, destination, self._position, self._stop, self._read)
        likely = self.chance.random()
        if likely < 0.5:
            self._position = self._stop
        elif likely < 0.8:
            self._position = self.chance.randint(self._position, self._stop)
