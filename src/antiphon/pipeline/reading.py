"""Reading: one task's part of a range, from the broker to Arrow.

    RDG1  Either every row of the part comes, or an error: pages come with the count and the digest that the
          replica vouches for, and the client library compares them.
    RDG2  When no node answers for a while, reading goes on behind the last page that came.
    RDG3  Only the pages on their way are kept, however long the part is.

Spark makes another attempt, on this executor or another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from antiphon.pipeline.columns import ALL, Chosen
from antiphon.pipeline.filters import EVERYTHING, Narrowed
from antiphon.pipeline.planning import TaskSpan, loss_text
from antiphon.pipeline.rows import (
    AcknowledgedRow,
    BatchRows,
    acknowledgements,
    may_have,
    record_batches,
    within_times,
)

if TYPE_CHECKING:
    import pyarrow

    from antiphon.client.aio.ranges import RangePage
    from antiphon.pipeline.patience import PatientRanges

log = logging.getLogger("antiphon.pipeline")

PAGE_BYTES: Final = 2 * 1024 * 1024


def read_span(
    ranges: PatientRanges, span: TaskSpan, wanted: Chosen = ALL, narrowed: Narrowed = EVERYTHING
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of a part as record batches."""
    made = _record_batches(ranges, span, wanted, narrowed)
    return within_times(made, narrowed) if narrowed.has_times else made


def read_pages(
    ranges: PatientRanges, span: TaskSpan, wanted: Chosen
) -> Iterator[tuple[RangePage, list[pyarrow.RecordBatch]]]:
    """The same page by page, for a reader that notes what each page had, and what was lost in it."""
    names = {destination.id: destination.name for destination in span.destinations}
    for page in _pages(ranges, span):
        yield page, list(record_batches(span.channel, _pieces(page, names, EVERYTHING), wanted))


def _record_batches(
    ranges: PatientRanges, span: TaskSpan, wanted: Chosen, narrowed: Narrowed
) -> Iterator[pyarrow.RecordBatch]:
    names = {destination.id: destination.name for destination in span.destinations}
    pages = _told_pages(ranges, span, names)
    if not span.has_acks:
        # The rows of small pages are gathered.
        pieces = (piece for page in pages for piece in _pieces(page, names, narrowed))
        yield from record_batches(span.channel, pieces, wanted)
        return
    for page in pages:
        yield from record_batches(span.channel, _pieces(page, names, narrowed), wanted)
        if page.acks:
            said = [
                AcknowledgedRow(
                    names[ack.destination], ack.number, ack.log_time_ms, ack.subscription, [*ack.numbers]
                )
                for ack in page.acks
            ]
            yield acknowledgements(span.channel, said, wanted.names)


def _pages(ranges: PatientRanges, span: TaskSpan) -> Iterator[RangePage]:
    return ranges.read(
        span.channel,
        span.start,
        span.stop,
        span.destinations,
        allow_lost=span.allows_loss,
        acks=span.has_acks,
        live=span.is_live,
        page_bytes=PAGE_BYTES,
    )


def _told_pages(ranges: PatientRanges, span: TaskSpan, names: dict[int, str]) -> Iterator[RangePage]:
    """The pages, with a warning of what is missing in them."""
    for page in _pages(ranges, span):
        for id, first, last in page.lost:
            log.warning(loss_text(names[id], span.channel, first, last))
        yield page


def _pieces(page: RangePage, names: dict[int, str], narrowed: Narrowed) -> Iterator[BatchRows]:
    pieces = (BatchRows(names[piece.destination], piece.first, piece.batch) for piece in page.pieces)
    return (piece for piece in pieces if may_have(piece, narrowed)) if narrowed.has_times else pieces
