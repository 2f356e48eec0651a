"""The blocking face: the same words without `await`, for programs without an event loop.

import antiphon

with antiphon.blocking.connect("antiphon://127.0.0.1:7420") as connection:
    with connection.session() as session:
        session.producer("queue:orders").send(b"...")
        message = session.consumer("queue:orders").receive(timeout=1.0)

loop, feeding   an event loop in a thread of its own, and calls into it
block           what `with` does
connection, session, producer, consumer, staging, ranges, admin    the asyncio classes, one call each

There is no second implementation: every call is one of the asyncio face, which runs in a thread
that belongs to the connection and ends with it. Only where that would cost more than the message, the
loop lends what lies ready to the application's thread (`antiphon.client.lots`). Sessions, producers and
consumers are registered when the call that makes them returns. Any thread may use them.
"""

from antiphon.blocking.admin import Admin
from antiphon.blocking.connection import Connection, connect
from antiphon.blocking.consumer import Consumer, Message
from antiphon.blocking.loop import PublishUncertain
from antiphon.blocking.producer import Producer
from antiphon.blocking.ranges import Ranges
from antiphon.blocking.session import Session
from antiphon.blocking.staging import Staging

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
