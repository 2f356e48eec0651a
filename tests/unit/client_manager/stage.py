"""A client manager on a stage: clients on one side, a channel that does as the test says on the other."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from antiphon.batch import Batch
from antiphon.bus.effects import EnvelopeCommitted, EnvelopeConfirmed, PrimaryChanged
from antiphon.bus.messages import (
    About,
    ConsumerEnded,
    Deliver,
    Drained,
    Query,
    Register,
    Registered,
    Reply,
    SessionDetached,
    Target,
)
from antiphon.client_manager.effects import (
    ChannelEvent,
    CloseConnection,
    ConnectionLost,
    ConnectionOpened,
    Effect,
    Event,
    FramesReceived,
    FromChannel,
    SendFrames,
    SendToPrimary,
    SendToReplica,
    SubmitEnvelope,
    TimePassed,
)
from antiphon.client_manager.manager import ClientManager, ClientManagerSettings
from antiphon.ids import IdSource
from antiphon.ranges import Ranges
from antiphon.wire import frames
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    Acknowledge,
    CommandHeader,
    CommandKind,
    Outcome,
    Payload,
    encode_command,
    iterate_commands,
    kind_of,
    publish_buffers,
)

CHANNEL = "a"
CLUSTER_ID = "c1"
KNOWN = 5  # a destination that the node knows
RUN = 7  # the number of our PRODUCER_OPEN, after which our stream is named

T = TypeVar("T")


OF_TOPIC = {"topic": "topic:prices", "channels": []}
"""What a channel's answer about a subscription says of its topic."""


class Stage:
    """Everything a test says to the manager goes through here, and everything it answers is kept."""

    def __init__(
        self,
        channels: Sequence[str] = (CHANNEL,),
        *,
        is_led: bool = True,
        ids: IdSource | None = None,
        **settings: Any,
    ) -> None:
        """Without `ids` the manager counts its questions to replicas from 1."""
        self.directory: dict[str, int] = {"queue:known": KNOWN}
        self.subscriptions: dict[tuple[str, str], dict[str, Any]] = {}
        self.placements: dict[str, str] = {}
        # The parts of spanning destinations, by channel and name: id and settings.
        self.spans: dict[tuple[str, str], tuple[int, str]] = {}
        self.sessions: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.silent: set[str] = set()  # channels whose replicas answer no question
        self.manager = ClientManager(
            1,
            "node-1",
            "test",
            ["127.0.0.1:7420"],
            IdSource(1, 2 << 16, 4, 4) if ids is None else ids,
            channels,
            ClientManagerSettings(**settings),
            CLUSTER_ID,
        )
        self.now_ns = 0
        self.effects: list[Effect] = []
        self.heard: dict[int, list[frames.ServerFrame]] = {}
        self.submitted: list[SubmitEnvelope] = []  # not yet confirmed
        self.next_sequence = 100
        self._streams: dict[int, FrameBuffer] = {}
        self._next_request = 1
        # What the primary has said to us in its term, in numbers.
        self.term = 0
        self.said = 0
        for channel in channels if is_led else ():
            self.new_term(1, channel)
        self.effects.clear()

    def _look_up(self, channel: str, question: str) -> dict[str, Any]:
        """What the channel knows: as the message managers answer."""
        asked = json.loads(question)
        self.asked.append(asked)
        match asked["question"]:
            case "subscription":
                found = self.subscriptions.get((asked["client_id"], asked["name"]), {})
                return found if found.get("channel", CHANNEL) == channel else {}
            case "placement":
                place = self.placements.get(asked["name"])
                return {} if place is None else {"channel": place}
            case "session":
                return self.sessions.get(asked["session"], {})
        if (channel, asked["name"]) in self.spans:
            part, settings = self.spans[channel, asked["name"]]
            return {"destination": part, "channel": channel, "settings": settings}
        id = self.directory.get(asked["name"])
        if id is None or self.placements.get(asked["name"], CHANNEL) != channel:
            return {}
        return {"destination": id, "channel": channel, "settings_version": 1}

    def _answer_lookups(self, effects: list[Effect]) -> None:
        """The primary is at hand and answers in the same step, unless it is to be silent."""
        lookups = [
            (effect.channel, effect.message)
            for effect in effects
            if isinstance(effect, SendToPrimary | SendToReplica)
            and isinstance(effect.message, Query)
            and effect.message.about is About.NAMES
        ]
        for channel, lookup in lookups:
            if channel not in self.silent:
                answer = json.dumps(self._look_up(channel, lookup.question))
                effects += self.step(ChannelEvent(channel, Reply(lookup.request, About.NAMES, answer)))

    # -- saying ----------------------------------------------------------------

    def step(self, *events: Event) -> list[Effect]:
        effects = self.manager.step(self.now_ns, events)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, SendFrames):
                stream = self._streams.setdefault(effect.conn, FrameBuffer(FRAME_BYTES_MAX))
                for kind, payload in stream.feed(b"".join(effect.buffers)):
                    self.heard.setdefault(effect.conn, []).append(frames.decode_server_frame(kind, payload))
            elif isinstance(effect, SubmitEnvelope):
                self.submitted.append(effect)
        self._answer_lookups(effects)
        return effects

    def wait(self, ms: int) -> list[Effect]:
        """Time passes; what is due meanwhile happens when it is."""
        effects: list[Effect] = []
        end_ns = self.now_ns + ms * 1_000_000
        while (due_ns := self.manager.next_deadline_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            effects += self.step(TimePassed())
        self.now_ns = end_ns
        return effects

    def say(self, conn: int, *said: frames.ClientFrame) -> list[Effect]:
        return self.step(FramesReceived(conn, list(said)))

    def tell(self, *events: FromChannel, channel: str = CHANNEL) -> list[Effect]:
        """What the primary says in its stream is numbered here, unless the test has done so."""
        return self.step(*(ChannelEvent(channel, self._numbered(event)) for event in events))

    def _numbered(self, event: FromChannel) -> FromChannel:
        match event:
            case Deliver(term=self.term, targets=(Target(number=0) as target,)):
                self.said += 1
                return replace(event, targets=(target._replace(number=self.said, stream=RUN),))
            case (
                Registered(term=self.term, number=0, code="")
                | ConsumerEnded(term=self.term, number=0)
                | Drained(term=self.term, number=0)
            ):
                self.said += 1
                return replace(event, number=self.said, stream=RUN)
            case _:
                return event

    def request(self) -> int:
        self._next_request += 1
        return self._next_request

    def connect(self, conn: int = 1, user: str = "ann", client_id: str = "") -> None:
        self.step(ConnectionOpened(conn, "peer"))
        self.say(conn, frames.Hello(user=user, password="", client_id=client_id))
        if client_id:
            self.confirm_all()
            self.effects.clear()

    def lose(self, conn: int = 1) -> list[Effect]:
        return self.step(ConnectionLost(conn))

    def open_session(self, conn: int = 1, session: int = 0, generation: int = 0) -> int:
        self.say(
            conn,
            frames.SessionOpen(
                request=self.request(), session=session, generation=generation, ack_mode=frames.AckMode.CLIENT
            ),
        )
        opened = self.heard[conn][-1]
        assert isinstance(opened, frames.SessionOpened), opened
        return opened.session

    def open_consumer(self, session: int, consumer: int = 1, conn: int = 1, credit: int = 1000) -> int:
        """A consumer of the known destination, attached; the answer is its key at the primary."""
        self.say(conn, self.consumer_open(session, consumer, credit))
        self.confirm_all()
        key = self.to_primary(Register)[-1].consumer
        self.tell(Registered(consumer=key, term=1))
        assert isinstance(self.heard[conn][-1], frames.Done), self.heard[conn][-1]
        return key

    def consumer_open(
        self, session: int, consumer: int = 1, credit: int = 1000, subscription: int = 0
    ) -> frames.ConsumerOpen:
        return frames.ConsumerOpen(
            request=self.request(),
            session=session,
            consumer=consumer,
            channel=CHANNEL,
            destination=KNOWN,
            subscription=subscription,
            credit_messages=credit,
            credit_bytes=1 << 20,
        )

    def new_term(self, term: int, channel: str = CHANNEL) -> list[Effect]:
        if term > self.term:
            self.term, self.said = term, 0
        return self.tell(PrimaryChanged(term=term, primary=1), channel=channel)

    # -- the channel -----------------------------------------------------------

    def confirm(self, *exceptions: Outcome) -> list[Effect]:
        """The oldest envelope is committed and applied; exceptions count from its first number."""
        envelope = self.submitted.pop(0)
        first = self.next_sequence
        self.next_sequence += envelope.count
        moved = tuple(outcome._replace(first=first + outcome.first) for outcome in exceptions)
        return self.tell(
            EnvelopeCommitted(envelope.tag, first, envelope.count),
            EnvelopeConfirmed(envelope.tag, first, envelope.count, moved),
            channel=envelope.channel,
        )

    def confirm_all(self) -> None:
        while self.submitted:
            self.confirm()

    # -- looking back ----------------------------------------------------------

    def of_kind(self, kind: type[T], effects: Iterable[Effect] | None = None) -> list[T]:
        return [
            effect for effect in (self.effects if effects is None else effects) if isinstance(effect, kind)
        ]

    def to_primary(self, kind: type[T]) -> list[T]:
        return [e.message for e in self.of_kind(SendToPrimary) if isinstance(e.message, kind)]

    def told_absent(self) -> list[tuple[int, int]]:
        """The sessions and generations of which the primary was told that they have no client."""
        return [(said.session, said.generation) for said in self.to_primary(SessionDetached)]

    def to_replica(self, kind: type[T]) -> list[T]:
        return [e.message for e in self.of_kind(SendToReplica) if isinstance(e.message, kind)]

    def heard_of(self, kind: type[T], conn: int = 1) -> list[T]:
        return [frame for frame in self.heard.get(conn, []) if isinstance(frame, kind)]

    def goodbye(self) -> CloseConnection:
        (closed,) = self.of_kind(CloseConnection)
        return closed


def kinds(envelope: SubmitEnvelope) -> list[CommandKind]:
    return [CommandKind(header.kind) for header, _, _ in iterate_commands(envelope.payload)]


def headers(envelope: SubmitEnvelope) -> list[CommandHeader]:
    return [header for header, _, _ in iterate_commands(envelope.payload)]


def publish_bytes(
    session: int,
    number: int = 1,
    bodies: Sequence[bytes] = (b"body",),
    *,
    generation: int = 1,
    confirmed_through: int = 0,
    destination: int = KNOWN,
    producer: int | None = None,
    first_number: int | None = None,
    count: int | None = None,
) -> bytes:
    batch = Batch.of_bodies(
        bodies,
        producer=session if producer is None else producer,
        first_number=number if first_number is None else first_number,
        timestamp_ms=1,
    )
    buffers = publish_buffers(
        session,
        generation,
        number,
        confirmed_through,
        destination,
        1,
        batch.buffers(),
        len(bodies) if count is None else count,
    )
    return b"".join(buffers)


def publish(
    session: int, number: int = 1, bodies: Sequence[bytes] = (b"body",), **more: Any
) -> frames.Command:
    return frames.Command(channel=CHANNEL, command=publish_bytes(session, number, bodies, **more))


def command(session: int, number: int, payload: Payload, *, generation: int = 1) -> frames.Command:
    data = encode_command(kind_of(payload), session, generation, number, 0, payload.encode())
    return frames.Command(channel=CHANNEL, command=data)


def acknowledge(session: int, number: int, *pairs: tuple[int, int]) -> frames.Command:
    return command(session, number, Acknowledge(destination=KNOWN, subscription=0, ranges=Ranges(pairs)))
