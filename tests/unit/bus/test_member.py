"""Steps of a member: what is applied, when, and what it asks for."""

from __future__ import annotations

from typing import Any

from antiphon.bus import messages as m
from antiphon.bus.chance import Chance
from antiphon.bus.checkpoint_server import CheckpointServer
from antiphon.bus.data_server import DataServer
from antiphon.bus.effects import (
    Append,
    Apply,
    DataRecord,
    Installed,
    Learned,
    PrimaryChanged,
    Received,
    RoleEffect,
    Send,
    Synced,
    TakeCheckpoint,
)
from antiphon.bus.entries import OpenDetail, VoidDetail
from antiphon.bus.group import MS, GroupConfig
from antiphon.bus.ledger import Ledger
from antiphon.bus.log import CommitLog, Prefix
from antiphon.bus.member import Member
from antiphon.bus.messages import NO_DIGEST, Entry, EntryKind
from antiphon.bus.ports import JournalCounter
from antiphon.ids import Mid, make_epoch
from tests.planted.catalogue import with_and_without
from tests.stage import KnownLog, MemoryPayloads, data_of, entry_of

EPOCH = make_epoch(1, 1)


def own(number: int, kind: EntryKind, detail: bytes = b"") -> Entry:
    return Entry(number, 1, kind, Mid(1, EPOCH, number), 0, NO_DIGEST, detail)


OPENED = own(1, EntryKind.PRODUCER_OPEN, OpenDetail(7, b"a" * 16).encode())
ONE = data_of(Mid(7, 1, 1), commands=2)
TWO = data_of(Mid(7, 1, 2))


class Pew:
    """The member of node 2 with its data server."""

    def __init__(
        self,
        nodes: tuple[int, ...] = (1, 2, 3, 7),
        seed: int = 1,
        **settings: Any,
    ) -> None:
        self.config = GroupConfig.of("main", nodes, **settings)
        known, ledger = Prefix(), Ledger()
        self.payloads = MemoryPayloads()
        self.data_server = DataServer(
            self.config,
            2,
            self.payloads,
            JournalCounter(),
            known,
            ledger,
            KnownLog(CommitLog()),
        )
        self.checkpoints = CheckpointServer(self.config, 2)
        self.member = Member(self.config, 2, known, ledger, self.data_server, self.checkpoints, Chance(seed))
        self.now_ns = 0

    def step(self, *messages: m.BusMessage) -> list[RoleEffect]:
        effects = self.member.step(self.now_ns, [Received(1, message) for message in messages])
        for learned in [effect for effect in effects if isinstance(effect, Learned)]:
            self.data_server.step(self.now_ns, [learned])
            effects += self.member.step(self.now_ns, [])
        return effects

    def commit(self, *entries: Entry) -> list[RoleEffect]:
        return self.step(m.Commit(EPOCH, entries, entries[-1].last))

    def store(self, data: m.Data, *, durable: bool = True) -> None:
        for effect in self.data_server.step(self.now_ns, [Received(7, data)]):
            if isinstance(effect, Append) and isinstance(effect.record, DataRecord):
                self.payloads.write(effect.record)
                if durable:
                    self.data_server.step(self.now_ns, [Synced(effect.index)])

    def wait(self) -> list[RoleEffect]:
        deadline = self.member.next_deadline_ns()
        assert deadline is not None
        self.now_ns = deadline
        return self.member.step(self.now_ns, [])

    def asks(self) -> Send:
        """What it asks for next."""
        while True:
            for effect in self.wait():
                if isinstance(effect, Send):
                    return effect


def applied(effects: list[RoleEffect]) -> list[int]:
    return [effect.entry.first for effect in effects if isinstance(effect, Apply)]


def test_committed_entries_are_applied_in_order_with_their_payload_and_place() -> None:
    pew = Pew()
    pew.store(ONE)
    effects = pew.commit(OPENED, entry_of(ONE, 2))
    assert applied(effects) == [1, 2]
    apply = effects[1]
    assert isinstance(apply, Apply)
    assert apply.payload == ONE.payload and apply.location == pew.payloads.location_of(2)
    assert pew.member.applied == 3


def test_an_entry_waits_until_its_payload_is_durable_here() -> None:
    pew = Pew()
    pew.store(TWO)
    pew.store(ONE, durable=False)
    effects = pew.commit(OPENED, entry_of(ONE, 2), entry_of(TWO, 4))
    assert applied(effects) == [1], "and nothing behind it is applied before it"
    pew.data_server.step(0, [Synced(2)])
    assert applied(pew.step()) == [2, 4]


def test_a_gap_in_the_order_holds_up_what_is_behind_it() -> None:
    pew = Pew()
    pew.store(ONE)
    assert applied(pew.commit(entry_of(ONE, 2))) == []
    assert applied(pew.commit(OPENED)) == [1, 2]


def test_commits_of_any_epoch_count_since_committed_is_a_stable_fact() -> None:
    pew = Pew()
    pew.store(ONE)
    pew.step(m.Commit(make_epoch(9, 3), (OPENED,), 1))
    assert applied(pew.step(m.Commit(EPOCH, (entry_of(ONE, 2),), 3))) == [2]


def test_what_is_heard_twice_is_applied_once() -> None:
    pew = Pew()
    pew.commit(OPENED)
    assert pew.commit(OPENED) == []


def test_a_gap_is_asked_for_after_a_while_and_less_and_less_often() -> None:
    pew = Pew()
    pew.step(m.Heartbeat(EPOCH, 5, 0, 1, 0, True))
    (ask,) = pew.wait()
    assert isinstance(ask, Send) and ask.message == m.FetchId(1, pew.config.fetch_entries_max)
    assert ask.to in pew.config.commit_servers
    first_wait = pew.now_ns
    pew.wait()
    second_wait = pew.now_ns - first_wait
    pew.wait()
    assert pew.now_ns - first_wait - second_wait > second_wait
    assert applied(pew.step(m.FetchIdReply((OPENED,), 1, 0))) == [1]


def test_a_gap_that_closes_by_itself_is_not_asked_for() -> None:
    pew = Pew()
    pew.step(m.Heartbeat(EPOCH, 1, 0, 1, 0, True))
    pew.commit(OPENED)
    assert pew.member.next_deadline_ns() is None


def test_a_missing_payload_is_asked_for_at_another_data_server() -> None:
    pew = Pew()
    pew.commit(OPENED, entry_of(ONE, 2))
    (ask,) = pew.wait()
    assert isinstance(ask, Send) and ask.to != 2
    assert ask.message == m.FetchData((ONE.mid,), (2,))


def test_the_delays_are_the_same_in_every_replay() -> None:
    def deadlines() -> list[int]:
        pew = Pew()
        pew.step(m.Heartbeat(EPOCH, 5, 0, 1, 0, True))
        found = []
        for _ in range(5):
            pew.wait()
            found.append(pew.now_ns)
        return found

    assert deadlines() == deadlines()


def test_a_claim_changes_the_primary_when_it_is_applied() -> None:
    pew = Pew()
    effects = pew.commit(own(1, EntryKind.PRIMARY_CLAIM))
    assert effects[:2] == [
        Apply(own(1, EntryKind.PRIMARY_CLAIM), None, None),
        PrimaryChanged(EPOCH, 1),
    ]


def test_a_checkpoint_is_taken_right_behind_its_mark() -> None:
    pew = Pew()
    pew.store(ONE)
    mark, later = own(2, EntryKind.CHECKPOINT_MARK), own(3, EntryKind.TICK)
    effects = pew.commit(OPENED, mark, later)
    assert [effect for effect in effects if not isinstance(effect, Learned)] == [
        Apply(OPENED, None, None),
        Apply(mark, None, None),
        TakeCheckpoint(2),
        Apply(later, None, None),
    ]


def test_the_roles_of_the_node_learn_what_is_notable_and_what_could_not_be_applied() -> None:
    pew = Pew()
    pew.store(TWO)
    mark = own(4, EntryKind.CHECKPOINT_MARK)
    effects = pew.commit(OPENED, entry_of(ONE, 2), mark, entry_of(TWO, 5))
    (learned,) = (effect for effect in effects if isinstance(effect, Learned))
    assert learned.entries == (entry_of(ONE, 2), mark, entry_of(TWO, 5))
    assert learned.notable == (OPENED, mark)
    ((n, ledger),) = learned.marks
    assert n == 4 and Ledger.decode(ledger).rows[7].last_pseq == 1, "the ledger as it stood at the mark"


def test_a_commit_of_data_alone_that_is_applied_at_once_is_no_news_to_anybody() -> None:
    pew = Pew()
    pew.store(ONE)
    pew.commit(OPENED)
    (only,) = pew.commit(entry_of(ONE, 2))
    assert isinstance(only, Apply)


def test_a_payload_that_is_being_written_is_not_asked_for() -> None:
    pew = Pew()
    pew.store(ONE, durable=False)
    pew.commit(OPENED, entry_of(ONE, 2))
    assert pew.member.waiting
    assert pew.member.next_deadline_ns() is None, "the disk will answer, nobody else need"


def test_steady_traffic_does_not_keep_a_missing_payload_from_being_asked_for() -> None:
    """Each COMMIT is news about the order, and none about the payload that is missing."""
    pew = Pew()
    pew.commit(OPENED, entry_of(ONE, 2))
    asked = []
    for at in range(4, 40):
        pew.now_ns += 2 * MS
        asked += [effect for effect in pew.commit(own(at, EntryKind.TICK)) if isinstance(effect, Send)]
    assert any(effect.message == m.FetchData((ONE.mid,), (2,)) for effect in asked)


def test_the_sequencer_is_asked_only_if_another_could_not_help() -> None:
    for seed in range(20):
        pew = Pew((1, 2, 3), seed=seed)
        pew.commit(OPENED, entry_of(ONE, 2))
        assert pew.asks().to == 3, "node 1 leads and node 2 is ourselves"
    asked = [pew.asks().to for _ in range(20)]
    assert set(asked) == {1, 3}


def test_payloads_are_asked_for_a_page_at_a_time_and_the_next_page_at_once() -> None:
    pew = Pew(fetch_mids_max=2)
    data = [data_of(Mid(7, 1, pseq)) for pseq in range(1, 6)]
    pew.commit(OPENED, *(entry_of(one, one.mid.pseq + 1) for one in data))
    assert pew.asks().message == m.FetchData((data[0].mid, data[1].mid), (2, 3))
    pew.store(data[1])
    assert [effect for effect in pew.step() if isinstance(effect, Send)] == [], "half an answer"
    pew.store(data[0])
    (more,) = [effect for effect in pew.step() if isinstance(effect, Send)]
    assert more.message == m.FetchData((data[2].mid, data[3].mid), (4, 5))


def test_who_is_far_behind_asks_for_order_and_payloads_in_one_trip() -> None:
    pew = Pew(fetch_entries_max=4)
    pew.step(m.Heartbeat(EPOCH, 50, 0, 1, 0, True))
    ask = pew.asks()
    assert ask.message == m.FetchRange(1, pew.config.fetch_bytes_max) and ask.to not in (1, 2)
    effects = pew.step(m.FetchRangeReply((OPENED, entry_of(ONE, 2)), (ONE,), 50, 0))
    assert applied(effects) == [1]
    questions = [effect.message for effect in effects if isinstance(effect, Send)]
    assert m.FetchRange(4, pew.config.fetch_bytes_max) in questions, "the next trip follows at once"


def test_who_gets_no_answer_to_that_asks_for_the_order_alone() -> None:
    pew = Pew(fetch_entries_max=4)
    pew.step(m.Heartbeat(EPOCH, 50, 0, 1, 0, True))
    asked = [type(pew.asks().message) for _ in range(4)]
    assert asked == [m.FetchRange, m.FetchId, m.FetchRange, m.FetchId]


def test_the_last_page_of_the_order_is_fetched_from_a_commit_server() -> None:
    pew = Pew(fetch_entries_max=4)
    pew.step(m.Heartbeat(EPOCH, 4, 0, 1, 0, True))
    assert pew.asks().message == m.FetchId(1, 4)


def test_while_nobody_leads_the_others_presence_tells_what_is_missing() -> None:
    """It may be the very configuration that makes this node the one who is to lead."""
    pew = Pew()
    pew.step(m.Presence("n3", "full", 4, True, b"", 0))
    assert pew.asks().message == m.FetchId(1, pew.config.fetch_entries_max)


# -- a witness -----------------------------------------------------------------------------------


def test_a_witness_learns_the_order_and_applies_nothing() -> None:
    pew = Pew((1, 2, 3), data_servers=(1, 3), candidates=(1, 3), checkpoint_servers=(1, 3))
    mark = own(5, EntryKind.CHECKPOINT_MARK)
    effects = pew.commit(own(1, EntryKind.PRIMARY_CLAIM), opened_at(2), data_at(3, 2), mark)
    assert applied(effects) == []
    assert not pew.member.waiting, "payloads never come here: it must not wait for them"
    assert (pew.member.known.upto, pew.member.applied) == (5, 5)
    assert PrimaryChanged(EPOCH, 1) in effects
    (learned,) = (effect for effect in effects if isinstance(effect, Learned))
    assert learned.entries == () and [n for n, _ in learned.marks] == [5], "its base moves as any other's"


def opened_at(number: int) -> Entry:
    return own(number, EntryKind.PRODUCER_OPEN, OpenDetail(7, b"a" * 16).encode())


def data_at(number: int, pe: int) -> Entry:
    return entry_of(data_of(Mid(7, pe, 1), commands=2), number)


# -- payloads that are lost for good ---------------------------------------------------------------


def test_an_entry_declared_void_is_applied_without_its_payload() -> None:
    pew = Pew()
    pew.store(TWO)
    pew.commit(OPENED, entry_of(ONE, 2), entry_of(TWO, 4))
    void = own(5, EntryKind.VOID, VoidDetail(2).encode())
    applies = [effect for effect in pew.commit(void) if isinstance(effect, Apply)]
    assert [(one.entry.first, one.payload is None) for one in applies] == [(2, True), (4, False), (5, True)]
    assert not pew.data_server.wanted, "and nobody is asked for it any more"
    assert pew.member.applied == 5


def test_a_payload_that_turns_up_after_it_was_declared_void_is_not_used() -> None:
    pew = Pew()
    pew.store(ONE, durable=False)
    pew.commit(OPENED, entry_of(ONE, 2))
    pew.data_server.step(0, [Synced(1)])
    effects = pew.commit(own(4, EntryKind.VOID, VoidDetail(2).encode()))
    (lost, _) = [effect for effect in effects if isinstance(effect, Apply)]
    assert lost.payload is None, "or this node would differ from those that never had it"
    assert not pew.payloads.has(ONE.mid)


def test_void_says_nothing_about_any_other_entry() -> None:
    pew = Pew()
    pew.commit(OPENED, own(2, EntryKind.VOID, VoidDetail(1).encode()))
    pew.commit(entry_of(ONE, 3))
    assert pew.member.applied == 2


# -- rows, and states of others ------------------------------------------------------------------


def test_a_producer_is_told_what_the_known_order_says_about_it() -> None:
    pew = Pew()
    pew.commit(OPENED, entry_of(ONE, 2))
    (answer,) = [e for e in pew.step(m.ProducerStateGet(7)) if isinstance(e, Send)]
    assert answer.message == m.ProducerState(7, 3, 1, 1, 3, 0, 0, b"a" * 16)
    (answer,) = [e for e in pew.step(m.ProducerStateGet(9)) if isinstance(e, Send)]
    assert answer.message == m.ProducerState(9, 3, 0, 0, 0, 0, 0, bytes(16)), "it never opened"


def test_a_question_that_comes_with_a_commit_is_answered_when_that_is_folded() -> None:
    pew = Pew()
    pew.commit(OPENED)
    committed = m.Commit(1, (entry_of(ONE, 2),), 3)
    for said in ((m.ProducerStateGet(7), committed), (committed, m.ProducerStateGet(7))):
        told = [e.message for e in pew.step(*said) if isinstance(e, Send)]
        assert m.ProducerState(7, 3, 1, 1, 3, 0, 0, b"a" * 16) in told


def ledger_through(*entries: Entry) -> bytes:
    ledger = Ledger()
    ledger.fold(entries)
    return ledger.encode()


def test_an_installed_state_is_where_the_member_goes_on() -> None:
    pew = Pew()
    pew.commit(OPENED, entry_of(ONE, 2))
    pew.step(m.Heartbeat(EPOCH, 9, 0, 1, 9, True))
    claim = own(4, EntryKind.PRIMARY_CLAIM)
    installed = Installed(4, ledger_through(OPENED, entry_of(ONE, 2), claim))
    assert PrimaryChanged(EPOCH, 1) in pew.member.step(0, [installed])
    pew.data_server.step(0, [installed])
    assert (pew.member.applied, pew.member.known.upto, len(pew.member.waiting)) == (4, 4, 0)
    assert not pew.data_server.wanted
    pew.store(TWO)
    assert applied(pew.commit(entry_of(TWO, 5))) == [5]


def test_what_was_known_beyond_an_installed_state_is_kept() -> None:
    pew = Pew()
    pew.commit(OPENED, entry_of(ONE, 2), entry_of(TWO, 4))
    installed = Installed(3, ledger_through(OPENED, entry_of(ONE, 2)))
    pew.member.step(0, [installed])
    pew.data_server.step(0, [installed])
    assert list(pew.data_server.wanted) == [TWO.mid]
    pew.store(TWO)
    assert applied(pew.step()) == [4]


def test_what_an_installed_state_covers_need_not_be_held() -> None:
    pew = Pew()
    pew.store(ONE)
    installed = Installed(3, ledger_through(OPENED, entry_of(ONE, 2)))
    pew.member.step(0, [installed])
    pew.data_server.step(0, [installed])
    assert not pew.payloads.has(ONE.mid)


# -- planted -------------------------------------------------------------------------------------


@with_and_without("deliver-before-durable")
def test_applying_what_is_not_durable_here_is_seen(is_planted: bool) -> None:
    pew = Pew()
    pew.store(ONE, durable=False)
    effects = pew.commit(OPENED, entry_of(ONE, 2))
    assert (2 in applied(effects)) == is_planted, "a crash now would lose what was applied"
