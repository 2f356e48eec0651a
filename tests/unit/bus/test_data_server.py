"""Steps of a data server: what it stores, when it reports, when it lets go."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Alarm,
    Append,
    Apply,
    DataRecord,
    Learned,
    Received,
    RoleEffect,
    Send,
    Spoilt,
    Synced,
)
from antiphon.bus.entries import OpenDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog, Prefix
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind, NackReason
from antiphon.bus.ports import JournalCounter
from antiphon.errors import Damaged
from antiphon.ids import Mid, make_epoch
from antiphon.journal.ports import Location, identity_of
from antiphon.journal.recovery import DataAt
from antiphon.sim.checkers.bounds import containers
from tests.planted.catalogue import with_and_without
from tests.stage import KnownLog, MemoryPayloads, data_of, entry_of, item_of

EPOCH = make_epoch(1, 1)
LATER = make_epoch(2, 3)


def opened(number: int, run: bytes) -> Entry:
    detail = OpenDetail(7, run).encode()
    return Entry(number, 1, EntryKind.PRODUCER_OPEN, Mid(1, EPOCH, number), 0, NO_DIGEST, detail)


class Desk:
    """A data server of node 2 with its surroundings: it knows the order through number 1, an OPEN of 7."""

    def __init__(self, **settings: Any) -> None:
        self.config = GroupConfig.of("main", (1, 2, 3, 7), **settings)
        self.payloads = MemoryPayloads()
        self.known = Prefix(1)
        self.ledger = Ledger()
        self.ledger.fold([opened(1, b"a" * 16)])
        self.log = CommitLog(0, [opened(1, b"a" * 16)])
        self.order = KnownLog(self.log, 1)
        self.now_ns = 0
        self.server = DataServer(
            self.config,
            2,
            self.payloads,
            JournalCounter(),
            self.known,
            self.ledger,
            self.order,
        )

    def step(self, *events: Any) -> list[RoleEffect]:
        effects = self.server.step(self.now_ns, list(events))
        for effect in effects:
            if isinstance(effect, Append) and isinstance(effect.record, DataRecord):
                self.payloads.write(effect.record)
        return effects

    def hear(self, message: m.BusMessage, sender: int = 1) -> list[RoleEffect]:
        return self.step(Received(sender, message))

    def lead(self, epoch: int = EPOCH) -> list[RoleEffect]:
        return self.hear(m.Heartbeat(epoch, 1, 0, 1, 1, True), epoch & 0xFFFF)

    def learn(self, *entries: Entry) -> list[RoleEffect]:
        """The member of this node learns that these are committed, and cannot apply them yet."""
        self.ledger.fold(entries)
        self.known.learn(entries, entries[-1].last)
        notable = tuple(entry for entry in entries if entry.kind is not EntryKind.DATA)
        return self.step(Learned(entries, notable, ()))


def mid(pseq: int, pe: int = 1) -> Mid:
    return Mid(7, pe, pseq)


def reported(effects: list[RoleEffect]) -> list[list[int]]:
    """The pseqs of each report among the effects."""
    return [
        [item.mid.pseq for item in effect.message.items]
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, m.DataReport)
    ]


def test_an_envelope_is_written_and_reported_only_once_it_is_durable() -> None:
    desk = Desk()
    desk.lead()
    data = data_of(mid(1))
    assert desk.hear(data, 7) == [Append(1, DataRecord(data.mid, 0, 1, data.digest, data.payload))]
    assert desk.step(Synced(0)) == []
    assert desk.step(Synced(1)) == [Send(1, m.DataReport(EPOCH, (item_of(data),)))]


def test_envelopes_that_came_together_are_taken_each_for_itself() -> None:
    together, alone = Desk(), Desk()
    good = [data_of(mid(pseq)) for pseq in (1, 2, 3)]
    broken = good[1]._replace(digest=b"x" * 16)
    came = (good[0], broken, good[1], good[0], data_of(mid(9, pe=0)), good[2])
    for desk in (together, alone):
        desk.learn(opened(1, b"r" * 16))
        desk.lead()
    effects = together.hear(m.Envelopes(came), 7)
    assert effects == [effect for data in came for effect in alone.hear(data, 7)]
    assert [effect.index for effect in effects if isinstance(effect, Append)] == [1, 2, 3]
    assert together.server.dropped == alone.server.dropped == 1
    assert [type(send.message) for send in effects if isinstance(send, Send)] == [m.ReportNack]
    assert together.step(Synced(3)) == alone.step(Synced(3))
    # What is durable and comes again is reported again, and once.
    assert reported(together.hear(m.Envelopes((good[2], good[0], good[2])), 7)) == [[3, 1]]


def submit_of(*datas: m.Data, epoch: int = EPOCH) -> m.CommitSubmit:
    return m.CommitSubmit(epoch, 1, tuple(entry_of(data, 2 + at) for at, data in enumerate(datas)), 1, 1)


def test_what_has_its_number_when_it_becomes_durable_is_not_reported_until_time_is_up() -> None:
    desk = Desk(rereport_ms=200)
    desk.lead()
    one, two = data_of(mid(1)), data_of(mid(2))
    desk.hear(one, 7)
    desk.hear(two, 7)
    desk.hear(submit_of(one))
    assert reported(desk.step(Synced(2))) == [[2]]
    desk.now_ns = 300 * MS
    assert reported(desk.step()) == [[1, 2]], "its number may have come to nothing"


def test_who_did_not_number_it_hears_of_it() -> None:
    desk = Desk()
    desk.lead()
    data = data_of(mid(1))
    desk.hear(data, 7)
    desk.hear(submit_of(data, epoch=LATER), 3)
    desk.hear(submit_of(data), 3)
    assert reported(desk.step(Synced(1))) == [[1]]


def test_a_new_sequencer_hears_of_what_the_one_before_had_numbered() -> None:
    desk = Desk()
    desk.lead()
    data = data_of(mid(1))
    desk.hear(data, 7)
    desk.hear(submit_of(data))
    desk.lead(LATER)
    assert desk.step(Synced(1)) == [Send(3, m.DataReport(LATER, (item_of(data),)))]


def test_a_sync_that_began_too_early_releases_only_what_was_written_before() -> None:
    desk = Desk()
    desk.lead()
    desk.hear(data_of(mid(1)))
    desk.hear(data_of(mid(2)))
    assert reported(desk.step(Synced(1))) == [[1]]
    assert reported(desk.step(Synced(2))) == [[2]]


def test_everything_that_became_durable_in_one_step_is_one_report() -> None:
    desk = Desk()
    desk.lead()
    for pseq in range(1, 6):
        desk.hear(data_of(mid(pseq)))
    assert reported(desk.step(Synced(3), Synced(5))) == [[1, 2, 3, 4, 5]]


def test_a_long_report_comes_in_pages() -> None:
    desk = Desk(report_items_max=2)
    desk.lead()
    for pseq in range(1, 6):
        desk.hear(data_of(mid(pseq)))
    assert reported(desk.step(Synced(5))) == [[1, 2], [3, 4], [5]]


def test_without_a_sequencer_nothing_is_reported_until_one_is_heard() -> None:
    desk = Desk()
    desk.hear(data_of(mid(1)))
    assert desk.step(Synced(1)) == []
    assert reported(desk.lead()) == [[1]]


@pytest.mark.parametrize(
    "broken",
    [
        m.Data(mid(1), 0, 1, b"x" * 16, data_of(mid(1)).payload),
        m.Data(mid(1), 0, 2, m.digest_of(mid(1), 0, 2, data_of(mid(1)).payload), data_of(mid(1)).payload),
        m.Data(mid(1), 0, 1, m.digest_of(mid(1), 0, 1, b"no command"), b"no command"),
        m.Data(mid(1), 0, 0, m.digest_of(mid(1), 0, 0, b""), b""),
    ],
    ids=["digest", "count", "command", "empty"],
)
def test_what_does_not_verify_is_dropped_and_counted(broken: m.Data) -> None:
    desk = Desk()
    assert desk.hear(broken) == []
    assert desk.server.dropped == 1


def test_an_envelope_that_is_too_large_is_dropped() -> None:
    desk = Desk(envelope_bytes_max=100)
    assert desk.hear(data_of(mid(1), commands=3)) == []
    assert desk.server.dropped == 1


def test_a_producer_beyond_its_quota_is_not_stored_until_something_of_it_is_committed() -> None:
    desk = Desk(producer_quota_bytes=2 * 1_280)
    first = data_of(mid(1))
    desk.hear(first)
    desk.hear(data_of(mid(2)))
    assert desk.hear(data_of(mid(3))) == []
    desk.learn(entry_of(first, 2))
    assert len(desk.hear(data_of(mid(3)))) == 1


def test_an_envelope_that_comes_again_is_not_stored_again() -> None:
    desk = Desk()
    desk.lead()
    data = data_of(mid(1))
    desk.hear(data)
    assert desk.hear(data) == []
    desk.step(Synced(1))
    assert reported(desk.hear(data)) == [[1]]


def test_an_id_used_for_two_contents_raises_an_alarm_and_keeps_the_first() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.hear(data)
    (alarm,) = desk.hear(data_of(mid(1), ts=1))
    assert isinstance(alarm, Alarm) and "two contents" in alarm.text
    assert len(desk.payloads.records) == 1


def test_a_duplicate_of_a_committed_envelope_is_told_so() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.hear(data)
    desk.step(Synced(1))
    desk.learn(entry_of(data, 2))
    assert desk.server.take(entry_of(data, 2), []) is not None
    assert desk.hear(data) == [Send(7, m.Published(mid(1)))]


def test_data_is_reported_again_every_r_until_it_is_committed() -> None:
    desk = Desk(rereport_ms=200)
    desk.lead()
    data = data_of(mid(1))
    desk.hear(data)
    desk.step(Synced(1))
    desk.now_ns = 199 * MS
    assert desk.step() == []
    deadline = desk.server.next_deadline_ns()
    assert deadline is not None
    desk.now_ns = deadline
    assert reported(desk.step()) == [[1]]
    desk.now_ns += 200 * MS
    assert reported(desk.step()) == [[1]]
    desk.learn(entry_of(data, 2))
    desk.now_ns += 200 * MS
    assert desk.step() == []
    assert desk.server.next_deadline_ns() is None


def test_a_new_sequencer_is_told_everything_that_is_not_committed() -> None:
    desk = Desk()
    desk.lead()
    one, two = data_of(mid(1)), data_of(mid(2))
    desk.hear(one)
    desk.hear(two)
    desk.hear(data_of(mid(3)))
    desk.step(Synced(2))
    desk.learn(entry_of(one, 2))
    assert reported(desk.lead(LATER)) == [[2]]
    assert reported(desk.lead(EPOCH)) == [], "an older epoch is no news"


def test_a_refusal_by_the_sequencer_is_passed_on_and_forgets_nothing() -> None:
    desk = Desk()
    desk.lead()
    desk.hear(data_of(mid(1)))
    desk.step(Synced(1))
    nack = m.ReportNack(EPOCH, mid(1), NackReason.FENCED, 9)
    assert desk.hear(nack, sender=1) == [Send(7, nack)]
    assert desk.hear(nack, sender=3) == [], "only the sequencer of that epoch may refuse"
    assert reported(desk.lead(LATER)) == [[1]]


def test_what_a_sequencer_called_committed_is_not_reported_again_nor_what_is_before_it() -> None:
    desk = Desk(rereport_ms=200)
    desk.lead()
    for pseq in (1, 2, 3):
        desk.hear(data_of(mid(pseq)))
    desk.step(Synced(3))
    duplicate = m.ReportNack(EPOCH, mid(2), NackReason.DUPLICATE, 9)
    assert desk.hear(duplicate, sender=1) == [Send(7, duplicate)]
    desk.now_ns = 400 * MS
    assert reported(desk.step()) == [[3]]
    assert reported(desk.lead(LATER)) == [[3]], "that is true for every sequencer"
    assert desk.server.unsettled == 3, "kept all the same, until their numbers are known"


def test_what_our_own_sequencer_does_not_number_is_passed_on_to_each_in_turn() -> None:
    desk = Desk(rereport_ms=200)
    desk.lead(make_epoch(2, 2))
    one, two = data_of(mid(1)), data_of(mid(2))
    for data in (one, two, data_of(mid(4))):
        desk.hear(data)
    desk.step(Synced(3))
    passed: list[list[tuple[int, m.BusMessage]]] = []
    for _ in range(32):
        desk.now_ns += 200 * MS
        sends = [effect for effect in desk.step() if isinstance(effect, Send)]
        passed.append([(send.to, send.message) for send in sends if isinstance(send.message, m.Data)])
    assert passed[:5] == [[], [], [(1, one), (1, two)], [(3, one), (3, two)], [(7, one), (7, two)]]
    # If that did not help it is done seldom, and still in turn.
    later = {number: words[0][0] for number, words in enumerate(passed[5:], start=6) if words}
    assert list(later) == [8, 16, 24, 32] and set(later.values()) == {1, 3, 7}


@pytest.mark.parametrize("settings", [{"data_quantity": 1}, {}])
def test_nothing_is_passed_on_where_one_copy_will_do_or_another_node_leads(settings: dict[str, int]) -> None:
    desk = Desk(rereport_ms=200, **settings)
    desk.now_ns = 1_000 * MS
    desk.lead(make_epoch(2, 2) if settings else EPOCH)
    desk.hear(data_of(mid(1)))
    desk.step(Synced(1))
    for _ in range(5):
        desk.now_ns += 200 * MS
        assert len(desk.step()) == 1, "a report and no more"


def test_a_run_that_is_over_leaves_nothing_behind() -> None:
    desk = Desk()
    desk.lead()
    one = data_of(mid(1))
    desk.hear(one)
    desk.hear(data_of(mid(2)))
    desk.step(Synced(2))
    desk.learn(entry_of(one, 2), opened(3, b"b" * 16))
    assert desk.payloads.has(mid(1)), "it is committed, and the member still needs it"
    assert not desk.payloads.has(mid(2)), "nothing of the old run can follow the fence"
    assert desk.server.unsettled == 0
    late = desk.hear(data_of(mid(2)))
    assert late == [Send(7, m.ReportNack(EPOCH, mid(2), NackReason.FENCED, 3))]


def test_a_node_that_is_no_data_server_any_more_counts_no_rounds_of_reports() -> None:
    desk = Desk(rereport_ms=200)
    desk.lead()
    one = data_of(mid(1))
    desk.hear(one)
    desk.step(Synced(1))
    desk.now_ns += 200 * MS
    assert reported(desk.step()) == [[1]]
    desk.server.pass_over(entry_of(one, 2))
    desk.server.rest(1)
    assert {one.name: one.size for one in containers(desk.server)}["DataServer._rounds"] == 0


def test_an_envelope_past_its_lifetime_is_refused_and_a_stored_one_given_up() -> None:
    desk = Desk(lifetime=3, rereport_ms=200)
    desk.lead()
    desk.hear(data_of(mid(5), ts=1))
    desk.step(Synced(1))
    desk.learn(entry_of(data_of(mid(1), commands=3), 2))
    desk.now_ns += 200 * MS
    assert reported(desk.step()) == [[5]], "4 numbers are known, and ts + L is 4"
    desk.learn(entry_of(data_of(mid(2)), 5))
    expired = Send(7, m.ReportNack(EPOCH, mid(6), NackReason.EXPIRED))
    assert desk.hear(data_of(mid(6), ts=1)) == [expired]
    desk.now_ns += 200 * MS
    assert desk.step() == [Send(7, m.ReportNack(EPOCH, mid(5), NackReason.EXPIRED))]
    assert not desk.payloads.has(mid(5))


def test_the_member_gets_a_payload_only_once_it_is_durable() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.hear(data)
    assert desk.server.take(entry_of(data, 2), []) is None
    desk.step(Synced(1))
    taken = desk.server.take(entry_of(data, 2), [])
    assert taken == Apply(
        entry_of(data, 2),
        memoryview(data.payload),
        Location(1, 0, len(data.payload), identity_of(data.digest)),
    )
    assert desk.payloads.reads == 0, "what was just written need not be read"
    assert desk.payloads.location_of(2) is not None


def test_a_payload_that_lay_in_a_buffer_is_read_from_the_journal() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.hear(m.Data(data.mid, data.ts, data.count, data.digest, memoryview(bytearray(data.payload))))
    desk.step(Synced(1))
    taken = desk.server.take(entry_of(data, 2), [])
    assert taken is not None and taken.payload == data.payload
    assert desk.payloads.reads == 1


@pytest.mark.parametrize("commands", [1, 500])
def test_a_payload_that_is_part_of_what_was_received_is_kept_small_ones_as_a_copy(commands: int) -> None:
    desk = Desk()
    data = data_of(mid(1), commands=commands)
    received = b"before" + data.payload + b"behind"
    view = memoryview(received)[6:-6]
    desk.hear(m.Data(data.mid, data.ts, data.count, data.digest, view))
    desk.step(Synced(1))
    taken = desk.server.take(entry_of(data, 2), [])
    assert taken is not None and taken.payload == data.payload
    assert (taken.payload.obj is received) == (commands > 1)
    assert desk.payloads.reads == 0


def test_memory_for_payloads_is_bounded() -> None:
    desk = Desk(cached_bytes_max=100)
    first, second = data_of(mid(1)), data_of(mid(2))
    desk.hear(first)
    desk.hear(second)
    desk.step(Synced(2))
    assert desk.server.take(entry_of(first, 2), []) is not None
    assert desk.server.take(entry_of(second, 3), []) is not None
    assert desk.payloads.reads == 1


def test_data_that_comes_after_its_commit_is_stored_for_the_member() -> None:
    desk = Desk()
    desk.lead()
    data = data_of(mid(1))
    desk.learn(entry_of(data, 2))
    assert len(desk.hear(data)) == 1
    assert desk.step(Synced(1)) == [], "nobody needs a report of what is committed"
    assert desk.server.take(entry_of(data, 2), []) is not None


def test_another_content_than_the_committed_one_is_not_stored() -> None:
    desk = Desk()
    desk.learn(entry_of(data_of(mid(1)), 2))
    assert desk.hear(data_of(mid(1), ts=1)) == []


def test_a_damaged_payload_is_missed_and_may_be_fetched_again() -> None:
    class Broken(MemoryPayloads):
        def read(self, location: Location) -> memoryview:
            raise Damaged("segment", location.offset, "test")

    desk = Desk(cached_bytes_max=0)
    broken = Broken()
    desk.payloads = broken
    desk.server = DataServer(desk.config, 2, broken, JournalCounter(), desk.known, desk.ledger, desk.order)
    data = data_of(mid(1))
    desk.hear(data)
    desk.step(Synced(1))
    out: list[RoleEffect] = []
    assert desk.server.take(entry_of(data, 2), out) is None
    assert isinstance(out[0], Alarm)
    assert len(desk.hear(m.FetchDataReply((data,), ()), sender=3)) == 1, "the copy of another is taken"


def test_what_rotted_after_it_was_placed_is_unknown_here_and_told_to_the_message_manager() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.hear(data)
    desk.step(Synced(1))
    desk.log.append(entry_of(data, 2))
    taken = desk.server.take(entry_of(data, 2), [])
    assert taken is not None

    def read(location: Location) -> memoryview:
        raise Damaged("segment", location.offset, "test")

    desk.payloads.read = read  # type: ignore[method-assign]
    alarm, spoilt, answer = desk.hear(m.FetchData((mid(1),), (2,)), sender=3)
    assert isinstance(alarm, Alarm)
    assert isinstance(spoilt, Spoilt) and spoilt.place == taken.location
    assert answer == Send(3, m.FetchDataReply((), (mid(1),))), "never: it does not exist"


def test_payloads_are_handed_to_members_that_lack_them() -> None:
    desk = Desk()
    waiting, placed = data_of(mid(2)), data_of(mid(1))
    desk.hear(placed)
    desk.hear(waiting)
    desk.step(Synced(2))
    desk.log.append(entry_of(placed, 2))
    desk.server.take(entry_of(placed, 2), [])
    (answer,) = desk.hear(m.FetchData((mid(1), mid(2), mid(3)), (2, 0, 0)), sender=3)
    assert answer == Send(3, m.FetchDataReply((placed, waiting), (mid(3),)))


def test_an_envelope_that_was_written_when_its_run_ended_is_given_up_in_time() -> None:
    desk = Desk(rereport_ms=200)
    desk.lead()
    desk.hear(data_of(mid(1)))
    desk.learn(opened(2, b"b" * 16))
    desk.step(Synced(1))
    assert desk.payloads.has(mid(1)), "it became durable after the fence"
    desk.now_ns += 200 * MS
    assert desk.step() == [Send(7, m.ReportNack(EPOCH, mid(1), NackReason.FENCED, 2))]
    assert not desk.payloads.has(mid(1)) and desk.server.unsettled == 0


def test_what_the_order_wants_is_stored_beyond_any_quota() -> None:
    desk = Desk(producer_quota_bytes=1_280)
    desk.hear(data_of(mid(2)))
    wanted = data_of(mid(1))
    desk.learn(entry_of(wanted, 2))
    assert list(desk.server.wanted) == [mid(1)]
    (append,) = desk.hear(m.FetchDataReply((wanted,), ()), sender=3)
    assert isinstance(append, Append)
    assert not desk.server.wanted


def test_a_fetched_copy_of_what_is_settled_is_no_word_to_its_producer() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.hear(data)
    desk.step(Synced(1))
    desk.learn(entry_of(data, 2))
    desk.server.take(entry_of(data, 2), [])
    assert desk.hear(m.FetchDataReply((data,), ()), sender=3) == []


def test_what_was_found_after_a_restart_is_reported_to_the_first_sequencer_that_is_heard() -> None:
    desk = Desk()
    data = data_of(mid(1))
    desk.payloads.write(DataRecord(data.mid, data.ts, data.count, data.digest, data.payload))
    location = desk.payloads.locate(data.mid)
    assert location is not None
    stored = DataAt(data.mid, data.ts, data.count, data.digest, location)
    desk.server = DataServer(
        desk.config,
        2,
        desk.payloads,
        JournalCounter(),
        desk.known,
        desk.ledger,
        desk.order,
        recovered=(stored,),
    )
    assert reported(desk.lead()) == [[1]]
    desk.now_ns += 1_000 * MS
    assert reported(desk.step()) == [[1]]


# -- order and payloads in one trip ----------------------------------------------------------------


def shelf(**settings: Any) -> tuple[Desk, list[m.Data]]:
    """A data server beside a log of five numbers behind the OPEN: the first three are placed."""
    desk = Desk(**settings)
    data = [data_of(mid(pseq)) for pseq in range(1, 6)]
    for one in data[:3]:
        desk.hear(one)
    desk.step(Synced(3))
    for number, one in enumerate(data, 2):
        desk.log.append(entry_of(one, number))
    desk.learn(*(entry_of(one, number) for number, one in enumerate(data, 2)))
    for number, one in enumerate(data[:3], 2):
        desk.server.take(entry_of(one, number), [])
    desk.order.committed_upto = 6
    return desk, data


def fetch(desk: Desk, first: int, bytes_max: int = 1 << 20) -> m.FetchRangeReply:
    (answer,) = desk.hear(m.FetchRange(first, bytes_max), sender=3)
    assert isinstance(answer, Send) and isinstance(answer.message, m.FetchRangeReply)
    return answer.message


def test_a_range_is_answered_with_entries_and_the_payloads_that_are_here() -> None:
    desk, data = shelf()
    answer = fetch(desk, 2)
    assert [entry.first for entry in answer.entries] == [2, 3, 4, 5, 6]
    assert list(answer.items) == data[:3], "the others it does not have either"
    assert (answer.committed_upto, answer.base) == (6, 0)


def test_a_range_ends_where_the_commit_server_knows_no_further() -> None:
    """Beyond that its log may hold what another epoch will give up."""
    desk, _ = shelf()
    desk.order.committed_upto = 3
    assert [entry.first for entry in fetch(desk, 1).entries] == [1, 2, 3]


def test_a_range_is_not_answered_from_a_damaged_log() -> None:
    desk, _ = shelf()
    desk.order.is_damaged = True
    assert desk.hear(m.FetchRange(2, 1 << 20), sender=3) == []


def test_a_range_is_bounded_by_bytes_and_brings_at_least_one_entry() -> None:
    desk, data = shelf()
    size = len(data[0].payload)
    assert [entry.first for entry in fetch(desk, 2, 2 * size).entries] == [2, 3]
    assert [entry.first for entry in fetch(desk, 2, 1).entries] == [2]
    desk, _ = shelf(fetch_bytes_max=size)
    assert len(fetch(desk, 2).items) == 1, "whatever the asker would take"


def test_payloads_in_one_answer_are_bounded_by_bytes() -> None:
    desk, data = shelf(fetch_bytes_max=2 * len(data_of(mid(1)).payload))
    (answer,) = desk.hear(m.FetchData((mid(1), mid(2), mid(3)), (2, 3, 4)), sender=3)
    assert answer == Send(3, m.FetchDataReply((data[0], data[1]), ()))


def test_a_range_that_is_gone_from_the_log_is_told_by_its_base() -> None:
    desk, _ = shelf()
    desk.log.forget(4)
    answer = fetch(desk, 2)
    assert (answer.entries, answer.base) == ((), 4)


# -- planted -------------------------------------------------------------------------------------


@with_and_without("never-rereport")
def test_reporting_only_once_is_seen(is_planted: bool) -> None:
    desk = Desk()
    desk.lead()
    desk.hear(data_of(mid(1)))
    assert reported(desk.step(Synced(1))) == [[1]]
    expected = [] if is_planted else [[1]]
    assert reported(desk.lead(LATER)) == expected, "its producer may be dead, and the sequencer is new"
    desk.now_ns += 1_000 * MS
    assert reported(desk.step()) == expected


def test_what_our_log_does_not_name_is_kept_for_others_until_the_base_has_passed_it() -> None:
    """The order went on without our commit server: of what a checkpoint covers, others may lack a payload."""
    desk = Desk()
    data = data_of(Mid(7, 1, 1))
    desk.payloads.write(DataRecord(data.mid, data.ts, data.count, data.digest, data.payload))
    stored = DataAt(data.mid, 0, 1, data.digest, desk.payloads.unplaced[data.mid])
    desk.ledger.fold([entry_of(data, 2)])
    desk.known = Prefix(2)
    desk.server = DataServer(
        desk.config,
        2,
        desk.payloads,
        JournalCounter(),
        desk.known,
        desk.ledger,
        desk.order,
        recovered=(stored,),
    )
    assert reported(desk.lead()) == [] and desk.server.unsettled == 0, "it has its number"
    desk.step(Learned((), (opened(3, b"b" * 16),), ()))
    (reply,) = desk.hear(m.FetchData((data.mid,), (2,)), 3)
    assert isinstance(reply, Send) and reply.message == m.FetchDataReply((data,), ())
    before = Ledger()
    before.fold([opened(1, b"a" * 16)])
    desk.server.release(before.encode())
    assert desk.payloads.has(data.mid), "the base has not passed it"
    desk.server.release(desk.ledger.encode())
    assert not desk.payloads.has(data.mid), "no other entry has to follow"
