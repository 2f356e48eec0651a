"""Steps of a producer: opening, sending, retrying, confirming, and being fenced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus import producer
from antiphon.bus.effects import (
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    EnvelopeUncertain,
    Multicast,
    Received,
    RunOver,
    Send,
)
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason
from antiphon.bus.producer import Again, BusProducer, in_the_same_words
from antiphon.ids import Mid, make_epoch
from antiphon.wire.commands import Outcome, OutcomeCode
from tests.planted.catalogue import with_and_without
from tests.stage import envelope

EPOCH = make_epoch(1, 1)
RUN = b"run of this node"
OTHER = b"run of a ghost.."


class Door:
    """The producer of node 7, which has no replica and so far knows that number 3 is committed."""

    def __init__(self, again: Again = in_the_same_words, **settings: Any) -> None:
        servers = dict.fromkeys(
            ("commit_servers", "data_servers", "checkpoint_servers", "candidates"), (1, 2)
        )
        self.config = GroupConfig.of("main", (1, 2, 7), **{**servers, **settings})
        self.producer = BusProducer(self.config, 7, RUN, again=again)
        self.now_ns = 0
        self.next = 4
        self.hear(m.Heartbeat(EPOCH, 3, 0, 1, 3, True))

    def step(self, *events: Any) -> list[Effect]:
        return self.producer.step(self.now_ns, list(events))

    def hear(self, *messages: m.BusMessage) -> list[Effect]:
        return self.step(*(Received(1, message) for message in messages))

    def submit(self, *tags: int, commands: int = 1) -> list[Effect]:
        return self.step(*(envelope(tag, commands) for tag in tags))

    def entry(self, kind: EntryKind, detail: bytes = b"", mid: Mid | None = None, count: int = 1) -> Entry:
        """The next entry of the order."""
        made = Entry(self.next, count, kind, mid or Mid(1, EPOCH, self.next), 0, NO_DIGEST, detail)
        self.next += count
        return made

    def opened(self, run: bytes = RUN) -> Entry:
        return self.entry(EntryKind.PRODUCER_OPEN, OpenDetail(7, run).encode())

    def numbered(self, data: m.Data) -> Entry:
        return self.entry(EntryKind.DATA, mid=data.mid, count=data.count)

    def commit(self, *entries: Entry) -> list[Effect]:
        return self.hear(m.Commit(EPOCH, entries, entries[-1].last))

    def open(self, *tags: int) -> list[m.Data]:
        """Submit, and let the run be opened; returns what is then sent."""
        self.submit(*tags)
        return sent(self.commit(self.opened()))

    def numbered_in_vain(self, *data: m.Data) -> list[Entry]:
        """These get their numbers, and the producer hears nothing of it."""
        return [self.numbered(one) for one in data]

    def lose_the_log(self) -> list[Effect]:
        """A commit server says that its log begins behind everything so far; what is asked then."""
        self.hear(m.FetchIdReply((), self.next - 1, self.next - 1))
        return self.wait()

    def state(
        self, pe: int = 4, last: int = 0, previous: tuple[int, int] = (0, 0), run: bytes = RUN
    ) -> m.ProducerState:
        return m.ProducerState(7, self.next - 1, pe, last, 0, *previous, run)

    def wait(self) -> list[Effect]:
        deadline = self.producer.next_deadline_ns()
        assert deadline is not None
        self.now_ns = deadline
        return self.step()


def sent(effects: list[Effect]) -> list[m.Data]:
    return [e.message for e in effects if isinstance(e, Multicast) and isinstance(e.message, m.Data)]


def asked(effects: list[Effect]) -> list[m.BusMessage]:
    return [e.message for e in effects if isinstance(e, Send)]


def uncertain(effects: list[Effect]) -> list[int]:
    return [e.tag for e in effects if isinstance(e, EnvelopeUncertain)]


def confirmed(effects: list[Effect]) -> list[int]:
    return [e.tag for e in effects if isinstance(e, EnvelopeConfirmed)]


def opens(effects: list[Effect]) -> list[bytes]:
    found = [e.message for e in effects if isinstance(e, Multicast)]
    return [message.run_id for message in found if isinstance(message, m.ProducerOpen)]


def test_nothing_is_said_before_there_is_something_to_send() -> None:
    assert Door().producer.next_deadline_ns() is None


def test_who_serves_clients_opens_at_once_because_former_consumers_hold_messages() -> None:
    config = GroupConfig.of("main", (1, 2, 7))
    opening = BusProducer(config, 7, RUN, opens_at_once=True)

    assert opening.next_deadline_ns() == 0
    assert opening.step(5, []) == [Multicast(m.ProducerOpen(7, RUN))]
    assert opening.step(5 + config.rereport_ms * MS, []) == [Multicast(m.ProducerOpen(7, RUN))]
    opened = Entry(4, 1, EntryKind.PRODUCER_OPEN, Mid(1, EPOCH, 4), 0, NO_DIGEST, OpenDetail(7, RUN).encode())
    opening.step(6, [Received(1, m.Heartbeat(EPOCH, 3, 0, 1, 3, True))])
    opening.step(7, [Received(1, m.Commit(EPOCH, (opened,), 4))])
    assert (opening.pe, opening.next_deadline_ns()) == (4, None)


def test_the_first_envelope_opens_the_run_and_waits_for_its_number() -> None:
    door = Door()
    assert door.submit(1) == [Multicast(m.ProducerOpen(7, RUN))]
    assert door.submit(2) == []
    data = sent(door.commit(door.opened()))
    assert [one.mid for one in data] == [Mid(7, 4, 1), Mid(7, 4, 2)]
    assert [one.ts for one in data] == [4, 4]
    assert door.producer.pe == 4


def test_an_open_is_repeated_until_it_is_heard_to_be_committed() -> None:
    door = Door()
    door.submit(1)
    assert opens(door.wait()) == [RUN]
    assert opens(door.wait()) == [RUN]
    data = sent(door.hear(m.ProducerOpened(7, RUN, 2)))
    assert [one.mid for one in data] == [Mid(7, 2, 1)]


def test_the_open_of_another_node_is_not_ours() -> None:
    door = Door()
    door.submit(1)
    other = door.entry(EntryKind.PRODUCER_OPEN, OpenDetail(1, RUN).encode())
    assert sent(door.commit(other)) == []


def test_an_envelope_is_committed_and_later_confirmed() -> None:
    door = Door()
    (data,) = door.open(1)
    assert door.commit(door.numbered(data)) == [EnvelopeCommitted(1, 5, 1)]
    assert door.hear(m.Applied(EPOCH, 4)) == []
    assert door.hear(m.Applied(EPOCH, 5)) == [EnvelopeConfirmed(1, 5, 1, ())]
    assert door.producer.unconfirmed == 0
    assert door.producer.next_deadline_ns() is None


def test_applied_may_be_heard_together_with_the_commit() -> None:
    door = Door()
    (data,) = door.open(1)
    commit = m.Commit(EPOCH, (door.numbered(data),), 5)
    effects = door.hear(m.Applied(EPOCH, 5), commit)
    assert effects == [EnvelopeCommitted(1, 5, 1), EnvelopeConfirmed(1, 5, 1, ())]


def test_exceptions_go_to_the_envelope_in_whose_numbers_they_fall() -> None:
    door = Door()
    door.submit(1)
    door.submit(2, commands=3)
    one, two = sent(door.commit(door.opened()))
    door.commit(door.numbered(one), door.numbered(two))
    before = Outcome(4, 1, OutcomeCode.REFUSED, 0, "of somebody else")
    inside = Outcome(7, 1, OutcomeCode.NO_DESTINATION, 0, "gone")
    assert door.hear(m.Applied(EPOCH, 8, (before, inside))) == [
        EnvelopeConfirmed(1, 5, 1, ()),
        EnvelopeConfirmed(2, 6, 3, (inside,)),
    ]


def test_at_most_a_window_is_on_the_way() -> None:
    door = Door(producer_window_bytes=2 * 1_280)
    data = door.open(1, 2, 3)
    assert len(data) == 2
    more = sent(door.commit(door.numbered(data[0])))
    assert [one.mid.pseq for one in more] == [3]


def test_at_most_what_the_network_takes_is_on_the_way() -> None:
    door = Door(producer_window_bytes=1 << 20)
    door.producer.window_bytes_max = 2 * 1_280
    assert len(door.open(1, 2, 3)) == 2


def test_an_envelope_larger_than_the_window_goes_alone() -> None:
    door = Door(producer_window_bytes=100)
    data = door.open(1, 2)
    assert len(data) == 1


def test_what_is_not_committed_is_sent_again_exactly_as_it_was() -> None:
    door = Door(rereport_ms=200)
    one, two = door.open(1, 2)
    door.commit(door.numbered(one))
    assert sent(door.wait()) == [two], "the same id, ts, digest and payload"
    assert door.now_ns == 400 * MS
    times = []
    for _ in range(5):
        assert sent(door.wait()) == [two]
        times.append(door.now_ns // MS)
    assert times == [1_200, 2_800, 6_000, 9_200, 12_400], "less and less often, but for ever"


def test_a_refusal_that_is_not_final_changes_nothing() -> None:
    door = Door()
    (data,) = door.open(1)
    for reason in (NackReason.DUPLICATE, NackReason.FENCED, NackReason.NOT_OPEN, NackReason.GAP):
        assert door.hear(m.ReportNack(EPOCH, data.mid, reason)) == []


def test_a_producer_without_a_replica_reads_in_the_order_whom_to_ask() -> None:
    door = Door()
    roles = dict.fromkeys(("commit_servers", "data_servers", "checkpoint_servers", "candidates"), (8,))
    quantities = dict.fromkeys(
        ("data_quantity", "commit_quantity", "seal_quantity", "checkpoint_quantity"), 1
    )
    second = replace(door.config, config_id=2, nodes=(7, 8), **roles, **quantities)
    door.commit(door.entry(EntryKind.CONFIG, second.encode()))
    assert door.producer.config == second
    door.producer.reconfigure(door.config)
    assert door.producer.config == second, "an old one is no news"
    door.hear(m.Heartbeat(EPOCH, 9, 0, 2, 3, True))
    assert door.wait() == [Send(8, m.FetchId(5, door.config.fetch_entries_max))]


def test_a_gap_in_the_run_of_a_former_life_is_closed_by_a_run_of_ours() -> None:
    door = Door()
    nack = m.ReportNack(EPOCH, Mid(7, 2, 5), NackReason.GAP, 4)
    assert door.hear(replace(nack, reason=NackReason.DUPLICATE)) == [], "what is committed needs no fence"
    assert door.hear(nack) == [Multicast(m.ProducerOpen(7, RUN))]
    assert door.hear(nack) == [], "it is on its way"
    door.commit(door.opened())
    assert door.producer.pe == 4
    assert door.hear(nack) == [], "a late word about a run that is over"
    assert door.hear(replace(nack, mid=Mid(7, 4, 2))) == [], "our own run goes on"
    (data,) = sent(door.submit(1))
    assert data.mid == Mid(7, 4, 1)


def test_a_fence_by_a_stale_open_makes_it_open_again_and_resend_what_is_not_in_the_order() -> None:
    door = Door()
    one, two, three = door.open(1, 2, 3)
    effects = door.commit(door.numbered(one), door.opened(OTHER))
    (varied,) = opens(effects)
    assert varied not in (RUN, OTHER), "so that no answer to the first OPEN can be taken for one to this"
    assert sent(effects) == []
    again = sent(door.commit(door.opened(varied)))
    assert [(data.mid, data.payload) for data in again] == [
        (Mid(7, 7, 1), two.payload),
        (Mid(7, 7, 2), three.payload),
    ]
    effects = door.commit(*(door.numbered(data) for data in again))
    assert [e.tag for e in effects if isinstance(e, EnvelopeCommitted)] == [2, 3]


def fence_of(door: Door, pe: int) -> Entry:
    return door.entry(EntryKind.PRODUCER_FENCE, FenceDetail(7, pe, EPOCH).encode())


def test_a_fence_by_the_primary_makes_it_open_again() -> None:
    door = Door()
    one, two = door.open(1, 2)
    (varied,) = opens(door.commit(door.numbered(one), fence_of(door, 4)))
    assert varied != RUN
    assert [data.payload for data in sent(door.commit(door.opened(varied)))] == [two.payload]


def test_what_a_fence_left_is_sent_again_before_what_was_submitted_later() -> None:
    door = Door()
    one, two = door.open(1, 2)
    (varied,) = opens(door.commit(fence_of(door, 4)))
    assert sent(door.submit(3)) == [], "it waits for the run that is being opened"
    again = sent(door.commit(door.opened(varied)))
    assert [data.payload for data in again[:2]] == [one.payload, two.payload]
    assert [data.mid.pseq for data in again] == [1, 2, 3]


def test_a_fence_that_is_void_ends_nothing_until_the_new_run_is_open() -> None:
    """A former primary proposed it, so the run goes on, and what follows in the order counts."""
    door = Door()
    one, two = door.open(1, 2)
    (varied,) = opens(door.commit(fence_of(door, 4)))
    effects = door.commit(door.numbered(one), door.opened(varied))
    assert [e.tag for e in effects if isinstance(e, EnvelopeCommitted)] == [1]
    (again,) = sent(effects)
    assert (again.payload, again.mid) == (two.payload, Mid(7, door.producer.pe, 1))


def test_a_fence_while_nothing_is_on_the_way_opens_the_next_run_when_it_is_needed() -> None:
    door = Door()
    (data,) = door.open(1)
    door.commit(door.numbered(data))
    assert opens(door.commit(fence_of(door, 4))) == []
    (varied,) = opens(door.submit(2))
    assert varied != RUN, "were the fence void, an OPEN of the same id would give out ids a second time"


def runs_over(effects: list[Effect]) -> int:
    return len([effect for effect in effects if isinstance(effect, RunOver)])


def test_that_a_fence_stands_behind_its_run_is_told_once() -> None:
    door = Door()
    (data,) = door.open(1)
    door.commit(door.numbered(data))
    assert runs_over(door.commit(fence_of(door, 4))) == 1, "nothing is on the way"
    (varied,) = opens(door.submit(2))
    (data,) = sent(effects := door.commit(door.opened(varied)))
    assert runs_over(effects) == 0, "this run begins"
    (varied,) = opens(effects := door.commit(fence_of(door, door.producer.pe)))
    assert runs_over(effects) == 0, "something is on the way, and the fence may be void"
    assert runs_over(door.commit(door.opened(varied))) == 1


def test_an_answer_to_an_open_of_before_is_not_one_to_the_present_open() -> None:
    door = Door()
    door.open(1, 2)
    door.commit(door.opened(OTHER))
    assert sent(door.hear(m.ProducerOpened(7, RUN, 4))) == [], "that run is over"
    assert door.producer.pe == 0


def test_an_expired_envelope_starts_a_run_of_its_own_fence() -> None:
    door = Door()
    one, two = door.open(1, 2)
    (varied,) = opens(door.hear(m.ReportNack(EPOCH, one.mid, NackReason.EXPIRED)))
    assert varied != RUN, "an OPEN counts once per id"
    assert door.hear(m.ReportNack(EPOCH, two.mid, NackReason.EXPIRED)) == [], "once is enough"
    again = sent(door.commit(door.opened(varied)))
    assert [(data.mid.pseq, data.ts, data.payload) for data in again] == [
        (1, 5, one.payload),
        (2, 5, two.payload),
    ]


def test_an_answer_about_a_fence_beyond_a_gap_waits_until_the_gap_is_known() -> None:
    """Envelope 1 may stand in the order before the fence; sent again too early, it would be there twice."""
    door = Door()
    one, two = door.open(1, 2)
    (varied,) = opens(door.hear(m.ReportNack(EPOCH, two.mid, NackReason.EXPIRED)))
    missed = door.numbered(one)
    fence = door.opened(varied)
    assert sent(door.hear(m.ProducerOpened(7, varied, fence.first))) == []
    (ask,) = [effect for effect in door.wait() if isinstance(effect, Send)]
    assert ask.message == m.FetchId(missed.first, door.config.fetch_entries_max)
    effects = door.hear(m.FetchIdReply((missed, fence), fence.first, 0))
    assert [e.tag for e in effects if isinstance(e, EnvelopeCommitted)] == [1]
    assert [data.payload for data in sent(effects)] == [two.payload]


def test_a_missed_commit_is_fetched_and_confirmations_keep_their_order() -> None:
    door = Door()
    one, two = door.open(1, 2)
    first, second = door.numbered(one), door.numbered(two)
    assert door.commit(second) == [], "who would know what became of the one before?"
    (ask,) = [effect for effect in door.wait() if isinstance(effect, Send)]
    assert ask.message == m.FetchId(first.first, door.config.fetch_entries_max)
    effects = door.hear(m.FetchIdReply((first,), second.last, 0))
    assert effects == [EnvelopeCommitted(1, 5, 1), EnvelopeCommitted(2, 6, 1)]


def test_envelopes_are_confirmed_in_the_order_of_submission() -> None:
    door = Door()
    data = door.open(*range(1, 9))
    effects = door.commit(*(door.numbered(one) for one in data))
    effects += door.hear(m.Applied(EPOCH, 12))
    assert [e.tag for e in effects if isinstance(e, EnvelopeConfirmed)] == list(range(1, 9))


def test_a_duplicate_tells_of_a_commit_that_was_missed() -> None:
    door = Door()
    (data,) = door.open(1)
    missed = door.numbered(data)
    door.hear(m.ReportNack(EPOCH, data.mid, NackReason.DUPLICATE, missed.last))
    assert asked(door.wait()) == [m.FetchId(missed.first, door.config.fetch_entries_max)]


def test_who_hears_of_its_open_first_begins_there() -> None:
    door = Door()
    producer = BusProducer(door.config, 7, RUN)
    producer.step(0, [envelope(1)])
    (data,) = sent(producer.step(0, [Received(1, m.ProducerOpened(7, RUN, 9))]))
    assert data.ts == 9, "with a ts of 0 it might be too old from the beginning"


def test_a_window_that_is_full_reopens_though_the_last_commit_was_lost() -> None:
    """Nothing else is on its way that could tell: only the clock of the sequencer does."""
    door = Door(producer_window_bytes=2 * 1_280)
    one, two = door.open(1, 2, 3)
    missed = (door.numbered(one), door.numbered(two))
    door.hear(m.Heartbeat(EPOCH, 6, 0, 2, 4, True))
    assert asked(door.wait()) == [m.FetchId(5, door.config.fetch_entries_max)]
    assert [data.mid.pseq for data in sent(door.hear(m.FetchIdReply(missed, 6, 0)))] == [3]


# -- outcomes that were not heard ----------------------------------------------------------------


def committed_one(door: Door) -> Entry:
    """One envelope on its way, committed as number 5."""
    (data,) = door.open(1)
    entry = door.numbered(data)
    door.commit(entry)
    return entry


def test_an_announcement_that_begins_behind_ours_confirms_nothing_and_the_rest_is_asked_for() -> None:
    door = Door()
    committed_one(door)
    assert door.hear(m.Applied(EPOCH, 8, (), after=5)) == []
    (ask,) = [effect for effect in door.wait() if isinstance(effect, Send)]
    assert ask == Send(1, m.AppliedGet(4)), "the primary, about everything behind what concerns us"
    refused = Outcome(5, 1, OutcomeCode.REFUSED, 0, "no")
    assert door.hear(m.Applied(EPOCH, 8, (refused,), after=4)) == [EnvelopeConfirmed(1, 5, 1, (refused,))]
    assert door.producer.next_deadline_ns() is None


def test_a_heartbeat_is_enough_to_know_that_something_was_not_heard() -> None:
    door = Door()
    committed_one(door)
    door.hear(m.Heartbeat(EPOCH, 5, 0, 2, 4, True))
    assert door.producer.next_deadline_ns() is None, "it is not applied yet"
    door.hear(m.Heartbeat(EPOCH, 5, 0, 3, 5, True))
    assert asked(door.wait()) == [m.AppliedGet(4)]


def test_a_primary_that_does_not_answer_is_not_the_only_one_who_knows() -> None:
    door = Door()
    committed_one(door)
    door.hear(m.Heartbeat(EPOCH, 5, 0, 3, 5, True))
    waits: list[int] = []
    servers: list[int] = []
    for _ in range(12):
        before = door.now_ns
        servers += [effect.to for effect in door.wait() if isinstance(effect, Send)]
        waits.append(door.now_ns - before)
    assert servers[0] == 1 and set(servers) == {1, 2}
    assert waits[5] > waits[1], "less and less often"
    assert max(waits) <= 2 * door.config.fetch_delay_ms_max * MS


def test_an_announcement_heard_twice_tells_its_exceptions_once() -> None:
    door = Door()
    one, two = door.open(1, 2)
    door.commit(door.numbered(one), door.numbered(two))
    lost = Outcome(6, 1, OutcomeCode.ACK_LOST, 3)
    first = m.Applied(EPOCH, 5, (), after=4)
    both = m.Applied(EPOCH, 6, (lost,), after=0)
    assert door.hear(first, both, first, both, both) == [
        EnvelopeConfirmed(1, 5, 1, ()),
        EnvelopeConfirmed(2, 6, 1, (lost,)),
    ]


def test_an_announcement_may_end_within_an_envelope() -> None:
    door = Door()
    door.submit(1, commands=3)
    (data,) = sent(door.commit(door.opened()))
    door.commit(door.numbered(data))
    ends = [Outcome(5, 1, OutcomeCode.GAP), Outcome(7, 1, OutcomeCode.GAP)]
    assert door.hear(m.Applied(EPOCH, 5, (ends[0],), after=4)) == []
    assert door.hear(m.Applied(EPOCH, 7, (ends[1],), after=5)) == [EnvelopeConfirmed(1, 5, 3, tuple(ends))]


def test_what_was_said_about_others_is_not_asked_for() -> None:
    door = Door()
    door.open(1)
    door.hear(m.Applied(EPOCH, 90, (), after=80))
    assert door.producer.next_deadline_ns() == door.now_ns + 400 * MS, "only the envelope itself"


def test_an_envelope_whose_outcome_nobody_can_tell_any_more_is_ordered_once_more() -> None:
    door = Door()
    committed_one(door)
    effects = door.hear(m.Applied(EPOCH, 90, (), after=80, floor=70))
    assert uncertain(effects) == [1]
    (again,) = sent(effects)
    assert again.mid == Mid(7, 4, 2)
    of_others = door.entry(EntryKind.DATA, mid=Mid(1, 2, 1), count=85)
    entry = door.numbered(again)
    assert entry.first == 91
    duplicate = Outcome(91, 1, OutcomeCode.DUPLICATE, 5)
    effects = door.commit(of_others, entry) + door.hear(
        m.Applied(EPOCH, 91, (duplicate,), after=90, floor=70)
    )
    assert effects == [EnvelopeCommitted(1, 91, 1), EnvelopeConfirmed(1, 91, 1, (duplicate,))]


def refused(first: int, count: int = 1) -> Outcome:
    return Outcome(first, count, OutcomeCode.REFUSED, 0, "no")


def test_what_was_heard_is_not_doubted_when_the_table_forgets_it() -> None:
    door = Door()
    one, two = door.open(1, 2)
    door.commit(door.numbered(one), door.numbered(two))
    # What became of the first was forgotten; what became of the second is told.
    effects = door.hear(m.Applied(EPOCH, 6, (refused(6),), after=5, floor=5))
    assert uncertain(effects) == [1]
    (again,) = sent(effects)
    door.commit(door.numbered(again))
    # Both have been pushed out of the table since; the word about the second came long before.
    effects = door.hear(m.Applied(EPOCH, 90, (), after=80, floor=80))
    assert uncertain(effects) == [1]
    (again,) = sent(effects)
    of_others = door.entry(EntryKind.DATA, mid=Mid(1, 2, 1), count=83)
    door.commit(of_others, door.numbered(again))
    assert door.hear(m.Applied(EPOCH, 91, (refused(91),), after=90, floor=80)) == [
        EnvelopeConfirmed(1, 91, 1, (refused(91),)),
        EnvelopeConfirmed(2, 6, 1, (refused(6),)),
    ]


def test_of_an_envelope_that_was_heard_of_in_part_the_rest_may_be_in_doubt() -> None:
    door = Door()
    door.submit(1, commands=3)
    (data,) = sent(door.commit(door.opened()))
    door.commit(door.numbered(data))
    door.hear(m.Applied(EPOCH, 6, (refused(5),), after=4))
    assert uncertain(door.hear(m.Applied(EPOCH, 90, (), after=6, floor=6))) == []
    door = Door()
    door.submit(1, commands=3)
    (data,) = sent(door.commit(door.opened()))
    door.commit(door.numbered(data))
    door.hear(m.Applied(EPOCH, 6, (refused(5),), after=4))
    assert uncertain(door.hear(m.Applied(EPOCH, 90, (), after=80, floor=80))) == [1]


def test_what_was_forgotten_of_numbers_beyond_the_known_order_may_be_ours() -> None:
    door = Door()
    (data,) = door.open(1)
    entry = door.numbered(data)
    of_others = door.entry(EntryKind.DATA, mid=Mid(1, 2, 1), count=5)
    # It was refused; we have not heard yet which number it has, and the table has forgotten it already.
    door.hear(m.Applied(EPOCH, 10, (), after=8, floor=8))
    assert confirmed(door.commit(entry, of_others)) == [], "nobody has said that it was done"
    effects = door.hear(m.Applied(EPOCH, 11, (), after=8, floor=8))
    assert uncertain(effects) == [1]


def exceptions_kept(door: Door) -> int:
    return len(door.producer._exceptions)


def test_who_waits_for_nothing_keeps_nothing_of_what_became_of_others() -> None:
    door = Door()
    for after in range(3, 103):
        door.hear(m.Applied(EPOCH, after + 1, (refused(after + 1),), after=after))
    assert exceptions_kept(door) == 0


def test_what_became_of_others_is_not_kept_beside_what_became_of_ours() -> None:
    door = Door()
    one, _ = door.open(1, 2)
    of_other = door.entry(EntryKind.DATA, mid=Mid(1, 2, 1), count=5)
    door.commit(of_other, door.numbered(one))
    said = [refused(first) for first in (5, 7, 9, 10)]
    effects = door.hear(m.Applied(EPOCH, 10, tuple(said), after=4))
    assert effects == [EnvelopeConfirmed(1, 10, 1, (said[-1],))]
    assert exceptions_kept(door) == 0, "the second has no number yet, and what is known is not it"


def test_what_may_turn_out_to_be_ours_is_kept_up_to_a_bound_and_the_rest_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer, "EARLY_MAX", 3)
    door = Door()
    (data,) = door.open(1)
    of_others = door.entry(EntryKind.DATA, mid=Mid(1, 2, 1), count=5)
    entry = door.numbered(data)
    said = tuple([refused(first) for first in range(5, 11)])
    # The primary is quicker than the sequencer.
    assert confirmed(door.hear(m.Applied(EPOCH, 10, said, after=4))) == []
    assert exceptions_kept(door) == 3
    assert confirmed(door.commit(of_others, entry)) == []
    assert exceptions_kept(door) == 0, "they were of others"
    assert asked(door.wait()) == [m.AppliedGet(9)]
    assert door.hear(m.Applied(EPOCH, 10, said[-1:], after=9)) == [EnvelopeConfirmed(1, 10, 1, (said[-1],))]


# -- an order that is gone from the logs ---------------------------------------------------------


def test_who_was_away_for_longer_than_the_logs_reach_asks_what_became_of_it() -> None:
    door = Door()
    door.numbered_in_vain(*door.open(1))
    (ask,) = [effect for effect in door.lose_the_log() if isinstance(effect, Send)]
    assert ask.message == m.ProducerStateGet(7) and ask.to in door.config.data_servers


def test_while_the_run_goes_on_only_what_is_committed_is_ordered_again() -> None:
    door = Door()
    one, two, three = door.open(1, 2, 3)
    door.numbered_in_vain(one, two)
    door.lose_the_log()
    effects = door.hear(door.state(last=2))
    assert uncertain(effects) == [1, 2]
    again = sent(effects)
    assert [(data.mid.pseq, data.payload) for data in again] == [(4, one.payload), (5, two.payload)]
    effects = door.commit(door.numbered(three), *(door.numbered(data) for data in again))
    effects += door.hear(m.Applied(EPOCH, door.next - 1, (), after=3))
    assert confirmed(effects) == [1, 2, 3], "in the order of submission, wherever they stand"


def test_when_the_run_is_over_what_is_not_committed_is_simply_sent_again() -> None:
    door = Door()
    one, two, three = door.open(1, 2, 3)
    door.numbered_in_vain(one)
    door.opened(OTHER)
    door.lose_the_log()
    effects = door.hear(door.state(pe=6, previous=(4, 1), run=OTHER))
    assert uncertain(effects) == [1]
    (varied,) = opens(effects)
    again = sent(door.commit(door.opened(varied)))
    assert [data.payload for data in again] == [one.payload, two.payload, three.payload]


def test_when_two_runs_have_followed_everything_is_in_doubt() -> None:
    door = Door()
    door.numbered_in_vain(door.open(1, 2)[0])
    door.lose_the_log()
    effects = door.hear(door.state(pe=90, previous=(80, 5), run=OTHER))
    assert uncertain(effects) == [1, 2]
    assert len(opens(effects)) == 1


def shouted(payload: bytes) -> bytes:
    return payload + b"!"


def test_what_is_in_doubt_is_said_in_other_words_and_what_is_not_in_the_same() -> None:
    door = Door(again=shouted)
    one, two, three = door.open(1, 2, 3)
    door.numbered_in_vain(one)
    door.opened(OTHER)
    door.lose_the_log()
    (varied,) = opens(door.hear(door.state(pe=6, previous=(4, 1), run=OTHER)))
    again = sent(door.commit(door.opened(varied)))
    assert [data.payload for data in again] == [one.payload + b"!", two.payload, three.payload]


def test_what_may_be_in_the_order_is_said_as_what_is() -> None:
    door = Door(again=shouted)
    one, two = door.open(1, 2)
    door.numbered_in_vain(one)
    door.lose_the_log()
    (varied,) = opens(door.hear(door.state(pe=90, previous=(80, 5), run=OTHER)))
    again = sent(door.commit(door.opened(varied)))
    assert [data.payload for data in again] == [one.payload + b"!", two.payload + b"!"]


def test_an_envelope_whose_outcome_is_gone_is_said_in_other_words() -> None:
    door = Door(again=shouted)
    (data,) = door.open(1)
    door.commit(door.numbered(data))
    (again,) = sent(door.hear(m.Applied(EPOCH, 90, (), after=80, floor=70)))
    assert again.payload == data.payload + b"!"


def test_while_the_run_goes_on_what_is_committed_is_said_in_other_words() -> None:
    door = Door(again=shouted)
    one, _ = door.open(1, 2)
    door.numbered_in_vain(one)
    door.lose_the_log()
    (again,) = sent(door.hear(door.state(last=1)))
    assert again.payload == one.payload + b"!"


def test_an_open_that_is_gone_from_the_logs_is_told_by_the_row() -> None:
    door = Door()
    door.submit(1)
    opened = door.opened()
    door.lose_the_log()
    (data,) = sent(door.hear(door.state(pe=opened.first)))
    assert data.mid == Mid(7, opened.first, 1)


def test_a_row_from_before_our_run_says_nothing_about_it() -> None:
    door = Door()
    door.submit(1)
    door.next = 8
    door.hear(m.ProducerOpened(7, RUN, 8))
    assert door.producer.pe == 8, "it knows the order only through 3, and that its run begins at 8"
    door.hear(m.FetchIdReply((), 8, 5))
    assert door.hear(m.ProducerState(7, 6, 2, 9, 5, 0, 0, OTHER)) == []
    assert door.producer.pe == 8


def test_a_row_of_a_replica_that_knows_less_than_we_do_is_no_news() -> None:
    door = Door()
    (data,) = door.open(1)
    door.numbered_in_vain(data)
    stale = m.ProducerState(7, 4, 4, 0, 0, 0, 0, RUN)
    door.lose_the_log()
    assert door.hear(stale) == []
    assert uncertain(door.hear(door.state(last=1))) == [1]


# -- planted -------------------------------------------------------------------------------------


@with_and_without("refresh-ts")
def test_a_refreshed_ts_is_seen(is_planted: bool) -> None:
    door = Door()
    (first,) = door.open(1)
    door.commit(door.entry(EntryKind.TICK))
    (again,) = sent(door.wait())
    assert (first.ts, again.ts) == (4, 5 if is_planted else 4), "an envelope that never grows old"
