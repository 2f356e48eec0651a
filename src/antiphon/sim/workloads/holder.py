"""HolderSession: reads a destination in ranges, as a pipeline does, and holds what it still has to read.

It says how far it is, reads everything from there up to the number of that word, and says it again when it
has gone on; sometimes it goes on only in part, reads the same once more, lets go, or is not heard of for
longer than its hold lasts. Some want a queue for themselves alone: what they read there and go past, they
have consumed. Some ask for acknowledgements.
"""

from __future__ import annotations

from antiphon.batch import Batch
from antiphon.ranges import Ranges
from antiphon.sim.workloads.client import SimClient, SimSession
from antiphon.sim.workloads.speaker import Kept
from antiphon.sim.world import MILLISECOND_NS
from antiphon.wire.commands import CommandKind, ConfirmItem, OutcomeCode
from antiphon.wire.frames import DestinationCreate, DestinationOpen, Failed, RangePage, RangeRead
from antiphon.wire.holds import Hold, ReleaseHold
from antiphon.wire.range_frames import RangeWanted, decode_page

_HELD = (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE)
_PAUSE_NS = 10 * MILLISECOND_NS
_SILENCE_NS = 400 * MILLISECOND_NS


class HolderSession(SimSession):
    """One reader; `settings` are those of its topic, if it is one."""

    def __init__(self, client: SimClient, destination: str, settings: str = "") -> None:
        super().__init__(client, destination)
        self._settings = settings
        self._limit_ms = client.chance.choice((20, 200, 100_000))
        # What was added later has chances of its own: what is drawn above and below stays what it was.
        self._own = client.world.random(f"holder/{client.name}")
        self._consumes = not settings and self._own.random() < 0.5
        self._acks = self._own.random() < 0.4
        # The highest number of the channel that it has heard of.
        self._heard = 0
        # What was read has been dealt with up to here; and up to where reading is safe, once it is known.
        self._position = 1
        self._stop = 0
        self._is_ending = False
        self._ends = 0
        self._request = 0
        self._read = Ranges()
        self._through = 0

    @property
    def is_idle(self) -> bool:
        return super().is_idle and not self._request and not (self._is_ending and not self._ends)

    def destination_wish(self, request: int) -> DestinationOpen | DestinationCreate:
        if self._settings:
            return DestinationCreate(request=request, name=self.queue, settings=self._settings)
        return super().destination_wish(request)

    def forget(self) -> None:
        super().forget()
        self._stop = self._ends = 0
        if self._own.random() < 0.5:
            # A new process, which knows nothing.
            self._heard = 0

    def stop(self) -> None:
        self._request = 0

    def start(self) -> None:
        self._plan()

    def end(self) -> None:
        """Let go for good."""
        self._is_ending = True

    def _plan(self) -> None:
        client = self.client
        life, pause_ns = client.life, client.chance.randrange(_PAUSE_NS)
        if self._own.random() < 0.02 and not self._is_ending:
            client.world.probe("holder.fell_silent")
            pause_ns += self._own.randrange(_SILENCE_NS)
        client.world.after(pause_ns, lambda: self._go_on(life))

    def _go_on(self, life: int) -> None:
        """The next word, or another look; one at a time."""
        if self.client.life != life or not self.is_ready:
            return
        if not self.unconfirmed and not self._request and not self._ends:
            self._act()
        self._plan()

    def _act(self) -> None:
        chance, world = self.client.chance, self.client.world
        if self._is_ending:
            self._ends = self._release()
        elif not self._stop or chance.random() < 0.5:
            self._hold()
        elif chance.random() < 0.1:
            world.probe("holder.released")
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
            destinations=(self.destination,),
        )
        self._stop = 0
        self.client.watch.on_hold_said(self.client.name)
        self.order_next(Kept(CommandKind.HOLD, 1, wish.encode(), self._on_held))

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
        return self.order_next(Kept(CommandKind.RELEASE, 1, wish.encode(), self._on_released))

    def _on_released(self, item: ConfirmItem) -> None:
        self._hear(item)
        if item.code in _HELD:
            self.client.watch.on_hold_released(self.client.name)
        else:
            # Once more, with what was heard.
            self._ends = 0

    # Reading.

    def _ask(self) -> None:
        self._request = self.client.next_request(self)
        self.client.say(
            RangeRead(
                request=self._request,
                channel=self.channel,
                start=self._through + 1,
                stop=self._stop,
                goal=self._stop,
                floor=self._stop,
                page_bytes=self.client.chance.choice((100, 2_000, 1 << 20)),
                allow_lost=True,
                live=self._consumes,
                destinations=(RangeWanted(self.destination),),
            )
        )

    def on_page(self, frame: RangePage) -> None:
        if frame.request != self._request:
            return
        page = decode_page(frame.page)
        for piece in page.pieces:
            self._read.add(piece.first, piece.first + piece.count)
            for row, body in enumerate(Batch.decode(piece.batch).bodies() if self._consumes else ()):
                self.client.watch.on_consumed(piece.first + row, body)
        self._through = page.through
        if self._through + 1 < self._stop:
            self._ask()
            return
        self._request = 0
        client = self.client
        client.watch.on_range_read(client.name, self.destination, self._position, self._stop, self._read)
        likely = client.chance.random()
        if likely < 0.5:
            self._position = self._stop
        elif likely < 0.8:
            self._position = client.chance.randint(self._position, self._stop)

    def on_failed(self, frame: Failed) -> bool:
        if frame.request == self._request:
            self._request = 0
            return True
        return False
