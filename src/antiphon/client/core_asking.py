"""Asking: credit for what somebody waits for, and getting back what nobody waits for any more.

Where it sits
    whoever takes messages for the application  ->  ASKING  ->  Credit, ConsumerDrain  ->  client manager

What it promises
    A1  A consumer with a prefetch of 0 has credit for what somebody waits for, and for nothing beyond that.
    A2  Acknowledgements that wait leave before the next message is asked for, unless the session is lazy.
    A3  When a server answers that it has drained a consumer, all that it sent is here, and nothing is on its
        way. Until then the consumer gets no new credit.
    A4  Whoever stops waiting has credit that nobody needs taken back. What is still sent on it goes to who
        waits by then; if nobody does, it goes back to its queue, uncounted.

What it leaves to others
    Which messages were delivered and taken, and what credit that makes, is the consumer's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.client.core_consumer import ConsumerCore
from antiphon.client.core_events import CreditReturned, Event
from antiphon.client.core_session import SessionCore
from antiphon.wire.frames import AckMode, ConsumerDrain, Done


class CreditOnDemand:
    """Asks for the consumers of one client; `ask` is the core's way to make a request of its own."""

    __slots__ = ("_request",)

    def __init__(self, request: Callable[..., Any]) -> None:
        self._request = request

    def ask(self, session: SessionCore, consumer: ConsumerCore, asker: object, count: int) -> None:
        """Somebody waits for so many messages; a consumer that has a prefetch has credit for them (A1)."""
        if consumer.prefetch_messages:
            return
        if session.ack_mode is not AckMode.DUPS_OK:
            session.send_gathered(consumer)
        consumer.wants[asker] = count
        consumer.late.discard(asker)
        session.grant(consumer)

    def stop(self, consumer: ConsumerCore, asker: object) -> None:
        """The asker takes what comes until the server has answered, and waits for no more."""
        consumer.late.add(asker)

    def drain(self, session: SessionCore, consumer: ConsumerCore) -> None:
        """Have the server send what is there now, and take back the rest of the credit (A3)."""
        if consumer.is_draining or consumer.is_closing or not session.is_open:
            return
        consumer.is_draining = True
        of_session, number, (messages, size) = session.session, consumer.consumer, consumer.granted
        self._request(
            lambda request: ConsumerDrain(
                request=request, session=of_session, consumer=number, messages=messages, bytes=size
            ),
            Done,
            of_session,
            is_own=True,
        )

    def leave(self, session: SessionCore, consumer: ConsumerCore, asker: object) -> None:
        """The asker has got what it waited for, or waits no more (A4)."""
        consumer.late.discard(asker)
        if consumer.wants.pop(asker, None) is not None:
            self.look(session, consumer)
            if consumer.has_idle_credit:
                self.drain(session, consumer)

    def look(self, session: SessionCore, consumer: ConsumerCore) -> None:
        """Messages came, or were put back: what nobody waits for goes back to its queue (A4)."""
        if not consumer.prefetch_messages and not consumer.is_closing and session.error is None:
            session.return_unseen(consumer, consumer.take_unwanted())

    def answered(self, session: SessionCore | None, number: int) -> list[Event]:
        """The server has answered a drain, or cannot: the credit is as good as none (A3)."""
        consumer = session.consumers.get(number) if session is not None else None
        if session is None or consumer is None:
            return []
        consumer.drained()
        session.grant(consumer)
        return [CreditReturned(session=session.session, consumer=number)]
