"""Antiphon: a message system that puts every message of a channel in one order and keeps it there.

import antiphon

async with antiphon.connect("antiphon://127.0.0.1:7420") as connection:
    async with connection.session() as session:
        await session.producer("queue:orders").send(b"...")
        message = await session.consumer("queue:orders").receive(timeout=1.0)
"""

from importlib.metadata import version as _version

from antiphon import blocking
from antiphon.client.aio.admin import Admin
from antiphon.client.aio.connection import Connection, connect
from antiphon.client.aio.consumer import Consumer
from antiphon.client.aio.producer import Producer
from antiphon.client.aio.ranges import Ranges
from antiphon.client.aio.session import Session
from antiphon.client.aio.staging import StagedPart, Staging
from antiphon.client.core.publication import Row
from antiphon.client.core.receipts import Receipt, Receipts
from antiphon.errors import (
    AccessDenied,
    AcknowledgeRefused,
    AntiphonError,
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
    Timeout,
    TransactionRolledBack,
    TransactionTooLarge,
    Unreadable,
    VersionMismatch,
)
from antiphon.message import Message
from antiphon.values import Float32, Int8, Int16, Int32, Value

__version__ = _version("antiphon")

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
    "Int8",
    "Int16",
    "Int32",
    "Float32",
    "Value",
    "AntiphonError",
    "LocalError",
    "NotConnected",
    "ConnectionFailed",
    "AccessDenied",
    "ClientIdInUse",
    "SessionClosed",
    "ConsumerClosed",
    "InvalidName",
    "InvalidOption",
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
