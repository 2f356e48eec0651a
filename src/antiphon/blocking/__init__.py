"""The blocking face: the same words without `await`, for programs without an event loop.

import antiphon

with antiphon.blocking.connect("antiphon://127.0.0.1:7420") as connection:
    with connection.session() as session:
        session.producer("queue:orders").send(b"...")
        message = session.consumer("queue:orders").receive(timeout=1.0)

loop      an event loop in a thread of its own, and calls into it
face      the asyncio classes, one call each; written by tools/blocking_face.py
by_hand   the few calls that are more than that

There is no second implementation: every call is one of the asyncio face, which runs in a thread
that belongs to the connection and ends with it. Only where that would cost more than the message, the
loop lends what lies ready to the application's thread. Sessions, producers and
consumers are registered when the call that makes them returns. Any thread may use them.
"""

from antiphon.blocking.by_hand import Message
from antiphon.blocking.face import (
    Admin,
    Connection,
    Consumer,
    Producer,
    Ranges,
    Session,
    Staging,
    connect,
)
from antiphon.blocking.loop import PublishUncertain

__all__ = [
    "connect",
    "Connection",
    "Session",
    "Producer",
    "Consumer",
    "Message",
    "Staging",
    "Ranges",
    "Admin",
    "PublishUncertain",
]
