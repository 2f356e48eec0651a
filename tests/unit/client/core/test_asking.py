"""Credit for what somebody waits for, and getting it back."""

from __future__ import annotations

import pytest

from antiphon.client.core.client import ClientCore
from antiphon.client.core.consumer import ConsumerCore
from antiphon.client.core.events import Arrived, CreditReturned
from antiphon.client.core.session import SessionCore
from antiphon.errors import ProtocolError
from antiphon.ranges import Ranges
from antiphon.wire.commands import Return
from antiphon.wire.frames import ConsumerDrain, ConsumerOpen, Credit, Done
from tests.unit.client.core.test_client import (
    OPENED,
    SESSION,
    confirm,
    deliver,
    open_consumer,
    open_session,
    payloads,
    said,
    welcome_core,
)
from tests.unit.client.core.test_resume import resume, resumption


def without_prefetch() -> tuple[ClientCore, SessionCore, ConsumerCore]:
    core = welcome_core()
    session = open_session(core)
    return core, session, open_consumer(core, session, prefetch_messages=0)


def drain_of(core: ClientCore) -> ConsumerDrain:
    [frame] = [frame for frame in said(core) if isinstance(frame, ConsumerDrain)]
    return frame


def test_a_consumer_without_prefetch_is_opened_without_credit_and_asks_for_one() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = session.new_consumer("queue:a", OPENED, prefetch_messages=0)
    core.open_consumer(session, consumer)
    [opening] = said(core)
    assert isinstance(opening, ConsumerOpen) and opening.credit_messages == 0
    core.asking.ask(session, consumer, "me", 1)
    [credit] = said(core)
    assert isinstance(credit, Credit) and credit.messages == 1
    core.asking.ask(session, consumer, "me", 1)
    assert said(core) == [], "it has been asked for"


def test_the_next_message_is_asked_for_by_the_next_call_and_behind_the_acknowledgement() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    assert core.receive(0, deliver(1, 50)) == [Arrived(session=SESSION, consumer=1)]
    spans = session.take(consumer, 1)
    session.gather(0, consumer, spans)
    core.asking.leave(session, consumer, "me")
    assert not any(isinstance(frame, Credit) for frame in said(core)[1:])
    core.asking.ask(session, consumer, "me", 1)
    acknowledgement, credit = said(core)
    assert isinstance(credit, Credit) and credit.messages == 2
    assert not isinstance(acknowledgement, Credit)


def test_two_that_wait_have_credit_for_two() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.ask(session, consumer, "you", 1)
    assert [frame.messages for frame in said(core) if isinstance(frame, Credit)] == [1, 2]


def test_credit_that_nobody_waits_for_is_taken_back() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    said(core)
    core.asking.leave(session, consumer, "me")
    drain = drain_of(core)
    assert (drain.consumer, drain.messages) == (1, 1)
    # Until that is answered there is no new credit.
    core.asking.ask(session, consumer, "you", 1)
    assert said(core) == []
    assert core.receive(0, Done(request=drain.request)) == [CreditReturned(session=SESSION, consumer=1)]
    [credit] = said(core)
    assert isinstance(credit, Credit) and credit.messages == 1, "nothing came under the first"


def test_what_comes_while_the_server_is_asked_is_taken_by_who_waits_by_then() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.leave(session, consumer, "me")
    drain = drain_of(core)
    core.asking.ask(session, consumer, "you", 1)
    core.receive(0, deliver(1, 50))
    core.receive(0, Done(request=drain.request))
    assert consumer.buffered == 1 and payloads(core) == []


def test_what_comes_for_nobody_goes_back_uncounted() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.leave(session, consumer, "me")
    said(core)
    core.receive(0, deliver(1, 50))
    [back] = payloads(core)
    assert isinstance(back, Return) and back.ranges == Ranges([(50, 51)]) and not back.counted
    assert consumer.buffered == 0 and not consumer.unconfirmed


def test_who_is_late_takes_what_comes_and_wants_no_more() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    said(core)
    core.asking.stop(consumer, "me")
    core.asking.drain(session, consumer)
    drain = drain_of(core)
    core.receive(0, deliver(1, 50))
    assert consumer.buffered == 1
    core.receive(0, Done(request=drain.request))
    assert said(core) == []
    session.take(consumer, 1)
    core.asking.leave(session, consumer, "me")
    assert said(core) == [], "all credit is used up"


def test_a_message_that_was_put_back_and_nobody_wants_goes_back_to_its_queue() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.receive(0, deliver(1, 50))
    spans = session.take(consumer, 1)
    consumer.put_back(spans)
    said(core)
    core.asking.leave(session, consumer, "me")
    [back] = payloads(core)
    assert isinstance(back, Return) and not back.counted


def on_its_way_back() -> tuple[ClientCore, SessionCore, ConsumerCore]:
    """Message 50 came for nobody, and goes back by the session's first command."""
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.leave(session, consumer, "me")
    drain = drain_of(core)
    core.receive(0, deliver(1, 50))
    core.receive(0, Done(request=drain.request))
    said(core)
    return core, session, consumer


def test_the_next_message_is_asked_for_when_the_unwanted_one_is_back() -> None:
    core, session, consumer = on_its_way_back()
    core.asking.ask(session, consumer, "you", 1)
    assert said(core) == [], "the server would give a later message"
    core.receive(0, confirm(1))
    [credit] = said(core)
    assert isinstance(credit, Credit) and credit.messages == 2


def test_what_comes_behind_a_message_on_its_way_back_goes_back_too() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 2)
    core.receive(0, deliver(1, 50))
    core.asking.leave(session, consumer, "me")
    core.asking.ask(session, consumer, "you", 1)
    said(core)
    core.receive(0, deliver(2, 51))
    [back] = payloads(core)
    assert isinstance(back, Return) and back.ranges == Ranges([(51, 52)])
    core.receive(0, confirm(1))
    core.asking.ask(session, consumer, "you", 1)
    assert said(core) == [], "the second is still on its way"


def test_what_comes_before_a_message_on_its_way_back_is_kept() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 2)
    core.receive(0, deliver(1, 50))
    core.asking.leave(session, consumer, "me")
    core.asking.ask(session, consumer, "you", 1)
    said(core)
    core.receive(0, deliver(2, 49))
    assert payloads(core) == [] and consumer.buffered == 1


def test_whether_there_is_a_message_is_asked_when_the_unwanted_one_is_back() -> None:
    core, session, consumer = on_its_way_back()
    core.asking.ask(session, consumer, "you", 1)
    core.asking.stop(consumer, "you")
    core.asking.drain(session, consumer)
    assert said(core) == [] and consumer.is_draining
    core.receive(0, confirm(1))
    assert drain_of(core).messages == 2
    core.receive(0, deliver(2, 50))
    assert consumer.buffered == 1


def test_credit_that_is_left_is_taken_back_at_once_though_messages_are_on_their_way_back() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 5)
    core.receive(0, deliver(1, 50, 2))
    said(core)
    core.asking.leave(session, consumer, "me")
    drain = drain_of(core)
    assert drain.messages == 5


def test_another_server_gets_no_credit_before_the_unwanted_message_is_back() -> None:
    core, session, consumer = on_its_way_back()
    core.asking.ask(session, consumer, "you", 1)
    core.lose()
    wish = resumption(resume(core))
    assert (wish.credit_messages, wish.held) == (1, Ranges())
    core.receive(0, confirm(1))
    [credit] = [frame for frame in said(core) if isinstance(frame, Credit)]
    assert credit.messages == 2


def test_a_closed_consumer_asks_for_nothing_when_its_message_is_back() -> None:
    core, session, consumer = on_its_way_back()
    core.asking.ask(session, consumer, "you", 1)
    core.close_consumer(session, consumer)
    said(core)
    core.receive(0, confirm(1))
    assert said(core) == []


def test_who_asks_while_the_server_is_asked_is_in_the_next_question() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.leave(session, consumer, "me")
    first = drain_of(core)
    core.asking.ask(session, consumer, "you", 1)
    core.asking.stop(consumer, "you")
    core.receive(0, Done(request=first.request))
    core.asking.drain(session, consumer)
    assert drain_of(core).messages == 1


def test_a_delivery_behind_the_answer_is_a_breach() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.leave(session, consumer, "me")
    core.receive(0, Done(request=drain_of(core).request))
    with pytest.raises(ProtocolError, match="it allowed 0 messages"):
        core.receive(0, deliver(1, 50))


def test_another_server_gets_credit_only_for_what_is_wanted_by_then() -> None:
    core, session, consumer = without_prefetch()
    core.asking.ask(session, consumer, "me", 1)
    core.asking.leave(session, consumer, "me")
    said(core)
    core.lose()
    wish = resumption(resume(core))
    assert (wish.credit_messages, wish.delivered_messages) == (0, 0)
    assert not consumer.is_draining, "the answer to the former one will not come"


def test_a_consumer_with_a_prefetch_has_it_again_when_it_was_drained() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session, prefetch_messages=10)
    core.asking.drain(session, consumer)
    drain = drain_of(core)
    assert drain.messages == 10
    core.receive(0, deliver(1, 50, 3))
    core.receive(0, Done(request=drain.request))
    assert consumer.buffered == 3
    [credit] = [frame for frame in said(core) if isinstance(frame, Credit)]
    assert credit.messages == 10, "of ten it has three, and may be sent seven"


def test_a_consumer_that_was_not_told_how_many_begins_with_few_and_gets_more_as_it_takes_them() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session, prefetch_messages=1_000, first_messages=32)
    windows, arrived, taken = [], 0, 0
    assert consumer.granted[0] == 32
    while not windows or windows[-1] < 1_000:
        through = consumer.granted[0]
        core.receive(0, deliver(arrived + 1, 50 + arrived, through - arrived))
        arrived = through
        taken += sum(span.stop - span.start for span in session.take(consumer, consumer.buffered))
        windows.append(consumer.granted[0] - taken)
    assert windows == [128, 512, 1_000]
    # Asking again and again whether there is something makes nobody greedy.
    consumer = open_consumer(core, session, prefetch_messages=1_000, first_messages=32)
    said(core)
    for _ in range(5):
        core.asking.drain(session, consumer)
        core.receive(0, Done(request=drain_of(core).request))
        said(core)
    assert consumer.granted[0] == 32


def test_a_consumer_that_retires_returns_what_is_buffered_and_on_its_way_and_keeps_what_was_taken() -> None:
    core = welcome_core()
    session = open_session(core)
    consumer = open_consumer(core, session, prefetch_messages=10)
    core.receive(0, deliver(1, 50, 3))
    consumer.hold(session.take(consumer, 1))
    said(core)
    core.asking.retire(session, consumer)
    frames = said(core)
    [drain] = [frame for frame in frames if isinstance(frame, ConsumerDrain)]
    assert drain.messages == 10
    core.receive(0, deliver(4, 53, 2))
    [on_its_way] = payloads(core)
    assert (
        isinstance(on_its_way, Return) and on_its_way.ranges == Ranges([(53, 55)]) and not on_its_way.counted
    )
    core.receive(0, Done(request=drain.request))
    assert said(core) == [], "there is no new credit"
    assert (consumer.buffered, consumer.held, consumer.unconfirmed) == (
        0,
        Ranges([(50, 51)]),
        Ranges([(50, 51)]),
    )
