"""The client's half of a connection, step by step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.batch import Batch
from antiphon.client.core.client import NEVER_NS, ClientCore
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.events import (
    Arrived,
    ConsumerStopped,
    Ended,
    Expired,
    Refused,
    RequestAnswered,
    Settled,
    Unheard,
    Welcomed,
)
from antiphon.client.core.pace import ACK_DELAY_NS
from antiphon.client.core.publication import Publication
from antiphon.client.core.session import RANGES_MAX, SessionCore
from antiphon.errors import AccessDenied, ConsumerClosed, NotConnected, ProtocolError, PublishRefused
from antiphon.ranges import Ranges
from antiphon.wire.buffer import FRAME_BYTES_MAX, FrameBuffer
from antiphon.wire.commands import (
    Acknowledge,
    ConfirmItem,
    OutcomeCode,
    Publish,
    decode_payload,
    read_command,
)
from antiphon.wire.frames import (
    AckMode,
    Answer,
    Ask,
    ClientFrame,
    Command,
    Confirm,
    ConsumerClose,
    ConsumerGone,
    ConsumerLost,
    ConsumerOpen,
    Credit,
    Deliver,
    DeliverPiece,
    DestinationOpen,
    DestinationOpened,
    Done,
    Failed,
    Goodbye,
    Hello,
    Ping,
    Pong,
    ServerFrame,
    SessionClose,
    SessionOpen,
    SessionOpened,
    Welcome,
    decode_client_frame,
    encode_frame,
)

WELCOME = Welcome(node=1, cluster="c", servers=(), connection=5, frame_limit=1 << 21, heartbeat_ms=0)
OPENED = DestinationOpened(request=0, destination=3, settings_version=1, channel="a")
SESSION = 9


def said(core: ClientCore) -> list[ClientFrame]:
    """What the core has to say since the last look."""
    data = b"".join(core.take_output())
    return [decode_client_frame(kind, payload) for kind, payload in FrameBuffer(FRAME_BYTES_MAX).feed(data)]


def payloads(core: ClientCore) -> list[Any]:
    """The commands among them, decoded."""
    found = []
    for frame in said(core):
        if isinstance(frame, Command):
            header, payload = read_command(frame.command)
            found.append(decode_payload(header.kind, payload))
    return found


def welcome_core(heartbeat_ms: int = 0) -> ClientCore:
    core = ClientCore(user="u", password="p", client_id="c")
    core.take_output()
    core.receive(
        0,
        Welcome(
            node=1, cluster="c", servers=(), connection=5, frame_limit=1 << 21, heartbeat_ms=heartbeat_ms
        ),
    )
    return core


def open_session(core: ClientCore, session: int = SESSION) -> SessionCore:
    request = core.open_session(AckMode.AUTO)
    core.receive(0, SessionOpened(request=request, session=session, generation=1, window_bytes=1 << 20))
    core.take_output()
    return core.sessions[session]


def open_consumer(core: ClientCore, session: SessionCore, **options: Any) -> ConsumerCore:
    consumer = session.new_consumer("queue:a", OPENED, **options)
    core.receive(0, Done(request=core.open_consumer(session, consumer)))
    core.take_output()
    return consumer


def deliver(first_delivery: int, sequence: int, count: int = 1, **others: Any) -> Deliver:
    batch = Batch.of_bodies([b"x"] * count, 7, 1, 0).encode()
    fields = {"session": SESSION, "consumer": 1, "channel": "a", "destination": 3, "term": 1} | others
    return Deliver(first_delivery=first_delivery, pieces=(DeliverPiece(sequence, 0, batch),), **fields)


class Waiting:
    def done(self) -> bool:
        return False


def chunk(*bodies: bytes, deadline_ns: int = 0) -> Publication:
    return Publication(
        list(bodies),
        10,
        Waiting(),
        destination=3,
        settings_version=1,
        timestamp_ms=0,
        deadline_ns=deadline_ns,
    )


def confirm(number: int, count: int = 1, code: int = OutcomeCode.APPLIED, **others: Any) -> Confirm:
    items = (ConfirmItem(number, count, code, 40),)
    return Confirm(**{"session": SESSION, "channel": "a", "items": items} | others)


# -- greeting ----------------------------------------------------------------------


def test_the_first_word_is_hello_and_nothing_else() -> None:
    core = ClientCore(user="u", password="p", client_id="c")
    assert said(core) == [Hello(user="u", password="p", client_id="c")]
    assert core.receive(0, WELCOME) == [Welcomed(welcome=WELCOME)]
    assert said(core) == []


def test_larger_frames_are_taken_only_from_a_server_that_let_us_in() -> None:
    core = ClientCore()
    assert core.frame_limit == 64 * 1024
    core.receive(0, WELCOME)
    assert core.frame_limit == FRAME_BYTES_MAX


def test_a_refused_greeting_says_why() -> None:
    (event,) = ClientCore().receive(0, Goodbye(code="local.access_denied", text="wrong password"))
    assert isinstance(event, Ended)
    assert isinstance(event.error, AccessDenied)
    assert event.error.text == "wrong password"


@pytest.mark.parametrize("frame", [Done(request=1), Ping(nonce=1), deliver(1, 1)])
def test_a_server_that_does_not_greet_breaks_the_protocol(frame: ServerFrame) -> None:
    with pytest.raises(ProtocolError, match="first word"):
        ClientCore().receive(0, frame)


def test_a_second_welcome_breaks_the_protocol() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        welcome_core().receive(0, WELCOME)


def test_a_goodbye_without_a_reason_is_the_end_all_the_same() -> None:
    (event,) = welcome_core().receive(0, Goodbye(code="", text=""))
    assert isinstance(event, Ended)
    assert isinstance(event.error, NotConnected)


# -- requests ------------------------------------------------------------------------


def test_requests_are_numbered_and_answered() -> None:
    core = welcome_core()
    first = core.open_destination("queue:a", create=True)
    second = core.ask({"question": "status"})
    assert said(core) == [
        DestinationOpen(request=first, name="queue:a", create=True),
        Ask(request=second, question=json.dumps({"question": "status"})),
    ]
    answer = Answer(request=second, answer="{}")
    assert core.receive(0, answer) == [RequestAnswered(request=second, reply=answer)]
    (event,) = core.receive(0, Failed(request=first, code="publish.refused", text="no"))
    assert isinstance(event, Refused)
    assert isinstance(event.error, PublishRefused)


@pytest.mark.parametrize("reply", [Done(request=77), Failed(request=77, code="x", text="")])
def test_an_answer_to_nothing_breaks_the_protocol(reply: ServerFrame) -> None:
    with pytest.raises(ProtocolError, match="request 77"):
        welcome_core().receive(0, reply)


def test_an_answer_of_the_wrong_kind_breaks_the_protocol() -> None:
    core = welcome_core()
    with pytest.raises(ProtocolError, match="answered by Done"):
        core.receive(0, Done(request=core.open_session(AckMode.AUTO)))


def test_a_second_answer_breaks_the_protocol() -> None:
    core = welcome_core()
    request = core.ask({})
    core.receive(0, Answer(request=request, answer="1"))
    with pytest.raises(ProtocolError, match="request"):
        core.receive(0, Answer(request=request, answer="1"))


def test_the_answer_to_an_abandoned_request_is_dropped() -> None:
    core = welcome_core()
    request = core.ask({})
    core.abandon_request(request)
    assert core.receive(0, Answer(request=request, answer="1")) == []


def test_a_session_nobody_waits_for_any_more_is_closed_again() -> None:
    core = welcome_core()
    request = core.open_session(AckMode.AUTO)
    core.abandon_request(request)
    core.take_output()
    assert (
        core.receive(0, SessionOpened(request=request, session=SESSION, generation=1, window_bytes=1)) == []
    )
    (close,) = said(core)
    assert isinstance(close, SessionClose)
    assert core.receive(0, Done(request=close.request)) == []
    assert core.sessions == {}


def test_a_consumer_nobody_waits_for_any_more_is_closed_again() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = session.new_consumer("queue:a", OPENED)
    request = core.open_consumer(session, consumer)
    core.abandon_request(request)
    core.take_output()
    assert core.receive(0, Done(request=request)) == []
    (close,) = said(core)
    assert isinstance(close, ConsumerClose)


# -- sessions ------------------------------------------------------------------------


def test_a_session_is_opened_and_closed() -> None:
    core = welcome_core()
    request = core.open_session(AckMode.CLIENT)
    assert said(core) == [SessionOpen(request=request, session=0, generation=0, ack_mode=AckMode.CLIENT)]
    opened = SessionOpened(request=request, session=SESSION, generation=1, window_bytes=1_000)
    assert core.receive(0, opened) == [RequestAnswered(request=request, reply=opened)]
    session = core.sessions[SESSION]
    assert (session.ack_mode, session.window_bytes) == (AckMode.CLIENT, 1_000)
    closing = core.close_session(SESSION)
    assert said(core) == [SessionClose(request=closing, session=SESSION)]
    core.receive(0, Done(request=closing))
    assert core.sessions == {}


def test_numbers_are_counted_for_each_session_and_channel() -> None:
    core = welcome_core()
    one, other = open_session(core, 1), open_session(core, 2)
    one.submit("a", chunk(b"x", b"y"))
    one.submit("b", chunk(b"x"))
    other.submit("a", chunk(b"x"))
    one.submit("a", chunk(b"z"))
    headers = [
        (frame.channel, read_command(frame.command)[0]) for frame in said(core) if isinstance(frame, Command)
    ]
    assert [(channel, header.session, header.number) for channel, header in headers] == [
        ("a", 1, 1),
        ("b", 1, 1),
        ("a", 2, 1),
        ("a", 1, 3),
    ]


def payload_of(frame: ServerFrame) -> bytes:
    return encode_frame(frame)[5:]


def test_a_confirmation_of_what_is_due_is_taken_without_a_detour() -> None:
    core = welcome_core(heartbeat_ms=1_000)
    publication = chunk(b"a")
    open_session(core).submit("a", publication)
    core.on_time(500_000_000)
    assert core._silent_beats == 1
    assert core.settle_lone(payload_of(confirm(1))) is publication
    assert publication.is_settled and publication.outcomes == list(confirm(1).items)
    assert core._silent_beats == 0


@pytest.mark.parametrize(
    "frame",
    [confirm(2), confirm(1, 2), confirm(1, session=SESSION + 1), confirm(1, channel="b"), confirm(0)],
    ids=["another", "too many", "no session", "no channel", "no number"],
)
def test_any_other_confirmation_is_left_to_whoever_takes_all(frame: Confirm) -> None:
    core = welcome_core()
    publication = chunk(b"a")
    open_session(core).submit("a", publication)
    assert core.settle_lone(payload_of(frame)) is None
    assert not publication.is_settled
    with pytest.raises(ProtocolError):
        core.receive(0, frame)


def test_nothing_is_confirmed_before_the_server_has_greeted() -> None:
    core = welcome_core()
    open_session(core).submit("a", chunk(b"a"))
    core.lose()
    assert core.settle_lone(payload_of(confirm(1))) is None


def test_a_confirmation_settles_what_was_sent() -> None:
    core = welcome_core()
    publication = chunk(b"x")
    open_session(core).submit("a", publication)
    assert core.receive(0, confirm(1)) == [Settled(publication, [ConfirmItem(1, 1, 0, 40)])]


@pytest.mark.parametrize(
    "frame",
    [confirm(1, session=77), confirm(1, channel="b"), confirm(2), deliver(1, 1, session=77)],
)
def test_talk_of_what_is_not_ours_breaks_the_protocol(frame: ServerFrame) -> None:
    core = welcome_core()
    open_session(core).submit("a", chunk(b"x"))
    with pytest.raises(ProtocolError):
        core.receive(0, frame)


def test_what_comes_late_for_a_closed_session_is_ignored() -> None:
    core = welcome_core()
    open_session(core)
    core.receive(0, Done(request=core.close_session(SESSION)))
    assert core.receive(0, confirm(1)) == []
    assert core.receive(0, deliver(1, 1)) == []


# -- consumers -----------------------------------------------------------------------


def test_a_consumer_is_opened_with_its_credit_and_may_be_sent_to_at_once() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = session.new_consumer("queue:a", OPENED, prefetch_messages=50)
    request = core.open_consumer(session, consumer)
    assert said(core) == [
        ConsumerOpen(
            request=request,
            session=SESSION,
            consumer=1,
            channel="a",
            destination=3,
            credit_messages=50,
            credit_bytes=1 << 20,
        )
    ]
    assert core.receive(0, deliver(1, 10)) == [Arrived(session=SESSION, consumer=1)]
    assert consumer.buffered == 1


def test_taking_half_of_the_credit_grants_more() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session, prefetch_messages=4)
    core.receive(0, deliver(1, 10, count=4))
    session.take(consumer, 1)
    assert said(core) == []
    session.take(consumer, 1)
    assert said(core) == [Credit(session=SESSION, consumer=1, messages=6, bytes=(1 << 20) + 2)]


def test_closing_a_consumer_tells_how_far_the_application_saw() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 10, count=5))
    session.take(consumer, 2)
    request = core.close_consumer(session, consumer)
    assert said(core)[-1] == ConsumerClose(request=request, session=SESSION, consumer=1, seen_through=2)
    assert core.receive(0, deliver(6, 20)) == [], "deliveries may cross the close"
    core.receive(0, Done(request=request))
    assert session.consumers == {}
    assert core.receive(0, deliver(7, 21)) == []


def test_what_is_held_of_a_closed_consumer_can_still_be_acknowledged() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 10, count=2))
    consumer.hold(session.take(consumer, 2))
    core.receive(0, Done(request=core.close_consumer(session, consumer)))
    core.take_output()
    session.acknowledge_held()
    (payload,) = payloads(core)
    assert list(payload.ranges) == [(10, 12)]


def test_a_consumer_that_the_server_refuses_is_forgotten() -> None:
    core = welcome_core()
    session = open_session(core)
    request = core.open_consumer(session, session.new_consumer("queue:a", OPENED))
    core.receive(0, Failed(request=request, code="local.access_denied", text="no"))
    assert session.consumers == {}


def test_a_consumer_that_the_server_ended_says_why() -> None:
    core = welcome_core()
    open_consumer(core, open_session(core))
    gone = ConsumerGone(session=SESSION, consumer=1, code="local.consumer_closed", text="deleted")
    (event,) = core.receive(0, gone)
    assert isinstance(event, ConsumerStopped)
    assert isinstance(event.error, ConsumerClosed)
    assert core.receive(0, deliver(1, 1)) == []
    assert core.receive(0, gone) == []


@pytest.mark.parametrize("number", [0, 2])
def test_a_consumer_that_was_never_opened_breaks_the_protocol(number: int) -> None:
    core = welcome_core()
    open_consumer(core, open_session(core))
    with pytest.raises(ProtocolError, match="never opened"):
        core.receive(0, deliver(1, 1, consumer=number))


# -- acknowledgements ----------------------------------------------------------------


def gathered(count: int = 3) -> tuple[ClientCore, SessionCore, ConsumerCore]:
    """A consumer whose application is done with some messages since time 0."""
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 10, count=count))
    session.gather(0, consumer, session.take(consumer, count))
    return core, session, consumer


def test_acknowledgements_wait_for_five_milliseconds() -> None:
    core, session, _ = gathered()
    assert said(core) == []
    assert not session.is_idle
    assert core.wake_ns == ACK_DELAY_NS
    core.on_time(ACK_DELAY_NS - 1)
    assert said(core) == []
    assert core.wake_ns == ACK_DELAY_NS
    core.on_time(ACK_DELAY_NS)
    (payload,) = payloads(core)
    assert payload == Acknowledge(destination=3, subscription=0, ranges=Ranges([(10, 13)]))
    assert core.wake_ns == NEVER_NS


def test_acknowledgements_ride_ahead_of_the_next_publication_to_their_channel() -> None:
    core, session, _ = gathered()
    session.submit("b", chunk(b"x"))
    assert [type(payload) for payload in payloads(core)] == [Publish]
    session.submit("a", chunk(b"x"))
    assert [type(payload) for payload in payloads(core)] == [Acknowledge, Publish]
    core.on_time(ACK_DELAY_NS)
    assert said(core) == []


def test_many_bytes_are_acknowledged_at_once() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    batch = Batch.of_bodies([bytes(64 * 1024)], 7, 1, 0).encode()
    core.receive(
        0,
        Deliver(
            session=SESSION,
            destination=3,
            term=1,
            first_delivery=1,
            consumer=1,
            channel="a",
            pieces=(DeliverPiece(10, 0, batch),),
        ),
    )
    session.gather(0, consumer, session.take(consumer, 1))
    assert len(payloads(core)) == 1


class Waiter:
    """One who waits for an outcome."""

    def __init__(self) -> None:
        self.is_told = False

    def done(self) -> bool:
        return self.is_told

    def set_result(self, result: None) -> None:
        assert not self.is_told
        self.is_told = True


def test_the_outcome_of_an_acknowledgement_wakes_those_who_wait() -> None:
    core, session, consumer = gathered()
    session.send_gathered(consumer)
    sent = session.last_sent(consumer)
    assert sent is not None
    waiter, gone = Waiter(), Waiter()
    gone.is_told = True
    sent.waiting += [waiter, gone]
    event, _ = core.receive(0, confirm(1, code=OutcomeCode.ACK_LOST))
    assert isinstance(event, Settled)
    assert event.tag is sent
    sent.settle(event.outcomes)
    assert waiter.is_told
    assert sent.outcomes[0].code == OutcomeCode.ACK_LOST
    assert session.last_sent(consumer) is None
    assert not session.owes_word()


def test_a_refusal_is_reported_if_no_call_waits_for_it() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 40, 2))
    session.gather(0, consumer, session.take(consumer, 1))
    core.on_time(ACK_DELAY_NS)
    _, unheard = core.receive(0, confirm(1, code=OutcomeCode.ACK_LOST))
    assert isinstance(unheard, Unheard) and "message 40 was given to another" in str(unheard.error)
    consumer.hold(session.take(consumer, 1))
    session.acknowledge_one(consumer, 41)
    [settled] = core.receive(0, confirm(2, code=OutcomeCode.ACK_LOST))
    assert isinstance(settled, Settled)


def test_a_message_that_came_again_before_its_acknowledgement_was_refused_is_taken() -> None:
    """A consuming hold had locked it, and ended: the message came again sooner than the outcome."""
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 10, 4))
    session.take(consumer, 4)
    session.acknowledge(consumer, Ranges([(10, 14)]))
    core.receive(0, ConsumerLost(session=SESSION, consumer=1, lost=Ranges([(10, 13)])))
    core.receive(0, deliver(5, 10, 3))

    core.receive(0, confirm(1, items=(ConfirmItem(1, 1, OutcomeCode.ACK_LOST, 11),)))

    assert [span.numbers for span in session.take(consumer, 9)] == [(11, 13)], "10 is acknowledged"
    assert consumer.unconfirmed == Ranges([(11, 13)])
    session.acknowledge(consumer, Ranges([(11, 13)]))
    core.receive(0, confirm(2, items=(ConfirmItem(2, 1, OutcomeCode.ACK_LOST, 11),)))
    assert not consumer.unconfirmed, "nothing came again since"


def test_a_copy_of_an_acknowledged_message_leaves_its_place_in_the_buffer_to_the_next() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session, prefetch_messages=1)
    core.receive(0, deliver(1, 10))
    session.take(consumer, 1)
    session.acknowledge(consumer, Ranges([(10, 11)]))
    core.receive(0, ConsumerLost(session=SESSION, consumer=1, lost=Ranges([(10, 11)])))
    core.receive(0, deliver(2, 10))
    said(core)

    core.receive(0, confirm(1))

    assert not consumer.buffered
    assert [frame.messages for frame in said(core) if isinstance(frame, Credit)] == [3]


def test_a_loss_of_acknowledgements_is_to_be_told_once() -> None:
    _, session, consumer = gathered()
    session.send_gathered(consumer)
    sent = session.last_sent(consumer)
    assert sent is not None
    sent.lose(NotConnected())
    assert session.owes_word()
    assert not session.owes_word()


def test_a_message_is_acknowledged_alone_and_only_once() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    core.receive(0, deliver(1, 10, count=3))
    consumer.hold(session.take(consumer, 3))
    assert len(session.acknowledge_one(consumer, 11)) == 1
    assert session.acknowledge_one(consumer, 11) == []
    assert [list(payload.ranges) for payload in payloads(core)] == [[(11, 12)]]
    assert list(consumer.held) == [(10, 11), (12, 13)]


def test_all_that_the_session_was_given_is_acknowledged_together() -> None:
    core = welcome_core()
    session = open_session(core)
    first, second = open_consumer(core, session), open_consumer(core, session)
    core.receive(0, deliver(1, 10, count=3))
    core.receive(0, deliver(1, 20, consumer=2))
    first.hold(session.take(first, 2))
    second.hold(session.take(second, 1))
    assert len(session.acknowledge_held()) == 2
    assert [list(payload.ranges) for payload in payloads(core)] == [[(10, 12)], [(20, 21)]]
    assert session.acknowledge_held() == []


def test_an_acknowledgement_of_very_many_ranges_is_cut_to_fit() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session)
    scattered = Ranges((2 * number, 2 * number + 1) for number in range(RANGES_MAX + 1))
    assert len(session.acknowledge(consumer, scattered)) == 2
    first, second = payloads(core)
    assert (len(first.ranges), len(second.ranges)) == (RANGES_MAX, 1)


# -- time ----------------------------------------------------------------------------


def test_a_publication_without_an_outcome_expires() -> None:
    core = welcome_core()
    session = open_session(core)
    publication = chunk(b"x", deadline_ns=1_000)
    core.watch(publication, 1_000)
    session.submit("a", publication)
    assert core.wake_ns == 1_000
    assert core.on_time(999) == []
    assert core.on_time(1_000) == [Expired(publication=publication)]
    assert core.on_time(2_000) == []
    assert core.wake_ns == NEVER_NS


def test_a_settled_publication_does_not_expire_and_is_not_remembered() -> None:
    core = welcome_core()
    session = open_session(core)
    for number in range(1, 4):
        publication = chunk(b"x", deadline_ns=1_000)
        core.watch(publication, 1_000)
        session.submit("a", publication)
        core.receive(0, confirm(number))
    assert [len(watched) for watched in core._deadlines._watched.values()] == [1]
    assert core.on_time(1_000) == []
    assert core._deadlines._watched == {}


def test_publications_with_less_time_expire_before_others_with_more() -> None:
    core = welcome_core()
    session = open_session(core)
    patient, hasty = chunk(b"x", deadline_ns=9_000), chunk(b"y", deadline_ns=1_000)
    for publication, timeout_ns in ((patient, 9_000), (hasty, 1_000)):
        core.watch(publication, timeout_ns)
        session.submit("a", publication)
    assert core.on_time(1_000) == [Expired(publication=hasty)]
    assert core.wake_ns == 9_000


def test_a_ping_is_answered() -> None:
    core = welcome_core()
    assert core.receive(0, Ping(nonce=7)) == []
    assert said(core) == [Pong(nonce=7)]


def test_a_server_is_asked_whether_it_lives_and_given_up_after_three_heartbeats() -> None:
    core = welcome_core(heartbeat_ms=10)
    half_ns = 5_000_000
    for beat in range(1, 7):
        assert core.wake_ns == beat * half_ns
        assert core.on_time(beat * half_ns) == []
        assert [type(frame) for frame in said(core)] == [Ping]
    (event,) = core.on_time(7 * half_ns)
    assert isinstance(event, Ended)
    assert "silent for 30 ms" in str(event.error)


def test_a_server_that_answers_is_not_given_up() -> None:
    core = welcome_core(heartbeat_ms=10)
    for beat in range(1, 30):
        assert core.on_time(beat * 5_000_000) == []
        core.receive(beat * 5_000_000, Pong(nonce=1))


# -- the end -------------------------------------------------------------------------


def test_the_end_leaves_nothing_without_an_answer() -> None:
    core, session, consumer = gathered()
    publication = chunk(b"x", deadline_ns=1_000)
    core.watch(publication, 1_000)
    session.submit("a", publication)
    assert core.abandon() == [session.last_sent(consumer), publication]
    assert core.on_time(1_000) == []
    assert said(core) == []
