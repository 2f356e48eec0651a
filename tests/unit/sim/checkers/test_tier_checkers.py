"""The checkers of a cluster see what they are there to see, in histories with one thing wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.bus.entries import FenceDetail
from antiphon.bus.messages import (
    NO_DIGEST,
    Deliver,
    Entry,
    EntryKind,
    Heartbeat,
    Piece,
    Register,
    Registered,
    Taker,
    Target,
)
from antiphon.ids import Mid, epoch_node, make_epoch
from antiphon.ranges import Ranges
from antiphon.sim.checkers.cluster import Convergence, Primaries, Reads
from antiphon.sim.checkers.history import TotalDestinations
from antiphon.sim.checkers.model import Destinations, SubscriptionModel
from antiphon.sim.checkers.watch import NodeFacts, PortConsumer
from antiphon.sim.image import Image
from antiphon.sim.world import Violation, World
from antiphon.wire.commands import (
    Acknowledge,
    CreateDestination,
    ExpireSession,
    OpenSession,
    OutcomeCode,
    Payload,
    Publish,
    ResumeSession,
    encode_command,
    kind_of,
)

FIRST, SECOND = 1, 2  # replicas
DOOR, OTHER_DOOR = 11, 12
SESSION, OTHER_SESSION, QUEUE = 77, 78, 3
TERM, NEXT_TERM = make_epoch(1, FIRST), make_epoch(2, SECOND)
HOLDER, OTHER = PortConsumer(1, SESSION, 1), PortConsumer(2, OTHER_SESSION, 2)
STREAM = itertools.count(1)


def claim(first: int, term: int) -> Entry:
    return Entry(first, 1, EntryKind.PRIMARY_CLAIM, Mid(epoch_node(term), term, 0), 0, NO_DIGEST)


class OneQueue(list[Any]):
    """A directory without families."""

    families = ()


def a_state(term: int = TERM, sessions: int = 1, live: int = 0, primary: int = FIRST) -> Any:
    """As much of a replica's state as the checkers look at: one queue."""
    queue = SimpleNamespace(id=QUEUE, live=SimpleNamespace(count=live))
    return SimpleNamespace(
        term=term, primary=primary, sessions=[None] * sessions, directory=OneQueue([queue])
    )


class Log:
    """A claim, a session and a queue, applied by the first replica; the second one follows when told."""

    def __init__(self) -> None:
        self.model = Destinations(World(1))
        self.entries: list[tuple[Entry, memoryview | None]] = []
        self._number = 1
        for node in (FIRST, SECOND):
            self.model.on_started(node, Image(), 0)
        self.add(claim(1, TERM), None)
        self.order(OpenSession(user="a", client_id=""), number=0)
        self.order(CreateDestination(kind=1, name="q", settings="{}"), session=0)
        for door, session, number in ((DOOR, SESSION, 1), (OTHER_DOOR, OTHER_SESSION, 2)):
            register = Register(door, session, 1, QUEUE, 0, "", 9, 9, Ranges(), number)
            self.model.on_sent(door, register)

    @property
    def next(self) -> int:
        return self.entries[-1][0].last + 1

    def add(self, entry: Entry, payload: memoryview | None) -> None:
        self.entries.append((entry, payload))
        self.model.on_applied(FIRST, entry, payload)

    def order(
        self,
        payload: Payload,
        session: int = SESSION,
        number: int | None = None,
        count: int = 1,
        generation: int = 1,
    ) -> int:
        if number is None and session:
            number, self._number = self._number, self._number + count
        data = encode_command(
            kind_of(payload), session, generation if session else 0, number or 0, 0, payload.encode(), count
        )
        first = self.next
        self.add(Entry(first, count, EntryKind.DATA, Mid(1, 1, first), 0, NO_DIGEST), memoryview(data))
        return first

    def publish(self, count: int) -> int:
        return self.order(Publish(QUEUE, 1, 0, b""), count=count)

    def acknowledge(self, start: int, stop: int) -> int:
        return self.order(Acknowledge(destination=QUEUE, subscription=0, ranges=Ranges([(start, stop)])))

    def follow(self) -> None:
        """The second replica applies everything."""
        for entry, payload in self.entries:
            self.model.on_applied(SECOND, entry, payload)

    @property
    def last(self) -> Entry:
        return self.entries[-1][0]


def deliver(first: int, count: int = 1, term: int = TERM) -> Deliver:
    target = Target(DOOR, next(STREAM), (Taker(DOOR, 1),))
    return Deliver(term, QUEUE, (target,), (Piece(first, count, 0, []),))


def test_a_primary_that_does_not_know_of_an_acknowledgement_may_push() -> None:
    log = Log()
    first = log.publish(2)
    log.acknowledge(first, first + 1)
    log.model.on_sent(SECOND, deliver(first))
    log.follow()
    with pytest.raises(Violation, match="after it was acknowledged"):
        log.model.on_sent(SECOND, deliver(first))


def test_a_replica_with_another_count_is_seen_at_the_entry_that_made_it() -> None:
    log = Log()
    log.publish(2)
    log.model.on_folded(FIRST, log.last, a_state(live=2))
    with pytest.raises(Violation, match=r"node 2 holds \(\(3, 3\),\), and by the order it is \(\(3, 2\),\)"):
        log.model.on_folded(SECOND, log.last, a_state(live=3))


def test_a_replica_that_ends_a_session_for_a_former_primary_is_seen() -> None:
    log = Log()
    log.add(claim(log.next, NEXT_TERM), None)
    log.order(ExpireSession(session=SESSION, generation=1, pid=1, pe=1, term=TERM), session=0)
    log.model.on_folded(FIRST, log.last, a_state(NEXT_TERM))
    with pytest.raises(Violation, match="I14"):
        log.model.on_folded(SECOND, log.last, a_state(NEXT_TERM, sessions=0))


def fence(first: int, pid: int, pe: int) -> Entry:
    detail = FenceDetail(pid, pe, TERM).encode()
    return Entry(first, 1, EntryKind.PRODUCER_FENCE, Mid(FIRST, TERM, first), 0, NO_DIGEST, detail)


def test_a_replica_that_ends_a_session_which_a_client_manager_has_again_is_seen() -> None:
    log = Log()
    log.add(fence(log.next, 1, 1), None)
    log.publish(1)
    log.order(ExpireSession(session=SESSION, generation=1, pid=0, pe=0, term=TERM), session=0)
    log.model.on_folded(FIRST, log.last, a_state(live=1))
    with pytest.raises(Violation, match="I14"):
        log.model.on_folded(SECOND, log.last, a_state(live=1, sessions=0))


def test_a_replica_that_keeps_a_session_which_no_client_manager_has_is_seen() -> None:
    log = Log()
    log.add(fence(log.next, 1, 1), None)
    log.order(ExpireSession(session=SESSION, generation=1, pid=0, pe=0, term=TERM), session=0)
    log.model.on_folded(FIRST, log.last, a_state(sessions=0))
    with pytest.raises(Violation, match="I14"):
        log.model.on_folded(SECOND, log.last, a_state())


def test_a_session_that_a_late_opening_made_is_not_resumed_for_the_one_that_has_ended() -> None:
    log = Log()
    log.order(ResumeSession(known=2), number=0, generation=3)
    log.order(ExpireSession(session=SESSION, generation=1, pid=1, pe=1, term=TERM), session=0)
    log.model.on_folded(FIRST, log.last, a_state(sessions=0))
    with pytest.raises(Violation, match="I14"):
        log.model.on_folded(SECOND, log.last, a_state())


def test_what_a_living_consumer_holds_is_handed_out_again_only_where_nobody_can_promise_otherwise() -> None:
    log = Log()
    first = log.publish(1)
    log.model.on_handed_out(DOOR, HOLDER, first, 1, 0)
    log.model.on_handed_out(OTHER_DOOR, OTHER, first, 1, 1)
    log.model.is_exclusive = True
    with pytest.raises(Violation, match="holds it"):
        log.model.on_handed_out(DOOR, HOLDER, first, 1, 1)


def test_a_consumer_that_gets_what_it_holds_is_seen_in_any_case() -> None:
    log = Log()
    first = log.publish(1)
    log.model.on_handed_out(DOOR, HOLDER, first, 1, 0)
    with pytest.raises(Violation, match="holds it"):
        log.model.on_handed_out(DOOR, HOLDER, first, 1, 1)


def test_nobody_holds_what_was_with_a_client_manager_that_is_gone() -> None:
    log = Log()
    log.model.is_exclusive = True
    first = log.publish(1)
    log.model.on_handed_out(DOOR, HOLDER, first, 1, 0)
    log.model.on_crashed(OTHER_DOOR)
    with pytest.raises(Violation, match="holds it"):
        log.model.on_handed_out(OTHER_DOOR, OTHER, first, 1, 1)
    log.model.on_crashed(DOOR)
    log.model.on_handed_out(OTHER_DOOR, OTHER, first, 1, 1)


def test_what_a_client_gave_back_is_held_by_nobody() -> None:
    log = Log()
    log.model.is_exclusive = True
    first = log.publish(1)
    log.model.on_handed_out(DOOR, HOLDER, first, 1, 0)
    log.model.on_given_back(DOOR, SESSION, 0, Ranges([(first, first + 1)]))
    log.model.on_handed_out(OTHER_DOOR, OTHER, first, 1, 1)


def test_a_client_that_moved_takes_its_messages_to_its_next_connection() -> None:
    """The client manager that has the former connection may hear of the move later than the next one."""
    log = Log()
    log.model.is_exclusive = True
    first = log.publish(1)
    log.model.on_handed_out(DOOR, HOLDER, first, 1, 0)
    moved = replace(HOLDER, connection=HOLDER.connection + 1)
    log.model.on_kept(OTHER_DOOR, moved, Ranges([(first, first + 1)]))
    with pytest.raises(Violation, match="holds it"):
        log.model.on_handed_out(DOOR, HOLDER, first, 1, 1)


# Primaries.


def primaries() -> Primaries:
    checker = Primaries(World(1))
    for node in (FIRST, SECOND):
        checker.on_started(node, Image(), 0)
    checker.on_folded(FIRST, claim(1, TERM), a_state())
    return checker


def test_one_term_has_one_primary() -> None:
    entry = claim(2, TERM)._replace(mid=Mid(SECOND, TERM, 0))
    with pytest.raises(Violation, match="nodes 1 and 2 claim term"):
        primaries().on_folded(SECOND, entry, a_state())


@pytest.mark.parametrize("message", [deliver(5), Registered(1, TERM)], ids=lambda one: type(one).__name__)
def test_who_speaks_for_a_term_of_another_is_seen(message: Deliver | Registered) -> None:
    checker = primaries()
    checker.on_sent(FIRST, message)
    with pytest.raises(Violation, match="which it did not claim"):
        checker.on_sent(SECOND, message)


def test_who_has_not_applied_its_claim_in_this_life_does_not_speak() -> None:
    checker = primaries()
    checker.on_started(FIRST, Image(), 0)
    with pytest.raises(Violation, match="has not applied its claim"):
        checker.on_sent(FIRST, deliver(5))
    # It came with the state of another.
    checker.on_restored(FIRST, 1)
    checker.on_sent(FIRST, deliver(5))


def test_who_speaks_for_a_term_of_its_former_life_is_seen() -> None:
    """Applying the log again, it comes to its own claim again."""
    checker = primaries()
    checker.on_sent(FIRST, deliver(5))
    checker.on_started(FIRST, Image(), 0)
    checker.on_folded(FIRST, claim(1, TERM), a_state())
    with pytest.raises(Violation, match="claimed in a former life"):
        checker.on_sent(FIRST, deliver(5))


def test_who_says_that_it_serves_the_epoch_of_another_is_seen() -> None:
    with pytest.raises(Violation, match="which is another's"):
        primaries().on_sent(SECOND, Heartbeat(TERM, 1, 0, 1, 1, True))


# Reads.


def test_a_page_without_what_was_confirmed_before_is_seen() -> None:
    log = Log()
    first = log.publish(3)
    reads = Reads(World(1), log.model)
    reads.on_confirmed(SESSION, 1, 3, OutcomeCode.APPLIED, first)
    log.acknowledge(first, first + 1)

    reads.on_look(1, SESSION, QUEUE, 0)
    reads.on_looked(1, 1 << 60, [first + 1, first + 2])  # the first one is acknowledged
    reads.on_look(2, SESSION, QUEUE, 0)
    reads.on_looked(2, first + 1, [first + 1])  # a page of one
    reads.on_look(3, SESSION, QUEUE, 0)
    with pytest.raises(Violation, match="were confirmed before a page"):
        reads.on_looked(3, 1 << 60, [first + 1])


def test_what_is_confirmed_after_a_page_was_asked_for_need_not_be_in_it() -> None:
    log = Log()
    first = log.publish(1)
    reads = Reads(World(1), log.model)
    reads.on_look(1, SESSION, QUEUE, 0)
    reads.on_confirmed(SESSION, 1, 1, OutcomeCode.APPLIED, first)
    reads.on_looked(1, 1 << 60, [])


def test_a_confirmed_subscription_that_is_not_found_is_seen() -> None:
    log = Log()
    log.model.subscriptions[9] = SubscriptionModel(QUEUE, 0, 9)
    reads = Reads(World(1), log.model)
    reads.on_sought(1, SESSION, 9)
    reads.on_found(1, SESSION, True)
    reads.on_sought(2, SESSION, 9)
    with pytest.raises(Violation, match="told it does not exist"):
        reads.on_found(2, SESSION, False)


# The end.


def facts(leads: bool, applied: int, digest: bytes = NO_DIGEST) -> NodeFacts:
    return NodeFacts(is_leading=leads, applied=applied, digest=digest, waits_for=0)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (facts(True, 5), "lead"),
        (facts(False, 4), "have applied"),
        (facts(False, 5, b"x" * 16), "differ"),
    ],
)
def test_replicas_that_are_not_equal_in_the_end_are_seen(second: NodeFacts, words: str) -> None:
    with pytest.raises(Violation, match=words):
        Convergence(World(1)).at_end({FIRST: facts(True, 5), SECOND: second})


def test_a_confirmed_message_of_a_queue_that_nobody_got_is_seen() -> None:
    log = Log()
    total = TotalDestinations(World(1))
    total.topics = log.model
    first = log.publish(2)
    total.on_published(SESSION, 1, [b"a", b"b"])
    total.on_confirmed(SESSION, 1, 2, OutcomeCode.APPLIED, first)
    total.on_received(HOLDER, first, b"a", 0)
    with pytest.raises(Violation, match="never delivered"):
        total.at_quiet({})
    total.on_received(HOLDER, first + 1, b"b", 0)
    total.at_quiet({})


def test_messages_of_a_session_that_changed_places_are_seen() -> None:
    log = Log()
    total = TotalDestinations(World(1))
    total.topics = log.model
    first = log.publish(2)
    total.on_published(SESSION, 1, [b"a", b"b"])
    total.on_received(HOLDER, first + 1, b"a", 0)
    total.on_received(HOLDER, first, b"b", 0)
    with pytest.raises(Violation, match="behind"):
        total.at_quiet({})
