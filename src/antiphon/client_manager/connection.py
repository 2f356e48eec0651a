"""Connection: one peer, its requests, and the frames to it.

    greeting  --Hello-->  open  --Goodbye, a breach, or silence-->  over

In the greeting only one Hello is allowed; once open, anything but Hello. A request stays outstanding until it
is answered, and its number may not be used again before that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from antiphon.client_manager.effects import Effect, SendFrames
from antiphon.client_manager.session import Consumer, Session
from antiphon.errors import ProtocolError
from antiphon.wire.frames import ClientFrame, Done, Failed, Frame, Hello, ServerFrame, encode_frame
from antiphon.wire.primitives import Buffer

LEFT_REMEMBERED = 1_000


class Refusal(Exception):
    """A request cannot be granted: it is answered by Failed, and the connection goes on."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(slots=True, eq=False, repr=False)
class Connection:
    conn: int
    peer: str
    user: str = ""
    client_id: str = ""
    id: int = 0
    """The client's connection, which keeps its id on one socket after the other."""
    generation: int = 1
    has_greeted: bool = False
    is_welcome: bool = False
    is_over: bool = False
    is_blocked: bool = False
    unconfirmed_bytes: int = 0
    consumer_count: int = 0
    questions: int = 0
    names: int = 0
    """Destinations that are being made for it in bulk."""
    sessions: dict[int, Session] = field(default_factory=dict)
    left: deque[int] = field(default_factory=lambda: deque(maxlen=LEFT_REMEMBERED))
    """Sessions that left the connection from the server's side; the peer may not have heard of that yet."""
    channels: dict[str, None] = field(default_factory=dict)
    """The channels that the peer uses."""
    requests: set[int] = field(default_factory=set)
    credits_held: dict[int, tuple[Consumer, int, int]] = field(default_factory=dict)
    """Credit that waits until the peer reads again: consumer, messages, bytes."""
    outbox: list[Buffer] = field(default_factory=list)

    def check_turn(self, frame: ClientFrame) -> None:
        """Raise unless the peer may send such a frame now."""
        if isinstance(frame, Hello):
            if self.has_greeted:
                raise ProtocolError("Hello a second time")
        elif not self.is_welcome:
            raise ProtocolError(f"{type(frame).__name__} before {'Welcome' if self.has_greeted else 'Hello'}")

    def begin_request(self, request: int, requests_max: int) -> None:
        if request in self.requests:
            raise ProtocolError(f"request {request} a second time, and the first has no answer yet")
        if len(self.requests) >= requests_max:
            raise ProtocolError(f"more than {requests_max} requests wait for their answer")
        self.requests.add(request)


class Outbox:
    """The output of one step, in order: effects, and one `SendFrames` for each peer."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._spoken_to: list[Connection] = []

    def do(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, connection: Connection, frame: Frame) -> None:
        self.send_buffers(connection, [encode_frame(frame)])

    def send_buffers(self, connection: Connection, buffers: list[Buffer]) -> None:
        """Whole frames for a peer; nothing for a peer that is gone."""
        if connection.is_over:
            return
        if not connection.outbox:
            self._spoken_to.append(connection)
        connection.outbox.extend(buffers)

    def answer(self, connection: Connection, request: int, frame: ServerFrame | None = None) -> None:
        """Answer a request; by Done when there is nothing more to say."""
        connection.requests.discard(request)
        self.send(connection, Done(request=request) if frame is None else frame)

    def refuse(self, connection: Connection, request: int, code: str, text: str) -> None:
        self.answer(connection, request, Failed(request=request, code=code, text=text))

    def flush(self, connection: Connection) -> None:
        """Put everything for a peer so far before the next effect."""
        if connection.outbox:
            self._effects.append(SendFrames(connection.conn, connection.outbox))
            connection.outbox = []

    def take(self) -> list[Effect]:
        for connection in self._spoken_to:
            self.flush(connection)
        effects, self._effects, self._spoken_to = self._effects, [], []
        return effects
