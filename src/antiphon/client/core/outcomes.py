"""Outcomes of commands as the errors an application sees."""

from __future__ import annotations

from antiphon.errors import (
    AcknowledgeRefused,
    AntiphonError,
    DestinationError,
    PublishError,
    PublishRefused,
    PublishUncertain,
    SessionClosed,
    SubscriptionError,
    SubscriptionInUse,
    TransactionRolledBack,
)
from antiphon.ids import format_message_id
from antiphon.wire.commands import ConfirmItem, OutcomeCode

STORED = frozenset(map(int, (OutcomeCode.APPLIED, OutcomeCode.DUPLICATE, OutcomeCode.KNOWN)))

# The sender of a message is told that all is well: non-persistent ones need only be taken.
ACCEPTED = STORED | {int(OutcomeCode.TAKEN)}

# After these the channel cannot tell whether it ever stored the message.
_UNCERTAIN = {
    int(OutcomeCode.STALE): "the session goes on elsewhere",
    int(OutcomeCode.SESSION_UNKNOWN): "the session has expired",
    int(OutcomeCode.FORGOTTEN): "what became of it has been forgotten",
}
_REFUSED = {
    int(OutcomeCode.NO_DESTINATION): "the destination does not exist any more",
    int(OutcomeCode.REFUSED): "the destination refused it",
    int(OutcomeCode.GAP): "a message before it is missing",
}

# The channel counts the messages of one call that were not there. It has done the call for the others.
_LOST = (
    "meanwhile they were given to another consumer, purged or moved; for any others the call "
    "counts, and it need not be repeated"
)


def publish_error(item: ConfirmItem, session: int, channel: str) -> AntiphonError:
    """Why a message with this outcome was not stored, or may not have been."""
    if item.code == OutcomeCode.TX_ROLLED_BACK:
        return TransactionRolledBack(item.text)
    if item.code in _UNCERTAIN:
        text = item.text or _UNCERTAIN[item.code]
        ids = message_ids(session, channel, item.number, item.count)
        return PublishUncertain(f"the message may or may not be stored: {text}", message_ids=ids)
    text = item.text or _REFUSED.get(item.code, "for a reason this client does not know")
    return PublishRefused(f"the message was not stored: {text}")


def lost_error(
    error: AntiphonError, session: int, channel: str, first_number: int, count: int
) -> PublishError:
    """The outcome of messages whose connection was lost; `first_number` is 0 if they never left."""
    if not first_number:
        return PublishRefused(f"the message was never sent: {error}")
    return PublishUncertain(
        f"the message may or may not be stored: {error}",
        message_ids=message_ids(session, channel, first_number, count),
    )


def message_ids(session: int, channel: str, first_number: int, count: int) -> list[str]:
    return [
        format_message_id(session, channel, number) for number in range(first_number, first_number + count)
    ]


def acknowledge_error(item: ConfirmItem) -> AcknowledgeRefused | None:
    """Why an acknowledgement did not succeed; None when it did."""
    match item.code:
        case OutcomeCode.APPLIED | OutcomeCode.DUPLICATE:
            return None
        case OutcomeCode.ACK_LOST:
            if item.text:
                return AcknowledgeRefused(f"{item.text}: {_LOST}")
            return AcknowledgeRefused(f"message {item.sequence} was given to another consumer meanwhile")
        case OutcomeCode.NO_DESTINATION:
            return AcknowledgeRefused(item.text or "the destination does not exist any more")
    return AcknowledgeRefused(item.text or _UNCERTAIN.get(item.code, "the acknowledgement was refused"))


def destination_error(item: ConfirmItem, name: str) -> AntiphonError | None:
    """Why a destination was not made, changed or deleted as asked; None when it was."""
    if item.code in STORED:
        return None
    if item.code == OutcomeCode.NO_DESTINATION:
        return DestinationError(f"there is no destination {name} any more")
    if item.code in _UNCERTAIN:
        return SessionClosed(item.text or _UNCERTAIN[item.code])
    return DestinationError(item.text or f"{name}: the channel refused it ({item.code})")


def subscription_error(item: ConfirmItem) -> AntiphonError | None:
    """Why a subscription was neither begun nor ended as asked; None when it was."""
    match item.code:
        case OutcomeCode.APPLIED | OutcomeCode.DUPLICATE | OutcomeCode.EXISTS:
            return None
        case OutcomeCode.NO_DESTINATION:
            return DestinationError(item.text or "the destination does not exist any more")
        case OutcomeCode.STALE | OutcomeCode.SESSION_UNKNOWN:
            return SessionClosed(item.text or _UNCERTAIN[item.code])
        case OutcomeCode.DIFFERS:
            return SubscriptionInUse(item.text or "the subscription has another selector")
    return SubscriptionError(item.text or "the subscription was refused")
