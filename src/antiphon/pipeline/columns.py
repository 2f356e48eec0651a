"""Columns: the columns of the source, with Spark's types.

Apart from `rows`, which fills them, because Spark asks for them in processes that read nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from antiphon.batch import ColumnId

COLUMNS: Final = {
    "destination": "string",
    "channel": "string",
    "sequence": "bigint",
    "message_id": "string",
    "timestamp": "timestamp",
    "priority": "int",
    "key": "string",
    "correlation_id": "string",
    "reply_to": "string",
    "type": "string",
    "properties": "map<string,string>",
    "property_types": "map<string,string>",
    "body_kind": "string",
    "expires": "timestamp",
    "persistent": "boolean",
}

TEXT_COLUMNS: Final = {
    "key": ColumnId.KEY,
    "correlation_id": ColumnId.CORRELATION_ID,
    "reply_to": ColumnId.REPLY_TO,
    "type": ColumnId.TYPE,
}
"""The columns that stored batches have as texts, too; the sink knows them by the same names."""

BODY: Final = {"body": "binary"}
"""Unless `includeBody` is off."""

ACKNOWLEDGED: Final = {
    "acknowledged": (
        "struct<subscription:bigint,time:timestamp,ranges:array<struct<first:bigint,last:bigint>>>"
    )
}
"""With `includeAcks`. Null for messages."""

ACKNOWLEDGEMENT: Final = "acknowledgement"
"""The `body_kind` of a row that is an acknowledgement and no message."""


STORED: Final = {"stored_body": "binary", "deliver_at": "timestamp"}
"""What an archive has besides, so that a replay sends the same: maps and lists as they are stored (null for
other bodies), and the time before which a message is not delivered."""


EVERY_COLUMN: Final = {**COLUMNS, **BODY, **ACKNOWLEDGED, **STORED}


class Chosen(NamedTuple):
    """The columns that a query reads, in its order, and how maps and lists stand in the column `body`."""

    names: tuple[str, ...] = (*COLUMNS, *BODY)
    is_json: bool = True  # or as they are stored


ALL: Final = Chosen()
"""The columns of a query that does not choose."""

ARCHIVED: Final = Chosen((*COLUMNS, *BODY, *STORED))
"""The columns of an archive."""


def names_of(has_body: bool, has_acks: bool = False) -> tuple[str, ...]:
    """The default columns."""
    return (*COLUMNS, *(BODY if has_body else ()), *(ACKNOWLEDGED if has_acks else ()))


def spark_schema(names: Iterable[str]) -> str:
    """Columns with their types, as one text.

    >>> spark_schema(["destination", "sequence"]) 'destination string, sequence bigint'
    """
    return ", ".join(f"{name} {EVERY_COLUMN[name]}" for name in names)
