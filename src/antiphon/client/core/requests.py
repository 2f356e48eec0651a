"""RequestTable: the requests without an answer yet.

An awaited request is asked again on another connection, under the same number.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, TypeAlias

from antiphon.errors import ProtocolError
from antiphon.wire import frames

REQUEST_MAX = 0xFFFF_FFFF

RequestFrame: TypeAlias = (
    frames.SessionOpen
    | frames.SessionClose
    | frames.DestinationOpen
    | frames.DestinationCreate
    | frames.DestinationsCreate
    | frames.SubscriptionFind
    | frames.ConsumerOpen
    | frames.ConsumerResume
    | frames.ConsumerClose
    | frames.ConsumerCheck
    | frames.ConsumerDrain
    | frames.TransactionCommit
    | frames.TransactionAsk
    | frames.RangeAsk
    | frames.RangeRead
    | frames.Ask
)

ANSWERS: Final[dict[type[RequestFrame], type]] = {
    frames.SessionOpen: frames.SessionOpened,
    frames.SessionClose: frames.Done,
    frames.DestinationOpen: frames.DestinationOpened,
    frames.DestinationCreate: frames.DestinationOpened,
    frames.DestinationsCreate: frames.DestinationsCreated,
    frames.SubscriptionFind: frames.SubscriptionFound,
    frames.ConsumerOpen: frames.Done,
    frames.ConsumerResume: frames.ConsumerResumed,
    frames.ConsumerClose: frames.Done,
    frames.ConsumerCheck: frames.Done,
    frames.ConsumerDrain: frames.Done,
    frames.TransactionCommit: frames.TransactionDecided,
    frames.TransactionAsk: frames.TransactionDecided,
    frames.RangeAsk: frames.RangeTold,
    frames.RangeRead: frames.RangePage,
    frames.Ask: frames.Answer,
}
"""The answer to each kind of request, unless it fails."""

VOID_REMEMBERED = 1_024
"""The last requests that ended with their session: the server may still answer them."""


@dataclass(slots=True)
class Request:
    frame: RequestFrame
    is_own: bool = False  # the core asks, and on another connection would ask something else
    is_abandoned: bool = False  # the answer is not awaited any more

    @property
    def session(self) -> int:
        """The session that must be on the connection when this is asked; 0: none."""
        match self.frame:
            case (
                frames.SessionOpen()
                | frames.DestinationCreate()
                | frames.DestinationsCreate()
                | frames.RangeAsk()
                | frames.RangeRead()
                | frames.Ask()
            ):
                return 0
        return self.frame.session

    @property
    def consumer(self) -> int:
        match self.frame:
            case frames.ConsumerOpen() | frames.ConsumerResume() | frames.ConsumerClose():
                return self.frame.consumer
        return 0


class RequestTable:
    """The requests of one client, by their numbers, in the order of asking."""

    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}
        # Requests that ended with their session, on this connection: the server may still answer them.
        self._void: deque[int] = deque(maxlen=VOID_REMEMBERED)
        self._last = 0

    def next_number(self) -> int:
        assert len(self._waiting) < REQUEST_MAX, "four thousand million requests wait for their answer"
        # A number of long ago may still wait for its answer: a resumed consumer's, while there is no server.
        self._last = self._last % REQUEST_MAX + 1
        while self._last in self._waiting or self._last in self._void:
            self._last = self._last % REQUEST_MAX + 1
        return self._last

    def add(self, frame: RequestFrame, *, is_own: bool = False) -> Request:
        request = self._waiting[frame.request] = Request(frame, is_own)
        return request

    def take(self, number: int) -> Request | None:
        """The request of an answer; None if the request ended with its session."""
        request = self._waiting.pop(number, None)
        if request is None and number in self._void:
            self._void.remove(number)
            return None
        if request is None:
            raise ProtocolError(f"request {number} was answered, and never asked or answered before")
        return request

    def abandon(self, number: int) -> None:
        if number in self._waiting:
            self._waiting[number].is_abandoned = True

    def end(self, request: Request) -> None:
        """The session of the request is over: its answer is ignored."""
        del self._waiting[request.frame.request]
        self._void.append(request.frame.request)

    def of_session(self, session: int) -> list[Request]:
        """The requests within a session; with 0, those within none."""
        return [request for request in self._waiting.values() if request.session == session]

    def take_unneeded(self) -> list[Request]:
        """Requests that need no answer when the connection is gone: the core's own, and abandoned ones."""
        self._void.clear()
        unneeded = [r for r in self._waiting.values() if r.is_own or r.is_abandoned]
        for request in unneeded:
            del self._waiting[request.frame.request]
        return unneeded

    def clear(self) -> None:
        self._void.clear()
        self._waiting.clear()


def question_about(commit: frames.TransactionCommit) -> frames.TransactionAsk:
    """The question for the outcome of a commit. An application's is decided in the system channel, whose name
    the client does not know."""
    home = "" if commit.application else min(part.channel for part in commit.parts)
    return frames.TransactionAsk(
        request=commit.request, session=commit.session, transaction=commit.transaction, home=home
    )
