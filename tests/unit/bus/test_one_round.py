"""One sync, one round: a group that numbers envelopes when they arrive. See docs/design/one-round.md.

The rules in their order: what a sequencer numbers and calls committed, what a commit server appends, how an
epoch starts, and what a node does that starts or has lost a part of its disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from antiphon.bus import messages as m
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Append,
    DataRecord,
    DataWaits,
    Effect,
    EnvelopesArrived,
    Installed,
    Multicast,
    OrderRecord,
    Received,
    RoleEffect,
    Send,
    Synced,
)
from antiphon.bus.entries import OpenDetail
from antiphon.bus.group import GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import Prefix
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.ports import CopyState, JournalCounter
from antiphon.bus.records import EntriesAppended, EpochStarted, decode_order, encode_order
from antiphon.bus.replica import Replica
from antiphon.bus.sequencer import State
from antiphon.errors import ProtocolError
from antiphon.ids import Mid, make_epoch
from tests.planted.catalogue import with_and_without
from tests.stage import RUN, MemoryPayloads, OneNode, StageDisk, data_of, entry_of, envelope, item_of
from tests.unit.bus import chair as sequence
from tests.unit.bus.booth import NEW, OLD, Booth, order_in, tick, ticks
from tests.unit.bus.chair import Chair, lead_three, numbered, sent, stand_among_three
from tests.unit.bus.cluster import Cluster

# A witness cannot hold an envelope, so its acknowledgement does not speak for one. And where more copies are
# wanted than acknowledgements, the acknowledgements do not speak for all of them.
WITNESS = {"data_servers": (1, 2), "checkpoint_servers": (1, 2), "candidates": (1, 2)}
MORE_COPIES = {"data_quantity": 3}
# An acknowledgement that alone makes an entry committed has no other copy behind it.
ALONE = {"commit_quantity": 1, "data_quantity": 1, "seal_quantity": 3}
# Commands in an envelope of 7,168 bytes, the largest that becomes part of a record of the order.
COMMANDS_MAX = 112
# Number 1 of the order opens the run of node 7.
OPENED = Entry(1, 1, EntryKind.PRODUCER_OPEN, Mid(1, OLD, 1), 0, NO_DIGEST, OpenDetail(7, RUN).encode())


def data(pseq: int, commands: int = 1) -> m.Data:
    return data_of(Mid(7, 1, pseq), commands=commands)


def fetch(*entries: Entry) -> m.FetchData:
    return m.FetchData(tuple(entry.mid for entry in entries), tuple(entry.first for entry in entries))


class Bench(Booth):
    """Node 2, which follows node 1: its commit server, and its data server beside it, on one disk."""

    def __init__(self, last: int = 1, entries: tuple[Entry, ...] = (), **settings: Any) -> None:
        super().__init__(last, entries=entries, **settings)
        self.known, self.payloads = Prefix(), MemoryPayloads()
        self.data_server = DataServer(
            self.config, 2, self.payloads, self.counter, self.known, Ledger(), self.server
        )
        self.server.stock = self.data_server

    def arrive(self, *datas: m.Data) -> list[RoleEffect]:
        """Envelopes reach the node, and its commit server has its turn; what the commit server does."""
        for one in datas:
            for effect in self.data_server.step(self.now_ns, [Received(7, one)]):
                if isinstance(effect, Append) and isinstance(effect.record, DataRecord):
                    self.written = effect.index
                    self.payloads.write(effect.record)
        return self.step()

    def submit(self, *entries: Entry, committed: int = 0, prev: int = 0) -> list[RoleEffect]:
        submit = m.CommitSubmit(OLD, prev or entries[0].first - 1, entries, committed)
        self.data_server.step(self.now_ns, [Received(1, submit)])
        return self.hear(submit, 1)

    def sync(self) -> list[RoleEffect]:
        self.data_server.step(self.now_ns, [Synced(self.written)])
        return super().sync()


# -- which groups work this way ---------------------------------------------------------------------


def test_a_group_numbers_on_arrival_if_an_acknowledgement_speaks_for_the_envelope_too() -> None:
    def numbers_on_arrival(**settings: Any) -> bool:
        return GroupConfig.of("main", (1, 2, 3), **settings).numbers_on_arrival

    assert numbers_on_arrival()
    assert not numbers_on_arrival(one_round=0)
    assert not numbers_on_arrival(**WITNESS)
    assert not numbers_on_arrival(**MORE_COPIES)


# -- rule 1: what a sequencer numbers ---------------------------------------------------------------


def serving() -> OneNode:
    """A node that is alone and leads, with an open producer."""
    node = OneNode(GroupConfig.of("main", (1,)))
    node.settle()
    node.step(envelope(0))
    node.settle()
    return node


def written(effects: list[Effect]) -> list[object]:
    """Envelopes by their pseq, and order records."""
    records = [effect.record for effect in effects if isinstance(effect, Append)]
    return [
        one.mid.pseq if isinstance(one, DataRecord) else decode_order(one.body)
        for one in records
        if isinstance(one, DataRecord | OrderRecord)
    ]


def test_envelope_and_entry_are_written_in_one_step_and_confirmed_after_one_sync() -> None:
    node = serving()
    pseq, body = written(node.step(envelope(1)))
    assert pseq == 2
    assert isinstance(body, EntriesAppended) and [entry.mid.pseq for entry in body.entries] == [2]
    assert node.confirmed == [0]
    node.sync()
    assert node.confirmed == [0, 1]
    assert not node.heard(m.DataReport), "no report was needed"


def arrived(leader: int, **settings: Any) -> list[EnvelopesArrived]:
    """What the data server of node 2 tells its sequencer of an envelope while this node leads."""
    config = GroupConfig.of("main", (1, 2, 3), **settings)
    server = Booth(last=1).server
    desk = DataServer(config, 2, MemoryPayloads(), JournalCounter(), Prefix(), Ledger(), server)
    beat = m.Heartbeat(make_epoch(2, leader), 0, 0, 1, 0, True)
    effects = desk.step(0, [Received(leader, beat), Received(7, data(1))])
    return [effect for effect in effects if isinstance(effect, EnvelopesArrived)]


def test_a_data_server_tells_the_sequencer_of_its_own_node_what_it_has_written() -> None:
    assert arrived(2) == [EnvelopesArrived((item_of(data(1)),))]
    assert arrived(1) == [], "of another node's envelopes the sequencer need not know"
    assert arrived(2, **WITNESS) == []
    assert arrived(2, **MORE_COPIES) == []


def test_a_sequencer_numbers_what_its_own_data_server_has_written() -> None:
    chair = lead_three()
    pe = chair.open(1)
    item = item_of(data_of(Mid(1, pe, 1)))
    assert numbered(chair.step(EnvelopesArrived((item,)))) == [(pe + 1, 1)]


@pytest.mark.parametrize("settings", [WITNESS, MORE_COPIES])
def test_other_groups_number_what_enough_data_servers_have_reported(settings: dict[str, Any]) -> None:
    chair = lead_three(**settings)
    pe = chair.open(1)
    reports = [numbered(chair.report(Mid(1, pe, 1), server=server)) for server in chair.config.data_servers]
    assert reports == [[]] * (len(reports) - 1) + [[(pe + 1, 1)]]


# -- rule 2: what a commit server appends -----------------------------------------------------------


@pytest.mark.parametrize("commands", [1, COMMANDS_MAX + 1])
def test_an_entry_is_written_behind_its_envelope_and_bound_to_it(commands: int) -> None:
    bench, one = Bench(), data(1, commands)
    entry = entry_of(one, 2)
    bench.arrive(one)
    effects = bench.submit(entry)
    assert order_in(effects) == [EntriesAppended(OLD, 1, (entry,))]
    assert bound_in(effects) == [True]
    assert sent(effects) == [], "nothing is durable yet"
    assert bench.sync() == [Send(1, m.CommitAcknowledge(OLD, entry.last))]


def bound_in(effects: list[RoleEffect]) -> list[bool]:
    records = [effect.record for effect in effects if isinstance(effect, Append)]
    return [one.bound for one in records if isinstance(one, OrderRecord)]


@pytest.mark.parametrize("settings", [{}, ALONE])
def test_an_entry_is_not_bound_to_an_envelope_that_is_durable(settings: dict[str, Any]) -> None:
    bench, entry = Bench(**settings), entry_of(data(1), 2)
    bench.arrive(data(1))
    bench.sync()
    effects = bench.submit(entry, tick(3))
    assert order_in(effects) == [EntriesAppended(OLD, 1, (entry, tick(3)))]
    assert bound_in(effects) == [False]


def test_a_small_envelope_without_other_copies_becomes_part_of_the_record() -> None:
    bench, one = Bench(**ALONE), data(1, COMMANDS_MAX)
    entry = entry_of(one, 2)
    bench.arrive(one)
    effects = bench.submit(entry)
    assert order_in(effects) == [EntriesAppended(OLD, 1, (entry,), ((0, one.payload),))]
    assert bound_in(effects) == [False]


def test_the_entry_of_a_large_envelope_without_other_copies_waits_until_it_is_durable() -> None:
    bench, one = Bench(**ALONE), data(1, COMMANDS_MAX + 1)
    entry = entry_of(one, 2)
    behind = tick(entry.last + 1)
    bench.arrive(one)
    assert bench.submit(entry, behind) == []
    effects = bench.sync()
    assert order_in(effects) == [EntriesAppended(OLD, 1, (entry, behind))]
    assert bound_in(effects) == [False]
    assert sent(effects) == [], "the entry is not durable yet"
    assert bench.sync() == [Send(1, m.CommitAcknowledge(OLD, behind.last))]


def test_the_envelopes_of_one_record_share_its_room() -> None:
    bench, one, two = Bench(**ALONE), data(1, COMMANDS_MAX), data(2)
    first, second = entry_of(one, 2), entry_of(two, 2 + COMMANDS_MAX)
    bench.arrive(one, two)
    effects = bench.submit(first, second)
    assert order_in(effects) == [EntriesAppended(OLD, 1, (first,), ((0, one.payload),))]
    assert order_in(bench.sync()) == [EntriesAppended(OLD, first.last, (second,))]


def test_an_envelope_that_is_not_in_memory_becomes_no_part_of_a_record() -> None:
    bench, entry = Bench(cached_bytes_max=0, **ALONE), entry_of(data(1), 2)
    bench.arrive(data(1))
    assert bench.submit(entry) == []
    assert order_in(bench.sync()) == [EntriesAppended(OLD, 1, (entry,))]


@with_and_without("acknowledge-without-envelope")
def test_an_entry_without_its_envelope_waits_and_all_behind_it(is_planted: bool) -> None:
    bench, one = Bench(), data(1)
    entry, behind = entry_of(one, 2), tick(3)
    effects = bench.submit(entry) + bench.submit(behind)
    assert bool(effects) == is_planted, "the server would acknowledge what its node does not hold"
    if not is_planted:
        effects = bench.arrive(one)
        assert order_in(effects) == [EntriesAppended(OLD, 1, (entry, behind))]
        assert bench.sync() == [Send(1, m.CommitAcknowledge(OLD, 3))]


def test_entries_before_the_first_that_lacks_its_envelope_do_not_wait() -> None:
    bench, entry = Bench(), entry_of(data(1), 3)
    assert order_in(bench.submit(tick(2), entry)) == [EntriesAppended(OLD, 1, ticks(2, 2))]
    assert bench.sync() == [Send(1, m.CommitAcknowledge(OLD, 2))]


def test_a_replica_appends_an_entry_in_the_step_in_which_its_envelope_arrives() -> None:
    config = GroupConfig.of("main", (1, 2, 3))
    replica = Replica(config, 2, RUN, MemoryPayloads(), JournalCounter())
    one = data(1)
    entry = entry_of(one, 2)
    replica.step(0, [Received(1, m.EpochStart(OLD, 1, (), 0))])
    replica.step(0, [Received(1, m.CommitSubmit(OLD, 0, (OPENED, entry), 0))])
    effects = replica.step(0, [Received(7, one)])
    assert written(effects) == [1, EntriesAppended(OLD, 1, (entry,))]


def test_an_envelope_with_another_content_is_not_the_one_of_the_entry() -> None:
    bench, other = Bench(), data_of(Mid(7, 1, 1), ts=1)
    bench.arrive(other)
    assert bench.submit(entry_of(data(1), 2)) == []
    assert bench.sync() == []


def test_a_repeated_submit_makes_the_server_ask_the_sequencer_for_the_envelope() -> None:
    bench = Bench()
    first, second = entry_of(data(1), 2), entry_of(data(2), 3)
    assert bench.submit(first) == [], "as a rule it is on its way"
    assert bench.submit(second) == [], "this is no repetition"
    assert bench.submit(first, second) == [Send(1, fetch(first, second))]
    bench.arrive(data(2))
    assert bench.submit(first, second) == [Send(1, fetch(first))], "the other one is here"
    effects = bench.arrive(data(1))
    assert [body.entries for body in order_in(effects)] == [(first, second)], "each once"  # type: ignore[attr-defined]


def test_a_submit_behind_waiting_entries_is_no_gap() -> None:
    bench, entry = Bench(), entry_of(data(1), 2)
    bench.submit(entry)
    assert bench.submit(tick(3)) == []
    assert bench.submit(tick(5)) == [Send(1, m.CommitAcknowledge(OLD, 1))], "number 4 is missing"


def test_what_the_sequencer_called_committed_does_not_wait() -> None:
    bench, entry = Bench(), entry_of(data(1), 2)
    assert order_in(bench.submit(entry, committed=2)) == [EntriesAppended(OLD, 1, (entry,))]
    waiting = entry_of(data(2), 3)
    assert bench.submit(waiting, committed=2) == []
    effects = bench.hear(m.Heartbeat(OLD, 3, 0, 1, 0, True), 1)
    assert order_in(effects) == [EntriesAppended(OLD, 2, (waiting,))], "others hold the envelope"


def test_entries_that_wait_are_given_up_with_their_epoch() -> None:
    bench, entry = Bench(), entry_of(data(1), 2)
    bench.submit(entry)
    bench.hear(m.EpochStart(NEW, 2, ticks(2, 2, NEW), 1, OLD), 3)
    bench.sync()
    assert bench.arrive(data(1)) == []
    assert bench.server.log.between(0, 2) == (*ticks(1, 1), *ticks(2, 2, NEW))


def test_entries_that_wait_are_given_up_with_a_promise() -> None:
    """Else the log would end behind what a candidate was told, and the former sequencer might commit that."""
    bench, entry = Bench(), entry_of(data(1), 2)
    bench.submit(entry)
    bench.hear(m.Seal(NEW, 0), 3)
    assert bench.arrive(data(1)) == []
    assert bench.sync() == [Send(3, m.SealOk(NEW, OLD, 0, 1, 0))]
    assert bench.server.log.last == 1


def test_a_candidate_is_not_told_of_commitments_beyond_the_end_of_the_log() -> None:
    """It would believe that the entries it adopts there are committed, and not ask for their envelopes."""
    bench = Bench()
    bench.hear(m.Heartbeat(OLD, 9, 0, 1, 0, True), 1)
    bench.hear(m.Seal(NEW, 0), 3)
    assert bench.sync() == [Send(3, m.SealOk(NEW, OLD, 0, 1, 1))]


def test_a_record_comes_back_with_its_envelopes_and_with_none_that_has_no_entry() -> None:
    entries = (tick(2), entry_of(data(1), 3))
    body = EntriesAppended(OLD, 1, entries, ((1, data(1).payload),))
    assert decode_order(encode_order(body)) == body
    with pytest.raises(ProtocolError, match="without its entry"):
        decode_order(encode_order(replace(body, envelopes=((2, data(1).payload),))))


# -- rule 3: what is committed ----------------------------------------------------------------------


def with_an_entry(**settings: Any) -> tuple[Chair, int]:
    """Node 1 of three leads, and nobody has acknowledged the last entry yet; and the number of that."""
    chair = lead_three(**settings)
    last = chair.open(1)
    chair.acknowledge(last, 2)
    assert committed(chair) == last
    chair.hear(m.ProducerOpen(2, RUN), 2)
    return chair, last + 1


def committed(chair: Chair) -> int:
    assert chair.sequencer.reign is not None
    return chair.sequencer.reign.committed_upto


@with_and_without("commit-without-own")
def test_nothing_is_committed_without_the_sequencer_s_own_acknowledgement(is_planted: bool) -> None:
    chair, last = with_an_entry()
    chair.acknowledge(last, 2)
    chair.acknowledge(last, 3)
    assert committed(chair) == (last if is_planted else last - 1), "two of three are not enough"
    if not is_planted:
        effects = chair.acknowledge(last, 1)
        commits = [effect.message for effect in effects if isinstance(effect, Multicast)]
        assert [one.committed_upto for one in commits if isinstance(one, m.Commit)] == [last]


def test_other_groups_need_no_acknowledgement_of_the_sequencer_s_node() -> None:
    chair, last = with_an_entry(**WITNESS)
    chair.acknowledge(last, 2)
    chair.acknowledge(last, 3)
    assert committed(chair) == last


# -- rule 4: when a commit server takes a start -----------------------------------------------------


def started(bench: Bench, *entries: Entry, committed: int = 0, after: int = 1) -> list[RoleEffect]:
    return bench.hear(m.EpochStart(NEW, after + 1, entries, committed, OLD), 3)


@with_and_without("start-without-envelopes")
def test_a_start_waits_until_its_envelopes_are_durable_and_asks_for_missing_ones(is_planted: bool) -> None:
    bench = Bench()
    here, missing = entry_of(data(1), 2), entry_of(data(2), 3)
    bench.arrive(data(1))
    effects = started(bench, here, missing)
    assert bool(order_in(effects)) == is_planted, "a crash could cut a log of the new epoch"
    if is_planted:
        return
    assert effects == [Send(3, fetch(missing))]
    assert bench.arrive(data(2)) == [], "written is not durable"
    effects = bench.sync()
    assert order_in(effects) == [EpochStarted(NEW, 1, (here, missing))]
    assert sent(effects) == []
    assert bench.sync() == [Send(3, m.CommitAcknowledge(NEW, 3))]


def test_a_start_does_not_wait_for_what_the_new_sequencer_calls_committed() -> None:
    first, second = entry_of(data(1), 2), entry_of(data(2), 3)
    assert order_in(started(Bench(), first, committed=2)) == [EpochStarted(NEW, 1, (first,))]
    assert started(Bench(), first, second, committed=2) == [Send(3, fetch(second))]


def test_a_repeated_start_asks_again() -> None:
    bench, entry = Bench(), entry_of(data(1), 2)
    assert started(bench, entry) == [Send(3, fetch(entry))]
    assert bench.step() == [], "not with every step"
    assert started(bench, entry) == [Send(3, fetch(entry))]


def test_a_start_that_waits_is_given_up_for_a_higher_epoch() -> None:
    bench, entry = Bench(), entry_of(data(1), 2)
    started(bench, entry)
    higher = make_epoch(3, 1)
    bench.hear(m.Seal(higher, 0), 1)
    bench.arrive(data(1))
    effects = bench.sync()
    assert order_in(effects) == []
    assert Send(1, m.SealOk(higher, OLD, 0, 1, 0)) in effects
    assert bench.server.log_epoch == OLD


# -- rule 5: when a candidate starts its epoch ------------------------------------------------------


def adopting(*entries: Entry, committed: int = 0) -> tuple[Chair, list[RoleEffect]]:
    """Node 1 stands with an empty log, and fetches these from node 2; what it does then."""
    chair = Chair(nodes=(1, 2, 3))
    epoch = stand_among_three(chair)
    last = entries[-1].last
    chair.hear(m.SealOk(epoch, 0, 0, 0, 0), 1)
    effects = chair.hear(m.SealOk(epoch, sequence.OLD, 0, last, committed), 2)
    assert effects == [Send(2, m.FetchLog(epoch, 1))]
    return chair, chair.hear(m.FetchLogReply(epoch, 1, entries, last), 2)


def starts(effects: list[RoleEffect]) -> list[m.BusMessage]:
    return [message for message in sent(effects) if isinstance(message, m.EpochStart)]


def asked_for(entry: Entry, effects: list[RoleEffect]) -> list[int]:
    """Which servers are asked for the envelope of this entry."""
    return [one.to for one in effects if isinstance(one, Send) and one.message == fetch(entry)]


def test_a_candidate_asks_for_the_envelopes_of_the_adopted_log_before_it_starts() -> None:
    entry = entry_of(data(1), 2)
    chair, effects = adopting(OPENED, entry)
    assert effects == [Send(2, fetch(entry))], "first the server whose log it is"
    asked = [server for _ in range(3) for server in asked_for(entry, chair.wait())]
    assert asked == [2, 3, 2], "then the data servers in turn, and again"
    chair.data_server.step(chair.now_ns, [Received(2, m.FetchDataReply((data(1),), ()))])
    effects = chair.wait()
    assert len(starts(effects)) == 2, "its own commit server waits until the envelope is durable"
    assert asked_for(entry, effects) == []


def test_a_candidate_does_not_ask_for_what_is_known_to_be_committed() -> None:
    first, second = entry_of(data(1), 2), entry_of(data(2), 3)
    _, effects = adopting(OPENED, first, second, committed=2)
    assert effects == [Send(2, fetch(second))]
    _, effects = adopting(OPENED, first, second, committed=3)
    assert len(starts(effects)) == 2


def test_a_candidacy_is_won_only_with_its_own_acknowledgement() -> None:
    chair, _ = adopting(sequence.tick(1))
    chair.hear(m.SealOk(chair.epoch, 0, 0, 0, 0), 3)
    chair.acknowledge(1, 2)
    chair.acknowledge(1, 3)
    assert chair.sequencer.state is State.STARTING
    chair.acknowledge(1, 1)
    assert chair.sequencer.state is State.LEADING


# -- a node that starts -----------------------------------------------------------------------------


def crashed(node: OneNode, *kept: type) -> OneNode:
    """The next life of a node; of what was not synced only records of these kinds are on its disk."""
    unsynced = [append for append in node.disk.unsynced if isinstance(append.record, kept)]
    disk = StageDisk([*node.disk.synced, *unsynced])
    return OneNode(node.config, disk, run_id=b"run-after-crash!")


def applied(node: OneNode) -> list[int]:
    return [entry.mid.pseq for entry in node.applied if entry.kind is EntryKind.DATA]


@with_and_without("embedded-envelopes-forgotten")
def test_an_envelope_that_only_the_order_kept_is_written_again_and_delivered(is_planted: bool) -> None:
    before = serving()
    before.step(envelope(1))
    node = crashed(before, OrderRecord)
    effects = node.step()
    assert written(effects) == ([] if is_planted else [2])
    if not is_planted:
        node.settle()
        assert applied(node) == [1, 2]
        again = crashed(node)
        assert written(again.step()) == [], "now both are there"


def test_what_neither_kept_is_gone_and_what_both_kept_is_not_written_again() -> None:
    before = serving()
    before.step(envelope(1))
    node = crashed(before)
    assert written(node.step()) == []
    node.settle()
    assert applied(node) == [1], "nobody was told that it is committed"
    node = crashed(before, OrderRecord, DataRecord)
    assert written(node.step()) == []
    node.settle()
    assert applied(node) == [1, 2]


# -- a node that has lost envelopes of its log ------------------------------------------------------


def test_a_server_that_lost_an_envelope_asks_for_it_before_it_acknowledges_a_submit() -> None:
    lost = entry_of(data(1), 2)
    bench = Bench(entries=(lost,))
    assert bench.submit(tick(3)) == [Send(1, fetch(lost))]
    bench.arrive(data(1))
    assert bench.submit(tick(3)) == [], "it is on its way to the disk"
    bench.sync()
    assert order_in(bench.submit(tick(3))) == [EntriesAppended(OLD, 2, ticks(3, 3))]
    assert bench.sync() == [Send(1, m.CommitAcknowledge(OLD, 3))]


def test_nor_does_it_acknowledge_what_it_has_when_asked_again() -> None:
    lost = entry_of(data(1), 2)
    bench = Bench(entries=(lost,))
    assert bench.submit(lost) == [Send(1, fetch(lost))]
    assert bench.submit(tick(9)) == [Send(1, fetch(lost))], "nor behind a gap"
    repeated = m.EpochStart(OLD, 1, (), 0)
    assert bench.hear(repeated, 1) == [Send(1, fetch(lost))], "nor as a candidate's start"
    bench.arrive(data(1))
    bench.sync()
    assert bench.hear(repeated, 1) == [Send(1, m.CommitAcknowledge(OLD, 2))]


def test_an_envelope_that_others_hold_does_not_keep_it_from_acknowledging() -> None:
    lost = entry_of(data(1), 2)
    bench = Bench(entries=(lost,))
    assert order_in(bench.submit(tick(3), committed=2)) == [EntriesAppended(OLD, 2, ticks(3, 3))]


def test_a_server_that_lost_an_envelope_takes_no_start_before_it_has_it_again() -> None:
    lost = entry_of(data(1), 2)
    bench = Bench(entries=(lost,))
    assert started(bench, after=2) == [Send(3, fetch(lost))]
    assert bench.arrive(data(1)) == []
    assert order_in(bench.sync()) == [EpochStarted(NEW, 2, ())]
    assert bench.sync() == [Send(3, m.CommitAcknowledge(NEW, 2))]


@pytest.mark.parametrize("last", [3, 12])
def test_a_base_that_covers_all_doubtful_entries_is_acknowledged_at_once(last: int) -> None:
    """Nobody may submit anything for long, and a submit is not sent to a server below the base."""
    bench = Bench(last)
    bench.hear(m.Heartbeat(OLD, 9, 0, 1, 9, True), 1)
    bench.step(Installed(9, b"ledger at 9"))
    acknowledged = [Send(1, m.CommitAcknowledge(OLD, 9))] if last < 9 else []
    assert [effect for effect in bench.sync() if isinstance(effect, Send)] == acknowledged


def test_what_this_node_has_delivered_or_knows_to_be_committed_is_not_lost() -> None:
    entry = entry_of(data(1), 2)
    bench = Bench(entries=(entry,))
    assert bench.data_server.stored(entry) is CopyState.MISSING
    bench.known.upto = 2
    assert bench.data_server.stored(entry) is CopyState.DURABLE
    assert order_in(bench.submit(tick(3))) == [EntriesAppended(OLD, 2, ticks(3, 3))]


# -- waiting for the entry --------------------------------------------------------------------------


def data_waits(**settings: Any) -> list[bool]:
    """What the replica of node 3 tells its keeper when it hears that node 1 leads."""
    replica = Replica(
        GroupConfig.of("main", (1, 2, 3), **settings), 3, RUN, MemoryPayloads(), JournalCounter()
    )
    effects = replica.step(0, [])
    assert not any(isinstance(effect, DataWaits) for effect in effects)
    effects = replica.step(1, [Received(1, m.Heartbeat(make_epoch(1, 1), 0, 0, 1, 0, True))])
    return [effect.is_so for effect in effects if isinstance(effect, DataWaits)]


def test_envelopes_wait_for_their_entries_on_a_node_that_follows() -> None:
    assert data_waits() == [True]
    assert data_waits(**WITNESS) == []
    assert data_waits(one_round=0) == []


def test_envelopes_do_not_wait_on_the_node_that_leads() -> None:
    cluster = Cluster(GroupConfig.of("main", (1, 2, 3)))
    cluster.run_until(lambda: cluster.is_calm)
    assert not cluster.leader._storage.keeper._data_waits
    cluster.crash(cluster.leader.node_id)
    assert all(node._storage.keeper._data_waits for node in cluster.living)
    cluster.run_until(lambda: cluster.is_calm)
    assert not cluster.leader._storage.keeper._data_waits
