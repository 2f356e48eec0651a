"""The core's own requests about a consumer: is the buffer still its own, and credit on demand.

Where it sits
    face  ->  SURENESS, CREDIT ON DEMAND  ->  ConsumerCheck, Credit, ConsumerDrain  ->  client manager

What it promises
    CRQ1  A buffered message is sure to be the consumer's for as long as the server's answer holds: from the
          moment of asking, and from each delivery within that time, since a server passes on only sure
          messages.
    CRQ2  A client that slept, or heard nothing for long, or lost the connection, asks. A receiver that wants
          to take messages is woken by the answer, as by a delivery.
    CRQ3  A consumer with a prefetch of 0 has credit for the messages that receivers wait for, and for no
          more.
    CRQ4  Acknowledgements that wait leave before the next message is asked for, unless the session is lazy.
    CRQ5  When a server answers that it has drained a consumer, all that it sent is here, and nothing is on
          its way. Until then the consumer gets no new credit.
    CRQ6  Credit of a receiver that stops waiting is taken back. Messages that are still sent on it go to
          other receivers; if there is none, they go back to their queue, uncounted.
    CRQ7  Messages that go back come again before later ones: until the server has confirmed that they are
          back, receivers get neither credit nor an answer.

What it leaves to others
    A process whose clock stood still cannot know that it slept. The server tells of lost messages before it
    answers (`ConsumerLost`). The consumer has the messages and counts the credit.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.events import Arrived, CreditReturned, Event
from antiphon.client.core.session import ReturnedUnseen, SessionCore
from antiphon.wire.frames import AckMode, ConsumerCheck, ConsumerDrain


class CreditOnDemand:
    """Credit for the receivers of one client; `request` makes a request of the core's own."""

    def __init__(self, request: Callable[..., int], next_number: Callable[[], int]) -> None:
        self._request = request
        self._next_number = next_number

    def ask(self, session: SessionCore, consumer: ConsumerCore, asker: object, count: int) -> None:
        """A receiver waits for so many messages; with a prefetch the consumer has credit for them (CRQ3)."""
        if consumer.prefetch_messages:
            return
        if session.ack_mode is not AckMode.DUPS_OK:
            session.send_gathered(consumer)
        consumer.wants[asker] = count
        consumer.late.discard(asker)
        session.grant(consumer)

    def stop(self, consumer: ConsumerCore, asker: object) -> None:
        """The receiver takes messages until the server has answered, and waits for no more."""
        consumer.late.add(asker)

    def drain(self, session: SessionCore, consumer: ConsumerCore) -> None:
        """Have the server send the messages of now, and take back the rest of the credit (CRQ5).

        A receiver that waits for the answer wants to hear of messages on their way back, too (CRQ7).
        """
        if consumer.is_draining or consumer.is_closing or not session.is_open:
            return
        consumer.is_draining = True
        consumer.is_drain_due = bool(consumer.returning and consumer.wants)
        if not consumer.is_drain_due:
            self._use_up(session, consumer)

    def _use_up(self, session: SessionCore, consumer: ConsumerCore) -> None:
        messages, size = consumer.credit_to_drain()
        drain = ConsumerDrain(
            request=self._next_number(),
            session=session.session,
            consumer=consumer.consumer,
            messages=messages,
            bytes=size,
        )
        self._request(drain, is_own=True)

    def leave(self, session: SessionCore, consumer: ConsumerCore, asker: object) -> None:
        """The receiver has its messages, or waits no more (CRQ6)."""
        consumer.late.discard(asker)
        if consumer.wants.pop(asker, None) is not None:
            self.look(session, consumer)
            if consumer.has_idle_credit:
                self.drain(session, consumer)

    def retire(self, session: SessionCore, consumer: ConsumerCore) -> None:
        """No receiver will want another message: those not taken go back, also those on their way (CRQ6)."""
        consumer.prefetch_messages = 0
        self.look(session, consumer)
        if consumer.has_idle_credit:
            self.drain(session, consumer)

    def look(self, session: SessionCore, consumer: ConsumerCore) -> None:
        """Messages came, or were put back: unwanted ones go back to their queue (CRQ6)."""
        if not consumer.prefetch_messages and not consumer.is_closing and session.error is None:
            session.return_unseen(consumer, consumer.take_unwanted())

    def returned(self, session: SessionCore, tag: ReturnedUnseen) -> None:
        """The server has confirmed that unwanted messages are back in their queue (CRQ7)."""
        consumer = tag.consumer
        consumer.returning.remove(tag.numbers)
        if consumer.returning or consumer.is_closing or consumer.consumer not in session.consumers:
            return
        if consumer.is_drain_due:
            consumer.is_drain_due = False
            self._use_up(session, consumer)
        else:
            session.grant(consumer)

    def answered(self, session: SessionCore | None, number: int) -> list[Event]:
        """The server has answered a drain, or cannot: there is no credit left (CRQ5)."""
        consumer = session.consumers.get(number) if session is not None else None
        if session is None or consumer is None:
            return []
        consumer.drained()
        session.grant(consumer)
        return [CreditReturned(session=session.session, consumer=number)]


class Sureness:
    """Sureness of the buffers of one client; `request` makes a request of the core's own."""

    def __init__(self, request: Callable[..., int], next_number: Callable[[], int]) -> None:
        self._request = request
        self._next_number = next_number
        # How long an answer of the server holds; 0: for ever.
        self.sure_ns = 0

    def is_sure(self, now_ns: int, session: SessionCore, consumer: ConsumerCore) -> bool:
        """Is the buffer sure to be the consumer's? If not, the server is asked (CRQ2)."""
        if not self.sure_ns or (session.is_open and now_ns < consumer.sure_until_ns):
            return True
        if consumer.asked_ns is None and session.is_open and not consumer.is_closing:
            consumer.asked_ns = now_ns
            number, of_session = consumer.consumer, session.session
            check = ConsumerCheck(request=self._next_number(), session=of_session, consumer=number)
            self._request(check, is_own=True)
        return False

    def checked(self, now_ns: int, session: SessionCore | None, number: int) -> list[Event]:
        consumer = session.consumers.get(number) if session is not None else None
        if session is None or consumer is None:
            return []
        consumer.answered(now_ns, self.sure_ns)
        return self.told(session, consumer)

    def told(self, session: SessionCore, consumer: ConsumerCore) -> list[Event]:
        """The answer is here, or another server is to be asked: receivers look again."""
        if not consumer.buffered and not consumer.in_transit:
            return []
        return [Arrived(session=session.session, consumer=consumer.consumer)]
