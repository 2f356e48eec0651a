"""Messages that tests count: all that a queue has, from first to last."""

from __future__ import annotations

import antiphon.blocking
from antiphon.message import Message


def consume(connection: antiphon.blocking.Connection, queue: str, quiet_s: float = 1.0) -> list[Message]:
    """Take everything out of a queue, until nothing came for a while."""
    found: list[Message] = []
    with connection.session() as session, session.consumer(queue) as consumer:
        while some := consumer.receive_many(10_000, timeout=quiet_s):
            found += some
    return found
