"""Antiphon: a message system that puts every message of a channel in one order and keeps it there.

import antiphon

async with antiphon.connect("antiphon://127.0.0.1:7420") as connection:
    async with connection.session() as session:
        await session.producer("queue:orders").send(b"...")
        message = await session.consumer("queue:orders").receive(timeout=1.0)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from antiphon.errors import (
    AccessDenied,
    AcknowledgeRefused,
    AntiphonError,
    ArchiveDamaged,
    ArchiveError,
    ClientIdInUse,
    CommitUncertain,
    ConnectionFailed,
    ConsumerClosed,
    Damaged,
    DataDirectoryLocked,
    DestinationError,
    DestinationInUse,
    DestinationUnavailable,
    FormatMismatch,
    InvalidMessage,
    InvalidName,
    InvalidOption,
    InvalidPattern,
    InvalidSelector,
    LocalError,
    MessageTooLarge,
    NodeError,
    NoSpace,
    NotConnected,
    ProtocolError,
    PublishError,
    PublishRefused,
    PublishUncertain,
    RangeError,
    RangeLost,
    RangeUnavailable,
    RemoteError,
    SessionClosed,
    StorageFailed,
    SubscriptionError,
    SubscriptionInUse,
    SubscriptionUnavailable,
    Timeout,
    TlsFailed,
    TransactionRolledBack,
    TransactionTooLarge,
    Unreadable,
    VersionMismatch,
)

if TYPE_CHECKING:
    from antiphon import blocking as blocking
    from antiphon.client.aio.admin import Admin
    from antiphon.client.aio.connection import Connection, connect
    from antiphon.client.aio.consumer import Consumer
    from antiphon.client.aio.creating import CreationResult
    from antiphon.client.aio.producer import Producer
    from antiphon.client.aio.ranges import Ranges
    from antiphon.client.aio.session import Session
    from antiphon.client.aio.staging import StagedPart, Staging
    from antiphon.client.core.publication import Row
    from antiphon.client.core.receipts import Receipt, Receipts
    from antiphon.message import Message
    from antiphon.tls import Tls
    from antiphon.values import Float32, Int8, Int16, Int32, Value
else:
    # The client is loaded when a program first uses it. The nodes of a cluster import this package, too, and
    # a node would spend a third of its start on a client that it never uses.
    _HOMES = {
        "antiphon.client.aio.admin": ("Admin",),
        "antiphon.client.aio.connection": ("Connection", "connect"),
        "antiphon.client.aio.consumer": ("Consumer",),
        "antiphon.client.aio.creating": ("CreationResult",),
        "antiphon.client.aio.producer": ("Producer",),
        "antiphon.client.aio.ranges": ("Ranges",),
        "antiphon.client.aio.session": ("Session",),
        "antiphon.client.aio.staging": ("StagedPart", "Staging"),
        "antiphon.client.core.publication": ("Row",),
        "antiphon.client.core.receipts": ("Receipt", "Receipts"),
        "antiphon.message": ("Message",),
        "antiphon.tls": ("Tls",),
        "antiphon.values": ("Float32", "Int8", "Int16", "Int32", "Value"),
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

    def __getattr__(name: str) -> Any:
        """A public name, from the module that defines it; asked for once."""
        if name == "blocking":
            # The import makes the package an attribute.
            return import_module("antiphon.blocking")
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "connect",
    "blocking",
    "Connection",
    "Session",
    "Producer",
    "Consumer",
    "Message",
    "Receipt",
    "Receipts",
    "Row",
    "Staging",
    "StagedPart",
    "Ranges",
    "Admin",
    "CreationResult",
    "Tls",
    "Int8",
    "Int16",
    "Int32",
    "Float32",
    "Value",
    "AntiphonError",
    "LocalError",
    "NotConnected",
    "ConnectionFailed",
    "TlsFailed",
    "AccessDenied",
    "ClientIdInUse",
    "SessionClosed",
    "ConsumerClosed",
    "InvalidName",
    "InvalidOption",
    "InvalidPattern",
    "InvalidSelector",
    "InvalidMessage",
    "MessageTooLarge",
    "RemoteError",
    "ProtocolError",
    "VersionMismatch",
    "PublishError",
    "PublishRefused",
    "PublishUncertain",
    "AcknowledgeRefused",
    "DestinationError",
    "DestinationInUse",
    "DestinationUnavailable",
    "RangeError",
    "RangeLost",
    "RangeUnavailable",
    "SubscriptionError",
    "SubscriptionInUse",
    "SubscriptionUnavailable",
    "ArchiveError",
    "ArchiveDamaged",
    "TransactionRolledBack",
    "TransactionTooLarge",
    "Timeout",
    "CommitUncertain",
    "NodeError",
    "DataDirectoryLocked",
    "Damaged",
    "Unreadable",
    "StorageFailed",
    "FormatMismatch",
    "NoSpace",
    "__version__",
]
