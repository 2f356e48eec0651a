"""Every error Antiphon raises on purpose.

    AntiphonError
    +-- LocalError              the caller asked for something that cannot be; nothing was sent
    |   +-- NotConnected
    |   +-- ConnectionFailed    none of the servers could be reached
    |   |   +-- TlsFailed       the two sides do not trust each other, or one of them speaks no TLS
    |   +-- AccessDenied
    |   +-- ClientIdInUse       another connection has it, somewhere in the cluster
    |   +-- SessionClosed
    |   +-- ConsumerClosed
    |   +-- InvalidName
    |   +-- InvalidMessage      a body, a property or a header that no message may have
    |   +-- InvalidSelector     a condition on messages that breaks the rules of selectors
    |   +-- InvalidPattern      a pattern of names that cannot be understood here
    |   +-- InvalidOption       an option of the Spark source or sink that is unknown, or cannot be
    |   +-- MessageTooLarge
    |   +-- TransactionTooLarge     beyond the limits of a transaction; nothing of it is left behind
    +-- RemoteError             the peer broke the protocol; the connection is over
    |   +-- ProtocolError       malformed bytes
    |   +-- VersionMismatch
    +-- PublishError            the fate of published messages
    |   +-- PublishRefused      not stored; sending again is safe
    |   +-- PublishUncertain    may have been stored; resend with the same ids
    +-- AcknowledgeRefused      the message was given to another consumer meanwhile
    +-- DestinationError        a destination cannot be found, made or used like this
    |   +-- DestinationUnavailable  its channel does not answer; what is known can still be used
    |   +-- DestinationInUse    it cannot be deleted while a consumer has it
    +-- RangeError              a range of stored messages cannot be read
    |   +-- RangeLost           a part of it is not kept any more
    |   +-- RangeUnavailable    it does not exist yet, or its channel does not answer
    |   +-- OtherCluster        the numbers that were given are those of another cluster
    +-- SubscriptionError       a subscription cannot be found, made or removed
    |   +-- SubscriptionInUse   another consumer has it at this moment
    |   +-- SubscriptionUnavailable  a channel that may have it does not answer
    +-- ArchiveError            an archive of messages cannot be read or written like this
    |   +-- ArchiveDamaged      its files are not those that were written
    +-- TransactionRolledBack
    +-- Timeout                 also a TimeoutError
    |   +-- CommitUncertain     whether a transaction was committed is not known yet; ask again
    +-- NodeError               a node cannot start, or cannot go on
        +-- DataDirectoryLocked
        +-- Damaged             bytes on disk are not the bytes that were written
        +-- Unreadable          they are, and this version cannot make sense of them
        +-- StorageFailed
        +-- FormatMismatch
        +-- NoSpace

A failed `assert` is none of these. It is a bug in Antiphon, and the node that
meets one stops rather than go on with a state it no longer understands.

`code` is stable: it goes on the wire, into logs and into metrics. It starts
with the code of the parent, so a peer that does not know a newer code still
knows its family.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, ClassVar


class AntiphonError(Exception):
    """The root of every deliberate error: `text` says what is now true, `code` names it."""

    code: ClassVar[str] = "error"

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text

    def __reduce__(self) -> tuple[Callable[..., AntiphonError], tuple[Any, ...], dict[str, Any]]:
        # Errors cross process borders (a Spark worker's, for one), whatever their constructor takes.
        return error_from_code, (self.code, self.text), self.__dict__


class LocalError(AntiphonError):
    """The caller asked for something that cannot be. Nothing was sent."""

    code = "local"


class NotConnected(LocalError):
    """There is no connection, or no longer one."""

    code = "local.not_connected"


class ConnectionFailed(LocalError):
    """None of the servers could be reached; `tried` lists them in the order of the attempts."""

    code = "local.connection_failed"
    tried: tuple[str, ...] = ()

    def __init__(self, text: str, tried: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.tried = tuple(tried)


class TlsFailed(ConnectionFailed):
    """No server passes the check of certificates, or none speaks TLS. Trying again does not help."""

    code = "local.connection_failed.tls"


class AccessDenied(LocalError):
    """The user is unknown, or has no right to do this."""

    code = "local.access_denied"


class ClientIdInUse(LocalError):
    """Another connection has the client id. Close that one, or wait until its loss has been noticed."""

    code = "local.client_id_in_use"


class SessionClosed(LocalError):
    """The session was closed, by the application or because it expired."""

    code = "local.session_closed"


class ConsumerClosed(LocalError):
    """The consumer was closed and gives no more messages."""

    code = "local.consumer_closed"


class InvalidName(LocalError):
    """The name of a destination, property or message breaks the rules of names."""

    code = "local.invalid_name"


class InvalidMessage(LocalError):
    """A body, a property or a header has a type or a value that no message may have."""

    code = "local.invalid_message"


class InvalidSelector(LocalError):
    """A selector breaks the rules of Jakarta Messaging's selectors; `position` is the first wrong character.

    Positions count from 0; an error that came from a server shows its place in the text only.
    """

    code = "local.invalid_selector"
    position: int = 0

    @classmethod
    def at(cls, selector: str, position: int, expected: str) -> InvalidSelector:
        """The error that shows the place: two lines of the text below a sentence."""
        start = max(0, position - 40)
        shown = "".join([c if c.isprintable() else " " for c in selector[start : position + 30]])
        error = cls(
            f"the selector is not valid at column {position + 1}: expected {expected}\n"
            f"    {shown}\n    {' ' * (position - start)}^"
        )
        error.position = position
        return error


class InvalidPattern(LocalError):
    """A pattern of names is no glob or no regular expression of RE2, or RE2 is not installed here."""

    code = "local.invalid_pattern"


class InvalidOption(LocalError):
    """An option of the Spark source or sink is unknown, missing, or has a value that cannot be."""

    code = "local.invalid_option"


class MessageTooLarge(LocalError):
    """The message, or one part of it, is larger than the limit. Nothing was stored."""

    code = "local.message_too_large"


class TransactionTooLarge(LocalError):
    """The transaction has more messages, or more bytes, for one channel than it may. It is rolled back."""

    code = "local.transaction_too_large"


class RemoteError(AntiphonError):
    """The peer broke the protocol. The connection is over."""

    code = "remote"


class ProtocolError(RemoteError):
    """The bytes are malformed; `reason` says where they stop making sense."""

    code = "remote.protocol"

    @property
    def reason(self) -> str:
        return self.text


class VersionMismatch(RemoteError):
    """The peer speaks no version of the protocol that we speak."""

    code = "remote.version_mismatch"


class PublishError(AntiphonError):
    """The fate of published messages.

    Of a `send_many`, the first `confirmed` messages are stored.
    """

    code = "publish"
    confirmed: int = 0

    def __init__(self, text: str = "", *, confirmed: int = 0) -> None:
        super().__init__(text)
        self.confirmed = confirmed


class PublishRefused(PublishError):
    """The message was not stored, nor any after it. Sending again is safe."""

    code = "publish.refused"


class PublishUncertain(PublishError):
    """The answer was lost. The messages may or may not have been stored.

    `resend` publishes again with the same ids: the destination keeps the first copy and
    drops the second. Another process does so with `send(…, message_id=…)`.
    """

    code = "publish.uncertain"
    message_ids: tuple[str, ...] = ()
    _again: Callable[[Any], Awaitable[Any]] | None = None
    """How the library sends them again."""

    def __init__(self, text: str = "", *, message_ids: Iterable[str] = (), confirmed: int = 0) -> None:
        super().__init__(text, confirmed=confirmed)
        self.message_ids = tuple(message_ids)

    @property
    def message_id(self) -> str | None:
        """The id of the first message whose fate is not known."""
        return self.message_ids[0] if self.message_ids else None

    async def resend(self, timeout: Any = None) -> Any:
        """Send the messages again under the same ids, and wait for their outcome for `timeout` seconds.

        Returns the receipt of a `send`, or the receipts of those messages of a `send_many` whose fate was
        not known: they follow the `confirmed` first ones. Raises PublishUncertain again when the time is
        over, PublishRefused when it turns out that they are not stored. If `timeout` is not given it is
        that of the first attempt.

        >>> try:
        ...     receipt = await producer.send(b"...")
        ... except antiphon.PublishUncertain as error:
        ...     receipt = await error.resend(timeout=300)
        """
        if self._again is None:
            raise LocalError("these messages can only be sent again with message_id=, where they were made")
        return await self._again(timeout)

    def __reduce__(self) -> tuple[Callable[..., AntiphonError], tuple[Any, ...], dict[str, Any]]:
        # The means to send the messages again stay in this process.
        make, arguments, state = super().__reduce__()
        return make, arguments, {name: value for name, value in state.items() if name != "_again"}


class AcknowledgeRefused(AntiphonError):
    """The message was given to another consumer meanwhile, which is now responsible for it."""

    code = "acknowledge_refused"


class DestinationError(AntiphonError):
    """There is no such destination, it cannot be made so, or it does not do this."""

    code = "destination"


class DestinationUnavailable(DestinationError):
    """The channel that knows of the destination, or is to make it, does not answer at the moment.

    Most likely too few of its nodes can be reached. Destinations that are known can still be used; to find or
    make this one, try again later.
    """

    code = "destination.unavailable"


class DestinationInUse(DestinationError):
    """A temporary destination has a consumer. When that one is closed, the destination can be deleted."""

    code = "destination.in_use"


class RangeError(AntiphonError):
    """A range of stored messages cannot be read."""

    code = "range"


class RangeLost(RangeError):
    """Messages that the range had are not kept any more: retention has let go of them.

    They are those of `destination` with numbers from `first` through `last`, at least the last of them.
    """

    code = "range.lost"
    destination: str = ""
    channel: str = ""
    first: int = 0
    last: int = 0

    def __init__(self, destination: str, channel: str, first: int, last: int, more: str = "") -> None:
        super().__init__(
            f"messages of {destination} are not kept any more: numbers {first} to {last} of {channel}{more}"
        )
        self.destination = destination
        self.channel = channel
        self.first = first
        self.last = last


class RangeUnavailable(RangeError):
    """The range goes beyond what there is, or no replica of its channel answers at the moment.

    Of a cluster that exists, what was once there is there again later: try again.
    """

    code = "range.unavailable"


class OtherCluster(RangeError):
    """The numbers that a reader goes on from were given by another cluster than the one that answers."""

    code = "range.other_cluster"


class SubscriptionError(AntiphonError):
    """There is no such subscription, or it cannot be made or removed as asked."""

    code = "subscription"


class SubscriptionInUse(SubscriptionError):
    """Another consumer is attached to the subscription. When that one is closed, try again."""

    code = "subscription.in_use"


class SubscriptionUnavailable(SubscriptionError):
    """A channel that may have the subscription does not answer. Try again later."""

    code = "subscription.unavailable"


class ArchiveError(AntiphonError):
    """An archive of messages cannot be read or written like this."""

    code = "archive"


class ArchiveDamaged(ArchiveError):
    """Files of an archive are not those that were written. An audit says which messages that concerns."""

    code = "archive.damaged"


class TransactionRolledBack(AntiphonError):
    """Nothing of the transaction happened. It may be tried again from its beginning."""

    code = "transaction_rolled_back"


class Timeout(AntiphonError, TimeoutError):
    """The answer did not come in the time the caller gave."""

    code = "timeout"


class CommitUncertain(Timeout):
    """Whether the transaction was committed is not known yet. `await session.commit()` again asks for it."""

    code = "timeout.commit_uncertain"
    transaction_id: str = ""

    def __init__(self, text: str = "", *, transaction_id: str = "") -> None:
        super().__init__(text)
        self.transaction_id = transaction_id


class NodeError(AntiphonError):
    """A node cannot start, or cannot go on."""

    code = "node"


class DataDirectoryLocked(NodeError):
    """Another process works in the data directory."""

    code = "node.data_directory_locked"


class Damaged(NodeError):
    """The bytes in `file` at `offset` are not the bytes that were written there."""

    code = "node.damaged"
    file: str = ""
    offset: int = 0
    what: str = ""

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(f"{file} is damaged at byte {offset}: {what}")
        self.file = file
        self.offset = offset
        self.what = what


class Unreadable(NodeError):
    """The bytes are those that were written, and this version of Antiphon cannot make sense of them."""

    code = "node.unreadable"


class StorageFailed(NodeError):
    """The disk refused a write or a sync. What was not yet confirmed may be lost."""

    code = "node.storage_failed"


class FormatMismatch(NodeError):
    """The data directory was written in a format that this version does not read."""

    code = "node.format_mismatch"


class NoSpace(NodeError):
    """The disk is full. Nothing is accepted until there is room again."""

    code = "node.no_space"


def error_from_code(code: str, text: str) -> AntiphonError:
    """The error a peer means by `code`; an unknown code becomes its nearest known family.

    >>> error_from_code("publish.refused", "the queue is full")
    PublishRefused('the queue is full')
    """
    family = code
    while family and family not in _CLASSES:
        family = family.rpartition(".")[0]
    cls = _CLASSES.get(family, AntiphonError)
    error = cls.__new__(cls)
    # Constructors differ; the class has defaults for the attributes that they would set.
    AntiphonError.__init__(error, text)
    return error


def _tree(root: type[AntiphonError]) -> Iterator[type[AntiphonError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_CLASSES = {cls.code: cls for cls in _tree(AntiphonError)}
