"""Steps of a producer: opening, sending, retrying, confirming, and being fenced."""

from __future__ import annotations

from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.effects import (
    Effect,
    EnvelopeCommitted,
    EnvelopeConfirmed,
    Multicast,
    Received,
    Send,
)
from antiphon.bus.entries import FenceDetail, OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason
from antiphon.bus.producer import Producer
from antiphon.ids import Mid, make_epoch
from antiphon.wire.commands import Outcome, OutcomeCode
from tests.unit.bus.stage import envelope

EPOCH = make_epoch(1, 1)
RUN = b"run of this node"
OTHER = b"run of a ghost.."


class Door:
    """The producer of node 7, which so far knows that number 3 is committed."""

    def __init__(self, **settings: Any) -> None:
        self.config = GroupConfig.of("main", (1, 7), **settings)
        self.producer = Producer(self.config, 7, RUN)
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

    def wait(self) -> list[Effect]:
        deadline = self.producer.next_deadline_ns()
        assert deadline is not None
        self.now_ns = deadline
        return self.step()


def sent(effects: list[Effect]) -> list[m.Data]:
    return [e.message for e in effects if isinstance(e, Multicast) and isinstance(e.message, m.Data)]


def opens(effects: list[Effect]) -> list[bytes]:
    found = [e.message for e in effects if isinstance(e, Multicast)]
    return [message.run_id for message in found if isinstance(message, m.ProducerOpen)]


def test_nothing_is_said_before_there_is_something_to_send() -> None:
    assert Door().producer.next_deadline_ns() is None


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
    assert sent(door.wait()) == [two]
    assert door.now_ns == 800 * MS


def test_a_refusal_that_is_not_final_changes_nothing() -> None:
    door = Door()
    (data,) = door.open(1)
    for reason in (NackReason.DUPLICATE, NackReason.FENCED, NackReason.NOT_OPEN, NackReason.GAP):
        assert door.hear(m.ReportNack(EPOCH, data.mid, reason)) == []


def test_a_fence_by_a_stale_open_makes_it_open_again_and_resend_what_is_not_in_the_order() -> None:
    door = Door()
    one, two, three = door.open(1, 2, 3)
    effects = door.commit(door.numbered(one), door.opened(OTHER))
    assert opens(effects) == [RUN], "the row names the other run now, so ours counts again"
    assert sent(effects) == []
    again = sent(door.commit(door.opened(RUN)))
    assert [(data.mid, data.payload) for data in again] == [
        (Mid(7, 7, 1), two.payload),
        (Mid(7, 7, 2), three.payload),
    ]
    effects = door.commit(*(door.numbered(data) for data in again))
    assert [e.tag for e in effects if isinstance(e, EnvelopeCommitted)] == [2, 3]


def test_a_fence_by_the_primary_is_a_fence_too() -> None:
    door = Door()
    (data,) = door.open(1)
    fence = door.entry(EntryKind.PRODUCER_FENCE, FenceDetail(7, data.mid.pe, EPOCH).encode())
    assert opens(door.commit(fence)) == [RUN]


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
