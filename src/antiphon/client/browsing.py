"""Browsing: the stored messages of a destination, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from antiphon.batch import Batch
from antiphon.client.scope import SessionScope
from antiphon.message import Delivery, Message, messages_of
from antiphon.wire.frames import Browsed, DestinationOpened

PAGE_MESSAGES = 1_000


async def browse(scope: SessionScope, destination: str, create: bool) -> AsyncIterator[Message]:
    """The messages that are there, in order. A page is asked for when the one before it is used up."""
    await scope.core()
    # Not for the session: nothing will be ordered, and one may look while nothing can be.
    link = scope.link
    request = link.core.open_destination(destination, create=create)
    opened = await link.call(request, DestinationOpened, scope.timeout)
    after, more = 0, True
    while more:
        link = scope.link
        request = link.core.browse(opened, after, PAGE_MESSAGES)
        page = await link.call(request, Browsed, scope.timeout)
        after, more = page.through, page.more
        for first_sequence, redelivery_count, data in page.pieces:
            delivery = Delivery(opened.channel, destination, first_sequence, redelivery_count)
            for message in messages_of(Batch.decode(data), delivery):
                yield message
