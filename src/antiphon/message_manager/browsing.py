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
    B5  Whoever asks again before the page could be given is answered once. What waits is bounded: a question
        too many is refused at once, with words.

What it leaves to others
    Whether a client may look is the client manager's business.
"""

from __future__ import annotations

from typing import Final

from antiphon.bus.effects import Send
from antiphon.bus.messages import BrowseReply, BrowseRequest, Piece
from antiphon.errors import ProtocolError
from antiphon.message_manager.reading import BatchReader
from antiphon.message_manager.state.channel_state import ChannelState
from antiphon.message_manager.state.destinations.directory import Destination

PAGE_MESSAGES_MAX: Final = 10_000
PAGES_AT_ONCE: Final = 8

WAITING_MAX: Final = 4_096
"""Questions that wait. A client manager asks one for each connection; a client that is refused asks later."""

NO_DESTINATION: Final = "destination.unknown"
BUSY: Final = "limit"


class BrowsePages:
    """The pages that client managers wait for."""

    __slots__ = ("_held_up", "_page_bytes", "_reader", "_refused", "_waiting")

    def __init__(self, reader: BatchReader, page_bytes: int) -> None:
        self._reader = reader
        self._page_bytes = page_bytes
        # By who asks, and the number of the question.
        self._waiting: dict[tuple[int, int], BrowseRequest] = {}
        # Those whose page begins with a record that is being mended.
        self._held_up: dict[tuple[int, int], BrowseRequest] = {}
        self._refused: list[Send] = []

    def mended(self) -> None:
        """A damaged record can be read again."""
        self._waiting.update(self._held_up)
        self._held_up.clear()

    def ask(self, sender: int, request: BrowseRequest) -> None:
        key = (sender, request.request)
        if key in self._held_up:
            return
        if key not in self._waiting and len(self._waiting) + len(self._held_up) >= WAITING_MAX:
            text = "too many questions wait for a page of this replica: ask again later"
            refusal = BrowseReply(request.request, request.after, False, code=BUSY, text=text)
            self._refused.append(Send(sender, refusal))
            return
        self._waiting[key] = request

    def is_due(self, state: ChannelState) -> bool:
        """Can a page be given now, or must one be refused?"""
        if self._refused:
            return True
        return bool(self._waiting) and any(one.floor <= state.applied for one in self._waiting.values())

    def flush(self, state: ChannelState) -> list[Send]:
        """The pages that can be given now, a few of them; the others wait (B2, B3)."""
        given, self._refused = self._refused, []
        left = PAGES_AT_ONCE
        for key, request in list(self._waiting.items()) if self._waiting else ():
            if not left:
                break
            if request.floor > state.applied:
                continue
            del self._waiting[key]
            page = self._page(state, request)
            if page is None:
                self._held_up[key] = request
            else:
                left -= 1
                given.append(Send(key[0], page))
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
