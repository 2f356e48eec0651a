"""Browsing: shows what is stored, page by page, and leaves it where it is.

Where it sits
    client manager  ->  BROWSING  ->  index and journal  ->  client manager

What it promises
    B1  A page holds messages in the order of their numbers; the next one goes on where it ended. What was
        acknowledged or trimmed meanwhile is not there, what was published meanwhile is.
    B2  Every replica answers, and not before it has applied what the client manager has confirmed: who
        asks sees what it wrote.
    B3  A page is bounded in messages and bytes, and so is what one wake-up reads.
    B4  A page ends before a record that is damaged; one that would begin with it waits until it is mended.

What it leaves to others
    Whether a client may look is the client manager's business.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from antiphon.bus.effects import Send
from antiphon.bus.messages import BrowseReply, BrowseRequest, Piece
from antiphon.errors import ProtocolError
from antiphon.message_manager.destinations.directory import Destination
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state import ChannelState

PAGE_MESSAGES_MAX: Final = 10_000
PAGES_AT_ONCE: Final = 8

NO_DESTINATION: Final = "destination.unknown"


class Browsing:
    """The pages that client managers wait for."""

    __slots__ = ("_held_up", "_page_bytes", "_reader", "_waiting")

    def __init__(self, reader: BatchReader, page_bytes: int) -> None:
        self._reader = reader
        self._page_bytes = page_bytes
        self._waiting: deque[tuple[int, BrowseRequest]] = deque()
        # Those whose page begins with a record that is being mended.
        self._held_up: list[tuple[int, BrowseRequest]] = []

    def mended(self) -> None:
        """A damaged record can be read again."""
        self._waiting.extend(self._held_up)
        self._held_up.clear()

    def ask(self, sender: int, request: BrowseRequest) -> None:
        self._waiting.append((sender, request))

    def is_due(self, state: ChannelState) -> bool:
        """Can a page be given now?"""
        return bool(self._waiting) and any(request.floor <= state.applied for _, request in self._waiting)

    def flush(self, state: ChannelState) -> list[Send]:
        """The pages that can be given now, a few of them; the others wait (B2, B3)."""
        given: list[Send] = []
        for _ in range(len(self._waiting)):
            sender, request = self._waiting.popleft()
            if request.floor <= state.applied and len(given) < PAGES_AT_ONCE:
                page = self._page(state, request)
                if page is None:
                    self._held_up.append((sender, request))
                else:
                    given.append(Send(sender, page))
            else:
                self._waiting.append((sender, request))
        return given

    def _page(self, state: ChannelState, request: BrowseRequest) -> BrowseReply | None:
        destination = state.directory.get(request.destination)
        if destination is None:
            return BrowseReply(
                request.request,
                request.after,
                False,
                code=NO_DESTINATION,
                text="there is no such destination",
            )
        pieces, through, is_held_up = self._read(destination, request)
        if is_held_up and not pieces:
            return None
        more = destination.live.next_from(through + 1) is not None
        return BrowseReply(request.request, through, more, tuple(pieces))

    def _read(self, destination: Destination, request: BrowseRequest) -> tuple[list[Piece], int, bool]:
        """The pieces, through which number they go, and whether damage ended them."""
        through = request.after
        pieces: list[Piece] = []
        room = self._page_bytes
        wanted = destination.live.take_from(through + 1, min(request.limit, PAGE_MESSAGES_MAX))
        for start, stop in wanted:
            while start < stop:
                if room <= 0:
                    return pieces, through, False
                try:
                    cut = self._reader.cut(destination, start, stop, room)
                except ProtocolError:
                    # It cannot be delivered either, which an operator is told then.
                    start = min(stop, destination.index.find(start).stop)
                    through = start - 1
                    continue
                if cut is None:
                    return pieces, through, True
                size = sum(map(len, cut.piece.buffers))
                if pieces and size > room:
                    return pieces, through, False
                pieces.append(cut.piece)
                room -= size
                start = cut.stop
                through = start - 1
        return pieces, through, False
