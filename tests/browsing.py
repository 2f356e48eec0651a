"""Browsing without a client: the request of a page of everything that is live, and what the page shows."""

from __future__ import annotations

from antiphon.batch import Batch
from antiphon.bus.messages import RangeReply, RangeRequest
from antiphon.wire.range_frames import PageContents, decode_page


def browse(
    destination: int, start: int = 1, *, request: int = 1, floor: int = 0, page_bytes: int = 1 << 20
) -> RangeRequest:
    """An open and live read of one destination, as `session.browse` asks for it."""
    return RangeRequest(
        request, floor, start, 0, 0, page_bytes, 1, 0, True, False, (destination,), (0,), True
    )


def shown(reply: RangeReply) -> PageContents:
    assert not reply.code, reply
    return decode_page(b"".join(reply.page))


def numbered(page: PageContents) -> list[tuple[int, bytes]]:
    """The number and the body of every message of a page."""
    return [
        (piece.first + row, body)
        for piece in page.pieces
        for row, body in enumerate(Batch.decode(piece.batch).bodies())
    ]
