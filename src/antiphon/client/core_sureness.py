"""Sureness: is what a consumer has buffered still its own?

Where it sits
    whoever takes messages for the application  ->  SURENESS  ->  ConsumerCheck  ->  client manager

What it promises
    S1  What is buffered is sure to be ours for as long as the server's word holds: from the moment we asked,
        and from each delivery that came within that time, since a server passes on only what is sure.
    S2  Whoever slept, or heard nothing for long, or lost the connection, asks. Whoever wants to take is told
        when the answer has come, as if something had arrived.

What it leaves to others
    A process whose clock stood still cannot know that it slept. What others got meanwhile the server tells
    before it answers (`ConsumerLost`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphon.client.core_consumer import ConsumerCore
from antiphon.client.core_events import Arrived, Event
from antiphon.client.core_session import SessionCore
from antiphon.wire.frames import ConsumerCheck, Done


class Sureness:
    """Asks for the consumers of one client; `ask` is the core's way to make a request of its own."""

    __slots__ = ("_ask", "sure_ns")

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        # How long a word of the server holds; 0: for ever.
        self.sure_ns = 0

    def is_sure(self, now_ns: int, session: SessionCore, consumer: ConsumerCore) -> bool:
        """Is what this consumer has buffered still its own? If nobody can say, the server is asked (S2)."""
        if not self.sure_ns or (session.is_open and now_ns < consumer.sure_until_ns):
            return True
        if consumer.asked_ns is None and session.is_open and not consumer.is_closing:
            consumer.asked_ns = now_ns
            number, of_session = consumer.consumer, session.session
            self._ask(
                lambda request: ConsumerCheck(request=request, session=of_session, consumer=number),
                Done,
                of_session,
                is_own=True,
            )
        return False

    def checked(self, now_ns: int, session: SessionCore | None, number: int) -> list[Event]:
        """The server has answered."""
        consumer = session.consumers.get(number) if session is not None else None
        if session is None or consumer is None:
            return []
        consumer.answered(now_ns, self.sure_ns)
        return self.told(session, consumer)

    def told(self, session: SessionCore, consumer: ConsumerCore) -> list[Event]:
        """It is answered, or there is another server to ask: whoever wants to take may look again."""
        return [Arrived(session=session.session, consumer=consumer.consumer)] if consumer.buffered else []
