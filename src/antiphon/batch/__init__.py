"""Batches: messages in columns, from the producer's hand to the consumer's.

layout      the bytes: header, directory, columns, limits
column      one column of a batch
batch       `Batch`: read, slice and encode
decoding    bytes from anywhere -> `Batch`, or ProtocolError
contents    can every body, text and property be read?
bodies      the kinds of body and their bytes
properties  what a property may be; property columns
builder     `BatchBuilder`: messages, checked one by one -> `Batch`
"""

from antiphon.batch.batch import Batch
from antiphon.batch.bodies import BodyKind
from antiphon.batch.builder import BatchBuilder
from antiphon.batch.layout import BATCH_BYTES_MAX, BODY_BYTES_MAX, ROWS_MAX, BatchRule, ColumnId

__all__ = [
    "Batch",
    "BatchBuilder",
    "BatchRule",
    "BodyKind",
    "ColumnId",
    "BATCH_BYTES_MAX",
    "BODY_BYTES_MAX",
    "ROWS_MAX",
]
